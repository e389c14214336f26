//! `pthread_cancel`, as a signal that the machine sends and by which a thread marks itself.
//!
//! In the library's own way another thread sets the mark, and looks whether the thread is in a
//! wait; but what is recorded as one event (a wait for a condition variable, a semaphore) is not
//! executed in a replay, and so is not marked as a wait there. So here only the thread itself
//! changes its mark, at the place of a signal, which a replay finds:
//!
//! - Where the thread can be cancelled at once (in a system call that is a cancellation point, or
//!   if it has asked for that), the handler is the library's `pthread_testcancel`, which unwinds.
//! - Elsewhere it is a function without effects, and the library looks at the mark itself when it
//!   comes to a cancellation point.
//! - A wait that is recorded as one event ends as if its time were up, and the thread is cancelled
//!   as if it were still in the call.
//!
//! The body of such a wait, which a replay does not execute, notes in the mark that the thread may be
//! cancelled at once. The recorder takes that back while the thread waits: handlers that run
//! meanwhile read the mark, and so do other threads (`setuid` marks all of them). It takes back, too, that
//! the body has named a record of its own for what is to be done if the thread is cancelled: collectors of
//! garbage search what lies behind a stack, the thread's descriptor among it, for pointers.
//!
//! Where the mark is, and what its bits mean, is known of glibc 2.36 to 2.40.

pub(super) mod library;

use super::machine::Machine;
use super::signals::{Handling, Signal, Target, own_info};
use super::sync::Call;
use super::thread::GuestThread;
use crate::elf::Elf;
use crate::frame::Action;
use crate::hooks::Model;
use crate::host::{self, Guest};
use crate::{Error, Hidden, Result};
use library::Cancellation;
use refrain_trace::payload::Write;
use std::fs::File;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// The library's own signal for this.
pub(crate) const SIGNAL: u64 = 32;
/// `si_code` of `tgkill`.
const SI_TKILL: i32 = -6;

/// Bits of the mark.
const DISABLED: u32 = 1;
const AT_ONCE: u32 = 1 << 1;
const CANCELING: u32 = 1 << 2;
const CANCELED: u32 = 1 << 3;
const EXITING: u32 = 1 << 4;
const TERMINATED: u32 = 1 << 5;

/// How far before its mark a thread's descriptor names what is to be done if the thread is cancelled.
const CLEANUP: u64 = 16;
/// In such a record (`struct _pthread_cleanup_buffer`): where the one is named that was made before it.
const FORMER: u64 = 24;
/// Records that bodies make, one in the other, at most.
const RECORDS: usize = 16;

impl GuestThread {
    /// `pthread_cancel(thread)`.
    pub(crate) fn send_cancellation(&mut self, thread: u64) -> Result<()> {
        let machine = &self.machine;
        let cancellation = machine.learn_cancellation(self.context.rip);
        let Some(Cancellation { nothing, restorer, .. }) = cancellation else {
            return Err(Error::Unsupported(format!(
                "pthread_cancel of this C library cannot be recorded (called in {}); let threads \
                 end by returning",
                self.id
            )));
        };
        const SA_RESTORER: u64 = 0x0400_0000;
        let flags = (libc::SA_SIGINFO | libc::SA_RESTART) as u64 | SA_RESTORER;
        let action = [nothing, flags, restorer, 0];
        machine.signals.action(SIGNAL, Some(action));
        // A thread that has ended gets no signal.
        if let Some(thread) = machine.thread_by_pointer(thread).filter(|&t| !machine.has_ended(t)) {
            let signal = Signal { number: SIGNAL, info: own_info(SIGNAL, SI_TKILL) };
            machine.signals.send(Target::Thread(thread), signal);
        }
        Ok(())
    }

    /// Whether a hooked function is a cancellation point, and the thread has been cancelled.
    pub(super) fn cancels_here(&mut self, call: &Call) -> bool {
        self.cancellable = match call.hook.model {
            Model::CondWait | Model::Join | Model::TimedJoin(_) => true,
            Model::AcquireErrno => call.hook.name != "sem_trywait",
            _ => false,
        };
        self.mark_in_body = self.cancellable.then(|| self.mark_that_body_changes()).flatten();
        let cancelled = self.cancellable
            && self.fast_path.is_marked
            && self.mark().is_some_and(|(_, mark)| acts(mark));
        self.cancelled |= cancelled;
        cancelled
    }

    /// Where the thread's mark is, if the body of a wait is to change it: a thread that may be
    /// cancelled at once is marked so already.
    fn mark_that_body_changes(&mut self) -> Option<u64> {
        let pointer = self.context.fs_base;
        let at = match self.mark_at {
            Some((of, at)) if of == pointer => at,
            _ => {
                let known = self.machine.learn_cancellation(self.context.rip);
                let at = known.map(|known| pointer.wrapping_add(known.mark));
                let at = at.filter(|&at| Guest.word32(at).is_some());
                self.mark_at = Some((pointer, at));
                at
            }
        }?;
        // SAFETY: the word was readable, and is where the thread's own data lie as long as it lives.
        (unsafe { host::atomic_word(at) }.load(Ordering::Relaxed) & AT_ONCE == 0).then_some(at)
    }

