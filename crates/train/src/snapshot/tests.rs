//! Saves that fail anywhere lose nothing; what is broken is passed over with its reason.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::disk::tests::{Folder, budget, failing};
use crate::manifest::tests::progress;

/// What the checkpoint of a step holds.
fn content(step: u64) -> Vec<u8> {
    (0..3000u64).flat_map(|i| (i.wrapping_mul(0x9e37_79b9) ^ step << 7).to_le_bytes()).collect()
}

fn save(snapshots: &Snapshots, step: u64) -> Result<Vec<PathBuf>> {
    let mut staging = snapshots.begin(step, 48_000)?;
    staging.write_part("weights.bin", |sink| {
        content(step).chunks(1000).try_for_each(|chunk| sink.write_all(chunk))
    })?;
    staging.write_part("moments.bin", |sink| sink.write_all(&content(step + 1_000_000)))?;
    staging.write_part("empty", |_| Ok(()))?;
    snapshots.finish(staging, progress(step)).map(|saved| saved.removed)
}

fn part(snapshot: &Snapshot, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    snapshot.read_part(name, |source| source.read_to_end(&mut bytes).map(drop)).unwrap();
    bytes
}

/// The newest whole step, its content checked.
fn newest(snapshots: &Snapshots) -> Option<u64> {
    let snapshot = snapshots.newest().unwrap().newest?;
    let step = snapshot.step();
    assert_eq!(snapshot.manifest().progress, progress(step));
    assert_eq!(part(&snapshot, "weights.bin"), content(step));
    assert_eq!(part(&snapshot, "moments.bin"), content(step + 1_000_000));
    assert!(part(&snapshot, "empty").is_empty());
    Some(step)
}

