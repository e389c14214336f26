//! Locks that are alive: who holds what in a replay that decides the order anew.
//!
//! Bodies of library functions do not run in a replay, so the mutexes, condition variables and
//! barriers of the guest have their state here. Semaphores keep it in guest memory, where
//! `sem_init` puts it: nothing else tells that one was made anew. Try-locks have their recorded
//! outcome: a failed one does nothing, a successful one waits until it can succeed.
//!
//! This is the state alone: threads come with requests, and requests that wait are granted by
//! those of other threads. Who asks, waits and wakes is `gate`.
//!
//! # Policies with turns
//! Under Kendo, PCT and random every operation, a release too, happens in its thread's *turn*: its
//! key is the least of all threads that run or wait for a turn. A thread that must wait for
//! another is out of the question until that one lets it go, in a turn of its own. So the order
//! of all operations follows from the keys and not from the speed of the threads.
//!
//! Deviations from the papers:
//! 1. Kendo's releases take no turn; there a lock remembers when it was released. Turns for all
//!    make one rule for every primitive.
//! 2. Kendo's clocks are seen by others at any time, ours at events. That makes others wait
//!    longer, for the same order.
//! 3. A thread that was let go continues with the clock of the thread that did it, if that is
//!    ahead (Kendo counts up while it waits; the effect is the same).
//! 4. A new thread's priority lies below its creator's, so that it does not matter when exactly
//!    it came into being.
//! 5. If all threads that could have a turn wait for something else (a recorded order), the
//!    least of those that are ready gets one.

use super::policy::Policy;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use refrain_trace::{ThreadId, order};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

/// What a thread wants of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    /// To hold it alone.
    Lock { object: u64 },
    /// To hold it with other readers.
    Read { object: u64 },
    /// To let go of it.
    Unlock { object: u64 },
    /// To let go of the mutex, be signalled (unless the wait timed out), and hold it again.
    Wait { mutex: u64, condition: Option<u64> },
    /// To hold the mutex as often as before a wait.
    Relock { mutex: u64, depth: u32 },
    /// To wake one thread, or all, that wait on a condition variable.
    Signal { condition: u64, all: bool },
    /// To wait until all have come to the barrier.
    Arrive { barrier: u64 },
    /// To take a semaphore down.
    Take { semaphore: u64 },
    /// To take it up.
    Post { semaphore: u64 },
    /// To wait until a thread has come to its exit.
    Join { thread: ThreadId },
    /// To exit.
    Exit,
}

/// What live objects need of guest memory: words of 32 bits.
pub(crate) trait Words: Send {
    fn load(&self, address: u64) -> u32;
    fn store(&mut self, address: u64, word: u32);
}

/// What becomes of a thread that waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    /// Its operation is done.
    Granted,
    /// It may ask again.
    Retry,
}

/// Offsets in glibc's `pthread_mutex_t` and `pthread_barrier_t`, which are part of its ABI.
const MUTEX_KIND: u64 = 16;
const BARRIER_COUNT: u64 = 8;
/// PTHREAD_MUTEX_RECURSIVE among the kinds of mutexes, robust and other flags left out.
const RECURSIVE: u32 = 1;
const KINDS: u32 = 3;
/// Keys of threads that PCT has made to fall lie from here on.
const FALLEN: u64 = 1 << 63;
/// Objects that a result names.
const NAMED: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Not created yet, or past its last event.
    Absent,
    /// At work: it will come to its next operation by itself.
    Running,
    /// It waits for its turn.
    Ready(Operation, u64),
    /// It waits for another thread's operation.
    Blocked(Operation, u64),
}

#[derive(Clone, Copy, Debug)]
struct Strand {
    phase: Phase,
    /// The least goes first. A logical clock, or a priority.
    key: u64,
    /// What Kendo's clock is ahead of the thread's own count.
    ahead: u64,
    /// It has come to its exit.
    exited: bool,
}

#[derive(Default, Debug)]
struct Object {
    holder: Option<usize>,
    depth: u32,
    readers: Vec<usize>,
    /// Threads that wait here, in the order in which they came.
    queue: VecDeque<usize>,
    /// The recorded places of acquisitions so far lie below this.
    granted: u64,
}

/// All live objects, and all threads.
pub(crate) struct Live<W> {
    policy: Policy,
    words: W,
    strands: Vec<Strand>,
    objects: BTreeMap<u64, Object>,
    /// News that `gate` has not passed on yet.
    news: Vec<(ThreadId, News)>,
    random: SplitMix,
    /// PCT's steps after which the thread that took them falls.
    falls: BTreeSet<u64>,
    step: u64,
    reordered: BTreeSet<u64>,
}

