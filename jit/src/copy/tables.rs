//! Lookup tables that translated code reads: from guest addresses to entries.
//!
//! Per [`Variant`] one table for indirect jumps and calls and one for returns. An entry is the
//! address of code that first compares the thread's `target` with the guest address that it was
//! made for and goes to the table's miss exit if they differ, so tables need no keys, an update
//! is one store, and lookups need no lock. Unused entries lead to the miss exit.
//!
//! Returns of observed code have a better table: [`ReturnTable`], with four bytes for each possible
//! return address below the code cache, of which nearly all are in pages never touched. No two
//! addresses share an entry, so nothing is compared. An unused entry is 0; the return to address
//! 0 faults and is dealt with as a miss. Only one engine of a process has it, since no other
//! place can be addressed in one instruction, and only as long as no guest code lies elsewhere.

use super::desc::Variant;
use crate::memory::{LowMemory, TableMemory, reserve_sparse};
use refrain_vm::EngineError;
use refrain_vm::layout::{CODE_CACHE, FIXED_PROGRAM, PAGE};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Entries of one table.
const ENTRIES: u64 = 1 << 16;

/// Bytes of all tables.
pub(super) const BYTES: u64 = 2 * Variant::COUNT * ENTRIES * 8;

/// The two kinds of tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// Jumps, calls and first entries.
    Jump,
    /// Returns.
    Return,
}

/// All tables of an engine, at the start of its memory.
pub(super) struct Tables {
    memory: LowMemory,
    words: TableMemory,
}

impl Tables {
    /// Tables in the first [`BYTES`] bytes of `memory`.
    pub(super) fn new(memory: LowMemory) -> Result<Tables, EngineError> {
        let start = memory.range().start;
        let words = memory.table(start..start + BYTES)?;
        Ok(Tables { memory, words })
    }

    /// In a child process: empty tables of its own.
    pub(super) fn renew(&mut self) -> std::io::Result<()> {
        self.words.renew()
    }

    /// The memory, for code that lies behind the tables.
    pub(super) fn memory(&self) -> &LowMemory {
        &self.memory
    }

    /// Address of a table, as a displacement in code.
    pub(super) fn address(&self, which: Use, variant: Variant) -> u32 {
        let index = variant as u64 + if which == Use::Return { Variant::COUNT } else { 0 };
        (self.memory.range().start + index * ENTRIES * 8) as u32
    }

    /// Makes `pc` lead to `entry`.
    pub(super) fn set(&self, which: Use, variant: Variant, pc: u64, entry: u64) {
        self.words.word(self.slot(which, variant, pc)).store(entry, Ordering::Release);
    }

    /// Makes every entry of a table lead to `miss`.
    pub(super) fn reset(&self, which: Use, variant: Variant, miss: u64) {
        let start = u64::from(self.address(which, variant));
        self.words.prepare(start..start + ENTRIES * 8);
        for index in 0..ENTRIES {
            self.words.word(start + index * 8).store(miss, Ordering::Release);
        }
    }

    fn slot(&self, which: Use, variant: Variant, pc: u64) -> u64 {
        let index = match which {
            Use::Jump => jump_index(pc),
            Use::Return => pc & 0xffff,
        };
        u64::from(self.address(which, variant)) + index * 8
    }
}

/// See the module's documentation.
pub(super) struct ReturnTable {
    _memory: LowMemory,
    words: TableMemory,
    used: Vec<u64>,
}

impl ReturnTable {
    /// Where the entry of address 0 would be: the highest page that a displacement reaches.
    pub(super) const BASE: u32 = 0x7fff_f000;
    /// Return addresses that it has entries for.
    const COVERED: Range<u64> = FIXED_PROGRAM.start..CODE_CACHE.start;

    /// The table, unless another engine has it.
    pub(super) fn new() -> Option<ReturnTable> {
        let memory = reserve_sparse(slot(Self::COVERED.start)..slot(Self::COVERED.end))?;
        let words = memory.table(memory.range()).ok()?;
        Some(ReturnTable { _memory: memory, words, used: Vec::new() })
    }

    /// In a child process: an empty table of its own.
    pub(super) fn renew(mut self) -> Option<ReturnTable> {
        self.used.clear();
        self.words.renew().ok()?;
        Some(self)
    }

    /// Whether a return address has an entry.
    pub(super) fn covers(pc: u64) -> bool {
        Self::COVERED.contains(&pc)
    }

    /// Makes returns to `pc` lead to `entry`.
    pub(super) fn set(&mut self, pc: u64, entry: u64) {
        if Self::covers(pc) {
            self.used.push(pc);
            // Translated code lies below 2 GiB.
            self.words.half(slot(pc)).store(entry as u32, Ordering::Release);
        }
    }

    /// Forgets all entries.
    pub(super) fn reset(&mut self) {
        for pc in self.used.drain(..) {
            self.words.half(slot(pc)).store(0, Ordering::Release);
        }
    }
}

/// Address of a return address's entry.
fn slot(pc: u64) -> u64 {
    u64::from(ReturnTable::BASE) + pc * 4
}

/// One part of so many of an engine's memory for code is for descriptors: programs need a little less.
pub(super) const DESCRIPTORS_SHARE: u64 = 3;

/// What lies behind the tables: the range for code, and that for descriptors of its exits.
pub(super) fn behind_tables(memory: &LowMemory) -> [Range<u64>; 2] {
    let Range { start, end } = memory.range();
    let start = start + BYTES;
    let middle = end - ((end - start) / DESCRIPTORS_SHARE).next_multiple_of(PAGE);
    [start..middle, middle..end]
}

/// What `crc32 ecx, ch; movzx ecx, cx` makes of `pc`. Functions start at multiples of 16, so the
/// low bits alone would use few entries.
pub(super) fn jump_index(pc: u64) -> u64 {
    let crc = pc as u32;
    u64::from((crc >> 8 ^ CRC32C[((crc ^ crc >> 8) & 0xff) as usize]) & 0xffff)
}

/// One step of the Castagnoli polynomial, as the `crc32` instruction does it.
const CRC32C: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 != 0 { 0x82f6_3b78 } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};
