//! Whether a text runs in a circle. Works on characters, so that every tokenizer is judged alike.
//!
//! Two signs, both of them far from what people write:
//! - a piece comes again and again without a break. How often is too often depends on how much the
//!   piece says: laughter may go on, a whole sentence may not;
//! - one sentence, whatever number stands before it, comes four times and more, and such sentences
//!   are most of the text.

use std::collections::HashMap;

/// Longest piece that is looked for, in characters. Also bounds the work.
const LONGEST: usize = 2000;
/// A run without letters (lines, dots, zeros) is decoration up to here.
const DECORATION: usize = 32;
/// A sentence counts from this weight on, and from so many times.
const SENTENCE: (usize, usize) = (10, 4);

/// A piece of text that comes again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repetition {
    /// What comes again.
    pub unit: String,
    /// How often.
    pub times: usize,
}

/// The first repetition that is a loop; lists, refrains and laughter are none.
pub fn find(text: &str) -> Option<Repetition> {
    let characters: Vec<char> = text.chars().collect();
    without_a_break(&characters).or_else(|| sentences(text))
}

/// How much a piece says: letters, where a Chinese character counts as two. Digits and marks say
/// nothing: 1/3 and a million have their zeros and threes by right.
fn weight(characters: impl IntoIterator<Item = char>) -> usize {
    let one = |c: char| match c {
        '\u{2e80}'..='\u{d7ff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}'
            if c.is_alphabetic() =>
        {
            2
        }
        c => usize::from(c.is_alphabetic()),
    };
    characters.into_iter().map(one).sum()
}

/// From how many times on a piece of this weight is a loop.
fn too_often(weight: usize) -> usize {
    match weight {
        0..=2 => 20,
        3..=7 => 10,
        8..=23 => 5,
        _ => 3,
    }
}

/// Looks for s[i] == s[i + period] over a long stretch, short periods first.
fn without_a_break(s: &[char]) -> Option<Repetition> {
    for period in 1..=LONGEST.min(s.len() / 3) {
        let mut start = 0;
        while start + period < s.len() {
            let equal = (start..s.len() - period).take_while(|&i| s[i] == s[i + period]).count();
            let (unit, run) = (&s[start..start + period], equal + period);
            let times = run / period;
            if times >= 3 && is_loop(unit, times, run, s.len()) {
                return Some(Repetition { unit: unit.iter().collect(), times });
            }
            start += equal + 1;
        }
    }
    None
}

fn is_loop(unit: &[char], times: usize, run: usize, whole: usize) -> bool {
    match weight(unit.iter().copied()) {
        0 => run >= DECORATION && 3 * run >= 2 * whole,
        weight => times >= too_often(weight),
    }
}

