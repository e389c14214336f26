//! The result of ranking unnecessary lock contention, with places in the source.

use crate::calibration::Source;
use crate::symbols::Place;
use refrain_trace::Order;
use refrain_transform::{Irregularity, Make, Picture, Report};
use serde::Serialize;
use std::collections::BTreeMap;

/// The ranking of a recording, and what is known beside it.
#[derive(Clone, PartialEq, Debug)]
pub struct Ranking {
    /// The command that was recorded.
    pub command: String,
    /// The groups of pairs of critical sections, the most expensive first, and what the run gains
    /// without them, by the virtual clock.
    pub ranked: Report,
    /// Modelled cores.
    pub cores: u64,
    /// Where the latencies of the modelled machine come from.
    pub latencies: Source,
    /// How long the recording took.
    pub recorded_ns: u64,
    /// Events that were replayed and analysed.
    pub events: u64,
    /// Events of the trace.
    pub events_recorded: u64,
    /// The end of the recording is missing.
    pub is_truncated: bool,
    /// The order of shared memory that was recorded.
    pub order: Order,
    /// Locks that the program makes itself, by how they are made.
    pub made: BTreeMap<Make, u64>,
    /// Locks of which nothing can be said.
    pub irregular: Vec<IrregularLock>,
    /// What threads waited for without its being a lock, as far as can be told; the longest first.
    pub not_understood: Vec<NotUnderstood>,
    /// The threads over time, if that was asked for, or why there is no picture.
    pub picture: Option<Result<Picture, String>>,
}

/// A lock of which nothing can be said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct IrregularLock {
    /// Its address.
    #[serde(with = "refrain_trace::hex")]
    pub address: u64,
    /// Why not.
    pub why: Irregularity,
    /// A critical section that shows it.
    pub site: Place,
    /// How many critical sections it has.
    pub critical_sections: u64,
}

/// Words that threads waited for at one place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NotUnderstood {
    /// Where the longest wait was.
    pub site: Place,
    /// How many words.
    pub words: u64,
    /// How many times threads waited.
    pub waits: u64,
    /// For how long, all threads together.
    pub waited_ns: u64,
}
