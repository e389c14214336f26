//! What threads had of a core, where there were more of them than cores.
//!
//! A trace says when a thread was under way, not whether it had a core meanwhile. If four threads
//! are under way on two cores, their times overlap and add up to twice what was done; a replay on
//! two cores would then take twice as long as the recording. So at each moment the cores are
//! shared evenly among the threads that are under way (processor sharing, the limit of round
//! robin with small slices), and a thread's work is its share.
//!
//! Invariant: the work of all threads in any interval is at most its length times the cores.

use crate::skeleton::Strand;
use crate::sweep::{Side, sweep};
use crate::{Durations, Skeleton};
use refrain_trace::{EventId, ThreadId};

/// Binary digits behind the point of a share.
const FRACTION: u32 = 20;

/// When threads were under way.
#[derive(Debug)]
pub(crate) struct Sharing {
    cores: u64,
    /// By thread and event: from the last event to this one, system calls included.
    spans: Vec<Vec<Span>>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    begin: u64,
    end: u64,
    /// What the thread had of it.
    had: u64,
}

impl Sharing {
    pub(crate) fn new(threads: usize, cores: u32) -> Sharing {
        Sharing { cores: u64::from(cores.max(1)), spans: vec![Vec::new(); threads] }
    }

    pub(crate) fn push(&mut self, thread: ThreadId, begin: u64, end: u64) {
        let end = end.max(begin);
        self.spans[thread.index()].push(Span { begin, end, had: end - begin });
    }

    /// The skeleton with the work that was done.
    pub(crate) fn apply(mut self, skeleton: Skeleton) -> Skeleton {
        if self.spans.len() as u64 <= self.cores {
            return skeleton;
        }
        self.share(&skeleton.strands);
        skeleton.retimed(|thread: ThreadId, event: EventId, Durations { work, time }| {
            let Span { begin, end, had } = self.spans[thread.index()][event.index()];
            let part = |time: u64| match end - begin {
                0 => time,
                all => (u128::from(time) * u128::from(had) / u128::from(all)) as u64,
            };
            // Sleeps are as long as ever; they are in no span.
            let on_core = skeleton.operations(thread)[event.index()].is_kernel();
            Durations { work: part(work), time: if on_core { part(time) } else { time } }
        })
    }

    /// One pass over all beginnings and ends in the order of time.
    fn share(&mut self, strands: &[Strand]) {
        for (spans, strand) in self.spans.iter_mut().zip(strands) {
            // The time before a created thread's first event is not its own.
            if let (Some(_), Some(first)) = (strand.creator, spans.first_mut()) {
                first.begin = first.end;
            }
        }
        let (mut last, mut under_way, mut had) = (0, 0u64, 0u128);
        sweep(
            &mut self.spans,
            |span| (span.begin, span.end),
            |time, side, span| {
                let share = if under_way <= self.cores {
                    1 << FRACTION
                } else {
                    (self.cores << FRACTION) / under_way
                };
                had += u128::from(time - last) * u128::from(share);
                last = time;
                match side {
                    Side::Ends => {
                        under_way -= 1;
                        span.had = (had >> FRACTION) as u64 - span.had;
                    }
                    Side::Begins => {
                        under_way += 1;
                        span.had = (had >> FRACTION) as u64;
                    }
                }
            },
        );
    }
}
