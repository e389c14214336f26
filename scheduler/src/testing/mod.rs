//! Generators for tests of schedulers (feature `proptest`): programs, and the runs of them that a
//! machine could have recorded.
//!
//! A [`Program`] is what threads do; [`record`] interleaves it as a list of choices says; a
//! [`Recording`] becomes a [`crate::Skeleton`] for the virtual clock, or the events of a trace.

mod program;
mod recording;

pub use program::{ATOMIC, BARRIER, COND, LOCK, RW, SEM, record_after};
pub use program::{Op, Program, any_program, by_locks, choices, may_deadlock, plain, record};
pub use recording::{HZ, Recording};
