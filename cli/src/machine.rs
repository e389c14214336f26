//! The glue to the recorder, the replayer and the transformation, and the one place that picks
//! an engine. Everything below runs in this process: `replay` and `analyse` are called by the
//! sandboxed child only.

use crate::args::EngineKind;
use crate::program::Program;
use crate::report::{locks, replay};
use refrain_trace::Ending;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

/// What to record, and where to.
#[derive(Debug)]
pub(crate) struct RecordOptions {
    /// The program.
    pub(crate) program: Program,
    /// The trace, open for writing and empty.
    pub(crate) output: File,
    /// Its path, for messages.
    pub(crate) path: PathBuf,
}

/// What was recorded.
#[derive(Clone, Debug)]
pub(crate) struct RecordSummary {
    /// How the program ended.
    pub(crate) ending: Ending,
    /// Guest threads.
    pub(crate) threads: u64,
    /// Events of all threads.
    pub(crate) events: u64,
    /// Bytes of the trace.
    pub(crate) bytes: u64,
    /// From the guest's first instruction to its end.
    pub(crate) wall: Duration,
}

/// Records a program to its end.
pub(crate) fn record(options: RecordOptions) -> anyhow::Result<RecordSummary> {
    let RecordOptions { program, output, path } = options;
    let _ = (program.argv, output);
    anyhow::bail!("{}: recording is not built yet", path.display())
}

/// How to replay.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ReplayOptions {
    /// What executes the code.
    pub(crate) engine: EngineKind,
    /// Pass the program's output on.
    pub(crate) echo: bool,
    /// Count instructions.
    pub(crate) count: bool,
}

/// What a running replay tells the outside.
pub(crate) trait Listener: Send + Sync {
    /// So many of all events are done.
    fn progress(&self, done: u64, total: u64);
    /// The program printed something (only with [`ReplayOptions::echo`]).
    fn output(&self, descriptor: i32, bytes: &[u8]);
}

/// Replays a trace to its end or to the first divergence.
pub(crate) fn replay(
    trace: File,
    options: &ReplayOptions,
    listener: &dyn Listener,
) -> anyhow::Result<replay::Report> {
    let _ = (trace, listener);
    anyhow::bail!("the {} engine is not built yet", options.engine.name())
}

/// Replays a trace with the observers that the ranking needs, and ranks its locks.
pub(crate) fn analyse(
    trace: File,
    engine: EngineKind,
    listener: &dyn Listener,
) -> anyhow::Result<locks::Analysis> {
    let _ = (trace, listener);
    anyhow::bail!("the ranking on the {} engine is not built yet", engine.name())
}