impl<W: Words> Live<W> {
    /// For a trace with so many threads and so many operations of the library.
    pub(crate) fn new(policy: Policy, words: W, threads: usize, operations: u64) -> Live<W> {
        let seed = match policy {
            Policy::Pct { seed, .. } | Policy::Random { seed } => seed,
            _ => 0,
        };
        let mut random = SplitMix::new(seed);
        let falls = match policy {
            Policy::Pct { depth, .. } => {
                (1..depth).map(|_| random.below(operations.max(1))).collect()
            }
            _ => BTreeSet::new(),
        };
        Live {
            policy,
            words,
            strands: vec![
                Strand { phase: Phase::Absent, key: 0, ahead: 0, exited: false };
                threads
            ],
            objects: BTreeMap::new(),
            news: Vec::new(),
            random,
            falls,
            step: 0,
            reordered: BTreeSet::new(),
        }
    }

    fn turns(&self) -> bool {
        self.policy != Policy::OrigS
    }

    /// A thread begins; `creator` made it.
    pub(crate) fn begin(&mut self, thread: ThreadId, creator: Option<ThreadId>) {
        let from = creator.map_or(0, |creator| self.strands[creator.index()].key);
        let key = match self.policy {
            Policy::Kendo => from,
            _ => from + 1 + self.random.below(FALLEN.saturating_sub(from).max(2) / 2),
        };
        self.strands[thread.index()] =
            Strand { phase: Phase::Running, key, ahead: from, exited: false };
    }

    /// A thread has ended, perhaps without an exit.
    pub(crate) fn end(&mut self, thread: ThreadId) {
        self.exit(thread.index());
        self.strands[thread.index()].phase = Phase::Absent;
        self.settle();
    }

    /// The thread has retired so many instructions: nothing that it does later comes before that.
    pub(crate) fn publish(&mut self, thread: ThreadId, retired: u64) {
        if self.policy == Policy::Kendo {
            let strand = &mut self.strands[thread.index()];
            strand.key = strand.key.max(strand.ahead + retired);
            self.settle();
        }
    }

    /// A thread asks for an operation, whose recorded place among those of its object's slot is
    /// `ticket`. Whether it is done; if not, there will be news for the thread.
    pub(crate) fn request(&mut self, thread: ThreadId, wanted: Operation, ticket: u64) -> bool {
        let id = thread.index();
        self.strands[id].phase = Phase::Ready(wanted, ticket);
        if self.turns() {
            self.settle();
        } else {
            self.take_turn(id);
        }
        self.strands[id].phase == Phase::Running
            && match self.news.iter().position(|(other, _)| *other == thread) {
                // It is here to hear it.
                Some(own) => self.news.swap_remove(own).1 == News::Granted,
                None => true,
            }
    }

    /// Nobody runs: gives a turn to the first of those that wait for one. Whether there was one.
    pub(crate) fn force(&mut self) -> bool {
        let ready = |strand: &Strand| matches!(strand.phase, Phase::Ready(..));
        let Some(id) = self.least(ready) else {
            return false;
        };
        self.take_turn(id);
        self.settle();
        true
    }

    /// Takes the news for threads that waited.
    pub(crate) fn take_news(&mut self) -> Vec<(ThreadId, News)> {
        std::mem::take(&mut self.news)
    }

    /// Objects whose acquisitions came in another order than recorded, the first few. `too_soon`
    /// tells of an object whether one of its events has come before an earlier one.
    pub(crate) fn reordered(&self, too_soon: impl Fn(u64) -> bool) -> impl Iterator<Item = u64> {
        let objects = self.objects.keys().copied();
        objects.filter(move |at| self.reordered.contains(at) || too_soon(*at)).take(NAMED)
    }

    fn least(&self, among: impl Fn(&Strand) -> bool) -> Option<usize> {
        let strands = self.strands.iter().enumerate().filter(|(_, strand)| among(strand));
        strands.min_by_key(|&(id, strand)| (strand.key, id)).map(|(id, _)| id)
    }

    /// Gives turns as long as the next one belongs to a thread that is there to take it.
    fn settle(&mut self) {
        let active = |strand: &Strand| matches!(strand.phase, Phase::Running | Phase::Ready(..));
        while self.turns() {
            match self.least(active) {
                Some(id) if matches!(self.strands[id].phase, Phase::Ready(..)) => {
                    self.take_turn(id);
                }
                _ => return,
            }
        }
    }

    fn take_turn(&mut self, id: usize) {
        let Phase::Ready(wanted, ticket) = self.strands[id].phase else {
            unreachable!("turns go to threads that are ready")
        };
        match self.policy {
            Policy::Random { .. } => self.strands[id].key = self.random.below(FALLEN),
            Policy::Pct { .. } if self.falls.contains(&self.step) => {
                self.strands[id].key = FALLEN + self.step;
            }
            _ => {}
        }
        self.step += 1;
        self.perform(id, wanted, ticket);
    }

