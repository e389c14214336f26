//! Descriptors as memory: using one reads it, closing one writes it.

use crate::shadow::CELL;
use refrain_trace::fixed::FixedMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where descriptors lie in memory: nowhere. To the detector they are above all of it.
const DESCRIPTORS: u64 = 1 << 60;

/// How many descriptors of each number have been closed.
#[derive(Default)]
pub(crate) struct Descriptors {
    closed: Mutex<FixedMap<u32, u64>>,
}

impl Descriptors {
    pub(crate) fn closed(&self) -> MutexGuard<'_, FixedMap<u32, u64>> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cell of a descriptor; those that had its number before it share two in turns.
pub(crate) fn cell(number: u32, closed: u64) -> Range<u64> {
    let start = DESCRIPTORS + CELL * (2 * u64::from(number) + closed % 2);
    start..start + CELL
}

/// The descriptor that an address stands for, if it stands for one.
pub(crate) fn descriptor(address: u64) -> Option<u32> {
    let cell = address.checked_sub(DESCRIPTORS)? / CELL;
    u32::try_from(cell / 2).ok()
}
