//! Keeping all threads but one out of guest code for a moment, where a replay finds each of them again:
//! behind an event, or in one.
//!
//! When a program forks that has several threads and shared memory, this memory is taken out of the guest's
//! reach ([`super::common`]). Accesses before that are none that are recorded, and those after it are. So
//! nobody may be in guest code meanwhile, and everybody notes where it was.

use super::machine::{Machine, park_forever};
use super::thread::GuestThread;
use crate::barrier::Barrier;
use crate::host;
use refrain_trace::{Event, EventKind, NO_TICKET, ThreadId, common};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the others are waited for.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long a thread sleeps until it looks again.
const NAP: Duration = Duration::from_micros(50);

/// What all threads share.
#[derive(Default)]
pub(crate) struct Standstill {
    wanted: AtomicBool,
    /// How many there have been.
    over: AtomicU64,
    barrier: Barrier,
}

/// Whether a thread may be in guest code.
#[derive(Clone, Default)]
pub(crate) struct Presence(Arc<AtomicBool>);

impl Presence {
    /// The thread is in a system call or a library function, which will be an event.
    pub(crate) fn leave(&self) {
        self.0.store(false, Ordering::Release);
    }

    fn is_inside(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Machine {
    /// Waits until all threads but this one are out of guest code, where they stay until
    /// [`Self::go_on`]. False if one of them does not come out soon: then nobody is held up.
    pub(crate) fn stand_still(&self, but: ThreadId) -> bool {
        let Standstill { wanted, barrier, .. } = &self.standstill;
        if wanted.swap(true, Ordering::SeqCst) {
            return false;
        }
        barrier.heavy();
        let begin = Instant::now();
        while self.presences(but).iter().any(Presence::is_inside) {
            if begin.elapsed() > PATIENCE {
                wanted.store(false, Ordering::Release);
                return false;
            }
            std::thread::sleep(NAP);
        }
        true
    }

    /// How many times all threads have stood still, the present one included.
    pub(crate) fn standstills(&self) -> u64 {
        self.standstill.over.load(Ordering::Relaxed) + 1
    }

    /// The others go on, and note that they stood still, if that matters.
    pub(crate) fn go_on(&self, matters: bool) {
        self.standstill.over.fetch_add(u64::from(matters), Ordering::Release);
        self.standstill.wanted.store(false, Ordering::Release);
    }

    /// This is a child process, with one thread.
    pub(crate) fn forget_standstill(&self) {
        self.standstill.wanted.store(false, Ordering::Relaxed);
    }
}

impl GuestThread {
    /// The thread goes on in guest code, unless it has to stand still before.
    pub(crate) fn enter_guest(&mut self) {
        let machine = self.machine.clone();
        let Standstill { wanted, over, barrier } = &machine.standstill;
        loop {
            self.presence.0.store(true, Ordering::Relaxed);
            barrier.light();
            // Elsewhere than behind an event, a replay would not find it.
            if !wanted.load(Ordering::Acquire) || !self.after_event {
                break;
            }
            self.presence.leave();
            let came = host::ticks();
            while wanted.load(Ordering::Acquire) {
                std::thread::sleep(NAP);
            }
            self.context.translating.add(came, came, host::ticks());
        }
        let over = over.load(Ordering::Acquire);
        if std::mem::replace(&mut self.standstills, over) != over {
            let event = self.event(EventKind::Common, host::ticks());
            let event = Event { nr: common::OTHERS, object: over, flags: NO_TICKET, ..event };
            if self.log.append(|| event, None).is_err() {
                park_forever();
            }
        }
    }
}
