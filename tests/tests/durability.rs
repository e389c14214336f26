//! Nothing that was recorded is lost: recorders that meet, are killed, or run out of space.

use refrain_tests::{Bench, Run};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

/// Threads that lock, sleep, print and wait, for some `argv[1]` rounds; the main thread waits in
/// `pthread_join` all the while.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int rounds, sum, ends[2];
static void *work(void *unused) {
    for (int i = 0; i < rounds; i++) {
        pthread_mutex_lock(&mutex);
        sum++;
        pthread_mutex_unlock(&mutex);
        usleep(500);
    }
    return unused;
}
static void *waits(void *unused) {
    char c;
    return read(ends[0], &c, 1) == 1 ? unused : NULL;
}
int main(int argc, char **argv) {
    pthread_t threads[3];
    rounds = atoi(argv[1]);
    if (pipe(ends) != 0) return 1;
    if (argc > 2 && fork() == 0) _exit(0);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, i < 2 ? work : waits, NULL);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    if (write(ends[1], "x", 1) != 1) return 1;
    pthread_join(threads[2], NULL);
    printf("%d\n", sum);
    return 5;
}
"#;

fn with_program() -> Bench {
    let bench = bench();
    bench.cc(PROGRAM, &["-pthread", "-O1", "-o", "program"]);
    std::fs::create_dir(bench.path().join("traces")).expect("is not there yet");
    bench
}

/// What is in the directory for the traces.
fn traces(bench: &Bench) -> BTreeSet<String> {
    let directory = std::fs::read_dir(bench.path().join("traces")).expect("is there");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.expect("can be read").file_name();
        format!("traces/{}", name.to_string_lossy())
    };
    directory.map(name).collect()
}

fn start(bench: &Bench, arguments: &[&str]) -> Child {
    start_in("sync", bench, arguments)
}

fn start_in(order: &str, bench: &Bench, arguments: &[&str]) -> Child {
    let words = ["record", "-q", "--order", order, "-o", "traces/a.refrain", "--", "./program"];
    let mut command = bench.command(words);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("can be started")
}

/// The report of a replay, and its status.
fn replay(bench: &Bench, trace: &str) -> (i32, serde_json::Value) {
    let run = bench.refrain(["replay", "--engine", "copy", "--json", trace]);
    let report = serde_json::from_slice(&run.stdout).unwrap_or_else(|_| panic!("{trace}: {run:?}"));
    (run.status, report)
}

#[test]
fn recordings_in_one_directory_get_different_names() {
    for (together, times) in [(2, 3), (8, 1)] {
        let bench = with_program();
        for _ in 0..times {
            let all: Vec<Child> = (0..together).map(|_| start(&bench, &["20"])).collect();
            for mut child in all {
                assert_eq!(child.wait().expect("ends").code(), Some(5));
            }
        }
        let found = traces(&bench);
        assert_eq!(found.len(), together * times, "{found:?}");
        assert!(found.contains("traces/a.refrain"), "{found:?}");
        for trace in found {
            bench.refrain(["check", &trace]).succeeds();
            let (status, report) = replay(&bench, &trace);
            assert_eq!((status, &report["events"]), (0, &report["events_recorded"]), "{trace}");
        }
    }
}

#[test]
fn a_second_recording_says_where_it_is() {
    let bench = with_program();
    let mut first = start(&bench, &["1000000"]);
    while traces(&bench).is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let command = ["record", "-q", "-o", "traces/a.refrain", "--", "./program", "1"];
    let second = bench.refrain(command);
    assert_eq!(second.status, 5, "{second:?}");
    assert!(second.stderr.contains("traces/a.2.refrain"), "{second:?}");
    bench
        .refrain(["check", "--repair", "traces/a.refrain"])
        .fails(1, &["is being recorded", "traces/a.refrain"]);
    first.kill().expect("is still running");
    first.wait().expect("has ended");
    bench.refrain(["replay", "traces/a.2.refrain"]).succeeds();
}

/// Whatever the moment: a trace is there or is not, it can be read, replayed as far as it goes, and
/// repaired, and nothing else is left.
#[test]
fn a_recorder_may_be_killed_at_any_moment() {
    let bench = with_program();
    let (mut replayed, mut events, mut recorded) = (0, 0, 0);
    for round in 0..50u64 {
        let arguments: &[&str] = if round % 2 == 1 { &["1000000", "fork"] } else { &["1000000"] };
        let order = if round % 5 == 4 { "stride" } else { "sync" };
        let mut child = start_in(order, &bench, arguments);
        std::thread::sleep(Duration::from_millis(round * round / 4));
        child.kill().expect("is still running");
        child.wait().expect("has ended");
        let found = traces(&bench);
        for trace in &found {
            if let Some((happened, all)) = killed(&bench, trace, round) {
                (replayed, events, recorded) = (replayed + 1, events + happened, recorded + all);
            }
            std::fs::remove_file(bench.path().join(trace)).expect("is ours");
        }
        assert!(found.len() <= 1, "{found:?}");
    }
    assert!(replayed >= 16, "{replayed} of 50 traces held anything");
    // What cannot happen is what comes after the writer's last visits. How long that was ago is up
    // to the machine's other work, so that a single trace says nothing.
    assert!(events * 2 + 5000 >= recorded, "{events} of {recorded}");
}

