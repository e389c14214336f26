//! Processor exceptions in translated code.
//!
//! While guest code runs, FS holds the guest's thread pointer, so a signal handler must not touch
//! thread-local storage before it has put the host's back. GS tells how: on a thread that has
//! entered guest code it points to a [`ThreadArea`] for as long as the executor lives; elsewhere
//! it is 0, as glibc does not use it.
//!
//! A fault inside the area's code range is noted in the area, and the thread goes on at
//! `resume`, an exit of the engine. No lock is taken in the handler. Faults elsewhere go to
//! whoever handled the signal before (usually the default action: they are bugs of ours).

use refrain_vm::{Cause, Pages};
use std::arch::naked_asm;
use std::cell::RefCell;
use std::mem::offset_of;
use std::rc::{Rc, Weak};
use std::sync::OnceLock;

/// The start of what GS points to on a thread that executes guest code.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct ThreadArea {
    /// Base of FS for host code.
    pub(crate) host_fs: u64,
    /// Translated code: `code_start..code_end`.
    pub(crate) code_start: u64,
    /// See `code_start`.
    pub(crate) code_end: u64,
    /// Where a thread that faulted there goes on, with all registers as they were.
    pub(crate) resume: u64,
    /// Where in the translated code it faulted.
    pub(crate) fault_rip: u64,
    /// `si_addr`.
    pub(crate) fault_address: u64,
    /// The signal.
    pub(crate) fault_signal: i32,
    /// What the processor said of it.
    pub(crate) fault_cause: Cause,
    /// Nonzero while guest code runs. Then a jump of translated code to address 0, which is
    /// never mapped, is noted like a fault in translated code.
    pub(crate) in_guest: u32,
}

/// The exceptions that guest instructions raise.
const SIGNALS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// What handled each of [`SIGNALS`] before.
static PREVIOUS: OnceLock<[libc::sigaction; SIGNALS.len()]> = OnceLock::new();

/// Takes over the exceptions' signals, once per process. FSGSBASE must be usable.
pub(crate) fn install() {
    PREVIOUS.get_or_init(|| {
        SIGNALS.map(|signal| {
            // SAFETY: both structures are plain data; the handler is fit for any thread: it
            // looks at GS before it runs Rust code.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = entry as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                let mut previous = std::mem::zeroed();
                assert_eq!(
                    libc::sigaction(signal, &action, &mut previous),
                    0,
                    "the signals exist and the structures are valid"
                );
                previous
            }
        })
    });
    refrain_vm::recovery_is_asked();
}

/// Whether user code may read and write the FS and GS bases.
pub(crate) fn has_fsgsbase() -> bool {
    // SAFETY: reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & 2 != 0 }
}

/// The handler's first instructions: restores the host's FS, and afterwards the guest's.
///
/// # Safety
/// The kernel calls this: the arguments are those of an `SA_SIGINFO` handler.
#[unsafe(naked)]
unsafe extern "C" fn entry(_: i32, _: *mut libc::siginfo_t, _: *mut libc::ucontext_t) {
    naked_asm!(
        "rdgsbase rcx",
        "test rcx, rcx",
        "jz {handle}",
        "push rbx",
        "rdfsbase rbx",
        "mov rax, [rcx + {host_fs}]",
        "wrfsbase rax",
        "call {handle}",
        "wrfsbase rbx",
        "pop rbx",
        "ret",
        handle = sym handle,
        host_fs = const offset_of!(ThreadArea, host_fs),
    )
}

