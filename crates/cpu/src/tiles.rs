//! AMX: eight tiles of 16 rows of 64 bytes. TDPBF16PS adds to a 16x16 f32 tile the product of
//! 16 rows of 32 bf16 with 16 columns of 32 bf16 (pairs side by side), in the order that
//! `ops::dot` writes down. By `asm!`, because the intrinsics are not stable.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Rows and columns of a tile of sums.
pub(crate) const SIDE: usize = 16;
/// Bytes of a tile.
pub(crate) const BYTES: usize = 1024;

/// A 16x16 tile of sums.
type Sums = [[f32; SIDE]; SIDE];

/// Two by two tiles of sums. Aligned: a row is then one line of the cache.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Block(pub(crate) [[Sums; 2]; 2]);

#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Whether the chip has bf16 tiles and the kernel lets us use them. Asks once.
pub(crate) fn available() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let (tile, bf16) = (1 << 24, 1 << 22);
        let leaf = __cpuid_count(7, 0);
        leaf.edx & tile != 0 && leaf.edx & bf16 != 0 && crate::system::permit_tiles()
    })
}

/// The right to use tiles on this thread until it is dropped.
pub(crate) struct Session(());

/// Four tiles of sums, from how they start.
macro_rules! two_by_two {
    (($a:ident, $second:ident, $b:ident, $groups:ident, $sums:ident), $($start:literal,)*) => {
        // SAFETY: reads and writes what the caller vouched for.
        unsafe {
            asm!(
                $($start,)*
                "2:",
                "tileloadd tmm4, [{a} + {line}*1]",
                "tileloaddt1 tmm6, [{b} + {line}*1]",
                "tileloaddt1 tmm7, [{b} + {line}*1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a2} + {line}*1]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 1024", "add {a2}, 1024", "add {b}, 2048",
                "dec {groups}",
                "jnz 2b",
                "tilestored [{c} + {line}*1], tmm0",
                "tilestored [{c} + {line}*1 + 1024], tmm1",
                "tilestored [{c} + {line}*1 + 2048], tmm2",
                "tilestored [{c} + {line}*1 + 3072], tmm3",
                a = inout(reg) $a => _,
                a2 = inout(reg) $a.add($second) => _,
                b = inout(reg) $b => _,
                groups = inout(reg) $groups => _,
                line = in(reg) 64usize,
                c = in(reg) $sums,
                options(nostack),
            );
        }
    };
}

impl Session {
    /// # Safety
    /// [`available`] said yes.
    pub(crate) unsafe fn new() -> Session {
        // SAFETY: reads the 64 bytes of CONFIG; nothing else in the process uses tiles.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly)) };
        Session(())
    }

    /// sums[i][j] = rows 16 i.. of a times columns of b's tile j, over `groups` of 32. B passes
    /// by (T1), so that a stays in the first-level cache for the next b.
    ///
    /// # Safety
    /// `a` has `groups` tiles, and as many `second` bytes later; `b` has `groups` times two tiles.
    pub(crate) unsafe fn product_2x2(
        &self,
        a: *const u8,
        second: usize,
        b: *const u8,
        groups: usize,
        sums: &mut Block,
    ) {
        two_by_two!(
            (a, second, b, groups, sums),
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
        );
    }

