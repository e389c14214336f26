//! Workloads with known answers.
//!
//! The corpus holds small multithreaded programs (C, C++, Rust) whose output
//! and exit status do not depend on the schedule. Those that plant unnecessary
//! lock contention say so themselves: a comment on the line of the lock call
//! gives the site's name and the kind of each pair that it takes part in.
//!
//! Invariants:
//! - The source is the only place where an answer is written down.
//! - A program's claims are closed: a pair of named sites that is not claimed
//!   as unnecessary contention must not be reported as such.
//! - This crate knows nothing of recording, replay or traces.
//!
//! Reading order: [`PROGRAMS`], [`Answers`], [`compile()`], [`demo`], [`PAIRS`], [`RACES`]. The
//! grammar and a table of all programs are in `corpus/README.md`.

#![forbid(unsafe_code)]

mod annotation;
mod catalogue;
mod compile;
pub mod demo;
mod pairs;
mod races;

pub use annotation::{Answers, Benign, Kind, Pair, Plant, Problem, Site};
pub use catalogue::{Exit, Group, Language, PROGRAMS, Program, Variant, find};
pub use compile::{Error, compile, compile_with};
pub use pairs::{Contrast, PAIRS};
pub use races::{RACES, RacyLine, racy_lines};
