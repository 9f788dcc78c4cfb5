//! The cache's layout: keys and values as panels of 16 lanes, like weights.
//!
//! Of one head, keys come as tiles of 16 keys (lanes) by the padded head (inner), values as
//! tiles of 16 channels (lanes) by 32 keys (inner):
//!
//! | format | tile of `inner` by 16 lanes |
//! |---|---|
//! | f32 | `[inner][16]` |
//! | bf16 | `[inner / 2][16][2]`, the AMX tile as it is |
//! | int8 | `[inner][16]` codes, then E8M0 scales: keys `[inner / 16][16]`, values `[32 keys]` |

use halfbyte_formats::{bf16, int8_block};
use halfbyte_ops::tensor::{BLOCK, KEYS, PANEL, WIDEST_HEAD};
use halfbyte_ops::{Cache, CacheFormat};

use crate::panel::{decode_bf16, power};

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Keys,
    Values,
}

/// Where the tiles of a cache lie.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    pub(crate) format: CacheFormat,
    /// Padded width of a head.
    pub(crate) width: usize,
    kv_heads: usize,
    capacity: usize,
}

impl Tiles {
    pub(crate) fn new(cache: &Cache) -> Tiles {
        Tiles {
            format: cache.format,
            width: Cache::padded_head(cache.head_dim),
            kv_heads: cache.kv_heads,
            capacity: cache.capacity,
        }
    }

    /// Bytes of a tile of keys: 16 keys.
    pub(crate) fn key_tile(&self) -> usize {
        self.format.bytes(self.width * PANEL)
    }

    /// Bytes of a tile of values: 32 keys by 16 channels.
    pub(crate) fn value_tile(&self) -> usize {
        self.format.bytes(KEYS * PANEL)
    }

    /// Byte offset of a head's keys or values.
    pub(crate) fn head(&self, side: Side, head: usize) -> usize {
        let bytes = self.format.bytes(self.width * self.capacity);
        let heads = if side == Side::Keys { head } else { self.kv_heads + head };
        heads * bytes
    }

    /// Byte offset of a tile of values inside its head.
    pub(crate) fn values_at(&self, key_tile: usize, channel_tile: usize) -> usize {
        (key_tile * (self.width / PANEL) + channel_tile) * self.value_tile()
    }

    /// Puts one position of one head.
    pub(crate) fn write(&self, memory: &mut [u8], side: Side, head: usize, position: usize, x: &[f32]) {
        let mut codes = [0i8; WIDEST_HEAD];
        let mut scales = [0u8; WIDEST_HEAD / BLOCK];
        if self.format == CacheFormat::Int8 {
            int8_block::encode_row(x, &mut codes[..x.len()], &mut scales[..x.len().div_ceil(BLOCK)]);
        }
        let memory = &mut memory[self.head(side, head)..];
        for (c, &x) in x.iter().enumerate() {
            let (tile, bytes, inner, lane) = match side {
                Side::Keys => (position / PANEL * self.key_tile(), self.key_tile(), c, position % PANEL),
                Side::Values => {
                    let at = self.values_at(position / KEYS, c / PANEL);
                    (at, self.value_tile(), position % KEYS, c % PANEL)
                }
            };
            let tile = &mut memory[tile..][..bytes];
            match self.format {
                CacheFormat::F32 => tile[(inner * PANEL + lane) * 4..][..4].copy_from_slice(&x.to_le_bytes()),
                CacheFormat::Bf16 => {
                    let at = (inner / 2 * PANEL + lane) * 4 + inner % 2 * 2;
                    tile[at..][..2].copy_from_slice(&bf16::encode(x).to_le_bytes());
                }
                CacheFormat::Int8 => {
                    tile[inner * PANEL + lane] = codes[c] as u8;
                    let scale = match side {
                        Side::Keys => self.width * PANEL + inner / BLOCK * PANEL + lane,
                        Side::Values => KEYS * PANEL + inner,
                    };
                    tile[scale] = scales[c / BLOCK];
                }
            }
        }
    }

    /// Decodes 32 inner positions from `first` on.
    #[inline(always)]
    pub(crate) fn decode(&self, side: Side, tile: &[u8], first: usize, out: &mut [[f32; PANEL]; 32]) {
        match self.format {
            CacheFormat::F32 => {
                let values = tile[first * PANEL * 4..].as_chunks::<4>().0;
                for (out, bytes) in out.as_flattened_mut().iter_mut().zip(values) {
                    *out = f32::from_le_bytes(*bytes);
                }
            }
            CacheFormat::Bf16 => decode_bf16(&tile[first * PANEL * 2..][..32 * PANEL * 2], out),
            CacheFormat::Int8 => {
                let (codes, scales) = match side {
                    Side::Keys => tile.split_at(self.width * PANEL),
                    Side::Values => tile.split_at(KEYS * PANEL),
                };
                let (codes, _) = codes[first * PANEL..].as_chunks::<PANEL>();
                for (i, (out, codes)) in out.iter_mut().zip(codes).enumerate() {
                    let inner = first + i;
                    match side {
                        Side::Keys => {
                            let scales = &scales[inner / BLOCK * PANEL..][..PANEL];
                            for lane in 0..PANEL {
                                out[lane] = f32::from(codes[lane] as i8) * power(scales[lane]);
                            }
                        }
                        Side::Values => {
                            let scale = power(scales[inner]);
                            for lane in 0..PANEL {
                                out[lane] = f32::from(codes[lane] as i8) * scale;
                            }
                        }
                    }
                }
            }
        }
    }
}
