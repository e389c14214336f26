//! Executing another program.
//!
//! The recorded process goes on being recorded: its memory is replaced, and what replaces it is in
//! the trace. No address that has held code holds code of the next program, so that engines and
//! symbols tell them apart. A child process executes natively, or begins a recording of its own.

use super::body_stack::BodyStack;
use super::calls::Pending;
use super::files::ANYWHERE;
use super::signals::Signals;
use super::thread::GuestThread;
use super::{absolute, initial_mappings, itself, limits};
use crate::host::{self, Guest};
use crate::layout::PAGE;
use crate::loader::{self, Command};
use crate::{Error, Result, hidden};
use refrain_trace::payload::{Effect, SyscallRecord};
use refrain_trace::{Event, Executed, ThreadId};
use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// No argument is longer (`MAX_ARG_STRLEN`).
const LONGEST: usize = 32 * PAGE as usize;
/// All of them together are not, whatever the limit of the stack is.
const MOST: usize = 6 << 20;

/// How long threads may take to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts to get their attention.
const BETWEEN_CALLS: Duration = Duration::from_millis(1);

impl GuestThread {
    /// `execve`, `execveat`.
    pub(crate) fn execve(&mut self, mut pending: Pending) -> Result<()> {
        let command = match self.command(&pending) {
            Ok(command) => command,
            Err(errno) => {
                self.answer(pending, -i64::from(errno));
                return Ok(());
            }
        };
        if self.machine.is_child() {
            self.execute_natively(pending, &command);
            return Ok(());
        }
        match loader::check(&command) {
            // The program is there, as has been seen above; so its interpreter is missing.
            Err(Error::NotFound(_)) => {
                self.answer(pending, -i64::from(libc::ENOENT));
                return Ok(());
            }
            checked => checked?,
        }
        if !self.end_other_threads() {
            let path = command.program.display();
            let why = format!(
                "of {path} by a thread other than the first, or while another thread does not end, \
                 is not supported; record {path}"
            );
            return Err(self.refuse(&pending, &why));
        }
        self.end_alone();
        self.machine.watch_from_start(&command);
        self.change_order(&command)?;
        self.enter(&mut pending);
        self.leave_program();
        let executed = self.enter_program(&command)?;
        self.leave(&mut pending);
        let image = self.machine.log.blob(executed.to_bytes());
        let record = SyscallRecord {
            args: pending.args,
            effect: Effect::Exec { image },
            ..SyscallRecord::default()
        };
        self.append(Event { value: 0, ..pending.event }, Some(&record));
        self.context = self.context.at_entry(&executed.entry);
        Ok(())
    }

    /// Orders every access from here on, if the next program needs that and the order is still open.
    fn change_order(&mut self, command: &Command) -> Result<()> {
        let machine = self.machine.clone();
        let Some(order) = machine.better_order(command) else { return Ok(()) };
        machine.log.order(order);
        machine.engine.order_every_access();
        machine.order_every_access(order)?;
        // A new executor, with the tables of lines.
        self.cpu = machine.engine.attach_recording()?;
        machine.signals.reach(self.id, host::thread_id(), self.cpu.interrupt());
        self.arm_fast_path();
        Ok(())
    }

    /// Ends all other threads, as the kernel does; whether none is left. The kernel also gives the
    /// first thread's number to the one that goes on, which only the first one need not get.
    fn end_other_threads(&self) -> bool {
        let machine = &self.machine;
        if self.id != ThreadId(0) {
            return machine.threads_alive() == 1;
        }
        let until = Instant::now() + PATIENCE;
        while machine.threads_alive() > 1 && Instant::now() < until {
            // Again, since some may have been created just now.
            machine.signals.end_others(self.id);
            std::thread::sleep(BETWEEN_CALLS);
        }
        machine.threads_alive() == 1
    }

