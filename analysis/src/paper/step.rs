//! What threads do, as detectors see it.

use serde::{Deserialize, Serialize};

/// A step of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The thread.
    pub thread: u32,
    /// What it does.
    pub op: Op,
    /// The instruction, or another place in the program.
    pub site: u64,
}

/// What a step is.
///
/// Objects are whatever orders: locks, threads, atomic variables, barriers, messages. Which lock a thread
/// holds is told apart from what that orders, for detectors that know nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Op {
    /// A variable is read.
    Read(u64),
    /// A variable is written.
    Write(u64),
    /// What was released to the object happens before what follows.
    Acquire(u64),
    /// What came before happens before what follows an acquisition of the object.
    Release(u64),
    /// The thread has a lock from now on, before it acquires what that orders.
    Hold {
        /// Its number as an object.
        lock: u64,
        /// Others do not have it, not even for reading.
        alone: bool,
    },
    /// The thread has released the lock, and no longer has it.
    Drop(u64),
    /// The variable is new: nobody has used it.
    Fresh(u64),
}

impl Op {
    /// The variable of an access.
    pub fn variable(self) -> Option<u64> {
        match self {
            Op::Read(variable) | Op::Write(variable) => Some(variable),
            _ => None,
        }
    }

    /// The same, and of other steps the object.
    pub fn variable_or_object(self) -> u64 {
        match self {
            Op::Read(number) | Op::Write(number) | Op::Fresh(number) => number,
            Op::Acquire(object) | Op::Release(object) => object,
            Op::Hold { lock, .. } | Op::Drop(lock) => lock,
        }
    }
}
