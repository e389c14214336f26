//! `refrain races`: both sides with their stacks, what the memory is, and the forms of the report.

use refrain_tests::{Bench, Run};
use serde_json::Value;

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

/// A program that does one of several things; its two threads run `one` and `other`.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct item { long key, value; };
static struct item *shared;
static int table[16], how;
static char text[4096];
static int *local;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define APART __attribute__((noinline))
static APART struct item *make(void) { struct item *it = calloc(1, 48); return it; }
static APART void change(struct item *it) { it->value++; }
static APART void keep(struct item *it) { pthread_mutex_lock(&lock); change(it); pthread_mutex_unlock(&lock); }
static APART void copy(int to, int from) { memcpy(text + to, text + from, 900 + how); }
static APART void work(int first) {
    switch (how) {
    case 'h': first ? keep(shared) : change(shared); break;
    case 'g': table[5] += first; break;
    case 'l': *local += first; break;
    case 'm': copy(first ? 100 : 1200, 2400); copy(100, 3000); break;
    case 'p': for (int i = 0; i < 20; i++) printf("%d\n", first); break;
    case 's': { void *mine = malloc(20 + first); free(mine); break; }
    }
}
static void *one(void *none) { work(1); return none; }
static void *other(void *none) { work(2 - 2 * (how == 'h')); return none; }
static APART void run(void) {
    pthread_t a, b;
    pthread_create(&a, 0, one, 0);
    usleep(10000);
    pthread_create(&b, 0, other, 0);
    pthread_join(a, 0);
    pthread_join(b, 0);
}
int main(int argc, char **argv) {
    int mine = 0;
    how = argv[argc - 1][0];
    local = &mine;
    shared = make();
    run();
    return 0;
}
"#;

fn compiled() -> Bench {
    let bench = bench();
    bench.cc(PROGRAM, &["-O1", "-g", "-w", "-pthread", "-o", "races"]);
    bench
}

fn record(bench: &Bench, how: &str) {
    bench.refrain(["record", "--force", "-o", "a.refrain", "--", "./races", how]).succeeds();
}

fn report(bench: &Bench, more: &[&str]) -> Value {
    let run = bench.refrain(["races", "--json", "a.refrain"].iter().chain(more));
    serde_json::from_slice(&run.succeeds().stdout).expect("is JSON")
}

/// The functions of a stack, innermost first.
fn functions(stack: &Value) -> Vec<&str> {
    let places = stack.as_array().expect("is a stack").iter();
    let frames = places.flat_map(|place| place["frames"].as_array().expect("has frames"));
    frames.map(|frame| frame["function"].as_str().expect("is a name")).collect()
}

fn only(report: &Value) -> &Value {
    let races = report["races"].as_array().expect("has races");
    assert_eq!(races.len(), 1, "{report}");
    &races[0]
}

#[test]
fn a_block_of_the_heap() {
    let bench = compiled();
    record(&bench, "h");
    let report = report(&bench, &[]);
    let race = only(&report);
    let [first, second] = ["first", "second"].map(|side| &race[side]);
    assert_eq!(functions(&first["stack"]), ["change", "keep", "work", "one"], "{report}");
    assert_eq!(functions(&second["stack"]), ["change", "work", "other"], "{report}");
    assert_eq!((&first["access"], &first["size"]), (&"update".into(), &8.into()));
    let locks = first["locks"].as_array().expect("are listed");
    assert_eq!(locks.len(), 1, "{report}");
    assert_eq!(functions(&locks[0]["stack"]), ["keep", "work", "one"]);
    assert_eq!(second["locks"].as_array().map(Vec::len), Some(0), "{report}");
    let word = &race["word"];
    assert_eq!((&word["kind"], &word["size"]), (&"heap".into(), &48.into()), "{report}");
    assert_eq!(functions(&word["stack"]), ["make", "main"]);
    let threads = report["threads"].as_array().expect("are listed");
    assert_eq!(threads.len(), 2, "{report}");
    for thread in threads {
        let stack = functions(&thread["creator"]["stack"]);
        assert_eq!(
            (thread["creator"]["thread"].as_str(), &stack[1..]),
            (Some("t0"), &["run", "main"][..])
        );
    }
}

