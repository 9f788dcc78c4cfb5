//! The rotation of heads. See `ops::rope`.

use halfbyte_ops::{Result, Rows, rope};

use crate::Cuda;
use crate::launch::{Grid, args};

pub(crate) fn forward(cuda: &mut Cuda, x: Rows, head_dim: usize, turns: Rows) -> Result<()> {
    rope::check_shapes(x, head_dim, turns)?;
    let (rows, turns) = (cuda.rows("rope", x)?, cuda.rows("rope", turns)?);
    cuda.launch(
        "rope",
        Grid::each(x.rows * x.columns / 2, 256),
        args![rows, turns, x.rows, x.columns, head_dim],
    )
}
