//! Loads of words that a lock keeps in order.
//!
//! A load that the recording ordered waits in a replay until what it may have read has been stored.
//! Under a lock that is an accident of the run: had another thread had the lock first, the load would
//! have read what that one stored. So the load does not wait if all stores to its word, and the load
//! itself, happen under one lock, the same for all of them. Where locks keep their recorded order,
//! that order implies the wait.
//!
//! Without this rule a queue whose indices are watched would keep the recorded order of its mutex for
//! ever, however threads come.

use crate::rank::Query;
use crate::skeleton::{Code, Operation, Strand, TICKETED};
use refrain_trace::fixed::FixedMap;
use std::collections::BTreeSet;

/// Locks that a thread has, each as often as it acquired it.
#[derive(Default)]
struct Held(Vec<u32>);

impl Held {
    fn pass(&mut self, operation: &Operation) {
        let Operation { code, object, .. } = *operation;
        match code {
            Code::Unlock => {
                if let Some(at) = self.0.iter().rposition(|held| *held == object) {
                    self.0.remove(at);
                }
            }
            Code::CondRelease => self.0.retain(|held| *held != object),
            code if code.possesses() || code == Code::Read => self.0.push(object),
            _ => {}
        }
    }
}

/// Lets loads under the lock of their word wait for nothing, and drops what was asked about them.
pub(crate) fn relieve(strands: &mut [Strand], queries: &mut Vec<Query>) {
    // By word: the locks under which all its stores are.
    let mut locks: FixedMap<u32, Vec<u32>> = FixedMap::default();
    for strand in strands.iter() {
        let mut held = Held::default();
        for operation in &strand.operations {
            if operation.code == Code::Ordered {
                let common = locks.entry(operation.object).or_insert_with(|| held.0.clone());
                common.retain(|lock| held.0.contains(lock));
            }
            held.pass(operation);
        }
    }
    locks.retain(|_, locks| !locks.is_empty());
    if locks.is_empty() {
        return;
    }
    let mut relieved: BTreeSet<(u32, u32)> = BTreeSet::new();
    for (thread, strand) in (0..).zip(strands.iter_mut()) {
        let mut held = Held::default();
        for (position, operation) in (0..).zip(&mut strand.operations) {
            let of_word = locks.get(&operation.object);
            if operation.code == Code::AwaitLoad
                && of_word.is_some_and(|locks| locks.iter().any(|lock| held.0.contains(lock)))
            {
                (operation.code, operation.rank) = (Code::Plain, 0);
                operation.flags &= !TICKETED;
                relieved.insert((thread, position));
            }
            held.pass(operation);
        }
    }
    queries.retain(|query| !relieved.contains(&(query.thread.0, query.position)));
}
