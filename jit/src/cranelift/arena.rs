//! Code memory below 2 GiB, as `cranelift-jit` allocates from it.
//!
//! A [`JITModule`](cranelift_jit::JITModule) writes code and relocations through the pointers that
//! [`JITMemoryProvider::allocate`] returns. Those are pointers into the writable mapping of the
//! arena; the code runs in the executable one, at the same offset. Distances between two
//! places are the same in both, and all relocations are distances, so nothing is written twice.

use crate::memory::{CodeMemory, LowMemory, reserve_low};
use cranelift_jit::{BranchProtection, JITMemoryKind, JITMemoryProvider};
use cranelift_module::ModuleResult;
use refrain_vm::EngineError;
use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Code memory that is given out from its start to its end, and never taken back.
pub(super) struct Arena {
    code: CodeMemory,
    /// First free byte. Only the module allocates, one function at a time.
    next: AtomicU64,
    /// Field last, since `code` lies in it.
    _memory: LowMemory,
}

impl Arena {
    pub(super) fn new(size: u64) -> Result<Arc<Arena>, EngineError> {
        let memory = reserve_low(size)?;
        let range = memory.range();
        let next = AtomicU64::new(range.start);
        Ok(Arc::new(Arena { code: memory.code(range)?, next, _memory: memory }))
    }

    /// Where code is executed.
    pub(super) fn range(&self) -> Range<u64> {
        self.code.range()
    }

    /// Bytes that are free.
    pub(super) fn room(&self) -> u64 {
        self.range().end - self.next.load(Ordering::Relaxed)
    }

    /// Where code is executed that the module knows by `pointer`.
    pub(super) fn executed(&self, pointer: *const u8) -> u64 {
        self.range().start + (pointer as u64 - self.code.writable(self.range()) as u64)
    }

    fn allocate(&self, size: u64, align: u64) -> Option<*mut u8> {
        let at = self.next.load(Ordering::Relaxed).next_multiple_of(align);
        let end = at.checked_add(size).filter(|&end| end <= self.range().end)?;
        self.next.store(end, Ordering::Relaxed);
        Some(self.code.writable(at..end))
    }
}

/// The memory of a module; the engine keeps another reference, to the end of all code.
pub(super) struct Provider(pub(super) Arc<Arena>);

impl JITMemoryProvider for Provider {
    fn allocate(
        &mut self,
        size: usize,
        align: u64,
        _kind: JITMemoryKind,
    ) -> std::io::Result<*mut u8> {
        let at = self.0.allocate(size as u64, align);
        at.ok_or_else(|| Error::new(ErrorKind::OutOfMemory, "the code memory is full"))
    }

    /// Frees nothing: the memory goes with the arena.
    ///
    /// # Safety
    /// None is needed.
    unsafe fn free_memory(&mut self) {}

    /// Code can be executed from the start on; its addresses are told to nobody before this.
    fn finalize(&mut self, _protection: BranchProtection) -> ModuleResult<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_executed_elsewhere() {
        let mut provider = Provider(Arena::new(4096).expect("there is low memory"));
        let mut allocate = |size, align| provider.allocate(size, align, JITMemoryKind::Executable);
        let (first, second) = (allocate(3, 32).unwrap(), allocate(8, 32).unwrap());
        // SAFETY: the arena has just given out these eight bytes.
        unsafe { second.copy_from_nonoverlapping(b"contents".as_ptr(), 8) };
        let (start, at) = (provider.0.executed(first), provider.0.executed(second));
        assert_eq!((start, at), (provider.0.range().start, start + 32));
        let mut found = [0; 8];
        assert_eq!(crate::memory::read_guest(at, &mut found), 8);
        assert_eq!(&found, b"contents");
    }

    #[test]
    fn no_more_is_given_out_than_there_is() {
        let mut provider = Provider(Arena::new(4096).expect("there is low memory"));
        let room = provider.0.room();
        let mut allocate = |size| provider.allocate(size, 32, JITMemoryKind::Executable);
        assert!(allocate(room as usize - 40).is_ok());
        assert!(allocate(33).is_err());
        assert!(allocate(32).is_ok());
        assert_eq!(provider.0.room(), 0);
    }
}