    /// The body is about to wait: what it has noted in the thread's descriptor is taken back.
    pub(super) fn restore_descriptor(&self) {
        if let Some((_, Some(mark))) = self.mark_at.filter(|_| self.cancellable) {
            let named = Guest.word(mark - CLEANUP);
            let former = named.and_then(|named| self.former_record(named));
            if let Some(former) = former {
                // The body names that one again when it goes on, whatever is named then.
                Guest.write(mark - CLEANUP, &former.to_le_bytes());
            }
        }
        if let Some(at) = self.mark_in_body {
            // SAFETY: as above.
            unsafe { host::atomic_word(at) }.fetch_and(!AT_ONCE, Ordering::SeqCst);
        }
    }

    /// The record that the thread's descriptor named before bodies of library functions entered theirs, the
    /// innermost of which is `named`. `None` if `named` is no body's.
    fn former_record(&self, named: u64) -> Option<u64> {
        let mut record = named;
        for _ in 0..RECORDS {
            if !self.body_stack.holds(record) {
                return (record != named).then_some(record);
            }
            record = Guest.word(record + FORMER)?;
        }
        None
    }

    /// Whether the thread is cancelled in the wait that is under way, which is to end.
    pub(super) fn is_cancelled_in_wait(&mut self) -> bool {
        if !self.cancellable || self.machine.signals.next(self.id) != Some(SIGNAL) {
            return false;
        }
        let acts = self.mark().is_some_and(|(_, mark)| acts(mark | CANCELED));
        self.cancelled |= acts;
        acts
    }

    /// A hooked function has returned: the thread is cancelled in it, if it has been.
    pub(super) fn cancel_if_due(&mut self) {
        self.cancellable = false;
        self.mark_in_body = None;
        if self.cancelled {
            let signal = Signal { number: SIGNAL, info: own_info(SIGNAL, SI_TKILL) };
            let handling = self.machine.signals.handle_now(self.id, signal);
            self.handle_after_event(&handling);
            self.cancelled = false;
        }
    }

    /// The hooked function returns without having run.
    pub(super) fn cancelled_call(&mut self, result: i32) -> i32 {
        self.return_from_call(u64::from(result as u32));
        result
    }

    /// What becomes of a signal that cancels: the action, and the thread's new mark. The frame is
    /// built as if the thread were still in the call that it is cancelled in: whoever unwinds
    /// looks for what to clean up there.
    pub(super) fn cancelling(&mut self, handling: &Handling) -> Option<(Action, Write)> {
        let Cancellation { test, nothing, .. } = self.machine.cancellation()?;
        let [handler, flags, restorer, mask] = handling.action;
        if handling.signal.number != SIGNAL || handler != nothing {
            return None;
        }
        let (address, mark) = self.mark()?;
        self.fast_path.is_marked = true;
        let at_once = self.cancelled || mark & AT_ONCE != 0;
        let mark = mark | CANCELING | CANCELED;
        let handler = if at_once && acts(mark) { test } else { nothing };
        let write = Write { address, bytes: mark.to_le_bytes().to_vec() };
        Some(([handler, flags, restorer, mask], write))
    }

    /// Where the thread's mark is, and the mark.
    fn mark(&self) -> Option<(u64, u32)> {
        let address = self.context.fs_base.wrapping_add(self.machine.cancellation()?.mark);
        Some((address, Guest.word32(address)?))
    }
}

/// Whether the library acts on a mark.
fn acts(mark: u32) -> bool {
    mark & (DISABLED | CANCELED | EXITING | TERMINATED) == CANCELED
}

impl Machine {
    /// How the guest's C library cancels threads, if that is known and some thread has been.
    fn cancellation(&self) -> Option<Cancellation> {
        *self.cancellation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks into the library that code belongs to.
    fn learn_cancellation(&self, pc: u64) -> Option<Cancellation> {
        let learn = || {
            let (bias, path) = self.file_at(pc)?;
            let file = Hidden::copy(File::open(&path).ok()?).ok()?;
            Cancellation::of(&Elf::read_lazily(&path, file).ok()?, bias)
        };
        let mut known = self.cancellation.lock().unwrap_or_else(PoisonError::into_inner);
        // Another program of the process may have another library.
        if known.is_none_or(|known| self.file_at(known.test) != self.file_at(pc)) {
            *known = learn();
        }
        *known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_may_be_cancelled_is() {
        assert!(acts(CANCELED | CANCELING) && acts(CANCELED | AT_ONCE));
        assert!(!acts(AT_ONCE) && !acts(CANCELED | DISABLED) && !acts(CANCELED | EXITING));
    }
}