/// Checks and replays the trace that a killed recorder left. Returns how many events the replay
/// performed and how many the trace holds; `None` if the recorder left nothing to replay.
fn killed(bench: &Bench, trace: &str, round: u64) -> Option<(u64, u64)> {
    let check = bench.refrain(["check", trace]);
    assert_eq!(check.status, 1, "round {round}: {check:?}");
    if check.text().contains("of no use") {
        let replay = bench.refrain(["replay", trace]);
        replay.fails(1, &[trace, "no event of the main thread"]);
        return None;
    }
    let (status, before) = replay(bench, trace);
    assert_eq!(status, 3, "round {round}: {before}");
    let number = |name: &str| before[name].as_u64().expect("is a number");
    assert!(number("events") > 0 && number("digests_equal") == number("digests_checked"));
    let repair = bench.refrain(["check", "--repair", trace]);
    assert!(repair.succeeds().text().contains("repaired"), "{repair:?}");
    bench.refrain(["check", trace]).succeeds();
    let (status, after) = replay(bench, trace);
    assert_eq!((status, &after["events"]), (3, &before["events"]), "round {round}");
    Some((number("events"), number("events_recorded")))
}

/// A child process that outlives the recorder keeps neither the trace nor its lock.
#[test]
fn a_child_that_goes_on_does_not_keep_the_trace() {
    let bench = bench();
    let source = r#"
        #include <unistd.h>
        int main(void) {
            char c;
            int child = fork();
            write(1, "!", 1);
            if (child == 0) return (int)read(0, &c, 1);
            for (;;) pause();
        }
    "#;
    bench.cc(source, &["-O1", "-o", "forks"]);
    let mut command = bench.command(["record", "-q", "-o", "a.refrain", "--", "./forks"]);
    let mut recorder =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("can be started");
    // The child reads its input, which is open as long as this is.
    let input = recorder.stdin.take().expect("is piped");
    let mut output = recorder.stdout.take().expect("is piped");
    output.read_exact(&mut [0; 2]).expect("both say when they are there");
    recorder.kill().expect("is still running");
    recorder.wait().expect("has ended");
    bench.refrain(["check", "--repair", "a.refrain"]);
    let check = bench.refrain(["check", "a.refrain"]);
    assert!(!check.stderr.contains("being recorded"), "{check:?}");
    let again = bench.refrain(["record", "-q", "-o", "a.refrain", "--", "/bin/true"]);
    assert!(again.succeeds().stderr.is_empty(), "the name is free: {again:?}");
    drop(input);
}

