//! What waking took in a recording, as its waits show it.
//!
//! Two latencies decide how contention goes, and they differ between machines, and between moments
//! of one machine, by a factor of ten (a core that is idle may have to be left to the hypervisor and
//! fetched back): how long a thread that sleeps for a lock takes to go on after the release, and how
//! long the releasing thread is in the system call that wakes it.
//!
//! Each release that made a system call while a thread slept is one sample of both latencies. The
//! thread that it woke came when its wait ended, or when it found the lock taken again: it has said so
//! in the lock's word, so that the next release made a call, too, and it came during the section that
//! this release ends. (Other threads may take and release the lock, without a system call, while the
//! woken thread is on its way.) A section whose thread has waited for the lock ends with a call in any
//! case, and tells nothing. [`crate::Waiting::Glibc`] draws from the samples as they are: their middle
//! would not do, since a thread that wakes late is overtaken, and one that wakes early is not.

use crate::config::ticks;
use refrain_trace::fixed::FixedMap;
use refrain_trace::{Event, EventKind, ThreadId};

/// Fewer samples say nothing.
const ENOUGH: usize = 8;
/// Fewer waits say nothing of how long threads are awake.
const ENOUGH_WAITS: usize = 32;
/// Shorter waits were spent on the way to sleep, in nanoseconds, and what is longer is no latency. (A
/// thread that is woken onto the core of the one that wakes it waits there for some milliseconds.)
const SLEPT: std::ops::Range<u64> = 2_000..100_000_000;
/// Who waited awake and went on later than that had no core, in nanoseconds. (The waits of a few threads
/// that lost their cores would otherwise stand for all waits of the model, which has a core for each.)
const AWAY: u64 = 30_000;
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
    /// Releases by object that made a system call.
    releases: FixedMap<u64, Vec<Call>>,
    /// All releases by object: when, and by whom.
    all_releases: FixedMap<u64, Vec<(u64, ThreadId)>>,
    /// The latest acquisition by object and thread, and for each release with a system call when its
    /// section began.
    since: FixedMap<(u64, ThreadId), (u64, bool)>,
    /// Waits for locks that are waited for awake, the same.
    awake: FixedMap<u64, Vec<(u64, u64, ThreadId)>>,
    sleeps_for_made: bool,
    /// Waits by object: from, to, and whose.
    waits: FixedMap<u64, Vec<(u64, u64, ThreadId)>>,
}

/// A release that made a system call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Call {
    from: u64,
    to: u64,
    by: ThreadId,
    /// When the thread got what it releases, and whether it had waited for it.
    since: u64,
    waited: bool,
}

/// What one waking took, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Waking {
    /// From a release to the moment when the thread that slept goes on.
    pub wake: u64,
    /// What it cost the releasing thread.
    pub rouse: u64,
}

