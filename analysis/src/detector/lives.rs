//! What has a beginning and an end: blocks of the heap, mappings, descriptors, locks.
//!
//! To use such a thing is to read or update it, and to end it is to write it: `free` writes its block,
//! `munmap` its range (behind the first KiB, what somebody has touched), `close` its descriptor, the
//! destruction of a lock the lock. What begins anew has no history: a block that is allocated, a range
//! that is mapped, a descriptor after its number was closed.
//!
//! A thread that uses a block after its own `free` of it, and again when the block is another's, is not
//! seen the second time, unless the thread has released something in between.

use super::{Checked, Watcher};
use crate::cell::{ATOMIC, CALL, FREE, KERNEL, READ, WRITE};
use crate::descriptors::cell;
use crate::edges::{self, Use};
use crate::findings::Whole;
use crate::heap::{Block, OneStep};
use crate::shadow::CELL;
use refrain_trace::linux::{self, uses_a_descriptor};
use refrain_trace::payload::{Effect, SyscallRecord};
use refrain_trace::{Access, Event, ThreadId};
use std::ops::Range;

/// So much of what ends is written whether somebody has touched it or not.
const HEAD: u64 = 1024;

/// A call that is one step.
pub(crate) struct Call {
    function: Option<OneStep>,
    /// Three arguments, and where it returns to.
    given: [u64; 4],
    /// How many of them are known.
    count: usize,
    /// The block that it has freed.
    freed: Range<u64>,
}

impl Call {
    fn arguments(&self) -> [u64; 3] {
        let [first, second, third, _] = self.given;
        [first, second, third]
    }
}

impl Watcher {
    /// Takes a record that is no access.
    pub(crate) fn note_call(&mut self, record: &Access) {
        match record.kind {
            Access::CALLED => {
                let code = self.detector.relation.code();
                let function =
                    code.and_then(|code| code.one_step.get(&u64::from(record.pc)).copied());
                self.in_one_step = Some(Call {
                    function,
                    given: [record.address, 0, 0, 0],
                    count: 1,
                    freed: 0..0,
                });
            }
            Access::ARGUMENT => {
                let Some(call) = &mut self.in_one_step else { return };
                let Some(given) = call.given.get_mut(call.count) else { return };
                *given = record.address;
                call.count += 1;
                if let (Some(function), 4) = (call.function, call.count) {
                    let (arguments, [_, _, _, back]) = (call.arguments(), call.given);
                    let freed = self.free(function, arguments, back).unwrap_or_default();
                    self.in_one_step.iter_mut().for_each(|call| call.freed = freed.clone());
                }
            }
            Access::ANSWERED => {
                let Some(call) = self.in_one_step.take() else { return };
                let arguments = call.arguments();
                let size = call.function.and_then(|function| function.size(arguments));
                match (size, record.address) {
                    (Some(1..), 0) => self.detector.heap.keep(call.freed.start),
                    (None | Some(0), 0) | (None, _) => {}
                    (Some(size), start) => self.allocate(start, size, &call.freed),
                }
            }
            _ => self.note_nested(record),
        }
    }

    /// A function begins that may free a block: the block.
    fn free(&mut self, function: OneStep, arguments: [u64; 3], back: u64) -> Option<Range<u64>> {
        let start = function.frees(arguments)?;
        let size = self.detector.heap.free(start)?;
        let block = start..start.saturating_add(size.max(1));
        let is_silent = self.detector.relation.code().is_some_and(|code| code.is_silent(back));
        // The library does so when the task is over.
        let is_silent = is_silent || self.detector.tasks.remove(start);
        if !is_silent {
            self.end(block.clone(), back, WRITE | CALL | FREE);
        }
        Some(block)
    }

    /// A new block. One that has only become larger is new behind its end.
    fn allocate(&mut self, start: u64, size: u64, freed: &Range<u64>) {
        let thread = ThreadId(self.thread.into());
        let block = Block { start, size, thread, number: self.allocated };
        self.allocated += 1;
        self.detector.heap.allocate(block);
        if self.detector.may_race() {
            let fresh = if freed.start == start { freed.end } else { start };
            self.forget(fresh.next_multiple_of(CELL)..start.saturating_add(size));
        }
        self.create_in(start, size);
    }

