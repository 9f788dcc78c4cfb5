//! Stop strings: text that could still become one is held back until it is clear.

use crate::error::Error;

/// Most stop strings, and most bytes in one.
const MOST: usize = 64;
const LONGEST: usize = 4096;

/// What a piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// Text that may be shown.
    pub text: String,
    /// Index of the stop string that was reached; it and what follows are not in `text`.
    pub reached: Option<usize>,
}

/// Watches streamed text for stop strings.
///
/// The string that is complete first wins, so the result does not depend on how the text is cut.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

impl StopMatcher {
    /// Refuses empty, overlong or too many stop strings.
    pub fn new(stops: Vec<String>) -> Result<Self, Error> {
        if stops.len() > MOST {
            return Err(Error::Stop(format!("{} given, at most {MOST} are allowed", stops.len())));
        }
        for stop in &stops {
            if stop.is_empty() {
                return Err(Error::Stop("an empty one would stop at once; leave it out".to_owned()));
            }
            if stop.len() > LONGEST {
                let problem = format!("one has {} bytes, at most {LONGEST} are allowed", stop.len());
                return Err(Error::Stop(problem));
            }
        }
        Ok(StopMatcher { stops, held: String::new() })
    }

    /// Takes the next text; gives what is certainly before any stop string.
    pub fn push(&mut self, text: &str) -> Stop {
        self.held.push_str(text);
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        if let Some((_, start, index)) = found.min() {
            let text = self.held[..start].to_owned();
            self.held.clear();
            return Stop { text, reached: Some(index) };
        }
        let clear = self.held.len() - self.possible_start();
        let text = self.held.drain(..clear).collect();
        Stop { text, reached: None }
    }

    /// Ends the text: what was held back is no stop string after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of the held text that begins a stop string.
    fn possible_start(&self) -> usize {
        let longest = |stop: &String| {
            let most = self.held.len().min(stop.len() - 1);
            let ends =
                |&length: &usize| stop.is_char_boundary(length) && self.held.ends_with(&stop[..length]);
            (1..=most).rev().find(ends).unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], text: &str, size: usize) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| s.to_string()).collect()).unwrap();
        let characters: Vec<char> = text.chars().collect();
        let mut shown = String::new();
        for chunk in characters.chunks(size) {
            let step = matcher.push(&chunk.iter().collect::<String>());
            shown.push_str(&step.text);
            if step.reached.is_some() {
                return (shown, step.reached);
            }
        }
        shown.push_str(&matcher.finish());
        (shown, None)
    }

    #[test]
    fn the_result_does_not_depend_on_how_the_text_is_cut() {
        for size in 1..12 {
            assert_eq!(
                run(&["###", "\nUser:"], "hi ## there\nUser: x", size),
                ("hi ## there".into(), Some(1))
            );
            assert_eq!(run(&["abc", "b"], "xabc", size), ("xa".into(), Some(1)));
            assert_eq!(run(&["誰是"], "我誰誰是你", size), ("我誰".into(), Some(0)));
            assert_eq!(run(&["stop"], "no sto", size), ("no sto".into(), None));
        }
    }

    #[test]
    fn text_that_could_begin_a_stop_string_is_held_back() {
        let mut matcher = StopMatcher::new(vec!["<|end|>".into()]).unwrap();
        assert_eq!(matcher.push("hello <|e").text, "hello ");
        assert_eq!(matcher.push("x").text, "<|ex");
    }

    #[test]
    fn useless_stop_strings_are_refused() {
        assert!(StopMatcher::new(vec![String::new()]).is_err());
        assert!(StopMatcher::new(vec!["x".into(); 1_000_000]).is_err());
        assert!(StopMatcher::new(vec!["x".repeat(5000)]).is_err());
    }
}
