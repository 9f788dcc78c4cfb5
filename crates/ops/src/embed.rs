//! y[t,c] = table[token[t], c], with the value the table holds exactly (an NVFP4 table's own
//! scale multiplied last).

use crate::error::{Error, Result, check};
use crate::testing::{Bench, assert_same_bits, numbers};
use crate::{Backend, Rows, Weight, WeightFormat};

/// The shapes and tokens that fit.
pub fn check_shapes(tokens: &[u32], table: &Weight, out: Rows) -> Result<()> {
    check(out.rows == tokens.len() && out.columns == table.columns, "embed", || {
        format!(
            "{} tokens, table {}x{}, out {}x{}",
            tokens.len(),
            table.rows,
            table.columns,
            out.rows,
            out.columns
        )
    })?;
    match tokens.iter().find(|&&token| token as usize >= table.rows) {
        Some(&token) => Err(Error::Token { token, vocabulary: table.rows }),
        None => Ok(()),
    }
}

/// The shapes that fit the gradient.
pub fn check_gradient(tokens: &[u32], dy: Rows, dtable: Rows) -> Result<()> {
    check(dy.rows == tokens.len() && dy.columns == dtable.columns, "embed_gradient", || {
        format!(
            "{} tokens, dy {}x{}, table {}x{}",
            tokens.len(),
            dy.rows,
            dy.columns,
            dtable.rows,
            dtable.columns
        )
    })
}

/// What every backend must give.
pub fn contract<B: Backend>(make: impl Fn(usize) -> B) {
    use WeightFormat::{Bf16, F32, Int8, Nvfp4};
    for format in [F32, Bf16, Int8, Nvfp4] {
        let (vocabulary, columns) = (50, 160);
        let mut bench = Bench::new(&make);
        let values = numbers(3, vocabulary * columns);
        let (table, held, scale) = bench.weight(format, vocabulary, columns, &values);
        let tokens = [0, 49, 17, 17, 16];
        let want: Vec<f32> = tokens
            .iter()
            .flat_map(|&t| &held[t as usize * columns..][..columns])
            .map(|x| x * scale)
            .collect();
        let out = bench.output(tokens.len(), columns);
        bench.backend.embed(&tokens, &table, out).unwrap();
        assert_same_bits(&bench.read(out), &want, format.name());
        let error = bench.backend.embed(&[50], &table, out.slice(0, 1));
        assert!(matches!(error, Err(Error::Token { token: 50, .. })));
    }
    // Rows 10.. of a table; a token that comes twice adds twice, in order; others are passed over.
    let (columns, tokens) = (160, [12u32, 9, 31, 12, 30]);
    let mut bench = Bench::new(&make);
    let (dy, mut want) = (numbers(1, tokens.len() * columns), numbers(2, 21 * columns));
    let table = bench.rows(21, columns, &want);
    for (token, dy) in tokens.iter().zip(dy.chunks(columns)) {
        if (10..31).contains(token) {
            for (want, dy) in want[(*token as usize - 10) * columns..].iter_mut().zip(dy) {
                *want += dy;
            }
        }
    }
    let dy = bench.rows(tokens.len(), columns, &dy);
    bench.backend.embed_gradient(&tokens, 10, dy, table).unwrap();
    assert_same_bits(&bench.read(table), &want, "embed_gradient");
}
