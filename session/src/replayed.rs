//! The result of a replay: what it did, and where it first differed from the recording.

use crate::choices::SchedulerKind;
use crate::races::Races;
use crate::stats::Distribution;
use refrain_trace::{Ending, EventId, ThreadId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The outcome of a replay.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Replayed {
    /// Name of the engine.
    pub engine: String,
    /// Guest threads.
    pub threads: u64,
    /// Events replayed.
    pub events: u64,
    /// Events of the trace.
    pub events_recorded: u64,
    /// The end of the recording is missing.
    pub truncated: bool,
    /// How far the replay came: the recorded time of its last event, in nanoseconds since the
    /// recorder began.
    pub reached_ns: Option<u64>,
    /// How far the trace goes: the recorded time of its last event, likewise.
    pub recorded_ns: Option<u64>,
    /// Lock acquisitions among them.
    pub acquisitions: u64,
    /// Instructions retired, if they were counted.
    pub instructions: Option<u64>,
    /// Digests compared.
    pub digests_checked: u64,
    /// Digests that were equal.
    pub digests_equal: u64,
    /// Bytes of output compared, all equal unless there is a divergence.
    pub output_bytes: u64,
    /// How the program ended.
    pub ending: String,
    /// Time to load the trace and compile its code.
    pub prepare_ns: u64,
    /// Time to run it.
    pub run_ns: u64,
    /// Who decided which thread goes next.
    pub scheduler: SchedulerKind,
    /// Of a transformed trace, how many locks are freed: 0 in any other.
    pub locks_freed: u64,
    /// How the times to run are distributed, if there were several replays.
    pub times: Option<Distribution>,
    /// Objects whose operations came in another order than recorded.
    pub reordered: Vec<String>,
    /// Where the replay first differed from the recording.
    pub divergence: Option<Divergence>,
    /// What raced up to there, if there is a divergence.
    pub races: Option<Races>,
}

/// The two sides of a difference between recording and replay.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Divergence {
    /// What kind of thing differs.
    pub kind: String,
    /// Thread, as in `t2`.
    #[serde(with = "crate::id")]
    pub thread: ThreadId,
    /// Event of the thread, as in `e1042`.
    #[serde(with = "crate::id")]
    pub event: EventId,
    /// Where the thread was.
    #[serde(with = "refrain_trace::hex")]
    pub pc: u64,
    /// What the trace says.
    pub expected: String,
    /// What the replay did.
    pub actual: String,
}

impl Replayed {
    /// From the outcome of the machine, which took so long to prepare.
    pub fn new(
        outcome: refrain_vm::Outcome,
        engine: &str,
        scheduler: SchedulerKind,
        prepared: Duration,
    ) -> Replayed {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Replayed {
            engine: engine.to_owned(),
            threads: u64::from(outcome.threads),
            events: outcome.events,
            events_recorded: outcome.recorded,
            truncated: outcome.truncated,
            reached_ns: outcome.reached.map(|(reached, _)| reached),
            recorded_ns: outcome.reached.map(|(_, end)| end),
            acquisitions: outcome.acquisitions,
            instructions: outcome.instructions,
            digests_checked: outcome.digests,
            digests_equal: outcome.equal,
            output_bytes: outcome.output_bytes,
            ending: describe(outcome.ending),
            prepare_ns: nanoseconds(prepared),
            run_ns: nanoseconds(outcome.elapsed),
            scheduler,
            locks_freed: 0,
            times: None,
            reordered: outcome.reordered,
            divergence: outcome.divergence.map(Divergence::from),
            races: None,
        }
    }
}

impl Divergence {
    /// Whether a thread computes without end.
    pub fn is_endless(&self) -> bool {
        self.kind == refrain_vm::DivergenceKind::Endless.to_string()
    }
}

impl From<refrain_vm::Divergence> for Divergence {
    fn from(from: refrain_vm::Divergence) -> Divergence {
        Divergence {
            kind: from.kind.to_string(),
            thread: from.thread,
            event: from.event,
            pc: from.pc,
            expected: from.expected,
            actual: from.actual,
        }
    }
}

/// How a recorded run ended, in words.
pub fn describe(ending: Option<Ending>) -> String {
    match ending {
        Some(Ending::Exited(status)) => format!("exited with status {status}"),
        Some(Ending::Signaled(signal)) => format!("killed by signal {signal}"),
        Some(Ending::Stopped(signal)) => format!("recording stopped by signal {signal}"),
        Some(Ending::Lost) | None => "recording cut off".to_owned(),
    }
}
