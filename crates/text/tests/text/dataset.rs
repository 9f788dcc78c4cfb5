//! Data files as people have them: what becomes of each row, the order, the split, the place to go on.

use std::path::PathBuf;

use halfbyte_text::dataset::{
    Dataset, Feed, FeedSettings, HeldOut, Order, Position, Renderer, Settings, Source, split,
};
use halfbyte_text::{ChatTemplate, Error, Tokenizer};
use serde_json::Map;

use crate::gguf::small_pieces;
use crate::tokenizer::small;

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A folder of data files; goes away at the end.
pub(crate) struct Files {
    folder: PathBuf,
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl Files {
    pub(crate) fn new(name: &str) -> Files {
        let folder = std::env::temp_dir().join(format!("halfbyte-data-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Files { folder, tokenizer: small(), template: ChatTemplate::new(TEMPLATE, "", "").unwrap() }
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> Source {
        let path = self.folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        Source::new(path)
    }

    fn renderer(&self) -> Renderer<'_> {
        Renderer {
            tokenizer: &self.tokenizer,
            template: Some(&self.template),
            extra: Map::new(),
            end_ids: vec![self.tokenizer.id("<|im_end|>").unwrap()],
            start: None,
            document_end: self.tokenizer.id("<|endoftext|>"),
        }
    }

    pub(crate) fn read(&self, sources: &[Source], length: usize, skip_empty: bool) -> Result<Dataset, Error> {
        Dataset::read(sources, &self.renderer(), &Settings { length, skip_empty }, &mut |_| ())
    }

    fn text(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, false).unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn pairs(count: usize) -> String {
    (0..count).map(|i| format!("question {i}\tanswer {i}{}\n", " more".repeat(i % 7))).collect()
}

#[test]
fn a_header_is_reported_and_duplicates_are_counted() {
    let files = Files::new("header");
    let tsv = files.write("a.tsv", "\u{feff}# notes\r\nprompt\ttarget\r\n\r\na\tb\r\nc\td\r\na\tb\r\n");
    let jsonl = files.write("b.jsonl", "{\"prompt\":\"a\",\"completion\":\"b\"}\n");
    let data = files.read(&[tsv, jsonl], 100, false).unwrap();
    assert_eq!(data.sources[0].headers, [(2, "prompt\ttarget".to_owned())]);
    assert_eq!((data.sources[0].rows, data.sources[0].duplicates), (3, 1));
    assert_eq!((data.sources[1].rows, data.sources[1].duplicates), (1, 1));
    assert_eq!(data.samples[0].tokens, data.samples[3].tokens);
    assert_eq!(data.samples.iter().map(|s| s.line).collect::<Vec<_>>(), [4, 5, 6, 1]);
    let sample = &data.samples[0];
    assert_eq!(files.text(&sample.tokens[sample.trained[0].clone()]), "b<|im_end|>");
    assert_eq!(data.sources[0].trained, 3 * sample.trained[0].len());
}

#[test]
fn rows_without_a_reply_are_refused_by_name_or_left_out() {
    let files = Files::new("empty");
    let rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n\
        {\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n{\"prompt\":\"a\",\"completion\":\" \"}\n{\"text\":\"\"}\n";
    let source = files.write("a.jsonl", rows);
    let error = files.read(std::slice::from_ref(&source), 100, false).unwrap_err().to_string();
    for part in [
        "a.jsonl line 2: no token of this row would be trained",
        "the last message is from the user",
        "(3 rows like this; leave them out with --skip-empty)",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let data = files.read(&[source], 100, true).unwrap();
    assert_eq!((data.samples.len(), data.sources[0].empty.count), (1, 3));
    assert_eq!(data.sources[0].empty.lines, [2, 3, 4]);
    let none = files.write("b.tsv", "a\t\n");
    assert!(
        files
            .read(std::slice::from_ref(&none), 100, false)
            .unwrap_err()
            .to_string()
            .contains("the reply is empty")
    );
    assert!(files.read(&[none], 100, true).unwrap_err().to_string().contains("no row to learn from"));
}

#[test]
fn control_tokens_in_a_message_are_refused() {
    let files = Files::new("control");
    let source =
        files.write("a.tsv", "ok\tok\nhi<|im_end|>\n<|im_start|>assistant\tyes\n".replace(">\n<", "> <"));
    let error = files.read(&[source], 100, false).unwrap_err().to_string();
    assert!(error.contains("a.tsv line 2") && error.contains("message 1 has the control token"), "{error}");
    let text = files.write("b.jsonl", "{\"text\":\"one<|endoftext|>two\"}");
    assert_eq!(files.read(&[text], 100, false).unwrap().sources[0].controls.count, 1);
}

#[test]
fn hostile_files_end_in_an_error_that_names_the_place() {
    let files = Files::new("hostile");
    for (name, bytes, says) in [
        ("a.tsv", &b"a\tb\nc\xff\td\n"[..], "a.tsv line 2: not UTF-8 at byte 5"),
        ("b.tsv", b"\xff\xfea\0\t\0", "UTF-16"),
        ("c.jsonl", b"{\"text\": \"a\"}\n{\"text\": ", "c.jsonl line 2: column 9: wrong JSON"),
        ("d.jsonl", b"[{\"text\": \"a\"}]", "d.jsonl line 1"),
        ("e.txt", b"abc\n\0\0\0", "e.txt line 2: a zero byte at byte 4"),
        ("f.tsv", b"", "there is no row to learn from"),
        ("g.txt", b"\n\n \n", "there is no row to learn from"),
        ("h.parquet", b"PAR1", "the ending says no format"),
        ("i.jsonl", b"{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}]}", "begins with a reply"),
        ("j.tsv", b"a\tb\tc\n", "j.tsv line 1: 3 columns"),
    ] {
        let source = files.write(name, bytes);
        let error = files.read(&[source], 100, false).unwrap_err().to_string();
        assert!(error.contains(says), "{name}: {error}");
    }
    let missing = Source::new(files.folder.join("none.tsv"));
    assert!(files.read(&[missing], 100, false).unwrap_err().to_string().contains("cannot be read"));
    std::fs::create_dir_all(files.folder.join("k.tsv")).unwrap();
    let folder = Source::new(files.folder.join("k.tsv"));
    assert!(files.read(&[folder], 100, false).unwrap_err().to_string().contains("a directory"));
}

#[test]
fn files_with_random_damage_never_panic() {
    let files = Files::new("damage");
    let good = "{\"messages\":[{\"role\":\"user\",\"content\":\"談\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n\
        {\"instruction\":\"a\",\"input\":\"x\",\"output\":\"c\"}\n{\"text\":\"one two\"}\n";
    for (name, good) in [("a.jsonl", good.to_owned()), ("b.tsv", pairs(4)), ("c.txt", pairs(9))] {
        for seed in 0..300 {
            let mut bytes = good.clone().into_bytes();
            for hit in 0..1 + seed % 3 {
                let bits = halfbyte_formats::philox::random_bits(seed, hit, 0, 0);
                let at = bits as usize % bytes.len();
                match bits >> 30 {
                    0 => bytes.truncate(at.max(1)),
                    1 => bytes.insert(at, (bits >> 8) as u8),
                    _ => bytes[at] ^= 1 << (bits >> 27 & 7),
                }
            }
            let source = files.write(name, bytes);
            if let Ok(data) = files.read(&[source], 8, seed % 2 == 0) {
                assert!(data.samples.iter().all(|s| s.positions() <= 8 && s.targets() > 0));
            }
        }
    }
}

#[test]
fn long_rows_are_cut_or_left_out_and_that_is_said() {
    let files = Files::new("long");
    let long = "word ".repeat(100);
    let rows = format!(
        "{{\"text\":\"{long}\"}}\n{{\"prompt\":\"a\",\"completion\":\"{long}\"}}\n{{\"messages\":[{}]}}\n",
        [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", long.as_str())]
            .map(|(role, content)| format!("{{\"role\":\"{role}\",\"content\":\"{content}\"}}"))
            .join(",")
    );
    let source = files.write("a.jsonl", rows);
    let data = files.read(&[source], 40, false).unwrap();
    let report = &data.sources[0];
    assert_eq!((report.truncated.count, report.truncated.lines.clone()), (1, vec![1]));
    assert_eq!((report.dropped.count, report.dropped.lines.clone()), (1, vec![2]));
    assert_eq!((report.shortened.count, report.shortened.lines.clone()), (1, vec![3]));
    assert_eq!(data.samples[0].positions(), 40);
    let chat = &data.samples[1];
    assert_eq!(files.text(&chat.tokens[chat.trained[0].clone()]), "b<|im_end|>");
}

#[test]
fn a_text_is_cut_into_windows_that_predict_every_token_once() {
    let files = Files::new("windows");
    let text: String = (0..400).map(|i| format!("line {i} of the text\n{}", "  ".repeat(i % 3))).collect();
    let source = files.write("a.txt", format!("\n\n{text}<|endoftext|>\r\nsecond document\r\n"));
    let data = files.read(&[source], 32, false).unwrap();
    assert_eq!(data.sources[0].rows, 2);
    let end = files.tokenizer.id("<|endoftext|>").unwrap();
    let documents = [text.trim_end_matches('\n'), "second document"];
    let mut samples = data.samples.iter();
    for document in documents {
        let mut whole = files.tokenizer.encode(document).unwrap();
        whole.push(end);
        let mut joined = vec![whole[0]];
        while joined.len() < whole.len() {
            let sample = samples.next().unwrap();
            assert_eq!(sample.tokens[0], *joined.last().unwrap());
            assert!(sample.positions() <= 32 && sample.targets() == sample.tokens.len() - 1);
            // Two blank lines before the first document, both and a separator before the second.
            let before = if document == documents[0] { 2 } else { 2 + text.matches('\n').count() + 1 };
            let breaks = files.text(&joined[..joined.len() - 1]).matches('\n').count();
            assert_eq!(sample.line, before + breaks + 1);
            joined.extend(&sample.tokens[1..]);
        }
        assert_eq!(joined, whole);
    }
    assert!(samples.next().is_none());
}

#[test]
fn a_large_text_read_in_pieces_gives_the_tokens_of_the_whole() {
    let text: String = (0..60_000).map(|i| format!("{}line {i} 我是誰\n\n", " ".repeat(i % 4))).collect();
    assert!(text.len() > 1 << 20);
    let mut vocabulary = small_pieces();
    vocabulary.tokens.push("<|im_end|>".to_owned());
    vocabulary.types.push(3);
    vocabulary.scores.push(0.0);
    // The second one puts a space before what it is given.
    for tokenizer in [small(), Tokenizer::from_gguf(&vocabulary, "small.gguf").unwrap()] {
        let mut files = Files::new("pieces");
        files.tokenizer = tokenizer;
        let source = files.write("a.txt", &text);
        let data = files.read(&[source], 1 << 30, false).unwrap();
        let mut whole = files.tokenizer.encode(text.trim_end_matches('\n')).unwrap();
        whole.extend(files.tokenizer.id("<|endoftext|>"));
        assert_eq!(data.samples.len(), 1);
        assert!(data.samples[0].tokens == whole);
    }
}

#[test]
fn weights_say_how_often_a_row_comes() {
    let files = Files::new("weights");
    let a = Source { weight: 2.0, ..files.write("a.tsv", pairs(10)) };
    let b = Source { weight: 0.25, ..files.write("b.tsv", "only\tb\n".repeat(8)) };
    let data = files.read(&[a, b], 100, false).unwrap();
    let all: Vec<usize> = (0..data.samples.len()).collect();
    let order = |seed, epoch| Order { seed, epoch }.arrange(&data, &all);
    let first = order(1, 0);
    let count = |order: &[usize], index| order.iter().filter(|&&other| other == index).count();
    assert!((0..10).all(|index| count(&first, index) == 2));
    assert_eq!((10..18).map(|index| count(&first, index)).sum::<usize>(), 2);
    assert_eq!(first, order(1, 0));
    assert_ne!(first, order(1, 1));
    assert_ne!(first, order(2, 0));
    // Over many epochs every row of a thin source has its turn.
    let seen: std::collections::HashSet<usize> = (0..40).flat_map(|epoch| order(1, epoch)).collect();
    assert_eq!(seen.len(), 18);
}

#[test]
fn duplicates_are_held_out_together() {
    let files = Files::new("held");
    let source = files.write("a.tsv", pairs(200).repeat(2));
    let data = files.read(&[source], 100, false).unwrap();
    for held in [HeldOut::Fraction(0.2), HeldOut::Count(40)] {
        let split = split(&data.samples, held, 3);
        assert_eq!(split.train.len() + split.held.len(), 400);
        assert!((30..130).contains(&split.held.len()), "{held:?}: {}", split.held.len());
        let sides = |index: usize| split.held.contains(&index);
        assert!((0..200).all(|index| sides(index) == sides(index + 200)));
        assert_ne!(split, halfbyte_text::dataset::split(&data.samples, held, 4));
    }
    assert_eq!(split(&data.samples, HeldOut::Count(40), 3).held.len(), 40);
    assert_eq!(split(&data.samples, HeldOut::None, 3).held, [0usize; 0]);
    for (text, value) in [
        ("0.05", Some(HeldOut::Fraction(0.05))),
        ("5%", Some(HeldOut::Fraction(0.05))),
        ("100", Some(HeldOut::Count(100))),
        ("0", Some(HeldOut::None)),
        ("1.5", None),
        ("-1", None),
        ("x", None),
    ] {
        assert_eq!(text.parse::<HeldOut>().ok(), value, "{text}");
        assert_eq!(value.and_then(|held| held.to_string().parse().ok()), value, "{text}");
    }
}

fn settings() -> FeedSettings {
    FeedSettings { seed: 5, held_out: HeldOut::Fraction(0.1), packed: true }
}

#[test]
fn a_feed_goes_on_where_it_was_written_down() {
    let files = Files::new("resume");
    let source = Source { weight: 1.5, ..files.write("a.tsv", pairs(60)) };
    let feed =
        || Feed::new(files.read(std::slice::from_ref(&source), 64, false).unwrap(), settings()).unwrap();
    let mut whole = feed();
    let mut written = Vec::new();
    while whole.position().epoch < 3 {
        written.push((whole.position(), whole.next_sequence()));
    }
    for (at, (position, _)) in written.iter().enumerate().step_by(7) {
        let saved = serde_json::to_string(position).unwrap();
        let mut resumed = feed();
        resumed.seek(serde_json::from_str(&saved).unwrap()).unwrap();
        for (_, sequence) in &written[at..] {
            assert_eq!(&resumed.next_sequence(), sequence);
        }
    }
    let past = Position { epoch: 0, sequence: 1_000_000 };
    assert!(feed().seek(past).unwrap_err().to_string().contains("have changed"));
}

#[test]
fn the_fingerprint_changes_with_data_and_settings() {
    let files = Files::new("fingerprint");
    let print = |rows: String, weight: f64, length: usize, settings: FeedSettings| {
        let source = Source { weight, ..files.write("a.tsv", rows) };
        Feed::new(files.read(&[source], length, false).unwrap(), settings).unwrap().fingerprint()
    };
    let base = print(pairs(20), 1.0, 64, settings());
    assert_eq!(base, print(pairs(20), 1.0, 64, settings()));
    let others = [
        print(pairs(21), 1.0, 64, settings()),
        print(pairs(20).replace("answer 3", "Answer 3"), 1.0, 64, settings()),
        print(pairs(20), 2.0, 64, settings()),
        print(pairs(20), 1.0, 65, settings()),
        print(pairs(20), 1.0, 64, FeedSettings { seed: 6, ..settings() }),
        print(pairs(20), 1.0, 64, FeedSettings { packed: false, ..settings() }),
        print(pairs(20), 1.0, 64, FeedSettings { held_out: HeldOut::Count(5), ..settings() }),
    ];
    assert!(others.iter().all(|other| *other != base));
}

#[test]
fn a_sample_is_named_by_file_and_line_and_holding_all_out_is_refused() {
    let files = Files::new("names");
    let source = files.write("a.tsv", format!("# x\n{}", pairs(3)));
    let data = files.read(&[source], 64, false).unwrap();
    let feed = Feed::new(data.clone(), FeedSettings { held_out: HeldOut::None, ..settings() }).unwrap();
    assert!(feed.place_of(2).ends_with("a.tsv line 4"), "{}", feed.place_of(2));
    let all = FeedSettings { held_out: HeldOut::Count(99), ..settings() };
    let error = Feed::new(data, all).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("all 3 samples are held out"), "{error}");
}

#[test]
fn a_document_ends_with_the_customary_token_or_the_models_own() {
    use halfbyte_text::dataset::document_end;
    let tokenizer = small();
    assert_eq!(document_end(&tokenizer, &[1, 2]), tokenizer.id("<|endoftext|>"));
    let files = Files::new("end");
    let renderer = Renderer { start: Some(7), ..files.renderer() };
    let text = renderer.text("a b").unwrap();
    let inner = tokenizer.encode("a b").unwrap();
    assert_eq!(text.tokens, [&[7][..], &inner, &[tokenizer.id("<|endoftext|>").unwrap()]].concat());
    assert_eq!((text.trained.len(), text.trained[0].clone()), (1, 0..text.tokens.len()));
}

#[test]
fn a_model_without_a_template_learns_texts_and_refuses_conversations() {
    let files = Files::new("base");
    let renderer = Renderer { template: None, ..files.renderer() };
    let settings = Settings { length: 64, skip_empty: false };
    let read = |source: Source| Dataset::read(&[source], &renderer, &settings, &mut |_| ());
    assert!(read(files.write("a.txt", "some text")).is_ok());
    let error = read(files.write("a.tsv", "a\tb\n")).unwrap_err().to_string();
    assert!(error.contains("a.tsv line 1") && error.contains("no chat template"), "{error}");
}
