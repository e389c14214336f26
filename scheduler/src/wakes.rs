//! Which sleeps in system calls the program itself ended, and by which event.
//!
//! A thread may sleep in a system call until another one wakes it: on a futex, or for a signal.
//! As a fixed duration such a sleep would hold up every replay in which the other thread is
//! quicker. A trace says which calls had been entered when one returned (its *bound*), and a
//! sleep ends soon after it can. So the latest call before the bound that could have ended the
//! sleep, and was entered during it, is taken for the one that did.
//!
//! # Limits
//! - The trace's events do not say which futex or which thread a call is about. With several
//!   sleepers the latest wake-up may be another's; the sleep then ends with the wrong one of two
//!   events close to each other.
//! - What ends a wait for input (a pipe within the program) is not looked for: descriptors would
//!   have to be followed. It stays as long as it was.

use refrain_trace::linux::{Means, is_woken, wakes};
use refrain_trace::{Event, EventKind, ThreadId};

/// Calls that are looked at for one sleep, from the latest back.
const LOOKED_AT: usize = 64;

/// A sleep that another thread's event ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Woken {
    /// The sleep, in the strand that has this.
    pub(crate) event: u32,
    /// Thread of the waking event.
    pub(crate) thread: u32,
    /// The waking event.
    pub(crate) source: u32,
}

/// A call that may have woken somebody.
#[derive(Clone, Copy, Debug)]
struct Waker {
    ticket: u64,
    thread: ThreadId,
    position: u32,
    begin: u64,
    means: Means,
}

/// A sleep that somebody may have ended.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    thread: ThreadId,
    position: u32,
    bound: u64,
    begin: u64,
    end: u64,
    means: Means,
}

/// Calls of all threads.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    wakers: Vec<Waker>,
    sleeps: Vec<Sleep>,
}

impl Wakes {
    /// The next event of a thread, at this position.
    pub(crate) fn push(&mut self, thread: ThreadId, position: u32, event: &Event) {
        if event.kind() != EventKind::Syscall || !event.has_ticket() {
            return;
        }
        let Event { ticket, aux: bound, begin, end, .. } = *event;
        if let Some(means) = wakes(event) {
            self.wakers.push(Waker { ticket, thread, position, begin, means });
        } else if let Some(means) = is_woken(event) {
            self.sleeps.push(Sleep { thread, position, bound, begin, end, means });
        }
    }

    /// Calls `each` with the sleeps that were ended by others, each thread's in order.
    pub(crate) fn finish(mut self, mut each: impl FnMut(ThreadId, Woken)) {
        self.wakers.sort_unstable_by_key(|waker| waker.ticket);
        for Sleep { thread, position, bound, begin, end, means } in self.sleeps {
            let known = self.wakers.partition_point(|waker| waker.ticket < bound);
            let ended = |waker: &&Waker| {
                waker.means == means
                    && waker.thread != thread
                    && (begin..end).contains(&waker.begin)
            };
            if let Some(by) = self.wakers[..known].iter().rev().take(LOOKED_AT).find(ended) {
                let (by, source) = (by.thread.0, by.position);
                each(thread, Woken { event: position, thread: by, source });
            }
        }
    }
}
