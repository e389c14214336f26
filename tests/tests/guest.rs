//! The guest sees its own system: each program of `guest/` says the same natively, recorded and
//! replayed, and ends the same way.

use refrain_tests::{Bench, Run};
use std::process::Command;

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

/// Compiles the program, and holds a recording and both engines' replays against a native run.
fn is_as_natively(source: &str) -> Run {
    let bench = bench();
    bench.cc(source, &["-g", "-O1", "-w", "-pthread", "-o", "program"]);
    let native = Run::of(Command::new("./program").current_dir(bench.path()));
    let recorded = bench.refrain(["record", "-o", "a.refrain", "--", "./program"]);
    assert_eq!(recorded.text(), native.text(), "{}", recorded.stderr);
    assert_eq!(recorded.status, native.status, "{}", recorded.stderr);
    for engine in ["copy", "cranelift"] {
        let replayed = bench.refrain(["replay", "--engine", engine, "--echo", "a.refrain"]);
        let replayed = replayed.succeeds();
        assert!(native.stdout.is_empty() || !replayed.stdout.is_empty(), "{replayed:?}");
    }
    bench.refrain(["check", "a.refrain"]).succeeds();
    recorded
}

#[test]
fn what_it_is() {
    is_as_natively(include_str!("../guest/itself.c"));
}

#[test]
fn where_its_memory_is() {
    is_as_natively(include_str!("../guest/memory.c"));
}

#[test]
fn locks_of_threads_that_end() {
    is_as_natively(include_str!("../guest/locks.c"));
}

#[test]
fn a_call_through_a_null_pointer() {
    is_as_natively(include_str!("../guest/null_call.c"));
}

#[test]
fn single_system_calls() {
    is_as_natively(include_str!("../guest/calls.c"));
}
