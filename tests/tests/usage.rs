//! The command line: wrong usage, help, completions, the manual, broken pipes.

use refrain_tests::{Bench, Run};
use std::process::Stdio;

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

#[test]
fn wrong_usage_is_status_2() {
    let bench = bench();
    let cases: [&[&str]; 15] = [
        &[],
        &["no-such-command"],
        &["record"],
        &["replay"],
        &["replay", "--engine", "steam", "a.refrain"],
        &["replay", "--scheduler", "fifo", "a.refrain"],
        &["replay", "--clock", "sundial", "a.refrain"],
        &["replay", "--cores", "0", "a.refrain"],
        &["replay", "--schedule", "s.txt", "--seed", "1", "a.refrain"],
        &["fidelity", "--repeat", "0", "a.refrain"],
        &["ab"],
        &["dump", "--events", "9..1", "a.refrain"],
        &["dump", "--thread", "x", "a.refrain"],
        &["dump", "--instructions", "--thread", "t0", "a.refrain"],
        &["record", "--order", "chaos", "--", "/bin/true"],
    ];
    for arguments in cases {
        let run = bench.refrain(arguments);
        assert_eq!(run.status, 2, "{arguments:?}: {run:?}");
        assert!(run.stdout.is_empty(), "{arguments:?}: {run:?}");
        assert!(!run.stderr.is_empty(), "{arguments:?}");
    }
    let order = bench.refrain(["record", "--order", "chaos", "--", "/bin/true"]);
    assert!(order.stderr.contains("no such order; there are `sync`"), "{}", order.stderr);
}

#[test]
fn help_goes_to_standard_output_and_hides_what_is_internal() {
    let bench = bench();
    let help = bench.refrain(["--help"]).succeeds().text();
    let measuring = ["fidelity", "perfplay", "ab", "calibrate"];
    let others = ["record", "replay", "info", "dump", "locks", "run", "check", "demo"];
    for command in others.into_iter().chain(measuring) {
        assert!(help.contains(command), "{command} is missing in:\n{help}");
        bench.refrain([command, "--help"]).succeeds();
    }
    assert!(!help.contains("__"), "{help}");
    assert!(bench.refrain(["--version"]).succeeds().text().starts_with("refrain "));
}

#[test]
fn completions_and_the_manual() {
    let bench = bench();
    for shell in ["bash", "zsh", "fish"] {
        assert!(bench.refrain(["completions", shell]).succeeds().text().contains("refrain"));
    }
    assert!(bench.refrain(["man"]).succeeds().text().contains(".TH"));
    bench.refrain(["man", "pages"]).succeeds();
    assert!(bench.path().join("pages/refrain.1").is_file());
    assert!(bench.path().join("pages/refrain-record.1").is_file());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let bench = bench();
    let mut command = bench.command(["man"]);
    let (reader, writer) = std::io::pipe().expect("there is a pipe");
    drop(reader);
    let run = Run::of(command.stdout(writer).stderr(Stdio::piped()));
    assert_eq!(run.status, 0, "{run:?}");
    assert!(run.stderr.is_empty(), "{run:?}");
}

#[test]
fn a_wrong_log_filter_is_said() {
    let bench = bench();
    let run = Run::of(bench.command(["man"]).env("REFRAIN_LOG", "refrain=loud"));
    run.fails(1, &["REFRAIN_LOG", "refrain=loud"]);
}

#[test]
fn the_replay_child_is_not_for_users() {
    bench().refrain(["__replay-child", "nonsense"]).fails(1, &["internal"]);
    let call = r#"{"build":{"protocol":0,"version":"0.0.9"},"request":"Whatever"}"#;
    bench()
        .refrain(["__replay-child", call])
        .fails(1, &["refrain 0.0.9, protocol 0", "but this is"]);
}

#[test]
fn what_does_not_go_together_or_is_not_there_is_said() {
    let bench = bench();
    bench.refrain(["record", "-q", "-o", "a.refrain", "--", "true"]).succeeds();
    for flag in ["--races", "--echo", "--count"] {
        let run = bench.refrain(["replay", "--clock", "virtual", flag, "a.refrain"]);
        run.fails(1, &[flag, "--clock wall"]);
    }
    bench
        .refrain(["dump", "--events", "999999..", "a.refrain"])
        .fails(1, &["no e999999", "at most"]);
    bench.refrain(["dump", "--thread", "t7", "a.refrain"]).fails(1, &["no t7"]);
}
