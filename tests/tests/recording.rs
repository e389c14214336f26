//! Recording: what the user sees of a recorded program is what a native run shows.

use refrain_tests::{Bench, Run};
use std::collections::BTreeSet;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

/// A corpus program with its arguments for slow tools.
fn corpus(name: &str) -> (PathBuf, &'static [&'static str]) {
    let program = refrain_corpus::find(name).expect("the corpus has it");
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let variant = program.variants[0];
    let path = refrain_corpus::compile(program, variant, cache).expect("can be compiled");
    (path, program.small)
}

/// Records a program and returns how that looked, and the native run.
fn record(bench: &Bench, name: &str) -> (Run, Run) {
    let (path, arguments) = corpus(name);
    let native = Run::of(Command::new(&path).args(arguments).current_dir(bench.path()));
    let mut command = bench.command(["record", "-q", "-o", "a.refrain", "--"]);
    (Run::of(command.arg(path).args(arguments)), native)
}

#[test]
fn output_and_status_are_those_of_the_program() {
    let kinds = [
        "ex_mutex",
        "ex_cond",
        "ex_signal",
        "ex_alarm",
        "ex_jumps",
        "ex_avx",
        "ex_threads",
        "ex_late",
        "ex_detach",
        "ex_exit",
        "ex_process",
        "ex_stamps",
        "ex_versions",
        "ex_stderr",
        "ex_request",
        "ex_clock",
        "ex_polls_O0",
        "ex_polls_no_unwind",
        "ex_polls_stripped",
        "ex_stamps_O0",
        "ex_helpers",
        "ex_helpers_O0",
        "ex_clock_O0",
        "ex_alone",
        "ex_own",
        "ex_ring",
        "ex_ring_O0",
        "ex_plain",
        "ex_members_O0",
        "ex_lists",
        "ex_asked_O0",
        "fib",
    ];
    let names = ["exit7", "segv", "abrt"].into_iter().chain(kinds);
    for name in names {
        let bench = bench();
        let (recorded, native) = record(&bench, name);
        assert_eq!(recorded.status, native.status, "{name}: {recorded:?}");
        assert_eq!(recorded.stdout, native.stdout, "{name}");
        assert_eq!(recorded.stderr, native.stderr, "{name}");
        bench.refrain(["check", "a.refrain"]).succeeds();
        for engine in ["tiered", "cranelift", "copy"] {
            bench.refrain(["replay", "--engine", engine, "a.refrain"]).succeeds();
        }
    }
}

/// A program that generates code is replayed as copies, which look whether code is what it was;
/// one that may not is replayed by all engines.
#[test]
fn generated_code() {
    let bench = bench();
    let (path, arguments) = corpus("ex_jit");
    let mut command = bench.command(["record", "-o", "a.refrain", "--"]);
    let recorded = Run::of(command.arg(&path).args(arguments));
    assert!(recorded.succeeds().stderr.contains("generates code"), "{recorded:?}");
    let replayed = bench.refrain(["replay", "a.refrain"]);
    assert!(replayed.succeeds().text().contains("on the tiered engine"), "{replayed:?}");
    bench.refrain(["replay", "--engine", "copy", "a.refrain"]).succeeds();
    bench.refrain(["replay", "--engine", "cranelift", "a.refrain"]).fails(1, &["--engine copy"]);
    bench.refrain(["locks", "a.refrain"]).succeeds();
    bench.refrain(["races", "a.refrain"]).succeeds();

    let mut command = bench.command(["record", "--no-jit", "-o", "b.refrain", "--"]);
    let recorded = Run::of(command.arg(&path).args(arguments));
    assert!(recorded.stderr.contains("Permission denied"), "{recorded:?}");
    for engine in ["tiered", "cranelift", "copy"] {
        bench.refrain(["replay", "--engine", engine, "b.refrain"]).succeeds();
    }
}

