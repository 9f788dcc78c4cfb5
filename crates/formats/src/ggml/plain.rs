//! The types without blocks: F32, F16, BF16.

/// Little-endian f32.
pub(super) fn f32(bytes: &[u8], out: &mut [f32]) {
    for (value, raw) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(*raw);
    }
}

/// Little-endian f16.
pub(super) fn f16(bytes: &[u8], out: &mut [f32]) {
    for (value, raw) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = crate::f16::decode(u16::from_le_bytes(*raw));
    }
}

/// Little-endian bf16.
pub(super) fn bf16(bytes: &[u8], out: &mut [f32]) {
    for (value, raw) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = crate::bf16::decode(u16::from_le_bytes(*raw));
    }
}
