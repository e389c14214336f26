//! When one thread alone runs: the recorder's side.
//!
//! While a program has one thread, nothing is watched, since there is nobody to race with. Programs of
//! many threads are often like that, too: a pool of threads waits for work that never comes, and one
//! thread runs. So a thread whose watched loads have needed many events asks whether all others are out
//! of guest code, in system calls or library functions. If they are, it is *alone*. The first watched load
//! of each word then has an event, and after that the word changes by the thread's own stores only: its
//! loads are counted, whatever they read.
//!
//! - The thread's stream says where that begins ([`refrain_trace::EventKind::Takeover`] with
//!   [`accessed::ALONE`]): once all others have come to where they are
//!   ([`refrain_trace::EventKind::Handover`] with [`accessed::AWAY`], in their streams).
//! - Who comes back to guest code first ends it: a [`refrain_trace::EventKind::Handover`] with
//!   [`accessed::ALONE`] goes into the stream of the thread that was alone, behind as many accesses as
//!   that has made by then, without its help. Everybody who comes back waits for that
//!   ([`refrain_trace::EventKind::Takeover`] with [`accessed::BACK`]).
//!
//! # Why that is exact
//! The thread counts a load in its *window*: it opens the window, looks again whether it is alone, reads,
//! counts, and closes the window. Who ends that says so, has the kernel order all processors, and waits
//! until the window is closed; then it knows the number of loads. So what the thread loads while it is
//! alone comes behind everything that others have done before, and before everything that they do
//! after. A replay keeps both, so its first load of a word reads what it read in the recording. If the word has
//! changed in memory since the thread's last load of it, the thread has stored there what it stored in the
//! recording; and if not, the load reads what that one read. The order of events is one of real time, so no replay
//! can wait in a circle.

use super::owners::handover;
use super::{LastMet, Met};
use crate::barrier::Barrier;
use crate::host;
use crate::record::log::{Closed, Log};
use crate::slots::Tickets;
use refrain_trace::{ThreadId, accessed, order};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Watched loads that need events before a thread asks whether it is alone.
const PATIENCE: u32 = 1 << 10;
/// The most, if it has asked in vain, or was alone for a short time.
const MOST_PATIENCE: u32 = 1 << 16;
/// How long a thread is alone for at least, if that is worth the handovers.
pub(super) const SHORT: Duration = Duration::from_micros(500);

/// What the counter of a slot never stands at: a load when the thread is alone no more has an event.
const NO_VERSION: u64 = u64::MAX;

/// Memory that a thread has had mapped since it is alone. Nobody else has touched it.
#[derive(Default)]
pub(crate) struct Fresh(Vec<Range<u64>>);

impl Fresh {
    /// So many ranges are known, the last ones.
    const MOST: usize = 16;

    pub(crate) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Some(beside) = self.0.iter_mut().find(|it| it.end == range.start) {
            beside.end = range.end;
        } else if let Some(beside) = self.0.iter_mut().find(|it| it.start == range.end) {
            beside.start = range.start;
        } else {
            if self.0.len() == Fresh::MOST {
                self.0.remove(0);
            }
            self.0.push(range);
        }
    }

    #[inline]
    fn has(&self, address: u64) -> bool {
        self.0.iter().any(|range| range.contains(&address))
    }

    /// The thread is alone anew: others may have touched all that there is.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// What all threads share.
pub(crate) struct Alone {
    /// How often a thread has asked whether it is alone.
    pub(super) asked: AtomicU64,
    state: Mutex<State>,
    pub(super) barrier: Barrier,
}

#[derive(Default)]
pub(super) struct State {
    /// The thread that is alone, and since when.
    pub(super) thread: Option<(ThreadId, Instant)>,
    /// How long the last thread that was alone had been alone.
    pub(super) lasted: Duration,
    /// The handover that ended this last time: its object, and how many tickets of that object had been given out.
    ended: Option<(u64, u64)>,
}

/// When a thread asks whether it is alone.
pub(crate) struct Asking {
    /// Loads with events since it has asked.
    loads: u32,
    /// How many it waits for.
    patience: u32,
}

impl Default for Asking {
    fn default() -> Asking {
        Asking { loads: 0, patience: PATIENCE }
    }
}

impl Asking {
    /// One more load has an event.
    pub(crate) fn count(&mut self) {
        self.loads += 1;
    }

    /// Whether it is time to ask.
    pub(crate) fn is_due(&self) -> bool {
        self.loads >= self.patience
    }

