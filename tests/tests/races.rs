//! Races are named by function and line, and only where there are any.

use refrain_corpus::{Group, PROGRAMS, Variant};
use refrain_tests::{Bench, Run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

fn compiled(name: &str, variant: Variant) -> PathBuf {
    let program = refrain_corpus::find(name).expect("is in the corpus");
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    refrain_corpus::compile(program, variant, cache).expect("can be compiled")
}

/// Records a program and replays it with a search for races.
fn raced(bench: &Bench, program: &Path, arguments: &[&str]) -> (Run, Value) {
    let mut record = bench.command(["record", "--force", "-o", "a.refrain", "--"]);
    Run::of(record.arg(program).args(arguments)).succeeds();
    let run = bench.refrain(["replay", "--races", "--json", "a.refrain"]);
    let report =
        serde_json::from_slice(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    (run, report)
}

/// Function and line of both sides of each pair outside of the C library.
fn pairs(report: &Value) -> Vec<[(String, u64); 2]> {
    let place = |side: &Value| {
        let frame = &side["place"]["frames"][0];
        (frame["function"].as_str().unwrap_or("?").to_owned(), frame["line"].as_u64().unwrap_or(0))
    };
    let pairs = report["races"]["pairs"].as_array().expect("a search was asked for");
    let own = pairs.iter().filter(|pair| pair["in_library"] == false);
    own.map(|pair| [place(&pair["first"]), place(&pair["second"])]).collect()
}

#[test]
fn the_racing_lines_are_named_whether_the_replay_diverged_or_not() {
    let bench = bench();
    let (run, report) = raced(&bench, &compiled("race", Variant::Plain), &["20000"]);
    assert_eq!(run.status, i32::from(!report["divergence"].is_null()), "{run:?}");
    let source = std::fs::read_to_string(refrain_corpus::find("race").expect("is there").path());
    let lines: BTreeSet<u64> = (1u64..)
        .zip(source.expect("the source is in the corpus").lines())
        .filter(|(_, line)| line.contains("/* races */"))
        .map(|(number, _)| number)
        .collect();
    assert_eq!(lines.len(), 2, "the load and the store");
    let pairs = pairs(&report);
    assert!(!pairs.is_empty(), "{run:?}");
    for (function, line) in pairs.iter().flatten() {
        assert!(function == "update" && lines.contains(line), "{function}:{line} in {run:?}");
    }
}

/// What a thread has done under a robust mutex until it died, the next owner finds, in a replay, too:
/// it waits for the end of the first thread, not only for that thread's lock.
#[test]
fn owners_that_die() {
    let bench = bench();
    bench.cc(include_str!("../guest/owners.c"), &["-g", "-O1", "-pthread", "-o", "owners"]);
    let (run, report) = raced(&bench, Path::new("./owners"), &[]);
    assert!(report["divergence"].is_null(), "{run:?}");
    assert!(pairs(&report).is_empty(), "{run:?}");
    for command in ["check", "locks"] {
        bench.refrain([command, "a.refrain"]).succeeds();
    }
    for scheduler in ["elsc", "mem-s"] {
        bench.refrain(["replay", "--scheduler", scheduler, "a.refrain"]).succeeds();
    }
}

/// A race whose sites no idiom watches: what one thread adds to a word of an array, another one reads while it adds
/// the array up, and by the sum decides whether it locks. The recorded writer sleeps until the reader has read; in a
/// replay nobody sleeps, and the reader has something to compute first.
const HIDDEN: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
enum { WORDS = 64 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __attribute__((noinline)) void change(long *words, long at) { words[at] += at; }
static __attribute__((noinline)) void enter(void) {
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}
static void *writer(void *words) {
    usleep(1000000);
    change(words, 7);
    return 0;
}
static void *reader(void *own) {
    long *words = own, sum = 0;
    for (volatile long i = 0; i < 50000000; i++) {}
    for (int i = 0; i < WORDS; i++) sum = sum * 3 + words[i];
    if (sum & 1)
        enter();
    return 0;
}
int main(void) {
    long *words = calloc(WORDS, sizeof *words);
    pthread_t a, b;
    pthread_create(&a, 0, writer, words);
    pthread_create(&b, 0, reader, words);
    pthread_join(a, 0);
    pthread_join(b, 0);
    puts("done");
    return 0;
}
"#;

/// What a diverged replay finds is watched from then on, and the next recording is exact.
#[test]
fn a_diverged_replay_learns() {
    learns("-Wl,--build-id", "build id ");
}

/// Go's linker and others give programs no build id.
#[test]
fn a_diverged_replay_learns_without_a_build_id() {
    learns("-Wl,--build-id=none", "build id layout-");
}

fn learns(link: &str, listed: &str) {
    let bench = bench();
    bench.cc(HIDDEN, &["-O1", "-g", "-pthread", link, "-o", "hidden"]);
    let record = || bench.refrain(["record", "--force", "-o", "a.refrain", "--", "./hidden"]);
    let replay = |more: &[&str]| {
        let arguments = ["replay", "--engine", "copy", "a.refrain"];
        bench.refrain(arguments.iter().chain(more))
    };
    // On a busy machine the writer may have been first all the same.
    let diverges = || {
        record().succeeds();
        replay(&["--no-learn"]).status != 0
    };
    assert!((0..5).any(|_| diverges()), "some idiom watches the race");
    assert!(bench.refrain(["sites", "list"]).text().contains("nothing was learned"));
    let diverged = replay(&[]);
    assert_eq!(diverged.status, 1, "{diverged:?}");
    assert!(diverged.text().contains("more will be watched: record again"), "{diverged:?}");
    let list = bench.refrain(["sites", "list"]).text();
    assert!(list.contains(listed) && list.contains("2 sites"), "the load and the store: {list}");
    for engine in ["copy", "cranelift"] {
        record().succeeds();
        bench.refrain(["replay", "--engine", engine, "a.refrain"]).succeeds();
    }
    let exported = bench.refrain(["sites", "export"]);
    bench.file("sites.json", &exported.succeeds().stdout);
    assert!(bench.refrain(["sites", "clear"]).succeeds().text().contains("forgot 2 sites"));
    let imported = bench.refrain(["sites", "import", "sites.json"]);
    assert!(imported.succeeds().text().contains("2 new; 2 sites in all"), "{imported:?}");
}

/// `run --attempts` records again until a recording can be analysed. On a busy machine the first one may do.
#[test]
fn a_run_is_repeated_until_it_is_exact() {
    let bench = bench();
    bench.cc(HIDDEN, &["-O1", "-g", "-pthread", "-o", "hidden"]);
    let run = bench.refrain(["run", "--attempts", "3", "-o", "a.refrain", "--", "./hidden"]);
    let said = |run: &Run| run.stderr.matches("running the program again").count();
    assert!(run.succeeds().stderr.matches("attempt ").count() == said(&run), "{run:?}");
    assert_eq!(run.text().matches("done\n").count(), 1 + said(&run), "{run:?}");
    assert!(!bench.path().join("a.refrain.old").exists(), "only the last trace stays");
    bench.refrain(["replay", "a.refrain"]).succeeds();
    // What is known by now is watched at once; the program's output is not among the results.
    let run = bench.refrain(["run", "--attempts", "3", "--json", "--", "./hidden"]);
    assert_eq!(said(&run), 0, "{run:?}");
    let report: Value = serde_json::from_slice(&run.succeeds().stdout).expect("is JSON");
    assert_eq!((report["report"].as_str(), run.stderr.contains("done\n")), (Some("locks"), true));
}

/// Each run of the program reads a file that is its input from where the first one did.
#[test]
fn a_repeated_run_has_the_same_input() {
    let bench = bench();
    bench.cc(HIDDEN, &["-O1", "-g", "-pthread", "-o", "hidden"]);
    let input = File::open(bench.file("input", b"first\nsecond\n")).expect("it is there");
    let script = "read line; echo $line; exec ./hidden";
    let mut run = bench.command(["run", "--attempts", "3", "--", "sh", "-c", script]);
    let run = Run::of(run.stdin(input));
    let runs = run.succeeds().text().matches("done\n").count();
    assert_eq!(run.text().matches("first\n").count(), runs, "{run:?}");
}

/// Without `--attempts`, a program runs once.
#[test]
fn a_run_is_not_repeated_unasked() {
    let bench = bench();
    bench.cc(HIDDEN, &["-O1", "-g", "-pthread", "-o", "hidden"]);
    let run = bench.refrain(["run", "--", "./hidden"]);
    assert_eq!(run.text().matches("done\n").count(), 1, "{run:?}");
    if run.status != 0 {
        assert_eq!(run.status, 125, "{run:?}");
        assert!(run.stderr.contains("run --attempts 3"), "{run:?}");
    }
}

/// A count that one thread updates atomically, and another one, later, does not: nothing holds the second
/// back in a replay, and the update at which the replay ends is one of the two that race.
#[test]
fn an_update_that_came_too_early_is_named() {
    let bench = bench();
    let source = r#"
        #include <pthread.h>
        #include <stdio.h>
        #include <unistd.h>
        struct cell { long pad[8]; volatile long value; } cell;
        static __attribute__((noinline)) void plainly(struct cell *cell) { cell->value++; }
        static __attribute__((noinline)) void atomically(struct cell *cell) {
            __atomic_fetch_add(&cell->value, 10, __ATOMIC_SEQ_CST);
        }
        static void compute(long rounds) {
            for (volatile long i = 0; i < rounds; i++) {}
        }
        static void *later(void *none) {
            usleep(200000);
            plainly(&cell);
            return none;
        }
        static void *sooner(void *none) {
            compute(10000000);
            atomically(&cell);
            compute(300000000);
            return none;
        }
        int main(void) {
            pthread_t a, b;
            pthread_create(&a, 0, later, 0);
            pthread_create(&b, 0, sooner, 0);
            pthread_join(a, 0);
            pthread_join(b, 0);
            printf("%ld\n", cell.value);
            return 0;
        }
    "#;
    bench.cc(source, &["-O1", "-g", "-pthread", "-o", "early"]);
    let record = || bench.refrain(["record", "--force", "-o", "a.refrain", "--", "./early"]);
    record().succeeds();
    let replay = bench.refrain(["replay", "--json", "--engine", "copy", "a.refrain"]);
    // A busy machine may have let the threads come in another order.
    if replay.status == 0 {
        return;
    }
    let report: Value = serde_json::from_slice(&replay.stdout).expect("a report");
    let named = |[first, second]: &[(String, u64); 2]| {
        let both = [first.0.as_str(), second.0.as_str()];
        both.contains(&"plainly") && both.contains(&"atomically")
    };
    assert!(pairs(&report).iter().any(named), "{replay:?}");
    record().succeeds();
    bench.refrain(["replay", "--engine", "copy", "a.refrain"]).succeeds();
}

/// Where no race is left to watch, the next recording orders every access.
#[test]
fn what_cannot_be_watched_is_ordered_with_everything_else() {
    let bench = bench();
    // Loads and stores of 16 bytes, which no recording watches.
    let source = r#"
        #include <emmintrin.h>
        #include <pthread.h>
        #include <stdio.h>
        static struct cell { long pad[8]; __m128i value; } *cell;
        static int stop;
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        static void *writer(void *none) {
            for (int i = 0; i < 9000000 && !__atomic_load_n(&stop, __ATOMIC_ACQUIRE); i++)
                *(volatile __m128i *)&cell->value = _mm_set1_epi32(i);
            return none;
        }
        static void *reader(void *none) {
            for (int i = 0; i < 20000; i++) {
                __m128i seen = *(volatile __m128i *)&cell->value;
                if (_mm_cvtsi128_si32(seen) & 64) {
                    pthread_mutex_lock(&lock);
                    pthread_mutex_unlock(&lock);
                }
            }
            __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
            return none;
        }
        int main(void) {
            static struct cell own;
            cell = &own;
            pthread_t a, b;
            pthread_create(&a, 0, writer, 0);
            pthread_create(&b, 0, reader, 0);
            pthread_join(a, 0);
            pthread_join(b, 0);
            puts("done");
            return 0;
        }
    "#;
    bench.cc(source, &["-O1", "-g", "-pthread", "-o", "vectors"]);
    let record = |more: &[&str]| {
        let arguments = ["record", "--force", "-o", "a.refrain"];
        bench.refrain(arguments.iter().chain(more).chain(&["--", "./vectors"]))
    };
    let tried = record(&["--order", "stride"]);
    if ["BMI2", "membarrier"].iter().any(|word| tried.stderr.contains(word)) {
        eprintln!("SKIPPED: {}", tried.stderr);
        return;
    }
    let says_so = |run: &Run| run.stderr.contains("the order of every access is recorded");
    for _ in 0..3 {
        let recorded = record(&[]);
        assert!(!says_so(&recorded), "{recorded:?}");
        let replay = bench.refrain(["replay", "a.refrain"]);
        // On one core the threads may have run one after the other.
        if replay.status == 0 {
            return;
        }
        let more = replay.text().contains("more will be watched");
        let every =
            replay.text().contains("next recording of this program will order every access");
        assert!(more != every, "{replay:?}");
        if every {
            break;
        }
    }
    let list = bench.refrain(["sites", "list"]).text();
    assert!(list.contains("program with build id") && list.contains("every access"), "{list}");
    for _ in 0..2 {
        assert!(says_so(record(&[]).succeeds()));
        bench.refrain(["replay", "a.refrain"]).succeeds();
    }
    assert!(!says_so(record(&["--order", "sync"]).succeeds()));
    assert!(!says_so(record(&["--no-learn"]).succeeds()));
    bench.refrain(["sites", "clear"]).succeeds();
    assert!(!says_so(record(&[]).succeeds()));
}

/// A program with one thread has nobody to be ordered against: no load and no locked instruction of
/// it is an event.
#[test]
fn one_thread_orders_nothing() {
    let bench = bench();
    let source = r#"
        #include <stdio.h>
        static volatile long counter;
        int main(void) {
            for (int i = 0; i < 1000; i++) __atomic_fetch_add(&counter, i, __ATOMIC_SEQ_CST);
            printf("%ld\n", counter);
            return 0;
        }
    "#;
    bench.cc(source, &["-O1", "-o", "alone"]);
    bench.refrain(["record", "-o", "a.refrain", "--", "./alone"]).succeeds();
    let events = bench.refrain(["dump", "a.refrain"]).succeeds().text();
    for kind in [" atomic ", " load ", " store "] {
        assert!(!events.contains(kind), "{events}");
    }
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

#[test]
fn programs_that_synchronize_do_not_race() {
    for name in ["ex_mutex", "ex_rwlock", "ex_cond", "ex_barrier", "ex_sem", "ex_spin", "ex_tls"] {
        let program = PROGRAMS.iter().find(|it| it.name == name && it.group == Group::Exerciser);
        let program = program.expect("is an exerciser");
        let bench = bench();
        let (run, report) = raced(&bench, &compiled(name, Variant::Plain), program.small);
        assert!(report["races"]["error"].is_null(), "{name}: {run:?}");
        assert!(pairs(&report).is_empty(), "{name}: {run:?}");
    }
}

/// What a replay keeps in order, the program need not: whatever happens between two writes that nothing
/// of the program's orders, they race, whichever comes first in this run. Each comes first in a run: the
/// other waits for a file, which orders nothing.
#[test]
fn what_only_the_kernel_and_the_library_order_races() {
    let bench = bench();
    let source = r#"
        #include <fcntl.h>
        #include <pthread.h>
        #include <stdatomic.h>
        #include <sched.h>
        #include <stdio.h>
        #include <sys/mman.h>
        #include <unistd.h>
        static volatile int x;
        static int null, ends[2], how, late;
        static atomic_int count, flag;
        static void between(int first) {
            char byte = 1;
            switch (how) {
            case 'w': write(null, &byte, 1); break;
            case 'm': munmap(mmap(0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096); break;
            case 'c': atomic_fetch_add_explicit(&count, 1, memory_order_relaxed); break;
            case 'p': printf("%d\n", first); break;
            case 'B': first ? write(ends[1], &byte, 1) : read(ends[0], &byte, 1); break;
            case 'F':
                if (first) atomic_store_explicit(&flag, 1, memory_order_release);
                else while (!atomic_load_explicit(&flag, memory_order_acquire)) {}
                break;
            }
        }
        static void await(void) { while (access("done", F_OK) != 0) sched_yield(); }
        static void done(void) { close(open("done", O_CREAT | O_WRONLY, 0600)); }
        static void *one(void *none) {
            if (late == 1) await();
            x = 1;
            between(1);
            if (late == 2) done();
            return none;
        }
        static void *other(void *none) {
            if (late == 2) await();
            between(0);
            x = 2;
            if (late == 1) done();
            return none;
        }
        int main(int argc, char **argv) {
            how = argv[1][0];
            late = argv[1][1] - '0';
            unlink("done");
            null = open("/dev/null", O_WRONLY);
            pthread_t a, b;
            if (pipe(ends) != 0) return 1;
            pthread_create(&a, 0, one, 0);
            pthread_create(&b, 0, other, 0);
            pthread_join(a, 0);
            pthread_join(b, 0);
            return 0;
        }
    "#;
    bench.cc(source, &["-O1", "-g", "-w", "-pthread", "-o", "between"]);
    let program = bench.path().join("between");
    let both = ["w1", "w2", "m1", "m2", "c1", "c2", "p1", "p2"].map(|how| (how, true));
    for (how, races) in both.into_iter().chain([("B2", false), ("F2", false)]) {
        let (_, report) = raced(&bench, &program, &[how]);
        let found = pairs(&report);
        assert_eq!(!found.is_empty(), races, "{how}: {report}");
        for pair in found {
            let functions: BTreeSet<&str> = pair.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(functions, ["one", "other"].into(), "{how}");
        }
    }
}

/// To free a block, to unmap memory, to destroy a lock and to close a descriptor are writes; what is
/// allocated anew has no history.
#[test]
fn what_ends_while_it_is_used_races() {
    let bench = bench();
    let source = r#"
        #include <fcntl.h>
        #include <pthread.h>
        #include <sched.h>
        #include <stdlib.h>
        #include <sys/mman.h>
        #include <unistd.h>
        static char *block, *larger, *pages;
        static volatile char seen;
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        static int null, how;
        static void again(void) {
            for (int i = 0; i < 50; i++) {
                volatile char *mine = malloc(2000);
                mine[i] = 1;
                free((void *)mine);
            }
        }
        static void *one(void *none) {
            switch (how) {
            case 'f': free(block); break;
            case 'r': larger = realloc(block, 100000); break;
            case 'm': seen = pages[9]; break;
            case 'd': pthread_mutex_lock(&lock); pthread_mutex_unlock(&lock); break;
            case 'c': write(null, "x", 1); break;
            case 'n': again(); break;
            }
            // A file orders nothing.
            close(open("done", O_CREAT | O_WRONLY, 0600));
            return none;
        }
        static void *other(void *none) {
            while (access("done", F_OK) != 0) sched_yield();
            switch (how) {
            case 'f': case 'r': seen = block[70]; break;
            case 'm': munmap(pages, 8192); break;
            case 'd': pthread_mutex_destroy(&lock); break;
            case 'c': close(null); break;
            case 'n': again(); break;
            }
            return none;
        }
        int main(int argc, char **argv) {
            how = argv[1][0];
            unlink("done");
            null = open("/dev/null", O_WRONLY);
            block = calloc(100, 1);
            pages = mmap(0, 8192, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            pthread_t a, b;
            pthread_create(&a, 0, one, 0);
            pthread_create(&b, 0, other, 0);
            pthread_join(a, 0);
            pthread_join(b, 0);
            return 0;
        }
    "#;
    bench.cc(source, &["-O1", "-g", "-w", "-pthread", "-o", "ends"]);
    let program = bench.path().join("ends");
    for (how, access) in [
        ("f", "frees"),
        ("r", "frees"),
        ("m", "unmaps"),
        ("d", "destroys (lock, condition variable or barrier)"),
        ("c", "closes (descriptor)"),
        ("n", ""),
    ] {
        let (_, report) = raced(&bench, &program, &[how]);
        let found = report["races"]["pairs"].as_array().expect("a search was asked for");
        let is_it =
            |pair: &Value| ["first", "second"].iter().any(|side| pair[side]["access"] == access);
        assert_eq!(found.iter().any(is_it), !access.is_empty(), "{how}: {report}");
        assert!(!access.is_empty() || pairs(&report).is_empty(), "{how}: {report}");
    }
}
