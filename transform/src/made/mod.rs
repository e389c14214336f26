//! Locks that the program makes itself, out of atomic instructions: spin locks and flags, the
//! mutexes of Rust's standard library, parking_lot and libgomp, ticket locks, words that threads
//! sleep on with futexes; and semaphores that are used as mutexes.
//!
//! # The rule
//! A word is a lock if all that the trace shows of it fits one of the ways to make one: who changes
//! it from free to taken has it, nobody but that thread changes it back, and at least two threads
//! have it. Nothing is known of libraries. Each way is a file: [`word`] (free is zero, or a bit that
//! is not set, or one of a count), [`counted`] (readers are counted), [`ticket`] (take a number, wait for it),
//! [`queue`] (put a node at the end, wait for the one before), [`semaphore`].
//!
//! What does not fit is not guessed at: words that threads waited for all the same are listed with
//! the time ([`Made::unknown`]).
//!
//! # How
//! A [`Maker`] is shown all events of the trace before it is replayed; it keeps those about words
//! and semaphores. An atomic instruction's event says what the word held before; what it held
//! afterwards, the next event of the word says. [`Made`] then says of each event what it is for its
//! lock ([`Role`]), which is what a [`crate::Collector`] makes critical sections of.

mod calls;
mod counted;
mod queue;
mod semaphore;
mod slow;
mod ticket;
mod word;

use crate::intervals::Interval;
use calls::{Calls, Sleep};
use refrain_trace::fixed::{FixedMap, FixedSet};
use refrain_trace::linux::{FUTEX, sleeps};
use refrain_trace::{Event, EventId, EventKind, OWN_ORDER, ThreadId};
use serde::{Deserialize, Serialize};
use slow::Slow;
use std::collections::{BTreeMap, BTreeSet};

/// What an instruction that is an [`EventKind::Atomic`] does to its word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Stores if the word is as expected.
    CompareExchange,
    /// Stores and returns what was there: `xchg`, `lock bts`, `lock or`.
    Exchange,
    /// Adds or subtracts.
    Add,
    /// Another locked instruction.
    Other,
    /// A plain store.
    Store,
}

/// What an event is for a lock of the program's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The thread has the lock from here on.
    Acquire {
        /// The lock.
        lock: u64,
        /// Its place in the order of the lock.
        order: u64,
        /// With others.
        shared: bool,
        /// When the thread came to the lock.
        begin: u64,
        /// Nothing else has happened since.
        whole: bool,
    },
    /// The thread lets go of the lock.
    Release {
        /// The lock.
        lock: u64,
        /// Its place in the order of the lock.
        order: u64,
        /// Others may have had it, too.
        shared: bool,
        /// When the system call was over that woke whoever waits, if there was one.
        until: Option<u64>,
    },
    /// It is the lock's own affair. If it is part of an acquisition, all of that began then.
    Part(Option<u64>),
}

/// How a lock is made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Make {
    /// A word, or a bit of it, is set while the lock is taken.
    Word,
    /// A word counts the readers.
    Counted,
    /// One word (or half of it) gives out numbers, another says whose turn it is.
    Ticket,
    /// A word has the end of a queue of nodes.
    Queue,
    /// A semaphore of one.
    Semaphore,
}

/// A lock of the program's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MadeLock {
    /// The address that stands for it.
    pub address: u64,
    /// How it is made.
    pub make: Make,
    /// What it is made of.
    pub words: Vec<Interval>,
}

/// A word that threads waited for, and that is no lock as far as can be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unknown {
    /// The word.
    pub address: u64,
    /// Where the longest wait was.
    pub pc: u64,
    /// The thread that waited there.
    pub thread: ThreadId,
    /// The event with which the wait was over.
    pub event: u32,
    /// How many times threads waited: rounds of a loop that polls count as one.
    pub waits: u64,
    /// For how long, all threads together, in ticks.
    pub ticks: u64,
}

/// All that was recognised.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Made {
    /// The locks, by address.
    pub locks: Vec<MadeLock>,
    /// What was waited for and is no lock; the longest wait first.
    pub unknown: Vec<Unknown>,
    /// By thread, then ascending by event.
    roles: Vec<Vec<(u32, Role)>>,
    /// Locks that threads wait for awake, most of the time.
    awake: BTreeSet<u64>,
    slow: Vec<Slow>,
}

