//! The same run with more threads: each thread that another one creates is there several times.
//!
//! PerfPlay (section 6.5) records a program with more threads to see what that does to its
//! contention. Without another recording this is what can be said: a copy does what its thread did,
//! on the same objects, and is created, woken and waited for where its thread was. Threads that
//! nobody creates, the first one above all, are there once.
//!
//! What a thread waits for that is counted (arrivals at a barrier, signals, stores) grows with those
//! who count: if a part of an object's counts is copied threads', it takes that many more of them. So
//! the copies of a barrier's threads meet at it, too.
//!
//! # Limits
//! - Work is added, not shared out: a program that divides its input among its threads would give
//!   each less.
//! - Units of semaphores are posted by those who posted them. If these are not copied and those who
//!   take the units are, the replay is a deadlock, and there is no answer.
//! - The recorded order of objects says nothing of copies: only schedulers that do not look at it
//!   ([`crate::Orig`]) can replay the result.

use crate::skeleton::{Code, Object, Operation, Skeleton, Strand, UNKNOWN, WIDE_TIME, WIDE_WORK};
use refrain_trace::ThreadId;

/// How often each object counts, in all and by threads that are copied.
struct Counts(Vec<(u64, u64)>);

impl Counts {
    fn of(skeleton: &Skeleton) -> Counts {
        let mut counts = vec![(0, 0); skeleton.objects.len()];
        for strand in &skeleton.strands {
            for operation in &strand.operations {
                if matches!(operation.code, Code::Count | Code::Ordered) {
                    let (all, copied) = &mut counts[operation.object()];
                    *all += 1;
                    *copied += u64::from(strand.creator.is_some());
                }
            }
        }
        Counts(counts)
    }

    /// What stands for a recorded count if copied threads count so many times.
    fn grown(&self, object: u32, count: u32, times: u32) -> u32 {
        let (all, copied) = self.0[object as usize];
        let more = u64::from(count) * copied * u64::from(times - 1) / all.max(1);
        u32::try_from(u64::from(count) + more).unwrap_or(u32::MAX)
    }
}

impl Skeleton {
    /// The run with every created thread `times` times. The copies of a thread follow behind all
    /// recorded threads, in [`Skeleton::copies`].
    pub fn multiplied(&self, times: u32) -> Skeleton {
        let times = times.max(1);
        let counts = Counts::of(self);
        let created: Vec<usize> =
            (0..self.strands.len()).filter(|&id| self.strands[id].creator.is_some()).collect();
        let mut numbers = vec![None; self.strands.len()];
        for (number, &id) in created.iter().enumerate() {
            numbers[id] = Some(number);
        }
        // The copy of a thread, or the thread if it is there once.
        let copy = |thread: u32, of: u32| match numbers[thread as usize] {
            Some(number) if of > 0 => {
                (self.strands.len() + (of as usize - 1) * created.len() + number) as u32
            }
            _ => thread,
        };
        let mut strands = Vec::with_capacity(self.strands.len() + created.len() * (times as usize));
        for of in 0..times {
            let all = 0..self.strands.len();
            let ids = all.filter(|&id| of == 0 || self.strands[id].creator.is_some());
            for id in ids {
                let mut strand = self.strands[id].grown(&counts, times);
                let threads = strand.after.iter_mut().map(|before| &mut before.thread);
                for thread in threads.chain(strand.woken.iter_mut().map(|by| &mut by.thread)) {
                    *thread = copy(*thread, of);
                }
                if let Some((parent, _)) = &mut strand.creator {
                    *parent = ThreadId(copy(parent.0, of));
                }
                for operation in &mut strand.operations {
                    if operation.code == Code::Join {
                        operation.object = copy(operation.object, of);
                    }
                }
                // Whoever waits for a thread waits for its copies.
                if of == 0 && strand.creator.is_some() && !strand.operations.is_empty() {
                    let copies = (1..times).map(|other| join(copy(id as u32, other)));
                    strand.operations.extend(copies);
                    let costs = if strand.costs.is_empty() { 0 } else { strand.operations.len() };
                    strand.costs.resize(costs, 0);
                }
                strands.push(strand);
            }
        }
        let unordered = |object: &Object| Object { first: UNKNOWN, ..*object };
        let objects = self.objects.iter().map(unordered).collect();
        Skeleton { strands, objects, ticks_per_second: self.ticks_per_second }
    }

    /// The copies of each recorded thread in [`Skeleton::multiplied`], itself included.
    pub fn copies(&self, times: u32) -> Vec<Vec<ThreadId>> {
        let mut next = self.strands.len() as u32;
        let mut copies: Vec<Vec<ThreadId>> = (0..next).map(|id| vec![ThreadId(id)]).collect();
        for _ in 1..times.max(1) {
            for (strand, copies) in self.strands.iter().zip(&mut copies) {
                if strand.creator.is_some() {
                    copies.push(ThreadId(next));
                    next += 1;
                }
            }
        }
        copies
    }
}

fn join(thread: u32) -> Operation {
    Operation { work: 0, object: thread, rank: 0, code: Code::Join, flags: 0, next: UNKNOWN }
}

impl Strand {
    /// The strand with waits for what more threads count, and without its places in orders.
    fn grown(&self, counts: &Counts, times: u32) -> Strand {
        let mut strand = self.clone();
        let mut at = 0;
        for operation in &mut strand.operations {
            operation.next = UNKNOWN;
            at += usize::from(operation.flags & WIDE_WORK != 0);
            match operation.code {
                Code::Await | Code::AwaitLoad => {
                    operation.rank = counts.grown(operation.object, operation.rank, times);
                }
                Code::CondRelock => {
                    let (object, count) = ((strand.side[at] >> 32) as u32, strand.side[at] as u32);
                    let count = counts.grown(object, count, times);
                    strand.side[at] = u64::from(object) << 32 | u64::from(count);
                    at += 1;
                }
                Code::CondTimeout => at += 1,
                _ => at += usize::from(operation.flags & WIDE_TIME != 0),
            }
        }
        strand
    }
}