/// A program that asks the processor finds no AVX on one without, and the trace says so.
#[test]
fn the_processor_is_what_was_asked_for() {
    let bench = bench();
    let (path, arguments) = corpus("ex_avx");
    for (level, has_avx) in [("v2", false), ("v3", true)] {
        if has_avx && !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
            continue;
        }
        let record = ["record", "-q", "--force", "--cpu", level, "-o", "a.refrain", "--"];
        let mut command = bench.command(record);
        Run::of(command.arg(&path).args(arguments)).succeeds();
        let info = bench.refrain(["info", "--json", "a.refrain"]);
        let says = String::from_utf8_lossy(&info.succeeds().stdout).contains("\"avx2\"");
        assert_eq!(says, has_avx, "{info:?}");
        bench.refrain(["replay", "--engine", "copy", "a.refrain"]).succeeds();
        bench.refrain(["replay", "a.refrain"]).succeeds();
    }
}

/// A guest has AVX-512 if that is asked for: each thread has its registers, and lanes that a mask leaves out
/// are not accessed.
#[test]
fn a_guest_with_avx_512() {
    if !["avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"].iter().all(|name| is_here(name))
    {
        eprintln!("skipped: this machine's processor has no AVX-512");
        return;
    }
    let bench = bench();
    let source = include_str!("../guest/avx512.c");
    let options = ["-g", "-O1", "-w", "-march=x86-64-v4", "-pthread"];
    bench.cc(source, &[&options[..], &["-o", "program"]].concat());
    bench.cc(source, &[&options[..], &["-DOF_LAST=0x6666", "-o", "racy"]].concat());
    let native = Run::of(Command::new("./program").current_dir(bench.path()));
    assert!(native.succeeds().stdout.starts_with(b"v4 1, state e7 0"), "{native:?}");
    for order in ["sync", "stride"] {
        for level in ["v4", "host"] {
            let record = ["record", "--order", order, "--cpu", level, "--force", "-o", "a.refrain"];
            let recorded = bench.refrain([&record[..], &["--", "./program"]].concat());
            assert_eq!(recorded.succeeds().text(), native.text());
            for engine in ["copy", "cranelift"] {
                bench.refrain(["replay", "--engine", engine, "a.refrain"]).succeeds();
            }
        }
    }
    let record = ["record", "-q", "--cpu", "v4", "--force", "-o", "a.refrain", "--"];
    bench.refrain([&record[..], &["./program"]].concat()).succeeds();
    let clean = bench.refrain(["races", "a.refrain"]);
    assert!(clean.succeeds().text().contains("no race in this run"), "{clean:?}");
    bench.refrain([&record[..], &["./racy"]].concat()).succeeds();
    let racy = bench.refrain(["races", "a.refrain"]).text();
    let line = source.lines().position(|line| line.ends_with("// stores")).expect("is marked") + 1;
    assert!(racy.contains(&format!("source.c:{line}")), "{racy}");
}

/// Whether this machine's processor has a feature, by its name in `/proc/cpuinfo`.
fn is_here(feature: &str) -> bool {
    let says = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = says.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == feature))
}