impl Made {
    /// What the events of a thread are for locks, ascending.
    pub fn roles(&self, thread: ThreadId) -> Vec<(u32, Role)> {
        self.roles.get(thread.index()).cloned().unwrap_or_default()
    }

    /// With which events those of the longest waits were over that are for no lock, ascending: where the
    /// thread was then, a replay can say ([`crate::Collector::asked_at`]).
    pub fn asked(&self, thread: ThreadId) -> Vec<u32> {
        let longest = self.unknown.iter().take(ASKED);
        let mut asked: Vec<u32> =
            longest.filter(|it| it.thread == thread).map(|it| it.event).collect();
        asked.sort_unstable();
        asked
    }

    /// An event as it would be if all locks were the library's: acquisitions begin when the thread
    /// came to the lock, and what the lock does inside takes no time of its own.
    pub fn view(&self, thread: ThreadId, id: EventId, event: &Event) -> Event {
        let roles = self.roles.get(thread.index()).map_or(&[][..], Vec::as_slice);
        let Ok(at) = roles.binary_search_by_key(&id.0, |(event, _)| u64::from(*event)) else {
            return *event;
        };
        let as_kind = |kind: EventKind, object: u64, ticket: u64| Event {
            code: kind as u8,
            flags: OWN_ORDER,
            result: 0,
            object,
            ticket,
            ..*event
        };
        match roles[at].1 {
            Role::Acquire { lock, order, shared, begin, whole } => {
                let counted = self.locks.binary_search_by_key(&lock, |lock| lock.address);
                let counted = counted.is_ok_and(|at| self.locks[at].make == Make::Counted);
                let kind = match (counted, shared) {
                    (true, true) => EventKind::ReadLock,
                    (true, false) => EventKind::WriteLock,
                    _ if self.awake.contains(&lock) => EventKind::SpinLock,
                    _ => EventKind::MutexLock,
                };
                let begin = if whole { begin } else { event.begin };
                Event { begin, ..as_kind(kind, lock, order) }
            }
            Role::Release { lock, order, shared, until } => {
                let kind = match shared {
                    true => EventKind::RwUnlock,
                    false if self.awake.contains(&lock) => EventKind::SpinUnlock,
                    false => EventKind::MutexUnlock,
                };
                let end = until.unwrap_or(event.end);
                Event { end, ..as_kind(kind, lock, order) }
            }
            Role::Part(within) => {
                let (begin, end) = within.map_or((event.begin, event.end), |at| (at, at));
                Event { begin, end, ..as_kind(EventKind::Rdtsc, 0, 0) }
            }
        }
    }

    fn has_role(&self, thread: ThreadId, event: u32) -> bool {
        let roles = self.roles.get(thread.index());
        roles.is_some_and(|roles| roles.binary_search_by_key(&event, |(event, _)| *event).is_ok())
    }

    fn give(&mut self, thread: ThreadId, event: u32, role: Role) {
        if self.roles.len() <= thread.index() {
            self.roles.resize(thread.index() + 1, Vec::new());
        }
        self.roles[thread.index()].push((event, role));
    }

