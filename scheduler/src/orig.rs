//! ORIG-S: no enforcement.
//!
//! PerfPlay (CGO 2015), section 6.1: "parallel replay for the original execution without any
//! enforcement strategy for the events". A lock goes to whoever comes first, and what makes one
//! replay differ from the next on a real machine is noise ([`crate::Noise`] in virtual time).
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

use crate::{Choice, Moment, Request, Scheduler};

/// First come, first served.
///
/// The paper's scheduler hands nothing over: [`crate::Waiting::Barging`]. What it leaves out (a
/// thread on its way to sleep, system calls in vain, what it costs to wake somebody) decides how
/// much short critical sections cost that are contended; [`crate::Waiting::Glibc`] has that, and
/// predicts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Orig;

impl Scheduler for Orig {
    #[inline]
    fn choose(&mut self, _: Moment<'_>, _: &[Request]) -> Choice {
        Choice::Grant(0)
    }
}