/// The next recording of a program takes what an earlier one has found in its functions from the cache. Where
/// the cache is damaged, it searches the functions again.
#[test]
fn what_was_found_in_functions_is_kept() {
    let bench = bench();
    let record = || record(&bench, "ex_threads").0.succeeds().status;
    record();
    let found = bench.path().join("cache/refrain/found");
    let files: Vec<_> = std::fs::read_dir(&found).expect("was made").flatten().collect();
    let [file] = &files[..] else { panic!("one file for one program: {files:?}") };
    let odd = b"no findings".to_vec();
    assert_ne!(std::fs::read(file.path()).unwrap(), odd);
    std::fs::write(file.path(), &odd).unwrap();
    record();
    assert_ne!(std::fs::read(file.path()).unwrap(), odd);
    record();
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

#[test]
fn the_default_trace_is_named_after_the_program() {
    let bench = bench();
    let summary = bench.refrain(["record", "--", "/bin/true"]);
    assert!(summary.succeeds().stderr.contains("true.refrain"), "{summary:?}");
    bench.refrain(["record", "--", "/bin/true"]).succeeds();
    assert!(bench.path().join("true.refrain").is_file());
    assert!(bench.path().join("true.refrain.old").is_file(), "the first one is kept");
}

/// What a recording has translated is kept, and its next recordings are no different for that.
#[test]
fn later_recordings_go_by_kept_code() {
    for name in ["exit7", "segv", "ex_cond", "ex_signal", "ex_jumps", "ex_process", "fib"] {
        let bench = bench();
        let translated = || {
            let files = std::fs::read_dir(bench.path().join("cache/refrain/translated")).unwrap();
            let files: Vec<_> = files.map(|file| file.unwrap()).collect();
            files.iter().map(|file| (file.file_name(), file.ino())).collect::<Vec<_>>()
        };
        let (first, native) = record(&bench, name);
        let kept = translated();
        assert_eq!(kept.len(), 1, "{name}: {kept:?}");
        for recorded in [first, record(&bench, name).0, record(&bench, name).0] {
            assert_eq!(recorded.status, native.status, "{name}: {recorded:?}");
            assert_eq!(recorded.stdout, native.stdout, "{name}");
        }
        assert_eq!(translated(), kept, "{name}: there is nothing new to keep");
        for engine in ["copy", "cranelift"] {
            bench.refrain(["replay", "--engine", engine, "a.refrain"]).succeeds();
        }
    }
}

#[test]
fn a_replay_needs_neither_the_program_nor_its_input() {
    let bench = bench();
    let (path, arguments) = corpus("ex_mutex");
    let program = bench.program("moved", &std::fs::read(path).expect("was just compiled"));
    let mut command = bench.command(["record", "-o", "a.refrain", "--"]);
    Run::of(command.arg(&program).args(arguments)).succeeds();
    std::fs::remove_file(program).expect("is ours");
    for engine in ["tiered", "cranelift", "copy"] {
        let replay = bench.refrain(["replay", "--engine", engine, "a.refrain"]);
        let last = replay.succeeds().text();
        let last = last.lines().last().expect("says what it checked").to_owned();
        assert!(last.starts_with("replayed "), "{engine}: {last}");
        assert!(last.contains("digests equal"), "{engine}: {last}");
    }
}

#[test]
fn echo_prints_what_was_recorded() {
    let bench = bench();
    let (recorded, _) = record(&bench, "ex_mutex");
    let replay = bench.refrain(["replay", "--echo", "a.refrain"]);
    assert!(replay.succeeds().stdout.starts_with(&recorded.stdout), "{replay:?}");
    let json = bench.refrain(["replay", "--echo", "--json", "a.refrain"]);
    let report: serde_json::Value =
        serde_json::from_slice(&json.succeeds().stdout).expect("standard output is JSON alone");
    assert_eq!(report["digests_equal"], report["digests_checked"]);
    assert!(report["divergence"].is_null());
}

#[test]
fn a_closed_output_is_the_programs_own_matter() {
    let bench = bench();
    let (reader, writer) = std::io::pipe().expect("there is a pipe");
    drop(reader);
    let mut command = bench.command(["record", "-q", "--", "/bin/echo", "hello"]);
    let recorded = Run::of(command.stdout(writer));
    // Killed by SIGPIPE or ended by the write's error, but not refrain's failure.
    assert!(recorded.status == 128 + 13 || recorded.status == 1, "{recorded:?}");
    bench.refrain(["replay", "echo.refrain"]).succeeds();
}

/// The dynamic linker reserves room for a library whose segments are aligned to more than a page,
/// and maps it there: low enough for its code to be compiled.
#[test]
fn a_library_may_be_aligned_to_more_than_a_page() {
    let bench = bench();
    let library = ["-shared", "-fPIC", "-Wl,-z,max-page-size=0x200000", "-o", "libseven.so"];
    bench.cc("int seven(void) { return 7; }", &library);
    let program = ["-o", "program", "-L.", "-lseven", "-Wl,-rpath,$ORIGIN"];
    bench.cc("int seven(void); int main(void) { return seven(); }", &program);
    let recorded = bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]);
    assert_eq!(recorded.status, 7, "{recorded:?}");
    for engine in ["tiered", "cranelift", "copy"] {
        bench.refrain(["replay", "--engine", engine, "a.refrain"]).succeeds();
    }
}

