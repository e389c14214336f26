//! What waking took in a recording, as its waits show it.
//!
//! Two latencies decide how contention goes, and they differ between machines, and between moments
//! of one machine, by a factor of ten (a core that is idle may have to be left to the hypervisor and
//! fetched back): how long a thread that sleeps for a lock takes to go on after the release, and how
//! long the releasing thread is in the system call that wakes it.
//!
//! A wait ends with the last release during it that made a system call: a thread that was woken and
//! found the lock taken again has said so in the lock's word, so that the next release wakes it
//! again. (Other threads may take and release the lock, without a system call, while the woken thread
//! is on its way; leaving out the waits in which they do would leave out the slow ones.) Each such
//! wait is one sample of both latencies,
//! and [`crate::Waiting::Glibc`] draws from the samples as they are: their middle would not do, since a thread
//! that wakes late is overtaken, and one that wakes early is not.

use crate::config::ticks;
use refrain_trace::fixed::FixedMap;
use refrain_trace::{Event, EventKind, ThreadId};

/// Fewer samples say nothing.
const ENOUGH: usize = 8;
/// Fewer waits say nothing of how long threads are awake.
const ENOUGH_WAITS: usize = 32;
/// Shorter waits were spent on the way to sleep, and longer ones without a core, in nanoseconds.
const SLEPT: std::ops::Range<u64> = 2_000..1_000_000;
/// A thread that had not slept yet is back from the system call that soon after the release, in
/// nanoseconds.
const BACK: u64 = 1_000;
/// Shorter system calls have found nobody to wake.
const ROUSED: u64 = 700;
/// So many samples are kept, evenly spread.
const KEPT: usize = 1 << 12;

/// Samples of a trace, thread by thread.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// Releases by object that made a system call: from, to, and by whom.
    releases: FixedMap<u64, Vec<(u64, u64, ThreadId)>>,
    /// All releases by object: when, and by whom.
    all_releases: FixedMap<u64, Vec<(u64, ThreadId)>>,
    /// Waits for locks that are waited for awake, the same.
    awake: FixedMap<u64, Vec<(u64, u64, ThreadId)>>,
    sleeps_for_made: bool,
    /// Waits by object: from, to, and whose.
    waits: FixedMap<u64, Vec<(u64, u64, ThreadId)>>,
}

/// What one waking took, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Waking {
    /// From a release to the moment when the thread that slept goes on.
    pub wake: u64,
    /// What it cost the releasing thread.
    pub rouse: u64,
}

impl Samples {
    pub(crate) fn push(&mut self, thread: ThreadId, event: &Event) {
        use EventKind::*;
        let Event { object, begin, end, .. } = *event;
        if event.kind() == SpinLock && end > begin {
            self.awake(thread, object, begin, end);
        }
        if matches!(event.kind(), MutexUnlock | RwUnlock | SpinUnlock) {
            self.all_releases.entry(object).or_default().push((begin, thread));
        }
        let all = match event.kind() {
            MutexLock | WriteLock | ReadLock => &mut self.waits,
            MutexUnlock | RwUnlock => &mut self.releases,
            _ => return,
        };
        if end > begin {
            let waits = matches!(event.kind(), MutexLock | WriteLock | ReadLock);
            // The events of such locks are those of instructions, which have a size.
            self.sleeps_for_made |= event.nr != 0 && waits;
            all.entry(object).or_default().push((begin, end, thread));
        }
    }

    /// A thread has waited awake.
    pub(crate) fn awake(&mut self, thread: ThreadId, object: u64, begin: u64, end: u64) {
        self.awake.entry(object).or_default().push((begin, end, thread));
    }

    /// Whether threads slept for locks that the program makes itself.
    pub(crate) fn sleeps_for_made(&self) -> bool {
        self.sleeps_for_made
    }

    /// From a release to the moment when a thread that has waited awake goes on, one sample for each
    /// such wait.
    pub(crate) fn handoffs(&self, ticks_per_second: u64) -> Vec<u64> {
        let away = ticks(SLEPT.end, ticks_per_second);
        let mut found = Vec::new();
        for (object, waits) in &self.awake {
            let Some(releases) = self.all_releases.get(object) else { continue };
            let mut releases = releases.clone();
            releases.sort_unstable();
            for &(begin, end, thread) in waits {
                let before = releases.partition_point(|&(at, _)| at < end);
                let Some(&(at, by)) = releases[..before].last() else { continue };
                if at > begin && by != thread && end - at < away {
                    found.push((at, end - at));
                }
            }
        }
        if found.len() < ENOUGH {
            return Vec::new();
        }
        found.sort_unstable();
        let step = found.len().div_ceil(KEPT);
        found.into_iter().step_by(step).map(|(_, took)| took).collect()
    }

    /// How long a thread that finds a mutex taken is awake before it sleeps, as far as the waits show
    /// it: some were over soon after the first release, so the thread had not slept yet. As many of
    /// all waits had that release within this time. `None` if there are too few waits.
    pub(crate) fn patience(&self, ticks_per_second: u64) -> Option<u64> {
        let back = ticks(BACK, ticks_per_second);
        let (mut first, mut awake) = (Vec::new(), 0);
        for (object, waits) in &self.waits {
            let Some(releases) = self.all_releases.get(object) else { continue };
            let mut releases = releases.clone();
            releases.sort_unstable();
            for &(begin, end, thread) in waits {
                let from = releases.partition_point(|&(at, _)| at < begin);
                let next = releases[from..].iter().take_while(|&&(at, _)| at < end);
                let Some(&(at, _)) = next.clone().find(|(_, by)| *by != thread) else { continue };
                first.push(at - begin);
                awake += usize::from(end - at < back);
            }
        }
        if first.len() < ENOUGH_WAITS {
            return None;
        }
        first.sort_unstable();
        Some(first[awake.min(first.len() - 1)].min(ticks(SLEPT.start, ticks_per_second)))
    }

