//! Keeping all threads but one out of guest code for a moment, where a replay finds each of them again:
//! behind an event, or in one.
//!
//! When a program forks that has several threads and shared memory, this memory is taken out of the guest's
//! reach ([`super::common`]). Accesses before that are none that are recorded, and those after it are. So
//! nobody may be in guest code meanwhile, and everybody notes where it was.

use super::machine::park_forever;
use super::thread::GuestThread;
use crate::host;
use refrain_trace::{Event, EventKind, NO_TICKET, common};

impl GuestThread {
    /// The thread goes on in guest code, unless it has to stand still before.
    pub(crate) fn enter_guest(&mut self) {
        let machine = self.machine.clone();
        // Elsewhere than behind an event, a replay would not find it.
        while !machine.standstill.enter(&self.presence) && self.after_event {
            let came = host::ticks();
            machine.standstill.wait(&self.presence);
            self.context.translating.add(came, came, host::ticks());
        }
        let areas = machine.standstill.areas();
        if std::mem::replace(&mut self.stood_at, areas) != areas {
            let event = self.event(EventKind::Common, host::ticks());
            let event = Event { nr: common::OTHERS, object: areas, flags: NO_TICKET, ..event };
            if self.log.append(|| event, None).is_err() {
                park_forever();
            }
        }
    }
}
