//! Logical clocks: how far threads have come by their own work, whatever the time.

use super::threads::Thread;
use crate::Skeleton;
use crate::skeleton::Code;

/// By thread and event: where its clock stands when the thread comes to the event, and when it
/// leaves it.
#[derive(Debug, Default)]
pub(super) struct Clocks(Vec<Vec<(u64, u64)>>);

impl Clocks {
    /// Work counts, and time off the core. A system call that keeps its core does not.
    pub(super) fn of(skeleton: &Skeleton) -> Clocks {
        let of_strand = |strand| {
            let mut thread = Thread::new(strand, &[]);
            let mut clock = 0u64;
            let mut clocks = Vec::with_capacity(thread.operations.len());
            while !thread.is_over() {
                let durations = thread.durations();
                let passes = matches!(
                    thread.operation().code,
                    Code::Sleep | Code::TimedOut | Code::CondTimeout
                );
                let arrive = clock.saturating_add(durations.work);
                clock = arrive.saturating_add(if passes { durations.time } else { 0 });
                clocks.push((arrive, clock));
                thread.position += 1;
            }
            clocks
        };
        Clocks(skeleton.strands.iter().map(of_strand).collect())
    }

    /// Where a thread's clock stands when it comes to an event, and when it leaves it; after its
    /// last event, where it ended.
    pub(super) fn at(&self, thread: usize, event: u32) -> (u64, u64) {
        let clocks = &self.0[thread];
        let end = clocks.last().map_or(0, |last| last.1);
        clocks.get(event as usize).copied().unwrap_or((end, end))
    }

    /// Where it stands when the thread sets out for an event.
    pub(super) fn before(&self, thread: usize, event: u32) -> u64 {
        event.checked_sub(1).map_or(0, |last| self.at(thread, last).1)
    }
}
