//! The filter of watched loads: whether a word may be one that synchronizes threads.
//!
//! A byte for each value of some bits of an aligned eight-byte word's address. Other words share
//! it; the machine tells them apart.

/// What of an address does not count: the place in its aligned eight bytes.
pub(super) const SHIFT: i64 = 3;
/// Number of bytes less one.
pub(super) const MASK: i64 = (1 << 20) - 1;

/// Bytes of the longest load that is watched.
const LONGEST: u64 = 8;

/// The table.
pub(super) struct Words(Box<[u8]>);

impl Words {
    /// A table that knows these words, by first byte and size.
    pub(super) fn new<'a>(words: impl Iterator<Item = &'a (u64, u8)>) -> Words {
        let mut table = vec![0; MASK as usize + 1].into_boxed_slice();
        for &(address, size) in words {
            let first = address.wrapping_sub(LONGEST - 1) >> SHIFT;
            let last = address.wrapping_add(u64::from(size.max(1)) - 1) >> SHIFT;
            for index in 0..=last.wrapping_sub(first).min(3) {
                table[(first.wrapping_add(index) & MASK as u64) as usize] = 1;
            }
        }
        Words(table)
    }

    /// Address of the table. It stays there.
    pub(super) fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::{MASK, SHIFT, Words};

    #[test]
    fn every_overlapping_load_is_known() {
        let words = Words::new([(0x1234_5674, 4), (0x2000, 16)].iter());
        let known = |address: u64| words.0[(address >> SHIFT & MASK as u64) as usize] == 1;
        for address in (0x1234_566d..0x1234_5678).chain(0x1ff9..0x2010) {
            assert!(known(address), "{address:#x}");
        }
        assert!(!known(0x1234_5660) && !known(0x1234_5678) && !known(0x2010));
    }
}
