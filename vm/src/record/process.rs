//! Child processes of the guest.
//!
//! Only the process that was started is recorded. A child runs on the same engine and through the same code, but
//! into a trace that nobody keeps, until it executes a program. That program runs natively, or under a recorder of
//! its own (`super::execute`). What the parent learns of its child (the id, the status, what comes through pipes)
//! it learns from system calls, and those are recorded.
//!
//! A child that would share its parent's memory (`vfork`, `posix_spawn`) gets a copy instead, and its parent waits
//! until the child has executed a program or ended. If the child ends without executing a program, the recorder
//! copies what the child has changed on its parent's stack to the parent: there the child says why it failed.

pub(super) mod parent;

use super::calls::{Pending, words};
use super::machine::Machine;
use super::notice::Notice;
use super::outside;
use super::thread::GuestThread;
use crate::context::reg::*;
use crate::host::{self, Guest};
use crate::{Hidden, Result};
use parent::Waiting;
use refrain_trace::payload::{Effect, Write};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use std::io::{self, Read};
use std::os::fd::IntoRawFd;
use std::sync::PoisonError;

/// Flags of `clone` that a child process may have.
const PROCESS: u64 = (libc::CLONE_VM
    | libc::CLONE_VFORK
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_PIDFD
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u64;

/// Flags of `clone` that make no difference to a child process whose parent nobody traces.
const WITHOUT_EFFECT: u64 =
    (libc::CLONE_UNTRACED | libc::CLONE_PTRACE | libc::CLONE_DETACHED | libc::CLONE_IO) as u64;

/// Flags of `clone` for a child process in namespaces of its own.
pub(super) const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// Where a thread finds itself after the process was split.
enum Forked {
    /// In the parent of this process; what a child that is waited for says comes through the pipe.
    Parent(i32, Option<Hidden>),
    /// In the child, with the other end.
    Child(Option<Hidden>),
}

impl GuestThread {
    /// `fork`, `vfork`, and `clone` of a process.
    pub(crate) fn fork(&mut self, mut pending: Pending) -> Result<()> {
        let args @ [flags, ..] = match i64::from(pending.event.nr) {
            libc::SYS_clone => pending.args,
            libc::SYS_vfork => [(libc::CLONE_VM | libc::CLONE_VFORK) as u64, 0, 0, 0, 0, 0],
            _ => [0; 6],
        };
        let waits = has(flags, libc::CLONE_VFORK);
        if flags & NAMESPACES != 0 {
            // A child of `fork` has none, since the recorder's library must know of the child. Programs
            // that isolate themselves go on without, as in a container.
            self.machine.notice(Notice::Namespaces);
            self.answer(pending, -i64::from(libc::EPERM));
            return Ok(());
        }
        let shares = has(flags, libc::CLONE_VM);
        if flags & !0xff & !PROCESS & !WITHOUT_EFFECT != 0 || shares && !waits {
            let why = format!("of a process with the flags {flags:#x} is not supported");
            return Err(self.refuse(&pending, &why));
        }
        self.enter(&mut pending);
        // Of a process that cannot have one more descriptor, the call must fail before there is a child.
        let room = has(flags, libc::CLONE_PIDFD).then(|| pidfd_open(getpid(), PidfdFlags::empty()));
        let others = self.before_fork(waits);
        let forked = room.transpose().map_err(io::Error::from).and_then(|room| {
            let forked = self.machine.fork(waits);
            drop(room);
            forked
        });
        let mut shares = false;
        let (result, writes) = match forked {
            Ok(Forked::Child(pipe)) => {
                self.begin_child(pipe, args);
                return Ok(());
            }
            Ok(Forked::Parent(child, pipe)) => {
                let named = has(flags, libc::CLONE_PIDFD).then(|| descriptor_of(child));
                shares = self.machine.shares_memory();
                (i64::from(child), self.tell_of_child(args, named.unwrap_or(child), pipe))
            }
            Err(error) => (-i64::from(error.raw_os_error().unwrap_or(libc::EAGAIN)), Vec::new()),
        };
        self.leave(&mut pending);
        self.conclude(pending, result, writes, Effect::None);
        self.after_fork(shares, waits, others);
        Ok(())
    }

    /// In the parent: waits for the child, if that is wanted; what has been written meanwhile. `name` is
    /// the child's id, or the descriptor that stands for it.
    fn tell_of_child(&mut self, args: [u64; 6], name: i32, pipe: Option<Hidden>) -> Vec<Write> {
        let [flags, _, parent_tid, ..] = args;
        if self.machine.follow.is_none() {
            self.machine.notice(Notice::Children);
        }
        self.machine.begin_relatives();
        let mut writes = pipe.map(heard).unwrap_or_default();
        if !has(flags, libc::CLONE_VM) {
            // It has been waited for, and has memory of its own natively, too.
            writes.clear();
        }
        if has(flags, libc::CLONE_PARENT_SETTID | libc::CLONE_PIDFD) {
            writes.push(Write { address: parent_tid, bytes: name.to_le_bytes().to_vec() });
        }
        for write in &writes {
            Guest.write(write.address, &write.bytes);
        }
        writes
    }

    /// This is the child process, with this thread alone.
    fn begin_child(&mut self, pipe: Option<Hidden>, args: [u64; 6]) {
        let sp = self.context.gpr[RSP];
        let watches = pipe.is_none();
        let waiting = pipe.map(|parent| Waiting::new(parent, sp));
        self.machine.begin_child(self.id, waiting);
        self.arm_fast_path();
        self.context.finish_syscall(0);
        if watches {
            // Before it executes a program, a spawned child has no use for signals.
            outside::block_signals();
            // One that the system refuses the thread goes on without signals from outside.
            let _ = outside::watch_signals(self.machine.clone());
        }
        let [flags, stack, _, child_tid, tls, _] = args;
        if stack != 0 {
            self.context.gpr[RSP] = stack;
        }
        if has(flags, libc::CLONE_SETTLS) {
            self.context.fs_base = tls;
        }
        if has(flags, libc::CLONE_CHILD_SETTID) {
            Guest.write(child_tid, &host::thread_id().to_le_bytes());
        }
        self.clear_at_exit = if has(flags, libc::CLONE_CHILD_CLEARTID) { child_tid } else { 0 };
    }
}

/// Whether `clone` is told this.
fn has(flags: u64, flag: i32) -> bool {
    flags & flag as u64 != 0
}

/// A descriptor of the guest's that stands for its child.
fn descriptor_of(child: i32) -> i32 {
    let child = Pid::from_raw(child).expect("a process has a positive id");
    let opened = pidfd_open(child, PidfdFlags::empty()).map(IntoRawFd::into_raw_fd);
    // Another thread may have taken the last descriptor since.
    opened.unwrap_or(-1)
}

/// A pipe out of the guest's reach.
fn pipe() -> io::Result<(Hidden, Hidden)> {
    let (reader, writer) = io::pipe()?;
    Ok((Hidden::copy(&reader)?, Hidden::copy(&writer)?))
}

/// Waits for the child; what it says it has changed.
fn heard(reader: Hidden) -> Vec<Write> {
    let mut message = Vec::new();
    // A child that was killed has said nothing, or a part.
    let _ = reader.file().read_to_end(&mut message);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let pairs = message.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
    pairs.flat_map(|(address, value)| words(address, &[value])).collect()
}

impl Machine {
    /// Whether a process that is forked now has memory in common with the guest.
    pub(super) fn shares_memory(&self) -> bool {
        self.space.lock().unwrap_or_else(PoisonError::into_inner).is_shared()
    }

    /// Splits the process while no other thread is inside the recorder's locks. The pipe comes and
    /// its end for the child goes meanwhile: no other child can inherit that, and keep the parent
    /// waiting for as long as it lives.
    fn fork(&self, waits: bool) -> io::Result<Forked> {
        let mut forked = Err(io::ErrorKind::Other.into());
        self.during_no_changes(&mut || {
            forked = split(waits);
            matches!(forked, Ok(Forked::Child(_)))
        });
        forked
    }
}

fn split(waits: bool) -> io::Result<Forked> {
    let pipe = waits.then(pipe).transpose()?;
    // SAFETY: the child goes on with this thread alone; the locks of the recorder are held by it,
    // those of the C library are looked after by `fork`, and it uses none of the channels to
    // threads that it does not have.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child(pipe.map(|(_, writer)| writer))),
        child => Ok(Forked::Parent(child, pipe.map(|(reader, _)| reader))),
    }
}
