//! The data races of a recorded run: what `refrain races` reports.

mod sarif;
mod text;

pub(crate) use sarif::sarif;
pub(crate) use text::render;

use refrain_session::data_races::{DataRace, Thread};
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

/// What can be said of a run of which no race is shown; not all of it may have been searched.
pub(crate) fn verdict(is_incomplete: bool) -> String {
    let what = match is_incomplete {
        false => "no race in this run, under any timing that keeps its synchronization order",
        true => "no race in the part of this run that was searched",
    };
    what.to_owned()
}
