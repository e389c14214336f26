//! The result of a search for data races: pairs of accesses with places, stacks and locks.

use crate::symbols::Place;
use crate::symbols::variables::Variable;
use refrain_trace::{EventId, ThreadId};
use serde::{Deserialize, Serialize};

/// What a search has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataRaces {
    /// The recorded command.
    pub command: String,
    /// Pairs of places in the source that race, those within libraries of the system last, else the
    /// most frequent first.
    pub races: Vec<DataRace>,
    /// The threads of these races.
    pub threads: Vec<Thread>,
    /// Why not all of the recording was searched, if so.
    pub incomplete: Option<String>,
    /// Threads of the recording.
    pub recorded_threads: u64,
    /// Its events.
    pub recorded_events: u64,
}

/// Two places that race.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DataRace {
    /// The access that was seen second.
    pub second: Access,
    /// The one that was seen first.
    pub first: Access,
    /// What they are about.
    pub word: Word,
    /// How often these places raced.
    pub count: u64,
    /// Pairs of instructions at these places that did.
    pub instructions: u64,
    /// Code and memory are the system's libraries'.
    pub in_library: bool,
    /// The two are ordered: the first one frees the block that the second one uses.
    #[serde(default)]
    pub after_free: bool,
}

/// A side of a race.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Access {
    /// The thread, as in `t2`.
    #[serde(with = "crate::id")]
    pub thread: ThreadId,
    /// Its last event before the access, or the one that the access belongs to, as in `e1042`.
    #[serde(with = "crate::id")]
    pub event: EventId,
    /// What it does: `write`, `atomic update`, `free`, …
    pub access: String,
    /// First byte.
    #[serde(with = "refrain_trace::hex")]
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The functions that the thread is in, innermost first.
    pub stack: Vec<Place>,
    /// Which of them is the innermost that is not in a library of the system; the innermost, if all are.
    pub site: usize,
    /// Whether that is all of them, and the locks are known.
    pub is_whole: bool,
    /// The locks that it holds.
    pub locks: Vec<Lock>,
}

/// A lock that is held.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lock {
    /// Its address.
    #[serde(with = "refrain_trace::hex")]
    pub address: u64,
    /// It excludes all others.
    pub writing: bool,
    /// Where it was taken.
    pub stack: Vec<Place>,
}

/// What a race is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Word {
    /// A global variable.
    Global(Variable),
    /// A block of the heap.
    Heap {
        /// Its first byte.
        #[serde(with = "refrain_trace::hex")]
        start: u64,
        /// Bytes.
        size: u64,
        /// Who allocated it.
        #[serde(with = "crate::id")]
        thread: ThreadId,
        /// Where.
        stack: Vec<Place>,
    },
    /// A local variable of a function, or other memory on a stack.
    Local {
        /// Whose stack it is on.
        #[serde(with = "crate::id")]
        thread: ThreadId,
        /// A place in the function, if one of the two threads has it.
        function: Option<Place>,
    },
    /// A descriptor.
    Descriptor {
        /// Its number.
        number: u32,
    },
    /// Memory of which nothing is known.
    Unknown,
}

/// A thread of a race.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Thread {
    /// Itself, as in `t2`.
    #[serde(with = "crate::id")]
    pub thread: ThreadId,
    /// Who has created it, if anybody has.
    pub creator: Option<Creator>,
}

/// Who has created a thread, and where.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Creator {
    /// The creating thread.
    #[serde(with = "crate::id")]
    pub thread: ThreadId,
    /// Where that was.
    pub stack: Vec<Place>,
}

impl DataRace {
    /// Both sides, as they were seen.
    pub fn sides(&self) -> [&Access; 2] {
        [&self.first, &self.second]
    }
}

impl Access {
    /// Where it is in the program, or else in a library.
    pub fn place(&self) -> Option<&Place> {
        self.stack.get(self.site)
    }
}
