//! Which threads have been where: notes on guest memory that keep repetitions out of the log.
//!
//! Outside of critical sections the ranking asks of an access only whether the thread has touched
//! the byte at all, and nearly all accesses are to bytes that it has. So each byte of guest memory
//! has a note, a byte with a bit per thread, at a fixed distance ([`crate::layout::NOTES`]).
//! Translated code looks there before it logs; a thread whose bit is set in all notes of the
//! access does not log it, and one that logs sets its bit.
//!
//! # Invariant
//! If a thread finds its bit set, it has logged the byte before: only the thread itself sets its
//! bit where it was not, just when it logs. No synchronization is needed for that. A note that
//! two threads write at once may lose a bit, and the byte is logged once more.
//!
//! Notes have room for seven threads; the eighth bit is never set. The ones that log most get a bit
//! (see [`Seen::claim`]); others log every access, as all do while they ask for repetitions.

use crate::context::SeenWords;
use crate::layout::{FIXED_PROGRAM, MAPPINGS, NOTES};
use crate::memory::{page_down, page_up};
use crate::{Error, Result};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// The same in each byte.
const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
/// Threads that notes can tell apart.
const THREADS: u32 = 7;
/// In no note.
const NEVER: u8 = 1 << THREADS;

/// The notes of a process. There is one set of them, at a fixed place.
#[derive(Debug)]
pub struct Seen {
    claimed: AtomicU32,
}

impl Seen {
    /// Makes notes that are empty; those that there were are gone. Fails where the kernel does
    /// not give away address space freely.
    pub fn new() -> Result<Seen> {
        let start = page_down(FIXED_PROGRAM.start + NOTES);
        let len = page_up(MAPPINGS.end + NOTES) - start;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: above the guest's arenas and below what Linux gives out, there is nothing but
        // notes, and no reference to a note exists: only translated code reads and writes them.
        let notes =
            unsafe { libc::mmap(start as *mut libc::c_void, len as usize, prot, flags, -1, 0) };
        if notes == libc::MAP_FAILED {
            return Err(Error::host("mapping notes")(io::Error::last_os_error()));
        }
        Ok(Seen { claimed: AtomicU32::new(0) })
    }

    /// A bit for a thread that has none, as long as there are any. Bits are never given back:
    /// notes would have to be searched for them.
    pub fn claim(&self) -> Option<u8> {
        let free = |n: u32| (n < THREADS).then_some(n + 1);
        self.claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok().map(|n| 1 << n)
    }
}

impl SeenWords {
    /// For a thread with this bit: whether it logs repetitions too.
    pub fn new(bit: Option<u8>, repeats: bool) -> SeenWords {
        let want = bit.filter(|_| !repeats).unwrap_or(NEVER);
        let want = u64::from(want) * EACH_BYTE;
        let add = u64::from(bit.unwrap_or(0)) * EACH_BYTE;
        SeenWords { byte: want & 0xff, pair: want & 0xffff, word: want, add }
    }

    /// Whether the thread logs repetitions.
    pub fn repeats(&self) -> bool {
        self.byte == u64::from(NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(words: SeenWords, note: u8) -> bool {
        words.byte & !u64::from(note) != 0
    }

    #[test]
    fn threads_log_what_is_new_to_them() {
        let seen = Seen { claimed: AtomicU32::new(0) };
        let bits: Vec<u8> = std::iter::from_fn(|| seen.claim()).collect();
        assert_eq!(bits, [1, 2, 4, 8, 16, 32, 64]);
        for note in 0..NEVER {
            for bit in bits.iter().copied() {
                assert_eq!(logs(SeenWords::new(Some(bit), false), note), note & bit == 0);
                assert!(logs(SeenWords::new(Some(bit), true), note));
            }
            assert!(logs(SeenWords::new(None, false), note));
            assert!(logs(SeenWords::new(None, true), note));
        }
    }
}