    /// Does what a thread wants, or makes it wait.
    fn perform(&mut self, id: usize, wanted: Operation, ticket: u64) {
        match wanted {
            Operation::Unlock { object } => {
                self.unlock(id, object);
                self.grant(id, id);
                self.serve(id, object);
            }
            Operation::Signal { condition, all } => {
                self.grant(id, id);
                self.signal(id, condition, all);
            }
            Operation::Post { semaphore } => {
                let count = self.words.load(semaphore);
                self.words.store(semaphore, count.saturating_add(1));
                self.grant(id, id);
                self.serve(id, semaphore);
            }
            Operation::Wait { mutex, condition } => self.wait(id, (mutex, condition), ticket),
            Operation::Arrive { barrier } => self.arrive(id, barrier, ticket),
            Operation::Join { thread } if !self.strands[thread.index()].exited => {
                self.block(id, wanted, ticket, order::thread_object(thread));
            }
            Operation::Join { .. } => self.grant(id, id),
            Operation::Exit => {
                self.grant(id, id);
                self.exit(id);
            }
            Operation::Lock { object: at }
            | Operation::Read { object: at }
            | Operation::Relock { mutex: at, .. }
            | Operation::Take { semaphore: at } => {
                if self.possible(id, wanted) {
                    self.acquire(id, wanted, ticket);
                    self.grant(id, id);
                } else {
                    self.block(id, wanted, ticket, at);
                }
            }
        }
    }

    fn object(&mut self, address: u64) -> &mut Object {
        self.objects.entry(address).or_default()
    }

    fn block(&mut self, id: usize, wanted: Operation, ticket: u64, at: u64) {
        self.strands[id].phase = Phase::Blocked(wanted, ticket);
        self.object(at).queue.push_back(id);
    }

    /// The operation is done, and `by` is the thread that saw to it.
    fn grant(&mut self, id: usize, by: usize) {
        self.let_go(id, by, News::Granted);
    }

    fn let_go(&mut self, id: usize, by: usize, news: News) {
        if self.policy == Policy::Kendo && id != by {
            let behind = self.strands[by].key.saturating_sub(self.strands[id].key);
            self.strands[id].ahead += behind;
            self.strands[id].key += behind;
        }
        self.strands[id].phase = Phase::Running;
        self.news.push((ThreadId(id as u32), news));
    }

    fn possible(&self, id: usize, wanted: Operation) -> bool {
        let free = |object: u64, alone: bool| match self.objects.get(&object) {
            None => true,
            Some(object) => object.holder.is_none() && (!alone || object.readers.is_empty()),
        };
        match wanted {
            Operation::Lock { object } => {
                let kind = || self.words.load(object + MUTEX_KIND) & KINDS;
                let again = self.objects.get(&object).is_some_and(|o| o.holder == Some(id));
                free(object, true) || again && kind() == RECURSIVE
            }
            Operation::Relock { mutex, .. } => free(mutex, true),
            Operation::Read { object } => free(object, false),
            Operation::Take { semaphore } => self.words.load(semaphore) > 0,
            _ => true,
        }
    }

    /// The effect of an acquisition that is possible.
    fn acquire(&mut self, id: usize, wanted: Operation, ticket: u64) {
        let at = match wanted {
            Operation::Lock { object: at } | Operation::Relock { mutex: at, .. } => {
                let object = self.object(at);
                object.holder = Some(id);
                object.depth +=
                    if let Operation::Relock { depth, .. } = wanted { depth } else { 1 };
                at
            }
            Operation::Read { object: at } => {
                self.object(at).readers.push(id);
                at
            }
            Operation::Take { semaphore: at } => {
                let count = self.words.load(at);
                self.words.store(at, count.saturating_sub(1));
                at
            }
            _ => return,
        };
        let object = self.object(at);
        if ticket < object.granted {
            self.reordered.insert(at);
        } else {
            object.granted = ticket;
        }
    }

    fn unlock(&mut self, id: usize, address: u64) {
        let object = self.object(address);
        if object.holder.is_some() {
            object.depth = object.depth.saturating_sub(1);
            if object.depth == 0 {
                object.holder = None;
            }
        } else if let Some(reader) = object.readers.iter().position(|&reader| reader == id) {
            object.readers.swap_remove(reader);
        }
    }

    /// Lets those go that wait at an object and need not any more. With turns they get it; else
    /// they may try, and whoever comes first gets it.
    fn serve(&mut self, by: usize, address: u64) {
        while let Some(&id) = self.object(address).queue.front() {
            let Phase::Blocked(wanted, ticket) = self.strands[id].phase else {
                unreachable!("who is in a queue is blocked")
            };
            if !self.possible(id, wanted) {
                return;
            }
            self.object(address).queue.pop_front();
            if self.turns() || matches!(wanted, Operation::Relock { .. }) {
                self.acquire(id, wanted, ticket);
                self.grant(id, by);
            } else {
                self.let_go(id, by, News::Retry);
                if !matches!(wanted, Operation::Read { .. }) {
                    return;
                }
            }
        }
    }

