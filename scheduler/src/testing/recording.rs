//! Recordings made by hand: operations in the order in which they happened.

use crate::{Builder, Skeleton};
use refrain_trace::{Event, EventKind, ThreadId, order};
use std::collections::BTreeMap;

/// Ticks are nanoseconds.
pub const HZ: u64 = 1_000_000_000;

/// A recorded run in the making. Whatever is pushed happens next.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The events of each thread.
    pub threads: Vec<Vec<Event>>,
    /// Thread and event of everything, in the order in which it happened.
    pub sequence: Vec<(usize, usize)>,
    tickets: BTreeMap<usize, u64>,
    clocks: Vec<u64>,
}

impl Recording {
    /// A run of so many threads, before anything happens.
    pub fn new(threads: usize) -> Recording {
        Recording {
            threads: vec![Vec::new(); threads],
            sequence: Vec::new(),
            tickets: BTreeMap::new(),
            clocks: vec![0; threads],
        }
    }

    /// `thread` works for `work` ticks and then performs an event, next in its object's order.
    pub fn push(&mut self, thread: usize, work: u64, kind: EventKind, object: u64) -> &mut Event {
        let ticket = self.tickets.entry(order::slot(object)).or_default();
        let begin = self.clocks[thread] + work;
        self.clocks[thread] = begin;
        let event = Event {
            code: kind as u8,
            object,
            ticket: *ticket,
            begin,
            end: begin,
            ..Event::default()
        };
        *ticket += 1;
        self.sequence.push((thread, self.threads[thread].len()));
        self.threads[thread].push(event);
        self.threads[thread].last_mut().expect("just pushed")
    }

    /// The same for an event that takes `time` ticks itself.
    pub fn push_timed(
        &mut self,
        thread: usize,
        work: u64,
        kind: EventKind,
        object: u64,
        time: u64,
    ) -> &mut Event {
        self.clocks[thread] += time;
        let clock = self.clocks[thread];
        self.push(thread, work, kind, object);
        let event = self.threads[thread].last_mut().expect("just pushed");
        event.begin = clock - time + work;
        event.end = clock + work;
        event
    }

    /// Tickets given out so far in the slot of an object.
    pub fn tickets(&self, object: u64) -> u64 {
        self.tickets.get(&order::slot(object)).copied().unwrap_or(0)
    }

    /// The skeleton of the program's own time.
    ///
    /// # Panics
    /// If no machine could have recorded what was pushed.
    pub fn skeleton(&self) -> Skeleton {
        self.build(Builder::new(self.threads.len(), HZ, 0))
    }

    /// The skeleton of the recording as it was, had its events happened at these times: thread,
    /// event, begin, end.
    pub fn repeated(mut self, times: &[(u32, u64, u64, u64)]) -> Skeleton {
        for &(thread, event, begin, end) in times {
            let event = &mut self.threads[thread as usize][event as usize];
            (event.begin, event.end) = (begin, end);
        }
        self.build(Builder::new(self.threads.len(), HZ, 0).as_recorded())
    }

    /// The skeleton for what would be in another order of locks; with the recorder's work as the
    /// program's, if that is wanted.
    pub fn predicting(&self, recorder: bool) -> Skeleton {
        let builder = Builder::new(self.threads.len(), HZ, 0).predicting();
        self.build(if recorder { builder.with_recording() } else { builder })
    }

    /// The skeleton of a recording that was made on so many cores.
    pub fn build_on(&self, cores: u32) -> Skeleton {
        self.build(Builder::new(self.threads.len(), HZ, 0).recorded_on(cores))
    }

    fn build(&self, mut builder: Builder) -> Skeleton {
        for (thread, events) in self.threads.iter().enumerate() {
            for event in events {
                builder.push(ThreadId(thread as u32), event).expect("a sound recording");
            }
        }
        builder.finish().expect("a sound recording")
    }
}
