//! Slow paths: what a thread does to sleep for a lock, and to wake whoever sleeps, where more takes part
//! than the lock's own words.
//!
//! Some locks keep their sleepers elsewhere: parking_lot puts them into a table, under locks of the
//! table's own, and each sleeps on a word of its own. All that a thread does from its first try of such
//! a lock until it has it is waiting for it, if it slept on the way; and all from a release up to the
//! call that wakes one who slept for this lock is part of the release. Locks that are taken and set free
//! within are part of that; if one of them is not wholly within, the path is left as it is.

use super::calls::{At, Calls};
use super::{Held, Role};
use refrain_trace::ThreadId;
use refrain_trace::fixed::FixedSet;
use std::collections::BTreeMap;
use std::ops::Range;

/// Events from a release to the call that wakes, at most.
const BEHIND: u32 = 48;

/// The events of a slow path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Slow {
    thread: ThreadId,
    events: Range<u32>,
    /// The acquisition right behind them, or the release right before them.
    end: u32,
    /// When all of that happens, as it is shown.
    at: u64,
}

impl Slow {
    /// That of an acquisition, if the thread slept in it.
    pub(super) fn of_acquisition(held: &Held, calls: &Calls) -> Option<Slow> {
        let &Held { thread, acquire, since, begin, .. } = held;
        let slept = calls.words_slept_on(thread, since..acquire + 1).next().is_some();
        let path = Slow { thread, events: since..acquire, end: acquire, at: begin };
        (slept && since < acquire).then_some(path)
    }

    /// That of a release, if it ends with a call that wakes who sleeps on one of these words, before the
    /// thread takes the lock again: that event is one of the `ends`.
    pub(super) fn of_release(
        held: &Held,
        slept_on: &FixedSet<u64>,
        ends: &FixedSet<At>,
        calls: &Calls,
    ) -> Option<Slow> {
        let (thread, release) = (held.thread, held.release?);
        let behind = release + 1..release + 1 + BEHIND;
        let behind = behind.take_while(|event| !ends.contains(&(thread, *event)));
        let find = |event| Some((event, *calls.wakes.get(&(thread, event))?));
        let (last, (woken, until)) = behind.into_iter().find_map(find)?;
        let path = Slow { thread, events: release + 1..last + 1, end: release, at: until };
        slept_on.contains(&woken).then_some(path)
    }
}

/// Makes slow paths part of the acquisitions and releases that they belong to.
pub(super) fn merge(mut paths: Vec<Slow>, roles: &mut [Vec<(u32, Role)>]) {
    paths.sort_unstable_by_key(|path| (path.thread, path.events.start, path.end));
    for of_thread in paths.chunk_by(|a, b| a.thread == b.thread) {
        if let Some(roles) = roles.get_mut(of_thread[0].thread.index()) {
            merge_thread(of_thread, roles);
        }
    }
}

fn merge_thread(paths: &[Slow], roles: &mut Vec<(u32, Role)>) {
    let mut old = std::mem::take(roles);
    let (mut next, mut done) = (0, 0);
    for Slow { events, end, at, .. } in paths {
        let position = |event: u32| old.partition_point(|(other, _)| *other < event);
        let (from, to, at_end) = (position(events.start), position(events.end), position(*end));
        if events.start < done || at_end < next || !is_closed(&old[from..to]) {
            continue;
        }
        match old.get_mut(at_end) {
            Some((event, Role::Acquire { whole, .. })) if event == end => *whole = true,
            Some((event, Role::Release { until, .. })) if event == end => *until = Some(*at),
            _ => continue,
        }
        roles.extend_from_slice(&old[next..from]);
        roles.extend(events.clone().map(|event| (event, Role::Part(Some(*at)))));
        (next, done) = (to, events.end);
    }
    roles.extend_from_slice(&old[next..]);
}

/// Whether all locks that are taken here are set free here, and the other way round.
fn is_closed(roles: &[(u32, Role)]) -> bool {
    let mut depths: BTreeMap<u64, i32> = BTreeMap::new();
    for (_, role) in roles {
        match role {
            Role::Acquire { lock, .. } => *depths.entry(*lock).or_default() += 1,
            Role::Release { lock, .. } => {
                let depth = depths.entry(*lock).or_default();
                *depth -= 1;
                if *depth < 0 {
                    return false;
                }
            }
            Role::Part(_) => {}
        }
    }
    depths.values().all(|depth| *depth == 0)
}
