//! Limits of the process that the recorder meets itself: what the guest knows of them, and keeps to.
//!
//! The recorder's tables take far more of the address space than most programs (`RLIMIT_AS`). So the recorder
//! raises the limit of the process as far as it may. This file keeps the limit that the guest has and sets;
//! `memory` enforces it.
//!
//! The kernel enforces the limit of a file's size (`RLIMIT_FSIZE`), also against the trace. So the kernel has
//! the guest's soft limit, and a hard one that never sinks: where the trace has no room, the soft limit is
//! raised while a piece of it is written. (What the guest writes at that moment may be beyond its limit.)
//!
//! Programs that a child process executes get the guest's limits from the kernel, whatever the process's own
//! were when it forked.

use super::calls::{Pending, words};
use super::thread::GuestThread;
use crate::host::{self, Guest};
use refrain_trace::container::Truncate;
use rustix::process::Resource;
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What a soft and a hard limit are.
pub(crate) type Limit = [u64; 2];

/// The capability to raise a hard limit.
const RESOURCE: u32 = 24;

/// Whoever holds this sets the limit of a file's size.
static FILES: Mutex<()> = Mutex::new(());
/// The limit that the guest has, the soft one and the hard one, if the kernel may have another one.
/// (A child process cannot know who held the lock when it was forked.)
static OF_GUEST: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static IS_KNOWN: AtomicBool = AtomicBool::new(false);

fn files() -> MutexGuard<'static, ()> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The guest's limit of a file's size.
fn limit_of_files() -> Limit {
    match IS_KNOWN.load(Ordering::Acquire) {
        true => [0, 1].map(|at: usize| OF_GUEST[at].load(Ordering::Acquire)),
        false => host::limit(Resource::Fsize),
    }
}

/// From here on the kernel may have another limit than this one of the guest's.
fn note_limit_of_files(limit: Limit) {
    OF_GUEST.iter().zip(limit).for_each(|(it, limit)| it.store(limit, Ordering::Release));
    IS_KNOWN.store(true, Ordering::Release);
}

/// The limit of the address space that the process had at first.
static OF_SPACE: OnceLock<Limit> = OnceLock::new();

/// Raises the process's own limit of the address space; returns what it was at first.
pub(crate) fn raise() -> Limit {
    *OF_SPACE.get_or_init(|| {
        let before = host::limit(Resource::As);
        let [_, hard] = before;
        if before != [u64::MAX; 2] && !host::set_limit(Resource::As, [u64::MAX; 2]) {
            host::set_limit(Resource::As, [hard, hard]);
        }
        before
    })
}

/// Raises the process's own limit of the address space, before anything is allocated for a recording or a
/// replay. What the process had is the guest's limit.
pub fn raise_limit_of_space() {
    raise();
}

/// The limits as programs should find them that this process executes.
pub(crate) fn hand_on(space: Limit) {
    host::set_limit(Resource::As, space);
    if IS_KNOWN.load(Ordering::Acquire) {
        host::set_limit(Resource::Fsize, limit_of_files());
    }
}

/// The guest is over: what the recorder still writes has no limit.
pub(crate) fn raise_at_end() {
    let _holds = files();
    let [_, hard] = host::limit(Resource::Fsize);
    host::set_limit(Resource::Fsize, [hard, hard]);
}

/// The trace, which the guest's limit does not concern.
pub(crate) struct TraceFile(pub(crate) File);

impl TraceFile {
    fn beyond_limit<T>(
        &mut self,
        mut act: impl FnMut(&mut File) -> io::Result<T>,
    ) -> io::Result<T> {
        let result = act(&mut self.0);
        if !matches!(&result, Err(error) if error.raw_os_error() == Some(libc::EFBIG)) {
            return result;
        }
        let _holds = files();
        note_limit_of_files(limit_of_files());
        let [soft, hard] = host::limit(Resource::Fsize);
        host::set_limit(Resource::Fsize, [hard, hard]);
        let result = act(&mut self.0);
        host::set_limit(Resource::Fsize, [soft, hard]);
        result
    }
}

impl Write for TraceFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.beyond_limit(|file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Truncate for TraceFile {
    fn truncate_to(&mut self, len: u64) -> io::Result<()> {
        self.beyond_limit(|file| file.truncate_to(len))
    }
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
        let (result, before) = match resource as u32 {
            libc::RLIMIT_AS if is_own => self.limit_space(new, old),
            libc::RLIMIT_FSIZE if is_own => limit_files(new, old),
            _ => return self.pass(pending),
        };
        let writes = if result == 0 { words(old, &before) } else { Vec::new() };
        self.answer_with(pending, result, writes);
    }

    fn limit_space(&self, new: u64, old: u64) -> (i64, Limit) {
        let mut space = self.machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        let before = space.limit();
        match new_limit(before, new, old) {
            Ok(Some(limit)) => space.set_limit(limit),
            Ok(None) => {}
            Err(errno) => return (-i64::from(errno), before),
        }
        (0, before)
    }
}

fn limit_files(new: u64, old: u64) -> (i64, Limit) {
    let _holds = files();
    let before = limit_of_files();
    match new_limit(before, new, old) {
        Ok(Some([soft, hard])) => {
            note_limit_of_files([soft, hard]);
            let [_, highest] = host::limit(Resource::Fsize);
            host::set_limit(Resource::Fsize, [soft, highest.max(hard)]);
        }
        Ok(None) => {}
        Err(errno) => return (-i64::from(errno), before),
    }
    (0, before)
}

/// The limit that a call sets in place of this one, if it sets one; or why it may not.
fn new_limit(before: Limit, new: u64, old: u64) -> Result<Option<Limit>, i32> {
    if old != 0 && Guest.words::<2>(old).is_none() {
        return Err(libc::EFAULT);
    }
    if new == 0 {
        return Ok(None);
    }
    let [soft, hard] = Guest.words(new).ok_or(libc::EFAULT)?;
    if soft > hard {
        return Err(libc::EINVAL);
    }
    if hard > before[1] && !host::has_capability(RESOURCE) {
        return Err(libc::EPERM);
    }
    Ok(Some([soft, hard]))
}
