//! The replayer's side: such memory is out of the guest's reach, and there is nothing in it.

use super::Area;
use crate::elsewhere;
use crate::memory::{self, MapRequest};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// What a replay knows of such memory.
#[derive(Default)]
pub(crate) struct Common {
    any: AtomicBool,
    /// By ascending addresses.
    areas: RwLock<Vec<Area>>,
}

impl Common {
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn areas(&self) -> RwLockReadGuard<'_, Vec<Area>> {
        self.areas.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any of these bytes are in such memory.
    pub(crate) fn meets(&self, range: &Range<u64>) -> bool {
        self.any() && super::meet(&self.areas(), range)
    }

    /// The area that begins there.
    pub(crate) fn begins(&self, address: u64) -> Option<Range<u64>> {
        let areas = self.areas();
        let area = areas.iter().find(|area| area.range.start == address)?;
        Some(area.range.clone())
    }

    /// The parts of a range that are not in such memory.
    pub(crate) fn outside(&self, range: Range<u64>) -> Vec<Range<u64>> {
        super::outside(&self.areas(), range)
    }

    /// Another program has taken the guest's place.
    pub(crate) fn forget(&self) {
        self.any.store(false, Ordering::Relaxed);
        self.areas.write().unwrap_or_else(PoisonError::into_inner).clear();
        elsewhere::publish(Vec::new());
    }

    /// From here on these are all.
    pub(crate) fn replace(&self, mut areas: Vec<Area>) -> Result<()> {
        areas.sort_by_key(|area| area.range.start);
        let mut known = self.areas.write().unwrap_or_else(PoisonError::into_inner);
        for area in &areas {
            let Range { start, end } = area.range;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let (prot, len) = (libc::PROT_NONE, end - start);
            memory::map_fixed(MapRequest { address: start, len, prot, flags, fd: -1, offset: 0 })
                .map_err(Error::host("mapping memory in common with other processes"))?;
        }
        self.any.store(!areas.is_empty(), Ordering::Relaxed);
        // Nowhere else, either.
        let aliases = areas.iter().map(|area| (area.range.clone(), area.range.start));
        elsewhere::publish(aliases.collect());
        *known = areas;
        Ok(())
    }
}