    /// The thread asks. What has brought little is asked for more seldom.
    pub(super) fn ask(&mut self, is_worth_it: bool) {
        let patience = if is_worth_it { PATIENCE } else { MOST_PATIENCE.min(self.patience * 2) };
        *self = Asking { loads: 0, patience };
    }
}

impl LastMet {
    /// In a recording: what a watched load reads, if its thread is alone, and has met the word since or had its
    /// memory mapped since; the load is counted. (Called by translated code: see `order::record`. Most of these
    /// loads translated code executes by itself.)
    pub(crate) fn load_alone(
        &mut self,
        (address, size): (u64, u8),
        (fresh, tickets): (&Fresh, &Tickets),
        read: impl FnOnce() -> Option<u64>,
    ) -> Option<u64> {
        if self.alone.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let slot = order::slot(address);
        let met = match self.at(address, size) {
            Some(&met) => met,
            None if fresh.has(address) && tickets.given(slot) == 0 => Met {
                tag: Met::tag(address, size),
                counter: tickets.counter(slot),
                version: NO_VERSION,
                value: 0,
            },
            None => return None,
        };
        self.window.store(1, Ordering::Relaxed);
        // Who ends it has the kernel order the processors.
        compiler_fence(Ordering::SeqCst);
        let mut value = None;
        if self.alone.load(Ordering::Relaxed) != 0 {
            value = read();
            if let Some(value) = value {
                self.entries[Self::place(address, size)] = Met { value, ..met };
                *self.unrecorded.get_mut() += 1;
            }
        }
        self.window.store(0, Ordering::Release);
        value
    }

    /// In a replay: what a watched load without an event reads, if its thread is alone. What is in memory now
    /// is what was there when the thread met the word last, or the thread has stored it since.
    pub fn replay_alone(&mut self, (address, size): (u64, u8), memory: u64) -> u64 {
        let Some(&(mut met)) = self.at(address, size) else {
            self.meet((address, size), memory, 0, memory);
            return memory;
        };
        if memory != met.version {
            met = Met { value: memory, version: memory, ..met };
            self.entries[Self::place(address, size)] = met;
        }
        met.value
    }

    /// From here on the thread is alone: it meets every word anew.
    pub(super) fn begin_alone(&mut self) {
        if self.alone.swap(1, Ordering::SeqCst) == 0 {
            self.entries.fill(Met::default());
        }
    }

    /// The thread, another one than the caller, is not alone any more, and counts no load as if it were.
    pub(crate) fn end_alone(&self, barrier: &Barrier) {
        self.alone.store(0, Ordering::SeqCst);
        barrier.heavy();
        while self.window.load(Ordering::Acquire) != 0 {
            host::let_others_go_on();
        }
    }
}

impl Alone {
    pub(crate) fn new(barrier: Barrier) -> Alone {
        Alone { asked: AtomicU64::new(0), state: Mutex::default(), barrier }
    }

    /// How often threads have asked whether they are alone. A thread that enters guest code, and finds that
    /// the number has changed since it was there last, has to come back (`record_alone`).
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    /// As long as the caller keeps the result, no thread becomes alone or stops being alone.
    pub(crate) fn still(&self) -> impl Drop + '_ {
        self.state()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it if a thread is alone. Returns how often threads have asked whether they are alone, and the handover
    /// that ended the last time in which a thread was alone, if there was one.
    pub(super) fn end(
        &self,
        (log, tickets): (&Log, &Tickets),
    ) -> Result<(u64, Option<(u64, u64)>), Closed> {
        let mut state = self.state();
        if let Some((thread, since)) = state.thread.take() {
            state.lasted = since.elapsed();
            let make = || handover(thread, accessed::ALONE, tickets);
            let ticket = log.insert_behind_alone(thread, make)?;
            state.ended = Some((order::accesses_object(thread), ticket + 1));
        }
        Ok((self.asked(), state.ended))
    }

    /// Whether it is this thread that is alone.
    pub(crate) fn is(&self, me: ThreadId) -> bool {
        self.state().thread.is_some_and(|(thread, _)| thread == me)
    }

    /// Only this thread goes on: the others are not in this process.
    pub(crate) fn forget(&self) {
        *self.state() = State::default();
    }
}

#[cfg(test)]
mod tests {
    use super::{Asking, Barrier, Fresh, LastMet, MOST_PATIENCE, PATIENCE, Tickets, order};
    use std::sync::atomic::Ordering;
    use std::thread;

