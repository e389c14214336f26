//! What a `siginfo_t` says: who has sent a signal, and how.

use super::Signal;
use crate::engine::{Cause, Fault};
use crate::frame::Info;

/// In `siginfo_t`: the signal is a timer's.
pub(super) const SI_TIMER: i32 = -2;

/// `siginfo_t` of a signal that a process sends to itself.
pub(crate) fn own_info(signal: u64, code: i32) -> Info {
    let mut info = [0; 128];
    info[0..4].copy_from_slice(&(signal as i32).to_le_bytes());
    info[8..12].copy_from_slice(&code.to_le_bytes());
    info[16..20].copy_from_slice(&std::process::id().to_le_bytes());
    info[20..24].copy_from_slice(&rustix::process::getuid().as_raw().to_le_bytes());
    info
}

/// Whether the guest has sent the signal itself: to its process group, when it had its own share
/// at once.
pub(in crate::record) fn is_own(info: &Info) -> bool {
    field(info, CODE) == libc::SI_USER && field(info, 16) as u32 == std::process::id()
}

/// Whether a signal has been sent to a single thread (`tgkill`).
pub(super) fn is_for_thread(info: &Info) -> bool {
    field(info, CODE) == libc::SI_TKILL
}

/// The timer that has sent a signal, and the signal's number.
pub(super) fn timer_of(signal: &Signal) -> Option<(i32, u64)> {
    let is_timers = field(&signal.info, CODE) == SI_TIMER;
    is_timers.then(|| (field(&signal.info, TIMER), signal.number))
}

/// Where the `siginfo_t` of a timer's signal has the timer's number.
pub(super) const TIMER: usize = 16;
/// Where it has how often the timer has fired again while the signal was pending.
pub(super) const OVERRUN: usize = 20;

/// Where a `siginfo_t` says how the signal was sent.
pub(in crate::record) const CODE: usize = 8;

/// A number in a `siginfo_t`.
pub(in crate::record) fn field(info: &Info, at: usize) -> i32 {
    i32::from_le_bytes([0, 1, 2, 3].map(|byte| info[at + byte]))
}

/// Where the `siginfo_t` of a fault has the address.
const ADDRESS: usize = 16;
/// In `siginfo_t`: the kernel has sent the signal, for no reason that has a number.
const SI_KERNEL: i32 = 0x80;

/// `siginfo_t` of a fault.
pub(crate) fn fault_info(fault: &Fault) -> Info {
    const ILL_ILLOPN: i32 = 2;
    const BUS_ADRERR: i32 = 2;
    const FIRST: i32 = 1;
    let Fault { signal, address, cause } = *fault;
    let code = match (signal, cause.vector) {
        (libc::SIGILL, _) => ILL_ILLOPN,
        (libc::SIGBUS, Cause::PAGE) => BUS_ADRERR,
        (libc::SIGTRAP, Cause::DEBUG) => FIRST,
        (libc::SIGFPE, _) | (_, Cause::PAGE) => cause.code.max(FIRST),
        _ => SI_KERNEL,
    };
    let mut info = forced(signal as u64);
    info[CODE..CODE + 4].copy_from_slice(&code.to_le_bytes());
    info[ADDRESS..ADDRESS + 8].copy_from_slice(&address.to_le_bytes());
    info
}

/// `siginfo_t` of a signal that the kernel sends where it cannot go on.
pub(crate) fn forced(signal: u64) -> Info {
    let mut info = [0; 128];
    info[0..4].copy_from_slice(&(signal as i32).to_le_bytes());
    info[CODE..CODE + 4].copy_from_slice(&SI_KERNEL.to_le_bytes());
    info
}
