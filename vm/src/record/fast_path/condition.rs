//! glibc's condition variables: the stand-in for waking somebody where nobody waits.
//!
//! The word that says how many threads wait lies elsewhere since glibc 2.41, and since whatever version a
//! distribution has taken that change into. So it is read off the library's own code
//! (`nptl/pthread_cond_signal.c`, glibc 2.25 and later), which begins by looking at that word; where the code
//! begins otherwise, there is no stand-in.

use super::{Call, SLOW_PATH};
use crate::engine::FastPath;
use refrain_trace::EventKind;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of code that [`stand_in`] wants to see.
pub(super) const CODE: usize = 64;

/// Bits of the word below the number of threads that wait.
const FLAGS: u8 = 3;

/// The stand-in for `pthread_cond_signal` or `pthread_cond_broadcast`, which begins with this code.
pub(super) fn stand_in(kind: EventKind, code: &[u8]) -> Option<FastPath> {
    match (kind, waiters_at(code)?) {
        (EventKind::CondSignal, 0x24) => Some(signal::<0x24>),
        (EventKind::CondSignal, 0x1c) => Some(signal::<0x1c>),
        (EventKind::CondBroadcast, 0x24) => Some(broadcast::<0x24>),
        (EventKind::CondBroadcast, 0x1c) => Some(broadcast::<0x1c>),
        _ => None,
    }
}

/// How far into the condition variable the word with the number of waiting threads lies: the code saves
/// registers, loads the word, and shifts the flags out.
fn waiters_at(mut code: &[u8]) -> Option<u8> {
    loop {
        code = match code {
            // endbr64; push; sub rsp
            [0xf3, 0x0f, 0x1e, 0xfa, rest @ ..]
            | [0x50..=0x57, rest @ ..]
            | [0x41, 0x50..=0x57, rest @ ..]
            | [0x48, 0x83, 0xec, _, rest @ ..] => rest,
            // mov r32, [rdi + at]
            [0x8b, modrm, at, rest @ ..] if modrm & 0b1100_0111 == 0b0100_0111 => {
                return shifts_flags_out(modrm >> 3 & 7, rest).then_some(*at);
            }
            _ => return None,
        }
    }
}

/// Whether the code shifts this register, or the one to which it copies this register, by the number of flags.
fn shifts_flags_out(register: u8, code: &[u8]) -> bool {
    let (registers, code) = match code {
        // mov r32, r32
        [0x89, modrm, rest @ ..] if modrm >> 6 == 3 && modrm >> 3 & 7 == register => {
            ([register, modrm & 7], rest)
        }
        _ => ([register; 2], code),
    };
    // shr r32, imm8
    matches!(code, [0xc1, modrm @ 0xe8..=0xef, FLAGS, ..] if registers.contains(&(modrm & 7)))
}

/// `pthread_cond_signal(condition)` without anybody who waits.
///
/// # Safety
/// As for [`Call::new`]; what the guest says is a condition variable is one, or faults here as it would in
/// the library.
unsafe extern "sysv64" fn signal<const WAITERS_AT: u64>(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's.
    unsafe { wake_nobody((object, sp, data), WAITERS_AT, EventKind::CondSignal) }
}

/// `pthread_cond_broadcast(condition)`, likewise.
///
/// # Safety
/// As for [`signal`].
unsafe extern "sysv64" fn broadcast<const WAITERS_AT: u64>(object: u64, sp: u64, data: u64) -> i64 {
    // SAFETY: the caller's.
    unsafe { wake_nobody((object, sp, data), WAITERS_AT, EventKind::CondBroadcast) }
}