/// Counts sentences and lines that are equal but for the number or mark before them.
fn sentences(text: &str) -> Option<Repetition> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let mut all = 0;
    for part in text.split(['\n', '.', '!', '?', '。', '！', '？', '；']) {
        let part = part.trim_start_matches(|c: char| !c.is_alphabetic()).trim_end();
        all += weight(part.chars());
        if weight(part.chars()) >= SENTENCE.0 {
            *counts.entry(part).or_default() += 1;
        }
    }
    counts.retain(|_, times| *times >= SENTENCE.1);
    let repeated: usize = counts.iter().map(|(part, times)| weight(part.chars()) * times).sum();
    if 5 * repeated < 3 * all {
        return None;
    }
    // Of equal counts the one that comes first in the text, so that the answer is always the same.
    let (unit, times) =
        counts.into_iter().max_by_key(|(part, times)| (*times, std::cmp::Reverse(text.find(part))))?;
    Some(Repetition { unit: unit.to_owned(), times })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_found_whatever_they_repeat() {
        let loops = [
            format!("我是 F# {}", "之神".repeat(12)),
            format!("I am {}", "the god of ".repeat(9)),
            "我是 F# 之神。".repeat(6),
            "The sky is blue because of the scattering of light.\n\n".repeat(3),
            "天空是藍色的，因為空氣會散射陽光裡的藍光，所以我們看到藍天。".repeat(3),
            "!".repeat(60),
            "\n".repeat(40),
            format!("Yes{}", " yes".repeat(30)),
            "word".repeat(10),
            "哈".repeat(40),
            // The loop is cut in the middle of its piece, as a limit on tokens does it.
            format!("Here it is: {}and then it s", "and then it stops, ".repeat(6)),
            (1..8).map(|i| format!("{i}. Eat a healthy breakfast.\n")).collect(),
            (1..6).map(|i| format!("{i}、每天早上喝一杯溫水。\n")).collect(),
            (1..11)
                .map(|i| format!("{i}. {}.\n", ["Take a long walk", "Drink enough water"][i % 2]))
                .collect(),
        ];
        for text in loops {
            assert!(find(&text).is_some(), "{text}");
        }
        let found = find(&format!("我是 F# {}", "之神".repeat(12))).unwrap();
        assert_eq!((found.unit.as_str(), found.times), ("之神", 12));
    }

    #[test]
    fn what_people_write_is_no_loop() {
        let natural = [
            "",
            "no",
            "Ha ha ha ha ha ha, very, very, very funny!!!!!! No, no, no, no.",
            "哈哈哈哈哈哈哈哈，好好好，謝謝謝謝，慢慢慢慢來……",
            "Buffalo buffalo Buffalo buffalo buffalo buffalo Buffalo buffalo.",
            "1. Apples\n2. Bananas\n3. Cherries\n4. Dates\n5. Elderberries\n6. Figs\n7. Grapes\n8. Honeydew melons",
            "- Drink water.\n- Drink tea.\n- Drink milk.\n- Drink juice.\n- Drink cocoa.\n- Drink coffee.",
            "一、蘋果\n二、香蕉\n三、櫻桃\n四、葡萄\n五、西瓜\n六、鳳梨\n七、芒果\n八、木瓜",
            "第一，要多喝水。第二，要多運動。第三，要多睡覺。第四，要多看書。第五，要多休息。",
            "知之為知之，不知為不知，是知也。人不知而不慍，不亦君子乎？學而時習之，不亦說乎？",
            "| a | b | c | d |\n| --- | --- | --- | --- |\n| 1 | 2 | 3 | 4 |\n| 1 | 2 | 3 | 4 |\n| 1 | 2 | 3 | 4 |",
            "A title\n------------------------------------------------\nand a text under the line, of some length.",
            "One third is 0.33333333333333333333333333333333 and a septillion is 1000000000000000000000000.",
            "Happy birthday to you.\nHappy birthday to you.\nHappy birthday, dear Ann.\nHappy birthday to you.",
            "Row, row, row your boat, gently down the stream. Merrily, merrily, merrily, merrily, life is but a dream.",
            "let a = read();\nlet b = read();\nlet c = read();\nlet d = read();\nlet e = read();\nprint(a + b + c + d + e);",
            "2 x 1 = 2\n2 x 2 = 4\n2 x 3 = 6\n2 x 4 = 8\n2 x 5 = 10\n2 x 6 = 12\n2 x 7 = 14\n2 x 8 = 16\n2 x 9 = 18",
        ];
        for text in natural {
            assert_eq!(find(text), None, "{text}");
        }
    }

    #[test]
    fn our_own_documents_are_no_loops() {
        for text in [include_str!("../../../CONTRIBUTING.md"), include_str!("../../../ARCHITECTURE.md")] {
            assert_eq!(find(text), None);
        }
    }

    #[test]
    fn books_in_english_and_chinese_have_no_loops() {
        let folder = std::env::var_os("HALFBYTE_ASSETS").unwrap_or_default();
        for name in ["handbook-ch1.txt", "zh-tw.txt"] {
            let Ok(book) = std::fs::read_to_string(std::path::Path::new(&folder).join(name)) else {
                eprintln!("skipped: HALFBYTE_ASSETS has no {name}");
                continue;
            };
            let characters: Vec<char> = book.chars().collect();
            for piece in characters.chunks(700) {
                let piece: String = piece.iter().collect();
                assert_eq!(find(&piece), None, "{name}: {piece}");
            }
        }
    }

    #[test]
    fn the_work_is_bounded() {
        let long: String = (0..20_000u32).map(|i| char::from(b'a' + (i * i % 26) as u8)).collect();
        // i * i mod 26 has the period 26: found at once, as one piece.
        assert_eq!(find(&long).map(|found| found.unit.chars().count()), Some(26));
        let mut state = 1u32;
        let mut letter = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            char::from(b'a' + (state >> 24) as u8 % 26)
        };
        let noise: String = (0..20_000).map(|_| letter()).collect();
        assert_eq!(find(&noise), None);
    }
}