#[test]
fn variables_are_named() {
    let bench = compiled();
    record(&bench, "g");
    let found = report(&bench, &[]);
    let word = &only(&found)["word"];
    assert_eq!((&word["name"], &word["offset"]), (&"table".into(), &20.into()), "{found}");
    record(&bench, "l");
    let found = report(&bench, &[]);
    let word = &only(&found)["word"];
    // The stack is that of a third thread, which is in other functions by then.
    assert_eq!((&word["kind"], &word["thread"]), (&"local".into(), &"t0".into()), "{found}");
}

/// What the C library does with the program's memory is the program's; what it does with its own is not.
#[test]
fn whose_memory_it_is_decides() {
    let bench = compiled();
    record(&bench, "m");
    let found = report(&bench, &[]);
    let race = only(&found);
    assert_eq!(race["word"]["name"], "text", "{found}");
    assert!(functions(&race["first"]["stack"]).contains(&"copy"), "{found}");
    for how in ["p", "s"] {
        record(&bench, how);
        let found = report(&bench, &[]);
        assert_eq!(found["races"].as_array().map(Vec::len), Some(0), "{how}: {found}");
        let verdict = found["verdict"].as_str().expect("there is one");
        assert!(verdict.contains("under any timing that keeps its synchronization order"));
        assert!(found["incomplete"].is_null(), "{found}");
    }
}

