//! A few mutants of a recorded trace (`cargo xtask soak --mutants N` tries as many as one likes):
//! whatever is wrong with one, each command says so in time and without a panic, and no replay
//! calls exact what it compares.

use refrain_tests::Bench;
use refrain_trace::mutants::mutant;
use refrain_trace::{OwnedTrace, Trace};

/// Locks, a condition variable, output and a second thread.
const PROGRAM: &str = r#"
    #include <pthread.h>
    #include <stdio.h>
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t come = PTHREAD_COND_INITIALIZER;
    static int there, sum;
    static void *work(void *unused) {
        for (int i = 0; i < 20; i++) {
            pthread_mutex_lock(&lock);
            sum += i;
            pthread_mutex_unlock(&lock);
        }
        pthread_mutex_lock(&lock);
        there = 1;
        pthread_cond_signal(&come);
        pthread_mutex_unlock(&lock);
        return unused;
    }
    int main(void) {
        pthread_t thread;
        pthread_create(&thread, 0, work, 0);
        pthread_mutex_lock(&lock);
        while (!there) pthread_cond_wait(&come, &lock);
        printf("%d\n", sum);
        pthread_mutex_unlock(&lock);
        return pthread_join(thread, 0);
    }
"#;

/// Few, since each is replayed in a process of its own, twice.
const MUTANTS: u64 = 24;

#[test]
fn mutants_are_taken_for_what_they_are() {
    let bench = Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"));
    bench.cc(PROGRAM, &["-O1", "-pthread", "-o", "program"]);
    bench.refrain(["record", "-o", "a.refrain", "--", "./program"]).succeeds();
    let trace = Trace::open(&bench.path().join("a.refrain")).expect("was recorded");
    let trace = OwnedTrace::read(&trace).expect("was recorded");
    let mut compared = 0;
    for seed in 0..MUTANTS {
        let mutant = mutant(&trace, seed);
        let Ok(bytes) = mutant.trace.to_bytes() else { continue };
        bench.file("m.refrain", &bytes);
        for command in ["check", "replay", "locks"] {
            let run = bench.refrain(["--max-memory", "1024", command, "m.refrain"]);
            let what = format!("seed {seed}, {}, {command}: {run:?}", mutant.what);
            // 3: equal as far as a trace goes that was cut off.
            assert!([0, 1, 3].contains(&run.status), "{what}");
            assert!(!run.stderr.contains("panicked"), "{what}");
            assert!(!run.stderr.contains("this is a bug"), "{what}");
            if command == "replay" && mutant.is_compared {
                compared += 1;
                assert_ne!(run.status, 0, "called exact: {what}");
            }
        }
    }
    assert!(compared > 1, "{compared} mutants were of what is compared");
}
