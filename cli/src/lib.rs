//! The `refrain` command: records a multithreaded program once, replays it exactly, and ranks
//! the waiting that it did not need.
//!
//! # Reading order
//! `args` (what can be asked), `commands` (one file per subcommand; what they do with traces is in
//! the crate `session`), `report` (how results are shown).
//!
//! # Invariants
//! - Results go to standard output, everything else to standard error.
//! - This is a library only so that the end-to-end tests can be built with it.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod failure;
mod logging;
mod news;
mod output;
mod progress;
mod race_suppressions;
mod report;
mod suppressions;

pub use commands::main;

/// A recording that runs out of memory ends before the program does.
#[global_allocator]
static MEMORY: refrain_vm::Allocator = refrain_vm::Allocator;

/// What the fuzz targets run.
#[doc(hidden)]
pub mod fuzzing {
    /// Bytes as what a replay child says.
    pub fn child_protocol(bytes: &[u8]) {
        refrain_session::listen_to(bytes);
    }
}
