//! What one does with a trace: record, replay by either clock, rank, transform, search for races.
//!
//! # Reading order
//! `session` (the command whose processes record and replay) with `protocol` and `child`,
//! `operations` (what a session does), `machine` (what the child does; the only place that picks an
//! engine), `sandbox` and `watchdog`, `symbols` (from addresses to source lines).
//!
//! # Invariants
//! - Code out of a trace runs only in the sandboxed child process of `child`.
//! - No command line, no terminal, no rendering.

#![forbid(unsafe_code)]

pub mod again;
pub mod cache;
pub mod calibration;
mod child;
mod choices;
pub mod compare;
pub mod data_races;
#[doc(hidden)]
pub mod hex;
#[doc(hidden)]
pub mod id;
mod machine;
mod model;
mod operations;
mod protocol;
mod races;
pub mod ranking;
pub mod recorder;
mod replayed;
pub mod runtimes;
mod sandbox;
mod session;
pub mod sites;
pub mod stats;
pub mod symbols;
pub mod text;
pub mod trace_file;
mod watchdog;

pub use child::{bug, serve};
pub use choices::{Clock, Cost, EngineKind, SchedulerKind};
pub use machine::{Amount, Extent, Policy, ReplayOptions, Segments, Skeleton, Worth};
pub use model::Model;
pub use operations::{Look, Recorded, Recording, TransformedTrace, libraries, must_be_searchable};
pub use protocol::REPLAY_CHILD;
pub use races::{Pair, Races, Side};
pub use replayed::{Divergence, Report, describe};
pub use sandbox::Purpose;
#[doc(hidden)]
pub use session::listen_to;
pub use session::{Listener, Session, UNSANDBOXED_FLAG};

/// What comes of work that may fail; the error's chain says what was tried, and what stood in the way.
pub type Result<T> = anyhow::Result<T>;
