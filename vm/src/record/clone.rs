//! Threads of the guest: how they begin and end.

use super::calls::{KERNELS_HALF, Pending, words};
use super::notice::Notice;
use super::process::NAMESPACES;

use super::thread::{Birth, GuestThread, spawn};
use crate::Result;
use crate::context::reg::*;
use crate::host::{self, Guest};
use crate::mutex;
use refrain_trace::payload::{Effect, Write};
use refrain_trace::{Event, EventKind, order};

/// What `clone` must ask for to make a thread.
const THREAD: u64 = (libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD) as u64;
/// What a thread has in common with its creator only if that is asked for: the working directory, and
/// the table of descriptors.
const IN_COMMON: i32 = libc::CLONE_FS | libc::CLONE_FILES;

/// Bytes of the kernel's `robust_list_head`.
const ROBUST_HEAD: u64 = 24;
/// How often a thread that ends unlocks one recursive mutex at most.
const MOST_UNLOCKS: u64 = 1 << 16;

/// Why the kernel creates no task with these flags, whatever the recorder can do (`copy_process`).
fn refused_by_kernel(flags: u64, tls: u64) -> Option<i32> {
    let all = |wanted: i32| flags & wanted as u64 == wanted as u64;
    let without = |wanted: i32, other: i32| all(wanted) && !all(other);
    let invalid = all(libc::CLONE_NEWNS | libc::CLONE_FS)
        || all(libc::CLONE_NEWUSER | libc::CLONE_FS)
        || without(libc::CLONE_THREAD, libc::CLONE_SIGHAND)
        || without(libc::CLONE_SIGHAND, libc::CLONE_VM)
        || all(libc::CLONE_THREAD | libc::CLONE_NEWUSER)
        || all(libc::CLONE_THREAD | libc::CLONE_NEWPID)
        || all(libc::CLONE_NEWIPC | libc::CLONE_SYSVSEM)
        // Both would be stored in the same place, as `clone` has only one for them.
        || all(libc::CLONE_PIDFD | libc::CLONE_PARENT_SETTID)
        || all(libc::CLONE_PIDFD | libc::CLONE_DETACHED);
    if invalid {
        return Some(libc::EINVAL);
    }
    (all(libc::CLONE_SETTLS) && tls >= KERNELS_HALF).then_some(libc::EPERM)
}

impl GuestThread {
    /// `clone(flags, stack, parent_tid, child_tid, tls)`: a new thread.
    pub(crate) fn clone_thread(&mut self, mut pending: Pending) -> Result<()> {
        let [flags, stack, parent_tid, child_tid, tls, _] = pending.args;
        if let Some(errno) = refused_by_kernel(flags, tls) {
            self.answer(pending, -i64::from(errno));
            return Ok(());
        }
        if flags & THREAD != THREAD {
            return self.fork(pending);
        }
        if flags & NAMESPACES != 0 {
            self.machine.notice(Notice::Namespaces);
            self.answer(pending, -i64::from(libc::EPERM));
            return Ok(());
        }
        self.enter(&mut pending);
        let mut context = self.context.clone();
        context.finish_syscall(0);
        if stack != 0 {
            context.gpr[RSP] = stack;
        }
        if flags & libc::CLONE_SETTLS as u64 != 0 {
            context.fs_base = tls;
        }
        let clear = flags & libc::CLONE_CHILD_CLEARTID as u64 != 0;
        // The new thread waits until its parent has stored its id.
        let Ok((tid, thread)) = spawn(&self.machine, IN_COMMON & !(flags as i32)) else {
            self.leave(&mut pending);
            self.end_creation();
            self.conclude(pending, -i64::from(libc::EAGAIN), Vec::new(), Effect::None);
            return Ok(());
        };
        self.machine.count_if_threads_are_disturbed();
        // Only now: a replay does not know of threads that could not be created.
        self.machine.engine.several_threads();
        let (child, log) = self.machine.add_thread(context.fs_base);
        self.machine.set_kernel_id(child, tid);
        if std::mem::take(&mut self.creates_detached) {
            self.machine.detach(context.fs_base);
        }
        let attention = self.machine.signals.begin_thread(child, Some(self.id));
        let clear_at_exit = if clear { child_tid } else { 0 };

        let mut writes = Vec::new();
        for (flag, address) in
            [(libc::CLONE_PARENT_SETTID, parent_tid), (libc::CLONE_CHILD_SETTID, child_tid)]
        {
            if flags & flag as u64 != 0 {
                let bytes = tid.to_le_bytes().to_vec();
                Guest.write(address, &bytes);
                writes.push(Write { address, bytes });
            }
        }
        self.leave(&mut pending);
        self.end_creation();
        self.conclude(pending, i64::from(tid), writes, Effect::Clone { child });
        let _ = thread.send(Birth { id: child, log, attention, context, clear_at_exit });
        Ok(())
    }