/// Programs look through their plugins: where one was that is unloaded, there is no other one, whose code
/// would be taken for generated.
#[test]
fn libraries_that_are_unloaded_are_no_generated_code() {
    let bench = bench();
    for number in ["3", "4"] {
        let library = format!("lib{number}.so");
        let number = format!("-DNUMBER={number}");
        let options = ["-O1", "-shared", "-fPIC", &number, "-o", &library];
        bench.cc("int number(void) { return NUMBER; }\n", &options);
    }
    let source = "#include <dlfcn.h>\n\
         int main(void) { int sum = 0;\n\
         for (int round = 0; round < 4; round++) {\n\
           void *library = dlopen(round % 2 ? \"./lib4.so\" : \"./lib3.so\", RTLD_NOW);\n\
           sum = 10 * sum + ((int (*)(void))dlsym(library, \"number\"))(); dlclose(library); }\n\
         return sum == 3434 ? 0 : 1; }\n";
    bench.cc(source, &["-O1", "-o", "program"]);
    bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]).succeeds();
    bench.refrain(["replay", "--engine", "cranelift", "a.refrain"]).succeeds();
    bench.refrain(["replay", "--engine", "copy", "a.refrain"]).succeeds();
}

/// What is recorded needs no note. (For what is not, see `guest.rs`.)
#[test]
fn memory_in_common_with_another_process_needs_no_note() {
    let bench = bench();
    let source = "#include <pthread.h>\n#include <sys/mman.h>\n#include <sys/wait.h>\n\
        #include <unistd.h>\n\
        static void *sleeps(void *arg) { pause(); return 0; }\n\
        int main(int argc, char **argv) {\n\
        int flags = MAP_ANONYMOUS | (argc > 1 ? MAP_SHARED : MAP_PRIVATE);\n\
        mmap(0, 4096, PROT_READ | PROT_WRITE, flags, -1, 0);\n\
        pthread_t thread;\n\
        if (argc > 2) pthread_create(&thread, 0, sleeps, 0);\n\
        if (fork() == 0) _exit(0);\n\
        return wait(0) < 0; }\n";
    bench.cc(source, &["-pthread", "-o", "program"]);
    let record = |arguments: &[&str]| {
        let words = ["record", "-o", "a.refrain", "--", "./program"];
        bench.refrain(words.iter().chain(arguments)).succeeds().stderr.clone()
    };
    for arguments in [&["shared", "threads"][..], &["shared"], &[]] {
        assert!(!record(arguments).contains("shares memory"), "{arguments:?}");
    }
}

