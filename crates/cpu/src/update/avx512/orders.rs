//! Orders of bytes that shuffles put into another register. The compiler does not know them: of what it knows it makes
//! shuffles of two registers, which take three instructions of the processor where these take one.

use std::arch::x86_64::*;

/// One for each quarter of a register, four times.
#[repr(align(64))]
struct Order([[u8; 16]; 4]);

impl Order {
    const fn new(quarter: [u8; 16]) -> Order {
        Order([quarter; 4])
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn register(&self) -> __m512i {
        // SAFETY: as many bytes, of any bits.
        unsafe { _mm512_load_si512(self.0.as_ptr().cast()) }
    }
}

/// All of them.
pub(super) struct Orders {
    luck: [Order; 3],
    halves: Order,
    words: [Order; 2],
    other: Order,
}

static ORDERS: Orders = Orders {
    luck: [luck(1), luck(2), luck(3)],
    halves: Order::new([2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13]),
    words: [
        Order::new([0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13]),
        Order::new([2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15]),
    ],
    other: Order::new([1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14]),
};

/// Two bytes of a dword from this one on, in its lower half.
const fn luck(first: u8) -> Order {
    let (mut order, mut i) = ([0; 16], 0);
    while i < 16 {
        order[i] = (i as u8 & 12) + (first + i as u8 % 4) % 4;
        i += 1;
    }
    Order::new(order)
}

/// Bytes with an even number, the lower ones of words.
pub(super) const LOWER: u64 = 0x5555_5555_5555_5555;
/// The others.
pub(super) const UPPER: u64 = !LOWER;
/// Lower halves of dwords.
const LOWER_HALVES: u64 = 0x3333_3333_3333_3333;

impl Orders {
    pub(super) fn new() -> &'static Orders {
        std::hint::black_box(&ORDERS)
    }

    /// Bytes `I` and `I + 1` of dwords, from 1 on and the first behind the last, in the lower halves of others.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn two_bytes<const I: usize>(&self, of: __m512i, beside: __m512i) -> __m512i {
        _mm512_mask_shuffle_epi8(beside, LOWER_HALVES, of, self.luck[I - 1].register())
    }

    /// The upper halves of dwords below those of others.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn upper_halves(&self, low: __m512i, high: __m512i) -> __m512i {
        _mm512_mask_shuffle_epi8(high, LOWER_HALVES, low, self.halves.register())
    }

    /// Two bytes of each dword, the first two or the last two, into words: their [`LOWER`] bytes or their [`UPPER`] ones. The
    /// other bytes are those of `beside`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn spread<const LAST: bool>(&self, bytes: __m512i, to: u64, beside: __m512i) -> __m512i {
        _mm512_mask_shuffle_epi8(beside, to, bytes, self.words[LAST as usize].register())
    }

    /// The lower bytes of two pairs of columns, 0 2 and 1 3, in the order of the columns.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn low_bytes(&self, even: __m512i, odd: __m512i) -> __m512i {
        _mm512_mask_shuffle_epi8(even, UPPER, odd, self.other.register())
    }
}
