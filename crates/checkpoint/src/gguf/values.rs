//! GGUF metadata values <-> bytes.

use super::cursor::Cursor;
use crate::error::Error;
use crate::text_files::{GgufArray, GgufValue};

const ARRAY: u32 = 9;
const STRING: u32 = 8;
const BOOL: u32 = 7;
const REWRITE: &str = "the file was written wrongly; convert the model again";

/// A value: u32 type, then its bytes.
pub(super) fn read_value(cursor: &mut Cursor<'_>) -> Result<GgufValue, Error> {
    let kind = cursor.u32()?;
    Ok(match kind {
        0 => GgufValue::U8(u8::from_le_bytes(cursor.take()?)),
        1 => GgufValue::I8(i8::from_le_bytes(cursor.take()?)),
        2 => GgufValue::U16(u16::from_le_bytes(cursor.take()?)),
        3 => GgufValue::I16(i16::from_le_bytes(cursor.take()?)),
        4 => GgufValue::U32(cursor.u32()?),
        5 => GgufValue::I32(i32::from_le_bytes(cursor.take()?)),
        6 => GgufValue::F32(f32::from_le_bytes(cursor.take()?)),
        BOOL => {
            let [byte] = cursor.take()?;
            GgufValue::Bool(boolean(cursor, byte)?)
        }
        STRING => GgufValue::String(cursor.string()?),
        ARRAY => GgufValue::Array(read_array(cursor)?),
        10 => GgufValue::U64(cursor.u64()?),
        11 => GgufValue::I64(i64::from_le_bytes(cursor.take()?)),
        12 => GgufValue::F64(f64::from_le_bytes(cursor.take()?)),
        other => return Err(unknown_type(cursor, other)),
    })
}

fn unknown_type(cursor: &Cursor<'_>, kind: u32) -> Error {
    cursor.error(format!("value type {kind} does not exist (0 to 12 do)"), REWRITE)
}

fn boolean(cursor: &Cursor<'_>, byte: u8) -> Result<bool, Error> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(cursor.error(format!("a boolean is 0 or 1, not {other}"), REWRITE)),
    }
}

/// An array: u32 type of its items, u64 count, items.
fn read_array(cursor: &mut Cursor<'_>) -> Result<GgufArray, Error> {
    let (kind, count) = (cursor.u32()?, cursor.u64()?);
    Ok(match kind {
        0 => GgufArray::U8(numbers(cursor, count, u8::from_le_bytes)?),
        1 => GgufArray::I8(numbers(cursor, count, i8::from_le_bytes)?),
        2 => GgufArray::U16(numbers(cursor, count, u16::from_le_bytes)?),
        3 => GgufArray::I16(numbers(cursor, count, i16::from_le_bytes)?),
        4 => GgufArray::U32(numbers(cursor, count, u32::from_le_bytes)?),
        5 => GgufArray::I32(numbers(cursor, count, i32::from_le_bytes)?),
        6 => GgufArray::F32(numbers(cursor, count, f32::from_le_bytes)?),
        BOOL => {
            let bytes = numbers(cursor, count, u8::from_le_bytes)?;
            let values = bytes.into_iter().map(|byte| boolean(cursor, byte));
            GgufArray::Bool(values.collect::<Result<_, _>>()?)
        }
        STRING => {
            cursor.check_count("strings", count, 8)?;
            GgufArray::String((0..count).map(|_| cursor.string()).collect::<Result<_, _>>()?)
        }
        ARRAY => return Err(cursor.error("arrays inside arrays are not allowed", REWRITE)),
        10 => GgufArray::U64(numbers(cursor, count, u64::from_le_bytes)?),
        11 => GgufArray::I64(numbers(cursor, count, i64::from_le_bytes)?),
        12 => GgufArray::F64(numbers(cursor, count, f64::from_le_bytes)?),
        other => return Err(unknown_type(cursor, other)),
    })
}

fn numbers<const N: usize, T>(
    cursor: &mut Cursor<'_>,
    count: u64,
    decode: fn([u8; N]) -> T,
) -> Result<Vec<T>, Error> {
    cursor.check_count("array items", count, N as u64)?;
    let bytes = cursor.bytes(count * N as u64)?;
    Ok(bytes.as_chunks::<N>().0.iter().map(|item| decode(*item)).collect())
}

/// Appends a string as the format stores it.
pub(super) fn write_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Appends a value: u32 type, then its bytes.
pub(super) fn write_value(out: &mut Vec<u8>, value: &GgufValue) {
    let mut scalar = |kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        GgufValue::U8(value) => scalar(0, &value.to_le_bytes()),
        GgufValue::I8(value) => scalar(1, &value.to_le_bytes()),
        GgufValue::U16(value) => scalar(2, &value.to_le_bytes()),
        GgufValue::I16(value) => scalar(3, &value.to_le_bytes()),
        GgufValue::U32(value) => scalar(4, &value.to_le_bytes()),
        GgufValue::I32(value) => scalar(5, &value.to_le_bytes()),
        GgufValue::F32(value) => scalar(6, &value.to_le_bytes()),
        GgufValue::Bool(value) => scalar(BOOL, &[u8::from(*value)]),
        GgufValue::String(text) => {
            scalar(STRING, &[]);
            write_string(out, text);
        }
        GgufValue::Array(array) => {
            scalar(ARRAY, &[]);
            write_array(out, array);
        }
        GgufValue::U64(value) => scalar(10, &value.to_le_bytes()),
        GgufValue::I64(value) => scalar(11, &value.to_le_bytes()),
        GgufValue::F64(value) => scalar(12, &value.to_le_bytes()),
    }
}

fn write_array(out: &mut Vec<u8>, array: &GgufArray) {
    fn items<T>(out: &mut Vec<u8>, kind: u32, values: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
        out.extend(kind.to_le_bytes());
        out.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| write(out, value));
    }
    match array {
        GgufArray::U8(values) => items(out, 0, values, |out, v| out.extend(v.to_le_bytes())),
        GgufArray::I8(values) => items(out, 1, values, |out, v| out.extend(v.to_le_bytes())),
        GgufArray::U16(values) => items(out, 2, values, |out, v| out.extend(v.to_le_bytes())),
        GgufArray::I16(values) => items(out, 3, values, |out, v| out.extend(v.to_le_bytes())),
        GgufArray::U32(values) => items(out, 4, values, |out, v| out.extend(v.to_le_bytes())),
        GgufArray::I32(values) => items(out, 5, values, |out, v| out.extend(v.to_le_bytes())),
        GgufArray::F32(values) => items(out, 6, values, |out, v| out.extend(v.to_le_bytes())),
        GgufArray::Bool(values) => items(out, BOOL, values, |out, v| out.push(u8::from(*v))),
        GgufArray::String(values) => items(out, STRING, values, |out, v| write_string(out, v)),
        GgufArray::U64(values) => items(out, 10, values, |out, v| out.extend(v.to_le_bytes())),
        GgufArray::I64(values) => items(out, 11, values, |out, v| out.extend(v.to_le_bytes())),
        GgufArray::F64(values) => items(out, 12, values, |out, v| out.extend(v.to_le_bytes())),
    }
}
