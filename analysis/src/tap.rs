//! What a [`crate::Detector`] takes, for others: accesses, and what the program orders.
//!
//! Calls come one at a time, in an order that has what happens before something else before it. The one
//! exception is a plain store that nobody has watched, to a word that synchronizes: it is seen with the
//! accesses of its thread, perhaps after somebody has acquired it.

use crate::objects::Object;
use refrain_trace::fixed::FixedMap;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// What a thread does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Tapped {
    /// It accesses bytes, not atomically.
    Access {
        /// The aligned eight bytes that they are among, by the first.
        cell: u64,
        /// Which of these: a bit for each.
        mask: u8,
        /// Whether it stores.
        writes: bool,
        /// The instruction.
        pc: u32,
        /// The first byte of the block of the heap that they are in.
        block: Option<u64>,
    },
    /// It synchronizes, by this event or instruction: any [`crate::paper::Op`] but those of variables.
    Order(crate::paper::Op),
    /// Memory is new.
    Fresh(Range<u64>),
}

/// Is told what each thread does.
pub type Listener = Box<dyn FnMut(u32, Tapped) + Send>;

/// Hands on what is taken.
pub(crate) struct Tap(Mutex<State>);

struct State {
    listener: Listener,
    objects: FixedMap<Object, u64>,
}

impl Tap {
    pub(crate) fn new(listener: Listener) -> Tap {
        Tap(Mutex::new(State { listener, objects: FixedMap::default() }))
    }

    pub(crate) fn tell(&self, thread: u16, what: Tapped) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (state.listener)(thread.into(), what);
    }

    /// The same, about an object, which has a number then.
    pub(crate) fn order(
        &self,
        thread: u16,
        of: Object,
        what: impl FnOnce(u64) -> crate::paper::Op,
    ) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = state.objects.len() as u64;
        let number = *state.objects.entry(of).or_insert(next);
        (state.listener)(thread.into(), Tapped::Order(what(number)));
    }
}
