//! Which system calls wait off the core.
//!
//! The time of a system call is either the kernel's work, done on the thread's core, or waiting
//! for something outside (a device, a peer, a timer), during which another thread may have the
//! core. A trace holds the duration alone, so the number of the call decides (but for calls that
//! wake others: `wakes`). With as many cores as threads the distinction changes accounts only, no
//! time.

/// Whether calls with this number (x86-64) spend their time waiting.
pub fn waits_off_core(nr: u16) -> bool {
    const READ: [u16; 5] = [0, 17, 19, 295, 327];
    const SLEEP: [u16; 5] = [34, 35, 230, 128, 130];
    const POLL: [u16; 8] = [7, 23, 270, 271, 232, 281, 441, 208];
    const NETWORK: [u16; 6] = [42, 43, 45, 47, 288, 299];
    const PROCESS: [u16; 5] = [61, 247, 202, 65, 220];
    const STORAGE: [u16; 7] = [73, 74, 75, 162, 70, 243, 277];
    [&READ[..], &SLEEP, &POLL, &NETWORK, &PROCESS, &STORAGE].iter().any(|group| group.contains(&nr))
}

/// Whether calls with this number may create a thread (`clone`, `clone3`).
pub(crate) fn clones(nr: u16) -> bool {
    nr == 56 || nr == 435
}