/// That there is no room for another process is for the program to know.
#[test]
fn a_fork_may_fail() {
    let bench = bench();
    let source = "#include <errno.h>\n#include <sys/resource.h>\n#include <unistd.h>\n\
        int main(void) { struct rlimit none = { 0, 0 };\n\
        setrlimit(RLIMIT_NPROC, &none); setuid(65534); // The limit is not for root.\n\
        return fork() == -1 && errno == EAGAIN ? 4 : 5; }\n";
    bench.cc(source, &["-o", "program"]);
    let recorded = bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]);
    assert_eq!(recorded.status, 4, "{recorded:?}");
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// Instructions that the guest's processor lacks end the recording by their name.
#[test]
fn unknown_instructions_are_named() {
    let bench = bench();
    // AVX-512, which guests see only if that is asked for.
    let source = "int main(void) { __asm__(\"vpxord %zmm0, %zmm0, %zmm0\"); return 0; }";
    bench.cc(source, &["-o", "program"]);
    let recorded = bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]);
    recorded.fails(125, &["instruction vpxord", "use a build for that", "--cpu v4"]);
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// What each load read is known from the program: in its round, what the other thread has stored.
#[test]
fn linkages_of_loads() {
    let bench = bench();
    let source = include_str!("../guest/ping_pong.c");
    bench.cc(source, &["-g", "-O1", "-pthread", "-o", "program"]);
    bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]).succeeds();
    let line = |mark: &str| {
        let at = source.lines().position(|line| line.contains(mark)).expect("it is marked");
        format!("source.c:{}", at + 1)
    };
    for (loads, thread, stored) in [("answer", "t0 ", "asks"), ("main", "t1 ", "answers")] {
        let said = bench.refrain(["linkages", "--json", "--site", loads, "a.refrain"]);
        let said: serde_json::Value =
            serde_json::from_slice(&said.succeeds().stdout).expect("is JSON");
        let mut rounds = BTreeSet::new();
        for read in said["reads"].as_array().expect("loads are listed") {
            let text = |field: &str| read[field].as_str().unwrap_or_default();
            let value = read["value"].as_u64().expect("a value");
            // The loop's first look may find the round before, or nothing yet.
            if value > 0 {
                assert!(text("writer").starts_with(thread), "{read}");
                assert!(text("written_at").ends_with(&line(stored)), "{read}");
                rounds.insert((value, text("writer").to_owned()));
            }
        }
        assert_eq!(rounds.len(), 50, "each round another store");
    }
    let text = bench.refrain(["linkages", "a.refrain"]).text();
    assert!(text.contains("what another thread stored"), "{text}");
    let missing = bench.refrain(["linkages", "--thread", "t9", "a.refrain"]);
    assert!(missing.status == 1 && missing.stderr.contains("there is no t9"), "{missing:?}");
}

/// How long messages were stands in memory only when the call has returned.
#[test]
fn messages_that_are_sent_together_are_compared() {
    let bench = bench();
    let source = "#define _GNU_SOURCE\n#include <stdio.h>\n#include <sys/socket.h>\n\
         int main(void) { int s[2]; char b[9] = {0}; struct mmsghdr m[2] = {0};\n\
         struct iovec v[2] = {{\"one\", 3}, {\"four\", 4}};\n\
         for (int i = 0; i < 2; i++) { m[i].msg_hdr.msg_iov = &v[i]; m[i].msg_hdr.msg_iovlen = 1; }\n\
         socketpair(AF_UNIX, SOCK_DGRAM, 0, s);\n\
         int n = sendmmsg(s[0], m, 2, 0); recv(s[1], b, 8, 0); recv(s[1], b + 3, 5, 0);\n\
         printf(\"%d %u %u %s\\n\", n, m[0].msg_len, m[1].msg_len, b); return 0; }\n";
    bench.cc(source, &["-O1", "-o", "program"]);
    let recorded = bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]);
    assert_eq!(recorded.succeeds().stdout, b"2 3 4 onefour\n");
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// Static programs have no table of their functions, and plain loads of theirs are watched all the same.
#[test]
fn static_programs() {
    let bench = bench();
    let source = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static volatile int done;
static void *work(void *unused) { usleep(2000); done = 1; return unused; }
int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    while (!done) usleep(100);
    pthread_join(thread, NULL);
    printf("%p\n", (void *)&done);
    return 0;
}
"#;
    bench.cc(source, &["-O1", "-pthread", "-static", "-o", "program"]);
    let recorded = bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./program"]);
    let address = recorded.succeeds().stdout.clone();
    let address = String::from_utf8(address).expect("a number");
    let dump = bench.refrain(["dump", "a.refrain"]);
    let load = format!("load obj={} ", address.trim());
    assert!(dump.succeeds().text().contains(&load), "no {load} in\n{}", dump.text());
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// Whether a thread faults depends on when the handler of another one makes the page accessible.
#[test]
fn faults_have_places_among_changes_of_the_address_space() {
    let bench = bench();
    bench.cc(include_str!("../guest/protected.c"), &["-O2", "-pthread", "-o", "program"]);
    for round in 0..5 {
        let recorded =
            bench.refrain(["record", "-q", "--force", "-o", "a.refrain", "--", "./program"]);
        recorded.succeeds();
        bench.refrain(["check", "a.refrain"]).succeeds();
        for engine in ["tiered", "copy", "cranelift"] {
            let replayed = bench.refrain(["replay", "--engine", engine, "a.refrain"]);
            assert_eq!(replayed.status, 0, "recording {round}: {replayed:?}");
        }
    }
}

