//! Where translations lie, by guest address and variant.
//!
//! A block is looked up several times while it and its neighbours are translated, and the tables of a
//! program that executes much code are in no cache. So what is near in the guest's code is near in
//! these tables, and an entry is small: nearly all guest code lies below 4 GiB, as all translated code
//! does.

use super::desc::Variant;
use refrain_trace::fixed::{FixedMap, FixedSet};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from guest addresses.
type ByAddress<K, V> = HashMap<K, V, BuildHasherDefault<Near>>;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Places {
    low: [ByAddress<u32, u32>; Variant::COUNT as usize],
    high: FixedMap<(u64, Variant), u64>,
}

impl Places {
    /// With room for so many places of observed code, so that they are not moved again and again.
    pub(super) fn with_room(places: usize) -> Places {
        let mut all = Places::default();
        all.low[Variant::Observed as usize].reserve(places);
        all
    }

    pub(super) fn get(&self, pc: u64, variant: Variant) -> Option<u64> {
        match u32::try_from(pc) {
            Ok(pc) => self.low[variant as usize].get(&pc).map(|&place| place.into()),
            Err(_) => self.high.get(&(pc, variant)).copied(),
        }
    }

    pub(super) fn contains(&self, pc: u64, variant: Variant) -> bool {
        self.get(pc, variant).is_some()
    }

    pub(super) fn insert(&mut self, pc: u64, variant: Variant, place: u64) {
        match (u32::try_from(pc), u32::try_from(place)) {
            (Ok(pc), Ok(place)) => drop(self.low[variant as usize].insert(pc, place)),
            _ => drop(self.high.insert((pc, variant), place)),
        }
    }

    pub(super) fn remove(&mut self, pc: u64, variant: Variant) -> Option<u64> {
        match u32::try_from(pc) {
            Ok(pc) => self.low[variant as usize].remove(&pc).map(u64::from),
            Err(_) => self.high.remove(&(pc, variant)),
        }
    }

    pub(super) fn clear(&mut self) {
        self.low.iter_mut().for_each(HashMap::clear);
        self.high.clear();
    }
}

/// Blocks that were kept before: the digests of their code.
#[derive(Default)]
pub(super) struct KeptBefore {
    /// The first one at an address; nearly all have no other.
    first: ByAddress<u64, u64>,
    others: FixedSet<(u64, u64)>,
}

impl KeptBefore {
    /// With room for so many.
    pub(super) fn with_room(blocks: usize) -> KeptBefore {
        let mut all = KeptBefore::default();
        all.first.reserve(blocks);
        all
    }

    /// Adds a block; whether it is new.
    pub(super) fn insert(&mut self, pc: u64, digest: u64) -> bool {
        let mut is_new = false;
        let first = *self.first.entry(pc).or_insert_with(|| {
            is_new = true;
            digest
        });
        is_new || first != digest && self.others.insert((pc, digest))
    }
}

/// Hashes addresses so that those of one page are neighbours, in their order. The tables of `std` take
/// the place of an entry from the low bits, and tell entries there apart by the highest seven.
#[derive(Default)]
struct Near(u64);

impl Hasher for Near {
    fn finish(&self) -> u64 {
        const PAGE_SHIFT: u32 = refrain_vm::layout::PAGE.trailing_zeros();
        /// There is seldom more than one block to so many bytes.
        const BYTES: u64 = 8;
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        const TAG: u64 = 0x7f << 57;
        let page = (self.0 >> PAGE_SHIFT).wrapping_mul(FACTOR) >> 32;
        let inside = self.0 % refrain_vm::layout::PAGE / BYTES;
        let place = page * (refrain_vm::layout::PAGE / BYTES) + inside;
        self.0.wrapping_mul(FACTOR) & TAG | place & !TAG
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0 << 8 | u64::from(byte));
    }

    fn write_u32(&mut self, address: u32) {
        self.0 = address.into();
    }

    fn write_u64(&mut self, address: u64) {
        self.0 = address;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_again() {
        const HIGH: u64 = 1 << 40;
        let mut places = Places::with_room(4);
        let all = || (0..5000).map(|n| n * 5).flat_map(|pc| [pc, HIGH + pc]);
        for pc in all() {
            places.insert(pc, Variant::Observed, pc % HIGH + 1);
            places.insert(pc, Variant::Opaque, pc % HIGH + 2);
        }
        for pc in all() {
            assert_eq!(places.get(pc, Variant::Observed), Some(pc % HIGH + 1));
            assert_eq!(places.get(pc, Variant::Opaque), Some(pc % HIGH + 2));
            assert!(!places.contains(pc + 1, Variant::Observed));
            assert!(!places.contains(pc, Variant::Resumed));
        }
        assert_eq!(places.remove(HIGH + 5, Variant::Opaque), Some(7));
        assert_eq!(places.remove(5, Variant::Observed), Some(6));
        assert_eq!(places.remove(5, Variant::Observed), None);
        places.clear();
        assert!(all().all(|pc| !places.contains(pc, Variant::Opaque)));
    }

    #[test]
    fn versions_of_a_block_are_new_once() {
        let mut kept = KeptBefore::with_room(1);
        let new = [(1, 10), (1, 10), (1, 11), (2, 10), (1, 11), (1, 10), (1, 12)];
        let new = new.map(|(pc, digest)| kept.insert(pc, digest));
        assert_eq!(new, [true, false, true, true, false, false, true]);
    }
}
