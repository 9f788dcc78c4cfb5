//! One token's ops run again for the next token. From token to token a decoder asks for the same, but for the token, its
//! position, and the cosines and sines that turn its heads: a device that has kept what was asked for once need not be
//! told anew. See [`crate::Backend::again`].

use crate::error::{Result, check};
use crate::{Buffer, Rows, Weight};

/// A token behind those in the cache.
#[derive(Clone, Copy, Debug)]
pub struct Next<'a> {
    /// Which.
    pub token: u32,
    /// The table that it is looked up in.
    pub table: &'a Weight,
    /// Its position.
    pub start: usize,
    /// Where the first layer keeps the tokens before it: which of several conversations it belongs to.
    pub cache: Buffer,
    /// Cosines and sines of that.
    pub turns: &'a [f32],
    /// Where its ops expect them.
    pub at: Rows,
}

/// The shapes that fit: a token of the table, turns as many as there is room for.
pub fn check_shapes(next: &Next<'_>) -> Result<()> {
    let Next { token, table, turns, at, .. } = *next;
    check((token as usize) < table.rows && turns.len() == at.columns && at.rows == 1, "again", || {
        format!("token {token} of {}, {} turns for {}x{}", table.rows, turns.len(), at.rows, at.columns)
    })
}
