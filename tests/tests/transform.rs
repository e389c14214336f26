//! Transformed traces: written, verified, shown, and replayed by both clocks.

use refrain_tests::{Bench, Run};
use refrain_trace::{OwnedTrace, Trace};
use serde_json::Value;

/// A reader that never conflicts, and a counter that always does.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static pthread_mutex_t map = PTHREAD_MUTEX_INITIALIZER, tally = PTHREAD_MUTEX_INITIALIZER;
static long *table, *total;
static void *work(void *arg) {
    for (int i = 0; i < 300; i++) {
        pthread_mutex_lock(&map);
        long found = table[i % 16];
        pthread_mutex_unlock(&map);
        pthread_mutex_lock(&tally);
        *total = *total * 3 + found;
        pthread_mutex_unlock(&tally);
    }
    return arg;
}
int main(void) {
    pthread_t threads[3];
    table = calloc(16, sizeof *table);
    total = calloc(1, sizeof *total);
    for (int i = 0; i < 16; i++) table[i] = i;
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, work, 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    printf("%ld\n", *total);
    return 0;
}
"#;

/// What threads hand over outside of their sections, which do not conflict. Nothing else orders the
/// two accesses, whoever comes first: the thread makes no system call before it is told to end.
const PUBLISHES: &str = r#"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int done;
static void *publish(void *box) {
    ((long *)box)[3] = 42;
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    while (!atomic_load(&done)) {}
    return 0;
}
int main(void) {
    pthread_t thread;
    long *box = calloc(8, sizeof *box);
    pthread_create(&thread, 0, publish, box);
    usleep(100000);
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    long found = box[3];
    atomic_store(&done, 1);
    pthread_join(thread, 0);
    printf("%ld\n", found);
    return 0;
}
"#;

fn transformed(source: &str) -> Bench {
    let bench = Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"));
    bench.cc(source, &["-g", "-O1", "-pthread", "-o", "program"]);
    bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]).succeeds();
    bench.refrain(["transform", "a.refrain", "-o", "b.refrain"]).succeeds();
    bench
}

fn json(run: &Run) -> Value {
    serde_json::from_slice(&run.succeeds().stdout).expect("is JSON")
}

#[test]
fn a_transformed_trace_is_verified_shown_and_replayed() {
    let bench = transformed(PROGRAM);
    bench.refrain(["check", "b.refrain"]).succeeds();
    let report = json(&bench.refrain(["transform", "--json", "a.refrain", "-o", "c.refrain"]));
    let number = |name: &str| report[name].as_u64().expect("is a number");
    assert!(number("removed") >= 900, "{report}");
    assert!(number("causal_edges") > 0 && number("aux_locks") > 0, "{report}");
    assert!(number("free_ns") <= number("dynamic_ns"), "{report}");
    assert!(number("dynamic_ns") <= number("static_ns"), "{report}");
    let text = bench.refrain(["dump", "--topology", "b.refrain"]).succeeds().text();
    assert!(text.starts_with("transformed 0x") && text.contains("\nedge cs"), "{text}");
    let graph = bench.refrain(["dump", "--dot", "--sites", "b.refrain"]).succeeds().text();
    assert!(graph.starts_with("digraph topology {") && graph.contains("work source.c:12"));
    assert!(!graph.contains("source.c:9"), "what conflicts with none has no edges: {graph}");
    for scheduler in ["elsc", "mem-s", "kendo", "orig-s", "pct", "random"] {
        let replay = ["replay", "--clock", "virtual", "--seed", "7", "--scheduler", scheduler];
        bench.refrain(replay.iter().chain(&["b.refrain"])).succeeds();
    }
    let full = json(&bench.refrain(["replay", "--json", "b.refrain"]));
    assert!(full["locks_freed"].as_u64() >= Some(2), "{full}");
    assert_eq!(full["digests_checked"], full["digests_equal"]);
    bench.refrain(["replay", "--engine", "cranelift", "b.refrain"]).succeeds();
    bench.refrain(["replay", "--engine", "copy", "--repeat", "2", "b.refrain"]).succeeds();
    let races = bench.refrain(["replay", "--races", "b.refrain"]).succeeds().text();
    assert!(!races.contains("source.c"), "{races}");
}

#[test]
fn what_cannot_be_done_with_a_transformed_trace_is_said() {
    let bench = transformed(PROGRAM);
    bench
        .refrain(["replay", "--scheduler", "kendo", "b.refrain"])
        .fails(1, &["under elsc alone", "--clock virtual"]);
    bench.refrain(["locks", "b.refrain"]).fails(1, &["b.refrain", "rank the recording"]);
    bench.refrain(["fidelity", "b.refrain"]).fails(1, &["take the recording"]);
    bench
        .refrain(["transform", "b.refrain", "-o", "c.refrain"])
        .fails(1, &["b.refrain", "transformed already"]);
    bench
        .refrain(["dump", "--topology", "a.refrain"])
        .fails(1, &["a.refrain", "refrain transform a.refrain"]);
}

#[test]
fn an_order_that_is_lost_is_found() {
    let bench = transformed(PROGRAM);
    let path = bench.path().join("b.refrain");
    let trace = Trace::open(&path).expect("it was written");
    let mut owned = OwnedTrace::read(&trace).expect("it can be read");
    let record = owned.transformed.as_mut().expect("it is transformed");
    record.edges.clear();
    std::fs::write(&path, owned.to_bytes().expect("can be written")).expect("can be replaced");
    let run = bench.refrain(["check", "b.refrain"]);
    let said = run.text();
    assert_eq!(run.status, 1, "{said}");
    assert!(said.contains("nothing keeps their order"), "{said}");
}

/// Whatever the replay comes to, the accesses that the lock's order kept apart are named.
#[test]
fn what_a_freed_lock_ordered_beside_its_data_is_a_race() {
    let bench = transformed(PUBLISHES);
    let run = bench.refrain(["replay", "--races", "b.refrain"]);
    let text = run.text();
    assert!(text.contains("publish source.c:10") && text.contains("main source.c:23"), "{text}");
    bench.refrain(["replay", "--races", "a.refrain"]).succeeds();
}
