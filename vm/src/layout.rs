//! Where things lie in the address space that guest and host share.
//!
//! Guest addresses are host addresses, and a recording must be mappable again at the same
//! addresses in another process. So the guest never gets an address from the kernel: it lives in
//! fixed arenas that Linux gives to nobody on its own (position-independent programs load near
//! 0x55…, libraries and stacks near 0x7f…).
//!
//! All guest code and all translated code lie below 2 GiB. Every guest code address then fits a
//! sign-extended 32-bit immediate, and translated code reaches guest data with the original
//! RIP-relative operands.

use std::ops::Range;

/// Programs that are linked to a fixed address (0x400000 by default).
pub const FIXED_PROGRAM: Range<u64> = 0x1_0000..0x1000_0000;
/// Position-independent programs.
pub const PROGRAM: u64 = 0x1000_0000;
/// The dynamic linker and libraries: file mappings that may hold code.
pub const LIBRARIES: Range<u64> = 0x2000_0000..0x6000_0000;
/// Translated code and its tables: the engine's, the guest may not map here.
pub const CODE_CACHE: Range<u64> = 0x6000_0000..0x7fff_0000;
/// What follows the engines' tables, which lie above translated code, four bytes for each address
/// that may hold guest code. Nothing is put here without being asked for; programs that name a
/// place themselves (a runtime's heap) mostly name one here.
pub const ABOVE_CODE: Range<u64> = 0x4_0000_0000..HEAP.start;
/// The program break.
pub const HEAP: Range<u64> = 0x10_0000_0000..0x30_0000_0000;
/// The main thread's stack: the top of it, and how far it may grow down.
pub const STACK: Range<u64> = 0x0fff_e000_0000..0x0fff_f000_0000;
/// Mappings for which there is no room among the others: databases reserve terabytes.
pub const LARGE_MAPPINGS: Range<u64> = HEAP.end..STACK.start;
/// All other mappings. Programs that name a place themselves name rounder ones.
pub const MAPPINGS: Range<u64> = 0x2000_0000_0000..0x2800_0000_0000;

/// Each byte of guest memory may have a note ([`crate::Seen`]): this far above it. The lower
/// digits keep a byte and its note, which are accessed together, out of the same set of a cache.
pub const NOTES: u64 = 0x2800_0000_8840;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Where the guest may map: below translated code, and above it up to where notes begin.
pub(crate) const ARENAS: [Range<u64>; 2] =
    [FIXED_PROGRAM.start..CODE_CACHE.start, ABOVE_CODE.start..MAPPINGS.end];

/// Whether the whole range lies in one arena of the guest.
pub fn guest_may_map(range: &Range<u64>) -> bool {
    ARENAS.iter().any(|arena| {
        range.start >= arena.start && range.end <= arena.end && range.start < range.end
    })
}
