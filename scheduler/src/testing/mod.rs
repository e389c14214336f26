//! For tests of schedulers (feature `proptest`): generators of programs and of the runs of them that
//! a machine could have recorded, and what must hold of any replay.
//!
//! A [`Program`] is what threads do; [`record`] interleaves it as a list of choices says; a
//! [`Recording`] becomes a [`crate::Skeleton`] for the virtual clock, or the events of a trace.
//! [`play`] replays it; [`admissible`], [`keeps_order`] and [`fidelity`] judge the replay.
//!
//! # A scheduler of one's own
//! [`admissible`] must hold of every scheduler. One that is to repeat recordings keeps the recorded
//! order of each object, too, and takes as long as the machine that recorded:
//!
//! ```
//! use proptest::prelude::*;
//! use proptest::test_runner::TestRunner;
//! use refrain_scheduler::testing::{
//!     admissible, choices, fidelity, keeps_order, machines, plain, play, record,
//! };
//! use refrain_scheduler::{
//!     Choice, Config, Constraints, Model, Moment, Outcome, Recorder, Request, Scheduler,
//! };
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
//! /// Whoever came last goes first.
//! struct Latest;
//!
//! impl Scheduler for Latest {
//!     fn choose(&mut self, _: Moment<'_>, requests: &[Request]) -> Choice {
//!         Choice::Grant(requests.len() - 1)
//!     }
//! }
//!
//! fn test(
//!     scheduler: impl Fn() -> Box<dyn Scheduler>,
//!     is_faithful: bool,
//! ) -> Result<(), impl std::fmt::Debug> {
//!     let mut runner = TestRunner::deterministic();
//!     runner.run(&(plain(), choices()), |(program, choices)| {
//!         let recording = record(&program, &choices);
//!         let (skeleton, model) = (recording.skeleton(), Model::default());
//!         for machine in machines() {
//!             let mut by = Recorder::new(scheduler(), &model);
//!             let replayed = (&skeleton, &Constraints::none());
//!             let (outcome, times) = play(replayed, &machine, &model, &mut by);
//!             let Outcome::Completed(run) = outcome else {
//!                 return Err(TestCaseError::fail("a deadlock"));
//!             };
//!             admissible(&recording, &run, &times)?;
//!             if is_faithful {
//!                 keeps_order(&recording, &by.into_schedule().grants)?;
//!             }
//!         }
//!         if is_faithful {
//!             let machine = Config { cores: 8, ..machines()[3] };
//!             let (took, replayed) = fidelity(&recording, &machine, &model, &mut scheduler())?;
//!             prop_assert_eq!(took, replayed);
//!         }
//!         Ok(())
//!     })
//! }
//!
//! test(|| Box::new(Patient), true).expect("repeats recordings");
//! test(|| Box::new(Latest), false).expect("no machine forbids this order");
//! assert!(test(|| Box::new(Latest), true).is_err(), "but it is another than the recorded one");
//! ```

mod admissible;
mod program;
mod recording;

pub use admissible::{Times, admissible, fidelity, keeps_order, machines, play};
pub use program::{ATOMIC, BARRIER, COND, LOCK, RW, SEM, record_after};
pub use program::{Op, Program, any_program, by_locks, choices, may_deadlock, plain, record};
pub use recording::{HZ, Recording};