    const WORD: (u64, u8) = (0x1000_0040, 8);

    #[test]
    fn who_gains_little_asks_seldom() {
        let mut asking = Asking::default();
        let loads = |asking: &mut Asking| {
            let mut loads = 0;
            while !asking.is_due() {
                asking.count();
                loads += 1;
            }
            loads
        };
        assert_eq!(loads(&mut asking), PATIENCE);
        asking.ask(false);
        assert_eq!(loads(&mut asking), 2 * PATIENCE);
        (0..20).for_each(|_| asking.ask(false));
        assert_eq!(loads(&mut asking), MOST_PATIENCE);
        asking.ask(true);
        assert_eq!(loads(&mut asking), PATIENCE);
    }

    /// A load is counted if nothing but the thread itself can have changed the word since it met it.
    #[test]
    fn what_a_thread_that_is_alone_loads_is_counted() {
        let mut met = LastMet::new();
        let tickets = Tickets::new();
        let mut fresh = Fresh::default();
        fresh.add(WORD.0..WORD.0 + 8);
        let ways = (&fresh, &tickets);
        let load = |met: &mut LastMet, value| met.load_alone(WORD, ways, || Some(value));
        met.meet(WORD, 1, 0, 0);
        assert_eq!(load(&mut met, 1), None, "it is not alone");
        met.begin_alone();
        assert_eq!((load(&mut met, 2), load(&mut met, 3)), (Some(2), Some(3)));
        assert_eq!(met.load_alone(WORD, ways, || None), None, "it cannot be read");
        assert_eq!(
            (met.unrecorded.load(Ordering::Relaxed), met.at(WORD.0, 8).unwrap().value),
            (2, 3)
        );
        let (_, version) = tickets.among(order::slot(WORD.0), || ());
        assert_ne!(met.at(WORD.0, 8).unwrap().version, version, "later, a load has an event");
        met.forget();
        let old = met.load_alone(WORD, (&Fresh::default(), &tickets), || Some(4));
        assert_eq!(old, None, "others may have stored there before");
        tickets.take(order::slot(WORD.0));
        assert_eq!(load(&mut met, 4), None, "somebody has stored there");
        met.meet(WORD, 4, 0, 1);
        assert_eq!(load(&mut met, 5), Some(5));
        met.end_alone(&Barrier::new());
        assert_eq!(met.window.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn ranges_grow_together() {
        let mut fresh = Fresh::default();
        for start in [0x5000, 0x1000, 0x6000, 0x4000] {
            fresh.add(start..start + 0x1000);
        }
        assert_eq!(fresh.0, [0x4000..0x7000, 0x1000..0x2000]);
        assert!(fresh.has(0x4fff) && fresh.has(0x1000) && !fresh.has(0x2000));
        (0..Fresh::MOST as u64).for_each(|at| fresh.add(at << 20..(at << 20) + 1));
        assert_eq!(fresh.0.len(), Fresh::MOST);
        assert!(!fresh.has(0x4fff), "the oldest ones are forgotten");
    }

    /// In a replay, memory may be ahead of what a load with an event read.
    #[test]
    fn a_replay_tells_own_stores_from_those_that_were_there() {
        let mut met = LastMet::new();
        assert_eq!(met.replay_alone(WORD, 5), 5, "what nobody has stored to");
        met.meet(WORD, 5, 0, 7);
        assert_eq!(met.replay_alone(WORD, 7), 5, "it was there when the load read 5");
        assert_eq!(met.replay_alone(WORD, 8), 8);
        assert_eq!(met.replay_alone(WORD, 8), 8);
        assert_eq!(met.replay_alone(WORD, 7), 7, "the thread has stored it again");
    }

    #[test]
    fn whoever_ends_it_waits_for_the_window() {
        let met = LastMet::new();
        met.alone.store(1, Ordering::SeqCst);
        met.window.store(1, Ordering::SeqCst);
        thread::scope(|scope| {
            let ender = scope.spawn(|| met.end_alone(&Barrier::new()));
            while met.alone.load(Ordering::SeqCst) != 0 {
                thread::yield_now();
            }
            assert!(!ender.is_finished());
            met.unrecorded.store(1, Ordering::Relaxed);
            met.window.store(0, Ordering::Release);
        });
        assert_eq!(met.unrecorded.load(Ordering::Relaxed), 1);
    }
}
