//! The gate: lets each event through when its ticket is up (ELSC: the recorded order per object,
//! free otherwise; PerfPlay §5.2).
//!
//! A thread that waits here is held back *artificially*. When every thread waits and no
//! condition holds, no condition will ever hold: the gate reports this instead of hanging.
//!
//! Under a scheduler that decides anew ([`super::Policy::Anew`]) threads wait here for its grants
//! too. When no thread can go on with the recorded order of the other events, the gate gives this order
//! up.

mod freed;
mod sleepers;
mod spin;

use super::arrivals::Arrivals;
use super::grants::{Asked, Grants, News};
use super::objects::Words;
use super::overwritten::Overwritten;
use crate::host::{self, Guest};
use refrain_scheduler::Scheduler;
use refrain_trace::{ThreadId, order};
use sleepers::Sleepers;
use spin::Spin;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{OnceLock, PoisonError};
use std::time::{Duration, Instant};
use sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use sync::{Mutex, MutexGuard};

// The tests explore interleavings, and no nap ends in them: what sleeps must be woken.
#[cfg(test)]
use shuttle::{sync, thread};
#[cfg(not(test))]
use std::{sync, thread};

/// Looks with the core given away in between, before a thread sleeps: whoever it waits for may be
/// the next on that core. Few, because on a busy machine the core goes to other programs, for
/// milliseconds each time, and who sleeps is woken sooner than that. None where there is a core
/// for each thread that is awake: two that only ever yield to each other share one of them, where
/// one that sleeps is woken on another.
const YIELDS: u32 = if cfg!(test) { 1 } else { 5 };
/// A sleeping thread looks again after this time, whatever it was told.
const NAP: Duration = Duration::from_millis(20);
/// Nobody tells of a plain store to guest memory.
const SHORT_NAP: Duration = Duration::from_micros(200);
/// The slot of MEM-S's sequence, after those of the trace.
pub(crate) const SEQUENCE_SLOT: usize = order::SLOTS;

pub(crate) use freed::Freed;

/// What a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Condition {
    /// Exactly this many tickets of the slot are done.
    Turn { slot: usize, ticket: u64 },
    /// At least this many tickets of the slot are done.
    Reached { slot: usize, count: u64 },
    /// The operand in guest memory has this value.
    Value { address: u64, size: u8, value: u64 },
    /// The operand in guest memory has one of these bits.
    Bits { address: u64, mask: u64 },
    /// The operand has the value that a load read in the recording after `count` tickets, or a
    /// later one's holder has overwritten it, or everybody else has come past that time, so that
    /// no store of before is missing. Need not hold: the load has its value in any case.
    Caught { address: u64, size: u8, value: u64, count: u64, time: u64 },
    /// There is news for the thread about its request.
    News { thread: ThreadId },
    /// The thread has ended.
    Ended { thread: ThreadId },
    /// All other threads have come past this time.
    Past { time: u64 },
    /// So many events of areas are done ([`refrain_trace::common::AREAS`]).
    Areas { count: u64 },
    /// So many changes of the address space are done. Need not come true: the thread has another way to go
    /// on, if no other thread can.
    Changed { count: u64 },
}

impl Condition {
    /// Of a condition about tickets: the slot, and how many of its tickets must be done.
    fn place(self) -> Option<(usize, u64)> {
        match self {
            Condition::Turn { slot, ticket: place } | Condition::Reached { slot, count: place } => {
                Some((slot, place))
            }
            _ => None,
        }
    }
}

/// The wait cannot end: no thread can go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stuck;

/// Words of the guest.
struct GuestWords;

impl Words for GuestWords {
    fn load(&self, address: u64) -> u32 {
        Guest.word32(address).unwrap_or(0)
    }

    fn store(&mut self, address: u64, word: u32) {
        Guest.store(address, &word.to_le_bytes());
    }
}

/// What it takes to decide anew.
struct Anew {
    grants: Mutex<Grants<GuestWords>>,
    /// By thread, as [`News`]: 0 for none.
    news: Box<[AtomicU8]>,
    ended: Box<[AtomicBool]>,
    /// Tickets that were done before their turn.
    early: Mutex<BTreeMap<usize, BTreeSet<u64>>>,
    /// Slots whose recorded order gave way.
    gave_way: Mutex<BTreeSet<usize>>,
}

const GRANTED: u8 = 1;
const RETRY: u8 = 2;

