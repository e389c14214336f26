//! Replays that measure: other schedulers, both clocks, comparisons. What is asserted never
//! depends on how long anything takes.

use refrain_tests::{Bench, Run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// A place with a recording of this corpus program in `a.refrain`.
fn recorded(name: &str) -> Bench {
    let bench = Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"));
    record(&bench, name, "a.refrain");
    bench
}

fn record(bench: &Bench, name: &str, trace: &str) {
    let program = refrain_corpus::find(name).expect("the corpus has it");
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = refrain_corpus::compile(program, program.variants[0], cache).expect("compiles");
    let mut command = bench.command(["record", "-q", "-o", trace, "--"]);
    Run::of(command.arg(path).args(program.small)).succeeds();
}

fn json(run: &Run) -> Value {
    serde_json::from_slice(&run.succeeds().stdout).expect("is JSON")
}

const SCHEDULERS: [&str; 6] = ["elsc", "kendo", "mem-s", "orig-s", "pct", "random"];

#[test]
fn virtual_time_is_the_same_each_time() {
    let bench = recorded("ex_mutex");
    for scheduler in SCHEDULERS {
        let replay = ["replay", "--json", "--clock", "virtual", "--scheduler", scheduler];
        let run = || bench.refrain(replay.iter().chain(&["--seed", "3", "a.refrain"]));
        let (first, second) = (run(), run());
        assert_eq!(first.succeeds().stdout, second.succeeds().stdout, "{scheduler}");
        let report = json(&first);
        assert_eq!(report["schema_version"], 1);
        assert_eq!(report["scheduler"], scheduler);
        assert_eq!(report["latencies"], "typical");
        assert!(report["duration_ns"].as_u64().is_some_and(|ns| ns > 0), "{report}");
        for thread in report["threads"].as_array().expect("there are threads") {
            let part = |name: &str| thread[name].as_u64().expect("is a time");
            let parts = ["running_ns", "spinning_ns", "blocked_ns", "artificial_ns"];
            let sum: u64 = parts.into_iter().chain(["runnable_ns", "io_ns"]).map(part).sum();
            // Each part is rounded to nanoseconds by itself.
            assert!(part("alive_ns").abs_diff(sum) <= 7, "{scheduler}: {thread}");
        }
    }
}

#[test]
fn a_saved_schedule_is_repeated() {
    let bench = recorded("ex_mutex");
    let common = ["replay", "--json", "--clock", "virtual", "--cores", "3"];
    let replay = |rest: &[&str]| bench.refrain(common.iter().chain(rest).chain(&["a.refrain"]));
    let random = ["--scheduler", "random", "--seed", "5", "--save-schedule", "s.txt"];
    let first = json(&replay(&random));
    let again = json(&replay(&["--schedule", "s.txt"]));
    assert_eq!(first["duration_ns"], again["duration_ns"]);
    assert_eq!(first["threads"], again["threads"]);
    bench.file("not.txt", b"nonsense");
    replay(&["--schedule", "not.txt"]).fails(1, &["not.txt", "no schedule"]);
    replay(&["--schedule", "none.txt"]).fails(1, &["none.txt"]);
    bench.refrain(["replay", "--schedule", "s.txt", "a.refrain"]).fails(1, &["--clock virtual"]);
}

/// Kendo's promise: the order depends on the input alone. Its clocks count instructions, so that
/// two recordings, in which the threads met at other moments, are replayed in one order.
#[test]
fn kendo_gives_two_recordings_one_order() {
    let bench = recorded("case02");
    record(&bench, "case02", "b.refrain");
    let order = |trace: &str| -> Vec<String> {
        let replay = ["replay", "--clock", "virtual", "--scheduler", "kendo"];
        bench.refrain(replay.iter().chain(&["--save-schedule", "s.txt", trace])).succeeds();
        let schedule = std::fs::read_to_string(bench.path().join("s.txt")).expect("was written");
        // The moments differ: what is outside of the program takes as long as it took. So do the events'
        // numbers, and which accesses are decided about: whether one has an event depends on what other
        // threads have accessed. So the operations of locks are compared: thread, kind and object.
        let dumped = bench.refrain(["dump", trace]).text();
        let operation = |line: &str| {
            let words: Vec<&str> = line.split(' ').take(4).collect();
            let [thread, event, kind, object] = words[..] else { return None };
            let is_of_lock = kind.starts_with("mutex.");
            is_of_lock.then(|| (format!("{thread} {event}"), format!("{thread} {kind} {object}")))
        };
        let operations: BTreeMap<String, String> = dumped.lines().filter_map(operation).collect();
        let decided = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        schedule.lines().filter_map(|line| operations.get(&decided(line)).cloned()).collect()
    };
    let (a, b) = (order("a.refrain"), order("b.refrain"));
    assert!(a.len() > 1000, "{} decisions", a.len());
    let first = a.iter().zip(&b).position(|(a, b)| a != b);
    let shown = first.map(|at| (at, &a[at], &b[at]));
    assert!(a == b, "{} and {} decisions, the first that differ: {shown:?}", a.len(), b.len());
}

#[test]
fn costs_may_come_from_instructions() {
    let bench = recorded("case02");
    let replay = |cost: &str, scheduler: &str| {
        let replay = ["replay", "--json", "--clock", "virtual", "--cost", cost];
        json(&bench.refrain(replay.iter().chain(&["--scheduler", scheduler, "a.refrain"])))
    };
    for scheduler in ["elsc", "kendo", "mem-s"] {
        let modelled = replay("instructions", scheduler);
        assert_eq!(modelled["cost"], "instructions");
        assert_eq!(modelled, replay("instructions", scheduler));
        let recorded = replay("recorded", scheduler);
        assert_ne!(modelled["duration_ns"], recorded["duration_ns"], "{scheduler}");
        // Work is another amount of time, not another amount of waiting outside.
        let io = |report: &Value| -> Vec<Value> {
            let threads = report["threads"].as_array().expect("there are threads");
            threads.iter().map(|thread| thread["io_ns"].clone()).collect()
        };
        assert_eq!(io(&modelled), io(&recorded), "{scheduler}");
    }
    let wall = ["replay", "--cost", "instructions", "a.refrain"];
    bench.refrain(wall).fails(1, &["--cost", "--clock virtual"]);
    let fidelity = ["fidelity", "--json", "--clock", "virtual", "--cost", "instructions"];
    let report = json(&bench.refrain(fidelity.iter().chain(&["a.refrain"])));
    assert_eq!(report["cost"], "instructions");
}

/// The order of its locks does not change what this program does.
#[test]
fn a_program_of_commuting_sections_replays_under_every_scheduler() {
    let bench = recorded("ex_mutex");
    for scheduler in SCHEDULERS {
        for engine in ["tiered", "cranelift", "copy"] {
            let replay =
                ["replay", "--json", "--scheduler", scheduler, "--engine", engine, "a.refrain"];
            let report = json(&bench.refrain(replay));
            assert_eq!(report["scheduler"], scheduler);
            assert_eq!(report["divergence"], Value::Null, "{scheduler} on {engine}: {report}");
            assert_eq!(report["digests_equal"], report["digests_checked"]);
        }
    }
}

#[test]
fn repetitions_have_a_distribution() {
    let bench = recorded("ex_mutex");
    let report = json(&bench.refrain(["replay", "--json", "--repeat", "3", "a.refrain"]));
    let times = &report["times"];
    let part = |name: &str| times[name].as_u64().expect("is a time");
    assert_eq!(times["runs"], 3);
    assert!(part("min_ns") <= part("p50_ns") && part("p50_ns") <= part("max_ns"), "{times}");
    let text = bench.refrain(["replay", "--clock", "virtual", "--repeat", "2", "a.refrain"]);
    assert!(text.succeeds().text().contains("2 replays: mean"), "{text:?}");
}

#[test]
fn fidelity_compares_schedulers_and_draws_them() {
    let bench = recorded("ex_mutex");
    let report = json(&bench.refrain([
        "fidelity",
        "--json",
        "--repeat",
        "2",
        "--svg",
        "figure.svg",
        "a.refrain",
    ]));
    let rows = report["rows"].as_array().expect("there are rows");
    assert_eq!(rows.len(), 8, "four schedulers, two clocks: {report}");
    for row in rows {
        assert_eq!(row["failed"], 0, "{row}");
        assert_eq!(row["times"]["runs"], 2, "{row}");
        if row["clock"] == "virtual" && row["scheduler"] != "orig-s" {
            assert_eq!(row["times"]["stddev_ns"], 0, "{row}");
        }
    }
    let figure = std::fs::read_to_string(bench.path().join("figure.svg")).expect("was drawn");
    assert!(figure.starts_with("<svg") && figure.ends_with("</svg>\n"), "{figure}");
    for name in ["elsc", "kendo", "mem-s", "orig-s"] {
        assert_eq!(figure.matches(&format!(">{name}<")).count(), 2, "{name}: {figure}");
    }
}

#[test]
fn ab_compares_two_schedulers() {
    let bench = recorded("ex_mutex");
    let both = ["--scheduler", "elsc", "--scheduler", "mem-s"];
    let ab = ["ab", "--json", "--repeat", "2", "a.refrain"];
    let report = json(&bench.refrain(ab.iter().chain(&both)));
    let exact = &report["virtual_time"];
    let part = |name: &str| exact[name].as_i64().expect("is a time");
    assert_eq!(part("difference_ns"), part("b_ns") - part("a_ns"));
    assert_eq!(report["wall"]["difference"]["pairs"], 2);
    let same = ["ab", "--json", "--clock", "virtual", "a.refrain", "a.refrain"];
    let report = json(&bench.refrain(same));
    assert_eq!(report["virtual_time"]["difference_ns"], 0, "a trace is as fast as itself");
    assert_eq!(report["wall"], Value::Null);
    bench.refrain(["ab", "a.refrain"]).fails(1, &["nothing to compare"]);
    bench.refrain(["replay", "--cores", "4096", "a.refrain"]).fails(1, &["4096 cores"]);
}

#[test]
fn a_calibration_is_kept_and_used() {
    let bench = recorded("ex_mutex");
    let measured = json(&bench.refrain(["calibrate", "--json"]));
    assert!(measured["wake_ns"].as_u64().is_some_and(|ns| ns > 0), "{measured}");
    record(&bench, "ex_mutex", "b.refrain");
    // A trace says the same wherever it is replayed: what it has, it has since it was recorded.
    for (trace, latencies) in [("a.refrain", "typical"), ("b.refrain", "calibrated")] {
        let report = json(&bench.refrain(["replay", "--json", "--clock", "virtual", trace]));
        assert_eq!(report["latencies"], latencies);
    }
}

/// This program does nothing but wait: for a timer, and in the library until it is too late.
const WAITING: &str = r#"
#include <semaphore.h>
#include <time.h>
int main(void) {
    sem_t never;
    struct timespec span = {0, 30000000}, until;
    sem_init(&never, 0, 0);
    nanosleep(&span, 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += span.tv_nsec;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    return sem_timedwait(&never, &until) == 0;
}
"#;

/// No machine is too slow for this: a wait that is measured takes what it took, or longer.
#[test]
fn waiting_is_in_the_time_that_is_measured() {
    let bench = Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"));
    bench.file("waiting.c", WAITING.as_bytes());
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-pthread", "-o", "waiting", "waiting.c"]).current_dir(bench.path());
    Run::of(&mut compile).succeeds();
    bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./waiting"]).succeeds();
    for scheduler in ["elsc", "kendo"] {
        let replay = ["replay", "--json", "--engine", "copy", "--repeat", "2", "--scheduler"];
        let report = json(&bench.refrain(replay.iter().chain(&[scheduler, "a.refrain"])));
        let least = report["times"]["min_ns"].as_u64().expect("is a time");
        // The call that asks for the time comes before the wait.
        assert!(least >= 55_000_000, "{scheduler}: {report}");
    }
}

/// What this program prints is the order in which its threads got a lock.
const ORDER: &str = r#"
#include <pthread.h>
#include <stdio.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t start;
static char order[33];
static int next;
static void *append(void *name) {
    pthread_barrier_wait(&start);
    for (int i = 0; i < 16; i++) {
        pthread_mutex_lock(&lock);
        order[next++] = *(char *)name;
        pthread_mutex_unlock(&lock);
    }
    return 0;
}
int main(void) {
    pthread_t a, b;
    pthread_barrier_init(&start, 0, 2);
    pthread_create(&a, 0, append, "a");
    pthread_create(&b, 0, append, "b");
    pthread_join(a, 0);
    pthread_join(b, 0);
    puts(order);
}
"#;

#[test]
fn a_program_that_depends_on_its_order_is_found_out() {
    let bench = Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"));
    bench.file("order.c", ORDER.as_bytes());
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-g", "-pthread", "-o", "order", "order.c"]).current_dir(bench.path());
    Run::of(&mut compile).succeeds();
    bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./order"]).succeeds();
    bench.refrain(["replay", "a.refrain"]).succeeds();
    let replay = |seed: &str| {
        let arguments = ["replay", "--engine", "copy", "--scheduler", "random", "--seed", seed];
        bench.refrain(arguments.iter().chain(&["a.refrain"]))
    };
    let seeds = (0..20).map(|seed: u32| seed.to_string());
    let found = seeds.map(|seed| (replay(&seed), seed)).find(|(run, _)| run.status == 1);
    let (run, seed) = found.expect("one of so many orders is not the recorded one");
    let text = run.text();
    assert!(text.contains("under random the program runs differently from here"), "{text}");
    assert!(text.contains("depends on the order of the lock at 0x"), "{text}");
    let again = format!("--scheduler random --clock wall --seed {seed}");
    assert!(run.stderr.contains(&again), "{run:?}");
    let second = replay(&seed);
    let first_line = |text: &str| text.lines().take(3).collect::<Vec<_>>().join("\n");
    assert_eq!(first_line(&second.text()), first_line(&text), "the seed repeats it");
}

/// What the tables say is what the other commands say.
#[test]
fn the_tables_and_figures_of_perfplay() {
    let bench = recorded("fig04");
    record(&bench, "ex_mutex", "b.refrain");
    let report = json(&bench.refrain(["perfplay", "--json", "--repeat", "2", "a.refrain"]));
    let of = &report["recordings"][0];
    let locks = json(&bench.refrain(["locks", "--json", "--top", "1000", "a.refrain"]));
    let output = ["-o", "t.refrain", "a.refrain"];
    let transformed = json(&bench.refrain(["transform", "--json"].iter().chain(&output)));
    assert_eq!(of["acquisitions"], locks["analysed"]["acquisitions"]);
    let kinds = ["null_lock", "read_read", "disjoint_write"];
    for kind in kinds {
        assert_eq!(of["kinds"][kind], locks["analysed"]["pairs"][kind], "{kind}");
    }
    assert_eq!(of["groups"].as_array().map(Vec::len), locks["groups"].as_array().map(Vec::len));
    for time in ["free_ns", "static_ns", "dynamic_ns"] {
        assert_eq!(of["locksets"]["Ok"][time], transformed[time], "{time}");
    }
    assert_eq!(of["schedulers"]["Ok"].as_array().map(Vec::len), Some(4));
    for time in ["original_ns", "ulcp_free_ns"] {
        assert_eq!(of[time], locks[time], "{time}");
    }
    assert!(of["waiting"]["original_ns"].is_u64(), "{of}");

    let shown = ["perfplay", "--repeat", "2", "--html", "p.html", "a.refrain", "b.refrain"];
    let shown = bench.refrain(shown).succeeds().text();
    for exhibit in ["Table 1", "Table 2", "Table 3", "Figure 13", "Figure 14"] {
        assert!(shown.contains(&format!("{exhibit}: ")), "{exhibit} is missing in:\n{shown}");
    }
    // One recording of each program tells nothing of threads and input.
    assert!(!shown.contains("Figures 15"), "{shown}");
    let page = std::fs::read_to_string(bench.path().join("p.html")).expect("was written");
    assert!(page.contains("Figure 14") && page.contains("ex_mutex"), "{page}");
}
