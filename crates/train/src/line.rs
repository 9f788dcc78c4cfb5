//! The one line that a person watches while it trains. Only strings: `cli` prints them.
//!
//! ```text
//! step 412/1000  loss 1.873 (held 1.902)  lr 4.1e-5  5.9% codes moved  18,204 tok/s · 74% of ceiling  10.1/10.14 GiB  6:21 left
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use crate::record::Record;
use crate::spike::median;
use crate::words::{clock, duration, figures, grouped, loss, percent, rate, unit};

/// Steps that the pace is taken from.
const WINDOW: usize = 50;

/// How long a step takes: the median of the last ones, which one slow step does not move.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    recent: VecDeque<f64>,
}

impl Pace {
    /// Takes the length of a step.
    pub fn observe(&mut self, seconds: f64) {
        if seconds.is_finite() && seconds >= 0.0 {
            self.recent.push_back(seconds);
            if self.recent.len() > WINDOW {
                self.recent.pop_front();
            }
        }
    }

    /// How long `steps` will take; `None` before the first step.
    pub fn left(&self, steps: u64) -> Option<Duration> {
        let seconds = median(self.recent.iter().copied().collect())?;
        Some(duration(seconds * steps as f64))
    }
}

/// What the line remembers between steps.
#[derive(Clone, Debug, Default)]
pub struct Live {
    steps: u64,
    held: Option<f64>,
    pace: Pace,
    last: Option<Record>,
}

impl Live {
    /// For a run of so many steps.
    pub fn new(steps: u64) -> Live {
        Live { steps, ..Live::default() }
    }

    /// Takes a step. A resumed run gives its old records first.
    pub fn observe(&mut self, record: &Record) {
        self.held = record.held_out_loss.or(self.held);
        self.pace.observe(record.seconds);
        self.last = Some(record.clone());
    }

    /// The line, in at most `width` columns: what matters least is left out first.
    pub fn line(&self, width: usize) -> String {
        let Some(record) = &self.last else {
            return cut(format!("step 0/{}", self.steps), width);
        };
        let mut parts = self.parts(record);
        loop {
            let line: Vec<&str> = parts.iter().map(|part| part.text.as_str()).collect();
            let line = line.concat();
            let least = (0..parts.len()).max_by_key(|&index| parts[index].rank);
            match least {
                Some(index) if line.chars().count() > width && parts.len() > 1 => drop(parts.remove(index)),
                _ => return cut(line, width),
            }
        }
    }

    fn parts(&self, record: &Record) -> Vec<Part> {
        let mut parts = vec![
            Part::new(0, format!("step {}/{}", record.step, self.steps)),
            Part::new(1, format!("  loss {}", loss(record.loss))),
        ];
        if let Some(held) = self.held {
            parts.push(Part::new(4, format!(" (held {})", loss(held))));
        }
        if record.non_finite > 0 {
            parts.push(Part::new(3, format!("  {} skipped", grouped(record.non_finite))));
        }
        parts.push(Part::new(7, format!("  lr {:.1e}", record.learning_rate)));
        parts.push(Part::new(6, format!("  {} codes moved", percent(record.codes_moved, 1))));
        parts.push(Part::new(5, format!("  {} tok/s", rate(record.tokens_per_second))));
        if let Some(share) = record.ceiling_share {
            parts.push(Part::new(8, format!(" · {} of ceiling", percent(share, 0))));
        }
        parts.push(Part::new(9, format!("  {}", memory(record))));
        if let Some(left) = self.pace.left(self.steps.saturating_sub(record.step)) {
            parts.push(Part::new(2, format!("  {} left", clock(left))));
        }
        parts
    }
}

struct Part {
    /// 0 is left out last.
    rank: usize,
    text: String,
}

impl Part {
    fn new(rank: usize, text: String) -> Part {
        Part { rank, text }
    }
}

/// Measured against planned, in the unit of the plan: "10.1/10.14 GiB".
fn memory(record: &Record) -> String {
    let (size, unit) = unit(record.memory_planned.max(record.memory_measured));
    let measured = figures(record.memory_measured as f64 / size, 3);
    format!("{measured}/{} {unit}", figures(record.memory_planned as f64 / size, 4))
}

fn cut(line: String, width: usize) -> String {
    match line.char_indices().nth(width) {
        Some((end, _)) => line[..end].to_owned(),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> Record {
        Record {
            step: 412,
            loss: 1.8731,
            held_out_loss: None,
            learning_rate: 4.1e-5,
            update_size: 1e-4,
            optimizer_seconds: 0.1,
            gradient_norm: None,
            codes_moved: 0.0591,
            tokens: 1024,
            trained_tokens: 800,
            seconds: 0.648,
            tokens_per_second: 18_204.2,
            ceiling_share: Some(0.742),
            memory_planned: 10_887_742_586,
            memory_measured: 10_844_792_422,
            non_finite: 0,
        }
    }

    fn live() -> Live {
        let mut live = Live::new(1000);
        live.observe(&Record { step: 400, held_out_loss: Some(1.902), ..record() });
        live.observe(&record());
        live
    }

    const WHOLE: &str = "step 412/1000  loss 1.873 (held 1.902)  lr 4.1e-5  5.9% codes moved  \
                         18,204 tok/s · 74% of ceiling  10.1/10.14 GiB  6:21 left";

    #[test]
    fn the_line_reads_as_designed() {
        assert_eq!(live().line(200), WHOLE);
        assert_eq!(live().line(WHOLE.chars().count()), WHOLE);
    }

    #[test]
    fn a_narrow_terminal_gets_what_matters() {
        assert_eq!(
            live().line(90),
            "step 412/1000  loss 1.873 (held 1.902)  5.9% codes moved  18,204 tok/s  6:21 left"
        );
        assert_eq!(live().line(60), "step 412/1000  loss 1.873 (held 1.902)  6:21 left");
        assert_eq!(live().line(30), "step 412/1000  loss 1.873");
        assert_eq!(live().line(7), "step 41");
        assert_eq!(live().line(0), "");
        assert_eq!(Live::new(10).line(80), "step 0/10");
    }

    #[test]
    fn what_is_no_number_is_said_so() {
        let mut live = Live::new(5);
        live.observe(&Record { step: 1, loss: f64::NAN, non_finite: 2, seconds: f64::NAN, ..record() });
        let line = live.line(200);
        assert!(line.contains("loss not a number  2 skipped"), "{line}");
        assert!(!line.contains("left"), "{line}");
    }

    #[test]
    fn one_slow_step_does_not_move_the_end() {
        let mut pace = Pace::default();
        (0..20).for_each(|_| pace.observe(1.0));
        pace.observe(500.0);
        assert_eq!(pace.left(60), Some(Duration::from_secs(60)));
        // A lasting change does.
        (0..50).for_each(|_| pace.observe(2.0));
        assert_eq!(pace.left(60), Some(Duration::from_secs(120)));
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_asked(width in 0usize..150, held: Option<f64>, bits: u64, memory: u64) {
            let mut live = Live::new(bits);
            let odd = f64::from_bits(bits);
            live.observe(&Record {
                held_out_loss: held, loss: odd, seconds: odd, tokens_per_second: odd, codes_moved: odd,
                learning_rate: odd, memory_measured: memory, memory_planned: bits, ..record()
            });
            prop_assert!(live.line(width).chars().count() <= width);
        }
    }
}
