//! The `refrain` command: records a multithreaded program once, replays it exactly, and ranks
//! the waiting that it did not need.
//!
//! # Reading order
//! `args` (what can be asked), `commands` (one file per subcommand), `machine` and `child` (how
//! they reach the recorder and the replayer; the only place that picks an engine), `symbols`
//! (from addresses to source lines), `report` (how results are shown).
//!
//! # Invariants
//! - Results go to standard output, everything else to standard error.
//! - Code out of a trace runs only in the sandboxed child process of `child`.
//! - This is a library only so that the end-to-end tests can be built with it.

#![forbid(unsafe_code)]

mod args;
mod cache;
mod calibration;
mod child;
mod commands;
mod failure;
mod logging;
mod machine;
mod output;
mod program;
mod progress;
mod race_suppressions;
mod report;
mod runtimes;
mod sandbox;
mod sites;
mod stats;
mod suppressions;
mod symbols;
mod trace_file;
mod watchdog;

pub use commands::main;

/// A recording that runs out of memory ends before the program does.
#[global_allocator]
static MEMORY: refrain_vm::Allocator = refrain_vm::Allocator;

/// What the fuzz targets run.
#[doc(hidden)]
pub mod fuzzing {
    /// Bytes as what a replay child says.
    pub fn child_protocol(bytes: &[u8]) {
        crate::child::listen_to(bytes);
    }
}
