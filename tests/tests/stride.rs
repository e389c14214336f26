//! `--order stride`: whatever races, the replay is exact.

use refrain_tests::{Bench, Run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program with its arguments.
type Program = (PathBuf, Vec<&'static str>);

/// A bench, unless this machine cannot record every access: it says so then.
fn bench() -> Option<Bench> {
    let bench = Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"));
    let tried = bench.refrain(["record", "-q", "--order", "stride", "--", "/bin/true"]);
    if ["BMI2", "membarrier"].iter().any(|word| tried.stderr.contains(word)) {
        eprintln!("SKIPPED: {}", tried.stderr);
        return None;
    }
    tried.succeeds();
    Some(bench)
}

fn corpus(name: &str) -> Program {
    let program = refrain_corpus::find(name).expect("the corpus has it");
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = refrain_corpus::compile(program, program.variants[0], cache).expect("is compiled");
    (path, program.small.to_vec())
}

/// Records a program with the order of every access, and replays it on both engines.
fn is_exact(bench: &Bench, program: &Program) -> Run {
    is_exact_on(&["copy", "cranelift"], bench, program)
}

fn is_exact_on(engines: &[&str], bench: &Bench, (path, arguments): &Program) -> Run {
    let options = ["record", "-q", "--force", "--order", "stride", "-o", "a.refrain", "--"];
    let recorded = Run::of(bench.command(options).arg(path).args(arguments));
    for engine in engines {
        bench.refrain(["replay", "--engine", *engine, "a.refrain"]).succeeds();
    }
    bench.refrain(["check", "a.refrain"]).succeeds();
    recorded
}

#[test]
fn litmus_tests_are_exact() {
    let Some(bench) = bench() else { return };
    let (path, _) = corpus("litmus");
    for _ in 0..3 {
        let recorded = is_exact(&bench, &(path.clone(), vec!["all", "100"]));
        assert_eq!(recorded.succeeds().stdout.iter().filter(|&&byte| byte == b'\n').count(), 24);
        let replay = bench.refrain(["replay", "--echo", "a.refrain"]);
        assert!(replay.succeeds().stdout.starts_with(&recorded.stdout), "{replay:?}");
    }
}

/// Accesses count also where the machine executes the instruction: for memory that is shared with another
/// process.
#[test]
fn memory_in_common_after_threads() {
    let Some(bench) = bench() else { return };
    let source = include_str!("../guest/common_after_threads.c");
    bench.cc(source, &["-O1", "-pthread", "-o", "program"]);
    let program = (bench.path().join("program"), Vec::new());
    let native = Run::of(&mut Command::new(&program.0));
    assert_eq!(is_exact(&bench, &program).succeeds().text(), native.text());
}

/// Whether an access faults depends on what another thread has made of the memory: `mprotect` is ordered
/// against accesses.
#[test]
fn memory_that_another_thread_protects() {
    let Some(bench) = bench() else { return };
    bench.cc(include_str!("../guest/protected.c"), &["-O1", "-pthread", "-o", "program"]);
    let program = (bench.path().join("program"), Vec::new());
    for _ in 0..2 {
        is_exact(&bench, &program).succeeds();
    }
}

/// What the kernel writes at a thread's end is ordered, too: loops wait for it.
#[test]
fn threads_without_a_library() {
    let Some(bench) = bench() else { return };
    bench.cc(include_str!("../guest/bare_threads.c"), &["-O1", "-o", "program"]);
    let program = (bench.path().join("program"), Vec::new());
    let recorded = is_exact(&bench, &program);
    assert_eq!(recorded.succeeds().text(), "1225000\n");
}

/// The orders that exist to be compared.
#[test]
fn every_access_in_other_orders() {
    let Some(bench) = bench() else { return };
    let (path, _) = corpus("litmus");
    for order in ["leap", "global"] {
        let options = ["record", "-q", "--force", "--order", order, "-o", "a.refrain", "--"];
        Run::of(bench.command(options).arg(&path).args(["all", "100"])).succeeds();
        for engine in ["copy", "cranelift"] {
            bench.refrain(["replay", "--engine", engine, "a.refrain"]).succeeds();
        }
        bench.refrain(["check", "a.refrain"]).succeeds();
        let info = bench.refrain(["info", "--json", "a.refrain"]);
        let info: Value = serde_json::from_slice(&info.succeeds().stdout).expect("is JSON");
        assert_eq!(info["order"], order);
    }
    let unknown = bench.refrain(["record", "--order", "chaos", "--", "/bin/true"]);
    assert!(unknown.status == 2 && unknown.stderr.contains("`global`"), "{unknown:?}");
}

#[test]
fn programs_are_exact() {
    let Some(bench) = bench() else { return };
    let names = [
        "race",
        "ex_request",
        "ex_polls",
        "ex_stamps",
        "ex_clock",
        "ex_atomics",
        "ex_mutex",
        "ex_cond",
        "ex_threads",
        "ex_once",
        "ex_malloc",
        "ex_spin",
        "ex_tls",
        "ex_avx",
        "mixed_cpp",
        "mixed_rs",
        "openmp",
        "ex_signal",
        "ex_alarm",
        "ex_jumps",
        "ex_process",
    ];
    for name in names {
        eprintln!("{name}");
        is_exact(&bench, &corpus(name));
    }
}

/// Others wait for what the last event of a thread, in a call that the recording does not see the end of,
/// comes before. (Half of such recordings have one.)
#[test]
fn programs_that_end_within_calls_are_exact() {
    let Some(bench) = bench() else { return };
    for _ in 0..8 {
        is_exact(&bench, &corpus("ex_exit"));
    }
}

/// The library says which thread is first.
#[test]
fn once_objects_in_memory_that_is_used_again() {
    let Some(bench) = bench() else { return };
    bench.cc(include_str!("../guest/once.c"), &["-O1", "-pthread", "-o", "program"]);
    let recorded = is_exact(&bench, &(bench.path().join("program"), Vec::new()));
    assert_eq!(recorded.stdout, b"56\n");
}

/// Instructions that access some lanes of their operand alone.
#[test]
fn accesses_of_lanes_are_ranked() {
    let Some(bench) = bench() else { return };
    if !is_x86_feature_detected!("avx2") {
        return;
    }
    bench.cc(include_str!("../guest/lanes.c"), &["-O1", "-mavx2", "-pthread", "-o", "program"]);
    is_exact(&bench, &(bench.path().join("program"), Vec::new()));
    bench.refrain(["locks", "a.refrain"]).succeeds();
}

/// One thread changes instructions while others execute them.
#[test]
fn generated_code_is_exact() {
    let Some(bench) = bench() else { return };
    for name in ["ex_patch", "ex_jit"] {
        eprintln!("{name}");
        is_exact_on(&["copy", "tiered"], &bench, &corpus(name));
        bench.refrain(["locks", "a.refrain"]).succeeds();
    }
}

/// The ranking logs accesses; one that faults counts as it did without the log.
#[test]
fn faults_of_generated_code_are_ranked() {
    let Some(bench) = bench() else { return };
    bench.cc(include_str!("../guest/generated_fault.c"), &["-O1", "-pthread", "-o", "program"]);
    let recorded =
        is_exact_on(&["copy", "tiered"], &bench, &(bench.path().join("program"), Vec::new()));
    assert_eq!(recorded.stdout, b"200 20\n");
    bench.refrain(["locks", "a.refrain"]).succeeds();
}

/// Programs of some runtimes are recorded so without being asked.
#[test]
fn runtimes_that_synchronize_through_plain_accesses() {
    let Some(bench) = bench() else { return };
    let source = r#"
        __attribute__((section(".go.buildinfo"))) int mark = 1;
        int main(void) { return 0; }
    "#;
    bench.cc(source, &["-o", "marked"]);
    let order = |more: &[&str]| {
        let arguments = ["record", "--force", "-o", "a.refrain"];
        let recorded = bench.refrain(arguments.iter().chain(more).chain(&["--", "./marked"]));
        let says_so = recorded.stderr.contains("threads of Go synchronize");
        let info = bench.refrain(["info", "--json", "a.refrain"]).text();
        let stride = info.contains(r#""order": "stride""#);
        assert_eq!(says_so, stride && more.is_empty(), "{recorded:?}");
        stride
    };
    assert!(order(&[]));
    assert!(!order(&["--order", "sync"]));
}

/// A program that a script or another program executes is recorded as it would be by itself, also one
/// that a child process executes.
#[test]
fn runtimes_that_scripts_start() {
    let Some(bench) = bench() else { return };
    let mark = r#"__attribute__((section(".go.buildinfo"))) int mark = 1;"#;
    let source = format!("{mark}\n{}", include_str!("../guest/unwatched.c"));
    bench.cc(&source, &["-O1", "-pthread", "-o", "marked"]);
    bench.program("executes", b"#!/bin/sh\nexec ./marked\n");
    bench.program("finds", b"#!/usr/bin/env ./marked\n");
    bench.program("starts", b"#!/bin/sh\n./marked\nexit $?\n");
    let stride = |trace: &str| {
        let info = bench.refrain(["info", "--json", trace]).succeeds().text();
        info.contains(r#""order": "stride""#)
    };
    for script in ["./executes", "./finds"] {
        let recorded = bench.refrain(["record", "--force", "-o", "a.refrain", "--", script]);
        assert!(recorded.stderr.contains("threads of Go synchronize"), "{recorded:?}");
        assert!(stride("a.refrain"), "{script}");
        for engine in ["copy", "cranelift"] {
            bench.refrain(["replay", "--engine", engine, "a.refrain"]).succeeds();
        }
        bench.refrain(["check", "a.refrain"]).succeeds();
    }
    let sync = ["record", "--order", "sync", "--force", "-o", "a.refrain", "--", "./executes"];
    bench.refrain(sync).succeeds();
    assert!(!stride("a.refrain"), "the user decides");
    bench
        .refrain(["record", "--follow", "--force", "-o", "a.refrain", "--", "./starts"])
        .succeeds();
    let names = std::fs::read_dir(bench.path()).expect("is there").flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_child =
        |name: &String| name.starts_with("a.") && name.ends_with(".refrain") && name != "a.refrain";
    let children: Vec<String> = names.filter(is_child).collect();
    assert_eq!(children.len(), 1, "{children:?}");
    assert!(stride(&children[0]) && !stride("a.refrain"));
}

#[test]
fn the_trace_says_what_it_is_and_what_cannot_be_done_with_it() {
    let Some(bench) = bench() else { return };
    is_exact(&bench, &corpus("ex_mutex"));
    let info = bench.refrain(["info", "--json", "a.refrain"]);
    assert!(info.succeeds().text().contains(r#""order": "stride""#), "{info:?}");
    let words = ["--order stride", "a recording with --order sync"];
    bench.refrain(["replay", "--races", "a.refrain"]).fails(1, &words);
}

/// What is unnecessary is the same in both orders.
#[test]
fn locks_are_ranked() {
    let Some(bench) = bench() else { return };
    let demo = refrain_corpus::find("demo").expect("the corpus has it");
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = refrain_corpus::compile(demo, demo.variants[0], cache).expect("is compiled");
    is_exact(&bench, &(path, demo.small.to_vec()));
    let ranked = bench.refrain(["locks", "--json", "a.refrain"]);
    let report: Value = serde_json::from_str(&ranked.succeeds().text()).expect("is JSON");
    let kinds: BTreeSet<&str> = report["groups"]
        .as_array()
        .expect("there are groups")
        .iter()
        .filter_map(|group| group["kind"].as_str())
        .collect();
    assert!(kinds.is_superset(&["read-read", "disjoint-write", "null-lock"].into()), "{kinds:?}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("order of every access"), "{notes}");
}

#[test]
fn memory_that_is_mapped_twice_is_exact() {
    let Some(bench) = bench() else { return };
    bench.cc(include_str!("../guest/mapped_twice.c"), &["-O1", "-pthread", "-o", "program"]);
    let program = (bench.path().join("program"), vec![]);
    for _ in 0..3 {
        assert_eq!(is_exact(&bench, &program).succeeds().text(), "done\n");
    }
}

#[test]
fn memory_that_is_mapped_again_keeps_what_others_have_stored() {
    let Some(bench) = bench() else { return };
    bench.cc(include_str!("../guest/mapped_again.c"), &["-O1", "-pthread", "-o", "program"]);
    let program = (bench.path().join("program"), vec![]);
    for _ in 0..3 {
        let recorded = is_exact(&bench, &program).succeeds().text();
        let options = ["record", "-q", "--force", "-o", "a.refrain", "--"];
        let other = Run::of(bench.command(options).arg(&program.0)).succeeds().text();
        assert_eq!(other, recorded);
        bench.refrain(["replay", "a.refrain"]).succeeds();
    }
}

#[test]
fn code_that_is_written_through_another_mapping_is_exact() {
    let Some(bench) = bench() else { return };
    bench.cc(include_str!("../guest/code_twice.c"), &["-O1", "-pthread", "-o", "program"]);
    let program = (bench.path().join("program"), vec![]);
    let recorded = is_exact_on(&["copy", "tiered"], &bench, &program);
    assert_eq!(recorded.succeeds().text(), "0\n11\n22\n33\n44\n299\n");
}

/// Cranelift does not count the branches of generated code.
#[test]
fn cranelift_refuses_generated_code() {
    let Some(bench) = bench() else { return };
    bench.cc(include_str!("../guest/code_once.c"), &["-O1", "-pthread", "-o", "program"]);
    let program = (bench.path().join("program"), vec![]);
    let recorded = is_exact_on(&["copy", "tiered"], &bench, &program);
    assert_eq!(recorded.succeeds().text(), "1986 1986\n");
    let refused = bench.refrain(["replay", "--engine", "cranelift", "a.refrain"]);
    assert!(refused.stderr.contains("cannot run this program"), "{refused:?}");
}