impl Anew {
    /// Takes the news to where threads look; says whose they are.
    fn post_news(&self, grants: &mut Grants<GuestWords>) -> Vec<ThreadId> {
        let post = |(thread, news): (ThreadId, News)| {
            let code = if news == News::Granted { GRANTED } else { RETRY };
            self.news[thread.index()].store(code, Ordering::SeqCst);
            thread
        };
        grants.take_news().into_iter().map(post).collect()
    }
}

/// The state of all waiting.
pub(crate) struct Gate {
    done: Box<[AtomicU64]>,
    sleepers: Sleepers,
    /// Held by the thread that judges whether any can go on.
    judging: Mutex<()>,
    pub(crate) arrivals: Arrivals,
    pub(crate) overwritten: Overwritten,
    /// What all threads waited for when it turned out that none can go on.
    stuck: OnceLock<Vec<(ThreadId, Condition)>>,
    /// Without any arrival for so long, some thread is running in circles.
    give_up: Duration,
    /// How many events of areas are done.
    areas: AtomicU64,
    /// On how many threads run.
    cores: usize,
    anew: Option<Anew>,
    freed: Option<Freed>,
}

impl Gate {
    /// A gate for a run of so many threads that took `recorded` altogether. A replay that follows
    /// the recording can be slow, but not by a factor that has no bound.
    pub(crate) fn new(recorded: Duration, threads: u32, cores: usize) -> Gate {
        Gate {
            cores,
            arrivals: Arrivals::new(threads),
            overwritten: Overwritten::default(),
            areas: AtomicU64::new(0),
            give_up: Duration::from_secs(60) + 20 * recorded,
            done: (0..=SEQUENCE_SLOT).map(|_| AtomicU64::new(0)).collect(),
            sleepers: Sleepers::new(threads),
            judging: Mutex::default(),
            stuck: OnceLock::new(),
            anew: None,
            freed: None,
        }
    }

    /// The same, but locks are freed. Each thread then has a slot that counts its events.
    pub(crate) fn freeing(self, freed: Freed, threads: u32) -> Gate {
        let slots = SEQUENCE_SLOT + 1 + threads as usize;
        let done = (0..slots).map(|_| AtomicU64::new(0)).collect();
        Gate { done, freed: Some(freed), ..self }
    }

    /// What is freed, if anything.
    pub(crate) fn freed(&self) -> Option<&Freed> {
        self.freed.as_ref()
    }

    /// The end of a section of a thread: so many of its events must be done.
    pub(crate) fn ended((thread, count): (ThreadId, u64)) -> Condition {
        Condition::Reached { slot: SEQUENCE_SLOT + 1 + thread.index(), count }
    }

    /// Notes that a thread has done its events up to this one, which is of a freed lock. Says whether
    /// the caller must [`Self::wake`].
    pub(crate) fn pass(&self, thread: ThreadId, event: u64) -> bool {
        let slot = SEQUENCE_SLOT + 1 + thread.index();
        let Some(done) = self.done.get(slot) else { return false };
        let count = event.saturating_add(1);
        done.store(count, Ordering::SeqCst);
        self.sleepers.may_go_on(slot, count)
    }

    /// The same, but a scheduler decides who gets a lock.
    pub(crate) fn anew(
        recorded: Duration,
        scheduler: Box<dyn Scheduler + Send>,
        threads: u32,
        cores: usize,
    ) -> Gate {
        let anew = Anew {
            grants: Mutex::new(Grants::new(scheduler, GuestWords, threads as usize)),
            news: (0..threads).map(|_| AtomicU8::new(0)).collect(),
            ended: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            early: Mutex::default(),
            gave_way: Mutex::default(),
        };
        Gate { anew: Some(anew), ..Gate::new(recorded, threads, cores) }
    }

    /// Whether a scheduler decides who gets a lock, so that values are live.
    pub(crate) fn is_live(&self) -> bool {
        self.anew.is_some()
    }

    /// A thread begins to run.
    pub(crate) fn enter(&self, thread: ThreadId) {
        self.arrivals.begin(thread);
        self.sleepers.enter();
        if let Some(anew) = self.anew_for(thread) {
            locked(&anew.grants).begin(thread);
        }
    }

    /// A trace that was cut off may name a thread and have no event of it, so that it is over
    /// before it asks for anything.
    fn anew_for(&self, thread: ThreadId) -> Option<&Anew> {
        self.anew.as_ref().filter(|anew| thread.index() < anew.ended.len())
    }

