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
    /// The program has mapped memory that other processes may have mapped, too, such as a memory file that is
    /// sent over a socket. The recording does not have what these wrote there.
    #[serde(default)]
    pub unwatched: bool,
    /// Later recordings of the program have that.
    #[serde(default)]
    pub watched: bool,
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

    /// What the next recording of the program orders more than this one.
    pub fn lesson(&self) -> Option<Lesson> {
        match self.learned {
            _ if self.every_access => Some(Lesson::EveryAccess),
            _ if self.watched => Some(Lesson::Memory),
            Some(new @ 1..) => Some(Lesson::Sites(new)),
            _ => self.learned_before.then_some(Lesson::Before),
        }
    }
}

/// What a diverged replay has taught: how the next recording of the program differs. Prints as a sentence
/// without its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lesson {
    /// It watches so many more instructions.
    Sites(u64),
    /// It watches what an earlier replay of the same recording has found.
    Before,
    /// It has what other processes write to memory of the program.
    Memory,
    /// It orders every access.
    EveryAccess,
}

impl std::fmt::Display for Lesson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the next recording of the program ")?;
        match self {
            Lesson::Sites(1) => f.write_str("watches 1 more instruction"),
            Lesson::Sites(new) => write!(f, "watches {new} more instructions"),
            Lesson::Before => f.write_str("watches instructions that an earlier replay has found"),
            Lesson::Memory => f.write_str("watches the memory that other processes may write to"),
            Lesson::EveryAccess => f.write_str("orders every access"),
        }
    }
}

impl Pair {
    /// Both places, for a line.
    pub fn short(&self) -> String {
        format!("{} and {}", self.first.place.short(), self.second.place.short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lesson_is_what_the_next_recording_does_more() {
        let races = |learned, learned_before, every_access| {
            Races { learned, learned_before, every_access, ..Races::default() }.lesson()
        };
        assert_eq!(races(None, false, false), None);
        assert_eq!(races(Some(0), false, false), None);
        assert_eq!(races(Some(2), true, false), Some(Lesson::Sites(2)));
        assert_eq!(races(Some(0), true, false), Some(Lesson::Before));
        assert_eq!(races(Some(2), true, true), Some(Lesson::EveryAccess));
        let unwatched = Races { learned: Some(0), watched: true, ..Races::default() };
        assert_eq!(unwatched.lesson(), Some(Lesson::Memory));
        let said = [Lesson::Sites(1), Lesson::Sites(2)].map(|lesson| lesson.to_string());
        assert!(
            said[0].ends_with("1 more instruction") && said[1].ends_with("2 more instructions")
        );
    }
}