    /// Adds a lock, if it is one: its sections have at least two threads. `own` are its events,
    /// without all of the system calls.
    fn add(
        &mut self,
        lock: MadeLock,
        mut held: Vec<Held>,
        mut own: BTreeSet<(ThreadId, u32)>,
        calls: &Calls,
    ) -> bool {
        let first = held.first().map(|held| held.thread);
        if held.iter().all(|held| Some(held.thread) == first) {
            return false;
        }
        let mut slept = 0;
        for held in &mut held {
            let near = calls.wait(held, &lock, &mut own);
            let mut words = calls.words_slept_on(held.thread, held.since..held.acquire + 1);
            slept += usize::from(near || words.next().is_some());
        }
        let words_slept_on = |it: &Held| calls.words_slept_on(it.thread, it.since..it.acquire + 1);
        let slept_on: FixedSet<u64> = held.iter().flat_map(words_slept_on).collect();
        let mut parts: BTreeMap<(ThreadId, u32), Option<u64>> =
            own.iter().map(|&event| (event, None)).collect();
        let (address, counted) = (lock.address, lock.make == Make::Counted);
        let words = lock.clone();
        let waits = held.iter().filter(|held| held.since != held.acquire).count();
        // Sleeping costs so much more than being awake that a few sleeps say how long waits take.
        if lock.make != Make::Semaphore && slept <= waits / SLEEPS {
            self.awake.insert(address);
        }
        let ends: FixedSet<(ThreadId, u32)> = held
            .iter()
            .flat_map(|it| [Some(it.acquire), it.release].map(|event| Some((it.thread, event?))))
            .flatten()
            .collect();
        for (order, held) in (0..).map(|nth| 2 * nth).zip(&held) {
            let &Held { thread, acquire, release, shared, begin, since } = held;
            let waiting = parts.range_mut((thread, since)..(thread, acquire));
            let mut waiting: Vec<_> = waiting.map(|(_, within)| within).collect();
            let whole = waiting.len() == (acquire - since) as usize;
            if whole {
                waiting.iter_mut().for_each(|within| **within = Some(begin));
            }
            parts.remove(&(thread, acquire));
            if !whole {
                self.slow.extend(Slow::of_acquisition(held, calls));
            }
            let lock = address;
            self.give(thread, acquire, Role::Acquire { lock, order, shared, begin, whole });
            if let Some(release) = release {
                parts.remove(&(thread, release));
                let until = calls.wakes_after((thread, release), &words, &ends);
                if let Some((last, until)) = until {
                    parts.extend((release + 1..=last).map(|event| ((thread, event), Some(until))));
                }
                let until = until.map(|(_, until)| until);
                if until.is_none() {
                    self.slow.extend(Slow::of_release(held, &slept_on, &ends, calls));
                }
                let role = Role::Release { lock, order: order + 1, shared: counted, until };
                self.give(thread, release, role);
            }
        }
        for ((thread, event), within) in parts {
            self.give(thread, event, Role::Part(within));
        }
        self.locks.push(lock);
        true
    }
}

/// Waits for no lock that are asked about.
const ASKED: usize = 256;

/// Threads wait awake for a lock if fewer waits than one in so many end in sleep.
const SLEEPS: usize = 8;

/// A time in which a thread had a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Held {
    thread: ThreadId,
    acquire: u32,
    /// Unless the recording ended before.
    release: Option<u32>,
    shared: bool,
    /// When the thread came to the lock, and with which event.
    begin: u64,
    since: u32,
}

/// An event about a word or a semaphore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    word: u64,
    /// Among those of the word.
    ticket: u64,
    thread: ThreadId,
    event: u32,
    kind: StepKind,
    size: u16,
    /// What was there before.
    old: u64,
    pc: u64,
    begin: u64,
    /// Changes where the thread does something else than wait for words.
    chain: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StepKind {
    Change(Change),
    Load,
    /// A semaphore was lowered or raised.
    Wait,
    Post,
}

/// Waits for a word.
#[derive(Clone, Copy, Default)]
struct Waits {
    ticks: u64,
    waits: u64,
    longest: u64,
    pc: u64,
    by: Option<(ThreadId, u32)>,
}

/// Recognises locks in the events of a trace.
pub struct Maker {
    steps: Vec<Step>,
    /// Who slept on which word, and when.
    sleeps: FixedMap<u64, Vec<(ThreadId, u32)>>,
    calls: Calls,
    threads: Vec<Previous>,
    waits: FixedMap<u64, Waits>,
}

/// Where a thread is.
#[derive(Clone, Copy, Default)]
struct Previous {
    chain: u32,
    /// Its last step, if nothing else has happened since.
    last: Option<Look>,
    /// The wait that it is in: since when.
    since: Option<u64>,
}

/// A look at a word. A thread that waits for a word looks at it several times.
#[derive(Clone, Copy)]
struct Look {
    word: u64,
    pc: u64,
    begin: u64,
    /// What it found, if it was a locked instruction.
    found: Option<u64>,
}

impl Maker {
    /// Nothing was shown yet.
    pub fn new() -> Maker {
        Maker {
            steps: Vec::new(),
            sleeps: FixedMap::default(),
            calls: Calls::default(),
            threads: Vec::new(),
            waits: FixedMap::default(),
        }
    }

