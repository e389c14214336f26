//! Threads of the guest: how they begin and end.

use super::calls::Pending;
use super::thread::{Birth, GuestThread, spawn};
use crate::context::reg::*;
use crate::host::{self, Guest};
use crate::{Error, Result};
use refrain_trace::payload::{Effect, Write};
use refrain_trace::{Event, EventKind, order};

/// What `clone` must ask for to make a thread.
const THREAD: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD) as u64;

impl GuestThread {
    /// `clone(flags, stack, parent_tid, child_tid, tls)`: a new thread.
    pub(crate) fn clone_thread(&mut self, mut pending: Pending) -> Result<()> {
        let [flags, stack, parent_tid, child_tid, tls, _] = pending.args;
        if flags & THREAD != THREAD {
            return self.fork(pending);
        }
        self.machine.engine.several_threads();
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
        let (child, log) = self.machine.add_thread(context.fs_base);
        let attention = self.machine.signals.begin_thread(child, Some(self.id));

        // The child tells its id and waits until its parent has stored it.
        let (tell, told) = crossbeam::channel::bounded(1);
        let (go, may_go) = crossbeam::channel::bounded::<()>(1);
        let started = move |tid| {
            let _ = tell.send(tid);
            let _ = may_go.recv();
        };
        let clear_at_exit = if clear { child_tid } else { 0 };
        let birth = Birth { id: child, log, attention, context, clear_at_exit };
        spawn(&self.machine, birth, started)?;
        let tid: i32 = told.recv().map_err(|_| Error::Host {
            what: "starting a guest thread".into(),
            answer: std::io::Error::other("it ended at once"),
        })?;

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
        drop(go);
        Ok(())
    }

    /// `exit`: this thread ends. Whoever joins it waits for the word that the kernel would clear.
    pub(crate) fn exit_thread(&mut self, pending: Pending) {
        self.answer(pending, 0);
        let event = self.event(EventKind::ThreadExit, host::ticks());
        let object = order::thread_object(self.id);
        let slot = order::slot(object);
        let machine = self.machine.clone();
        let mut ticket = 0;
        self.append_made(None, || {
            ticket = machine.tickets.hold(slot);
            Event { object, ticket, end: host::ticks(), ..event }
        });
        if self.clear_at_exit != 0 {
            // Whoever creates a thread looks there whether this one's stack is still in use, and
            // creates nothing meanwhile.
            Guest.write(self.clear_at_exit, &0u32.to_le_bytes());
        }
        self.machine.tickets.release(slot, ticket);
        self.log.retire();
        if self.clear_at_exit != 0 {
            host::futex_wake_all(self.clear_at_exit);
        }
        self.machine.thread_ended(self.id);
    }
}
