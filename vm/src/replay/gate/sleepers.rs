//! Which threads sleep at the gate, and for what.
//!
//! Threads that do not run at the same time sleep and wake at every hand-over of a lock, so sleeping
//! must be cheap: no data here is shared by all threads, and each thread has a berth of its own. A thread
//! that makes a condition hold looks at the berths of those that sleep (bits in `asleep`), and holds no
//! lock while it wakes them.
//!
//! No wake-up is lost: a sleeper registers before it looks at its condition for the last time, and a
//! thread makes a condition hold before it looks for sleepers.
//!
//! A thread that has been called counts as awake, although it may have to wait for a core: otherwise
//! another thread could find that all others sleep while one of them is about to go on.

use super::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use super::sync::{Mutex, MutexGuard};
use super::thread::{self, Thread};
use super::{Condition, locked};
use crossbeam::utils::CachePadded;
use refrain_trace::{ThreadId, order};

/// Counters of sleepers by slot. Slots share them, at the price of a look at sleepers in vain.
const COUNTERS: usize = 256;
/// The counter of those who wait for memory.
const MEMORY: usize = COUNTERS;
const BITS: usize = u64::BITS as usize;

/// A thread's place to sleep.
#[derive(Default)]
struct Berth {
    /// What it sleeps for, and how to wake it; of its last sleep, if it is awake.
    sleep: Mutex<Option<(Condition, Thread)>>,
    /// Of a condition about tickets: the slot, and how many of its tickets must be done.
    slot: AtomicUsize,
    place: AtomicU64,
    /// It may go on although its condition does not hold.
    excused: AtomicBool,
}

/// The sleepers of a gate.
pub(super) struct Sleepers {
    berths: Box<[CachePadded<Berth>]>,
    /// A bit for each thread that sleeps and has not been called.
    asleep: Box<[AtomicU64]>,
    /// Threads that neither sleep nor are finished.
    awake: AtomicUsize,
    /// See [`Self::awakenings`].
    awakenings: AtomicU64,
    /// How many sleep for a slot, by [`Condition::counter`], so that most events find out by a load
    /// that they need not wake anybody.
    counts: Box<[AtomicUsize]>,
}

impl Condition {
    /// Which counter a sleeper is in. Who waits for a thread is told by that thread.
    fn counter(self) -> Option<usize> {
        match self {
            Condition::Value { .. } | Condition::Bits { .. } | Condition::Caught { .. } => {
                Some(MEMORY)
            }
            Condition::Changed { .. } => Some(order::MEMORY_SLOT % COUNTERS),
            _ => self.place().map(|(slot, _)| slot % COUNTERS),
        }
    }
}

