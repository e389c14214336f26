//! Locks that are a word, or a bit of a word: taken while it is set, or, where it says how many may have the
//! lock, while it is zero.
//!
//! Spin locks, `atomic_flag`, glibc's internal locks, the mutexes of Rust's standard library and
//! of libgomp (0 is free, 1 taken, 2 or -1 taken with waiters), parking_lot's (bit 0), words that
//! threads sleep on, C++'s `binary_semaphore` (1 is free).
//!
//! # The rule
//! Let `taken` be whether the bits of a mask are not all zero, or whether a word that is never more than one
//! is zero. A step that makes a word taken is an acquisition, and must be an instruction that can find out
//! that it failed (compare-and-exchange, exchange, set a bit); the step that makes it free again is the
//! release, and must be the same thread's. A word that is ever set free by somebody else is no lock by that
//! mask. Where the mask is a single bit, a release sets no other one: a word that counts is no lock.
//!
//! A word that is taken when its events begin was taken by an owner of the word, whose acquisition has
//! no event (a `takeover` comes first); that section is left out, whoever releases.
//!
//! # Releases that nobody saw
//! Where a bit says that threads sleep, the release may be a plain store which the recording does not
//! watch, or none at all: the lock is handed over to a thread that sleeps (parking_lot does both). Only
//! who has the lock comes to a place where holders set it free. So a holder that has come there and
//! failed has let go of it there, if the bit is free the next time or another thread comes there. So has
//! one whose store is seen later: what lies between is its slow path.

use super::{Calls, Change, Held, LOOK_BACK, MadeLock, Make, Step, StepKind, came};
use crate::intervals::Interval;
use std::collections::{BTreeMap, BTreeSet};

/// Bits of words that hold more than a lock.
const BITS: [u64; 2] = [1, 1 << 31];

/// A lock that is all of the word.
pub(super) fn recognise(of_word: &[Step]) -> Option<(MadeLock, Vec<Held>)> {
    by_values(of_word, |value| value != 0, None)
}

/// A lock that is a word which says how many may have it: one or none.
pub(super) fn recognise_count(of_word: &[Step]) -> Option<(MadeLock, Vec<Held>)> {
    let is_one_at_most = |step: &Step| matches!(step.kind, StepKind::Load) || step.old <= 1;
    let found = || by_values(of_word, |value| value == 0, None);
    of_word.iter().all(is_one_at_most).then(found).flatten()
}

/// A lock that is a bit of the word.
pub(super) fn recognise_bit(of_word: &[Step], calls: &Calls) -> Option<(MadeLock, Vec<Held>)> {
    BITS.iter().find_map(|bit| by_values(of_word, |value| value & bit != 0, Some(calls)))
}

