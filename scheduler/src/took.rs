//! How long operations took in the recording, but for the waiting in them.
//!
//! A run that is held against the recorded duration has the recorder's work in it, and that is not
//! only between events: a call that is recorded takes many times as long as natively. What an
//! operation took without waiting is what the quickest quarter of its kind at the same code took, of
//! those that did not sleep.

use crate::config::ticks;
use crate::skeleton::{Strand, WIDE_WORK};
use refrain_trace::fixed::FixedMap;
use refrain_trace::{Event, EventKind, ThreadId};

/// Fewer times tell nothing.
const ENOUGH: usize = 32;

/// Durations by kind and code.
#[derive(Debug, Default)]
pub(crate) struct Took {
    numbers: FixedMap<(u8, u64), u32>,
    durations: Vec<Vec<u32>>,
    /// By thread and event: its kind, or none.
    of_events: Vec<Vec<u32>>,
}

/// What takes longer has slept, or had no core, in nanoseconds.
const SLEPT: u64 = 2_000;

/// Of an operation whose duration is known otherwise.
const NONE: u32 = u32::MAX;

impl Took {
    /// The next event of a thread; `lasts` if its duration is part of the skeleton.
    pub(crate) fn push(&mut self, thread: ThreadId, event: &Event, lasts: bool) {
        use EventKind::{BarrierLeave, CondWaitEnd, SpinLock, ThreadJoin};
        if self.of_events.len() <= thread.index() {
            self.of_events.resize(thread.index() + 1, Vec::new());
        }
        // Where hardly anybody does not wait, the quickest quarter has waited too.
        let waits = matches!(event.kind(), SpinLock | BarrierLeave | CondWaitEnd | ThreadJoin);
        let kind = if lasts || waits {
            NONE
        } else {
            let fresh = self.durations.len() as u32;
            let kind = *self.numbers.entry((event.code, event.pc)).or_insert(fresh);
            if kind == fresh {
                self.durations.push(Vec::new());
            }
            let took = event.end.saturating_sub(event.begin);
            self.durations[kind as usize].push(u32::try_from(took).unwrap_or(u32::MAX));
            kind
        };
        self.of_events[thread.index()].push(kind);
    }

    /// Adds it to the work that follows.
    pub(crate) fn add_to(mut self, strands: &mut [Strand], ticks_per_second: u64) {
        let slept = u32::try_from(ticks(SLEPT, ticks_per_second)).unwrap_or(u32::MAX);
        let usual = |times: &mut Vec<u32>| {
            times.retain(|took| *took < slept);
            match times.len() {
                ..ENOUGH => 0,
                count => *times.select_nth_unstable(count / 4).1,
            }
        };
        let usual: Vec<u32> = self.durations.iter_mut().map(usual).collect();
        for (strand, kinds) in strands.iter_mut().zip(&self.of_events) {
            for (operation, kind) in strand.operations.iter_mut().skip(1).zip(kinds) {
                if *kind != NONE && operation.flags & WIDE_WORK == 0 {
                    operation.work = operation.work.saturating_add(usual[*kind as usize]);
                }
            }
        }
    }
}