    /// A thread will not run any more.
    pub(crate) fn leave(&self, thread: ThreadId) {
        self.arrivals.end(thread);
        if let Some(anew) = self.anew_for(thread) {
            anew.ended[thread.index()].store(true, Ordering::SeqCst);
            self.with_grants(anew, |grants| grants.end(thread));
        }
        if self.freed.is_some() {
            // A lock that it never gave back is free with its end. All are woken below.
            self.pass(thread, u64::MAX);
        }
        self.sleepers.leave();
        // Those who wait must find out whether anybody is left to wait for.
        self.sleepers.call_if(|_, _| true);
    }

    /// So many events of areas are done.
    pub(crate) fn areas_done(&self, count: u64) {
        self.areas.fetch_max(count, Ordering::SeqCst);
    }

    /// How many tickets of a slot are done.
    pub(crate) fn done(&self, slot: usize) -> u64 {
        self.done[slot].load(Ordering::SeqCst)
    }

    /// How many threads do not wait.
    pub(crate) fn awake(&self) -> usize {
        self.sleepers.awake()
    }

    /// Whether a thread runs guest code, as far as is known here: it has begun, has not ended, and
    /// does not wait.
    pub(crate) fn is_running(&self, thread: ThreadId) -> bool {
        self.arrivals.runs(thread) && !self.sleepers.sleeps(thread)
    }

    /// The holder of `ticket` has performed its event.
    pub(crate) fn advance(&self, slot: usize, ticket: u64) {
        let somebody_waits = match &self.anew {
            None => self.finish_turn(slot, ticket),
            Some(anew) => {
                self.advance_anew(anew, slot, ticket);
                self.sleepers.may_go_on(slot, self.done[slot].load(Ordering::SeqCst))
            }
        };
        if somebody_waits {
            self.wake();
        }
    }

    /// Whether `condition` holds now or in a moment. For callers that cannot [`Self::wait`].
    pub(crate) fn soon(&self, thread: ThreadId, condition: Condition) -> bool {
        let mut spin = Spin::on(condition);
        let Some((slot, place)) = condition.place() else {
            return spin.until(|| if self.holds(thread, condition) { Ok(()) } else { Err(1) });
        };
        // One look at the counter tells both.
        let exactly = matches!(condition, Condition::Turn { .. });
        spin.until(|| {
            let done = self.done[slot].load(Ordering::SeqCst);
            let holds = done == place || done > place && !exactly;
            if holds { Ok(()) } else { Err(place.saturating_sub(done)) }
        })
    }

    /// Whether a word has the value that `condition` asks for, which the caller can see, now or in
    /// a moment.
    pub(crate) fn soon_there(&self, condition: Condition, is_there: impl Fn() -> bool) -> bool {
        Spin::on(condition).until(|| if is_there() { Ok(()) } else { Err(1) })
    }

    /// The holder of `ticket` has performed its event. Whether the caller must [`Self::wake`].
    /// (For callers that have not the means.)
    pub(crate) fn finish_turn(&self, slot: usize, ticket: u64) -> bool {
        let freed = self.freed.as_ref();
        let done = freed.and_then(|freed| freed.advance(slot, ticket, &self.done[slot]));
        if done.is_none() {
            self.done[slot].store(ticket + 1, Ordering::SeqCst);
        }
        self.sleepers.may_go_on(slot, done.unwrap_or(ticket + 1))
    }

    /// Wakes the sleepers whose conditions hold.
    #[cold]
    #[inline(never)]
    pub(crate) fn wake(&self) {
        self.sleepers.call_if(|thread, condition| self.holds(thread, condition));
    }

    /// Tickets may be done in any order; what counts is how many are done without a gap.
    fn advance_anew(&self, anew: &Anew, slot: usize, ticket: u64) {
        let mut all = locked(&anew.early);
        let mut done = self.done[slot].load(Ordering::SeqCst);
        if ticket != done {
            all.entry(slot).or_default().insert(ticket);
            return;
        }
        done += 1;
        if let Some(early) = all.get_mut(&slot) {
            while early.remove(&done) {
                done += 1;
            }
        }
        self.done[slot].store(done, Ordering::SeqCst);
    }

    /// Waits until `condition` holds.
    pub(crate) fn wait(&self, thread: ThreadId, condition: Condition) -> Result<(), Stuck> {
        if self.soon(thread, condition) {
            return Ok(());
        }
        let yields = if matches!(condition, Condition::News { .. }) { 0 } else { YIELDS };
        for _ in 0..yields {
            if self.holds(thread, condition) {
                return Ok(());
            }
            if self.sleepers.awake() <= self.cores {
                break;
            }
            if cfg!(test) {
                thread::yield_now();
            } else {
                host::yield_now();
            }
        }
        self.sleep(thread, condition)
    }

