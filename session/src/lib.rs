//! What one does with a recorded program: record it, replay it by either clock, rank its lock
//! contention, transform it, compare replays, search it for races.
//!
//! A [`Session`] does all this. It starts processes of the `refrain` command: a recorder shares its
//! process with the recorded program, and code out of a trace runs only in a process that has given
//! up its rights. Traces are files, named by their paths.
//!
//! # Reproduce a captured run
//! A replay does what was recorded, event by event, and compares: what differs is a
//! [`Divergence`], with both sides. A trace needs neither the program nor its libraries.
//!
//! ```no_run
//! use refrain_session::{Recording, ReplayOptions, Session};
//!
//! # fn main() -> refrain_session::Result<()> {
//! let session = Session::new();
//! let recorded = session.record(&Recording::of(["./server", "--once"], "server.refrain"))?;
//! let report = session.replay(&recorded.trace, &ReplayOptions::default())?;
//! match &report.divergence {
//!     None => println!("{} events again, {}", report.events, report.ending),
//!     Some(divergence) => {
//!         println!("{} {}: {}", divergence.thread, divergence.event, divergence.kind);
//!         let races = session.explain(&recorded.trace, divergence, true)?.unwrap_or_default();
//!         races.pairs.iter().for_each(|pair| println!("{}", pair.short()));
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Compare the original with one free of unnecessary lock contention
//! [`Session::transform`] frees the locks that only keep apart what does not conflict (PerfPlay, Rules
//! 1 to 3). By the virtual clock the difference is exact, the same on every run; by the wall clock
//! the code runs, in turns. [`Session::rank`] says which lines of the source it comes from.
//!
//! ```no_run
//! use refrain_session::compare::Measuring;
//! use refrain_session::{Clock, SchedulerKind, Session};
//! use std::path::Path;
//!
//! # fn main() -> refrain_session::Result<()> {
//! let session = Session::new();
//! let original = Path::new("server.refrain");
//! let free = session.transform(original, (Path::new("server.free.refrain"), false))?;
//! let sides = [original, &free.path].map(|trace| (trace, SchedulerKind::Elsc));
//! let compared = session.compare(sides, &Measuring::default())?;
//! if let (Some(exact), Some(wall)) = (compared.virtual_time, compared.wall) {
//!     println!("{} ns in virtual time", exact.difference_ns);
//!     println!("{} to {} ns measured", wall.difference.low_ns, wall.difference.high_ns);
//! }
//! for group in session.rank(original, false)?.ranked.groups {
//!     println!("{} pairs, {:?} ns", group.pairs, group.alone_ns);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Test the fidelity of a scheduler
//! A scheduler is a [`refrain_scheduler::Scheduler`]; both clocks ask it. The generators and the
//! checks of `refrain_scheduler::testing` (feature `proptest`) judge one over many small programs,
//! [`Skeleton::run_by`] over a recording:
//!
//! ```
//! use proptest::test_runner::TestRunner;
//! use refrain_scheduler::testing::{choices, fidelity, machines, plain, record};
//! use refrain_scheduler::{Choice, Config, Model, Moment, Request, Scheduler};
//! use refrain_session::{Skeleton, trace_file};
//!
//! /// Holds everybody back whose turn at the object has not come.
//! struct Patient;
//!
//! impl Scheduler for Patient {
//!     fn choose(&mut self, _: Moment<'_>, requests: &[Request]) -> Choice {
//!         let is_next = |it: &Request| it.rank.is_none_or(|rank| rank == it.granted);
//!         requests.iter().position(is_next).map_or(Choice::Hold(None), Choice::Grant)
//!     }
//! }
//!
//! // Whatever a machine has recorded, a replay takes as long, to the tick.
//! let machine = Config { cores: 8, ..machines()[3] };
//! let faithful = TestRunner::deterministic().run(&(plain(), choices()), |(program, choices)| {
//!     let recording = record(&program, &choices);
//!     let (took, replayed) = fidelity(&recording, &machine, &Model::default(), &mut Patient)?;
//!     proptest::prop_assert_eq!(took, replayed);
//!     Ok(())
//! });
//! faithful.expect("each replay takes as long");
//!
//! # let _ = || -> refrain_session::Result<()> {
//! // How much longer than the recorded run a replay of it takes.
//! let skeleton = Skeleton::as_recorded(&trace_file::read("server.refrain".as_ref())?)?;
//! let replayed = skeleton.run_by(&mut Patient, &Model::default())?.duration;
//! println!("{:+} ns", replayed as i64 - skeleton.recorded_ns() as i64);
//! # Ok(())
//! # };
//! ```
//!
//! `refrain_scheduler::testing` shows the other checks, and how one fails.
//!
//! # Reading order
//! `session` (the command whose processes record and replay) with `protocol` and `child`, `operations`
//! (the methods of a session), [`recorder`] (what happens in a process that records), `machine` (what
//! happens in a child that replays), `sandbox` and `watchdog`, [`symbols`] (from addresses to source
//! lines). What needs no process of its own is a function: [`trace_file`] (open, check, repair),
//! [`info`], [`linkages`].
//!
//! # Invariants
//! - Code out of a trace runs only in the sandboxed child process of `child`, unless the caller says
//!   otherwise ([`unconfined`]).
//! - No command line, no terminal, no rendering.

#![forbid(unsafe_code)]

pub mod again;
pub mod cache;
pub mod calibration;
mod child;
mod choices;
pub mod compare;
pub mod data_races;
pub mod detectors;
mod error;
pub mod evaluation;
mod findings;
mod id;
pub mod info;
pub mod linkages;
mod machine;
mod model;
mod operations;
mod program_cache;
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
pub mod trace_file;
pub mod unconfined;
mod version;
mod watchdog;

pub use child::{bug, serve};
pub use choices::{Clock, Cost, EngineKind, SchedulerKind};
pub use error::{Error, Result};
pub use machine::{Amount, Extent, Policy, ReplayOptions, Segments, Skeleton, Worth};
pub use model::VirtualMachine;
pub use operations::{Look, PackedTrace, TransformedTrace, libraries, must_be_searchable};
pub use protocol::REPLAY_CHILD;
pub use races::{Lesson, Pair, Races, Side};
pub use recorder::{Recorded, Recording};
pub use refrain_analysis::Atomics;
pub use replayed::{Divergence, Replayed, describe};
pub use sandbox::Purpose;
#[doc(hidden)]
pub use session::listen_to;
pub use session::{Listener, Session, UNSANDBOXED_FLAG};
pub use version::version;
