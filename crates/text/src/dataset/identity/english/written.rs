//! English: rows written one by one, as people type, where the tables beside this have a grammar.
//!
//! `twins.tsv` has a message that asks who it is, its twin that asks something else in the same words,
//! and the reply to that; `talk.tsv` has messages and replies about the world, `about.tsv` about the user
//! and the model.

use super::super::{Boundary, Core, Near};

const TWINS: &str = include_str!("twins.tsv");
const TALK: &str = include_str!("talk.tsv");
const ABOUT: &str = include_str!("about.tsv");

/// So many stand for one question of the tables: few enough that all are drawn into a large set, and many
/// enough that a small one is not made of these alone.
const TOGETHER: usize = 8;
const NEAR_TOGETHER: usize = 5;

fn rows<const N: usize>(file: &'static str) -> Vec<[&'static str; N]> {
    let columns = |line: &'static str| line.split('\t').collect::<Vec<_>>().try_into();
    file.lines().map(|line| columns(line).expect("a TAB between columns")).collect()
}

pub(super) fn cores() -> Vec<Core> {
    let core = |some: &[[&str; 3]]| {
        let wordings = some.iter().map(|[asked, _, _]| (*asked).to_owned()).collect();
        Core { tells: true, wordings }
    };
    rows(TWINS).chunks(TOGETHER).map(core).collect()
}

pub(super) fn boundaries() -> Vec<Boundary> {
    let twins = rows(TWINS).into_iter().map(|[_, near, reply]| [near, reply]).collect();
    let groups = |(near, tells): (Vec<[&str; 2]>, bool)| -> Vec<Boundary> {
        let group = |some: &[[&str; 2]]| {
            let rows = some.iter().map(|[near, reply]| Near::new(*near, *reply)).collect();
            Boundary { subject: String::new(), tells, rows }
        };
        near.chunks(NEAR_TOGETHER).map(group).collect()
    };
    [(twins, true), (rows(ABOUT), true), (rows(TALK), false)].into_iter().flat_map(groups).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::{asker, near, told};
    use super::*;

    /// Small letters and digits: what a message is whatever its marks.
    fn bare(text: &str) -> String {
        text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    }

    #[test]
    fn no_reply_says_who_it_is() {
        let claims = ["i am an ai", "i am an assistant", "i am a program", "i am a chatbot", "as an ai"];
        for Near { prompt, replies } in boundaries().into_iter().flat_map(|group| group.rows) {
            let reply = replies[0].to_lowercase();
            assert!(
                [&prompt, &reply].iter().all(|text| !text.is_empty() && text.trim() == **text),
                "{prompt}"
            );
            assert!(!reply.starts_with("my name is"), "{prompt} {reply}");
            assert!(!claims.iter().any(|claim| reply.contains(claim)), "{prompt} {reply}");
        }
    }

    #[test]
    fn nothing_is_written_that_a_table_asks_too() {
        let tables = near::boundaries().chain(asker::boundaries()).chain(told::boundaries());
        let asked: HashSet<String> =
            tables.flat_map(|group| group.rows).map(|row| bare(&row.prompt)).collect();
        let written = boundaries().into_iter().flat_map(|group| group.rows).map(|row| row.prompt);
        let twice: Vec<String> = written.filter(|prompt| asked.contains(&bare(prompt))).collect();
        assert!(asked.len() > 3000 && twice.is_empty(), "with another reply: {twice:?}");
    }
}