    /// As `product_2x2`, added to the sums.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn add_2x2(
        &self,
        a: *const u8,
        second: usize,
        b: *const u8,
        groups: usize,
        sums: &mut Block,
    ) {
        two_by_two!(
            (a, second, b, groups, sums),
            "tileloadd tmm0, [{c} + {line}*1]",
            "tileloadd tmm1, [{c} + {line}*1 + 1024]",
            "tileloadd tmm2, [{c} + {line}*1 + 2048]",
            "tileloadd tmm3, [{c} + {line}*1 + 3072]",
        );
    }

    /// Four empty sums, for the steps that follow.
    ///
    /// # Safety
    /// None beyond the session's own.
    pub(crate) unsafe fn clear(&self) {
        // SAFETY: tiles of this session.
        unsafe {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        }
    }

    /// One group of `product_2x2`, added to the sums in the tiles. The core's other units have
    /// nothing to do with it: what stands between two steps is computed at the same time.
    ///
    /// # Safety
    /// A tile at `a` and at `a2`, two at `b`.
    #[inline(always)]
    pub(crate) unsafe fn step_2x2(&self, a: *const u8, a2: *const u8, b: *const u8) {
        // SAFETY: reads what the caller vouched for.
        unsafe {
            asm!(
                "tileloadd tmm4, [{a} + {line}*1]",
                "tileloaddt1 tmm6, [{b} + {line}*1]",
                "tileloadd tmm5, [{a2} + {line}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloaddt1 tmm7, [{b} + {line}*1 + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                a = in(reg) a,
                a2 = in(reg) a2,
                b = in(reg) b,
                line = in(reg) 64usize,
                options(nostack, readonly),
            );
        }
    }

    /// As `step_2x2` for the first 16 rows.
    ///
    /// # Safety
    /// A tile at `a`, two at `b`.
    #[inline(always)]
    pub(crate) unsafe fn step_1x2(&self, a: *const u8, b: *const u8) {
        // SAFETY: reads what the caller vouched for.
        unsafe {
            asm!(
                "tileloadd tmm4, [{a} + {line}*1]",
                "tileloaddt1 tmm6, [{b} + {line}*1]",
                "tileloaddt1 tmm7, [{b} + {line}*1 + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                a = in(reg) a,
                b = in(reg) b,
                line = in(reg) 64usize,
                options(nostack, readonly),
            );
        }
    }

    /// The sums of the steps since `clear`.
    ///
    /// # Safety
    /// None beyond the session's own.
    pub(crate) unsafe fn store(&self, sums: &mut Block) {
        // SAFETY: writes the four tiles of `sums`.
        unsafe {
            asm!(
                "tilestored [{c} + {line}*1], tmm0",
                "tilestored [{c} + {line}*1 + 1024], tmm1",
                "tilestored [{c} + {line}*1 + 2048], tmm2",
                "tilestored [{c} + {line}*1 + 3072], tmm3",
                c = in(reg) sums,
                line = in(reg) 64usize,
                options(nostack),
            );
        }
    }

    /// Four tiles of sums side by side, in rows of `out_stride` bytes: 16 rows of a times four
    /// columns of tiles of b, `tile_step` bytes apart, whose groups lie `group_step` bytes apart.
    /// Four, because a product waits for the one before it on the same tile.
    ///
    /// # Safety
    /// `a` has 16 rows of `stride` bytes with 64 `groups` bytes each, `b` has `groups` times four
    /// tiles, `out` has 16 rows of 256 bytes.
    #[allow(clippy::too_many_arguments)] // three matrices, each with its steps
    pub(crate) unsafe fn product_1x4(
        &self,
        a: *const u16,
        stride: usize,
        b: *const u8,
        tile_step: usize,
        group_step: usize,
        groups: usize,
        out: *mut f32,
        out_stride: usize,
    ) {
        // SAFETY: reads and writes what the caller vouched for.
        unsafe {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{a} + {stride}*1]",
                "mov {at}, {b}",
                "tileloaddt1 tmm6, [{at} + {line}*1]",
                "add {at}, {tile_step}",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloaddt1 tmm7, [{at} + {line}*1]",
                "add {at}, {tile_step}",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloaddt1 tmm6, [{at} + {line}*1]",
                "add {at}, {tile_step}",
                "tdpbf16ps tmm2, tmm4, tmm6",
                "tileloaddt1 tmm7, [{at} + {line}*1]",
                "tdpbf16ps tmm3, tmm4, tmm7",
                "add {a}, 64", "add {b}, {group_step}",
                "dec {groups}",
                "jnz 2b",
                "tilestored [{c} + {out_stride}*1], tmm0",
                "tilestored [{c} + {out_stride}*1 + 64], tmm1",
                "tilestored [{c} + {out_stride}*1 + 128], tmm2",
                "tilestored [{c} + {out_stride}*1 + 192], tmm3",
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                at = out(reg) _,
                tile_step = in(reg) tile_step,
                group_step = in(reg) group_step,
                groups = inout(reg) groups => _,
                stride = in(reg) stride,
                line = in(reg) 64usize,
                c = in(reg) out,
                out_stride = in(reg) out_stride,
                options(nostack),
            );
        }
    }

    /// As `product_1x4` for one column of tiles.
    ///
    /// # Safety
    /// As there; `out` has 16 rows of 64 bytes.
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn product_1x1(
        &self,
        a: *const u16,
        stride: usize,
        b: *const u8,
        group_step: usize,
        groups: usize,
        out: *mut f32,
        out_stride: usize,
    ) {
        // SAFETY: reads and writes what the caller vouched for.
        unsafe {
            asm!(
                "tilezero tmm0",
                "2:",
                "tileloadd tmm4, [{a} + {stride}*1]",
                "tileloaddt1 tmm6, [{b} + {line}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "add {a}, 64", "add {b}, {group_step}",
                "dec {groups}",
                "jnz 2b",
                "tilestored [{c} + {out_stride}*1], tmm0",
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                group_step = in(reg) group_step,
                groups = inout(reg) groups => _,
                stride = in(reg) stride,
                line = in(reg) 64usize,
                c = in(reg) out,
                out_stride = in(reg) out_stride,
                options(nostack),
            );
        }
    }

    /// Loads and multiplies tiles from the first-level cache, to measure how fast that goes.
    ///
    /// # Safety
    /// None beyond the session's own.
    pub(crate) unsafe fn spin(&self, steps: usize) {
        let memory = [0u8; 4 * BYTES + 64];
        // SAFETY: reads four tiles of `memory`.
        unsafe {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{m} + {line}*1]",
                "tileloadd tmm6, [{m} + {line}*1 + 1024]",
                "tileloadd tmm7, [{m} + {line}*1 + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{m} + {line}*1 + 3072]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {steps}",
                "jnz 2b",
                m = in(reg) memory.as_ptr().add(memory.as_ptr().align_offset(64)),
                steps = inout(reg) steps => _,
                line = in(reg) 64usize,
                options(nostack, readonly),
            );
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: gives the tiles back; the thread's next session configures them anew.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
