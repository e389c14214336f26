//! The recorder: runs a program in this very process and writes its trace. This is what the command
//! `refrain record` does; others start it ([`Session::record`](crate::Session::record)).

use crate::calibration;
use refrain_trace::{Ending, Order};
use refrain_vm::{EngineConfig, Follow, LearnedSites, Level, LostEnd, Processor, Warn};
use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

/// What to record, and where to.
pub struct RecordOptions {
    /// Path of the program's file, as the kernel is given it.
    pub program: PathBuf,
    /// The command line as it was given.
    pub argv: Vec<OsString>,
    /// The trace, open for writing and empty.
    pub output: File,
    /// Level of the processor that it sees; by default as high as it can be.
    pub level: Option<Level>,
    /// It may not generate code.
    pub no_jit: bool,
    /// Called when there is something in it that is worth a name.
    pub begun: Box<dyn FnOnce() -> std::io::Result<()>>,
    /// Stop the program if it cannot be recorded to its end.
    pub strict: bool,
    /// Told at once of what the user should not learn only when all is over.
    pub warn: Warn,
    /// Sites that are watched beside the idioms.
    pub learned: LearnedSites,
    /// Which accesses are recorded.
    pub order: Order,
    /// How child processes are recorded, if they are.
    pub follow: Option<Follow>,
}

/// What was recorded.
#[derive(Clone, Debug)]
pub struct RecordSummary {
    /// How the program ended.
    pub ending: Ending,
    /// Guest threads.
    pub threads: u64,
    /// Events of all threads.
    pub events: u64,
    /// Bytes of the trace.
    pub bytes: u64,
    /// From the guest's first instruction to its end.
    pub wall: Duration,
    /// Why the recording ended before the program did, if so.
    pub lost: Option<LostEnd>,
    /// Why the recording was stopped, if the program did something that cannot be recorded.
    pub refused: Option<String>,
    /// What the user should know.
    pub notices: Vec<String>,
}

/// Records a program to its end. Its threads may still exist then, and it may have closed any
/// descriptor: the caller prints what it has to say and ends the process.
pub fn record(options: RecordOptions) -> crate::Result<RecordSummary> {
    let processor = Processor::guest(options.level, Processor::host()).map_err(|missing| {
        anyhow::anyhow!(
            "this machine's processor is no x86-64-v3: it lacks {missing}; leave --cpu out, or use \
             --cpu v2"
        )
    })?;
    let config = EngineConfig {
        order_atomics: true,
        every_access: options.order.is_of_every_access(),
        keep_blocks: true,
        processor,
        ..EngineConfig::default()
    };
    let engine = refrain_jit::copy(config)?;
    let options = refrain_vm::RecordOptions {
        command: refrain_vm::Command {
            program: options.program,
            argv: options.argv,
            env: std::env::vars_os().map(joined).collect(),
        },
        output: options.output,
        recorder: concat!("refrain ", env!("CARGO_PKG_VERSION")).to_owned(),
        machine: calibration::this_machine(),
        processor,
        forbid_generated_code: options.no_jit,
        warn: options.warn,
        learned: options.learned,
        order: options.order,
        begun: options.begun,
        strict: options.strict,
        follow: options.follow,
    };
    let summary = refrain_vm::record(options, engine)?;
    Ok(RecordSummary {
        ending: summary.ending,
        threads: u64::from(summary.threads),
        events: summary.events,
        bytes: summary.bytes,
        wall: summary.wall,
        lost: summary.lost,
        refused: summary.refused,
        notices: summary.notices.iter().map(ToString::to_string).collect(),
    })
}

/// A variable of the environment as programs have it.
fn joined((mut name, value): (OsString, OsString)) -> OsString {
    name.push("=");
    name.push(value);
    name
}
