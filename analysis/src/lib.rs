//! Data races of a replayed program: FastTrack (Flanagan and Freund, PLDI 2009) over the accesses
//! and the events of an observed replay.
//!
//! # Reading order
//! [`Detector`] is shared by all threads and hands a [`Watcher`] to each; `edges` says which event
//! orders what (happens-before), `objects` keeps the clocks of what synchronizes, `shadow` those
//! of memory, `cell` compares them, and `findings` keeps the races that were found.
//!
//! # Happens-before
//! Two accesses are ordered if a replay keeps their order: by the program order of a thread, by
//! locks, condition variables, barriers, semaphores, once-objects and threads, by atomic words, and
//! by the order of system calls. So a replay of a program without races is exact, and when one is
//! not, one of the races explains it.
//!
//! # Invariants
//! - This crate does not know where accesses and events come from, nor symbols.
//! - What is reported as a race is one: its accesses touch a common byte, one of them writes, and
//!   nothing recorded orders them. Of the races on one byte the first is found, others may not be.
//! - Memory is bounded by the guest's touched pages and the number of threads.

#![forbid(unsafe_code)]

mod cell;
mod clock;
mod detector;
mod edges;
mod findings;
mod objects;
mod shadow;

pub use detector::{Detector, Watcher};
pub use findings::{Race, Side};
