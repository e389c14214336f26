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

impl<S: Scheduler, V: Visitor> Engine<'_, S, V> {
    /// A thread on a core stands before the event in hand: whether it has to wait for the line of a lock
    /// first. It then comes to the event again when the line is there.
    pub(super) fn fetches(&mut self, id: usize) -> bool {
        let travel = self.config.costs.travel;
        let thread = &self.threads[id];
        let operation = thread.operation();
        let object = operation.object;
        let acquires = operation.code.acquires();
        let concerned = acquires || operation.code.releases();
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
            let pays = match acquires {
                true => self.occupants.pays_to_enter(admission, object, section),
                false => self.occupants.pays(admission, object, id as u32),
            };
            if !pays {
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
