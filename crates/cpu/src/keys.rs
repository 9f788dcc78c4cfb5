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
#[cfg(target_arch = "x86_64")]
use crate::square::{self, SQUARE, Tile};

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
    #[inline(always)]
    pub(crate) fn write(&self, memory: &mut [u8], side: Side, head: usize, position: usize, x: &[f32]) {
        let memory = &mut memory[self.head(side, head)..];
        match side {
            Side::Keys => {
                let tile = &mut memory[position / PANEL * self.key_tile()..][..self.key_tile()];
                self.write_column(tile, position % PANEL, x);
            }
            Side::Values => {
                let first = self.values_at(position / KEYS, 0);
                let tiles = memory[first..].chunks_exact_mut(self.value_tile());
                for (tile, x) in tiles.zip(x.chunks(PANEL)) {
                    self.write_line(tile, position % KEYS, x);
                }
            }
        }
    }

    /// Puts 32 positions of one head, whole tiles of a bf16 cache, from rows `stride` values apart.
    ///
    /// # Safety
    /// AVX-512 with conversion to bf16 is there; at `x` lie 32 rows of the head's width, a multiple of 32.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub(crate) unsafe fn write_squares(
        &self,
        memory: &mut [u8],
        side: Side,
        head: usize,
        position: usize,
        x: *const f32,
        stride: usize,
    ) {
        let [mut rows, mut tiles] = [[Tile::ZERO; 2]; 2];
        let memory = &mut memory[self.head(side, head)..];
        for square in 0..self.width / SQUARE {
            // SAFETY: by the caller's promise.
            let rows = unsafe { square::of_values(x.add(square * SQUARE), stride, KEYS, SQUARE, &mut rows) };
            let places = match side {
                Side::Keys => {
                    for (rows, tile) in rows.into_iter().zip(&mut tiles) {
                        square::turn(rows, tile);
                    }
                    let first = position / PANEL;
                    [first, first + 1].map(|tile| tile * self.key_tile() + square * size_of::<Tile>())
                }
                Side::Values => {
                    square::pair(rows, &mut tiles);
                    [0, 1].map(|half| self.values_at(position / KEYS, 2 * square + half))
                }
            };
            for (place, tile) in places.into_iter().zip(&mut tiles) {
                memory[place..][..size_of::<Tile>()].copy_from_slice(tile.bytes());
            }
        }
    }

    /// A key: one lane of its tile, every inner position.
    #[inline(always)]
    fn write_column(&self, tile: &mut [u8], lane: usize, x: &[f32]) {
        match self.format {
            CacheFormat::F32 => {
                for (line, x) in tile.as_chunks_mut::<64>().0.iter_mut().zip(x) {
                    line[lane * 4..][..4].copy_from_slice(&x.to_le_bytes());
                }
            }
            CacheFormat::Bf16 => {
                for (line, pair) in tile.as_chunks_mut::<64>().0.iter_mut().zip(x.as_chunks::<2>().0) {
                    let (low, high) = (bf16::encode(pair[0]), bf16::encode(pair[1]));
                    let dword = u32::from(low) | u32::from(high) << 16;
                    line[lane * 4..][..4].copy_from_slice(&dword.to_le_bytes());
                }
            }
            CacheFormat::Int8 => {
                let (mut codes, mut scales) = ([0i8; WIDEST_HEAD], [0u8; WIDEST_HEAD / BLOCK]);
                let blocks = x.len().div_ceil(BLOCK);
                int8_block::encode_row(x, &mut codes[..x.len()], &mut scales[..blocks]);
                let (lines, scale_lines) = tile.split_at_mut(self.width * PANEL);
                for (line, code) in lines.chunks_exact_mut(PANEL).zip(&codes[..x.len()]) {
                    line[lane] = *code as u8;
                }
                for (line, scale) in scale_lines.chunks_exact_mut(PANEL).zip(&scales[..blocks]) {
                    line[lane] = *scale;
                }
            }
        }
    }

    /// Sixteen channels of a value: one inner position of their tile, every lane.
    #[inline(always)]
    fn write_line(&self, tile: &mut [u8], inner: usize, x: &[f32]) {
        match self.format {
            CacheFormat::F32 => {
                for (at, x) in tile[inner * 64..].as_chunks_mut::<4>().0.iter_mut().zip(x) {
                    *at = x.to_le_bytes();
                }
            }
            CacheFormat::Bf16 => {
                let line = &mut tile[inner / 2 * 64..][..64];
                for (at, x) in line.as_chunks_mut::<4>().0.iter_mut().zip(x) {
                    at[inner % 2 * 2..][..2].copy_from_slice(&bf16::encode(*x).to_le_bytes());
                }
            }
            CacheFormat::Int8 => {
                let (mut codes, mut scale) = ([0i8; PANEL], [0u8; 1]);
                int8_block::encode_row(x, &mut codes[..x.len()], &mut scale);
                for (at, code) in tile[inner * PANEL..].iter_mut().zip(&codes[..x.len()]) {
                    *at = *code as u8;
                }
                tile[KEYS * PANEL + inner] = scale[0];
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