    /// Performs an operation on an object of the library, once it is possible and the scheduler
    /// grants it.
    pub(crate) fn perform(&self, thread: ThreadId, asked: Asked) -> Result<(), Stuck> {
        let anew = self.anew.as_ref().expect("requests are for schedulers that decide anew");
        while !self.with_grants(anew, |grants| grants.request(thread, asked)) {
            self.wait(thread, Condition::News { thread })?;
            if anew.news[thread.index()].swap(0, Ordering::SeqCst) == GRANTED {
                break;
            }
        }
        Ok(())
    }

    /// A thread has retired so many instructions.
    pub(crate) fn publish(&self, thread: ThreadId, retired: u64) {
        if let Some(anew) = self.anew_for(thread) {
            self.with_grants(anew, |grants| grants.publish(thread, retired));
        }
    }

    /// What came in another order than recorded, the first few of each kind, in words.
    pub(crate) fn reordered(&self) -> Vec<String> {
        let Some(anew) = &self.anew else {
            return Vec::new();
        };
        // Done, while an earlier one of the slot is not: it came too soon.
        let early: Vec<usize> = {
            let early = locked(&anew.early);
            early.iter().filter(|(_, tickets)| !tickets.is_empty()).map(|(&slot, _)| slot).collect()
        };
        let lock = |at| format!("the lock at {at:#x}");
        let too_soon = |at| early.contains(&order::slot(at));
        let mut all: Vec<String> = locked(&anew.grants).reordered(too_soon).map(lock).collect();
        let name = |&slot: &usize| match slot {
            order::SYSCALL_SLOT => "system calls",
            order::MEMORY_SLOT => "changes of the address space",
            order::THREADS_SLOT => "the beginnings and ends of threads",
            _ => "atomic instructions",
        };
        let names: BTreeSet<&str> = locked(&anew.gave_way).iter().map(name).collect();
        all.extend(names.into_iter().map(str::to_owned));
        all
    }

    /// What keeps the threads from going on, in words.
    pub(crate) fn explain(&self) -> String {
        const SHOWN: usize = 16;
        let of_locks = self.anew.as_ref().map(|anew| locked(&anew.grants).explain());
        if let Some(words) = of_locks.filter(|words| !words.is_empty()) {
            return words;
        }
        let waiting = self.stuck.get().map_or(&[][..], Vec::as_slice);
        let each = waiting.iter().take(SHOWN).map(|(thread, what)| format!("{thread}: {what:?}"));
        let more = if waiting.len() > SHOWN { ", ..." } else { "" };
        format!("every thread waits ({}{more})", each.collect::<Vec<_>>().join(", "))
    }

    /// Does something to the requests, and passes on what that means for waiting threads.
    fn with_grants<T>(&self, anew: &Anew, act: impl FnOnce(&mut Grants<GuestWords>) -> T) -> T {
        let mut grants = locked(&anew.grants);
        let result = act(&mut grants);
        let all = anew.post_news(&mut grants);
        drop(grants);
        all.into_iter().for_each(|thread| self.sleepers.call(thread));
        result
    }

    fn sleep(&self, thread: ThreadId, condition: Condition) -> Result<(), Stuck> {
        let nap = match condition {
            Condition::Value { .. }
            | Condition::Bits { .. }
            | Condition::Caught { .. }
            | Condition::Past { .. }
            | Condition::Areas { .. } => SHORT_NAP,
            _ => NAP,
        };
        self.sleepers.lie_down(thread, condition);
        let mut last = (self.arrivals.sum(), Instant::now());
        let result = loop {
            if self.holds(thread, condition) || self.sleepers.is_excused(thread) {
                break Ok(());
            }
            let arrived = self.arrivals.sum();
            if arrived != last.0 {
                last = (arrived, Instant::now());
            }
            if self.nobody_can_run() || last.1.elapsed() > self.give_up {
                let all = self.sleepers.all().collect();
                let _ = self.stuck.set(all);
            }
            if self.stuck.get().is_some() {
                break Err(Stuck);
            }
            if !self.holds(thread, condition) {
                thread::park_timeout(nap);
            }
            if !self.holds(thread, condition) && !self.sleepers.is_excused(thread) {
                self.sleepers.doze(thread);
            }
        };
        self.sleepers.rise(thread, condition);
        result
    }

