//! The data races of a recorded run: what `refrain races` reports.

mod sarif;
mod text;

pub(crate) use sarif::sarif;
pub(crate) use text::render;

use refrain_session::symbols::Place;
use refrain_session::symbols::variables::Variable;
use refrain_trace::{EventId, ThreadId};
use serde::{Deserialize, Serialize};

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The recorded command.
    pub(crate) command: String,
    /// The races that are shown, those of the program's own code first.
    pub(crate) races: Vec<DataRace>,
    /// What is said of a run in which no race is shown.
    pub(crate) verdict: Option<String>,
    /// The threads that they are between.
    pub(crate) threads: Vec<Thread>,
    /// Races within libraries of the system, which `--all` shows.
    pub(crate) folded: u64,
    /// Suppressions that have kept races out of the report.
    pub(crate) suppressed: Vec<Suppressed>,
    /// Why not all of the recording was searched, if so.
    pub(crate) incomplete: Option<String>,
    /// Threads of the recording.
    pub(crate) recorded_threads: u64,
    /// Its events.
    pub(crate) recorded_events: u64,
}

/// A suppression, and how many races it has kept out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Suppressed {
    pub(crate) rule: String,
    pub(crate) races: u64,
}

/// Two places that race.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct DataRace {
    /// The access that was seen second.
    pub(crate) second: Access,
    /// The one that was seen first.
    pub(crate) first: Access,
    /// What they are about.
    pub(crate) word: Word,
    /// How often these places raced.
    pub(crate) count: u64,
    /// Pairs of instructions at these places that did.
    pub(crate) instructions: u64,
    /// Code and memory are the system's libraries'.
    pub(crate) in_library: bool,
}

/// A side of a race.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Access {
    /// The thread, as in `t2`.
    #[serde(with = "refrain_session::id")]
    pub(crate) thread: ThreadId,
    /// Its last event before the access, or the one that the access belongs to, as in `e1042`.
    #[serde(with = "refrain_session::id")]
    pub(crate) event: EventId,
    /// What it does: `write`, `atomic update`, `free`, …
    pub(crate) access: String,
    /// First byte.
    #[serde(with = "refrain_session::hex")]
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// The functions that the thread is in, innermost first.
    pub(crate) stack: Vec<Place>,
    /// Which of them is the innermost that is not in a library of the system; the innermost, if all are.
    pub(crate) site: usize,
    /// Whether that is all of them, and the locks are known.
    pub(crate) is_whole: bool,
    /// The locks that it holds.
    pub(crate) locks: Vec<Lock>,
}

/// A lock that is held.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Lock {
    /// Its address.
    #[serde(with = "refrain_session::hex")]
    pub(crate) address: u64,
    /// It excludes all others.
    pub(crate) writing: bool,
    /// Where it was taken.
    pub(crate) stack: Vec<Place>,
}

/// What a race is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Word {
    /// A global variable.
    Global(Variable),
    /// A block of the heap.
    Heap {
        /// Its first byte.
        #[serde(with = "refrain_session::hex")]
        start: u64,
        /// Bytes.
        size: u64,
        /// Who allocated it.
        #[serde(with = "refrain_session::id")]
        thread: ThreadId,
        /// Where.
        stack: Vec<Place>,
    },
    /// A local variable of a function, or other memory on a stack.
    Local {
        /// Whose stack it is on.
        #[serde(with = "refrain_session::id")]
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
pub(crate) struct Thread {
    /// Itself, as in `t2`.
    #[serde(with = "refrain_session::id")]
    pub(crate) thread: ThreadId,
    /// Who has created it, if anybody has.
    pub(crate) creator: Option<Creator>,
}

/// Who has created a thread, and where.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Creator {
    /// The creating thread.
    #[serde(with = "refrain_session::id")]
    pub(crate) thread: ThreadId,
    /// Where that was.
    pub(crate) stack: Vec<Place>,
}

impl DataRace {
    /// Both sides, as they were seen.
    pub(crate) fn sides(&self) -> [&Access; 2] {
        [&self.first, &self.second]
    }
}

impl Access {
    /// Where it is in the program, or else in a library.
    pub(crate) fn place(&self) -> Option<&Place> {
        self.stack.get(self.site)
    }
}

/// What can be said of a run of which no race is shown; not all of it may have been searched.
pub(crate) fn verdict(is_incomplete: bool) -> String {
    let what = match is_incomplete {
        false => "no race in this run, under any timing that keeps its synchronization order",
        true => "no race in the part of this run that was searched",
    };
    what.to_owned()
}
