//! Where the cache line of a lock is.
//!
//! The atomic instruction that takes or releases a lock waits until its core has the lock's line, and
//! happens then. So while the line is on its way, the thread neither has the lock nor finds it taken: a
//! section that is over sooner than the line comes keeps nobody waiting. Who finds the lock taken has its line
//! nevertheless, and the holder gets it back before it releases the lock. A line that several cores ask
//! for goes from one to the next.

use super::Visitor;
use super::engine::Engine;
use super::objects::NOBODY;
use super::threads::Phase;
use crate::Scheduler;
use crate::skeleton::Code;

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
    fn go_to(&mut self, id: u32, now: u64, travel: u64) -> u64 {
        let came = std::mem::replace(&mut self.at, id);
        if came != id && came != NOBODY {
            self.since = self.since.max(now).saturating_add(travel);
        }
        self.since
    }
}

impl<S: Scheduler, V: Visitor> Engine<'_, S, V> {
    /// A thread on a core stands before the event in hand: whether it has to wait for the line of a lock
    /// first. It then comes to the event again when the line is there.
    pub(super) fn fetches(&mut self, id: usize) -> bool {
        let travel = self.config.costs.travel;
        let thread = &self.threads[id];
        let operation = thread.operation();
        let object = operation.object;
        let acquires = takes(operation.code);
        let concerned = acquires || gives_back(operation.code);
        if travel == 0
            || thread.fetched
            || !concerned
            || !thread.costs.is_empty()
            || self.constraints.is_freed(object)
        {
            return false;
        }
        if let Some(admission) = self.constraints.admission(object) {
            let section = (id as u32, thread.position);
            let needs = match acquires {
                true => self.occupants.will_need(admission, object, section),
                false => self.occupants.needs(admission, object, id as u32),
            };
            if !needs {
                return false;
            }
        }
        // Who waits awake only reads the lock, and a release by a store waits for nothing.
        let first = self.objects[object as usize].first;
        let is_watched = first != NOBODY && self.threads[first as usize].phase == Phase::Spinning;
        if !acquires && is_watched {
            return false;
        }
        let travel = self.wakings.around(travel);
        let comes = self.objects[object as usize].line.go_to(id as u32, self.now, travel);
        let thread = &mut self.threads[id];
        thread.fetched = true;
        thread.remaining = comes.saturating_sub(self.now);
        if thread.remaining == 0 {
            return false;
        }
        self.work(id);
        true
    }
}

/// Whether an operation takes a lock.
pub(super) fn takes(code: Code) -> bool {
    code.possesses() || matches!(code, Code::Read | Code::SemWait)
}

/// Whether an operation gives a lock back.
pub(super) fn gives_back(code: Code) -> bool {
    matches!(code, Code::Unlock | Code::CondRelease | Code::SemPost)
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