#[test]
fn forms_of_the_report() {
    let bench = compiled();
    record(&bench, "g");
    let races = |more: &[&str]| bench.refrain(["races", "a.refrain"].iter().chain(more));
    let text = races(&[]).succeeds().text();
    for part in ["WARNING: data race", "Update of 4 bytes", "Location is global 'table+20' of 64"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(races(&["--error-exitcode", "66"]).status, 66);
    let sarif: Value =
        serde_json::from_slice(&races(&["--sarif"]).succeeds().stdout).expect("is JSON");
    let result = &sarif["runs"][0]["results"][0];
    let line = |at: &Value| at["physicalLocation"]["region"]["startLine"].as_u64();
    assert_eq!(line(&result["locations"][0]), line(&result["relatedLocations"][0]));
    assert!(line(&result["locations"][0]).is_some(), "{sarif}");

    bench.file("rules", b"# known\nrace:^table$\n");
    let quiet = races(&["--suppressions", "rules", "--error-exitcode", "66"]);
    assert!(quiet.succeeds().text().contains("1 race suppressed by `race:^table$`"), "{quiet:?}");
    bench.file("wrong", b"table\n");
    races(&["--suppressions", "wrong"]).fails(1, &["wrong", "line 1"]);
}

#[test]
fn a_run_is_searched_at_once() {
    let bench = compiled();
    let found: Run = bench.refrain(["run", "--races", "--", "./races", "g"]);
    assert!(found.succeeds().text().contains("Location is global 'table+20'"), "{found:?}");
}

/// The paper's detectors over the same steps: the exact ones agree, and the trace in RAPID's format says
/// the same.
#[test]
fn the_paper_s_detectors() {
    let bench = compiled();
    record(&bench, "g");
    let run = bench.refrain(["races", "--compare", "--json", "a.refrain"]);
    let report: Value = serde_json::from_slice(&run.stdout).expect("is JSON");
    let rows = report["rows"].as_array().expect("there are rows");
    let behind =
        |row: &&Value| ["velodrome", "singletrack"].iter().any(|it| row["detector"] == *it);
    assert_eq!(
        rows.iter().filter(behind).count(),
        20,
        "two, behind five filters, at two granularities"
    );
    let rows: Vec<&Value> = rows.iter().filter(|row| !behind(row)).collect();
    assert_eq!(rows.len(), 14, "seven, at two granularities");
    for row in rows.iter().filter(|row| row["granularity"] == "fine") {
        let expected = match row["detector"].as_str() {
            Some("empty") => 0,
            // Eraser knows nothing of threads that were created and joined.
            Some("eraser") => row["variables"].as_u64().filter(|&count| count >= 4).expect("all"),
            _ => 4,
        };
        assert_eq!(row["variables"], expected, "{row}");
    }
    let shown = bench.refrain(["races", "--compare", "a.refrain"]).text();
    assert!(shown.contains("write exclusive"), "{shown}");
    assert!(shown.contains("Slowdown with prefilters"), "{shown}");

    bench.refrain(["export", "--std", "a.refrain", "-o", "a.std"]);
    for (file, detector) in [("a.refrain", "fasttrack"), ("a.std", "goldilocks")] {
        let run = bench.refrain(["races", "--json", "--detector", detector, file]);
        let report: Value = serde_json::from_slice(&run.stdout).expect("is JSON");
        let row = &report["rows"][0];
        assert_eq!((&row["variables"], &row["places"]), (&4.into(), &1.into()), "{report}");
    }
    let coarse = ["races", "--detector", "fasttrack", "--granularity", "coarse", "a.refrain"];
    let text = bench.refrain(coarse).text();
    assert!(text.starts_with("fasttrack (coarse): 1 racy variable at "), "{text}");
    assert!(text.contains("work source.c:21"), "{text}");

    bench.file("b.std", b"T0|w(x)|1\nT1|w(x)|2\nT0|q(x)\n");
    bench.refrain(["races", "b.std"]).fails(1, &["line 3", "\"q\" is no operation"]);
}

/// A section that takes an inner lock twice, and what another thread does in between. No variable races.
#[test]
fn what_filters_leave_to_the_analyses() {
    let bench = compiled();
    let half = |step: &str| format!("T0|acq(m)|1\nT0|{step}(x)|2\nT0|rel(m)|3\n");
    let other = "T1|acq(m)|5\nT1|w(x)|6\nT1|rel(m)|7\n";
    let steps = ["T0|acq(o)|0\n", &half("r"), other, &half("w"), "T0|rel(o)|4\n"].concat();
    bench.file("half.std", steps.as_bytes());
    let text = |rest: &[&str]| {
        let run = bench.refrain(["races", "--detector"].iter().chain(rest).chain(&["half.std"]));
        run.succeeds().text()
    };
    assert!(text(&["fasttrack"]).starts_with("fasttrack (fine): 0 racy variables"));
    let found = text(&["velodrome"]);
    assert!(
        found.starts_with("velodrome (fine): critical sections are not serializable"),
        "{found}"
    );
    // The lock closes the cycle, whatever is known of the variable.
    assert_eq!(found, text(&["velodrome", "--prefilter", "thread-local"]));
    assert!(text(&["velodrome", "--prefilter", "fasttrack"]).contains("cycles at 1 place"));
    let found = text(&["singletrack"]);
    assert!(found.contains("1 variable ordered by locks alone"), "{found}");
    let found = text(&["singletrack", "--prefilter", "eraser"]);
    assert!(found.contains("0 variables"), "{found}");
    assert_eq!(bench.refrain(["races", "--prefilter", "eraser", "half.std"]).status, 2);
}

/// Threads that share out sections or iterations take turns in the library. That is no order of what
/// they do in them.
#[test]
fn work_that_is_shared_out_is_not_ordered_by_that() {
    const SECTIONS: &str = r#"
        #include <omp.h>
        #include <stdio.h>
        #include <unistd.h>
        static int value, who[2];
        int main(void) {
            #pragma omp parallel sections num_threads(2)
            {
                #pragma omp section
                { usleep(1000); who[0] = omp_get_thread_num(); value = 1; }
                #pragma omp section
                usleep(4000);
                #pragma omp section
                usleep(8000);
                #pragma omp section
                { who[1] = omp_get_thread_num(); value = 2; }
            }
            puts(who[0] == who[1] ? "one thread" : "two threads");
            return value > 2;
        }
    "#;
    let bench = bench();
    bench.cc(SECTIONS, &["-O1", "-g", "-fopenmp", "-o", "sections"]);
    let by_two = (0..20).find(|_| {
        let recorded = bench.refrain(["record", "--force", "-o", "a.refrain", "--", "./sections"]);
        recorded.text() == "two threads\n"
    });
    assert!(by_two.is_some(), "the second thread never came in time");
    let report = report(&bench, &[]);
    assert_eq!(only(&report)["word"]["name"], "value", "{report}");
}