fn entries(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_checkpoint_comes_back_as_it_was_saved_and_the_newest_stay() {
    let folder = Folder::new("keep");
    let snapshots = Snapshots::open(folder.path(), 2).unwrap();
    assert_eq!(newest(&snapshots), None);
    for step in [1, 2, 30, 1_000_000] {
        save(&snapshots, step).unwrap();
        assert_eq!(newest(&snapshots), Some(step));
    }
    assert_eq!(entries(&folder), ["000030", "1000000"]);
    // None kept would lose the run; one is the least.
    let snapshots = Snapshots::open(folder.path(), 0).unwrap();
    let removed = save(&snapshots, 1_000_001).unwrap();
    assert_eq!((removed.len(), entries(&folder)), (2, vec!["1000001".to_owned()]));
}

#[test]
fn whatever_act_fails_the_last_good_one_opens() {
    for broken in [false, true] {
        for replaced in [false, true] {
            let mut act = 0;
            loop {
                let folder = Folder::new("fail");
                let before = Snapshots::open(folder.path(), 1).unwrap();
                save(&before, 7).unwrap();
                let (disk, acts) = failing(act, broken);
                let snapshots = Snapshots::open_on(folder.path(), 1, disk).unwrap();
                let step = if replaced { 7 } else { 8 };
                let saved = save(&snapshots, step);
                let reached = acts.load(Relaxed) > act;
                if let Err(error) = &saved {
                    assert!(error.to_string().contains("free space"), "{error}");
                }
                // The next start.
                let after = Snapshots::open(folder.path(), 1).unwrap();
                after.recover().unwrap();
                let newest = newest(&after).expect("a whole checkpoint");
                assert!(newest == step || newest == 7 && saved.is_err(), "act {act}: {newest}");
                assert!(entries(&folder).iter().all(|name| !name.starts_with('.')), "act {act}");
                // And the run goes on.
                save(&after, 9).unwrap();
                assert_eq!(self::newest(&after), Some(9));
                if !reached {
                    assert!(act > 15, "{act}");
                    saved.unwrap();
                    break;
                }
                act += 1;
            }
        }
    }
}

#[test]
fn a_disk_that_fills_up_after_any_number_of_bytes_keeps_the_last_one() {
    for bytes in [0, 1, 23_999, 24_000, 24_001, 47_999, 48_000, 48_001, 48_500] {
        let folder = Folder::new("bytes");
        save(&Snapshots::open(folder.path(), 1).unwrap(), 7).unwrap();
        let (disk, left) = budget(bytes);
        let snapshots = Snapshots::open_on(folder.path(), 1, disk).unwrap();
        assert!(save(&snapshots, 8).is_err());
        // Not even the started one takes room.
        assert_eq!(entries(&folder), ["000007"]);
        assert_eq!(newest(&snapshots), Some(7));
        left.store(1 << 20, Relaxed);
        save(&snapshots, 8).unwrap();
        assert_eq!((newest(&snapshots), entries(&folder)), (Some(8), vec!["000008".to_owned()]));
    }
}

#[test]
fn a_part_whose_writer_fails_is_no_checkpoint() {
    let folder = Folder::new("writer");
    let snapshots = Snapshots::open(folder.path(), 3).unwrap();
    save(&snapshots, 7).unwrap();
    let mut staging = snapshots.begin(8, 0).unwrap();
    let error = staging.write_part("weights.bin", |sink| {
        sink.write_all(&[1; 5000])?;
        Err(io::Error::other("the device is gone"))
    });
    assert!(error.unwrap_err().to_string().contains("the device is gone"));
    drop(staging);
    assert_eq!((newest(&snapshots), entries(&folder)), (Some(7), vec!["000007".to_owned()]));
}

#[test]
fn a_save_too_large_for_the_disk_is_not_begun() {
    let folder = Folder::new("large");
    let snapshots = Snapshots::open(folder.path(), 3).unwrap();
    if cfg!(unix) {
        assert!(snapshots.begin(1, u64::MAX).is_err());
    }
    assert!(entries(&folder).is_empty());
}

#[test]
fn broken_ones_are_passed_over_by_reason() {
    let folder = Folder::new("broken");
    let snapshots = Snapshots::open(folder.path(), 99).unwrap();
    (1..=8).for_each(|step| drop(save(&snapshots, step).unwrap()));
    let file = |step: u64, name: &str| folder.path().join(staging::name(step)).join(name);
    fs::remove_file(file(8, "manifest.json")).unwrap();
    fs::write(file(7, "manifest.json"), "{\"format\":1").unwrap();
    fs::write(file(6, "weights.bin"), &content(6)[..100]).unwrap();
    let mut bytes = content(5);
    bytes[777] ^= 1;
    fs::write(file(5, "weights.bin"), bytes).unwrap();
    fs::remove_file(file(4, "moments.bin")).unwrap();
    fs::copy(file(2, "manifest.json"), file(3, "manifest.json")).unwrap();
    let found = snapshots.newest().unwrap();
    assert_eq!(found.newest.unwrap().step(), 2);
    let reasons: Vec<&str> = found.passed.iter().map(|passed| passed.reason.as_str()).collect();
    let expected = [
        "no manifest.json: the save did not finish",
        "EOF while parsing",
        "weights.bin has 100 bytes, the manifest says 24000",
        "weights.bin: its checksum is",
        "moments.bin cannot be read",
        "the folder says step 3, its manifest 2",
    ];
    assert_eq!(reasons.len(), expected.len());
    reasons.iter().zip(expected).for_each(|(reason, part)| assert!(reason.contains(part), "{reason}"));
    assert_eq!(newest(&snapshots), Some(2));
    // One opened by name is refused for the same reason.
    let error = Snapshot::open(&folder.path().join("000006")).unwrap_err().to_string();
    assert!(error.contains("000006\nweights.bin has 100 bytes"), "{error}");
    // The run reaches step 8 again and replaces it.
    save(&snapshots, 8).unwrap();
    assert_eq!(newest(&snapshots), Some(8));
}

#[test]
fn folders_without_a_manifest_do_not_count_among_the_kept() {
    let folder = Folder::new("count");
    let snapshots = Snapshots::open(folder.path(), 2).unwrap();
    save(&snapshots, 1).unwrap();
    save(&snapshots, 2).unwrap();
    fs::remove_file(folder.path().join("000002/manifest.json")).unwrap();
    save(&snapshots, 3).unwrap();
    assert_eq!(entries(&folder), ["000001", "000003"]);
}

#[test]
fn other_files_in_the_folder_are_left_alone() {
    let folder = Folder::new("others");
    for name in ["notes", "12", "000001x", ".x.partial", ".7.partial"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let snapshots = Snapshots::open(folder.path(), 1).unwrap();
    snapshots.recover().unwrap();
    save(&snapshots, 4).unwrap();
    save(&snapshots, 5).unwrap();
    assert_eq!(entries(&folder), [".7.partial", ".x.partial", "000001x", "000005", "12", "notes"]);
}

#[test]
fn parts_with_odd_names_are_refused() {
    let folder = Folder::new("names");
    let snapshots = Snapshots::open(folder.path(), 1).unwrap();
    let mut staging = snapshots.begin(1, 0).unwrap();
    for name in ["../out", "", ".hidden", "manifest.json", "a b", "a/b"] {
        assert!(staging.write_part(name, |_| Ok(())).is_err(), "{name}");
    }
    staging.write_part("a", |_| Ok(())).unwrap();
    assert!(staging.write_part("a", |_| Ok(())).unwrap_err().to_string().contains("already"));
}

#[test]
fn a_part_must_be_read_to_its_end_and_be_there() {
    let folder = Folder::new("reading");
    let snapshots = Snapshots::open(folder.path(), 1).unwrap();
    save(&snapshots, 1).unwrap();
    let snapshot = snapshots.newest().unwrap().newest.unwrap();
    let mut half = vec![0; 12_000];
    let error = snapshot.read_part("weights.bin", |source| source.read_exact(&mut half)).unwrap_err();
    assert!(error.to_string().contains("12000 of its 24000 bytes"), "{error}");
    assert!(snapshot.read_part("gone", |_| Ok(())).unwrap_err().to_string().contains("no such part"));
    // A disk that goes bad after opening is noticed on reading.
    fs::write(snapshot.path().join("weights.bin"), vec![0; 24_000]).unwrap();
    let error = snapshot.read_part("weights.bin", drain).unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
}
