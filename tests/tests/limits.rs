//! What the system refuses the recorder is not the program's trouble: memory, threads, and limits
//! that the program sets for itself.

use refrain_tests::{Bench, Run};
use std::collections::BTreeSet;

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

/// Threads that lock and allocate, one after the other, and how many there were.
const THREADS: &str = r#"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int sum;
static void *work(void *unused) {
    for (int i = 0; i < 300; i++) {
        pthread_mutex_lock(&mutex);
        sum++;
        pthread_mutex_unlock(&mutex);
    }
    free(malloc(100000));
    return unused;
}
int main(void) {
    pthread_t thread;
    int refused = 0;
    for (int i = 0; i < 6; i++) {
        int error = pthread_create(&thread, NULL, work, NULL);
        if (error == 0) pthread_join(thread, NULL);
        else if (error == EAGAIN) refused++;
        else return 1;
    }
    printf("%d refused, %d\n", refused, sum);
    return 5;
}
"#;

/// A recording with this library loaded into the recorder, which fails from there on.
fn record(bench: &Bench, at: u32) -> Run {
    let _ = std::fs::remove_file(bench.path().join("a.refrain"));
    let mut command = bench.command(["record", "-q", "-o", "a.refrain", "--", "./program"]);
    command.env("LD_PRELOAD", bench.path().join("shim.so")).env("FAIL_AT", at.to_string());
    Run::of(&mut command)
}

/// Whichever allocation fails, the program goes on, and the trace ends there.
#[test]
fn memory_may_run_out() {
    let bench = bench();
    bench.cc(include_str!("../guest/failing_memory.c"), &["-shared", "-fPIC", "-o", "shim.so"]);
    bench.cc(THREADS, &["-pthread", "-O1", "-o", "program"]);
    let (mut at, mut ended) = (1, 0);
    loop {
        let run = record(&bench, at);
        assert_eq!((run.status, run.text()), (5, "0 refused, 1800\n".into()), "{at}: {run:?}");
        bench.refrain(["check", "--repair", "a.refrain"]);
        let replay = bench.refrain(["replay", "--engine", "copy", "a.refrain"]);
        if run.stderr.is_empty() {
            replay.succeeds();
            break;
        }
        assert!(run.stderr.contains("went on unrecorded"), "{at}: {run:?}");
        assert!(run.stderr.contains("memory"), "{at}: {run:?}");
        if replay.status != 3 {
            replay.fails(1, &["no event of the main thread"]);
        }
        ended += 1;
        at += at.div_ceil(3);
    }
    assert!(ended > 10, "{ended} recordings ended early");
}

/// A thread that the recorder cannot start is one that the system refuses the program.
#[test]
fn threads_may_be_refused() {
    let bench = bench();
    bench.cc(include_str!("../guest/failing_threads.c"), &["-shared", "-fPIC", "-o", "shim.so"]);
    bench.cc(THREADS, &["-pthread", "-O1", "-o", "program"]);
    let mut outputs = BTreeSet::new();
    for at in 1.. {
        let run = record(&bench, at);
        if run.status != 5 {
            // One of the recorder's own threads, without which nothing begins.
            assert!(run.text().is_empty(), "{at}: {run:?}");
            run.fails(125, &["thread", "Resource temporarily unavailable"]);
            continue;
        }
        bench.refrain(["replay", "a.refrain"]).succeeds();
        outputs.insert(run.text());
        if run.text().starts_with('0') {
            break;
        }
    }
    let expected = ["0 refused, 1800\n", "1 refused, 1500\n"].map(String::from);
    assert_eq!(outputs, BTreeSet::from(expected));
}

/// The recorder takes gigabytes of the address space. The program's limit counts the program's.
#[test]
fn a_limit_of_the_address_space_is_the_programs_own() {
    let source = r#"
        #include <errno.h>
        #include <pthread.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <sys/resource.h>
        static void *work(void *unused) { return unused; }
        static void map(size_t size) {
            void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            printf("%zu: %s\n", size >> 20, p == MAP_FAILED ? strerror(errno) : "mapped");
            fflush(stdout);
        }
        int main(void) {
            struct rlimit limit = {(rlim_t)600 << 20, (rlim_t)800 << 20};
            struct rlimit inverted = {2, 1};
            printf("%d\n", setrlimit(RLIMIT_AS, &limit));
            printf("%d\n", setrlimit(RLIMIT_AS, &inverted));
            getrlimit(RLIMIT_AS, &limit);
            printf("%lu %lu\n", limit.rlim_cur >> 20, limit.rlim_max >> 20);
            map((size_t)1000 << 20);
            map((size_t)300 << 20);
            map((size_t)300 << 20);
            pthread_t thread;
            printf("%d\n", pthread_create(&thread, NULL, work, NULL));
            pthread_join(thread, NULL);
            fflush(stdout);
            return system("ulimit -v; ulimit -H -v");
        }
    "#;
    let bench = bench();
    bench.cc(source, &["-pthread", "-O1", "-o", "program"]);
    let native = Run::of(std::process::Command::new("./program").current_dir(bench.path()));
    assert!(native.succeeds().text().contains("300: Cannot allocate memory"), "{native:?}");
    let recorded = bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]);
    assert_eq!((recorded.status, recorded.text()), (native.status, native.text()));
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// To lock all memory of the process would fetch what the recorder has reserved, which is gigabytes.
#[test]
fn to_lock_all_memory_fetches_little() {
    let bench = bench();
    let source = "#include <stdio.h>\n#include <sys/mman.h>\n\
         int main(void) { long kilobytes = 0; char line[256];\n\
         if (mlockall(MCL_CURRENT | MCL_FUTURE)) return 77;\n\
         FILE *status = fopen(\"/proc/self/status\", \"r\");\n\
         while (fgets(line, sizeof line, status)) sscanf(line, \"VmRSS: %ld\", &kilobytes);\n\
         return munlockall() || kilobytes == 0 || kilobytes > 1000000; }\n";
    bench.cc(source, &["-O1", "-o", "program"]);
    let recorded = bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]);
    // Not every user may.
    if recorded.status != 77 {
        recorded.succeeds();
        bench.refrain(["replay", "a.refrain"]).succeeds();
    }
}