    /// What the call asks for, or why it fails natively.
    fn command(&self, pending: &Pending) -> Result<Command, i32> {
        let at = usize::from(i64::from(pending.event.nr) == libc::SYS_execveat);
        let path = text(pending.args[at], libc::PATH_MAX as usize, libc::ENAMETOOLONG)?;
        let program = match at {
            0 => self.named(path)?,
            _ => self.named_at(path, pending.args[0] as i32, pending.args[4] as i32)?,
        };
        may_execute(&program)?;
        let (mut argv, env) = (texts(pending.args[at + 1])?, texts(pending.args[at + 2])?);
        if argv.is_empty() {
            // The kernel lets no program begin without a name.
            argv.push(OsString::new());
        }
        let size = |strings: &[OsString]| strings.iter().map(|s| s.len() + 9).sum::<usize>();
        if size(&argv) + size(&env) > MOST {
            return Err(libc::E2BIG);
        }
        let command = Command { program, argv, env };
        loader::kind(&command)?;
        Ok(command)
    }

    fn named(&self, path: OsString) -> Result<PathBuf, i32> {
        if path.is_empty() {
            return Err(libc::ENOENT);
        }
        let own = itself::own_entry(path.as_bytes()) == Some("exe");
        Ok(if own { self.machine.program().into() } else { path.into() })
    }

    /// A path below a directory that is open, or an open file itself.
    fn named_at(&self, path: OsString, fd: i32, flags: i32) -> Result<PathBuf, i32> {
        if path.as_bytes().starts_with(b"/") || fd == libc::AT_FDCWD && !path.is_empty() {
            return self.named(path);
        }
        if path.is_empty() && flags & libc::AT_EMPTY_PATH == 0 {
            return Err(libc::ENOENT);
        }
        let open = PathBuf::from(format!("/proc/self/fd/{fd}"));
        if hidden::is_own(fd) || !open.exists() {
            return Err(libc::EBADF);
        }
        Ok(if path.is_empty() { lasting(open) } else { open.join(path) })
    }

    /// What ends with a program, apart from its memory.
    fn leave_program(&mut self) {
        self.machine.forget_common();
        self.forget_contexts();
        // The process's other threads have ended.
        self.abandon_robust_locks(|_, lock| host::abandon_lock(lock));
        self.clear_at_exit = 0;
        self.machine.signals.begin_program(self.id);
        host::delete_timers();
        hidden::close_on_execution();
    }

    /// Replaces the guest's memory; what is there then.
    fn enter_program(&mut self, command: &Command) -> Result<Executed> {
        let machine = self.machine.clone();
        let mut space = machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        if machine.mapped.before(&ANYWHERE) {
            machine.log.pages();
        }
        machine.mapped.unmap(&ANYWHERE);
        space.begin_program();
        let image = loader::load(command, &mut space)?;
        machine.engine.executable(space.executable());
        image.generates().for_each(|range| machine.engine.generated(range));
        let keep = |bytes| machine.log.blob(bytes);
        let mappings = initial_mappings(&image, &machine.mapped, keep, || machine.log.blob_id());
        drop(space);
        let text = |s: &OsString| s.to_string_lossy().into_owned();
        let executed = Executed {
            program: image.files[0].path.to_string_lossy().into_owned(),
            argv: command.argv.iter().map(text).collect(),
            entry: image.entry.clone(),
            mappings,
        };
        machine.begin_program(&image, &absolute(&image.files[0].path));
        host::show_arguments(&image.strings, image.entry.rsp);
        host::take_name(&command.program);
        host::fp_reset();
        self.hooks = machine.hooks();
        self.fast_path.pages.forget();
        self.errno_at = None;
        self.creating = None;
        self.body_stack = BodyStack::default();
        self.entries.clear();
        self.handlers_in_bodies.clear();
        Ok(executed)
    }

    /// In a child process the program takes over; with `--follow` it is a recorder of its own.
    fn execute_natively(&mut self, pending: Pending, command: &Command) {
        let follow = self.machine.follow.as_ref().filter(|_| loader::check(command).is_ok());
        let issued = match follow {
            Some(follow) => follow(command),
            None => command.clone(),
        };
        let mask = self.machine.signals.mask(self.id, None);
        let space = self.machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        limits::hand_on(space.limit());
        drop(space);
        let result = execute(&issued, mask, &self.machine.signals);
        limits::raise();
        self.answer(pending, result);
    }
}

