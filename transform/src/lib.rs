//! Critical sections, unnecessary lock contention pairs (ULCPs), the trace without them, and what
//! they cost: PerfPlay (Zheng et al., CGO 2015), sections 3 and 4.
//!
//! # Reading order
//! [`Collector`] sees one thread's accesses and events during an observed replay and makes its
//! critical sections, with [`Made`] of locks that the program makes itself; [`Sections`] puts those of
//! all threads together, by lock, with their shared read and write sets; `guards` takes out what locks
//! inside of others are enough for. `ulcp` tells kinds of pairs (Algorithm 1), `topology` builds the
//! causal edges that survive (Rules 1 to 3), `gain` is Eq. 1 and `fusion` Algorithm 2; `waiting` is what
//! the recording shows of waiting, and [`picture`] threads over time. [`measure`] replays and measures,
//! [`rank`] fuses and ranks. They are apart because the one needs the trace and the other the program's
//! symbols, which a process without rights does not have. `site` is a place in the source.
//!
//! # Invariants
//! - This crate does not know how replay works: it is handed a [`Replayer`].
//! - It does not know source code: it is handed a [`Resolver`].
//! - Results depend on the trace alone, not on the order in which threads were observed.
//! - Work is near-linear in the trace; nothing compares all pairs of critical sections.

#![forbid(unsafe_code)]

mod arrivals;
mod calls;
mod collector;
mod effects;
mod error;
mod fusion;
mod gain;
mod guards;
mod intervals;
mod made;
mod measure;
mod picture;
mod plan;
mod rank;
mod relaxed;
mod report;
mod sections;
mod sets;
mod shadow;
mod site;
mod topology;
mod ulcp;
mod waiting;

pub use collector::Collector;
pub use effects::{Bitwise, EffectsId, Operand, Update, Use, Uses};
pub use error::Error;
pub use gain::Timeline;
pub use intervals::Interval;
pub use made::{Change, Made, MadeLock, Make, Maker, Role, Unknown};
pub use measure::{
    Measurement, OnCores, Options, RegionPair, RegionSite, Together, Waiting, WithThreads, measure,
};
pub use picture::{COLUMNS, Column, LANES, Lane, Picture, WHOLE, picture};
pub use plan::{Arrival, Cores, NOMINAL, Plan, PlanEdge, RECORDED, Replayer, Setting, TRIALS};
pub use rank::rank;
pub use relaxed::Relaxed;
pub use report::{Analysed, Basis, Gain, Group, PairCounts, Report, Site};
pub use sections::{Irregularity, Lock, LockKind, Region, RegionId, Section, SectionId, Sections};
pub use sets::{SetId, SetTable};
pub use shadow::Shared;
pub use site::{Frame, Place, Resolver};
pub use topology::{CausalEdge, Topology};
pub use ulcp::{Pair, UlcpKind, Verdict, identify, pairs};
