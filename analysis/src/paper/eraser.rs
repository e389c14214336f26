//! ERASER (Savage et al., TOCS 1997): a variable that several threads use and one writes needs a lock that
//! all of them hold.
//!
//! Locks that are held together with other readers protect reads, and not writes (section 2.3
//! there). Nothing but locks is known: what forks, joins, barriers and atomics order is reported.

use super::{Cost, Detector, Op, Step};
use refrain_trace::fixed::FixedMap;
use std::collections::{BTreeMap, BTreeSet};

/// By lock: whether it is held alone.
type Held = BTreeMap<u64, bool>;
type Locks = BTreeSet<u64>;

enum State {
    /// One thread has used it.
    Exclusive(u32),
    /// Several have, and since then nobody has written it.
    Shared(Locks),
    /// Several have, and one writes.
    Modified(Locks),
}

#[derive(Default)]
pub(super) struct Eraser {
    held: FixedMap<u32, Held>,
    variables: FixedMap<u64, State>,
}

impl Detector for Eraser {
    fn access(&mut self, thread: u32, variable: u64, writes: bool) -> bool {
        let held = self.held.entry(thread).or_default();
        let protects = |(lock, alone): (&u64, &bool)| (*alone || !writes).then_some(*lock);
        let protecting = || held.iter().filter_map(protects).collect::<Locks>();
        let Some(state) = self.variables.get_mut(&variable) else {
            self.variables.insert(variable, State::Exclusive(thread));
            return false;
        };
        match state {
            State::Exclusive(owner) if *owner == thread => return false,
            State::Exclusive(_) => {
                *state = match writes {
                    true => State::Modified(protecting()),
                    false => State::Shared(protecting()),
                };
            }
            State::Shared(locks) | State::Modified(locks) => {
                let own = protecting();
                locks.retain(|lock| own.contains(lock));
            }
        }
        if let (State::Shared(locks), true) = (&mut *state, writes) {
            *state = State::Modified(std::mem::take(locks));
        }
        matches!(state, State::Modified(locks) if locks.is_empty())
    }

    fn forget(&mut self, variable: u64) {
        self.variables.remove(&variable);
    }

    fn synchronize(&mut self, step: &Step) -> bool {
        let held = self.held.entry(step.thread).or_default();
        match step.op {
            Op::Hold { lock, alone } => drop(held.insert(lock, alone)),
            Op::Drop(lock) => drop(held.remove(&lock)),
            _ => {}
        }
        false
    }

    fn cost(&self) -> Cost {
        let bytes = |state: &State| {
            let locks = match state {
                State::Exclusive(_) => 0,
                State::Shared(locks) | State::Modified(locks) => locks.len() * size_of::<u64>(),
            };
            (locks + size_of::<State>()) as u64
        };
        Cost { bytes: self.variables.values().map(bytes).sum(), ..Cost::default() }
    }
}
