//! Python's ways of writing values: `json.dumps`, `str` and `strftime`, as chat templates expect them.

use serde_json::Value;

/// Options of `tojson`, named as in Python.
pub(crate) struct Dump {
    pub(crate) indent: Option<String>,
    pub(crate) ascii: bool,
    pub(crate) sort_keys: bool,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
}

impl Dump {
    /// The text of a value.
    pub(crate) fn write(&self, value: &Value) -> String {
        let mut out = String::new();
        self.value(value, 0, &mut out);
        out
    }

    fn value(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::Null => out.push_str("null"),
            Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
            Value::Number(number) => out.push_str(&self::number(number)),
            Value::String(text) => self.string(text, out),
            Value::Array(items) => {
                let write = |dump: &Dump, item: &Value, out: &mut String| {
                    dump.value(item, depth + 1, out);
                };
                self.list(items.iter(), ['[', ']'], depth, out, write);
            }
            Value::Object(map) => {
                let mut entries: Vec<(&String, &Value)> = map.iter().collect();
                if self.sort_keys {
                    entries.sort_by_key(|(key, _)| *key);
                }
                let write = |dump: &Dump, (key, item): (&String, &Value), out: &mut String| {
                    dump.string(key, out);
                    out.push_str(&dump.key_separator);
                    dump.value(item, depth + 1, out);
                };
                self.list(entries.into_iter(), ['{', '}'], depth, out, write);
            }
        }
    }

    fn list<T>(
        &self,
        items: impl ExactSizeIterator<Item = T>,
        [open, close]: [char; 2],
        depth: usize,
        out: &mut String,
        write: impl Fn(&Dump, T, &mut String),
    ) {
        out.push(open);
        let empty = items.len() == 0;
        for (index, item) in items.enumerate() {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            self.new_line(depth + 1, out);
            write(self, item, out);
        }
        if !empty {
            self.new_line(depth, out);
        }
        out.push(close);
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 32 || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn number(number: &serde_json::Number) -> String {
    match number.as_f64() {
        Some(value) if number.is_f64() => float(value),
        _ => number.to_string(),
    }
}

/// `repr` of a float: shortest digits, exponent below 1e-4 and from 1e16 on.
pub(crate) fn float(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "nan"
        } else if value > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    }
    if value == 0.0 || (1e-4..1e16).contains(&value.abs()) {
        return format!("{value:?}");
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = exponent.parse().unwrap_or(0);
    let sign = if power < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", power.abs())
}

/// `repr` of a string: single quotes unless only they appear inside.
pub(crate) fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if (c as u32) < 32 || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// `str.title`: a letter after anything that is no letter is upper case, the others lower.
pub(crate) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A moment in UTC, taken apart.
struct Moment {
    year: i64,
    month: usize,
    day: i64,
    weekday: usize,
    day_of_year: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Moment {
    /// Calendar date of a day count from 1970-01-01, by 400-year cycles that begin on 1 March.
    fn new(unix_seconds: u64) -> Self {
        let seconds = i64::try_from(unix_seconds).unwrap_or(i64::MAX).min(253_402_300_799);
        let days = seconds / 86_400;
        let shifted = days + 719_468;
        let cycle = shifted / 146_097;
        let in_cycle = shifted % 146_097;
        let year_in_cycle = (in_cycle - in_cycle / 1_460 + in_cycle / 36_524 - in_cycle / 146_096) / 365;
        let from_march = in_cycle - (365 * year_in_cycle + year_in_cycle / 4 - year_in_cycle / 100);
        let march_month = (5 * from_march + 2) / 153;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year_in_cycle + cycle * 400 + i64::from(month <= 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let day_of_year = if month > 2 { from_march + 60 + i64::from(leap) } else { from_march - 305 };
        Moment {
            year,
            month: month as usize,
            day: from_march - (153 * march_month + 2) / 5 + 1,
            weekday: ((days + 4) % 7) as usize,
            day_of_year,
            hour: seconds / 3600 % 24,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }
}

/// `strftime` in UTC and English; a code it does not know is an error that names it.
pub(crate) fn strftime(format: &str, unix_seconds: u64) -> Result<String, String> {
    let moment = Moment::new(unix_seconds);
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(c) = characters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let code = characters.next().unwrap_or('%');
        let (code, padded) = match code {
            '-' => (characters.next().unwrap_or('-'), false),
            code => (code, true),
        };
        out.push_str(
            &moment
                .field(code, padded)
                .ok_or_else(|| format!("strftime_now does not know the code %{}", code.escape_debug()))?,
        );
    }
    Ok(out)
}

impl Moment {
    fn field(&self, code: char, padded: bool) -> Option<String> {
        let two = |value: i64| {
            if padded { format!("{value:02}") } else { value.to_string() }
        };
        let hour12 = (self.hour + 11) % 12 + 1;
        let month = MONTHS[self.month - 1];
        let weekday = DAYS[self.weekday];
        Some(match code {
            'Y' => format!("{:04}", self.year),
            'y' => two(self.year % 100),
            'm' => two(self.month as i64),
            'd' => two(self.day),
            'e' => format!("{:2}", self.day),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'w' => self.weekday.to_string(),
            'u' => ((self.weekday + 6) % 7 + 1).to_string(),
            'H' => two(self.hour),
            'I' => two(hour12),
            'M' => two(self.minute),
            'S' => two(self.second),
            'f' => "000000".to_owned(),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            'j' if padded => format!("{:03}", self.day_of_year),
            'j' => self.day_of_year.to_string(),
            'F' => format!("{:04}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            'R' => format!("{:02}:{:02}", self.hour, self.minute),
            'D' => format!("{:02}/{:02}/{:02}", self.month, self.day, self.year % 100),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_the_calendars() {
        let cases = [
            (0, "1970-01-01 Thu 001"),
            (951_782_400, "2000-02-29 Tue 060"),
            (1_709_164_800, "2024-02-29 Thu 060"),
            (1_735_603_200, "2024-12-31 Tue 366"),
            (4_107_542_400, "2100-03-01 Mon 060"),
            (1_763_251_200, "2025-11-16 Sun 320"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(strftime("%Y-%m-%d %a %j", seconds).unwrap(), expected);
        }
        assert_eq!(
            strftime("%-d %b %y %I:%M %p%%", 1_735_689_600 + 13 * 3600).unwrap(),
            "1 Jan 25 01:00 PM%"
        );
        assert!(strftime("%Q", 0).is_err());
    }

    #[test]
    fn floats_are_written_as_python_does() {
        for (value, expected) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1.5e-7, "1.5e-07"),
            (123456789012345.6, "123456789012345.6"),
            (-0.0, "-0.0"),
        ] {
            assert_eq!(float(value), expected);
        }
    }
}
