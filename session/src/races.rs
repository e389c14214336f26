//! The races that explain a divergence, the most likely cause first.

use crate::symbols::Place;
use refrain_trace::{EventId, ThreadId};
use serde::{Deserialize, Serialize};

/// The races that may explain why a replay diverged.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Races {
    /// Pairs of instructions, most likely cause first. Empty if nothing raced.
    pub pairs: Vec<Pair>,
    /// Why nothing is known, if the search failed.
    pub error: Option<String>,
    /// How many of their instructions were not watched so far and will be in the next recording,
    /// if that was asked for.
    pub learned: Option<u64>,
    /// An earlier replay of the same recording has diverged too, and has taught which instructions the
    /// next recording watches.
    #[serde(default)]
    pub learned_before: bool,
    /// Later recordings of the program order every access.
    pub every_access: bool,
    /// The program has memory in common with processes that it has created, and what these write there is
    /// not recorded: threads were computing when it forked, or there is too much of it.
    #[serde(default)]
    pub shares_memory: bool,
}

/// Two accesses of which one writes, and that nothing orders.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pair {
    /// How often these instructions raced.
    pub count: u64,
    /// Both are in libraries of the system. In a search for the cause of a divergence, that is the C
    /// library alone, which has such races by design.
    pub in_library: bool,
    /// The access that was seen first.
    pub first: Side,
    /// The one that was seen second.
    pub second: Side,
}

/// One of the accesses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Side {
    /// The thread, as in `t2`.
    #[serde(with = "crate::id")]
    pub thread: ThreadId,
    /// Its last event before the access, or the one that the access belongs to, as in `e1042`.
    #[serde(with = "crate::id")]
    pub event: EventId,
    /// What it does: `reads`, `atomically updates`, `writes (the kernel)`, …
    pub access: String,
    /// First byte.
    #[serde(with = "refrain_trace::hex")]
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The instruction.
    #[serde(with = "refrain_trace::hex")]
    pub pc: u64,
    /// The kernel accesses memory for the program.
    pub kernel: bool,
    /// A recording can look out for it, and this one has not: it is an instruction's, or what a system call
    /// sends.
    #[serde(skip)]
    pub watchable: bool,
    /// Where that is.
    pub place: Place,
}

impl Races {
    /// The likeliest race, if it is the program's own.
    pub fn of_the_program(&self) -> Option<&Pair> {
        self.pairs.first().filter(|pair| !pair.in_library)
    }

    /// Whether the next recording of the program orders more than this one.
    pub fn have_taught(&self) -> bool {
        self.every_access || self.learned > Some(0) || self.learned_before
    }
}

impl Pair {
    /// Both places, for a line.
    pub fn short(&self) -> String {
        format!("{} and {}", self.first.place.short(), self.second.place.short())
    }
}