    /// Whether every thread sleeps, no condition holds, and nothing gives way.
    ///
    /// Only threads that are awake make conditions hold. A thread that wakes, or is called, is counted as
    /// awake, then as an awakening; only after that is it missing in the list of the sleepers, and can do
    /// something. So if no thread was awake, and there was no awakening while the conditions were looked at,
    /// the list was complete, and no thread has done anything meanwhile. The count of those awake alone does not
    /// tell: a thread that was called in vain is missing in the list for a moment, and then sleeps again.
    fn nobody_can_run(&self) -> bool {
        if self.sleepers.awake() > 0 {
            return false;
        }
        let _judge = locked(&self.judging);
        let awakenings = self.sleepers.awakenings();
        if self.sleepers.awake() > 0 {
            return false;
        }
        let asleep: Vec<(ThreadId, Condition)> = self.sleepers.all().collect();
        let can_go_on = |&(thread, condition): &(ThreadId, Condition)| {
            self.sleepers.is_excused(thread) || self.holds(thread, condition)
        };
        let any_can = asleep.iter().any(can_go_on);
        if any_can || self.sleepers.awake() > 0 || self.sleepers.awakenings() != awakenings {
            return false;
        }
        !self.excuse_earliest(&asleep)
            && !self.anew.as_ref().is_some_and(|anew| self.give_way(anew, &asleep))
    }

    /// Lets the earliest of the loads go on that only wait for a store that may be missing. If there is
    /// none, a thread that only waits for a change of the address space.
    fn excuse_earliest(&self, asleep: &[(ThreadId, Condition)]) -> bool {
        let loads = asleep.iter().filter_map(|&(thread, condition)| match condition {
            Condition::Caught { time, .. } => Some((time, thread)),
            Condition::Changed { .. } => Some((u64::MAX, thread)),
            _ => None,
        });
        let Some((_, thread)) = loads.min() else {
            return false;
        };
        self.sleepers.excuse(thread);
        true
    }

    /// Every thread waits. First a thread that waits for its turn at an object gets one, and if
    /// there is none, a recorded order gives way to the thread that is nearest to its place.
    /// All threads wait whenever this happens, so it does not depend on their speed.
    fn give_way(&self, anew: &Anew, asleep: &[(ThreadId, Condition)]) -> bool {
        let mut grants = locked(&anew.grants);
        while grants.force() {
            let all = anew.post_news(&mut grants);
            if !all.is_empty() {
                all.into_iter().for_each(|thread| self.sleepers.call(thread));
                return true;
            }
        }
        let distance = |condition: Condition| match condition {
            // Only the instruction itself can tell what it makes of another value.
            Condition::Value { address, .. } => Some((0, order::slot(address))),
            _ => condition.place().map(|(slot, place)| {
                (place.abs_diff(self.done[slot].load(Ordering::SeqCst)), slot)
            }),
        };
        let candidates = asleep.iter().filter_map(|&(thread, condition)| {
            let (far, slot) = distance(condition)?;
            Some((far, thread, slot))
        });
        let Some((_, thread, slot)) = candidates.min() else {
            return false;
        };
        locked(&anew.gave_way).insert(slot);
        self.sleepers.excuse(thread);
        true
    }

    fn holds(&self, thread: ThreadId, condition: Condition) -> bool {
        match condition {
            Condition::Caught { address, size, value, count, time } => {
                self.overwritten.since(address, count)
                    || Guest.operand(address, size) == Some(value)
                    || self.arrivals.all_past(thread, time)
            }
            Condition::Turn { slot, ticket } => self.done[slot].load(Ordering::SeqCst) == ticket,
            Condition::Reached { slot, count } => self.done[slot].load(Ordering::SeqCst) >= count,
            Condition::Value { address, size, value } => {
                Guest.operand(address, size) == Some(value)
            }
            Condition::Bits { address, mask } => {
                Guest.word32(address).is_some_and(|word| u64::from(word) & mask != 0)
            }
            Condition::News { thread } => self
                .anew
                .as_ref()
                .is_some_and(|anew| anew.news[thread.index()].load(Ordering::SeqCst) != 0),
            Condition::Past { time } => self.arrivals.all_past(thread, time),
            Condition::Changed { count } => self.done(order::MEMORY_SLOT) >= count,
            Condition::Areas { count } => self.areas.load(Ordering::SeqCst) >= count,
            Condition::Ended { thread } => self
                .anew
                .as_ref()
                .is_some_and(|anew| anew.ended[thread.index()].load(Ordering::SeqCst)),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
