//! Numbers as people read them.

use std::time::Duration;

/// "18,204".
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A rounded count of a rate that may be no number: "18,204", "–".
pub(crate) fn rate(value: f64) -> String {
    if value.is_finite() && value >= 0.0 { grouped(value.round() as u64) } else { "–".into() }
}

/// Three digits behind the point; "not a number" where it is none.
pub(crate) fn loss(value: f64) -> String {
    if value.is_finite() { format!("{value:.3}") } else { "not a number".into() }
}

/// "5.9%".
pub(crate) fn percent(share: f64, digits: usize) -> String {
    if share.is_finite() { format!("{:.digits$}%", share * 100.0) } else { "–".into() }
}

/// The unit in which `bytes` has at least one whole.
pub(crate) fn unit(bytes: u64) -> (f64, &'static str) {
    match bytes {
        0x4000_0000.. => ((1u64 << 30) as f64, "GiB"),
        0x10_0000.. => ((1u64 << 20) as f64, "MiB"),
        _ => (1024.0, "KiB"),
    }
}

/// "10.1" of 10.14: as many digits as asked for, never fewer than the whole part has.
pub(crate) fn figures(value: f64, count: usize) -> String {
    let whole = if value >= 1.0 { value.log10().floor() as usize + 1 } else { 1 };
    let digits = count.saturating_sub(whole);
    format!("{value:.digits$}")
}

/// Memory: "10.1 GiB".
pub fn memory_size(count: u64) -> String {
    let (size, unit) = unit(count);
    format!("{} {unit}", figures(count as f64 / size, 3))
}

/// "6:21", "1:06:21", "2 d 3 h".
pub(crate) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{:02}", seconds % 60),
        (0, _) => format!("{hours}:{:02}:{:02}", minutes % 60, seconds % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// A duration of so many seconds; what is no time is none, and nothing is longer than a century.
pub(crate) fn duration(seconds: f64) -> Duration {
    let seconds = if seconds.is_finite() { seconds.clamp(0.0, 3.2e9) } else { 0.0 };
    Duration::from_secs_f64(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 18_204, 1_234_567].map(grouped), ["0", "999", "18,204", "1,234,567"]);
        assert_eq!([rate(18_203.7), rate(f64::NAN), rate(-1.0)], ["18,204", "–", "–"]);
        assert_eq!((loss(1.8734), loss(f64::NAN)), ("1.873".into(), "not a number".into()));
        assert_eq!(
            [memory_size(10_887_742_586), memory_size(71_303_168), memory_size(2048)],
            ["10.1 GiB", "68.0 MiB", "2.00 KiB"]
        );
        let clocks = [0, 381, 3981, 183_600].map(|seconds| clock(Duration::from_secs(seconds)));
        assert_eq!(clocks, ["0:00", "6:21", "1:06:21", "2 d 3 h"]);
        assert_eq!((duration(f64::NAN), duration(-1.0)), (Duration::ZERO, Duration::ZERO));
        assert!(duration(1e300) > Duration::from_secs(1 << 31));
    }
}
