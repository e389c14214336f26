//! What a variable is.

use super::{Op, Step};
use crate::Tapped;
use refrain_trace::fixed::FixedMap;
use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of memory outside of the heap that are one variable if variables are coarse.
const LINE: u64 = 64;
/// Where blocks are variables, so that they are no lines.
const BLOCKS: u64 = 1 << 63;

/// How much memory is one variable (FastTrack, section 5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granularity {
    /// A byte.
    Fine,
    /// A block of the heap, or 64 bytes of other memory.
    Coarse,
}

impl Granularity {
    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Granularity::Fine => "fine",
            Granularity::Coarse => "coarse",
        }
    }
}

/// Makes steps of what was tapped.
pub struct Variables {
    granularity: Granularity,
    /// By aligned eight bytes that were used: the first variable there.
    used: FixedMap<u64, u64>,
}

impl Variables {
    /// None yet.
    pub fn new(granularity: Granularity) -> Variables {
        Variables { granularity, used: FixedMap::default() }
    }

    /// The steps that this is.
    pub fn steps(&mut self, thread: u32, tapped: &Tapped, show: &mut dyn FnMut(Step)) {
        match tapped {
            Tapped::Order(op) => show(Step { thread, op: *op, site: 0 }),
            Tapped::Fresh(range) => self.forget(thread, range, show),
            &Tapped::Access { cell, mask, writes, pc, block } => {
                let variable = match (self.granularity, block) {
                    (Granularity::Fine, _) => cell,
                    (Granularity::Coarse, Some(block)) => BLOCKS | block,
                    (Granularity::Coarse, None) => cell - cell % LINE,
                };
                self.used.insert(cell, variable);
                let bytes = match self.granularity {
                    Granularity::Fine => mask,
                    Granularity::Coarse => 1,
                };
                for byte in (0..8).filter(|byte| bytes >> byte & 1 != 0) {
                    let variable = variable + byte;
                    let op = if writes { Op::Write(variable) } else { Op::Read(variable) };
                    show(Step { thread, op, site: pc.into() });
                }
            }
        }
    }

    /// Memory is new, and so is each variable in it.
    fn forget(&mut self, thread: u32, range: &Range<u64>, show: &mut dyn FnMut(Step)) {
        let first = range.start - range.start % 8;
        let cells: Vec<u64> = match (range.end - first) / 8 > self.used.len() as u64 {
            true => {
                self.used.keys().copied().filter(|cell| (first..range.end).contains(cell)).collect()
            }
            false => {
                (first..range.end).step_by(8).filter(|cell| self.used.contains_key(cell)).collect()
            }
        };
        let gone: BTreeSet<u64> = cells.iter().filter_map(|cell| self.used.remove(cell)).collect();
        let bytes = if self.granularity == Granularity::Fine { 8 } else { 1 };
        for variable in gone.into_iter().flat_map(|first| first..first + bytes) {
            show(Step { thread, op: Op::Fresh(variable), site: 0 });
        }
    }
}