    /// Takes the next event of a thread. `change` says what the instruction at an address does,
    /// `slept_on` the word that the thread slept on in this system call, if it did.
    pub fn push(
        &mut self,
        thread: ThreadId,
        id: EventId,
        event: &Event,
        change: impl FnOnce(u64) -> Change,
        slept_on: Option<u64>,
    ) {
        use EventKind::*;
        if self.threads.len() <= thread.index() {
            self.threads.resize(thread.index() + 1, Previous::default());
        }
        let granted = event.result == 0;
        let kind = match event.kind() {
            Atomic => Some(StepKind::Change(change(event.pc))),
            SyncStore => Some(StepKind::Change(Change::Store)),
            SyncLoad => Some(StepKind::Load),
            SemWait | SemTryWait | SemTimedWait if granted => Some(StepKind::Wait),
            SemPost if granted => Some(StepKind::Post),
            _ => None,
        };
        let waits = event.kind() == Syscall && (event.nr == FUTEX || sleeps(event.nr));
        let word = slept_on.or_else(|| kind.map(|_| event.object));
        let position = u32::try_from(id.0).unwrap_or(u32::MAX);
        self.note_wait((thread, position), event, word, slept_on.is_some());
        if let Some(word) = slept_on {
            self.sleeps.entry(word).or_default().push((thread, position));
            let Event { begin, end, .. } = *event;
            self.calls.sleeps.insert((thread, position), Sleep { word, begin, end });
        }
        let previous = &mut self.threads[thread.index()];
        let Some(kind) = kind else {
            previous.chain += u32::from(!waits);
            return;
        };
        self.steps.push(Step {
            word: event.object,
            ticket: event.ticket,
            thread,
            event: position,
            kind,
            size: event.nr,
            old: event.value,
            pc: event.pc,
            begin: event.begin,
            chain: previous.chain,
        });
    }

    /// Says that the event to be taken next wakes whoever sleeps on this word.
    pub fn wakes(&mut self, thread: ThreadId, id: EventId, event: &Event, word: u64) {
        let position = u32::try_from(id.0).unwrap_or(u32::MAX);
        self.calls.wakes.insert((thread, position), (word, event.end));
    }

    /// A thread waits for a word as long as one instruction comes to it again and again, or a
    /// load repeats itself; and while it sleeps on it. A locked instruction that finds another value each
    /// time does not wait: it counts, or puts something into a list.
    fn note_wait(&mut self, at: (ThreadId, u32), event: &Event, word: Option<u64>, slept: bool) {
        let previous = &mut self.threads[at.0.index()];
        let mut tell = |word: u64, pc: u64, ticks: u64, fresh: bool| {
            let waits = self.waits.entry(word).or_default();
            waits.ticks += ticks;
            waits.waits += u64::from(fresh);
            if ticks >= waits.longest {
                (waits.longest, waits.pc, waits.by) = (ticks, pc, Some(at));
            }
        };
        let found = (event.kind() == EventKind::Atomic).then_some(event.value);
        if let Some(last) = previous.last.take() {
            let again = word == Some(last.word) && event.pc == last.pc;
            let same = last.found == found;
            // The last look finds what was waited for.
            if again && (same || previous.since.is_some()) {
                let fresh = previous.since.is_none();
                tell(last.word, last.pc, event.begin.saturating_sub(last.begin), fresh);
            }
            previous.since = (again && same).then_some(last.begin);
        }
        match word {
            Some(word) if slept => {
                tell(word, event.pc, event.end.saturating_sub(event.begin), true)
            }
            Some(word) if event.kind() == EventKind::SyncLoad && event.aux > 0 => {
                tell(word, event.pc, event.end.saturating_sub(event.begin), true)
            }
            Some(word) if matches!(event.kind(), EventKind::Atomic | EventKind::SyncLoad) => {
                previous.last = Some(Look { word, pc: event.pc, begin: event.begin, found });
            }
            _ => {}
        }
    }

