//! ORIG-S: no enforcement.
//!
//! PerfPlay (CGO 2015), section 6.1: "parallel replay for the original execution without any
//! enforcement strategy for the events". A lock goes to whoever comes first, and what makes one
//! replay differ from the next on a real machine is noise; here it is modelled.
//!
//! # Deviations
//! 1. Sleeping threads are woken in the order of arrival, one at a release. As with a mutex on a
//!    futex, whoever comes before the woken thread is awake overtakes it.
//! 2. The order of work stays what each thread recorded, whatever the lock order: a skeleton has
//!    no values to decide on another path. So a lock under which a thread waits for others (joins
//!    them, or reads what they counted) goes to those others first, as in the recording, and here
//!    alone "first come" has an exception. Without it pigz came to a deadlock: `t4` was done
//!    first, the main thread was woken by its broadcast and joined it under the lock of the list
//!    of threads; in another order another thread's broadcast ended the wait, for a wait asks how
//!    many signals there were and not whose, the main thread had the lock again, joined `t4` as
//!    recorded, and `t4` wanted that lock to say that it is done. The program would have joined
//!    the other thread. The same holds for every scheduler that does not keep the recorded order.
//! 3. A deadlock is still possible where the program would have taken another path for another
//!    reason: two locks taken in both orders at times that the program's data kept apart, a unit
//!    of a semaphore that somebody else takes, or a wait that needs its lock only by way of a
//!    second lock and a third thread (in the C++ corpus program, `t0` reads under the queue's lock
//!    what `t1` counts under another lock, which `t2` has while it wants the queue's).

use crate::latencies::Waking;
use crate::splitmix::SplitMix;
use crate::{Choice, Moment, Request, Scheduler};
use refrain_trace::ThreadId;

/// First come, first served.
#[derive(Clone, Debug)]
pub struct Orig {
    noise: Option<(SplitMix, u32)>,
}

impl Orig {
    /// Without noise: arrivals are decided by recorded work alone.
    pub fn exact() -> Orig {
        Orig { noise: None }
    }

    /// Each piece of work takes up to `per_mille` thousandths longer than recorded, drawn evenly
    /// from a generator with this seed.
    pub fn with_jitter(seed: u64, per_mille: u32) -> Orig {
        Orig { noise: Some((SplitMix::new(seed), per_mille)) }
    }
}

/// First come, first served, with waiting, sleeping and waking as glibc and the kernel do them: the
/// model that predicts. [`Orig`] is the paper's scheduler; what it leaves out (a thread on its way
/// to sleep, system calls in vain, what it costs to wake somebody) decides how much short critical
/// sections cost that are contended.
#[derive(Clone, Debug)]
pub struct Arrival<'a> {
    orig: Orig,
    wakings: &'a [Waking],
    random: SplitMix,
}

impl<'a> Arrival<'a> {
    /// Work takes up to `per_mille` thousandths longer, see [`Orig::with_jitter`]. What it takes to
    /// wake a thread is drawn from `wakings`; from the machine's costs if there are none.
    pub fn with_jitter(seed: u64, per_mille: u32, wakings: &'a [Waking]) -> Arrival<'a> {
        let orig = Orig::with_jitter(seed, per_mille);
        Arrival { orig, wakings, random: SplitMix::new(!seed) }
    }
}

impl Scheduler for Arrival<'_> {
    #[inline]
    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        self.orig.choose(moment, requests)
    }

    fn barges(&self) -> bool {
        true
    }

    fn sleeps_as_glibc(&self) -> bool {
        true
    }

    #[inline]
    fn jitter(&mut self, thread: ThreadId, work: u64) -> u64 {
        self.orig.jitter(thread, work)
    }

    fn waking(&mut self) -> Option<Waking> {
        let last = (self.wakings.len() as u64).checked_sub(1)?;
        self.wakings.get(self.random.below(last + 1) as usize).copied()
    }
}

impl Scheduler for Orig {
    #[inline]
    fn choose(&mut self, _: Moment<'_>, _: &[Request]) -> Choice {
        Choice::Grant(0)
    }

    fn barges(&self) -> bool {
        true
    }

    #[inline]
    fn jitter(&mut self, _: ThreadId, work: u64) -> u64 {
        match &mut self.noise {
            Some((random, per_mille)) => {
                let most = u128::from(work) * u128::from(*per_mille) / 1000;
                random.below((most as u64).saturating_add(1))
            }
            None => 0,
        }
    }
}
