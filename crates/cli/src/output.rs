//! What people read: sizes, counts, a progress line that rewrites itself on a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Bytes with a unit: "98.4 MB".
pub(crate) fn bytes(count: u64) -> String {
    scaled(count as f64, 3, &[(1e9, "GB"), (1e6, "MB"), (1e3, "kB")], "B")
}

/// A count: "134.5 M".
pub(crate) fn count(count: u64) -> String {
    scaled(count as f64, 4, &[(1e9, "G"), (1e6, "M"), (1e3, "k")], "")
}

/// Four figures of a count and three of a size; the integer part is never shortened.
fn scaled(value: f64, figures: usize, units: &[(f64, &str)], plain: &str) -> String {
    for (size, unit) in units {
        if value >= *size {
            let value = value / size;
            let before_point = value.log10().floor() as usize + 1;
            let digits = figures.saturating_sub(before_point);
            return format!("{value:.digits$} {unit}");
        }
    }
    format!("{value} {plain}").trim_end().to_string()
}

/// Digits in groups of three: "49,807,360".
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A length of time: "0.4 s", "1:05".
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
    }
}

/// Columns on a terminal, where Chinese characters take two.
pub(crate) fn width(text: &str) -> usize {
    let wide = |c: char| matches!(c, '\u{1100}'..='\u{115f}' | '\u{2e80}'..='\u{d7ff}' | '\u{f900}'..='\u{faff}' | '\u{ff00}'..='\u{ff60}' | '\u{1f300}'..='\u{1faff}' | '\u{20000}'..='\u{3ffff}');
    text.chars().map(|c| 1 + usize::from(wide(c))).sum()
}

/// Prints a value as JSON, for programs.
pub(crate) fn json(value: &impl serde::Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => println!("{text}"),
        Err(error) => eprintln!("error: the result has no JSON form: {error}"),
    }
}

/// A line on stderr that rewrites itself; silent where stderr is not a terminal.
pub(crate) struct Progress {
    label: String,
    total: u64,
    done: u64,
    start: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl Progress {
    pub(crate) fn new(label: impl Into<String>, total: u64) -> Progress {
        Progress {
            label: label.into(),
            total: total.max(1),
            done: 0,
            start: Instant::now(),
            shown: None,
            terminal: stderr().is_terminal(),
        }
    }

    /// Of work whose share nobody knows until it is done.
    pub(crate) fn waiting(label: impl Into<String>) -> Progress {
        let mut progress = Progress::new(label, 1);
        if progress.terminal {
            progress.shown = Some(Instant::now());
            eprint!("{} ...", progress.label);
        }
        progress
    }

    pub(crate) fn add(&mut self, amount: u64) {
        self.done += amount;
        let recently = |shown: Instant| shown.elapsed() < Duration::from_millis(100);
        if !self.terminal || self.shown.is_some_and(recently) {
            return;
        }
        self.shown = Some(Instant::now());
        let share = self.done as f64 / self.total as f64;
        let elapsed = self.start.elapsed().as_secs_f64();
        let left = Duration::from_secs_f64((elapsed / share.max(1e-6) * (1.0 - share)).clamp(0.0, 1e6));
        eprint!("\r\x1b[K{}  {:.0}%  {} left", self.label, share * 100.0, duration(left));
        // A line that cannot be shown is not worth an error.
        let _ = stderr().flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_carry_three_digits_counts_four_and_a_unit() {
        assert_eq!(bytes(98_362_432), "98.4 MB");
        assert_eq!(bytes(512), "512 B");
        assert_eq!((bytes(1_000_000), bytes(269_000_000)), ("1.00 MB".into(), "269 MB".into()));
        assert_eq!((count(134_515_008), count(81_000)), ("134.5 M".into(), "81.00 k".into()));
        assert_eq!((count(2_470_000_000_000), count(999)), ("2470 G".into(), "999".into()));
        assert_eq!(grouped(49_807_360), "49,807,360");
        assert_eq!(duration(Duration::from_secs(65)), "1:05");
    }
}
