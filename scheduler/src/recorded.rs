//! What operations took in the recording, without the waiting in them.
//!
//! An event's time in the trace, from `begin` to `end`, is a wait for other threads and the cost
//! of the operation (in the program, in the recorder, in the kernel that wakes a thread). The
//! trace also tells when the wait could end: when the object was released, the signal given, the
//! thread joined over. What is left after that moment is the cost. The moment is the other
//! event's `begin`, since that is when the virtual clock performs it.

use crate::skeleton::{Code, Operation, Strand, WIDE_WORK};
use crate::wakes::Woken;
use refrain_trace::fixed::FixedMap;
use refrain_trace::{Event, ThreadId};

/// When events happened, and when they became possible.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// By thread and event.
    times: Vec<Vec<Times>>,
    /// By object: its latest changes, and when it had counted how far.
    changes: FixedMap<u32, Changes>,
    counted: FixedMap<u32, Vec<u64>>,
}

/// Latest moments of an object, in the order of its tickets.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    /// A competing operation.
    acquired: u64,
    /// A release of any kind.
    released: u64,
    /// A release by whoever had it exclusively, and who that is.
    unwritten: u64,
    writer: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    begin: u64,
    end: u64,
    /// When nothing was in the way any more.
    possible: u64,
}

/// Operations that the walk over tickets must see for the sake of their time alone.
pub(crate) fn releases(code: Code) -> bool {
    matches!(code, Code::Unlock | Code::CondRelease)
}

impl Recorded {
    pub(crate) fn new(threads: usize) -> Recorded {
        let (changes, counted) = (FixedMap::default(), FixedMap::default());
        Recorded { times: vec![Vec::new(); threads], changes, counted }
    }

    pub(crate) fn push(&mut self, thread: ThreadId, event: &Event) {
        let Event { begin, end, .. } = *event;
        let end = end.max(begin);
        self.times[thread.index()].push(Times { begin, end, possible: 0 });
    }

    /// The next operation in the order of its object's tickets.
    pub(crate) fn step(&mut self, thread: u32, position: u32, operation: &Operation) {
        let Operation { code, object, .. } = *operation;
        let times = &mut self.times[thread as usize][position as usize];
        let changes = self.changes.entry(object).or_default();
        if operation.competes() {
            let released = match code {
                Code::Read => changes.unwritten,
                Code::Ordered => 0,
                _ => changes.released,
            };
            // ELSC lets it go after what is before it in the order.
            times.possible = times.possible.max(changes.acquired).max(released);
            changes.acquired = times.begin.max(times.possible);
            if code.possesses() {
                changes.writer = Some(thread);
            }
        }
        let performed = times.begin.max(times.possible);
        if releases(code) || code == Code::SemPost {
            changes.released = changes.released.max(performed);
            if changes.writer.take_if(|writer| *writer == thread).is_some() {
                changes.unwritten = performed;
            }
        }
        if matches!(code, Code::Count | Code::Ordered) {
            let counted = self.counted.entry(object).or_default();
            let before = counted.last().copied().unwrap_or(0);
            counted.push(performed.max(before));
        }
    }

    /// The operation waits until `object` has counted to `count`.
    pub(crate) fn follows_count(&mut self, thread: u32, position: u32, object: u32, count: u32) {
        let counted = self.counted.get(&object).map_or(&[][..], Vec::as_slice);
        let last = (count as usize).checked_sub(1).and_then(|last| counted.get(last));
        let times = &mut self.times[thread as usize][position as usize];
        times.possible = times.possible.max(last.copied().unwrap_or(0));
    }

    /// Gives each operation its cost, and a created thread the time that it took to begin.
    pub(crate) fn finish(mut self, strands: &mut [Strand]) {
        for (id, strand) in strands.iter_mut().enumerate() {
            for (position, &Operation { code, object, .. }) in strand.operations.iter().enumerate()
            {
                if code == Code::Join {
                    let last = self.times[object as usize].last();
                    self.times[id][position].possible = last.map_or(0, |last| last.begin);
                }
            }
            for &Woken { event, thread, source } in &strand.woken {
                let by = self.times[thread as usize].get(source as usize);
                self.times[id][event as usize].possible = by.map_or(0, |by| by.begin);
            }
            self.delay_birth(id, strand);
        }
        for (strand, times) in strands.iter_mut().zip(&self.times) {
            let cost = |(times, operation): (&Times, &Operation)| {
                // Where the duration is the skeleton's, there is no other cost.
                let code = operation.code;
                let timed = code.lasts() && code != Code::Woken || code == Code::CondTimeout;
                let took = times.end - times.begin.max(times.possible).min(times.end);
                if timed { 0 } else { u32::try_from(took).unwrap_or(u32::MAX) }
            };
            strand.costs = times.iter().zip(&strand.operations).map(cost).collect();
        }
    }

    fn delay_birth(&self, id: usize, strand: &mut Strand) {
        let (Some((parent, event)), Some(first)) = (strand.creator, self.times[id].first()) else {
            return;
        };
        let Some(created) = self.times[parent.index()].get(event as usize) else { return };
        let delay = first.begin.saturating_sub(created.begin);
        if let Some(operation) = strand.operations.first_mut()
            && operation.flags & WIDE_WORK == 0
        {
            operation.work = u32::try_from(delay).unwrap_or(u32::MAX);
        }
    }
}
