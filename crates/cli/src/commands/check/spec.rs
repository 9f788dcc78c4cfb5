//! A spec: groups of phrasings and the rules that their replies keep. specs/README.md describes it.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use regex::{Regex, RegexBuilder};
use toml::Spanned;
use toml::de::DeValue;

use super::reader::{self, Entry, Source, Table};
use crate::failure::Result;

/// Most tokens of a reply where the spec does not say.
const MAX_TOKENS: usize = 256;
/// A reply longer than this is no reply to check.
const MOST_TOKENS: usize = 1 << 20;
/// Bytes of a compiled pattern, and of the tables that matching it may fill.
const PATTERN_BYTES: usize = 1 << 20;

const KEYS: [&str; 4] = ["system", "think", "max_tokens", "group"];
const GROUP_KEYS: [&str; 14] = [
    "name",
    "phrasings",
    "pass",
    "system",
    "max_tokens",
    "contains",
    "contains_any",
    "lacks",
    "regex",
    "regex_any",
    "regex_none",
    "max_kl",
    "no_loop",
    "ends",
];

/// Everything that is asked and demanded.
#[derive(Debug)]
pub(crate) struct Spec {
    /// For templates that know thinking.
    pub(crate) think: Option<bool>,
    pub(crate) groups: Vec<Group>,
}

/// Several ways to ask one thing.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// Each is a conversation: what the user says, turn by turn.
    pub(crate) phrasings: Vec<Vec<String>>,
    /// So many phrasings have to keep every rule.
    pub(crate) pass: usize,
    pub(crate) system: Option<String>,
    pub(crate) max_tokens: usize,
    pub(crate) rules: Rules,
}

/// What a reply has to keep. Texts are looked for in the last reply of a conversation.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) contains: Vec<String>,
    pub(crate) contains_any: Vec<String>,
    pub(crate) lacks: Vec<String>,
    pub(crate) regex: Vec<Regex>,
    pub(crate) regex_any: Vec<Regex>,
    pub(crate) regex_none: Vec<Regex>,
    pub(crate) max_kl: Option<f64>,
    pub(crate) no_loop: bool,
    pub(crate) ends: bool,
}

impl Spec {
    pub(crate) fn read(path: &Path) -> Result<Spec> {
        Spec::parse(&reader::text(path)?, &path.display().to_string())
    }

    /// `file` is the name for refusals.
    pub(crate) fn parse(text: &str, file: &str) -> Result<Spec> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let source = Source { file, text };
        let root = source.parse()?;
        let top = Table { source, table: root.get_ref(), what: "a spec" };
        top.only(&KEYS)?;
        let common = Common {
            system: top.text("system")?,
            max_tokens: top.count("max_tokens", MOST_TOKENS)?.unwrap_or(MAX_TOKENS),
        };
        let mut names = HashSet::new();
        let mut groups = Vec::new();
        for value in tables(&top)? {
            let DeValue::Table(table) = value.get_ref() else {
                return Err(top.bad(("group", value), "this is no table", "begin each group with [[group]]"));
            };
            let table = Table { source, table, what: "a group" };
            let group = common.group(&table, value)?;
            if !names.insert(group.name.clone()) {
                let problem = format!("two groups are called {:?}", group.name);
                return Err(source.bad(value.span(), &problem, "give each group a name of its own"));
            }
            groups.push(group);
        }
        Ok(Spec { think: top.flag("think")?, groups })
    }

    /// The first group that needs a baseline.
    pub(crate) fn needs_baseline(&self) -> Option<&Group> {
        self.groups.iter().find(|group| group.rules.max_kl.is_some())
    }

    pub(crate) fn phrasings(&self) -> usize {
        self.groups.iter().map(|group| group.phrasings.len()).sum()
    }
}

