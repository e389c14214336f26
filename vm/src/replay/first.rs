//! What words held before the first ordered thing happened to them.
//!
//! The recorder reports a load of a word only from the time on that it knows the word to
//! synchronize threads, which is before the first locked instruction on it. So a watched load
//! without an event came before that, and read what the word held until then; in the replay that
//! instruction may have been executed already.
//!
//! A thread that has since come past that instruction in recorded time reads what is there: the
//! recorder was not looking out for its load yet.

use crate::host::KnownPages;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;
/// Bytes of the aligned words that are kept.
const WORD: u64 = 8;

/// The first values of some bytes of an aligned word.
#[derive(Clone, Default)]
struct First {
    value: u64,
    /// Ones for bytes that are known, and when the first operation on them ended in the recording.
    /// The other bytes belong to something else.
    known: Vec<(u64, u64)>,
}

impl First {
    /// The bytes that are known and had not been operated on yet at that time.
    fn untouched(&self, at: u64) -> u64 {
        self.known.iter().filter(|&&(_, end)| at < end).fold(0, |mask, &(known, _)| mask | known)
    }
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
    /// for the first time. The caller has the turn for it; in the recording it was done at `end`.
    pub(crate) fn keep(&self, address: u64, size: u8, end: u64, pages: &mut KnownPages) {
        for word in words(address, size) {
            let mask = mask(word, address, size);
            let mut shard = self.shard(word);
            let first = shard.entry(word).or_default();
            let new = mask & !first.untouched(0);
            if new != 0
                && let Some(now) = pages.operand(word, WORD as u8)
            {
                first.known.push((new, end));
                first.value |= now & new;
            }
        }
    }

    /// What the operand held at first, where that was still so at a time of the recording; `now`
    /// is what was read from memory. (Memory is to be read before this is asked: a locked
    /// instruction that the reading did not see yet may be executed in between, but not the other
    /// way round.)
    pub(crate) fn of(&self, address: u64, size: u8, at: u64, now: u64) -> u64 {
        let mut value = now;
        for word in words(address, size) {
            let shard = self.shard(word);
            let Some(first) = shard.get(&word) else { continue };
            let known = first.untouched(at) & mask(word, address, size);
            value = value & !shifted(known, word, address)
                | shifted(first.value & known, word, address);
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

    const END: u64 = 100;
    const BEFORE: u64 = 99;

    #[test]
    fn the_first_value_counts() {
        let values = FirstValues::default();
        let mut pages = KnownPages::new();
        let words = Box::new([AtomicU64::new(0x1122_3344_5566_7788), AtomicU64::new(0x99aa_bbcc)]);
        let address = words.as_ptr() as u64;
        assert_eq!(values.of(address, 8, BEFORE, 5), 5, "nothing has happened");
        values.keep(address, 4, END, &mut pages);
        words[0].store(0, Ordering::SeqCst);
        values.keep(address, 8, END, &mut pages);
        assert_eq!(values.of(address, 8, BEFORE, 5), 0x5566_7788, "four bytes were kept before");
        assert_eq!(values.of(address + 1, 2, BEFORE, 5), 0x6677);
        assert_eq!(values.of(address + 6, 4, BEFORE, 0x0403_0201), 0x0403_0000, "across the end");
        values.keep(address + 9, 2, END, &mut pages);
        assert_eq!(values.of(address + 6, 4, BEFORE, 0x0403_0201), 0xbb03_0000);
        assert_eq!(values.of(address + 8, 8, BEFORE, 0x77), 0xaa_bb77);
    }

    /// Whoever was past the operation in the recording reads the word as it is.
    #[test]
    fn the_first_value_is_over_with_the_first_operation() {
        let values = FirstValues::default();
        let word = Box::new(AtomicU64::new(7));
        let address = &raw const *word as u64;
        values.keep(address, 8, END, &mut KnownPages::new());
        word.store(8, Ordering::SeqCst);
        assert_eq!(values.of(address, 8, BEFORE, 8), 7);
        assert_eq!(values.of(address, 8, END, 8), 8);
    }
}
