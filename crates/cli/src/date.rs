//! A day of the calendar, as chat templates that ask for the date see it.

use std::fmt;
use std::str::FromStr;

const DAY: u64 = 24 * 60 * 60;

/// A day in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Date {
    year: u64,
    month: u64,
    day: u64,
}

impl Date {
    /// This one.
    pub(crate) fn today() -> Date {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Date::of(since.map_or(DAY, |time| time.as_secs()))
    }

    /// The day of a moment (Unix seconds).
    fn of(seconds: u64) -> Date {
        let mut days = seconds / DAY;
        let mut year = 1970;
        while days >= year_days(year) {
            days -= year_days(year);
            year += 1;
        }
        let mut month = 1;
        while days >= month_days(year, month) {
            days -= month_days(year, month);
            month += 1;
        }
        Date { year, month, day: days + 1 }
    }

    /// Its beginning (Unix seconds), so that all rows of a run see one date.
    pub(crate) fn seconds(self) -> u64 {
        let years: u64 = (1970..self.year).map(year_days).sum();
        let months: u64 = (1..self.month).map(|month| month_days(self.year, month)).sum();
        (years + months + self.day - 1) * DAY
    }
}

fn year_days(year: u64) -> u64 {
    (1..=12).map(|month| month_days(year, month)).sum()
}

fn month_days(year: u64, month: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl FromStr for Date {
    type Err = String;

    fn from_str(text: &str) -> Result<Date, String> {
        let parts: Vec<Option<u64>> = text.split('-').map(|part| part.parse().ok()).collect();
        let date = match parts[..] {
            [Some(year), Some(month), Some(day)] => Date { year, month, day },
            _ => return Err("a day such as 2026-02-28".into()),
        };
        // Templates are given seconds, and none of them means the clock.
        let known = (1971..=9999).contains(&date.year) && (1..=12).contains(&date.month);
        match known && (1..=month_days(date.year, date.month)).contains(&date.day) {
            true => Ok(date),
            false => Err("no such day; write one from 1971 on, such as 2026-02-28".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_the_calendars_both_ways() {
        for (seconds, text) in [
            (951_782_400, "2000-02-29"),
            (1_735_603_200, "2024-12-31"),
            (4_107_542_400, "2100-03-01"),
            (1_763_251_200, "2025-11-16"),
        ] {
            let date = Date::of(seconds + DAY - 1);
            assert_eq!((date.to_string().as_str(), date.seconds()), (text, seconds));
            assert_eq!(text.parse(), Ok(date));
        }
        for wrong in
            ["2025-02-29", "2025-13-01", "1970-01-01", "today", "2025-1", "", "99999-01-01", "2025-04-31"]
        {
            assert!(wrong.parse::<Date>().is_err(), "{wrong}");
        }
    }
}
