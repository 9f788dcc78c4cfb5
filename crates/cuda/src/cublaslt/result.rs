//! Answers of the library as values: which call, what its header calls the failure.

use super::sys::Status;

/// `CUBLAS_STATUS_…` by number.
const NAMES: [(Status, &str); 9] = [
    (1, "NOT_INITIALIZED"),
    (3, "ALLOC_FAILED"),
    (7, "INVALID_VALUE"),
    (8, "ARCH_MISMATCH"),
    (11, "MAPPING_ERROR"),
    (13, "EXECUTION_FAILED"),
    (14, "INTERNAL_ERROR"),
    (15, "NOT_SUPPORTED"),
    (16, "LICENSE_ERROR"),
];

/// An error unless the call succeeded; `call` is its name with the sizes that matter.
pub(super) fn check(call: impl FnOnce() -> String, status: Status) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    let name =
        NAMES.iter().find(|(number, _)| *number == status).map_or("an unknown status", |(_, name)| name);
    Err(format!("{}: {name} ({status})", call()))
}