    fn wait(&mut self, id: usize, (mutex, condition): (u64, Option<u64>), ticket: u64) {
        let object = self.object(mutex);
        let depth = std::mem::take(&mut object.depth);
        object.holder = None;
        let relock = Operation::Relock { mutex, depth: depth.max(1) };
        self.strands[id].phase = Phase::Blocked(relock, ticket);
        match condition {
            Some(condition) => self.object(condition).queue.push_back(id),
            None => self.object(mutex).queue.push_back(id),
        }
        self.serve(id, mutex);
    }

    fn signal(&mut self, by: usize, condition: u64, all: bool) {
        while let Some(id) = self.object(condition).queue.pop_front() {
            let Phase::Blocked(Operation::Relock { mutex, .. }, _) = self.strands[id].phase else {
                unreachable!("who waits on a condition variable waits for its mutex next")
            };
            self.object(mutex).queue.push_back(id);
            self.serve(by, mutex);
            if !all {
                return;
            }
        }
    }

    fn exit(&mut self, id: usize) {
        self.strands[id].exited = true;
        let object = order::thread_object(ThreadId(id as u32));
        for joiner in self.objects.remove(&object).unwrap_or_default().queue {
            self.grant(joiner, id);
        }
    }

    fn arrive(&mut self, id: usize, barrier: u64, ticket: u64) {
        self.block(id, Operation::Arrive { barrier }, ticket, barrier);
        let needed = self.words.load(barrier + BARRIER_COUNT).max(1) as usize;
        if self.object(barrier).queue.len() >= needed {
            for other in std::mem::take(&mut self.object(barrier).queue) {
                self.grant(other, id);
            }
        }
    }

    /// Why nobody can go on: the cycle of threads each of which waits for the next, or else all
    /// that wait. Empty if no thread waits here.
    pub(crate) fn explain(&self) -> String {
        let waiting: Vec<usize> =
            (0..self.strands.len()).filter(|&id| self.at(id).is_some()).collect();
        let cycle = waiting.iter().find_map(|&id| self.cycle(id));
        let mut text = if cycle.is_some() { "deadlock".to_owned() } else { String::new() };
        for id in cycle.unwrap_or(waiting) {
            let Some((what, at)) = self.at(id) else { continue };
            let separator = if text.is_empty() { "" } else { "; " };
            let _ = write!(text, "{separator}t{id} waits for {what}");
            if at > order::THREADS {
                let _ = write!(text, " at {at:#x}");
            }
            for holder in self.holders(id) {
                let _ = write!(text, ", which t{holder} holds");
            }
        }
        text
    }

    fn at(&self, id: usize) -> Option<(&'static str, u64)> {
        let Phase::Blocked(wanted, _) = self.strands[id].phase else {
            return None;
        };
        Some(match wanted {
            Operation::Relock { mutex, .. } => {
                let waits = |(_, object): &(&u64, &Object)| object.queue.contains(&id);
                match self.objects.iter().find(waits) {
                    Some((&at, _)) if at != mutex => ("the condition variable", at),
                    _ => ("the mutex", mutex),
                }
            }
            Operation::Arrive { barrier } => ("the barrier", barrier),
            Operation::Take { semaphore } => ("the semaphore", semaphore),
            Operation::Lock { object } | Operation::Read { object } => ("the lock", object),
            Operation::Join { thread } => ("another thread", order::thread_object(thread)),
            Operation::Unlock { .. }
            | Operation::Wait { .. }
            | Operation::Signal { .. }
            | Operation::Post { .. }
            | Operation::Exit => unreachable!("these never block as such"),
        })
    }

    /// The threads that could let `id` go on, where that is known.
    fn holders(&self, id: usize) -> Vec<usize> {
        let object = self.at(id).and_then(|(_, at)| self.objects.get(&at));
        object.map_or_else(Vec::new, |o| o.holder.iter().chain(&o.readers).copied().collect())
    }

    /// From `id` along whoever holds what is waited for, back to `id`.
    fn cycle(&self, id: usize) -> Option<Vec<usize>> {
        let mut path = vec![id];
        loop {
            let last = *path.last().expect("the path begins with a thread");
            let next = *self.holders(last).first()?;
            if next == id {
                return Some(path);
            }
            if path.contains(&next) {
                return None;
            }
            path.push(next);
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
struct SplitMix(SplitMix64);

impl SplitMix {
    fn new(seed: u64) -> SplitMix {
        SplitMix(SplitMix64::seed_from_u64(seed))
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests;