/// The main thread's first events, and the call in which another thread waits, are in the file
/// although neither thread does anything more.
#[test]
fn threads_that_wait_are_written() {
    let bench = with_program();
    let mut child = start(&bench, &["1000000"]);
    let trace = "traces/a.refrain";
    let waiting = || {
        let dump = bench.refrain(["dump", trace]).text();
        ["t0 e0 start", "t3 e0 start"].iter().all(|line| dump.contains(line))
            && dump.lines().any(|line| line.starts_with("t3 ") && line.contains("unfinished"))
            && dump.lines().filter(|line| line.starts_with("t1 ")).count() > 50
    };
    while !waiting() {
        assert!(child.try_wait().expect("can be asked").is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("is still running");
    child.wait().expect("has ended");
    let (status, report) = replay(&bench, trace);
    assert_eq!(status, 3, "{report}");
    assert!(report["events"].as_u64() > Some(100), "{report}");
    assert_eq!(report["threads"], 4, "{report}");
}

/// A limit on the size of files, whatever it is: the program goes on, and there is a whole trace.
#[test]
fn the_size_of_files_may_be_limited() {
    let bench = with_program();
    let record = ["record", "-q", "-o", "traces/a.refrain", "--", "./program", "300"];
    assert_eq!(bench.refrain(record).status, 5);
    let trace = std::fs::metadata(bench.path().join("traces/a.refrain")).expect("is there");
    let whole = trace.len() / 512;
    let mut lost = 0;
    for blocks in (0..8).map(|n| 1 + n * whole / 8).chain([1 << 20]) {
        let _ = std::fs::remove_file(bench.path().join("traces/a.refrain"));
        let line = format!(
            "ulimit -f {blocks}; exec \"$0\" record -q -o traces/a.refrain \"$@\" -- ./program 300"
        );
        let run = |flags: &[&str]| {
            let refrain = env!("CARGO_BIN_EXE_refrain-under-test");
            let mut command = Command::new("sh");
            command.args(["-c", &line, refrain]).args(flags).current_dir(bench.path());
            Run::of(&mut command)
        };
        let recorded = run(&[]);
        if recorded.status == 125 {
            // Not even the initial memory fits: nothing was started, and nothing is left.
            recorded.fails(125, &["cannot write the trace"]);
            assert_eq!(traces(&bench), BTreeSet::new());
            continue;
        }
        assert_eq!((recorded.status, recorded.text()), (5, "600\n".into()), "{recorded:?}");
        let whole = recorded.stderr.is_empty();
        failed(&bench, whole, &format!("{blocks} blocks"));
        if !whole {
            lost += 1;
            assert!(recorded.stderr.contains("went on unrecorded"), "{recorded:?}");
            std::fs::remove_file(bench.path().join("traces/a.refrain")).expect("is ours");
            run(&["--strict"]).fails(125, &["cannot write the trace"]);
        }
    }
    assert!(lost > 0, "no limit was met in the middle");
}

/// Fails the writes of the trace from the `FAIL_AT`th on, in one of several ways.
const SHIM: &str = include_str!("../guest/failing_writes.c");

/// Every write of a small recording fails once, in each way.
#[test]
fn every_write_may_fail() {
    let bench = with_program();
    bench.cc(SHIM, &["-shared", "-fPIC", "-o", "shim.so"]);
    for how in ["full", "broken", "short", "gone"] {
        let (mut lost, mut refused) = (0, 0);
        let step = if how == "gone" { 5 } else { 1 };
        for at in (1..).step_by(step) {
            let mut command =
                bench.command(["record", "-q", "-o", "traces/a.refrain", "--", "./program", "10"]);
            command.env("LD_PRELOAD", bench.path().join("shim.so"));
            let run = Run::of(command.env("FAIL_AT", at.to_string()).env("FAIL_HOW", how));
            if run.status == 125 {
                run.fails(125, &["cannot write the trace"]);
                assert_eq!(traces(&bench), BTreeSet::new(), "{how} {at}");
                refused += 1;
                continue;
            }
            assert_eq!((run.status, run.text()), (5, "20\n".into()), "{how} {at}: {run:?}");
            let found = traces(&bench);
            assert_eq!(found.len(), 1, "{how} {at}: {found:?}");
            let whole = run.stderr.is_empty();
            failed(&bench, whole, &format!("{how} {at}"));
            std::fs::remove_file(bench.path().join("traces/a.refrain")).expect("is ours");
            if whole {
                break;
            }
            lost += 1;
        }
        assert!(lost > 2 && refused > 1, "{how}: {lost} in the middle, {refused} at the start");
    }
}

/// Looks at a trace of which a write has failed, if it has.
fn failed(bench: &Bench, whole: bool, when: &str) {
    let trace = "traces/a.refrain";
    let check = bench.refrain(["check", trace]);
    assert!(check.status == 0 || !whole, "{when}: {check:?}");
    if check.text().contains("of no use") {
        return bench.refrain(["replay", trace]).fails(1, &["no event of the main thread"]);
    }
    let (status, report) = replay(bench, trace);
    // Where the file cannot even be cut, the end may be there whose writing has failed.
    let ended = when.starts_with("gone") && report["truncated"] == false;
    let wanted = if whole || ended { 0 } else { 3 };
    assert_eq!(status, wanted, "{when}: {report}");
    bench.refrain(["check", "--repair", trace]).succeeds();
    bench.refrain(["check", trace]).succeeds();
    assert_eq!(replay(bench, trace).0, wanted, "{when}");
    assert!(!Path::new(&bench.path().join("traces/a.refrain.old")).exists(), "{when}");
}

/// One who records a recorder is told so, whichever way.
#[test]
fn a_recorder_cannot_be_recorded() {
    let bench = bench();
    let refrain = env!("CARGO_BIN_EXE_refrain-under-test");
    let words = ["record", "--", refrain, "record", "--", "/bin/true"];
    bench.refrain(words).fails(126, &["cannot record itself"]);
    let copy = bench.program("copy", &std::fs::read(refrain).expect("can be read"));
    let copy = copy.to_str().expect("a plain name");
    let words = ["record", "-q", "--", copy, "record", "-q", "--", "/bin/true"];
    bench.refrain(words).fails(125, &["running under refrain already"]);
}
