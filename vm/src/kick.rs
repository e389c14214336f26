//! Getting a guest thread's attention while it is in a system call.
//!
//! A signal for the guest must end the system call that its thread waits in, and must not be
//! overlooked just before the thread enters one. So calls are issued by a piece of code of known
//! extent that looks at the thread's flag first; the handler of the kick's signal sends a thread
//! that is about to enter the call, or is set back by the kernel to enter it again, to the way
//! out. (Known from QEMU's user mode as `safe_syscall`.)

use std::arch::global_asm;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

/// The kick's signal: one that neither Linux nor C libraries use.
pub(crate) const SIGNAL: i32 = libc::SIGSTKFLT;

/// What `refrain_guarded_call` returns for a call that was not issued, or has had no effect.
const NOT_DONE: i64 = -513;

/// A thread's flag: something is waiting for it.
#[derive(Clone, Default, Debug)]
pub(crate) struct Attention(Arc<AtomicU32>);

impl Attention {
    /// Asks for it. The thread sees it before its next system call; [`kick`] ends the one that it
    /// may be in.
    pub(crate) fn raise(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

global_asm!(
    ".globl refrain_guarded_call",
    ".globl refrain_guarded_begin",
    ".globl refrain_guarded_end",
    ".globl refrain_guarded_out",
    "refrain_guarded_call:",
    "mov rax, rdi",
    "mov r11, rdx",
    "mov r9, [rsi + 40]",
    "mov r8, [rsi + 32]",
    "mov r10, [rsi + 24]",
    "mov rdx, [rsi + 16]",
    "mov rdi, [rsi]",
    "mov rsi, [rsi + 8]",
    "refrain_guarded_begin:",
    "cmp dword ptr [r11], 0",
    "jne refrain_guarded_out",
    "syscall",
    "refrain_guarded_end:",
    "ret",
    "refrain_guarded_out:",
    "mov rax, {not_done}",
    "ret",
    not_done = const NOT_DONE,
);

unsafe extern "sysv64" {
    fn refrain_guarded_call(nr: u64, args: *const [u64; 6], flag: *const AtomicU32) -> i64;
    fn refrain_guarded_begin();
    fn refrain_guarded_end();
    fn refrain_guarded_out();
}

/// Issues a system call unless the thread's attention is wanted. `None` if it is, and the call
/// has had no effect.
///
/// # Safety
/// As for [`crate::host::syscall`].
pub(crate) unsafe fn syscall(nr: u64, args: [u64; 6], attention: &Attention) -> Option<i64> {
    // SAFETY: the arguments and the flag outlive the call; for the rest, the caller's.
    let result = unsafe { refrain_guarded_call(nr, &raw const args, Arc::as_ptr(&attention.0)) };
    (result != NOT_DONE).then_some(result)
}

/// Waits until somebody wakes those who wait at `word`, but for so long at most, unless it is not
/// `value` any more or the thread's attention is wanted. May return for no reason.
pub(crate) fn wait(word: &AtomicU32, value: u32, most: Option<Duration>, attention: &Attention) {
    let most = most.map(|most| libc::timespec {
        tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: most.subsec_nanos().into(),
    });
    let timeout = most.as_ref().map_or(0, |most| std::ptr::from_ref(most) as u64);
    let args = [word.as_ptr() as u64, libc::FUTEX_WAIT as u64, value.into(), timeout, 0, 0];
    // SAFETY: the call reads the word, which the reference keeps alive, and the time, which lives
    // until it is over, and no other memory.
    unsafe { syscall(libc::SYS_futex as u64, args, attention) };
}

/// Takes over the kick's signal, once per process.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the structure is plain data; the handler touches nothing but the interrupted
        // thread's registers, so it may run anywhere, even with the guest's thread pointer.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            // Calls that may be restarted are set back to their `syscall`, and seen there.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigaction(SIGNAL, &action, std::ptr::null_mut());
        }
    });
}

/// Gets the thread out of the call that it is about to make or to wait in.
///
/// # Safety
/// The kernel calls this: the arguments are those of an `SA_SIGINFO` handler.
unsafe extern "C" fn handle(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel passes a valid pointer to an SA_SIGINFO handler.
    let rip = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
    let address = |label: unsafe extern "sysv64" fn()| label as *const () as i64;
    if (address(refrain_guarded_begin)..address(refrain_guarded_end)).contains(rip) {
        *rip = address(refrain_guarded_out);
    }
}

/// Ends the system call that a thread of this process may be waiting in.
pub(crate) fn kick(thread: i32) {
    // SAFETY: the signal's handler is harmless wherever it strikes.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_flag_keeps_a_thread_out_of_a_call() {
        let attention = Attention::default();
        let read = || {
            // SAFETY: getpid touches no memory.
            unsafe { syscall(libc::SYS_getpid as u64, [0; 6], &attention) }
        };
        assert_eq!(read(), Some(i64::from(std::process::id())));
        attention.raise();
        assert_eq!(read(), None);
        attention.clear();
        assert!(read().is_some());
    }

    /// Runs `wait` in a thread that is kicked, and returns its result.
    fn kicked<T: Send + 'static>(wait: impl FnOnce(&Attention) -> T + Send + 'static) -> T {
        install();
        let attention = Attention::default();
        let (tell, told) = crossbeam::channel::bounded(1);
        let waiter = std::thread::spawn({
            let attention = attention.clone();
            move || {
                crate::host::block_signals();
                tell.send(crate::host::thread_id()).expect("the test listens");
                wait(&attention)
            }
        });
        let thread = told.recv().expect("the thread says its id");
        attention.raise();
        kick(thread);
        waiter.join().expect("ends")
    }

    /// Whether the kick comes before, in or after entering the call, the call ends.
    #[test]
    fn a_kick_ends_a_call_that_waits() {
        let result = kicked(|attention| {
            let mut pipe = [0; 2];
            // SAFETY: the array takes two descriptors; the buffer outlives the call.
            unsafe {
                libc::pipe(pipe.as_mut_ptr());
                let mut byte = 0_u8;
                let args = [pipe[0] as u64, (&raw mut byte) as u64, 1, 0, 0, 0];
                syscall(libc::SYS_read as u64, args, attention)
            }
        });
        assert_eq!(result, None);
    }

    /// Nobody changes the word or wakes the waiter: without the kick, this would wait for ever.
    #[test]
    fn a_kick_ends_a_wait_at_a_word() {
        kicked(|attention| {
            while !attention.is_raised() {
                wait(&AtomicU32::new(7), 7, None, attention);
            }
        });
    }
}
