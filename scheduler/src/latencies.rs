//! What waking took in a recording, as its waits show it.
//!
//! Two latencies decide how contention goes, and they differ between machines by a factor of ten
//! (a virtual machine has to be left to wake another core): how long a thread that sleeps for a
//! lock takes to go on after the release, and how long the releasing thread is in the system call
//! that wakes it.
//!
//! A wait during which the lock was released once, and which ended with that release, shows the
//! first; a release that lasted long enough for somebody to be woken shows the second. Medians of
//! both are told where there are enough.

use crate::config::ticks;
use refrain_trace::fixed::FixedMap;
use refrain_trace::{Event, EventKind, ThreadId};

/// Fewer samples say nothing.
const ENOUGH: usize = 8;
/// Shorter waits may have been spent awake, and longer ones without a core, in nanoseconds.
const SLEPT: std::ops::Range<u64> = 2_000..1_000_000;
/// Shorter system calls have found nobody to wake.
const ROUSED: u64 = 1_000;

/// Samples of a trace, thread by thread.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// Releases by object: when, and by whom.
    releases: FixedMap<u64, Vec<(u64, ThreadId)>>,
    /// Waits for a mutex: object, thread, from, to.
    waits: Vec<(u64, ThreadId, u64, u64)>,
    /// How long releases took that made a system call.
    calls: Vec<u64>,
}

/// Latencies in ticks, where the trace tells them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waking {
    /// From a release to the moment when the thread that slept goes on.
    pub wake: Option<u64>,
    /// What it costs to wake it.
    pub rouse: Option<u64>,
}

impl Samples {
    pub(crate) fn push(&mut self, thread: ThreadId, event: &Event) {
        let Event { object, begin, end, .. } = *event;
        match event.kind() {
            EventKind::MutexLock if end > begin => self.waits.push((object, thread, begin, end)),
            EventKind::MutexUnlock => {
                self.releases.entry(object).or_default().push((begin, thread));
                if end > begin {
                    self.calls.push(end - begin);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn finish(mut self, ticks_per_second: u64) -> Waking {
        let ticks = |nanoseconds| ticks(nanoseconds, ticks_per_second);
        for releases in self.releases.values_mut() {
            releases.sort_unstable();
        }
        let mut late = Vec::new();
        for (object, thread, begin, end) in self.waits {
            let releases = self.releases.get(&object).map_or(&[][..], Vec::as_slice);
            let from = releases.partition_point(|&(at, _)| at <= begin);
            let others = releases[from..].iter().take_while(|&&(at, _)| at < end);
            let mut others = others.filter(|&&(_, by)| by != thread);
            if let (Some(&(at, _)), None) = (others.next(), others.next()) {
                late.push(end - at);
            }
        }
        late.retain(|late| (ticks(SLEPT.start)..ticks(SLEPT.end)).contains(late));
        self.calls.retain(|&call| call >= ticks(ROUSED));
        Waking { wake: median(late), rouse: median(self.calls) }
    }
}

fn median(mut samples: Vec<u64>) -> Option<u64> {
    samples.sort_unstable();
    if samples.len() < ENOUGH { None } else { samples.get(samples.len() / 2).copied() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, begin: u64, end: u64) -> Event {
        Event { code: kind as u8, object: 0x1000, begin, end, ..Event::default() }
    }

    #[test]
    fn waits_that_end_with_the_only_release_tell_how_late_threads_wake() {
        let mut samples = Samples::default();
        for round in 0..9 {
            let at = round * 1_000_000;
            samples.push(ThreadId(1), &event(EventKind::MutexLock, at + 10, at + 30_000 + round));
            samples.push(ThreadId(0), &event(EventKind::MutexUnlock, at + 10_000, at + 14_000));
        }
        // Overtaken: two releases meanwhile.
        samples.push(ThreadId(1), &event(EventKind::MutexLock, 10_000_010, 10_090_000));
        samples.push(ThreadId(0), &event(EventKind::MutexUnlock, 10_010_000, 10_010_000));
        samples.push(ThreadId(0), &event(EventKind::MutexUnlock, 10_020_000, 10_020_000));
        let waking = samples.finish(1_000_000_000);
        assert_eq!(waking, Waking { wake: Some(20_004), rouse: Some(4_000) });
    }

    #[test]
    fn few_waits_tell_nothing() {
        let mut samples = Samples::default();
        samples.push(ThreadId(1), &event(EventKind::MutexLock, 10, 30_000));
        samples.push(ThreadId(0), &event(EventKind::MutexUnlock, 10_000, 14_000));
        assert_eq!(samples.finish(1_000_000_000), Waking::default());
    }
}
