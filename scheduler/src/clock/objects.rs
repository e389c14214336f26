//! The state of an object: who holds it, what it counts, who waits, and for how long it was held.

use crate::skeleton::{Code, LOWERS, Object, READS};

/// No thread.
pub(super) const NOBODY: u32 = u32::MAX;

/// Where a line is, or where it goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// The thread on whose core it is.
    at: u32,
    /// When it came there, or will.
    since: u64,
}

impl Line {
    /// It comes from memory, for whoever is the first.
    pub(super) const NOWHERE: Line = Line { at: NOBODY, since: 0 };

    /// Sends it to a thread; when it is there.
    pub(super) fn go_to(&mut self, id: u32, now: u64, travel: u64) -> u64 {
        let came = std::mem::replace(&mut self.at, id);
        if came != id && came != NOBODY {
            self.since = self.since.max(now).saturating_add(travel);
        }
        self.since
    }
}

/// An address may serve as objects of several kinds in its life, so there is one state for all.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// The exclusive holder.
    pub(super) holder: u32,
    /// How often the holder holds it, or how many readers do.
    pub(super) depth: u32,
    /// Level of a semaphore.
    tokens: u32,
    semaphore: bool,
    /// Competing operations performed.
    pub(super) granted: u32,
    /// Counting operations performed.
    pub(super) count: u32,
    /// Waiting threads, in the order of their arrival.
    pub(super) first: u32,
    pub(super) last: u32,
    /// How many of them wait for the count.
    pub(super) counters: u32,
    /// How many of them compete, but not for possession.
    pub(super) passers: u32,
    /// Somebody sleeps for it, or is about to: who releases it makes a system call. Only for
    /// schedulers that wake before they grant.
    pub(super) sought: bool,
    /// Where its cache line is.
    pub(super) line: Line,
    /// How many of them compete without a rank.
    pub(super) unranked: u32,
    /// The thread with the next rank, in a replay in the recorded order.
    pub(super) next: u16,
    /// Time during which the object was taken, by anybody and by an exclusive holder, up to the
    /// beginning of the present possession.
    taken: Span,
    written: Span,
}

/// A sum of intervals, the last of which may be open.
#[derive(Clone, Copy, Debug)]
struct Span {
    total: u64,
    since: u64,
}

const CLOSED: u64 = u64::MAX;

impl Span {
    const EMPTY: Span = Span { total: 0, since: CLOSED };

    fn set(&mut self, open: bool, now: u64) {
        if open && self.since == CLOSED {
            self.since = now;
        } else if !open && self.since != CLOSED {
            self.total += now - self.since;
            self.since = CLOSED;
        }
    }

    fn at(&self, now: u64) -> u64 {
        self.total + if self.since == CLOSED { 0 } else { now - self.since }
    }
}

impl State {
    pub(super) fn new(object: &Object) -> State {
        let mut state = State {
            holder: NOBODY,
            depth: 0,
            tokens: object.tokens,
            semaphore: object.semaphore,
            granted: 0,
            count: 0,
            first: NOBODY,
            last: NOBODY,
            counters: 0,
            passers: 0,
            sought: false,
            line: Line::NOWHERE,
            unranked: 0,
            next: object.first,
            taken: Span::EMPTY,
            written: Span::EMPTY,
        };
        state.account(0);
        state
    }

    /// Whether `thread` could perform an operation with this code now.
    #[inline]
    pub(super) fn allows(&self, code: Code, thread: u32) -> bool {
        match code {
            Code::Read => self.holder == NOBODY || self.holder == thread,
            Code::SemWait => self.tokens > 0,
            code if code.possesses() => {
                (self.holder == NOBODY && self.depth == 0) || self.holder == thread
            }
            _ => true,
        }
    }

    /// Whether no waiting thread but the holder could go on.
    #[inline]
    pub(super) fn is_shut(&self) -> bool {
        self.holder != NOBODY && self.passers == 0
    }

    /// Whether a try with these flags would fail.
    pub(super) fn refuses(&self, flags: u8) -> bool {
        if flags & READS != 0 {
            self.holder != NOBODY
        } else if flags & LOWERS != 0 {
            self.tokens == 0
        } else {
            self.depth > 0
        }
    }

    /// For how long, up to now, an operation with this code was not possible.
    pub(super) fn taken_for(&self, code: Code, now: u64) -> u64 {
        match code {
            Code::Read => self.written.at(now),
            Code::SemWait => self.taken.at(now),
            code if code.possesses() => self.taken.at(now),
            _ => 0,
        }
    }

    /// Performs an operation; `true` if others may have become possible.
    #[inline]
    pub(super) fn perform(&mut self, code: Code, thread: u32, now: u64) -> bool {
        match code {
            code if code.possesses() => {
                self.depth = if self.holder == thread { self.depth + 1 } else { 1 };
                self.holder = thread;
                self.account(now);
                return false;
            }
            Code::Read => self.depth += 1,
            Code::Unlock => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    self.holder = NOBODY;
                }
            }
            Code::CondRelease => self.let_go(),
            Code::SemWait => self.tokens -= 1,
            Code::SemPost => self.tokens = self.tokens.saturating_add(1),
            Code::Count => self.count += 1,
            Code::Ordered => {
                self.count += 1;
                return true;
            }
            _ => return false,
        }
        self.account(now);
        true
    }

    /// The holder is gone without a release: its stream ends.
    pub(super) fn abandon(&mut self, thread: u32, now: u64) -> bool {
        let held = self.holder == thread;
        if held {
            self.let_go();
            self.account(now);
        }
        held
    }

    /// So many threads are inside of it, which is relaxed.
    pub(super) fn occupy(&mut self, inside: u32, now: u64) {
        self.depth = inside;
        self.account(now);
    }

    fn let_go(&mut self) {
        self.holder = NOBODY;
        self.depth = 0;
    }

    #[inline]
    fn account(&mut self, now: u64) {
        let empty = self.semaphore && self.tokens == 0;
        self.taken.set(self.depth > 0 || empty, now);
        self.written.set(self.holder != NOBODY, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_from_one_core_to_the_next() {
        let mut line = Line::NOWHERE;
        assert_eq!(line.go_to(1, 100, 30), 0, "the first has it at once");
        assert_eq!(line.go_to(1, 110, 30), 0, "and keeps it");
        assert_eq!(line.go_to(2, 120, 30), 150);
        assert_eq!(line.go_to(3, 125, 30), 180, "when the second has got it");
        assert_eq!(line.go_to(3, 130, 30), 180, "it is on its way");
        assert_eq!(line.go_to(1, 500, 30), 530);
    }
}