    /// The samples, in the order of time; none if there are too few.
    pub(crate) fn finish(mut self, ticks_per_second: u64) -> Vec<Waking> {
        let ticks = |nanoseconds| ticks(nanoseconds, ticks_per_second);
        let slept = ticks(SLEPT.start)..ticks(SLEPT.end);
        let (mut found, mut doubtful) = (Vec::new(), Vec::new());
        for (object, mut waits) in std::mem::take(&mut self.waits) {
            let Some(mut releases) = self.releases.remove(&object) else { continue };
            releases.retain(|(begin, end, _)| end - begin >= ticks(ROUSED));
            releases.sort_unstable();
            waits.sort_unstable();
            // When somebody else's wait ends that began before.
            let mut busy_until = 0;
            for (index, &(begin, end, thread)) in waits.iter().enumerate() {
                let before = releases.partition_point(|&(at, ..)| at < end);
                let last = releases[..before].iter().rev().find(|(.., by)| *by != thread);
                let until = busy_until;
                busy_until = end.max(busy_until);
                let Some(&(at, to, _)) = last.filter(|&&(at, ..)| at > begin) else { continue };
                // Of several sleepers nobody knows which one a release woke, so these samples are
                // only for want of others.
                let next = waits.get(index + 1).map_or(u64::MAX, |&(begin, ..)| begin);
                if slept.contains(&(end - at)) {
                    let alone = until <= at && next >= at;
                    let samples = if alone { &mut found } else { &mut doubtful };
                    samples.push((at, Waking { wake: end - at, rouse: to - at }));
                }
            }
        }
        if found.len() < ENOUGH {
            found = doubtful;
        }
        if found.len() < ENOUGH {
            return Vec::new();
        }
        found.sort_unstable();
        let step = found.len().div_ceil(KEPT);
        found.into_iter().step_by(step).map(|(_, waking)| waking).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, begin: u64, end: u64) -> Event {
        Event { code: kind as u8, object: 0x1000, begin, end, ..Event::default() }
    }

    #[test]
    fn a_wait_ends_with_the_last_release_that_woke() {
        let mut samples = Samples::default();
        for round in 0..9 {
            let at = round * 1_000_000;
            samples.push(ThreadId(1), &event(EventKind::MutexLock, at + 10, at + 60_000 + round));
            // Woken, and found it taken.
            samples.push(ThreadId(0), &event(EventKind::MutexUnlock, at + 10_000, at + 14_000));
            samples.push(ThreadId(0), &event(EventKind::MutexUnlock, at + 40_000, at + 42_000));
            // Overtaken.
            samples.push(ThreadId(0), &event(EventKind::MutexUnlock, at + 50_000, at + 50_000));
        }
        let found = samples.finish(1_000_000_000);
        let expected = (0..9).map(|round| Waking { wake: 20_000 + round, rouse: 2_000 });
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    #[test]
    fn of_several_sleepers_nobody_knows_who_was_woken() {
        let mut samples = Samples::default();
        for round in 0..9 {
            let at = round * 1_000_000;
            for thread in [1, 2] {
                let begin = at + u64::from(thread);
                let lock = event(EventKind::MutexLock, begin, at + 30_000 * u64::from(thread));
                samples.push(ThreadId(thread), &lock);
            }
            samples.push(ThreadId(0), &event(EventKind::MutexUnlock, at + 10_000, at + 14_000));
            samples.push(ThreadId(1), &event(EventKind::MutexUnlock, at + 40_000, at + 44_000));
        }
        let found = samples.finish(1_000_000_000);
        assert!(found.iter().all(|waking| *waking == Waking { wake: 20_000, rouse: 4_000 }));
        assert_eq!(found.len(), 9);
    }

    #[test]
    fn whoever_waits_awake_goes_on_so_long_after_the_release() {
        let mut samples = Samples::default();
        for round in 0..9 {
            let at = round * 1_000_000;
            samples.push(ThreadId(1), &event(EventKind::SpinLock, at + 10, at + 5_300 + round));
            samples.push(ThreadId(0), &event(EventKind::SpinUnlock, at + 5_000, at + 5_000));
            // Nobody had it.
            samples.push(ThreadId(0), &event(EventKind::SpinLock, at + 9_000, at + 9_050));
        }
        assert_eq!(samples.handoffs(1_000_000_000), (300..309).collect::<Vec<_>>());
    }

    #[test]
    fn threads_are_awake_as_long_as_they_need_no_waking() {
        let mut samples = Samples::default();
        // Who waits for up to 240 is back soon, the others are woken.
        for wait in 0..40u64 {
            let at = wait * 1_000_000;
            let more = if wait <= 24 { 600 } else { 20_000 };
            let end = at + wait * 10 + more;
            samples.push(ThreadId(1), &event(EventKind::MutexLock, at, end));
            samples.push(ThreadId(0), &event(EventKind::MutexUnlock, at + wait * 10, at + 9_000));
        }
        assert_eq!(samples.patience(1_000_000_000), Some(250));
    }

    #[test]
    fn few_waits_tell_nothing() {
        let mut samples = Samples::default();
        samples.push(ThreadId(1), &event(EventKind::MutexLock, 10, 30_000));
        samples.push(ThreadId(0), &event(EventKind::MutexUnlock, 10_000, 14_000));
        assert_eq!(samples.patience(1_000_000_000), None);
        assert_eq!(samples.finish(1_000_000_000), []);
    }
}
