//! The account of a replay: whether all recorded events happened.
//!
//! A replay in which every comparison was equal is exact only if nothing was left out. Each thread
//! says how many events it has performed; what is missing then in a whole trace is a divergence.
//! In a trace that was cut off, threads wait for events that nobody has: what they would have done
//! next says how far the replay has come.

use super::outcome::{Divergence, DivergenceKind, Outcome};
use crate::Result;
use refrain_trace::{Event, EventId, EventKind, ThreadId, Trace};

/// Events between two updates of the progress counter.
pub(crate) const PROGRESS: u64 = 1024;

/// What a thread counted.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) events: u64,
    pub(crate) digests: u64,
    pub(crate) equal: u64,
    pub(crate) acquisitions: u64,
    pub(crate) output_bytes: u64,
    pub(crate) instructions: u64,
}

impl Tally {
    /// Adds it to what all threads have counted.
    pub(crate) fn add_to(&self, outcome: &mut Outcome) {
        outcome.events += self.events;
        outcome.digests += self.digests;
        outcome.equal += self.equal;
        outcome.acquisitions += self.acquisitions;
        outcome.output_bytes += self.output_bytes;
        if let Some(total) = &mut outcome.instructions {
            *total += self.instructions;
        }
    }

    /// Counts an event of this kind, with this result, whose digest was equal.
    pub(crate) fn count_equal(&mut self, code: u8, result: i32) {
        self.events += 1;
        self.digests += 1;
        self.equal += 1;
        self.count_acquisition(code, result);
    }

    /// Counts an acquisition, if this is one.
    pub(crate) fn count_acquisition(&mut self, code: u8, result: i32) {
        use EventKind::*;
        const ACQUIRE: [EventKind; 11] = [
            MutexLock,
            MutexTryLock,
            MutexTimedLock,
            ReadLock,
            ReadTryLock,
            ReadTimedLock,
            WriteLock,
            WriteTryLock,
            WriteTimedLock,
            SpinLock,
            SpinTryLock,
        ];
        let acquires = ACQUIRE.iter().any(|&kind| kind as u8 == code);
        self.acquisitions += u64::from(acquires && result == 0);
    }
}

/// What happened of a trace.
pub(crate) struct Account<'a> {
    trace: &'a Trace,
    performed: Vec<u64>,
    /// Events that threads performed which the trace does not have, if that is possible.
    surplus: u64,
}

impl<'a> Account<'a> {
    pub(crate) fn new(trace: &'a Trace) -> Account<'a> {
        Account { trace, performed: vec![0; trace.threads() as usize], surplus: 0 }
    }

    /// A thread is done and has performed so many events.
    pub(crate) fn add(&mut self, thread: ThreadId, events: u64) {
        match self.performed.get_mut(thread.index()) {
            Some(performed) => *performed += events,
            None => self.surplus += events,
        }
    }

    /// Where the first thread is that lacks something.
    pub(crate) fn missing(&self) -> Result<Option<Missing>> {
        let mut first: Option<Missing> = None;
        for (thread, &performed) in (0..).map(ThreadId).zip(&self.performed) {
            let recorded = self.trace.events_of(thread);
            if performed == recorded {
                continue;
            }
            let event = EventId(performed.min(recorded));
            let next = self.trace.cursor_at(thread, event).next()?;
            let events = recorded.abs_diff(performed);
            let missing = Missing { thread, event, next, events, threads: 1 };
            first = Some(match first.take() {
                None => missing,
                Some(so_far) => so_far.and(missing),
            });
        }
        Ok(first)
    }

    /// Events that happened.
    pub(crate) fn events(&self) -> u64 {
        self.performed.iter().sum::<u64>() + self.surplus
    }

    /// When the last recorded event ended.
    pub(crate) fn end(&self) -> Result<u64> {
        let mut end = 0;
        for thread in (0..self.trace.threads()).map(ThreadId) {
            let Some(last) = self.trace.events_of(thread).checked_sub(1) else { continue };
            if let Some(event) = self.trace.cursor_at(thread, EventId(last)).next()? {
                end = end.max(event.end);
            }
        }
        Ok(end)
    }
}

/// Recorded events that have not happened.
pub(crate) struct Missing {
    thread: ThreadId,
    event: EventId,
    /// The event, if it is there; if not, the thread has performed more than it has.
    next: Option<Event>,
    events: u64,
    threads: u64,
}

impl Missing {
    /// Of two threads, the one whose event comes first, and the numbers of both.
    fn and(self, other: Missing) -> Missing {
        let (events, threads) = (self.events + other.events, self.threads + other.threads);
        let sooner = if other.begin() < self.begin() { other } else { self };
        Missing { events, threads, ..sooner }
    }

    /// When the first of them began: so far all threads have come.
    pub(crate) fn begin(&self) -> u64 {
        self.next.map_or(0, |event| event.begin)
    }

    pub(crate) fn divergence(&self) -> Divergence {
        let &Missing { thread, event, next, events, threads } = self;
        let expected = match next {
            Some(next) => format!("{next:?}"),
            None => "the end of the recording".to_owned(),
        };
        let state = match (next, event.0) {
            (None, _) => "more events than that".to_owned(),
            (_, 0) => "the thread was never created".to_owned(),
            _ => "the thread was at its end".to_owned(),
        };
        let actual = match (events, threads) {
            (1, 1) => state,
            (_, 1) => format!("{state}; {events} of its events did not happen"),
            _ => format!("{state}; {events} events of {threads} threads did not happen"),
        };
        let pc = next.map_or(0, |event| event.pc);
        Divergence { kind: DivergenceKind::Missing, thread, event, pc, expected, actual }
    }
}