fn tables<'a, 'i>(top: &Table<'a, 'i>) -> Result<&'a [Spanned<DeValue<'i>>]> {
    let example = "[[group]]\nname = \"capital\"\nphrasings = [\"What is the capital of France?\"]\ncontains = \"Paris\"";
    let Some(entry) = top.get("group") else {
        return Err(top.source.bad(
            0..0,
            "this spec has no group",
            &format!("write one, such as:\n{example}"),
        ));
    };
    match entry.1.get_ref() {
        DeValue::Table(_) => {
            Err(top.bad(entry, "this is one table, not a list of them", "write [[group]] with two brackets"))
        }
        _ => top.list(entry),
    }
}

/// What groups take over from the top of the file.
struct Common {
    system: Option<String>,
    max_tokens: usize,
}

impl Common {
    fn group(&self, table: &Table<'_, '_>, whole: &Spanned<DeValue<'_>>) -> Result<Group> {
        table.only(&GROUP_KEYS)?;
        let missing = |key: &str, example: &str| {
            let remedy = format!("write {key} = {example}");
            table.source.bad(whole.span(), &format!("this group has no {key}"), &remedy)
        };
        let name = table.text("name")?.ok_or_else(|| missing("name", "\"capital\""))?;
        let entry = table.get("phrasings");
        let entry = entry.ok_or_else(|| missing("phrasings", "[\"What is the capital of France?\"]"))?;
        let phrasings = phrasings(table, entry)?;
        let rules = rules(table)?;
        if rules.is_empty() {
            let problem = format!("group {name:?} has no rule: every reply would pass");
            let remedy = format!("write at least one of {}", GROUP_KEYS[5..].join(", "));
            return Err(table.source.bad(whole.span(), &problem, &remedy));
        }
        Ok(Group {
            pass: table.count("pass", phrasings.len())?.unwrap_or(phrasings.len()),
            system: table.text("system")?.or_else(|| self.system.clone()),
            max_tokens: table.count("max_tokens", MOST_TOKENS)?.unwrap_or(self.max_tokens),
            name,
            phrasings,
            rules,
        })
    }
}

/// A text is one turn, a list several.
fn phrasings<'a, 'i>(table: &Table<'a, 'i>, entry: Entry<'a, 'i>) -> Result<Vec<Vec<String>>> {
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for value in table.list(entry)? {
        let one = (entry.0, value);
        let turns = match value.get_ref() {
            DeValue::Array(_) => {
                let list = table.list(one)?.iter();
                list.map(|turn| table.as_text((entry.0, turn))).collect::<Result<Vec<String>>>()?
            }
            _ => vec![table.as_text(one)?],
        };
        if !seen.insert(turns.clone()) {
            let problem = format!("{:?} stands here twice", turns.join(" / "));
            return Err(table.bad(one, &problem, "leave one out: it would count twice"));
        }
        all.push(turns);
    }
    Ok(all)
}

fn rules(table: &Table<'_, '_>) -> Result<Rules> {
    let texts = |key: &'static str| -> Result<Vec<String>> {
        Ok(table.texts(key)?.into_iter().map(|(text, _)| text).collect())
    };
    let patterns = |key: &'static str| -> Result<Vec<Regex>> {
        table.texts(key)?.into_iter().map(|(text, at)| pattern(table.source, key, &text, at)).collect()
    };
    Ok(Rules {
        contains: texts("contains")?,
        contains_any: texts("contains_any")?,
        lacks: texts("lacks")?,
        regex: patterns("regex")?,
        regex_any: patterns("regex_any")?,
        regex_none: patterns("regex_none")?,
        max_kl: table.amount("max_kl")?,
        no_loop: table.flag("no_loop")?.unwrap_or(false),
        ends: table.flag("ends")?.unwrap_or(false),
    })
}

fn pattern(source: Source<'_>, key: &str, text: &str, at: Range<usize>) -> Result<Regex> {
    let mut builder = RegexBuilder::new(text);
    builder.size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES).nest_limit(64);
    builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => {
            let problem = format!("{key}: this pattern takes more than {PATTERN_BYTES} bytes");
            source.bad(at, &problem, "repeat less, or look for a shorter text")
        }
        error => {
            // The library's text draws the pattern; its last line says what is wrong.
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            let remedy = "single quotes take a pattern as it is: '\\bF#'; there is no look-around";
            source.bad(at, &format!("{key}: not a pattern: {reason}"), remedy)
        }
    })
}