/// A path of an open program that stays when its descriptor closes. (The interpreter of a script is told the
/// descriptor.)
fn lasting(open: PathBuf) -> PathBuf {
    let is_script = || std::fs::read(&open).is_ok_and(|bytes| bytes.starts_with(b"#!"));
    let identity = |path: &Path| std::fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
    match std::fs::read_link(&open) {
        Ok(path) if identity(&path) == identity(&open) && !is_script() => path,
        _ => open,
    }
}

/// Whether the file may be executed, as the kernel looks at it.
fn may_execute(path: &Path) -> Result<(), i32> {
    let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EACCES);
    let metadata = std::fs::metadata(path).map_err(errno)?;
    if !metadata.is_file() || metadata.mode() & 0o111 == 0 || !host::may_execute(path) {
        return Err(libc::EACCES);
    }
    Ok(())
}

/// Gives the process the guest's signal state and executes. Returns only if that fails.
fn execute(command: &Command, mask: u64, signals: &Signals) -> i64 {
    // The guest may ignore other signals than this process does. A pending signal of the recorder's own is
    // dropped when the process ignores it.
    host::set_ignored(libc::SIGPIPE, true);
    for signal in host::ignored_signals() {
        host::set_ignored(signal, false);
    }
    for signal in signals.ignored() {
        host::set_ignored(signal, true);
    }
    let before = host::set_mask(mask);
    let strings = |all: &[OsString]| -> Vec<CString> {
        all.iter().filter_map(|string| CString::new(string.as_bytes()).ok()).collect()
    };
    let program = CString::new(command.program.as_os_str().as_bytes()).unwrap_or_default();
    let result = host::execute(&program, &strings(&command.argv), &strings(&command.env));
    host::set_mask(before);
    host::set_ignored(libc::SIGPIPE, false);
    result
}

/// A string of guest memory; `beyond` is the error if it is longer than `most`.
fn text(address: u64, most: usize, beyond: i32) -> Result<OsString, i32> {
    let mut bytes = Vec::new();
    while bytes.len() <= most {
        let at = address.wrapping_add(bytes.len() as u64);
        // Up to the end of a page, behind which there may be nothing.
        let part = Guest.read(at, (PAGE - at % PAGE) as usize).ok_or(libc::EFAULT)?;
        let end = part.iter().position(|&byte| byte == 0);
        bytes.extend(&part[..end.unwrap_or(part.len())]);
        if end.is_some() {
            return Ok(OsString::from_vec(bytes));
        }
    }
    Err(beyond)
}

/// An array of strings that ends with a null pointer. (None at all is an empty one.)
fn texts(address: u64) -> Result<Vec<OsString>, i32> {
    let mut all = Vec::new();
    let mut size = 0;
    for slot in (0..).map(|n: u64| address.wrapping_add(8 * n)) {
        let pointer = if address == 0 { 0 } else { Guest.word(slot).ok_or(libc::EFAULT)? };
        if pointer == 0 {
            break;
        }
        all.push(text(pointer, LONGEST, libc::E2BIG)?);
        size += all.last().map_or(0, |text| text.len() + 9);
        if size > MOST {
            return Err(libc::E2BIG);
        }
    }
    Ok(all)
}

impl super::machine::Machine {
    /// Another program is in the guest's memory.
    fn begin_program(&self, image: &loader::Image, program: &str) {
        *self.program.lock().unwrap_or_else(PoisonError::into_inner) = program.to_owned();
        *self.linker.lock().unwrap_or_else(PoisonError::into_inner) = image.linker();
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = itself::loaded(image);
        self.shared().begin_program();
        self.once.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.initial_sp.store(image.entry.rsp, Ordering::SeqCst);
        for file in &image.files {
            self.register_module(&file.path, &file.elf, file.bias, file.file());
        }
    }
}
