//! A model that no file has: whole, and the same however it is read.

mod common;

use common::{Scratch, qwen3_config};
use halfbyte_checkpoint::{Checkpoint, TensorName};
use serde_json::json;

#[test]
fn rows_do_not_depend_on_how_they_are_read() {
    let scratch = Scratch::new();
    let mut config = qwen3_config();
    // Enough for several threads.
    config["vocab_size"] = json!(5000);
    let path = scratch.join("shape.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let model = Checkpoint::random(&path, 7).unwrap();
    assert_eq!(model.tensors.len(), model.architecture.tensor_names().len());
    let table = model.find(TensorName::Embedding).unwrap();
    let read = |model: &Checkpoint, rows: std::ops::Range<usize>| {
        let mut values = vec![0.0; rows.len() * table.columns()];
        model.read_f32(table, rows, &mut values).unwrap();
        values
    };
    let whole = read(&model, 0..table.rows());
    for rows in [0..1, 4321..4323, 17..4999] {
        let part = &whole[rows.start * table.columns()..rows.end * table.columns()];
        assert!(read(&model, rows.clone()) == part, "{rows:?}");
    }
    let mut raw = vec![0; 2 * table.columns() * 4];
    model.read_raw(table, 10..12, &mut raw).unwrap();
    let stored: Vec<f32> = raw.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(stored, whole[10 * table.columns()..12 * table.columns()]);
    assert!(read(&Checkpoint::random(&path, 8).unwrap(), 0..1) != whole[..table.columns()]);
    let norm = model.find(TensorName::FinalNorm).unwrap();
    let mut gain = vec![0.0; norm.columns()];
    model.read_f32(norm, 0..1, &mut gain).unwrap();
    assert!(gain.iter().all(|value| *value == 1.0));
}