    /// All events have been shown.
    pub fn finish(mut self) -> Made {
        self.steps.sort_unstable_by_key(|step| {
            // A load has the number of changes before it for a ticket.
            (step.word, step.ticket, step.kind != StepKind::Load, step.thread, step.event)
        });
        if !self.calls.wakes.is_empty() {
            let steps = self.steps.iter().map(|step| ((step.thread, step.event), step.word));
            self.calls.words = steps.collect();
        }
        let calls = std::mem::take(&mut self.calls);
        let mut made = Made::default();
        let mut left: Vec<&[Step]> = Vec::new();
        let words: Vec<&[Step]> = self.steps.chunk_by(|a, b| a.word == b.word).collect();
        let mut of_queues = BTreeSet::new();
        for queue::Found { lock, held, words } in queue::recognise(&words) {
            let own = self.own(&words);
            if made.add(lock, held, own, &calls) {
                of_queues.extend(words.iter().map(|steps| steps[0].word));
            }
        }
        for of_word in words.into_iter().filter(|steps| !of_queues.contains(&steps[0].word)) {
            let lock = semaphore::recognise(of_word)
                .or_else(|| word::recognise(of_word))
                .or_else(|| counted::recognise(of_word))
                .or_else(|| word::recognise_bit(of_word, &calls))
                .or_else(|| word::recognise_count(of_word));
            let own = self.own(&[of_word]);
            if !lock.is_some_and(|(lock, held)| made.add(lock, held, own, &calls)) {
                left.push(of_word);
            }
        }
        for ticket::Found { lock, held, words } in ticket::recognise(&left) {
            let own = self.own(&words);
            made.add(lock, held, own, &calls);
        }
        made.locks.sort_unstable_by_key(|lock| lock.address);
        for roles in &mut made.roles {
            // Where words lie side by side, what is part of one lock may be the end of another one.
            roles.sort_unstable_by_key(|(event, role)| (*event, matches!(role, Role::Part(_))));
            roles.dedup_by_key(|(event, _)| *event);
        }
        slow::merge(std::mem::take(&mut made.slow), &mut made.roles);
        made.unknown = self.unknown(&made, &calls);
        made
    }

    /// What threads waited for that is no lock. Who slept for a lock has not waited for the word that it
    /// slept on.
    fn unknown(mut self, made: &Made, calls: &Calls) -> Vec<Unknown> {
        for (&(thread, event), sleep) in &calls.sleeps {
            if made.has_role(thread, event)
                && let Some(waits) = self.waits.get_mut(&sleep.word)
            {
                waits.ticks -= waits.ticks.min(sleep.end.saturating_sub(sleep.begin));
                waits.waits -= waits.waits.min(1);
            }
        }
        let known: Vec<Interval> = made.locks.iter().flat_map(|l| l.words.clone()).collect();
        let is_lock = |at: u64| known.iter().any(|word| (word.start..word.end).contains(&at));
        let unknown = self.waits.iter().filter_map(|(&address, waits)| {
            let &Waits { pc, waits, ticks, by, .. } = waits;
            let (thread, event) = by.filter(|_| ticks > 0 && !is_lock(address))?;
            Some(Unknown { address, pc, thread, event, waits, ticks })
        });
        let mut unknown: Vec<Unknown> = unknown.collect();
        unknown.sort_unstable_by_key(|it| (std::cmp::Reverse(it.ticks), it.address));
        unknown
    }
}

impl Maker {
    /// All events about some words.
    fn own(&self, words: &[&[Step]]) -> BTreeSet<(ThreadId, u32)> {
        let steps = words.iter().copied().flatten().map(|step| (step.thread, step.event));
        let of_word = |steps: &&[Step]| self.sleeps.get(&steps[0].word);
        let sleeps = words.iter().filter_map(of_word).flatten().copied();
        steps.chain(sleeps).collect()
    }
}

impl Default for Maker {
    fn default() -> Maker {
        Maker::new()
    }
}

/// When, and with which event, a thread came to a lock that it has from `steps[at]` on: at the
/// first of its steps on the word that only waited, the last of which is that one.
fn came(steps: &[Step], at: usize, mut is_over: impl FnMut(usize) -> bool) -> (u64, u32) {
    let Step { thread, chain, mut begin, event, .. } = steps[at];
    let mut since = event;
    // Steps of a word are in its order, and so each thread's are in theirs.
    for before in (0..at).rev().take(LOOK_BACK) {
        let step = &steps[before];
        if step.thread == thread && step.event < event {
            if is_over(before) || step.chain != chain {
                break;
            }
            (begin, since) = (step.begin, step.event);
        }
    }
    (begin, since)
}

/// Steps of other threads between two of a thread that waits, at most.
const LOOK_BACK: usize = 4096;