impl Sleepers {
    /// Berths for so many threads.
    pub(super) fn new(threads: u32) -> Sleepers {
        let threads = threads as usize;
        Sleepers {
            berths: (0..threads).map(|_| CachePadded::default()).collect(),
            asleep: (0..threads.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect(),
            awake: AtomicUsize::new(0),
            awakenings: AtomicU64::new(0),
            counts: (0..=MEMORY).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    /// Another thread is there, and awake.
    pub(super) fn enter(&self) {
        self.awake.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread that was awake is gone.
    pub(super) fn leave(&self) {
        self.awake.fetch_sub(1, Ordering::SeqCst);
    }

    /// Threads that are awake.
    pub(super) fn awake(&self) -> usize {
        self.awake.load(Ordering::SeqCst)
    }

    /// Whether a thread sleeps and has not been called.
    pub(super) fn sleeps(&self, thread: ThreadId) -> bool {
        let (word, bit) = self.bit(thread);
        word.load(Ordering::SeqCst) & bit != 0
    }

    /// How often a thread was called, even in vain, or woke by itself. Each time the thread is counted in
    /// `awake` first, then here, and only then is it missing in [`Self::all`].
    pub(super) fn awakenings(&self) -> u64 {
        self.awakenings.load(Ordering::SeqCst)
    }

    /// The calling thread is about to sleep. From now on it is called when its condition may hold.
    pub(super) fn lie_down(&self, thread: ThreadId, condition: Condition) {
        *self.sleep_of(thread) = Some((condition, thread::current()));
        let (slot, place) = condition.place().unwrap_or((usize::MAX, 0));
        self.berths[thread.index()].slot.store(slot, Ordering::SeqCst);
        self.berths[thread.index()].place.store(place, Ordering::SeqCst);
        if let Some(counter) = condition.counter() {
            self.counts[counter].fetch_add(1, Ordering::SeqCst);
        }
        self.doze(thread);
    }

    /// The calling thread, which lay down, and has been called in vain, sleeps again.
    pub(super) fn doze(&self, thread: ThreadId) {
        let (word, bit) = self.bit(thread);
        if word.fetch_or(bit, Ordering::SeqCst) & bit == 0 {
            self.awake.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The calling thread, which slept for this, goes on.
    pub(super) fn rise(&self, thread: ThreadId, condition: Condition) {
        self.count_awake(thread);
        if let Some(counter) = condition.counter() {
            self.counts[counter].fetch_sub(1, Ordering::SeqCst);
        }
        self.berths[thread.index()].excused.store(false, Ordering::SeqCst);
    }

    /// Makes a sleeping thread one that is awake; false if it was already. Never are fewer
    /// counted than are awake.
    fn count_awake(&self, thread: ThreadId) -> bool {
        let (word, bit) = self.bit(thread);
        self.awake.fetch_add(1, Ordering::SeqCst);
        self.awakenings.fetch_add(1, Ordering::SeqCst);
        let slept = word.fetch_and(!bit, Ordering::SeqCst) & bit != 0;
        if !slept {
            self.awake.fetch_sub(1, Ordering::SeqCst);
        }
        slept
    }

    /// Whether somebody sleeps who may be able to go on now that so many tickets of this slot are
    /// done: who waits for them, or for memory.
    pub(super) fn may_go_on(&self, slot: usize, done: u64) -> bool {
        let sleeps = |counter: usize| self.counts[counter].load(Ordering::SeqCst) > 0;
        let waits = |id: ThreadId| {
            let berth = &self.berths[id.index()];
            berth.slot.load(Ordering::SeqCst) == slot && berth.place.load(Ordering::SeqCst) <= done
        };
        sleeps(MEMORY) || sleeps(slot % COUNTERS) && self.ids().any(waits)
    }

    /// Those who sleep, in the order of their ids, and what each waits for.
    pub(super) fn all(&self) -> impl Iterator<Item = (ThreadId, Condition)> {
        self.ids().filter_map(|id| Some((id, self.sleep_of(id).as_ref()?.0)))
    }

    /// Calls those whose conditions hold.
    pub(super) fn call_if(&self, holds: impl Fn(ThreadId, Condition) -> bool) {
        for (thread, condition) in self.all() {
            if holds(thread, condition) {
                self.call(thread);
            }
        }
    }

    /// Wakes a thread, if it sleeps and nobody else has.
    pub(super) fn call(&self, thread: ThreadId) {
        let (word, bit) = self.bit(thread);
        if word.load(Ordering::SeqCst) & bit == 0 || !self.count_awake(thread) {
            return;
        }
        // Let go of its berth first: it may want to lie down there again.
        let sleeper = self.sleep_of(thread).as_ref().map(|(_, sleeper)| sleeper.clone());
        if let Some(sleeper) = sleeper {
            sleeper.unpark();
        }
    }

    /// Lets a sleeping thread go on although its condition does not hold.
    pub(super) fn excuse(&self, thread: ThreadId) {
        self.berths[thread.index()].excused.store(true, Ordering::SeqCst);
        self.call(thread);
    }

    pub(super) fn is_excused(&self, thread: ThreadId) -> bool {
        self.berths[thread.index()].excused.load(Ordering::SeqCst)
    }

    fn ids(&self) -> impl Iterator<Item = ThreadId> {
        self.asleep.iter().enumerate().flat_map(|(n, word)| {
            let mut left = word.load(Ordering::SeqCst);
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(ThreadId((n * BITS) as u32 + bit))
            })
        })
    }

    fn sleep_of(&self, thread: ThreadId) -> MutexGuard<'_, Option<(Condition, Thread)>> {
        locked(&self.berths[thread.index()].sleep)
    }

    fn bit(&self, thread: ThreadId) -> (&AtomicU64, u64) {
        (&self.asleep[thread.index() / BITS], 1 << (thread.index() % BITS))
    }
}
