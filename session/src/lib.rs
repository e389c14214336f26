//! What one does with a trace: record, replay by either clock, rank, transform, search for races.
//!
//! # Reading order
//! `choices` (what can be asked for), `machine` (how a recorder, a replayer, an observer and the
//! virtual clock are put together; the only place that picks an engine), `child` (the process
//! without rights in which replays run) with `sandbox` and `watchdog`, `symbols` (from addresses to
//! source lines).
//!
//! # Invariants
//! - Code out of a trace runs only in the sandboxed child process of `child`.
//! - No command line, no terminal, no rendering.

#![forbid(unsafe_code)]

pub mod cache;
pub mod calibration;
pub mod child;
pub mod choices;
pub mod hex;
pub mod id;
pub mod machine;
pub mod model;
pub mod races;
pub mod replay;
pub mod runtimes;
pub mod sandbox;
pub mod sites;
pub mod stats;
pub mod symbols;
pub mod text;
pub mod trace_file;
mod watchdog;
