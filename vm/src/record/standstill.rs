//! Where threads stand still while another one forks.
//!
//! When a program that has several threads and shared memory forks, the recorder takes this memory out of the
//! guest's reach ([`super::common`]). An access before that moment has no event, and each access after it has
//! one. So no other thread may execute guest code at that moment, and each thread records where it stood: a
//! replay finds it behind an event, or in one.

use super::machine::park_forever;
use super::thread::GuestThread;
use crate::host;
use refrain_trace::{Event, EventKind, NO_TICKET, common};

impl GuestThread {
    /// The thread goes on in guest code, unless it has to stand still before.
    pub(crate) fn enter_guest(&mut self) {
        // Elsewhere than behind an event, a replay would not find it.
        while !self.machine.standstill.enter(&self.presence) && self.after_event {
            let came = host::ticks();
            self.machine.standstill.wait(&self.presence);
            self.context.translating.add(came, came, host::ticks());
        }
        if self.machine.alone.asked() != self.came_back_from {
            self.come_back();
        }
        let areas = self.machine.standstill.areas();
        if std::mem::replace(&mut self.stood_at, areas) != areas {
            let event = self.event(EventKind::Common, host::ticks());
            let event = Event { nr: common::OTHERS, object: areas, flags: NO_TICKET, ..event };
            if self.log.append(|| event, None).is_err() {
                park_forever();
            }
        }
    }
}
