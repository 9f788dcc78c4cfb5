//! Values and bytes in and out.

use halfbyte_formats::bf16;
use halfbyte_ops::error::check;
use halfbyte_ops::tensor::UNIT;
use halfbyte_ops::{Buffer, Result, Rows};

use crate::Cuda;
use crate::arena::{bytes_of, bytes_of_mut};

pub(crate) fn write(cuda: &mut Cuda, to: Buffer, values: &[f32]) -> Result<()> {
    write_bytes(cuda, to, bytes_of(values))
}

pub(crate) fn read(cuda: &mut Cuda, from: Rows, values: &mut [f32]) -> Result<()> {
    check(values.len() == from.rows * from.columns, "read", || {
        format!("{} values from {}x{}", values.len(), from.rows, from.columns)
    })?;
    if !from.narrow {
        return read_bytes(cuda, from.buffer, bytes_of_mut(values));
    }
    let width = from.columns.next_multiple_of(UNIT);
    let mut bytes = vec![0; from.rows * width * 2];
    read_bytes(cuda, from.buffer, &mut bytes)?;
    for (values, row) in values.chunks_exact_mut(from.columns).zip(bytes.chunks_exact(width * 2)) {
        for (value, pair) in values.iter_mut().zip(row.as_chunks::<2>().0) {
            *value = bf16::decode(u16::from_le_bytes(*pair));
        }
    }
    Ok(())
}

pub(crate) fn read_bytes(cuda: &mut Cuda, from: Buffer, bytes: &mut [u8]) -> Result<()> {
    check(bytes.len() <= from.bytes, "read", || format!("{} bytes from {}", bytes.len(), from.bytes))?;
    let from = cuda.pointer("read", from)?;
    cuda.copy_out(from, bytes)
}

pub(crate) fn write_bytes(cuda: &mut Cuda, to: Buffer, bytes: &[u8]) -> Result<()> {
    check(bytes.len() <= to.bytes, "write", || format!("{} bytes into {}", bytes.len(), to.bytes))?;
    let to = cuda.pointer("write", to)?;
    cuda.copy_in(to, bytes)
}
