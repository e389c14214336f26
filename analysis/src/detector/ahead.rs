//! The C library's functions on strings read whole vectors: beyond the end of what they look through,
//! and before its beginning.
//!
//! Such a read counts where it is meant: in the live block that it begins in, or else ends in, and in a
//! freed one only if it begins there. The vectors behind it may lie wholly in a block that is freed;
//! those do not count, unless the first one did. What reads a freed block only behind what it has read of
//! a live one is not seen.

use super::Watcher;
use crate::cell::WRITE;
use crate::findings::Whole;
use refrain_trace::Access;
use std::ops::Range;

/// Vectors are so large at least.
pub(super) const VECTOR: u64 = 16;
/// So far ahead of the last vector begin others that are read without a look at it.
const GROUP: u64 = 3 * 64;

/// What a thread reads vector by vector.
#[derive(Default)]
pub(crate) struct Scan {
    read: Range<u64>,
    /// The block that it has come from, if any. The block may be freed meanwhile.
    block: Range<u64>,
}

impl Watcher {
    /// What a read is meant to be, if anything.
    pub(super) fn meant(&mut self, access: &Access) -> Option<Whole> {
        let (address, size) = (access.address, u64::from(access.size));
        let whole = Whole { address, size };
        let is_vector = size >= VECTOR && access.kind as u8 & WRITE == 0;
        let code = self.detector.relation.code().filter(|_| is_vector);
        if !code.is_some_and(|code| code.is_silent(access.pc.into())) {
            return Some(whole);
        }
        let end = address.saturating_add(size);
        let Scan { read, block } = &mut self.scan;
        let goes_on = (read.start..=read.end.saturating_add(GROUP)).contains(&address);
        *read = if goes_on { read.start..read.end.max(end) } else { address..end };
        if block.start <= address && end <= block.end {
            return Some(whole);
        }
        let heap = &self.detector.heap;
        let Some(live) = heap.live_at(address).or_else(|| heap.live_at(end - 1)) else {
            if !goes_on {
                *block = 0..0;
            }
            return match [address, end - 1].map(|at| heap.freed_at(at)) {
                [None, None] => Some(whole),
                [None, Some(freed)] => Some(Whole { address, size: freed.start - address }),
                [Some(_), _] => block.is_empty().then_some(whole),
            };
        };
        *block = live;
        let meant = address.max(block.start)..end.min(block.end);
        Some(Whole { address: meant.start, size: meant.end - meant.start })
    }
}
