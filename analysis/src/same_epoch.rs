//! What one thread has accessed in its present epoch (FastTrack, Figure 5: the rules of the same
//! epoch).

use crate::shadow::CELL;
use std::ops::Range;

/// Entries of a [`Filter`].
const ENTRIES: usize = 4096;

/// Notes of the cells that a thread accessed last. They may forget, and never know what was not noted in
/// this epoch. Cells are eight bytes, counted from address 0.
pub(crate) struct Filter {
    cells: Box<[Noted]>,
    epoch: u32,
}

#[derive(Clone, Copy, Default)]
struct Noted {
    cell: u64,
    epoch: u32,
    accessed: u8,
    written: u8,
}

impl Default for Filter {
    fn default() -> Filter {
        // No cell is noted in epoch 0.
        Filter { cells: vec![Noted::default(); ENTRIES].into(), epoch: 1 }
    }
}

fn entry(cell: u64) -> usize {
    (cell ^ cell >> 12) as usize % ENTRIES
}

impl Filter {
    /// Whether the bytes of a cell with these bits have been accessed (`writes`: written).
    pub(crate) fn knows(&self, cell: u64, bytes: u8, writes: bool) -> bool {
        let noted = self.cells[entry(cell)];
        let known = if writes { noted.written } else { noted.accessed };
        (noted.cell, noted.epoch) == (cell, self.epoch) && bytes & !known == 0
    }

    /// These bytes of a cell have been accessed, by an access that synchronizes nothing.
    pub(crate) fn note(&mut self, cell: u64, bytes: u8, writes: bool) {
        let epoch = self.epoch;
        let noted = &mut self.cells[entry(cell)];
        if (noted.cell, noted.epoch) != (cell, epoch) {
            *noted = Noted { cell, epoch, ..Noted::default() };
        }
        noted.accessed |= bytes;
        noted.written |= if writes { bytes } else { 0 };
    }

    /// Nothing of this memory has been accessed.
    pub(crate) fn forget(&mut self, range: Range<u64>) {
        let cells = range.start / CELL..range.end.div_ceil(CELL);
        if cells.end.saturating_sub(cells.start) > ENTRIES as u64 {
            return self.next_epoch();
        }
        for cell in cells {
            let noted = &mut self.cells[entry(cell)];
            if noted.cell == cell {
                *noted = Noted::default();
            }
        }
    }

    /// Nothing has been accessed in the epoch that begins.
    pub(crate) fn next_epoch(&mut self) {
        self.epoch = self.epoch.checked_add(1).unwrap_or_else(|| {
            self.cells.fill(Noted::default());
            1
        });
    }
}
