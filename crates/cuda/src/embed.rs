//! Rows of the table by their tokens. See `ops::embed`.

use halfbyte_ops::{Result, Rows, Weight, embed};

use crate::launch::{Grid, args};
use crate::{Cuda, weight};

pub(crate) fn forward(cuda: &mut Cuda, tokens: &[u32], table: &Weight, out: Rows) -> Result<()> {
    embed::check_shapes(tokens, table, out)?;
    let (from, to) = (cuda.weight("embed", table)?, cuda.rows("embed", out)?);
    let list = cuda.upload("embed", tokens)?;
    let format = weight::code(table.format);
    let blocks = (tokens.len() as u32, out.columns.div_ceil(128) as u32, 1);
    let grid = Grid { blocks, ..Grid::line(1, 128) };
    cuda.launch("embed", grid, args![list, from, format, to, out.columns])
}
