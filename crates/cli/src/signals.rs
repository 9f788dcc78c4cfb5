//! Signals as a flag that long work looks at between its steps.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGINT;
use signal_hook::flag;

use crate::failure::{Code, Failure, Result};

/// Each of these raises the flag; a second Ctrl-C, with the flag still up, ends the program.
pub(crate) fn watch(signals: &[i32]) -> Result<Arc<AtomicBool>> {
    let raised = Arc::new(AtomicBool::new(false));
    let watch = || {
        flag::register_conditional_shutdown(SIGINT, Code::Interrupted as i32, Arc::clone(&raised))?;
        signals.iter().try_for_each(|signal| flag::register(*signal, Arc::clone(&raised)).map(|_| ()))
    };
    watch().map_err(|error| Failure::new(Code::Failed, format!("Ctrl-C cannot be watched: {error}")))?;
    Ok(raised)
}
