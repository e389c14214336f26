//! The races that were found.

use crate::cell::{ATOMIC, CALL, FREE, Fault, KERNEL, READ, STORE, Stamp, WRITE};
use crate::clock::VectorClock;
use crate::descriptors::descriptor;
use crate::heap::Block;
use crate::objects::Objects;
use crate::shadow::CELL;
use crate::tasks::Tasks;
use refrain_trace::fixed::FixedMap;
use refrain_trace::{EventId, ThreadId};
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, PoisonError};

/// Pairs of instructions and threads that are kept. A program in which more race has no use for a
/// list.
const LIMIT: usize = 4096;

/// Two accesses of which one writes and that nothing orders, or of which one frees the memory before the
/// other one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Race {
    /// The one that was seen first.
    pub first: Side,
    /// The one that was seen second: the last of its instruction that raced.
    pub second: Side,
    /// How many times these instructions of these threads were seen to race.
    pub count: u64,
    /// The block of the heap that the bytes are in, or were in last.
    pub block: Option<Block>,
    /// They are ordered: the first one has freed the block that the second one uses.
    pub after_free: bool,
}

/// An access that races.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Side {
    /// The thread.
    pub thread: ThreadId,
    /// The event that the access is part of, or else the last one before it.
    pub event: EventId,
    /// First byte. Of the first side, only bytes that both have in common are known.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The instruction.
    pub pc: u64,
    /// It loads.
    pub reads: bool,
    /// It stores.
    pub writes: bool,
    /// What it is.
    pub act: Act,
}

/// What an access is, beside what it reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Act {
    /// An instruction's.
    Plain,
    /// An atomic instruction's, or a load that was recorded in order.
    Atomic,
    /// The kernel's, in a system call.
    Kernel,
    /// The use of a lock, a condition variable, a barrier or a semaphore.
    Lock,
    /// The end of one of these.
    Destroy,
    /// The end of a block of the heap.
    Free,
    /// The end of a mapping.
    Unmap,
    /// The use of a descriptor.
    Descriptor,
    /// The end of a descriptor.
    Close,
}

impl Side {
    /// The descriptor that it is about, if it is about one.
    pub fn descriptor(&self) -> Option<u32> {
        descriptor(self.address)
    }

    /// Whether [`Side::pc`] is where a call returns to, and not the instruction that accesses.
    pub fn is_a_call(&self) -> bool {
        !matches!(self.act, Act::Plain | Act::Atomic)
    }
}

/// The second access of a race, beside its stamp.
#[derive(Clone, Copy)]
pub(crate) struct Whole {
    pub(crate) address: u64,
    pub(crate) size: u64,
}

/// The instructions and threads of both sides, and what is wrong with them.
type Key = ([(u32, u16); 2], Fault);

#[derive(Clone)]
struct Instance {
    first: Stamp,
    second: Stamp,
    fault: Fault,
    cell: u64,
    whole: Whole,
    block: Option<Block>,
    /// What had happened before the second.
    clock: VectorClock,
}

struct Found {
    /// Of those found, the last.
    last: Instance,
    count: u64,
}

/// Races of one thread since they were last handed over.
#[derive(Default)]
pub(crate) struct Local {
    found: FixedMap<Key, Found>,
}

/// Races of all threads.
#[derive(Default)]
pub(crate) struct Findings {
    found: Mutex<FixedMap<Key, Found>>,
}

impl Local {
    pub(crate) fn add(
        &mut self,
        (first, second, fault): (Stamp, Stamp, Fault),
        cell: u64,
        (whole, block): (Whole, Option<Block>),
        clock: &VectorClock,
    ) {
        let key = ([(first.pc, first.thread), (second.pc, second.thread)], fault);
        if let Some(found) = self.found.get_mut(&key) {
            found.count += 1;
            let last = &mut found.last;
            (last.first, last.second, last.cell) = (first, second, cell);
            (last.whole, last.block) = (whole, block);
            last.clock.copy_from(clock);
        } else if self.found.len() < LIMIT {
            let clock = clock.clone();
            let last = Instance { first, second, fault, cell, whole, block, clock };
            self.found.insert(key, Found { last, count: 1 });
        }
    }
}

impl Findings {
    /// Takes what a thread has found.
    pub(crate) fn take(&self, local: &mut Local) {
        if local.found.is_empty() {
            return;
        }
        let mut all = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, found) in local.found.drain() {
            let room = all.len() < LIMIT;
            match all.get_mut(&key) {
                Some(there) => *there = Found { count: there.count + found.count, ..found },
                None if room => drop(all.insert(key, found)),
                None => {}
            }
        }
    }

    /// The races, ordered by instructions and threads.
    pub(crate) fn races(&self, objects: &Objects, tasks: &Tasks) -> Vec<Race> {
        let all = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let mut real: Vec<_> =
            all.iter().filter(|(_, found)| found.last.is_real(objects)).collect();
        real.sort_by_key(|(key, _)| **key);
        let mut races: Vec<Race> = real.into_iter().map(|(_, found)| found.race()).collect();
        for side in races.iter_mut().flat_map(|race| [&mut race.first, &mut race.second]) {
            side.thread = tasks.owner(side.thread);
        }
        races
    }
}

impl Found {
    fn race(&self) -> Race {
        let Instance { first, second, cell, whole, .. } = &self.last;
        let common = first.mask & second.mask;
        let address = cell * CELL + u64::from(common.trailing_zeros());
        let size = u64::from((common >> common.trailing_zeros()).trailing_ones());
        Race {
            first: side(first, Whole { address, size }),
            second: side(second, *whole),
            count: self.count,
            block: self.last.block,
            after_free: self.last.fault == Fault::AfterEnd,
        }
    }
}

impl Instance {
    fn is_real(&self, objects: &Objects) -> bool {
        if self.fault == Fault::AfterEnd {
            return true;
        }
        let epoch = |stamp: &Stamp| (stamp.thread, stamp.clock);
        // Of what had happened before the first, its own thread is all that is known.
        let mut first = VectorClock::default();
        first.set(self.first.thread, self.first.clock);
        !objects.ordered_late(epoch(&self.first), self.clock.clone())
            && !objects.ordered_late(epoch(&self.second), first)
    }
}

fn side(stamp: &Stamp, Whole { address, size }: Whole) -> Side {
    let has = |bit: u8| stamp.kind & bit != 0;
    Side {
        thread: ThreadId(u32::from(stamp.thread)),
        event: EventId(u64::from(stamp.event)),
        address,
        size,
        pc: u64::from(stamp.pc),
        reads: has(READ),
        writes: has(WRITE),
        act: match (descriptor(address), has(FREE)) {
            (Some(_), true) => Act::Close,
            (Some(_), false) => Act::Descriptor,
            _ if has(KERNEL) && has(FREE) => Act::Unmap,
            _ if has(KERNEL) => Act::Kernel,
            _ if has(FREE) => Act::Free,
            _ if has(CALL) && has(ATOMIC) => Act::Lock,
            _ if has(CALL) => Act::Destroy,
            _ if has(ATOMIC) && !has(STORE) => Act::Atomic,
            _ => Act::Plain,
        },
    }
}
