//! The rounds of barriers.

use crate::objects::Object;
use refrain_trace::fixed::FixedMap;
use std::sync::{Mutex, PoisonError};

/// The barriers whose initialization was seen, by their addresses.
#[derive(Default)]
pub(crate) struct Barriers(Mutex<FixedMap<u64, Barrier>>);

struct Barrier {
    /// How many threads a round is for.
    needed: u64,
    /// How many of them have come.
    arrived: u64,
    odd: bool,
}

impl Barriers {
    /// A barrier is initialized.
    pub(crate) fn begin(&self, address: u64, needed: u64) {
        let barrier = Barrier { needed, arrived: 0, odd: false };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(address, barrier);
    }

    /// A thread comes to a barrier. Returns what it releases now and acquires when it leaves: the
    /// threads of its round, and none of the next one. Without the barrier's initialization, the rounds
    /// are not known.
    pub(crate) fn arrive(&self, address: u64) -> Object {
        let mut barriers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(barrier) = barriers.get_mut(&address) else { return Object::At(address) };
        let round = Object::Round(address, barrier.odd);
        barrier.arrived += 1;
        if barrier.arrived >= barrier.needed {
            barrier.arrived = 0;
            barrier.odd = !barrier.odd;
        }
        round
    }
}