/// Decides whose fault it is. Async-signal-safe: no locks, no allocation.
///
/// # Safety
/// The kernel calls this: the arguments are those of an `SA_SIGINFO` handler.
unsafe extern "C" fn handle(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    // SAFETY: the kernel passes valid pointers to an SA_SIGINFO handler.
    let (machine, address) = unsafe { (&mut (*context).uc_mcontext, (*info).si_addr() as u64) };
    let said = |at: i32| machine.gregs[at as usize] as u32;
    // SAFETY: as above.
    let code = unsafe { (*info).si_code };
    let cause = Cause { vector: said(libc::REG_TRAPNO), error: said(libc::REG_ERR), code };
    let rip = &mut machine.gregs[libc::REG_RIP as usize];
    if let Some(next) = refrain_vm::recovery(*rip as u64) {
        *rip = next as i64;
        return;
    }
    // SAFETY: the area is used until this returns, and the code that was interrupted does not hold a
    // reference to these fields across guest execution.
    if let Some(area) = unsafe { current_area() }
        && ((area.code_start..area.code_end).contains(&(*rip as u64))
            || *rip == 0 && area.in_guest != 0)
    {
        area.fault_signal = signal;
        area.fault_rip = *rip as u64;
        area.fault_address = address;
        area.fault_cause = cause;
        *rip = area.resume as i64;
        return;
    }
    // SAFETY: the arguments are the kernel's own.
    unsafe { pass_on(signal, info, context) };
}

/// The area of the thread that took a signal.
///
/// # Safety
/// The caller is the signal's handler, and uses the area no longer than it runs: its owner drops it,
/// having cleared GS, on this very thread. Nobody else has a reference to it.
unsafe fn current_area<'a>() -> Option<&'a mut ThreadArea> {
    // SAFETY: `install` is only called where FSGSBASE is usable. GS is 0 or points to an area; for
    // the rest, the caller.
    unsafe {
        let area: *mut ThreadArea;
        std::arch::asm!("rdgsbase {}", out(reg) area, options(nomem, nostack, preserves_flags));
        area.as_mut()
    }
}

/// Gives the signal to the handler before ours.
///
/// # Safety
/// The arguments are those of the handler that calls this.
unsafe fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    let index = SIGNALS.iter().position(|&s| s == signal);
    let previous = index.and_then(|index| Some(&PREVIOUS.get()?[index]));
    match previous {
        Some(previous) if previous.sa_sigaction > libc::SIG_IGN => {
            // SAFETY: whoever installed this handler promised that it has the signature that its
            // flags say.
            unsafe {
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t) =
                        std::mem::transmute(previous.sa_sigaction);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(i32) = std::mem::transmute(previous.sa_sigaction);
                    handler(signal);
                }
            }
        }
        // SAFETY: resets a signal to its default action; the faulting instruction is executed
        // again on return and ends the process.
        _ => unsafe {
            libc::signal(signal, libc::SIG_DFL);
        },
    }
}

/// A stack for signal handlers, in force on the thread that made it until it is dropped there.
pub(crate) struct SignalStack {
    memory: Pages,
    before: libc::stack_t,
}

/// Enough for the handler and a big `xsave` frame.
const STACK: usize = 64 << 10;

impl SignalStack {
    /// The calling thread's stack, shared by all executors on it.
    pub(crate) fn of_thread() -> std::io::Result<Rc<SignalStack>> {
        thread_local! {
            static CURRENT: RefCell<Weak<SignalStack>> = const { RefCell::new(Weak::new()) };
        }
        CURRENT.with_borrow_mut(|current| {
            if let Some(stack) = current.upgrade() {
                return Ok(stack);
            }
            let stack = Rc::new(SignalStack::install()?);
            *current = Rc::downgrade(&stack);
            Ok(stack)
        })
    }

    /// Maps a stack and makes it the calling thread's.
    fn install() -> std::io::Result<SignalStack> {
        let memory = Pages::new(STACK)?;
        let start = memory.start().as_ptr().cast();
        let stack = libc::stack_t { ss_sp: start, ss_flags: 0, ss_size: STACK };
        // SAFETY: the kernel is handed memory that is unmapped only after it has been given another
        // stack; the structure before is filled in.
        unsafe {
            let mut before = std::mem::zeroed();
            match libc::sigaltstack(&stack, &mut before) {
                0 => Ok(SignalStack { memory, before }),
                _ => Err(std::io::Error::last_os_error()),
            }
        }
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        // SAFETY: the stack before ours is put back first (if ours is still in force), so nobody
        // uses the memory any more.
        unsafe {
            let mut now: libc::stack_t = std::mem::zeroed();
            libc::sigaltstack(std::ptr::null(), &mut now);
            if now.ss_sp == self.memory.start().as_ptr().cast() {
                libc::sigaltstack(&self.before, std::ptr::null_mut());
            }
        }
    }
}
