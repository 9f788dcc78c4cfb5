//! What a checkpoint says about itself. Written last: a folder with a manifest once was whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::binding::Binding;
use crate::schedule::Schedule;

/// Version of the layout and of what is kept means; another one is refused. Since 2 weights lie in the middle of a unit and
/// tiles of a row have averages of their own, since 3 first moments are sums.
pub const FORMAT: u32 = 3;
/// The file's name.
pub(crate) const MANIFEST: &str = "manifest.json";
/// Longest manifest that is read.
const LONGEST: u64 = 16 << 20;

/// Where a run is in its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPosition {
    /// Whole epochs behind.
    pub epoch: u64,
    /// Sequences of this epoch behind.
    pub sequence: u64,
}

/// Where a run is; the parts hold the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps behind.
    pub step: u64,
    /// Whatever else is counted: tokens, skipped steps.
    pub counters: BTreeMap<String, u64>,
    /// The next sequence.
    pub position: DataPosition,
    /// The rates to come.
    pub schedule: Schedule,
    /// What the run is bound to.
    pub binding: Binding,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Name of the file.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its checksum, 16 hexadecimal digits.
    pub hash: String,
}

/// The manifest of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the layout.
    pub format: u32,
    /// Where the run was.
    #[serde(flatten)]
    pub progress: Progress,
    /// The files.
    pub parts: Vec<Part>,
}

impl Manifest {
    /// Reads and checks the manifest of the checkpoint `folder`; an error is the reason.
    pub(crate) fn read(folder: &Path) -> Result<Manifest, String> {
        let path = folder.join(MANIFEST);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err("it has no manifest.json: the save did not finish".into());
            }
            Err(error) => return Err(format!("manifest.json cannot be opened: {error}")),
        };
        let mut text = Vec::new();
        let read = file.take(LONGEST + 1).read_to_end(&mut text);
        read.map_err(|error| format!("manifest.json cannot be read: {error}"))?;
        if text.len() as u64 > LONGEST {
            return Err(format!("manifest.json is longer than {LONGEST} bytes"));
        }
        Manifest::parse(&text)
    }

    fn parse(text: &[u8]) -> Result<Manifest, String> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let wrong = |error: serde_json::Error| format!("manifest.json: {error}");
        let Version { format } = serde_json::from_slice(text).map_err(wrong)?;
        if format != FORMAT {
            let (kind, remedy) = match format > FORMAT {
                true => ("newer", "use a newer halfbyte"),
                false => ("older", "go on with the halfbyte that wrote it, or train anew"),
            };
            let known = format!("this program knows {FORMAT}");
            return Err(format!("manifest.json: format {format} is {kind}, {known}: {remedy}"));
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(wrong)?;
        if !manifest.progress.schedule.is_sound() {
            return Err("manifest.json: the schedule is none".into());
        }
        for (index, part) in manifest.parts.iter().enumerate() {
            if let Some(problem) = name_problem(&part.name) {
                return Err(format!("manifest.json: part {:?} {problem}", part.name));
            }
            if manifest.parts[..index].iter().any(|other| other.name == part.name) {
                return Err(format!("manifest.json: part {} twice", part.name));
            }
        }
        Ok(manifest)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Maps with keys of text and numbers: there is nothing that JSON could refuse.
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

/// A part's name is a plain file name: nothing leads out of the folder, nothing hides.
pub(crate) fn name_problem(name: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match name {
        MANIFEST => Some("is the name of the manifest"),
        "" => Some("has no name"),
        _ if name.len() > 100 => Some("is longer than 100 letters"),
        _ if name.starts_with('.') || !name.chars().all(plain) => {
            Some("may have letters, digits, '-', '_' and '.', and does not begin with '.'")
        }
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::schedule::{Decay, ScheduleSettings, WarmUp};

    pub(crate) fn progress(step: u64) -> Progress {
        let schedule = ScheduleSettings {
            peak: 5e-5,
            minimum: 1e-6,
            warm_up: WarmUp::Steps(10),
            decay: Decay::Cosine,
            steps: 1000,
        };
        Progress {
            step,
            counters: BTreeMap::from([("tokens".into(), step * 1024), ("skipped".into(), 0)]),
            position: DataPosition { epoch: 1, sequence: step },
            schedule: Schedule::new(&schedule).unwrap(),
            binding: Binding::default(),
        }
    }

    fn manifest() -> Manifest {
        let part = Part { name: "weights.bin".into(), bytes: 3, hash: format!("{:016x}", 7) };
        Manifest { format: FORMAT, progress: progress(412), parts: vec![part] }
    }

    #[test]
    fn a_manifest_reads_as_it_was_written() {
        assert_eq!(Manifest::parse(&manifest().to_bytes()).unwrap(), manifest());
    }

    #[test]
    fn hostile_manifests_are_refused_by_reason() {
        let changed = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut value = serde_json::to_value(manifest()).unwrap();
            change(&mut value);
            Manifest::parse(value.to_string().as_bytes()).unwrap_err()
        };
        assert!(changed(&|v| v["format"] = (FORMAT + 1).into()).contains("newer"));
        assert!(changed(&|v| v["format"] = (FORMAT - 1).into()).contains("older"));
        for name in ["../weights.bin", "/etc/passwd", ".hidden", "", "a\0b", "a/b", "manifest.json", "a\\b"] {
            let reason = changed(&|v| v["parts"][0]["name"] = name.into());
            assert!(reason.contains("part"), "{reason}");
        }
        let twice = changed(&|v| {
            let part = v["parts"][0].clone();
            v["parts"].as_array_mut().unwrap().push(part);
        });
        assert!(twice.contains("twice"), "{twice}");
        assert!(changed(&|v| v["schedule"]["steps"] = 0.into()).contains("schedule"));
        assert!(changed(&|v| v["schedule"]["peak"] = "NaN".into()).contains("schedule"));
        assert!(changed(&|v| v["step"] = (-1).into()).contains("manifest.json"));
        assert!(Manifest::parse(&b"[".repeat(1_000_000)).is_err());
    }
}
