//! Where translated code for a guest address is: one 32-bit word per address.
//!
//! Guest code and translated code lie below 2 GiB, so that a flat table does: an indirect branch
//! costs one load. The table is reserved address space, of which only the pages get memory where
//! there is code.

use refrain_vm::Pages;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// The table of an engine.
pub(super) struct Table {
    pcs: Range<u64>,
    words: Pages,
}

impl Table {
    /// A table for guest addresses in `pcs`.
    pub(super) fn new(pcs: Range<u64>) -> std::io::Result<Table> {
        let len = ((pcs.end - pcs.start) as usize * 4).max(4096);
        Ok(Table { pcs, words: Pages::new(len)? })
    }

    /// Address of the word for the first guest address.
    pub(super) fn address(&self) -> u64 {
        self.words.start().as_ptr() as u64
    }

    /// The guest addresses that it covers.
    pub(super) fn pcs(&self) -> Range<u64> {
        self.pcs.clone()
    }

    /// Host address of the code for `pc`, or 0.
    pub(super) fn get(&self, pc: u64) -> u32 {
        self.word(pc).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Publishes code for `pc`.
    pub(super) fn set(&self, pc: u64, host: u32) {
        self.word(pc)
            .expect("the table was made for all known addresses")
            .store(host, Ordering::Release);
    }

    fn word(&self, pc: u64) -> Option<&AtomicU32> {
        let index = self.pcs.contains(&pc).then(|| (pc - self.pcs.start) as usize)?;
        // SAFETY: the mapping has four bytes per address of `pcs` and lives as long as `self`;
        // Rust and translated code access its words atomically.
        Some(unsafe { self.words.start().cast::<AtomicU32>().add(index).as_ref() })
    }
}
