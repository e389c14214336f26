//! What a recording thread does to be alone, and to come back where another one is ([`super::alone`]).

use super::alone::SHORT;
use super::owners::Owners;
use crate::host;
use crate::record::log::{Closed, Log};
use crate::record::machine::park_forever;
use crate::record::presence::Presence;
use crate::record::thread::GuestThread;
use crate::slots::Tickets;
use refrain_trace::{Event, EventKind, ThreadId, accessed, order};
use std::sync::atomic::Ordering;
use std::time::Instant;

impl GuestThread {
    /// The thread has recorded many loads: if no other thread is in guest code, it is alone from now on.
    pub(crate) fn ask_whether_alone(&mut self) {
        let machine = self.machine.clone();
        let alone = &machine.alone;
        let mut state = alone.state();
        self.fast_path.asking.ask(std::mem::take(&mut state.lasted) > SHORT);
        // Only so a load in its window is seen.
        if !alone.barrier.is_asymmetric() {
            return;
        }
        let anybody_inside =
            |others: &[(ThreadId, Presence)]| others.iter().any(|it| it.1.is_inside());
        if state.thread.is_some() || anybody_inside(&machine.presences(self.id)) {
            return;
        }
        self.came_back_from = alone.asked.fetch_add(1, Ordering::SeqCst) + 1;
        alone.barrier.heavy();
        // The first look may have missed threads that were about to be created.
        let others = machine.presences(self.id);
        if anybody_inside(&others) {
            return;
        }
        match wait_for(&machine.owners, others, (&machine.log, &machine.tickets)) {
            Err(Closed) => park_forever(),
            // A thread is about to end: another time.
            Ok(None) => {}
            Ok(Some(awaited)) => {
                for (object, ticket) in awaited {
                    let event = self.event(EventKind::Takeover, host::ticks());
                    self.append(Event { object, ticket, nr: accessed::ALONE, ..event }, None);
                }
                state.thread = Some((self.id, Instant::now()));
                self.fast_path.fresh.clear();
                // SAFETY: the thread's own, which is not appending.
                unsafe { &mut *self.log.last_met() }.begin_alone();
            }
        }
    }

    /// The thread goes on in guest code, and a thread has asked since it was there last whether it is
    /// alone.
    #[cold]
    pub(crate) fn come_back(&mut self) {
        let machine = self.machine.clone();
        let Ok((asked, ended)) = machine.alone.end((&machine.log, &machine.tickets)) else {
            park_forever()
        };
        self.came_back_from = asked;
        if let Some((object, ticket)) = ended {
            let event = self.event(EventKind::Takeover, host::ticks());
            let event = Event { object, ticket, nr: accessed::BACK, ..event };
            if self.log.append(|| event, None).is_err() {
                park_forever();
            }
        }
    }

    /// The thread ends, or another program takes its place: it is alone no more.
    pub(crate) fn end_alone(&mut self) {
        let machine = self.machine.clone();
        if machine.alone.is(self.id) {
            match machine.alone.end((&machine.log, &machine.tickets)) {
                Ok((asked, _)) => self.came_back_from = asked,
                Err(Closed) => park_forever(),
            }
        }
    }
}

/// Has each of the other threads, none of which is in guest code, hand over what it has accessed so far.
/// Returns the handovers that a thread that is to be alone waits for, or `None` if another thread is about
/// to end.
fn wait_for(
    owners: &Owners,
    others: Vec<(ThreadId, Presence)>,
    (log, tickets): (&Log, &Tickets),
) -> Result<Option<Vec<(u64, u64)>>, Closed> {
    // Of those that have ended, the ends.
    let mut awaited = vec![(order::THREADS, tickets.given(order::THREADS_SLOT))];
    for (thread, _) in others {
        if !owners.await_away(thread, (log, tickets), &mut awaited)? {
            return Ok(None);
        }
    }
    Ok(Some(awaited))
}
