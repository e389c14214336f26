//! The ranking: every planted group is reported with its kind and line, and nothing else is.

use refrain_corpus::{Answers, Group, Kind, PROGRAMS, Program, Variant};
use refrain_tests::{Bench, Run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

/// A reported pair: both lines, the lower one first, and the kind without its sort.
type Found = BTreeSet<((u64, u64), String)>;

/// Runs `refrain run --json` and returns what it reports about lines of `file`.
fn ranked(program: &Program, variant: Variant) -> Found {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = refrain_corpus::compile(program, variant, cache).expect("can be compiled");
    let bench = bench();
    let mut command = bench.command(["run", "--json", "--top", "1000", "--"]);
    let run = Run::of(command.arg(path).args(program.small));
    let report: Value = serde_json::from_slice(&run.succeeds().stdout).expect("is JSON");
    groups_in(&report, &program.debug_path())
}

fn groups_in(report: &Value, file: &str) -> Found {
    let groups = report["groups"].as_array().expect("a report has groups");
    let line = |place: &Value| {
        let frames = place["frames"].as_array()?;
        let ours = frames.iter().find(|f| f["file"].as_str().is_some_and(|f| f.ends_with(file)))?;
        ours["line"].as_u64()
    };
    let found = groups.iter().filter_map(|group| {
        let (first, second) = (line(&group["first"])?, line(&group["second"])?);
        let kind = group["kind"].as_str()?.split('/').next()?.to_owned();
        Some(((first.min(second), first.max(second)), kind))
    });
    found.collect()
}

fn expected(program: &Program, variant: Variant) -> (Found, Found) {
    let source = std::fs::read_to_string(program.path()).expect("the source is in the corpus");
    let answers = Answers::parse(&source).expect("the annotations are sound");
    let (mut must, mut must_not) = (Found::new(), Found::new());
    for pair in answers.pairs(variant) {
        let lines = (u64::from(pair.lines.0), u64::from(pair.lines.1));
        match pair.kind {
            Kind::Tlcp | Kind::Conflict => {
                for kind in ["null-lock", "read-read", "disjoint-write"] {
                    must_not.insert((lines, kind.to_owned()));
                }
            }
            // Benign pairs are a later step's.
            Kind::Benign(_) => {}
            kind => drop(must.insert((lines, kind.to_string()))),
        }
    }
    (must, must_not)
}

#[test]
fn planted_contention_is_found_and_true_contention_is_not_reported() {
    for program in PROGRAMS.iter().filter(|program| program.group == Group::Case) {
        let found = ranked(program, Variant::Ulcp);
        let (must, must_not) = expected(program, Variant::Ulcp);
        let missing: Vec<_> = must.difference(&found).collect();
        let wrong: Vec<_> = must_not.intersection(&found).collect();
        assert!(missing.is_empty(), "{}: missing {missing:?} in {found:?}", program.name);
        assert!(wrong.is_empty(), "{}: wrongly reported {wrong:?}", program.name);
    }
}

#[test]
fn fixed_programs_have_none_of_it() {
    for program in PROGRAMS.iter().filter(|program| program.group == Group::Case) {
        let found = ranked(program, Variant::Fixed);
        let (planted, _) = expected(program, Variant::Ulcp);
        let left: Vec<_> = planted.intersection(&found).collect();
        assert!(left.is_empty(), "{}: still reported {left:?}", program.name);
    }
}

#[test]
fn the_demo_names_every_planted_group_by_its_line() {
    let bench = bench();
    let run = bench.refrain(["demo", "--json"]);
    let report: Value = serde_json::from_slice(&run.succeeds().stdout).expect("is JSON");
    let program = refrain_corpus::find("demo").expect("the demo is in the corpus");
    let found = groups_in(&report, refrain_corpus::demo::PATH);
    let (must, must_not) = expected(program, Variant::Ulcp);
    assert!(must.is_subset(&found), "{must:?} in {found:?}");
    assert!(must_not.is_disjoint(&found), "{found:?}");
    let kinds: BTreeSet<_> = must.iter().map(|(_, kind)| kind).collect();
    assert!(kinds.len() >= 3, "the demo plants three kinds");

    let text = bench.refrain(["demo"]).succeeds().text();
    assert!(text.contains("replayed ") && text.contains("demo.c:"), "{text}");
}
