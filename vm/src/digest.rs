//! Digests of what a system call was asked: compared at every call of a replay.

use crate::host::Guest;
use crate::layout::guest_may_map;
use crate::syscall::Call;
use std::ops::Range;

/// Bytes that are compared of what a call reads at one place. What a guest says that there is may be more
/// than any call reads.
const MOST: u64 = 1 << 20;

/// The digest of a call's arguments and of the guest memory that the kernel is about to read
/// (paths, timeouts; not what the call sends out, which is compared as output).
pub(crate) fn of_call(call: &Call) -> u64 {
    let mut arguments = crc32fast::Hasher::new();
    for argument in call.arguments() {
        arguments.update(&argument.to_le_bytes());
    }
    let mut ranges = call.reads(&Guest);
    for range in &mut ranges {
        range.end = range.end.min(range.start.saturating_add(MOST));
    }
    // What is taken for an address may be a number, which is one of this process's own.
    ranges.retain(guest_may_map);
    let memory = of_ranges(&ranges);
    u64::from(memory) << 32 | u64::from(arguments.finalize())
}

/// CRC-32 of ranges of guest memory, as far as they can be read.
pub(crate) fn of_ranges(ranges: &[Range<u64>]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    parts(ranges).for_each(|part| hasher.update(&part));
    hasher.finalize()
}

/// What these ranges of guest memory hold, as far as they can be read.
pub(crate) fn bytes_of(ranges: &[Range<u64>]) -> Vec<u8> {
    parts(ranges).flatten().collect()
}

fn parts(ranges: &[Range<u64>]) -> impl Iterator<Item = Vec<u8>> {
    ranges.iter().map(|it| Guest.read_prefix(it.start, (it.end - it.start) as usize))
}

/// Bytes that are read at once.
const PIECE: u64 = 1 << 16;

/// A digest of what guest memory holds in these ranges, after a replay in this process: each range up
/// to its first byte that cannot be read.
pub fn memory_digest(ranges: &[Range<u64>]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let wanted = (range.end - at).min(PIECE);
            let bytes = Guest.read_prefix(at, wanted as usize);
            hasher.update(&bytes);
            at += bytes.len() as u64;
            if (bytes.len() as u64) < wanted {
                break;
            }
        }
        hasher.update(&at.to_le_bytes());
    }
    hasher.finalize()
}