    /// Memory is no longer used: that writes its head, and what has been touched of the rest.
    fn end(&mut self, range: Range<u64>, pc: u64, kind: u8) {
        if !self.detector.may_race() {
            return;
        }
        let head = range.start..range.end.min(range.start.saturating_add(HEAD));
        let touched = self.detector.shadow.touched(&(head.end..range.end));
        for piece in std::iter::once(head).chain(touched) {
            let whole = Whole { address: piece.start, size: piece.end - piece.start };
            self.check_range(Checked { whole, pc: pc as u32, kind });
        }
        // What the thread still does there is not the same: the memory may be another's by then.
        self.forget_own(range);
        self.take_found();
    }

    /// The thread unmaps memory, or maps other memory in its place. The stacks of threads are the library's
    /// business.
    pub(crate) fn unmap(&mut self, call: &Event, record: &SyscallRecord) {
        if !matches!(record.effect, Effect::Memory { .. }) || (call.value as i64) < 0 {
            return;
        }
        let Some(range) = linux::unmapped(call.nr, &record.args, call.value) else { return };
        let holds_a_stack =
            self.detector.stacks().pointers.values().any(|pointer| range.contains(pointer));
        if !range.is_empty() && !holds_a_stack {
            self.end(range, call.pc, WRITE | KERNEL | FREE);
        }
    }

    /// The thread enters a call that is about descriptors. One that is answered by `EBADF` uses the
    /// descriptor that was closed last.
    pub(crate) fn use_descriptors(&mut self, call: &Event, record: &SyscallRecord) {
        const EBADF: i64 = -9;
        if !self.detector.may_race() {
            return;
        }
        let [first, second, ..] = record.args;
        let is_bad = call.value as i64 == EBADF;
        match call.nr {
            linux::CLOSE => self.use_descriptor(call, first, true, is_bad),
            linux::DUP2 | linux::DUP3 => {
                self.use_descriptor(call, first, false, is_bad);
                // The copy takes the number of another descriptor at one stroke: who uses the number gets
                // the one or the other, and is meant to.
                if call.value as i64 >= 0 && first != second {
                    self.use_descriptor(call, second, false, false);
                }
            }
            nr if uses_a_descriptor(nr) => self.use_descriptor(call, first, false, is_bad),
            _ => return,
        }
        self.take_found();
    }

    fn use_descriptor(&mut self, call: &Event, number: u64, closes: bool, is_bad: bool) {
        let Ok(number) = u32::try_from(number) else { return };
        let detector = self.detector.clone();
        let mut closed = detector.descriptors.closed();
        let count = closed.entry(number).or_default();
        let at = match is_bad {
            true => cell(number, count.wrapping_sub(1)),
            false => cell(number, *count),
        };
        let kind = if closes { WRITE | FREE } else { READ };
        if closes && !is_bad {
            *count += 1;
            detector.shadow.forget(cell(number, *count));
        }
        let whole = Whole { address: at.start, size: CELL };
        self.next_epoch();
        self.check(Checked { whole, pc: call.pc as u32, kind: kind | KERNEL });
    }

    /// The thread uses a lock or something of that kind, or ends it: an update of its first byte, or a
    /// write.
    pub(crate) fn use_objects(&mut self, event: &Event) {
        let Some((what, objects)) = edges::uses(event) else { return };
        if self.detector.relation.code().is_none() {
            return;
        }
        let kind = match what {
            Use::Works => READ | WRITE | ATOMIC | CALL,
            Use::Destroys => WRITE | CALL,
        };
        for address in objects.into_iter().flatten() {
            let whole = Whole { address, size: 1 };
            self.check(Checked { whole, pc: event.pc as u32, kind });
        }
        self.take_found();
    }
}
