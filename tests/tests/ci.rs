//! The ranking in continuous integration: baselines, suppressions, and the exit status that they make.

use refrain_tests::{Bench, Run};
use serde_json::{Value, json};

/// Two threads only read under a lock.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdlib.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long *table;
static volatile long sink;
static void *look_up(void *arg) {
    for (int i = 0; i < 500; i++) {
        pthread_mutex_lock(&lock);
        long sum = 0;
        for (int j = 0; j < 64; j++) sum += table[j];
        pthread_mutex_unlock(&lock);
        sink = sum;
    }
    return arg;
}
int main(void) {
    pthread_t threads[2];
    table = calloc(64, sizeof *table);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, look_up, 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    return 0;
}
"#;

fn recorded() -> (Bench, Value) {
    let bench = Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"));
    bench.cc(PROGRAM, &["-g", "-O1", "-pthread", "-o", "program"]);
    bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]).succeeds();
    let ranking = bench.refrain(["locks", "--json", "a.refrain"]);
    bench.file("old.json", &ranking.succeeds().stdout);
    let report = serde_json::from_slice(&ranking.stdout).expect("is JSON");
    (bench, report)
}

#[test]
fn a_baseline_tells_what_is_worse() {
    let (bench, mut report) = recorded();
    let against = |file: &str| -> Run {
        bench.refrain(["locks", "--baseline", file, "--error-exitcode", "9", "a.refrain"])
    };
    let same = against("old.json");
    assert!(same.succeeds().text().contains("none new, worse or better"), "{}", same.text());
    // A gain below anything that a run can have.
    let original = report["original_ns"].as_i64().expect("is a number");
    for group in report["groups"].as_array_mut().expect("there are groups") {
        let ns = -8 * original;
        group["alone"] = json!({ "least_ns": ns, "likely_ns": ns, "most_ns": ns });
    }
    bench.file("low.json", report.to_string().as_bytes());
    let worse = against("low.json");
    // On a machine that is busy otherwise the model may be far off, and then no gain counts.
    let believed = report["ranked_by"] == "gain";
    assert_eq!(worse.status, if believed { 9 } else { 0 }, "{worse:?}");
    let (text, rows) = (worse.text(), "the range of each gain as a part of the run");
    assert_eq!(text.contains(rows) && text.contains("look_up source.c:9"), believed, "{text}");
    report["groups"] = json!([]);
    bench.file("none.json", report.to_string().as_bytes());
    let new = bench.refrain(["locks", "--json", "--baseline", "none.json", "a.refrain"]);
    let new: Value = serde_json::from_slice(&new.succeeds().stdout).expect("is JSON");
    assert!(!new["baseline"]["rows"].as_array().expect("there are rows").is_empty(), "{new}");
    bench.file("not.json", b"{}");
    against("not.json").fails(1, &["not.json", "refrain locks --json"]);
    against("missing.json").fails(1, &["missing.json"]);
}

#[test]
fn what_is_suppressed_is_not_ranked() {
    let (bench, report) = recorded();
    let groups = report["groups_found"].as_u64().expect("is a number");
    assert!(groups > 0, "{report}");
    bench.file("known.txt", b"# all of it\nfunction:* kind:*\nfunction:nobody");
    let with = ["locks", "--suppressions", "known.txt", "--error-exitcode", "9"];
    let run = bench.refrain(with.iter().chain(&["a.refrain"]));
    let text = run.succeeds().text();
    assert!(text.contains("suppressed by known.txt") && !text.contains("look_up"), "{text}");
    assert!(text.contains("nothing was suppressed by line 3"), "{text}");
    let run = bench.refrain(with.iter().chain(&["--json", "a.refrain"]));
    let left: Value = serde_json::from_slice(&run.succeeds().stdout).expect("is JSON");
    assert_eq!(left["suppressed"]["groups"].as_u64(), Some(groups), "{left}");
    bench.file("known.txt", b"lock:x");
    bench.refrain(with.iter().chain(&["a.refrain"])).fails(1, &["known.txt", "line 1", "lock:x"]);
}

#[test]
fn a_page_is_a_file_of_its_own() {
    let (bench, _) = recorded();
    bench.refrain(["locks", "--html", "page.html", "a.refrain"]).succeeds();
    let page = std::fs::read_to_string(bench.path().join("page.html")).expect("was written");
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"), "{page}");
    assert!(page.contains("look_up source.c:9") && page.contains("pthread_mutex_lock(&amp;lock);"));
    assert!(page.contains("<path class=") && !page.contains("http"), "{page}");
    bench.refrain(["locks", "--html", "none/page.html", "a.refrain"]).fails(1, &["none/page.html"]);
}