impl Rules {
    fn is_empty(&self) -> bool {
        let texts = [&self.contains, &self.contains_any, &self.lacks];
        let patterns = [&self.regex, &self.regex_any, &self.regex_none];
        texts.iter().all(|list| list.is_empty())
            && patterns.iter().all(|list| list.is_empty())
            && self.max_kl.is_none()
            && !self.no_loop
            && !self.ends
    }
}

#[cfg(test)]
mod tests {
    use halfbyte_text::dataset::identity::{Language, Recipe, questions};

    use super::*;

    /// Every spec in the repository, by name.
    fn ours() -> Vec<(String, Spec)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../specs");
        let mut all = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "toml") {
                let spec = Spec::read(&path).unwrap_or_else(|failure| panic!("{failure}"));
                all.push((path.file_stem().unwrap().to_str().unwrap().to_owned(), spec));
            }
        }
        all
    }

    #[test]
    fn every_spec_in_the_repository_is_one() {
        let all = ours();
        for name in ["origin", "identity-zh", "identity-en", "identity-en-blind", "identity-en-fresh"] {
            let (_, spec) = all.iter().find(|(found, _)| found == name).expect(name);
            assert!(spec.needs_baseline().is_some() && spec.groups.len() == 3, "{name}");
            assert!(spec.groups.iter().all(|group| group.rules.no_loop), "{name}");
        }
    }

    #[test]
    fn held_out_phrasings_are_in_no_data_that_this_program_makes() {
        let bare = |text: &str| -> String {
            text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
        };
        let sentences =
            [Language::Chinese, Language::English].map(|language| (language, "x".to_owned())).to_vec();
        let recipe = Recipe { sentences, identity: usize::MAX, boundary: usize::MAX, seed: 0 };
        let mut data: HashSet<String> = questions(&recipe).iter().map(|row| bare(&row.prompt)).collect();
        data.extend(include_str!("../data/general.txt").lines().map(bare));
        let more = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/check/general-en.txt");
        data.extend(std::fs::read_to_string(more).unwrap().lines().map(bare));
        assert!(data.len() > 1000 && data.contains("whoareyou") && data.contains("日本的首都在哪裡"));
        let mut known = Vec::new();
        let held_out = |name: &str| ["identity", "loops"].iter().any(|kind| name.starts_with(kind));
        for (name, spec) in ours().iter().filter(|(name, _)| held_out(name)) {
            let asked = spec.groups.iter().flat_map(|group| &group.phrasings).flat_map(|turns| turns.last());
            known.extend(
                asked.filter(|last| data.contains(&bare(last))).map(|last| format!("{name}: {last}")),
            );
        }
        assert!(known.is_empty(), "{known:#?}");
    }

    #[test]
    fn a_group_takes_over_what_it_does_not_say() {
        let text = "\u{feff}system = \"s\"\nmax_tokens = 7\nthink = false\n\
            [[group]]\nname = \"a\"\nphrasings = [\"x\", [\"y\", \"z\"]]\nends = true\n\
            [[group]]\nname = \"b\"\nphrasings = [\"x\"]\nlacks = \"l\"\nsystem = \"t\"\nmax_tokens = 9\nmax_kl = 1\n";
        let spec = Spec::parse(text, "f").unwrap();
        let [a, b] = &spec.groups[..] else { panic!("two groups") };
        assert_eq!((spec.think, spec.phrasings()), (Some(false), 3));
        assert_eq!((a.system.as_deref(), a.max_tokens, a.pass), (Some("s"), 7, 2));
        assert_eq!((b.system.as_deref(), b.max_tokens, b.pass), (Some("t"), 9, 1));
        assert_eq!(a.phrasings, [vec!["x".to_owned()], vec!["y".to_owned(), "z".to_owned()]]);
        assert_eq!((a.rules.max_kl, b.rules.max_kl, b.rules.lacks.len()), (None, Some(1.0), 1));
        assert_eq!(spec.needs_baseline().unwrap().name, "b");
    }
}
