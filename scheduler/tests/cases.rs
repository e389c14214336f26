//! Case files for the schedulers: a trace, and who goes when under each of them.
//!
//! A line of the result has the scheduler, a letter for each grant (A is t0), and how long the
//! replay took, on a core for each thread where nothing costs time but the program's own work.

mod common;

use common::{Played, decided, kendo};
use refrain_scheduler::{
    Builder, Config, Constraints, Elsc, Error, MemS, Orig, Outcome, Pct, Random, Skeleton,
};
use refrain_trace::{OwnedTrace, cases};
use std::path::Path;

/// Seed of the random ones.
const SEED: u64 = 7;

/// What reading a trace may fail with.
#[derive(Debug)]
enum Unreadable {
    Trace,
    Events,
}

impl From<refrain_trace::Error> for Unreadable {
    fn from(_: refrain_trace::Error) -> Unreadable {
        Unreadable::Trace
    }
}

impl From<Error> for Unreadable {
    fn from(_: Error) -> Unreadable {
        Unreadable::Events
    }
}

fn skeleton(input: &str) -> Skeleton {
    let trace = input.parse::<OwnedTrace>().expect("the case is a trace");
    let trace = trace.to_trace().expect("a trace in memory can be written and read");
    let mut builder = Builder::new(trace.threads() as usize, 1_000_000_000, 0);
    builder.read::<Unreadable>(&trace).expect("its events can be replayed");
    builder.finish().expect("its events can be replayed")
}

fn line<'a>(name: &str, skeleton: &Skeleton, played: impl Played<'a>) -> String {
    let config = Config::ideal(skeleton.threads() as u32);
    let (outcome, _, schedule) = decided(skeleton, &Constraints::none(), &config, played);
    let letter = |thread: u32| char::from(b'A' + thread as u8);
    let order: String = schedule.grants.iter().map(|grant| letter(grant.thread.0)).collect();
    match outcome {
        Outcome::Completed(run) => format!("{name:6} {order} {}\n", run.duration),
        Outcome::Deadlocked(deadlock) => format!("{name:6} {order} {deadlock}\n"),
    }
}

#[test]
fn schedulers() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    cases::check(&directory, |input| {
        let skeleton = &skeleton(input);
        let none = Constraints::none();
        let config = Config::ideal(skeleton.threads() as u32);
        let steps = skeleton.events();
        [
            line("elsc", skeleton, Elsc),
            line("kendo", skeleton, kendo(skeleton)),
            line("mem-s", skeleton, MemS::new(skeleton, &none, &config, &[])),
            line("orig-s", skeleton, Orig),
            line("pct", skeleton, Pct::new(SEED, 3, steps)),
            line("random", skeleton, Random::new(SEED)),
        ]
        .concat()
    });
}
