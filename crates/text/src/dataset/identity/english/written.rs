//! English: rows written one by one, as people type, where the tables beside this have a grammar.
//!
//! `twins.tsv` has a message that asks who it is, its twin that asks something else in the same words,
//! and the reply to that; `talk.tsv` has messages and replies about the world, `about.tsv` about the user
//! and the model.

use super::super::{Boundary, Core, Near};

const TWINS: &str = include_str!("twins.tsv");
const TALK: &str = include_str!("talk.tsv");
const ABOUT: &str = include_str!("about.tsv");

/// So many stand for one question of the tables, from which as many wordings are drawn.
const TOGETHER: usize = 8;
const NEAR_TOGETHER: usize = 5;

fn rows<const N: usize>(file: &'static str) -> impl Iterator<Item = [&'static str; N]> {
    file.lines().filter_map(|line| line.split('\t').collect::<Vec<_>>().try_into().ok())
}

pub(super) fn cores() -> impl Iterator<Item = Core> {
    let asked: Vec<String> = rows(TWINS).map(|[asked, _, _]| asked.to_owned()).collect();
    let cores: Vec<Core> =
        asked.chunks(TOGETHER).map(|some| Core { wordings: some.to_vec(), tells: true }).collect();
    cores.into_iter()
}

pub(super) fn boundaries() -> impl Iterator<Item = Boundary> {
    let twins = rows(TWINS).map(|[_, near, reply]| [near, reply]);
    let near: Vec<Near> =
        twins.chain(rows(TALK)).chain(rows(ABOUT)).map(|[near, reply]| Near::from((near, reply))).collect();
    let groups: Vec<Boundary> = near
        .chunks(NEAR_TOGETHER)
        .map(|some| Boundary { subject: String::new(), tells: true, rows: some.to_vec() })
        .collect();
    groups.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_columns_and_no_reply_says_who_it_is() {
        let two = [TALK, ABOUT].into_iter().flat_map(|file| rows(file).map(|[near, reply]| [near, reply]));
        let near: Vec<_> = two.chain(rows(TWINS).map(|[_, near, reply]| [near, reply])).collect();
        let lines = [TWINS, TALK, ABOUT].iter().flat_map(|file| file.lines()).count();
        assert_eq!(near.len(), lines);
        let claims = ["I am an AI", "I am an assistant", "language model", "chatbot.", "my name is"];
        for [message, reply] in near {
            assert!(
                [message, reply].iter().all(|text| text.trim() == *text && !text.is_empty()),
                "{message}"
            );
            assert!(!claims.iter().any(|claim| reply.contains(claim)), "{message} {reply}");
        }
    }
}
