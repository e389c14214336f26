//! Which threads are in guest code, and whether they are to stay out of it ([`super::standstill`]).

use crate::host;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long each of the others may compute until nobody waits for them any more. What counts is the
/// processors' time: who has no processor does not compute.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long they are waited for at most.
const LONGEST: Duration = Duration::from_secs(1);
/// How long a thread sleeps until it looks again.
const NAP: Duration = Duration::from_micros(50);

/// What all threads share.
#[derive(Default)]
pub(crate) struct Standstill {
    wanted: AtomicBool,
    /// The event of areas that the last one was for.
    areas: AtomicU64,
}

/// Whether a thread may be in guest code.
#[derive(Clone, Default)]
pub(crate) struct Presence(Arc<AtomicBool>);

impl Presence {
    /// The thread is in a system call or a library function, which will be an event.
    pub(crate) fn leave(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether the thread is in guest code. Another thread may store something that this one reads in guest code,
    /// and then ask this. If the answer is no, it need not make this thread's processor see the store
    /// (`membarrier`): this thread sees the store when it enters guest code again.
    pub(crate) fn is_inside(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// The thread goes into guest code.
    pub(crate) fn enter(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Standstill {
    /// Waits until these threads are out of guest code, where they stay until [`Self::end`]. False if one
    /// of them does not come out soon: then nobody is held up.
    pub(crate) fn begin<T>(&self, others: &[(T, Presence)]) -> bool {
        if self.wanted.swap(true, Ordering::SeqCst) {
            return false;
        }
        let (begin, computed) = (Instant::now(), host::processor_time());
        let patience = PATIENCE * others.len() as u32;
        while others.iter().any(|(_, other)| other.is_inside()) {
            if host::processor_time() - computed > patience || begin.elapsed() > LONGEST {
                self.end(None);
                return false;
            }
            std::thread::sleep(NAP);
        }
        true
    }

    /// They go on, and note that they stood still for that event of areas, if there is one.
    pub(crate) fn end(&self, areas: Option<u64>) {
        areas.iter().for_each(|&areas| self.areas.store(areas, Ordering::Release));
        self.wanted.store(false, Ordering::Release);
    }

    /// The event of areas that the last one was for.
    pub(crate) fn areas(&self) -> u64 {
        self.areas.load(Ordering::Acquire)
    }

    /// The thread goes into guest code, unless it has to stay out. It has not gone, then.
    pub(crate) fn enter(&self, presence: &Presence) -> bool {
        presence.enter();
        !self.wanted.load(Ordering::SeqCst)
    }

    /// Waits until the thread may go on.
    pub(crate) fn wait(&self, presence: &Presence) {
        presence.leave();
        while self.wanted.load(Ordering::Acquire) {
            std::thread::sleep(NAP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Presence, Standstill};
    use std::thread;

    #[test]
    fn who_is_out_stays_out() {
        let (standstill, presence) = (Standstill::default(), Presence::default());
        assert!(standstill.enter(&presence));
        let all = [((), presence.clone())];
        assert!(!standstill.begin(&all), "it does not come out");
        presence.leave();
        assert!(standstill.begin(&all));
        assert!(!standstill.begin::<()>(&[]), "there is one at a time");
        assert!(!standstill.enter(&presence));
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                standstill.wait(&presence);
                assert!(standstill.enter(&presence));
                standstill.areas()
            });
            standstill.end(Some(7));
            // It may come only now.
            assert!(waits.join().is_ok_and(|areas| areas == 7));
        });
    }
}
