//! System calls that belong to locks: sleeping in an acquisition, and waking behind a release.
//!
//! Threads need not sleep on the word that is the lock: a reader–writer lock has another one beside
//! it for those who write. So a sleep right before an acquisition is part of it if it is on a word
//! near by, and a call that wakes sleepers on such a word is part of the release before it.

use super::{Held, MadeLock};
use refrain_trace::ThreadId;
use refrain_trace::fixed::{FixedMap, FixedSet};
use std::collections::BTreeSet;
use std::ops::Range;

/// How far the words of one lock are apart, at most.
const NEAR: u64 = 16;
/// Events of a lock's own between its release and the call that wakes, at most.
const BETWEEN: u32 = 4;

pub(super) type At = (ThreadId, u32);

/// A call in which a thread slept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sleep {
    pub(super) word: u64,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// Calls by thread and event.
#[derive(Default)]
pub(super) struct Calls {
    /// Sleeps.
    pub(super) sleeps: FixedMap<At, Sleep>,
    /// Calls that wake: on which word, and until when.
    pub(super) wakes: FixedMap<At, (u64, u64)>,
    /// Words of all steps, if there are calls that wake.
    pub(super) words: FixedMap<At, u64>,
}

impl Calls {
    /// Makes the sleeps in a wait and right before it part of it; whether there are any.
    pub(super) fn wait(&self, held: &mut Held, lock: &MadeLock, own: &mut BTreeSet<At>) -> bool {
        if self.sleeps.is_empty() {
            return false;
        }
        let is_near = |word: u64| lock.words.iter().any(|it| it.start.abs_diff(word) < NEAR);
        let sleep = |event| {
            let found = self.sleeps.get(&(held.thread, event));
            found.filter(|sleep| is_near(sleep.word)).map(|sleep| sleep.begin)
        };
        let (mut since, mut begin) = (held.since, held.begin);
        while let Some(before) = since.checked_sub(1)
            && let Some(earlier) = sleep(before)
        {
            (since, begin) = (before, earlier);
        }
        let sleeps: Vec<u32> = (since..held.acquire).filter(|at| sleep(*at).is_some()).collect();
        own.extend(sleeps.iter().map(|event| (held.thread, *event)));
        (held.since, held.begin) = (since, begin);
        !sleeps.is_empty()
    }

    /// The first of these events in which a thread slept.
    pub(super) fn first_sleep(&self, thread: ThreadId, mut events: Range<u32>) -> Option<u32> {
        events.find(|event| self.sleeps.contains_key(&(thread, *event)))
    }

    /// What a thread slept on in these events.
    pub(super) fn words_slept_on(
        &self,
        thread: ThreadId,
        events: Range<u32>,
    ) -> impl Iterator<Item = u64> {
        // Where nobody ever slept, there is nothing to look for.
        let events = if self.sleeps.is_empty() { 0..0 } else { events };
        events.filter_map(move |event| self.sleeps.get(&(thread, event)).map(|it| it.word))
    }

    /// The last event of a release, and when that is over, if a call that wakes is part of it. What
    /// lies between is about the lock's words or the one that is slept on, and neither takes the
    /// lock nor lets go of it: those events are `ends`.
    pub(super) fn wakes_after(
        &self,
        (thread, release): At,
        lock: &MadeLock,
        ends: &FixedSet<At>,
    ) -> Option<(u32, u64)> {
        let after = release + 1..=release + 1 + BETWEEN;
        let find = |event| Some((event, *self.wakes.get(&(thread, event))?));
        let (event, (woken, until)) = after.into_iter().find_map(find)?;
        if !lock.words.iter().any(|it| it.start.abs_diff(woken) < NEAR) {
            return None;
        }
        let is_own = |word: &u64| {
            *word == woken || lock.words.iter().any(|it| (it.start..it.end).contains(word))
        };
        let is_between = |event| {
            let at = (thread, event);
            self.words.get(&at).is_some_and(is_own) && !ends.contains(&at)
        };
        (release + 1..event).all(is_between).then_some((event, until))
    }
}
