//! Saved and restored is the same conversation; a file that is not right is refused by name.

use std::path::{Path, PathBuf};

use halfbyte_generate::Binding;

use crate::toy;

/// A folder that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("halfbyte-session-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("talk.session")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn saved(path: &Path) {
    let mut conversation = toy::conversation(256, 10);
    toy::say(&mut conversation, "one");
    conversation.save(path, &toy::binding(256)).unwrap();
}

fn refusal(path: &Path, binding: &Binding) -> String {
    let mut conversation = toy::conversation(256, 10);
    toy::say(&mut conversation, "mine");
    let held = conversation.messages().to_vec();
    let error = conversation.load(path, binding).unwrap_err().to_string();
    assert_eq!(conversation.messages(), held, "a refused file changes no message");
    toy::say(&mut conversation, "still works");
    error
}

#[test]
fn a_restored_conversation_goes_on_with_the_same_bits() {
    let folder = Folder::new("restored");
    let mut first = toy::conversation(256, 10);
    first.sampler = toy::sampler(1.0);
    toy::say(&mut first, "one");
    toy::say(&mut first, "two");
    first.save(&folder.file(), &toy::binding(256)).unwrap();
    let mut second = toy::conversation(256, 10);
    second.sampler = toy::sampler(1.0);
    toy::say(&mut second, "something else, longer than what was saved, so that traces are left");
    second.load(&folder.file(), &toy::binding(256)).unwrap();
    assert_eq!(second.decoder.tokens(), first.decoder.tokens());
    assert_eq!(second.messages(), first.messages());
    let (a, b) = (toy::say(&mut first, "three"), toy::say(&mut second, "three"));
    assert_eq!((a.ids, a.timing.computed_tokens), (b.ids, b.timing.computed_tokens));
    let (a, b) = (first.decoder.last_logits(&[65]), second.decoder.last_logits(&[65]));
    assert_eq!(toy::bits(&a.unwrap()), toy::bits(&b.unwrap()));
}

#[test]
fn only_the_filled_part_of_the_cache_takes_space() {
    let folder = Folder::new("space");
    let mut conversation = toy::conversation(1024, 4);
    toy::say(&mut conversation, "one");
    conversation.save(&folder.file(), &toy::binding(1024)).unwrap();
    let whole = 2 * conversation.decoder.cache_bytes() as u64;
    let size = std::fs::metadata(folder.file()).unwrap().len();
    assert!(size < whole / 4, "{size} bytes of {whole}");
}

#[test]
fn a_session_of_another_model_or_setting_is_refused_by_what_differs() {
    let folder = Folder::new("binding");
    saved(&folder.file());
    let own = toy::binding(256);
    let other = Binding { fingerprint: 1, ..own.clone() };
    assert!(refusal(&folder.file(), &other).contains("another model"));
    let other = Binding { weights: "nvfp4".into(), ..own.clone() };
    assert!(refusal(&folder.file(), &other).contains("--weights bf16, this run has nvfp4"));
    let other = Binding { cache: "f32".into(), ..own.clone() };
    assert!(refusal(&folder.file(), &other).contains("--cache bf16"));
    let other = Binding { scales: "search".into(), ..own.clone() };
    assert!(refusal(&folder.file(), &other).contains("--scales nearest"));
    let other = Binding { context: 512, ..own };
    assert!(refusal(&folder.file(), &other).contains("--context 256"));
}

#[test]
fn a_shortened_or_changed_file_is_refused() {
    let folder = Folder::new("damaged");
    let path = folder.file();
    saved(&path);
    let bytes = std::fs::read(&path).unwrap();
    for length in [0, 5, 8, 15, 47, 48, 200, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let error = refusal(&path, &toy::binding(256));
        assert!(error.contains("talk.session"), "{length}: {error}");
    }
    for position in [8, 20, 60, 300, bytes.len() / 2, bytes.len() - 1] {
        let mut changed = bytes.clone();
        changed[position] ^= 0x40;
        std::fs::write(&path, &changed).unwrap();
        let error = refusal(&path, &toy::binding(256));
        assert!(error.contains("checksum"), "{position}: {error}");
    }
    std::fs::write(&path, b"GGUF, which is something else").unwrap();
    assert!(refusal(&path, &toy::binding(256)).contains("this is no session"));
}

/// The file's own checksum, so that a test can lie about everything else.
fn checksum(bytes: &[u8]) -> u64 {
    let mut state = 0xcbf2_9ce4_8422_2325u64;
    let mut take = |word: u64| state = (state ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| take(u64::from_le_bytes(*word)));
    take(rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    take(rest.len() as u64);
    state
}

#[test]
fn lengths_that_lie_under_a_right_checksum_are_refused() {
    let folder = Folder::new("hostile");
    let path = folder.file();
    saved(&path);
    let bytes = std::fs::read(&path).unwrap();
    let body = bytes.len() - 8;
    assert_eq!(bytes[body..], checksum(&bytes[..body]).to_le_bytes(), "the test knows the checksum");
    for field in 0..5 {
        for value in [0, 1, 1 << 20, 1 << 40, u64::MAX / 4, u64::MAX] {
            let mut lie = bytes.clone();
            lie[8 + field * 8..][..8].copy_from_slice(&value.to_le_bytes());
            let sum = checksum(&lie[..body]);
            lie[body..].copy_from_slice(&sum.to_le_bytes());
            std::fs::write(&path, &lie).unwrap();
            let error = refusal(&path, &toy::binding(256));
            assert!(error.contains("talk.session"), "field {field} = {value}: {error}");
        }
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = refusal(Path::new("no/such.session"), &toy::binding(256));
    assert!(error.contains("no/such.session"), "{error}");
}