/// Records the call, if nobody waits.
///
/// # Safety
/// As for [`signal`].
#[inline(always)]
unsafe fn wake_nobody(
    (object, sp, data): (u64, u64, u64),
    waiters_at: u64,
    kind: EventKind,
) -> i64 {
    // SAFETY: the caller's; guest threads change the word at will.
    let (word, call) =
        unsafe { (&*((object + waiters_at) as *const AtomicU32), Call::new(object, sp, data)) };
    let Some(call) = call else { return SLOW_PATH };
    if word.load(Ordering::Relaxed) >> FLAGS != 0 {
        return SLOW_PATH;
    }
    call.record(kind);
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice;

    /// The beginnings of `pthread_cond_signal` in Debian's glibc 2.36 and 2.41, `pthread_cond_broadcast`
    /// in 2.41.
    #[test]
    fn the_word_is_found_in_both_layouts() {
        let old = [
            0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54, 0x55, 0x53, 0x48, 0x83, 0xec, 0x28,
            0x8b, 0x5f, 0x24, 0x89, 0xd8, 0xc1, 0xe8, 0x03,
        ];
        let new =
            [0x55, 0x53, 0x48, 0x83, 0xec, 0x08, 0x8b, 0x47, 0x1c, 0x89, 0xc3, 0xc1, 0xeb, 0x03];
        assert_eq!(waiters_at(&old), Some(0x24));
        assert_eq!(waiters_at(&new), Some(0x1c));
        assert!(stand_in(EventKind::CondBroadcast, &new).is_some());
        assert!(stand_in(EventKind::CondWaitBegin, &new).is_none());
        for cut in 0..new.len() {
            assert_eq!(waiters_at(&new[..cut]), None, "{cut}");
        }
    }

    /// `pthread_cond_signal@GLIBC_2.2.5`, whose condition variable is a pointer to one; a word that is
    /// not shifted; another register.
    #[test]
    fn other_code_has_no_stand_in() {
        assert_eq!(waiters_at(&[0x53, 0x48, 0x8b, 0x1f, 0x48, 0x85, 0xdb]), None);
        assert_eq!(waiters_at(&[0x8b, 0x47, 0x24, 0x85, 0xc0, 0x74, 0x03]), None);
        assert_eq!(waiters_at(&[0x8b, 0x47, 0x24, 0xc1, 0xeb, 0x03]), None);
        assert_eq!(waiters_at(&[0x8b, 0x47, 0x24, 0x89, 0xc3, 0xc1, 0xe9, 0x03]), None);
        assert_eq!(waiters_at(&[0x8b, 0x46, 0x24, 0xc1, 0xe8, 0x03]), None);
        assert_eq!(waiters_at(&[0x8b, 0x47, 0x20, 0xc1, 0xe8, 0x03]), Some(0x20));
        assert!(stand_in(EventKind::CondSignal, &[0x8b, 0x47, 0x20, 0xc1, 0xe8, 0x03]).is_none());
    }

    /// What is read off the code of the library that the test runs with is where its waiters are counted.
    #[test]
    fn the_librarys_own_waiters_are_counted_there() {
        // SAFETY: a function of the library's is longer than this, or lies before others.
        let code = unsafe { slice::from_raw_parts(libc::pthread_cond_signal as *const u8, CODE) };
        let Some(at) = waiters_at(code) else {
            eprintln!("SKIPPED: this library's code begins otherwise");
            return;
        };
        // SAFETY: all fields are integers, and both begin as zeros.
        let (mut condition, mut mutex): (libc::pthread_cond_t, libc::pthread_mutex_t) =
            unsafe { std::mem::zeroed() };
        let (condition, mutex) = (&raw mut condition as usize, &raw mut mutex as usize);
        // SAFETY: inside the live condition variable.
        let waiters = || unsafe { &*((condition + at as usize) as *const AtomicU32) };
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || {
                let (condition, mutex) =
                    (condition as *mut libc::pthread_cond_t, mutex as *mut libc::pthread_mutex_t);
                // SAFETY: both are live until the scope has ended.
                unsafe {
                    libc::pthread_mutex_lock(mutex);
                    libc::pthread_cond_wait(condition, mutex);
                    libc::pthread_mutex_unlock(mutex);
                }
            });
            while waiters().load(Ordering::Relaxed) >> FLAGS != 1 {
                std::thread::yield_now();
            }
            while !waiter.is_finished() {
                // SAFETY: as above.
                unsafe { libc::pthread_cond_signal(condition as *mut libc::pthread_cond_t) };
                std::thread::yield_now();
            }
        });
        assert_eq!(waiters().load(Ordering::Relaxed), 0);
    }
}
