//! Replies against rules. Knows no model.

use halfbyte_generate::{Finish, repetition};

use super::spec::Rules;

/// A turn that was had.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) prompt: String,
    pub(crate) reply: String,
    pub(crate) finish: Finish,
    pub(crate) tokens: usize,
}

/// How far the model is from the baseline on the baseline's own replies.
#[derive(Clone, Debug)]
pub(crate) struct Distance {
    /// Mean KL divergence, in nats.
    pub(crate) mean: f64,
    /// At the token where they are furthest apart.
    pub(crate) most: f64,
    pub(crate) tokens: usize,
    pub(crate) replies: Vec<String>,
}

/// A rule that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    /// As the spec calls it.
    pub(crate) rule: &'static str,
    /// What was found.
    pub(crate) found: String,
}

/// Every rule that this conversation breaks.
pub(crate) fn judge(rules: &Rules, turns: &[Said], distance: Option<&Distance>) -> Vec<Broken> {
    let mut broken = Vec::new();
    let mut fail = |rule: &'static str, found: String| broken.push(Broken { rule, found });
    let reply = turns.last().map_or("", |turn| turn.reply.as_str());
    for text in rules.contains.iter().filter(|text| !reply.contains(*text)) {
        fail("contains", format!("{text:?} is not in it"));
    }
    if !rules.contains_any.is_empty() && !rules.contains_any.iter().any(|text| reply.contains(text)) {
        fail("contains_any", format!("none of {:?} is in it", rules.contains_any));
    }
    for text in rules.lacks.iter().filter(|text| reply.contains(*text)) {
        fail("lacks", format!("{text:?} is in it"));
    }
    for pattern in rules.regex.iter().filter(|pattern| !pattern.is_match(reply)) {
        fail("regex", format!("{pattern} does not match"));
    }
    if !rules.regex_any.is_empty() && !rules.regex_any.iter().any(|pattern| pattern.is_match(reply)) {
        let all: Vec<&str> = rules.regex_any.iter().map(regex::Regex::as_str).collect();
        fail("regex_any", format!("none matches: {}", all.join("  ")));
    }
    for pattern in &rules.regex_none {
        if let Some(found) = pattern.find(reply) {
            fail("regex_none", format!("{pattern} matches {:?}", found.as_str()));
        }
    }
    for turn in turns {
        if rules.no_loop
            && let Some(found) = repetition::find(&turn.reply)
        {
            fail("no_loop", format!("{:?} comes {} times", short(&found.unit), found.times));
        }
        if rules.ends && turn.finish != Finish::Stop {
            fail("ends", format!("not over after {} tokens", turn.tokens));
        }
    }
    if let (Some(limit), Some(distance)) = (rules.max_kl, distance)
        && distance.mean > limit
    {
        fail("max_kl", format!("{:.4} over {} tokens, the limit is {limit}", distance.mean, distance.tokens));
    }
    broken
}

fn short(text: &str) -> String {
    let mut start: String = text.chars().take(60).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    start
}

#[cfg(test)]
mod tests {
    use super::super::spec::Spec;
    use super::*;

    /// The names of the rules that replies break.
    fn broken(rules: &str, replies: &[&str], kl: Option<f64>) -> Vec<&'static str> {
        let text = format!("[[group]]\nname = \"g\"\nphrasings = [\"p\"]\n{rules}\n");
        let spec = Spec::parse(&text, "spec").unwrap_or_else(|failure| panic!("{failure}"));
        let said = |reply: &&str| Said {
            prompt: "p".into(),
            reply: reply.trim_end_matches('…').into(),
            finish: if reply.ends_with('…') { Finish::MaxTokens } else { Finish::Stop },
            tokens: 3,
        };
        let turns: Vec<Said> = replies.iter().map(said).collect();
        let distance = kl.map(|mean| Distance { mean, most: mean, tokens: 1, replies: Vec::new() });
        judge(&spec.groups[0].rules, &turns, distance.as_ref()).iter().map(|broken| broken.rule).collect()
    }

    #[test]
    fn every_rule_can_be_kept_and_broken() {
        let one = |rules, reply| broken(rules, &[reply], None);
        let none: [&str; 0] = [];
        let looping = "之神".repeat(20);
        for (rules, good, bad, name) in [
            ("contains = [\"a\", \"b\"]", "ab", "a", "contains"),
            ("contains_any = [\"a\", \"b\"]", "b", "c", "contains_any"),
            ("lacks = [\"a\", \"b\"]", "c", "xb", "lacks"),
            ("regex = ['^a', 'b$']", "ab", "abc", "regex"),
            ("regex_any = ['^a', 'b$']", "ac", "bc", "regex_any"),
            ("regex_none = '(?i)god'", "go", "The GOD", "regex_none"),
            ("ends = true", "a", "a…", "ends"),
            ("no_loop = true", "之神", &looping, "no_loop"),
        ] {
            assert_eq!(one(rules, good), none, "{rules}");
            assert_eq!(one(rules, bad), [name], "{rules}");
        }
        assert_eq!(broken("max_kl = 0.1", &["a"], Some(0.1)), none);
        assert_eq!(broken("max_kl = 0.1", &["a"], Some(0.11)), ["max_kl"]);
        assert_eq!(one("contains = [\"a\", \"b\"]\nlacks = \"c\"", "c"), ["contains", "contains", "lacks"]);
    }

    #[test]
    fn texts_are_looked_for_in_the_last_reply_and_loops_in_all() {
        let looping = "之神".repeat(20);
        assert_eq!(broken("contains = \"a\"", &["a", "b"], None), ["contains"]);
        assert_eq!(broken("lacks = \"a\"", &["a", "b"], None).len(), 0);
        assert_eq!(broken("no_loop = true\nends = true", &[&looping, "b"], None), ["no_loop"]);
        assert_eq!(broken("ends = true", &["a…", "b"], None), ["ends"]);
    }
}
