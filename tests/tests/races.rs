//! Races are named by function and line, and only where there are any.

use refrain_corpus::{Group, PROGRAMS, Variant};
use refrain_tests::{Bench, Run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

fn compiled(name: &str, variant: Variant) -> PathBuf {
    let program = refrain_corpus::find(name).expect("is in the corpus");
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    refrain_corpus::compile(program, variant, cache).expect("can be compiled")
}

/// Records a program and replays it with a search for races.
fn raced(bench: &Bench, program: &Path, arguments: &[&str]) -> (Run, Value) {
    let mut record = bench.command(["record", "--force", "-o", "a.refrain", "--"]);
    Run::of(record.arg(program).args(arguments)).succeeds();
    let run = bench.refrain(["replay", "--races", "--json", "a.refrain"]);
    let report =
        serde_json::from_slice(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    (run, report)
}

/// Function and line of both sides of each pair outside of the C library.
fn pairs(report: &Value) -> Vec<[(String, u64); 2]> {
    let place = |side: &Value| {
        let frame = &side["place"]["frames"][0];
        (frame["function"].as_str().unwrap_or("?").to_owned(), frame["line"].as_u64().unwrap_or(0))
    };
    let pairs = report["races"]["pairs"].as_array().expect("a search was asked for");
    let own = pairs.iter().filter(|pair| pair["in_c_library"] == false);
    own.map(|pair| [place(&pair["first"]), place(&pair["second"])]).collect()
}

#[test]
fn the_racing_lines_are_named_whether_the_replay_diverged_or_not() {
    let bench = bench();
    let (run, report) = raced(&bench, &compiled("race", Variant::Plain), &["20000"]);
    assert_eq!(run.status, i32::from(!report["divergence"].is_null()), "{run:?}");
    let source = std::fs::read_to_string(refrain_corpus::find("race").expect("is there").path());
    let lines: BTreeSet<u64> = (1u64..)
        .zip(source.expect("the source is in the corpus").lines())
        .filter(|(_, line)| line.contains("/* races */"))
        .map(|(number, _)| number)
        .collect();
    assert_eq!(lines.len(), 2, "the load and the store");
    let pairs = pairs(&report);
    assert!(!pairs.is_empty(), "{run:?}");
    for (function, line) in pairs.iter().flatten() {
        assert!(function == "update" && lines.contains(line), "{function}:{line} in {run:?}");
    }
}

#[test]
fn programs_that_synchronize_do_not_race() {
    for name in ["ex_mutex", "ex_rwlock", "ex_cond", "ex_barrier", "ex_sem", "ex_spin", "ex_tls"] {
        let program = PROGRAMS.iter().find(|it| it.name == name && it.group == Group::Exerciser);
        let program = program.expect("is an exerciser");
        let bench = bench();
        let (run, report) = raced(&bench, &compiled(name, Variant::Plain), program.small);
        assert!(report["races"]["error"].is_null(), "{name}: {run:?}");
        assert!(pairs(&report).is_empty(), "{name}: {run:?}");
    }
}
