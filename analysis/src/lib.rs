//! What reads what: data races of a replayed program, by FastTrack (Flanagan and Freund, PLDI 2009)
//! over the accesses and the events of an observed replay, and [`linkages`], the stores that watched
//! loads have read.
//!
//! # Reading order
//! [`Detector`] is shared by all threads and hands a [`Watcher`] to each; `edges` says which event
//! orders what (happens-before), `objects` keeps the clocks of what synchronizes (`barriers` tells the rounds of
//! barriers apart), `shadow` those of memory, `detector/lives` (with `heap` and `descriptors`) is about what begins and ends, `tasks` (with `detector/tasking`) about tasks of OpenMP, `cell`
//! compares accesses, `block` keeps those that count, and `findings` keeps the races that were found. `same_epoch` drops repetitions.
//! [`paper`] has the detectors that others are compared with, over what `tap` hands on.
//!
//! # Happens-before
//! There are two relations ([`Relation`]). In both, accesses are ordered by the program order of a
//! thread, by locks, condition variables, barriers, semaphores, once-objects and threads, and by
//! atomic words.
//! - What a replay *keeps* also has the order of all system calls and of all changes of the address
//!   space. A replay of a program that has no race in this relation is exact, and when one is not,
//!   one of the races explains it.
//! - What the *program* orders has neither. Of system calls, only those order that hand something
//!   over: a wake-up, a signal, bytes. A call of an allocator is one step: it ends a block or begins
//!   one, and what it does inside is no access and orders nothing. To end a block, a mapping, a
//!   descriptor, a lock or a barrier is to write it. These races are there whatever the kernel did
//!   first in this run; which words race does not depend on the replay's timing.
//!
//! # Invariants
//! - This crate does not know where accesses and events come from, nor symbols.
//! - What is reported as a race is one: its accesses touch a common byte, one of them writes, and
//!   nothing recorded orders them. Of the races on one byte the first is found, others may not be.
//! - A use after free ([`Race::after_free`]) is ordered: the first access has freed the block, and its
//!   memory is in no other one.
//! - Memory is bounded by the guest's touched pages and the number of threads.

#![deny(unsafe_code)]

mod barriers;
mod block;
mod cell;
mod channels;
mod clock;
mod descriptors;
mod detector;
mod edges;
mod findings;
mod heap;
pub mod linkages;
mod objects;
pub mod paper;
mod prefetch;
mod same_epoch;
mod shadow;
mod tap;
mod tasks;

pub use detector::{Detector, EpochNotes, Watcher};
pub use edges::{Atomics, Code, Relation};
pub use findings::{Act, Race, Side};
pub use heap::{Block, OneStep};
pub use tap::{Listener, Tapped};
pub use tasks::{Calls, Tasking};
