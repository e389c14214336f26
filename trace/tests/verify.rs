//! The verifier: each violation is found, and nothing else is.

mod common;

use common::trace;
use proptest::prelude::*;
use refrain_trace::{OwnedTrace, order, verify::verify};

/// The violations of a trace, one a line.
fn violations(text: &str) -> String {
    let trace = text.parse::<OwnedTrace>().unwrap().to_trace().unwrap();
    let lines: Vec<String> = verify(&trace).unwrap().iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Runs `body` between the start and the exit of two threads.
fn two_threads(body: &str) -> String {
    violations(&format!("t0 start\nt1 start\n{body}\nt1 exit\nt0 exit\nend exited=0"))
}

/// The slots of 0x10000 and 0x2000 are written `{A}` and `{B}`.
#[track_caller]
fn expect(body: &str, expected: &str) {
    assert_eq!(two_threads(body), slots(expected), "{body}");
}

fn slots(text: &str) -> String {
    let slot = |address| format!("slot {}", order::slot(address));
    text.replace("{A}", &slot(0x10000)).replace("{B}", &slot(0x20000))
}

#[test]
fn contention_conditions_and_recursion_are_fine() {
    expect(
        "t0 mutex.lock obj=0x10000
         t0 mutex.lock obj=0x10000
         t0 mutex.unlock obj=0x10000
         t0 mutex.unlock obj=0x10000
         t1 mutex.lock obj=0x10000
         t1 cond.wait obj=0x10000 value=0x20000
         t0 mutex.lock obj=0x10000
         t1 mutex.trylock obj=0x10000 result=16
         t0 cond.signal obj=0x20000
         t0 mutex.unlock obj=0x10000
         t1 cond.wake obj=0x10000 value=0x20000
         t1 mutex.unlock obj=0x10000
         t0 rwlock.rdlock obj=0x30000
         t1 rwlock.rdlock obj=0x30000
         t1 rwlock.unlock obj=0x30000
         t0 rwlock.unlock obj=0x30000
         t0 syscall nr=1 payload
         t1 syscall nr=2 payload
         t1 syscall nr=9 memory
         t1 load obj=0x20000",
        "",
    );
}

#[test]
fn tickets_are_a_sequence() {
    expect("t0 atomic obj=0x10000 ticket=2", "t0 e1: has ticket 2 of {A}, but nobody has ticket 0");
    expect(
        "t0 atomic obj=0x10000 ticket=0\nt1 atomic obj=0x10000 ticket=0",
        "t1 e1: has ticket 0 of {A} again; 1 comes next",
    );
    expect("t0 atomic obj=0x10000 ticket=9 noticket", "");
    expect(
        "t0 load obj=0x10000 ticket=1",
        "t0 e1: waits for 1 tickets of {A}, of which there are 0",
    );
    // The missing ticket of t1 is the cause; that t0 waits for t1's second event is not reported.
    expect(
        "t1 atomic obj=0x20000 ticket=1 at=10
         t0 atomic obj=0x10000 ticket=1 at=5..30
         t1 atomic obj=0x10000 ticket=0 at=20",
        "t1 e1: has ticket 1 of {B}, but nobody has ticket 0",
    );
}

#[test]
fn a_cut_off_end_may_lack_tickets() {
    let cut = "t0 start\nt1 start\nt0 atomic obj=0x10000 ticket=2\nt1 mutex.lock obj=0x20000";
    assert_eq!(violations(cut), "");
    let wrong = "t0 start\nt0 atomic obj=0x10000 ticket=0\nt0 atomic obj=0x10000 ticket=0";
    assert_eq!(violations(wrong), slots("t0 e2: has ticket 0 of {A} again; 1 comes next"));
}

#[test]
fn time_does_not_run_backwards() {
    expect(
        "t0 atomic at=9..8\nt0 exit at=10",
        "t0 e1: ends before it begins\nt0 e3: happens after the thread's exit",
    );
    expect(
        "t0 atomic at=9\nt0 atomic at=8",
        "t0 e2: begins before the thread's previous event ended",
    );
}

#[test]
fn threads_have_a_life() {
    assert_eq!(
        violations("t0 atomic\nt0 start\nend exited=0"),
        "t0 e0: the thread does not begin with its start\n\
         t0 e1: the thread starts again\n\
         t0 e2: the thread's exit is missing"
    );
    // The process was ended from within: threads stop where they are.
    let ended = "t0 start\nt1 start\nt0 syscall nr=231 payload unfinished\nend exited=0";
    assert_eq!(violations(ended), "");
    // What another thread has taken over meanwhile stands behind the last event of the one that ended it.
    // (The first is of a word, the other one of a line, with the order of every access.)
    for nr in ["nr=4", "nr=0"] {
        let taken = format!(
            "t0 start\nt1 start\nt0 syscall nr=231 noticket\nt0 handover obj=0x4000000000000000 {nr}\n\
             t1 takeover obj=0x4000000000000000 ticket=1 {nr}\nend exited=0"
        );
        assert_eq!(violations(&taken), "", "{nr}");
    }
    // Behind a handover of its own, a thread goes on.
    let own = "t0 start\nt0 syscall nr=39 noticket\nt0 handover obj=0x4000000000000000 pc=0x1000\nend exited=0";
    assert_eq!(violations(own), "t0 e3: the thread's exit is missing");
    let ended = "t0 start\nt1 start\nt0 killed value=9\nend signaled=9";
    assert_eq!(violations(ended), "");
    // The recording was stopped, and so were its threads.
    assert_eq!(violations("t0 start\nt1 start\nt0 syscall clone=t7\nend stopped=2"), "");
    // One had been created and had not run when the program ended.
    expect("t0 syscall clone=t7", "");
    expect("t0 syscall clone=t1\nt0 syscall clone=t1", "t0 e2: creates t1, which exists already");
    expect("t0 join obj=t9", "t0 e1: concerns t9, which is not in the trace");
    expect("t0 join obj=t1", "t0 e1: joins t1, which has not exited");
}

#[test]
fn locks_are_released_by_who_holds_them() {
    expect(
        "t0 mutex.lock obj=0x10000\nt1 mutex.unlock obj=0x10000\nt0 mutex.unlock obj=0x10000",
        "t1 e1: releases 0x10000, which the thread does not hold",
    );
    expect(
        "t0 mutex.lock obj=0x10000\nt1 mutex.lock obj=0x10000",
        "t1 e1: acquires 0x10000, which t0 holds",
    );
    expect("t0 mutex.unlock obj=0x10000 result=1", "");
    expect("t0 spin.unlock obj=0x10000\nt1 spin.lock obj=0x10000\nt1 spin.unlock obj=0x10000", "");
    expect(
        "t0 rwlock.unlock obj=0x10000",
        "t0 e1: releases 0x10000, which the thread does not hold",
    );
}

#[test]
fn waits_come_in_pairs() {
    expect(
        "t0 mutex.lock obj=0x10000
         t0 cond.wait obj=0x10000 value=0x20000
         t0 cond.wake obj=0x10000 value=0x30000
         t0 cond.wait obj=0x10000 value=0x20000",
        "t0 e3: ends a wait on a condition variable that did not begin\n\
         t0 e6: the thread's wait on a condition variable has not ended",
    );
}

#[test]
fn calls_have_payloads() {
    expect("t0 syscall nr=1", "t0 e1: a system call with a ticket, but without a payload");
    expect("t0 syscall nr=1 noticket", "");
    expect(
        "t0 atomic payload",
        "t0 e1: has a payload, which only system calls and few others have",
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_trace_is_verified_to_its_end(trace in trace()) {
        verify(&trace.to_trace().unwrap()).unwrap();
    }
}