    /// `set_robust_list(head, length)`. The kernel is told too: it does the same for a process that
    /// is killed.
    pub(crate) fn set_robust_list(&mut self, pending: Pending) {
        let [head, len, ..] = *pending.call.arguments();
        // SAFETY: the kernel reads and writes the guest's list only, and checks its addresses.
        let result = unsafe { host::syscall(libc::SYS_set_robust_list as u64, pending.args) };
        if len == ROBUST_HEAD {
            self.robust_list = head;
        }
        self.answer(pending, result);
    }

    /// `get_robust_list(thread, head, length)`.
    pub(crate) fn robust_list(&mut self, pending: Pending) {
        let [thread, head, len, ..] = *pending.call.arguments();
        if thread != 0 && thread as i32 != host::thread_id() {
            return self.pass(pending);
        }
        let mut writes = words(head, &[self.robust_list]);
        writes.extend(words(len, &[ROBUST_HEAD]));
        self.answer_with(pending, 0, writes);
    }

    /// Marks the robust mutexes that the thread still holds, as the kernel does before it says
    /// that the thread has ended (`exit_robust_list`), by `abandon`.
    pub(crate) fn abandon_robust_locks(&mut self, mut abandon: impl FnMut(&mut Self, u64)) {
        const MOST: usize = 2048;
        let head = std::mem::take(&mut self.robust_list);
        let Some([first, offset, pending]) = Guest.words(head).filter(|_| head != 0) else {
            return;
        };
        // The list may be gone when the host's thread ends.
        // SAFETY: an empty list is read by nobody.
        unsafe { host::syscall(libc::SYS_set_robust_list as u64, [0, ROBUST_HEAD, 0, 0, 0, 0]) };
        let entry = |pointer: u64| pointer & !1;
        let mut at = first;
        for _ in 0..MOST {
            if entry(at) == head || entry(at) == 0 {
                break;
            }
            let next = Guest.word(entry(at)).unwrap_or(head);
            if entry(at) != entry(pending) {
                abandon(self, entry(at).wrapping_add(offset));
            }
            at = next;
        }
        if entry(pending) != 0 {
            abandon(self, entry(pending).wrapping_add(offset));
        }
    }

    /// Marks a lock. The next thread that asks for the lock gets it, and finds what this thread has
    /// done under it; so, if the lock is a mutex of the library, the trace says that this thread
    /// unlocks it.
    fn abandon(&mut self, lock: u64) {
        let word = |at| Guest.operand(at, 4);
        let is_mutex = self.hooks.have(EventKind::MutexUnlock) && !mutex::has_ceiling(lock, word);
        let depth = match is_mutex && host::holds_lock(lock) {
            true => mutex::depth(lock, word).min(MOST_UNLOCKS),
            false => 0,
        };
        for _ in 0..depth {
            let event = self.event(EventKind::MutexUnlock, host::ticks());
            self.append_ordered(Event { object: lock, ..event });
        }
        host::abandon_lock(lock);
    }

    /// `exit`: this thread ends. Whoever joins it waits for the word that the kernel would clear.
    pub(crate) fn exit_thread(&mut self, pending: Pending) {
        let [status, ..] = *pending.call.arguments();
        self.answer(pending, 0);
        let machine = self.machine.clone();
        let clears = self.clear_at_exit != 0;
        // If every access is recorded, clearing that word is the thread's last access.
        let clears_in_turn = machine.lines().is_some();
        if !clears_in_turn {
            self.end_accesses();
        }
        self.abandon_robust_locks(Self::abandon);
        self.end_alone();
        let begin = host::ticks();
        let object = order::thread_object(self.id);
        let slot = order::slot(object);
        let mut ticket = 0;
        machine.endings.wait(|| {
            let taken = machine.tickets.try_take(slot, true);
            taken.inspect(|&taken| ticket = taken).is_some()
        });
        // Whoever creates a thread looks there whether this one's stack is still in use, and
        // creates nothing meanwhile.
        if clears {
            let word = self.clear_at_exit..self.clear_at_exit.saturating_add(4);
            self.access_at_end(word.clone(), || _ = Guest.write(word.start, &[0; 4]));
        }
        if clears_in_turn {
            self.end_accesses();
        }
        let event = self.event(EventKind::ThreadExit, begin);
        let begin = if clears_in_turn { host::ticks() } else { begin };
        self.append(Event { object, ticket, begin, ..event }, None);
        machine.tickets.release(slot, ticket);
        machine.endings.wake();
        self.log.retire();
        if clears {
            host::futex_wake_all(self.clear_at_exit);
        }
        machine.thread_ended(self.id, status);
    }
}
