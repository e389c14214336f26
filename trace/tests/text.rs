//! The text form.

mod common;

use common::{small, trace};
use proptest::prelude::*;
use refrain_trace::{OwnedTrace, verify::verify};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_printed_parses_to_the_same(trace in trace()) {
        let text = trace.to_string();
        prop_assert_eq!(text.parse::<OwnedTrace>().unwrap(), trace, "{}", text);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "(t0|e0|start|obj=|at=|[+.,:#\"\\\\ \n=x0-9a-f]){0,40}") {
        let _ = text.parse::<OwnedTrace>();
    }
}

#[test]
fn the_small_trace_reads_well() {
    insta::assert_snapshot!(small().to_string());
}

#[test]
fn left_out_tickets_follow_the_lines() {
    let trace: OwnedTrace = "
        t0 start
        t0 cond.wait obj=0x10000 value=0x20000
        t1 start
        t1 mutex.lock obj=0x10000
        t1 cond.signal obj=0x20000
        t1 mutex.unlock obj=0x10000
        t0 cond.wake obj=0x10000 value=0x20000
        t0 load obj=0x20000
        t0 syscall nr=1 payload
        t1 syscall nr=1 payload noticket
        t1 syscall nr=9 memory
        t0 rdtsc
    "
    .parse()
    .unwrap();
    let tickets = |t: usize| -> Vec<(u64, u64)> {
        trace.threads[t].iter().map(|e| (e.event.ticket, e.event.aux)).collect()
    };
    assert_eq!(tickets(0), [(0, 0), (0, 0), (3, 1), (1, 0), (0, 1), (0, 0)]);
    // All threads share a slot, so t1 starts second.
    assert_eq!(tickets(1), [(1, 0), (1, 0), (0, 0), (2, 0), (0, 0), (0, 1)]);
}

#[test]
fn times_are_absolute_or_relative() {
    let trace: OwnedTrace =
        "t0 start at=5\nt0 atomic at=+7\nt0 atomic at=+1+3\nt0 atomic at=20..30\nt0 atomic"
            .parse()
            .unwrap();
    let times: Vec<_> = trace.threads[0].iter().map(|e| (e.event.begin, e.event.end)).collect();
    assert_eq!(times, [(5, 5), (12, 12), (13, 16), (20, 30), (30, 30)]);
}

#[test]
fn errors_name_the_line() {
    for (text, expected) in [
        ("\nfoo", "line 2: unknown statement \"foo\""),
        ("t0", "line 1: what did the thread do?"),
        ("t0 e1 start", "line 1: e1 out of order, e0 comes next"),
        ("t0 start\nt0 mutex.lok", "line 2: unknown event \"mutex.lok\""),
        ("t0 start obj", "line 1: \"obj\" is not of the form name=value"),
        ("t0 start ob=1", "line 1: unknown field \"ob\""),
        ("t0 start obj=0xg", "line 1: \"0xg\" is no number"),
        ("t0 start obj=+1", "line 1: \"+1\" is no number"),
        ("t0 start nr=65536", "line 1: 65536 is too large"),
        ("t0 start result=99999999999", "line 1: \"99999999999\" is no 32-bit number"),
        (
            "t0 start at=+1+18446744073709551615",
            "line 1: +1+18446744073709551615 is beyond the end of time",
        ),
        ("t99999999 start", "line 1: t99999999 is over the limit of 1048576 threads"),
        ("argv \"a", "line 1: a string does not end"),
        ("argv a", "line 1: \"a\" is not a quoted string"),
        ("blob0 abc", "line 1: \"abc\" is not bytes in hexadecimal"),
        ("blk1 0", "line 1: blk1 out of order, blk0 comes next"),
        ("t0 syscall args=1,2,3,4,5,6,7", "line 1: more than six arguments"),
        ("t0 syscall output=1,2", "line 1: \"1,2\" is not of the form a,b,c"),
        ("end", "line 1: how did it end? exited=, signaled=, stopped= or lost="),
        ("end exited=0\n\nend exited=0", "line 3: the trace has ended already"),
    ] {
        assert_eq!(text.parse::<OwnedTrace>().unwrap_err().to_string(), expected, "{text:?}");
    }
}

#[test]
fn the_small_trace_has_no_violation() {
    assert_eq!(verify(&small().to_trace().unwrap()).unwrap(), []);
}