/// The recorder looks at words that another thread of the program takes away at that moment.
#[test]
fn memory_may_go_away_while_the_recorder_looks() {
    let bench = bench();
    bench.cc(include_str!("../guest/protected.c"), &["-O2", "-pthread", "-o", "program"]);
    let record = |order| {
        let options = ["record", "-q", "--force", "--order", order, "-o", "a.refrain"];
        let recorded = bench.refrain(options.iter().chain(&["--", "./program", "protect"]));
        assert_eq!(recorded.succeeds().stdout, b"12000\n", "{recorded:?}");
    };
    record("sync");
    record("stride");
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// A program that cannot have a child in namespaces of its own does without.
#[test]
fn namespaces_are_forbidden() {
    let bench = bench();
    bench.cc(include_str!("../guest/namespaces.c"), &["-o", "program"]);
    let recorded = bench.refrain(["record", "-o", "a.refrain", "--", "./program"]);
    assert_eq!(recorded.succeeds().stdout, b"7\n");
    assert!(recorded.stderr.contains("namespaces"), "{recorded:?}");
    bench.refrain(["replay", "a.refrain"]).succeeds();
}

/// Words that a thread pushes straight from memory can be watched.
#[test]
fn pushed_counters_are_learned() {
    let bench = bench();
    bench.cc(include_str!("../guest/printed.c"), &["-O2", "-pthread", "-o", "program"]);
    let record =
        || bench.refrain(["record", "-q", "--force", "-o", "a.refrain", "--", "./program"]);
    record().succeeds();
    if bench.refrain(["replay", "a.refrain"]).status != 0 {
        record().succeeds();
    }
    let info = bench.refrain(["info", "--json", "a.refrain"]);
    assert!(info.succeeds().text().contains("\"sync\""), "{info:?}");
    for engine in ["tiered", "copy", "cranelift"] {
        bench.refrain(["replay", "--engine", engine, "a.refrain"]).succeeds();
    }
}

/// A thread computes while the only other one waits.
const IDLE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static int ends[2];
static unsigned long state;

static __attribute__((noinline)) void put(unsigned long *where, unsigned long value) {
    *where = value;
}

static __attribute__((noinline)) void step(unsigned long by) {
    put(&state, state * 7 + by);
}

static void *wait_for_byte(void *unused) {
    char byte;
    return read(ends[0], &byte, 1) == 1 ? unused : &state;
}

int main(void) {
    pthread_t thread;
    if (pipe(ends) != 0 || pthread_create(&thread, NULL, wait_for_byte, NULL) != 0)
        return 1;
    for (unsigned long i = 0; i < 2000000; i++)
        step(i);
    if (write(ends[1], "x", 1) != 1)
        return 1;
    pthread_join(thread, NULL);
    printf("%lu\n", state);
    return 0;
}
"#;

/// Who is alone has hardly an event, however often it changes what it loads.
#[test]
fn a_thread_that_is_alone_has_few_events() {
    let bench = bench();
    bench.cc(IDLE, &["-O1", "-pthread", "-o", "idle"]);
    let native = Run::of(&mut Command::new(bench.path().join("idle")));
    let recorded = bench.refrain(["record", "-q", "-o", "a.refrain", "--", "./idle"]);
    assert_eq!(recorded.succeeds().stdout, native.stdout);
    let info = bench.refrain(["info", "--json", "a.refrain"]);
    let info: serde_json::Value = serde_json::from_slice(&info.succeeds().stdout).expect("is JSON");
    // Where another program has the processor, the thread that waits may come to that late.
    let events = info["events"].as_u64().expect("is a number");
    assert!(events < 500_000, "{events} events");
    for engine in ["tiered", "cranelift", "copy"] {
        bench.refrain(["replay", "--engine", engine, "a.refrain"]).succeeds();
    }
}
