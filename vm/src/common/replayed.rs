//! The replayer's side: there is the view alone.

use super::Area;
use crate::host::Guest;
use crate::memory::{self, MapRequest};
use crate::{Error, Result};
use refrain_trace::payload::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a replay knows of such memory.
#[derive(Default)]
pub(crate) struct Common {
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) areas: Vec<Area>,
    pub(crate) revealed: bool,
}

impl Common {
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_any(&self, any: bool) {
        self.any.store(any, Ordering::Relaxed);
    }

    /// Whether any of these bytes are in such memory.
    pub(crate) fn meets(&self, range: &Range<u64>) -> bool {
        let apart = |area: &Area| area.range.end <= range.start || range.end <= area.range.start;
        self.any() && !self.lock().areas.iter().all(apart)
    }

    /// Another program has taken the guest's place.
    pub(crate) fn forget(&self) {
        self.any.store(false, Ordering::Relaxed);
        *self.lock() = State::default();
    }
}

impl State {
    pub(crate) fn protect(&self, revealed: bool) {
        let all = libc::PROT_READ | libc::PROT_WRITE;
        let prot = if revealed { all } else { libc::PROT_NONE };
        self.areas.iter().for_each(|area| area.protect(area.range.clone(), prot));
    }

    pub(crate) fn store(&self, writes: &[Write]) -> bool {
        writes.iter().all(|write| {
            let end = write.address.saturating_add(write.bytes.len() as u64);
            let holds = |area: &Area| area.range.start <= write.address && end <= area.range.end;
            self.areas.iter().any(holds) && Guest.write(write.address, &write.bytes)
        })
    }

    /// From here on these are all.
    pub(crate) fn replace(&mut self, areas: Vec<Area>) -> Result<()> {
        for area in areas.iter().filter(|area| !self.areas.contains(area)) {
            let Range { start, end } = area.range;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let len = end - start;
            memory::map_fixed(MapRequest { address: start, len, prot, flags, fd: -1, offset: 0 })
                .map_err(Error::host("mapping memory in common with other processes"))?;
        }
        self.areas = areas;
        Ok(())
    }
}
