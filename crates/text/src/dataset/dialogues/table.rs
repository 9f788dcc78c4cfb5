//! The tables as they are written -> topics. Their marks are explained at the head of english.txt.

use super::Draw;

/// Everything that is taught in one language.
pub(super) struct Table {
    pub(super) topics: Vec<Topic>,
    openings: Vec<String>,
    closings: Vec<String>,
    /// Sum of the shares up to each topic.
    shares: Vec<usize>,
}

/// One thing that can be asked about, in rows.
#[derive(Default)]
pub(super) struct Topic {
    pub(super) questions: Vec<String>,
    pub(super) answer: String,
    /// Columns {a}, {b}, {c}, {d}, {e}.
    pub(super) rows: Vec<Vec<String>>,
    times: usize,
}

impl Table {
    pub(super) fn parse(text: &str) -> Table {
        let (mut topics, mut numbers): (Vec<Topic>, _) = (Vec::new(), Vec::new());
        let (mut openings, mut closings) = (Vec::new(), Vec::new());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (mark, rest) = line.split_once(' ').unwrap_or((line, ""));
            match (mark, topics.last_mut()) {
                ("@open", _) => openings = columns(rest),
                ("@close", _) => closings = columns(rest),
                ("@numbers", _) => numbers = columns(rest),
                ("?", Some(topic)) => topic.questions.push(rest.to_owned()),
                ("!", Some(topic)) => topic.answer = rest.to_owned(),
                ("-", Some(topic)) => match sums(rest, &numbers) {
                    Some(rows) => topic.rows.extend(rows),
                    None => topic.rows.push(columns(rest)),
                },
                _ if line.starts_with('[') => {
                    let times = line.rsplit_once('*').and_then(|(_, times)| times.parse().ok());
                    topics.push(Topic { times: times.unwrap_or(1), ..Topic::default() });
                }
                _ => {}
            }
        }
        // Topics without rows are asked as they are. Those with many come often, but not so much the more.
        let mut sum = 0;
        let mut shares = Vec::new();
        for topic in &mut topics {
            if topic.rows.is_empty() {
                topic.rows.push(Vec::new());
            }
            sum += 100 * topic.times * topic.rows.len().isqrt();
            shares.push(sum);
        }
        Table { topics, openings, closings, shares }
    }

    /// A topic, by its share.
    pub(super) fn topic(&self, draw: &mut Draw) -> &Topic {
        let at = draw.below(self.shares.last().copied().unwrap_or(0));
        &self.topics[self.shares.partition_point(|share| *share <= at)]
    }

    /// Whether words stand apart, as in English.
    pub(super) fn spaced(&self) -> bool {
        self.openings.iter().any(|opening| opening.is_ascii())
    }

    /// The question as people write it: after a word of greeting, before another, or carelessly.
    pub(super) fn framed(&self, question: &str, draw: &mut Draw) -> String {
        let ends = ['?', '？', '.', '。', '!', '！'];
        let mut text = question.to_owned();
        match draw.below(10) {
            0 if text.ends_with(['?', '？']) => {
                text = text.trim_end_matches(ends).to_owned() + draw.choose::<String>(&self.closings);
            }
            1..4 => text = text.trim_end_matches(ends).trim_end().to_owned(),
            4 => text = text.replace('？', "?").replace('。', ""),
            _ => {}
        }
        match draw.below(10) {
            0..3 => {
                let space = if self.spaced() { " " } else { "" };
                format!("{}{space}{}", draw.choose::<String>(&self.openings), uncapitalised(&text))
            }
            3 => text.to_lowercase(),
            _ => text,
        }
    }
}

fn uncapitalised(text: &str) -> String {
    let mut letters = text.chars();
    match (letters.next(), letters.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => first.to_lowercase().chain(letters).collect(),
        _ => text.to_owned(),
    }
}

fn columns(text: &str) -> Vec<String> {
    text.split('|').map(|column| column.trim().to_owned()).collect()
}

/// "1..9 * 1..9" -> a row for every pair: digits of both and of the result, words of both.
fn sums(text: &str, numbers: &[String]) -> Option<Vec<Vec<String>>> {
    let mut words = text.split(' ');
    let mut range = || -> Option<_> {
        let (first, last) = words.next()?.split_once("..")?;
        Some((first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?, words.next()))
    };
    let ((left, operation), (right, _)) = (range()?, range()?);
    let pairs = left.flat_map(|a| right.clone().map(move |b| (a, b)));
    let row = |(a, b): (usize, usize)| {
        let result = match operation? {
            "+" => a + b,
            "*" => a * b,
            _ => a.checked_sub(b)?,
        };
        let mut row: Vec<String> = [a, b, result].iter().map(usize::to_string).collect();
        row.extend([numbers.get(a)?.clone(), numbers.get(b)?.clone()]);
        Some(row)
    };
    Some(pairs.filter_map(row).collect())
}

/// Puts a row's columns in their places.
pub(super) fn fill(text: &str, row: &[String]) -> String {
    let places = ["{a}", "{b}", "{c}", "{d}", "{e}"];
    places.iter().zip(row).fold(text.to_owned(), |text, (place, column)| text.replace(place, column))
}

/// The text before the first brackets, in them, and after them.
pub(super) fn brackets(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once('(')?;
    let (inside, after) = rest.split_once(')')?;
    Some((before, inside, after))
}
