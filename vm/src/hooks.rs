//! Library functions that are recorded as single events.
//!
//! The functions are found by name in the symbol tables of the C library that the guest maps,
//! and hooked by address, so that aliases and the library's internal calls are seen too.
//! How each is treated follows from what its body would do in a replay:
//!
//! - *modelled*: the body synchronizes through plain loads that replay cannot order. Recording
//!   runs it unobserved and keeps its result; replay never runs it.
//!   (Not so for mutexes with a priority ceiling: the library notes in the heap which ceilings a thread
//!   has met. The guest executes these functions itself, and their atomic instructions are ordered.)
//! - *guarded*: the body has effects that replay needs (it frees a stack, it runs an initializer).
//!   Both run it, after having made sure that it does not wait.

use crate::engine::LockRole;
use crate::mutex;
use refrain_trace::EventKind::{self, *};

/// How a hooked function is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Model {
    /// Modelled; the ticket of its object is taken after the body (acquisition).
    Acquire,
    /// Modelled; the ticket is taken before the body.
    Release,
    /// Modelled; an acquisition that reports failure in `errno`.
    AcquireErrno,
    /// Modelled; a release that reports failure in `errno`.
    ReleaseErrno,
    /// Modelled; `sem_getvalue`.
    GetValue,
    /// Modelled; a wait on a condition variable: two events.
    CondWait,
    /// Modelled; a barrier: two events.
    Barrier,
    /// Guarded; `pthread_once`.
    Once,
    /// Guarded; `pthread_join`, and what its non-blocking forms answer.
    Join,
    /// Guarded; `pthread_tryjoin_np`.
    TryJoin,
    /// Guarded; a join that waits until a time of this clock, or of the one that the call names.
    TimedJoin(Option<libc::clockid_t>),
    /// Guarded; `pthread_create`: until its `clone`, no other thread begins or ends.
    Create,
    /// Not touched, only noted; `pthread_detach`.
    Detach,
    /// Likewise; `pthread_barrier_init`, with how many threads the rounds of the barrier are for.
    Rounds,
    /// The program's entry point; no event.
    Entry,
    /// Modelled; `pthread_cancel`: a signal to the thread, which marks itself.
    Cancel,
}

/// A hooked function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hook {
    pub(crate) name: &'static str,
    pub(crate) kind: EventKind,
    pub(crate) model: Model,
}

impl Hook {
    /// What it does to a lock.
    pub(crate) fn role(&self) -> Option<LockRole> {
        match self.kind {
            MutexLock | ReadLock | WriteLock | SpinLock => Some(LockRole::Takes),
            MutexUnlock | RwUnlock | SpinUnlock | MutexTryLock | MutexTimedLock | ReadTryLock
            | ReadTimedLock | WriteTryLock | WriteTimedLock | SpinTryLock => {
                Some(LockRole::MayRelease)
            }
            _ => None,
        }
    }

    /// Whether the guest executes the function itself if it is called for the mutex at this address.
    pub(crate) fn leaves(&self, address: u64, word: impl FnOnce(u64) -> Option<u64>) -> bool {
        let is_of_mutex = matches!(
            self.kind,
            MutexLock
                | MutexTryLock
                | MutexTimedLock
                | MutexUnlock
                | MutexConsistent
                | MutexDestroy
        );
        is_of_mutex && mutex::has_ceiling(address, word)
    }
}

const fn hook(name: &'static str, kind: EventKind, model: Model) -> Hook {
    Hook { name, kind, model }
}

