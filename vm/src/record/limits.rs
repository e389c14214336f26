//! The limit of the address space (`RLIMIT_AS`): what the guest knows of it, and keeps to.
//!
//! The recorder's tables take far more of the address space than most programs. So the recorder raises
//! the limit of the process as far as it may. This file keeps the limit that the guest has and sets;
//! `memory` enforces it. Programs that a child process executes get the guest's limit from the kernel.

use super::calls::{Pending, words};
use super::thread::GuestThread;
use crate::host::{self, Guest};
use std::sync::PoisonError;

/// What a soft and a hard limit are.
pub(crate) type Limit = [u64; 2];

/// The capability to raise a hard limit.
const RESOURCE: u32 = 24;

/// Raises the process's own limit; returns what it was.
pub(crate) fn raise() -> Limit {
    let before = host::space_limit();
    let [_, hard] = before;
    if before != [u64::MAX; 2] && !host::set_space_limit([u64::MAX; 2]) {
        host::set_space_limit([hard, hard]);
    }
    before
}

/// The limit as programs should find it that this process executes.
pub(crate) fn hand_on(limit: Limit) {
    host::set_space_limit(limit);
}

impl GuestThread {
    /// `getrlimit`, `setrlimit` and `prlimit64`.
    pub(crate) fn limit(&mut self, pending: Pending) {
        let [a, b, c, d, ..] = *pending.call.arguments();
        let (process, resource, new, old) = match i64::from(pending.event.nr) {
            libc::SYS_getrlimit => (0, a, 0, b),
            libc::SYS_setrlimit => (0, a, b, 0),
            _ => (a, b, c, d),
        };
        let is_own = process == 0 || process == u64::from(std::process::id());
        if !is_own || resource != u64::from(libc::RLIMIT_AS) {
            return self.pass(pending);
        }
        let (result, before) = self.limit_space(new, old);
        let writes = if result == 0 { words(old, &before) } else { Vec::new() };
        self.answer_with(pending, result, writes);
    }

    fn limit_space(&self, new: u64, old: u64) -> (i64, Limit) {
        let mut space = self.machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        let before = space.limit();
        let refused = |errno: i32| (-i64::from(errno), before);
        if old != 0 && Guest.words::<2>(old).is_none() {
            return refused(libc::EFAULT);
        }
        if new != 0 {
            let Some([soft, hard]) = Guest.words(new) else { return refused(libc::EFAULT) };
            if soft > hard {
                return refused(libc::EINVAL);
            }
            if hard > before[1] && !host::has_capability(RESOURCE) {
                return refused(libc::EPERM);
            }
            space.set_limit([soft, hard]);
        }
        (0, before)
    }
}
