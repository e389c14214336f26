//! What words held before the first ordered thing happened to them.
//!
//! The recorder reports a load of a word only from the time on that it knows the word to
//! synchronize threads, which is before the first locked instruction on it. So a watched load
//! without an event came before that, and read what the word held until then; in the replay that
//! instruction may have been executed already.

use crate::host::KnownPages;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;
/// Bytes of the aligned words that are kept.
const WORD: u64 = 8;

/// The first values of some bytes of an aligned word.
#[derive(Clone, Copy, Default)]
struct First {
    /// Ones for the bytes that are known. The others belong to something else.
    mask: u64,
    value: u64,
}

/// By address of an aligned word.
type Shard = BTreeMap<u64, First>;

/// See the module's documentation.
pub(crate) struct FirstValues {
    shards: [Mutex<Shard>; SHARDS],
}

impl Default for FirstValues {
    fn default() -> FirstValues {
        FirstValues { shards: [const { Mutex::new(Shard::new()) }; SHARDS] }
    }
}

impl FirstValues {
    /// Keeps what the operand of a locked instruction holds, before the instruction is executed
    /// for the first time. The caller has the turn for it.
    pub(crate) fn keep(&self, address: u64, size: u8, pages: &mut KnownPages) {
        for word in words(address, size) {
            let mask = mask(word, address, size);
            let mut shard = self.shard(word);
            let first = shard.entry(word).or_default();
            let new = mask & !first.mask;
            if new != 0
                && let Some(now) = pages.operand(word, WORD as u8)
            {
                first.mask |= new;
                first.value |= now & new;
            }
        }
    }

    /// What the operand held at first, if it is another's turn that has changed it; `now` is what
    /// was read from memory. (Memory is to be read before this is asked: a locked instruction
    /// that the reading did not see yet may be executed in between, but not the other way round.)
    pub(crate) fn of(&self, address: u64, size: u8, now: u64) -> u64 {
        let mut value = now;
        for word in words(address, size) {
            let Some(&First { mask: known, value: first }) = self.shard(word).get(&word) else {
                continue;
            };
            let known = known & mask(word, address, size);
            value = value & !shifted(known, word, address) | shifted(first & known, word, address);
        }
        value
    }

    fn shard(&self, word: u64) -> MutexGuard<'_, Shard> {
        let index = (word / WORD).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        self.shards[index as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The aligned words of the first eight bytes of an operand.
fn words(address: u64, size: u8) -> impl Iterator<Item = u64> {
    let last = address.saturating_add(u64::from(size.clamp(1, WORD as u8)) - 1);
    (address / WORD..=last / WORD).map(|index| index * WORD)
}

/// Ones for the bytes of the aligned word that belong to the operand.
fn mask(word: u64, address: u64, size: u8) -> u64 {
    let size = u64::from(size.clamp(1, WORD as u8));
    let ones = u64::MAX >> (64 - 8 * size);
    if address >= word { ones << (8 * (address - word)) } else { ones >> (8 * (word - address)) }
}

/// Bytes of the aligned word, where they are in the operand.
fn shifted(bytes: u64, word: u64, address: u64) -> u64 {
    if address >= word { bytes >> (8 * (address - word)) } else { bytes << (8 * (word - address)) }
}

#[cfg(test)]
mod tests {
    use super::FirstValues;
    use crate::host::KnownPages;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn the_first_value_counts() {
        let values = FirstValues::default();
        let mut pages = KnownPages::new();
        let words = Box::new([AtomicU64::new(0x1122_3344_5566_7788), AtomicU64::new(0x99aa_bbcc)]);
        let address = words.as_ptr() as u64;
        assert_eq!(values.of(address, 8, 5), 5, "nothing has happened");
        values.keep(address, 4, &mut pages);
        words[0].store(0, Ordering::SeqCst);
        values.keep(address, 8, &mut pages);
        assert_eq!(values.of(address, 8, 5), 0x5566_7788, "four bytes were kept before");
        assert_eq!(values.of(address + 1, 2, 5), 0x6677);
        assert_eq!(values.of(address + 6, 4, 0x0403_0201), 0x0403_0000, "across the end");
        values.keep(address + 9, 2, &mut pages);
        assert_eq!(values.of(address + 6, 4, 0x0403_0201), 0xbb03_0000);
        assert_eq!(values.of(address + 8, 8, 0x77), 0xaa_bb77);
    }
}