/// Every function that is recorded as an event.
#[rustfmt::skip]
pub(crate) const HOOKS: &[Hook] = &[
    hook("pthread_create", ThreadCreate, Model::Create),
    hook("pthread_detach", ThreadDetach, Model::Detach),
    hook("pthread_join", ThreadJoin, Model::Join),
    hook("pthread_tryjoin_np", ThreadJoin, Model::TryJoin),
    hook("pthread_timedjoin_np", ThreadJoin, Model::TimedJoin(Some(libc::CLOCK_REALTIME))),
    hook("pthread_clockjoin_np", ThreadJoin, Model::TimedJoin(None)),
    hook("pthread_cancel", ThreadCancel, Model::Cancel),

    hook("pthread_mutex_lock", MutexLock, Model::Acquire),
    hook("pthread_mutex_trylock", MutexTryLock, Model::Acquire),
    hook("pthread_mutex_timedlock", MutexTimedLock, Model::Acquire),
    hook("pthread_mutex_clocklock", MutexTimedLock, Model::Acquire),
    hook("pthread_mutex_unlock", MutexUnlock, Model::Release),
    hook("pthread_mutex_consistent", MutexConsistent, Model::Release),
    hook("pthread_mutex_destroy", MutexDestroy, Model::Release),

    hook("pthread_rwlock_rdlock", ReadLock, Model::Acquire),
    hook("pthread_rwlock_tryrdlock", ReadTryLock, Model::Acquire),
    hook("pthread_rwlock_timedrdlock", ReadTimedLock, Model::Acquire),
    hook("pthread_rwlock_clockrdlock", ReadTimedLock, Model::Acquire),
    hook("pthread_rwlock_wrlock", WriteLock, Model::Acquire),
    hook("pthread_rwlock_trywrlock", WriteTryLock, Model::Acquire),
    hook("pthread_rwlock_timedwrlock", WriteTimedLock, Model::Acquire),
    hook("pthread_rwlock_clockwrlock", WriteTimedLock, Model::Acquire),
    hook("pthread_rwlock_unlock", RwUnlock, Model::Release),
    hook("pthread_rwlock_destroy", RwDestroy, Model::Release),

    hook("pthread_spin_lock", SpinLock, Model::Acquire),
    hook("pthread_spin_trylock", SpinTryLock, Model::Acquire),
    hook("pthread_spin_unlock", SpinUnlock, Model::Release),

    hook("pthread_cond_wait", CondWaitBegin, Model::CondWait),
    hook("pthread_cond_timedwait", CondWaitBegin, Model::CondWait),
    hook("pthread_cond_clockwait", CondWaitBegin, Model::CondWait),
    hook("pthread_cond_signal", CondSignal, Model::Release),
    hook("pthread_cond_broadcast", CondBroadcast, Model::Release),
    hook("pthread_cond_destroy", CondDestroy, Model::Release),

    hook("pthread_barrier_wait", BarrierArrive, Model::Barrier),
    hook("pthread_barrier_init", BarrierInit, Model::Rounds),
    hook("pthread_barrier_destroy", BarrierDestroy, Model::Release),

    hook("sem_wait", SemWait, Model::AcquireErrno),
    hook("sem_trywait", SemTryWait, Model::AcquireErrno),
    hook("sem_timedwait", SemTimedWait, Model::AcquireErrno),
    hook("sem_clockwait", SemTimedWait, Model::AcquireErrno),
    hook("sem_post", SemPost, Model::ReleaseErrno),
    hook("sem_getvalue", SemGetValue, Model::GetValue),

    hook("pthread_once", OnceRun, Model::Once),
];

/// Stands for the program's entry point among the names of functions.
pub(crate) const ENTRY: &str = "@entry";

/// The function that tells where a thread's `errno` is.
pub(crate) const ERRNO_LOCATION: &str = "__errno_location";

/// The hook for a symbol name, if it has one.
pub(crate) fn by_name(name: &str) -> Option<&'static Hook> {
    static AT_ENTRY: Hook = hook(ENTRY, ThreadStart, Model::Entry);
    if name == ENTRY {
        return Some(&AT_ENTRY);
    }
    // Libraries have thousands of others.
    let may_be = name.starts_with("pthread_") || name.starts_with("sem_");
    HOOKS.iter().find(|hook| may_be && hook.name == name)
}

/// Hooks by guest address. Built once per module, read at every hooked call.
#[derive(Default, Clone)]
pub(crate) struct HookMap {
    /// Sorted by address.
    by_address: Vec<(u64, &'static Hook)>,
}

impl HookMap {
    pub(crate) fn insert(&mut self, pc: u64, hook: &'static Hook) {
        if let Err(at) = self.by_address.binary_search_by_key(&pc, |&(pc, _)| pc) {
            self.by_address.insert(at, (pc, hook));
        }
    }

    pub(crate) fn at(&self, pc: u64) -> Option<&'static Hook> {
        let at = self.by_address.binary_search_by_key(&pc, |&(pc, _)| pc).ok()?;
        Some(self.by_address[at].1)
    }

    /// Whether there is a function of this kind.
    pub(crate) fn have(&self, kind: EventKind) -> bool {
        self.by_address.iter().any(|(_, hook)| hook.kind == kind)
    }
}

#[cfg(test)]
mod tests {
    use super::{HOOKS, by_name};

    #[test]
    fn every_hook_is_found_by_its_name() {
        for hook in HOOKS {
            assert_eq!(by_name(hook.name), Some(hook));
        }
        assert_eq!(by_name("pthread_self"), None);
    }
}
