//! Semaphores that are used as mutexes.
//!
//! # The rule
//! Whoever lowers it raises it again, before anybody else lowers it.

use super::{Held, MadeLock, Make, Step, StepKind};
use crate::intervals::Interval;

/// Bytes of a `sem_t`.
const SIZE: u64 = 32;

pub(super) fn recognise(of_word: &[Step]) -> Option<(MadeLock, Vec<Held>)> {
    let mut held: Vec<Held> = Vec::new();
    for step in of_word {
        let taken = held.last_mut().filter(|held| held.release.is_none());
        match (step.kind, taken) {
            (StepKind::Wait, None) => held.push(Held {
                thread: step.thread,
                acquire: step.event,
                release: None,
                shared: false,
                begin: step.begin,
                since: step.event,
            }),
            (StepKind::Post, Some(holder)) if holder.thread == step.thread => {
                holder.release = Some(step.event);
            }
            _ => return None,
        }
    }
    let address = of_word[0].word;
    let words = vec![Interval::new(address, SIZE)];
    (held.len() > 1).then_some((MadeLock { address, make: Make::Semaphore, words }, held))
}
