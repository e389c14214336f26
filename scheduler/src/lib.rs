//! Who may go next, and when it is: schedulers and the virtual clock.
//!
//! A *skeleton* of a run is what is left of a trace when the program's own work is reduced to
//! durations: per thread a sequence of operations on synchronization objects, each preceded by so
//! many ticks of work. [`simulate`] replays a skeleton in virtual time on modelled cores. No
//! instruction is executed, so a replay costs some tens of nanoseconds for each event, and the
//! same skeleton gives the same times on every run and every machine.
//!
//! # Reading order
//! [`Skeleton`] and its [`Builder`] (what is replayed), [`Scheduler`] (who may go next) with one
//! algorithm in each of `elsc`, `kendo`, `mem`, `orig`, `random` and `pct` (three of them by `turns`), [`InOrder`] (any of them on a transformed
//! trace), [`Schedule`] (what a
//! scheduler decided, to be repeated), [`Constraints`] (what a transformed
//! trace replaces locks with), [`Contracted`] (what of a skeleton is enough where nobody keeps an
//! order), [`Config`], [`Model`] and [`simulate`] (when it is).
//!
//! A scheduler is asked by two clocks: by [`simulate`], and by the full replay of the `vm` crate.
//!
//! `examples/precision.rs` holds virtual durations against recorded ones, and
//! `examples/throughput.rs` measures how fast skeletons are built and replayed.
//!
//! # Invariants
//! - This crate knows no guest memory and no code. An object is an address and nothing more.
//! - Waiting that honours a recording (artificial) is never counted as waiting in the program.
//! - A deadlock is a result, [`Outcome::Deadlocked`]; nothing here hangs on any input.
//! - No host clock, no host randomness, no hash with random state.

#![forbid(unsafe_code)]

mod admission;
mod build;
mod clock;
mod config;
mod constraints;
mod contracted;
mod crowd;
mod elsc;
mod error;
mod guarded;
mod in_order;
mod kendo;
mod latencies;
mod mem;
mod model;
mod orig;
mod pct;
mod places;
mod precedence;
mod random;
mod rank;
mod read;
mod recorded;
mod recording;
mod saved;
mod schedule;
mod sharing;
mod skeleton;
mod splitmix;
mod sweep;
#[cfg(feature = "proptest")]
pub mod testing;
mod took;
mod traits;
mod travel;
mod turns;
mod wakes;

pub use admission::{Admission, Conflicts};
pub use build::Builder;
pub use clock::{Account, Deadlock, Outcome, Run, Visitor, Wait, Want, simulate};
pub use config::{Config, Costs, ticks};
pub use constraints::{Constraints, Edge, Locksets};
pub use contracted::Contracted;
pub use elsc::Elsc;
pub use error::Error;
pub use in_order::InOrder;
pub use kendo::Kendo;
pub use latencies::{Patience, Waking};
pub use mem::MemS;
pub use model::{Model, Waiting};
pub use orig::Orig;
pub use pct::Pct;
pub use random::Random;
pub use saved::{Fixed, Recorder};
pub use schedule::{Grant, Noise, Schedule};
pub use skeleton::{Durations, Object, Operation, Skeleton};
pub use traits::{Choice, Moment, Progress, Request, Scheduler, Scope, Status};