/// How a thread waits that does not sleep in the end, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// It would sleep if the lock were not released until then.
    pub until: u64,
    /// So long after that it is back.
    pub back: u64,
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
        match event.kind() {
            MutexLock | WriteLock | ReadLock => {
                self.since.insert((object, thread), (end, end > begin));
                if end > begin {
                    // The events of such locks are those of instructions, which have a size.
                    self.sleeps_for_made |= event.nr != 0;
                    self.waits.entry(object).or_default().push((begin, end, thread));
                }
            }
            MutexTryLock | WriteTryLock | ReadTryLock => {
                self.since.insert((object, thread), (end, false));
            }
            MutexUnlock | RwUnlock if end > begin => {
                let since = self.since.get(&(object, thread)).copied();
                let (since, waited) = since.unwrap_or((begin, true));
                let call = Call { from: begin, to: end, by: thread, since, waited };
                self.releases.entry(object).or_default().push(call);
            }
            _ => {}
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
        let away = ticks(AWAY, ticks_per_second);
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
    /// all waits had that release within this time. And how long those waits were. `None` if there
    /// are too few waits.
    pub(crate) fn patience(&self, ticks_per_second: u64) -> Option<Patience> {
        let back = ticks(BACK, ticks_per_second);
        let (mut first, mut awake) = (Vec::new(), Vec::new());
        for (object, waits) in &self.waits {
            let Some(releases) = self.all_releases.get(object) else { continue };
            let mut releases = releases.clone();
            releases.sort_unstable();
            for &(begin, end, thread) in waits {
                let from = releases.partition_point(|&(at, _)| at < begin);
                let next = releases[from..].iter().take_while(|&&(at, _)| at < end);
                let Some(&(at, _)) = next.clone().find(|(_, by)| *by != thread) else { continue };
                first.push(at - begin);
                if end - at < back {
                    awake.push(end - begin);
                }
            }
        }
        if first.len() < ENOUGH_WAITS {
            return None;
        }
        first.sort_unstable();
        awake.sort_unstable();
        let until = first[awake.len().min(first.len() - 1)];
        let until = until.min(ticks(SLEPT.start, ticks_per_second));
        let all = awake.get(awake.len() / 2).copied().unwrap_or(0);
        Some(Patience { until, back: all.saturating_sub(until).min(back) })
    }

    /// How many waits were so long that the thread slept, and how long they were together.
    pub(crate) fn slept(&self, ticks_per_second: u64) -> (u64, u64) {
        let slept = ticks(SLEPT.start, ticks_per_second);
        let waits = self.waits.values().flatten().map(|(begin, end, _)| end - begin);
        let long = waits.filter(|wait| *wait >= slept);
        long.fold((0, 0), |(count, sum), wait| (count + 1, sum + wait))
    }

    /// What a release takes that wakes nobody though it tries, if some did.
    pub(crate) fn vain(&self, ticks_per_second: u64) -> Option<u64> {
        let roused = ticks(ROUSED, ticks_per_second);
        let calls = self.releases.values().flatten().map(|call| call.to - call.from);
        let mut vain: Vec<u64> = calls.filter(|took| *took < roused).collect();
        if vain.len() < ENOUGH_WAITS {
            return None;
        }
        let quarter = vain.len() / 4;
        Some(*vain.select_nth_unstable(quarter).1)
    }

    /// The samples, in the order of time; none if there are too few.
    pub(crate) fn finish(mut self, ticks_per_second: u64) -> Vec<Waking> {
        let ticks = |nanoseconds| ticks(nanoseconds, ticks_per_second);
        let slept = ticks(SLEPT.start)..ticks(SLEPT.end);
        let (mut found, mut doubtful) = (Vec::new(), Vec::new());
        let mut rouses: Vec<(u64, u64)> = Vec::new();
        for (object, mut waits) in std::mem::take(&mut self.waits) {
            let Some(mut calls) = self.releases.remove(&object) else { continue };
            calls.retain(|call| call.to - call.from >= ticks(ROUSED));
            calls.sort_unstable();
            waits.sort_unstable();
            // When somebody else's wait ends that began before.
            let mut busy_until = 0;
            for (index, &(begin, end, thread)) in waits.iter().enumerate() {
                let until = busy_until;
                busy_until = end.max(busy_until);
                if !slept.contains(&(end - begin)) {
                    continue;
                }
                let next = waits.get(index + 1).map_or(u64::MAX, |&(begin, ..)| begin);
                let after = calls.partition_point(|call| call.from <= begin);
                let during = calls[after..].iter().take_while(|call| call.from < end);
                let mut during = during.filter(|call| call.by != thread).peekable();
                while let Some(call) = during.next() {
                    rouses.push((call.from, call.to - call.from));
                    // It came in the middle of the section in which it said that it sleeps again.
                    let again = during.peek();
                    let came = again.map_or(end, |call| call.since.midpoint(call.from));
                    // Who has waited for a lock makes a call for nobody, too.
                    if came <= call.from || again.is_some_and(|call| call.waited) {
                        continue;
                    }
                    // Of several sleepers nobody knows which one a release woke, so these samples
                    // are only for want of others.
                    let alone = until <= call.from && next >= again.map_or(call.from, |it| it.from);
                    let samples = if alone { &mut found } else { &mut doubtful };
                    samples.push((call.from, came - call.from));
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
        // Calls of which nobody knows whom they woke cost as much.
        rouses.sort_unstable();
        let count = found.len();
        let step = count.div_ceil(KEPT);
        let found = found.into_iter().enumerate().step_by(step);
        let waking = |(index, (_, wake)): (usize, (u64, u64))| {
            let (_, rouse) = rouses[index * rouses.len() / count];
            Waking { wake, rouse }
        };
        found.map(waking).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, begin: u64, end: u64) -> Event {
        Event { code: kind as u8, object: 0x1000, begin, end, ..Event::default() }
    }

    #[test]
    fn every_release_that_woke_is_a_sample() {
        let mut samples = Samples::default();
        for round in 0..9 {
            let at = round * 1_000_000;
            samples.push(ThreadId(1), &event(EventKind::MutexLock, at + 10, at + 60_000 + round));
            let mut section = |begin, end, took| {
                samples.push(ThreadId(0), &event(EventKind::MutexLock, at + begin, at + begin));
                samples
                    .push(ThreadId(0), &event(EventKind::MutexUnlock, at + end, at + end + took));
            };
            // Woken, and found it taken: in the middle of the next section that made a call.
            section(5, 10_000, 4_000);
            section(20_000, 40_000, 2_000);
            // Overtaken.
            section(45_000, 50_000, 0);
        }
        let found = samples.finish(1_000_000_000);
        let of_round = |round: u64| {
            let (first, again) = (20_000, 20_000 + round);
            [(first, 4_000), (again, 2_000)].map(|(wake, rouse)| Waking { wake, rouse })
        };
        assert_eq!(found, (0..9).flat_map(of_round).collect::<Vec<_>>());
    }

    #[test]
    fn who_has_waited_makes_calls_that_tell_nothing() {
        let mut samples = Samples::default();
        for round in 0..9 {
            let at = round * 1_000_000;
            samples.push(ThreadId(1), &event(EventKind::MutexLock, at + 10, at + 60_000));
            samples.push(ThreadId(0), &event(EventKind::MutexUnlock, at + 10_000, at + 14_000));
            samples.push(ThreadId(0), &event(EventKind::MutexLock, at + 20_000, at + 20_500));
            samples.push(ThreadId(0), &event(EventKind::MutexUnlock, at + 40_000, at + 42_000));
        }
        let found = samples.finish(1_000_000_000);
        assert!(found.iter().all(|waking| waking.wake == 20_000), "{found:?}");
        assert_eq!(found.len(), 9);
    }

    #[test]
    fn short_calls_have_woken_nobody() {
        let mut samples = Samples::default();
        for round in 0..40 {
            let at = round * 1_000_000;
            samples.push(ThreadId(0), &event(EventKind::MutexUnlock, at, at + 200 + round));
            samples.push(ThreadId(0), &event(EventKind::MutexUnlock, at + 9_000, at + 9_900));
        }
        assert_eq!(samples.vain(1_000_000_000), Some(210));
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
        assert_eq!(samples.patience(1_000_000_000).map(|it| it.until), Some(250));
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