/// `takes` says of a value of the word whether the lock is taken then. `calls` are there if the word has other
/// bits than the lock's, which may say that threads sleep.
fn by_values(
    of_word: &[Step],
    takes: impl Fn(u64) -> bool,
    calls: Option<&Calls>,
) -> Option<(MadeLock, Vec<Held>)> {
    let is_change = |at: &usize| matches!(of_word[*at].kind, StepKind::Change(_));
    let changes: Vec<usize> = (0..of_word.len()).filter(is_change).collect();
    let taken = |at: usize| takes(of_word[at].old);
    let places = calls.map(|_| places(of_word, &changes, taken)).unwrap_or_default();
    let mut held: Vec<Held> = Vec::new();
    let mut decisive = vec![false; of_word.len()];
    // The holder's first try to set it free.
    let mut tried = None;
    for pair in changes.windows(2) {
        let (at, next) = (pair[0], pair[1]);
        let step = &of_word[at];
        // Taken before the first step: by an owner of the word, whose stores have no events.
        let before = held.is_empty();
        if !before && taken(at) && places.contains(&step.pc) {
            decisive[at] = true;
            let holder = held.last_mut().filter(|it| it.release.is_none())?;
            if holder.thread != step.thread {
                holder.release = Some(tried.take()?);
                held.push(handed_over(of_word, at, &decisive, calls?)?);
            }
            tried.get_or_insert(step.event);
        }
        match (taken(at), taken(next)) {
            (false, true) => {
                let tells = [Change::CompareExchange, Change::Exchange];
                if !tells.map(StepKind::Change).contains(&step.kind) {
                    return None;
                }
                decisive[at] = true;
                let (begin, since) = came(of_word, at, |before| decisive[before]);
                held.push(Held {
                    thread: step.thread,
                    acquire: step.event,
                    release: None,
                    shared: false,
                    begin,
                    since,
                });
                tried = None;
            }
            (true, false) => {
                if calls.is_some() && of_word[next].old & !step.old != 0 {
                    return None;
                }
                if before {
                    decisive[at] = true;
                    continue;
                }
                let holder = held.last_mut().filter(|it| it.release.is_none())?;
                let by_holder = holder.thread == step.thread;
                decisive[at] |= by_holder;
                holder.release = Some(tried.or(by_holder.then_some(step.event))?);
            }
            _ => {}
        }
    }
    // What the last change made of the word, no event says. If it was the holder's, at a place
    // where the lock is set free, it was that.
    if let (Some(&at), Some(holder)) = (changes.last(), held.last_mut()) {
        let (step, last) = (&of_word[at], holder.release.is_none());
        let frees =
            |other: &usize| decisive[*other] && taken(*other) && of_word[*other].pc == step.pc;
        if last && taken(at) && step.thread == holder.thread && changes.iter().any(frees) {
            holder.release = Some(step.event);
        }
    }
    let first = &of_word[0];
    let size = of_word.iter().map(|step| u64::from(step.size)).max().unwrap_or(0).clamp(1, 8);
    let words = vec![Interval::new(first.word, size)];
    let lock = MadeLock { address: first.word, make: Make::Word, words };
    (held.iter().filter(|held| held.release.is_some()).count() > 1).then_some((lock, held))
}

/// Where the holder sets it free, as was seen at least every other time that a thread came there and
/// found it taken (a try that failed, with a release behind it that nobody saw, looks as if the try had
/// set the lock free; but most tries have none behind them); or, by compare-and-exchange, where it was seen
/// once, and at least every other thread that came there had the lock (what it does if the exchange fails is
/// a slow way to let go).
fn places(of_word: &[Step], changes: &[usize], taken: impl Fn(usize) -> bool) -> BTreeSet<u64> {
    let (mut holder, mut places) = (None, BTreeMap::<u64, Place>::new());
    for pair in changes.windows(2) {
        let step = &of_word[pair[0]];
        if !taken(pair[0]) {
            if taken(pair[1]) {
                holder = Some(step.thread);
            }
            continue;
        }
        let place = places.entry(step.pc).or_default();
        let by_holder = holder == Some(step.thread);
        place.came += 1;
        place.of_holder += u64::from(by_holder);
        place.freed += u64::from(by_holder && !taken(pair[1]));
        place.tries |= step.kind == StepKind::Change(Change::CompareExchange);
    }
    places.into_iter().filter(|(_, place)| place.frees()).map(|(pc, _)| pc).collect()
}

/// What threads do at a place where they find the lock taken.
#[derive(Default)]
struct Place {
    came: u64,
    /// They had it.
    of_holder: u64,
    /// They set it free.
    freed: u64,
    /// They try to.
    tries: bool,
}

impl Place {
    fn frees(&self) -> bool {
        let is_for_holders = self.tries && self.freed > 0 && 2 * self.of_holder >= self.came;
        2 * self.freed >= self.came || is_for_holders
    }
}

/// The thread of a step has the lock, and did not take it itself: it has had it since it slept, behind
/// its last try to have it.
fn handed_over(of_word: &[Step], at: usize, decisive: &[bool], calls: &Calls) -> Option<Held> {
    let Step { thread, event, .. } = of_word[at];
    let mut before = (0..at).rev().take(LOOK_BACK);
    let last = before.find(|&before| of_word[before].thread == thread)?;
    if decisive[last] {
        return None;
    }
    let between = of_word[last].event + 1..event;
    let acquire = calls.first_sleep(thread, between.clone()).or(between.clone().next())?;
    let (begin, since) = came(of_word, last, |before| decisive[before]);
    Some(Held { thread, acquire, release: None, shared: false, begin, since })
}
