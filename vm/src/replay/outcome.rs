//! What a replay found out.

use refrain_trace::{Ending, EventId, ThreadId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The result of a replay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Guest threads.
    pub threads: u32,
    /// Events performed.
    pub events: u64,
    /// Events of the trace.
    pub recorded: u64,
    /// The end of the recording is missing: not all that is there can happen.
    pub truncated: bool,
    /// How far a replay without a divergence has come in the time of the recording, and how far
    /// that goes: nanoseconds since the recorder began.
    pub reached: Option<(u64, u64)>,
    /// Digests compared: one per event, and one more per piece of output.
    pub digests: u64,
    /// Of these, how many were equal.
    pub equal: u64,
    /// Acquisitions of locks (mutexes, rwlocks, spin locks) that were granted.
    pub acquisitions: u64,
    /// Instructions retired, where the engine counted them.
    pub instructions: Option<u64>,
    /// Output bytes compared and found equal.
    pub output_bytes: u64,
    /// How the recorded run ended; `None` for a trace that was cut off.
    pub ending: Option<Ending>,
    /// Set when the trace ended before the program did (cut off, or stopped by a signal).
    pub cut_off: bool,
    /// Where the replay left the recording, if it did.
    pub divergence: Option<Divergence>,
    /// From the first guest instruction to the last event, without loading and compiling.
    pub elapsed: Duration,
    /// What came in another order than recorded, the first few of each kind, in words. Empty
    /// under policies that keep the recorded order.
    pub reordered: Vec<String>,
}

/// The first point where a replay differs from the recording.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Divergence {
    /// What differs.
    pub kind: DivergenceKind,
    /// The thread that came to it.
    pub thread: ThreadId,
    /// The event of that thread.
    pub event: EventId,
    /// Where the thread is.
    pub pc: u64,
    /// What the recording says.
    pub expected: String,
    /// What the replay did.
    pub actual: String,
}

/// The kinds of divergence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DivergenceKind {
    /// Another kind of event, or one where the recording has none.
    Event,
    /// The same kind of event at another place: call-site or stack pointer.
    Position,
    /// Other arguments: object, system-call number, arguments, or memory that they point to.
    Arguments,
    /// A synchronization variable never came to hold the recorded value.
    Value,
    /// Other bytes were sent out.
    Output,
    /// No thread can go on: every one waits for an event that never comes.
    Stuck,
    /// A thread computes without end where the recording had an event.
    Endless,
    /// The guest faulted where the recording did not.
    Fault,
    /// Control left the recorded code.
    Control,
    /// All threads are done, and recorded events have not happened.
    Missing,
    /// A transformed trace ended with other data than the original.
    State,
}

impl fmt::Display for DivergenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DivergenceKind::Event => "a different event",
            DivergenceKind::Position => "an event at a different place",
            DivergenceKind::Arguments => "different arguments",
            DivergenceKind::Value => "a different value of a synchronization variable",
            DivergenceKind::Output => "different output",
            DivergenceKind::Stuck => "no thread can go on",
            DivergenceKind::Endless => "a computation without end",
            DivergenceKind::Fault => "a fault that was not recorded",
            DivergenceKind::Control => "control left the recorded code",
            DivergenceKind::State => "other data at the end than the original's",
            DivergenceKind::Missing => "recorded events did not happen",
        })
    }
}
