//! The recorder: runs a program in this very process and writes its trace. This is what the command
//! `refrain record` does; others start it ([`Session::record`](crate::Session::record)).

use crate::error::Error;
use refrain_vm::{Command, EngineConfig, Level, Processor, RecordOptions, RecordSummary};
use std::ffi::OsString;
use std::path::PathBuf;

/// The version that traces name.
pub const VERSION: &str = concat!("refrain ", env!("CARGO_PKG_VERSION"));

/// A program with the environment of this process.
pub fn command(program: PathBuf, argv: Vec<OsString>) -> Command {
    let joined = |(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        name
    };
    Command { program, argv, env: std::env::vars_os().map(joined).collect() }
}

/// The processor that a recorded program sees: of this level, or as high as this machine's.
pub fn processor(level: Option<Level>) -> crate::Result<Processor> {
    Processor::guest(level, Processor::host()).map_err(|missing| {
        Error::Refused(format!(
            "this machine's processor is no x86-64-v3: it lacks {missing}; leave --cpu out, or use \
             --cpu v2"
        ))
    })
}

/// Records a program to its end. Its threads may still exist then, and it may have closed any
/// descriptor: the caller prints what it has to say and ends the process.
pub fn record(options: RecordOptions) -> crate::Result<RecordSummary> {
    let config = EngineConfig {
        order_atomics: true,
        every_access: options.order.is_of_every_access(),
        keep_blocks: true,
        processor: options.processor,
        ..EngineConfig::default()
    };
    Ok(refrain_vm::record(options, refrain_jit::copy(config)?)?)
}
