//! Traces that are none, or not whole, or damaged: one clear line each, whatever reads them.

use refrain_tests::Bench;
use refrain_trace::OwnedTrace;

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

/// The commands that read a trace.
const READERS: [&str; 5] = ["replay", "info", "dump", "locks", "check"];

/// A small sound trace.
fn trace() -> Vec<u8> {
    let text = r#"
        argv "./a.out"
        program "/tmp/a.out"
        machine cpu="Example" cores=2 kernel="6.1"
        clock hz=1000000000 start=0 unix_ns=0
        entry rip=0x10001000 rsp=0xfffeffff0000 brk=0x1000000000
        map 0x10001000 len=0x1000 prot=5 content=blob0
        blob0 0f0b90c3
        blk0 0x10001000 0f0b
        t0 start
        t0 mutex.lock obj=0x1000 pc=0x10001001 at=+5+5
        t0 mutex.unlock obj=0x1000 pc=0x10001002 at=+5
        t0 exit
        end exited=0
    "#;
    let owned: OwnedTrace = text.parse().expect("the text is a trace");
    owned.to_bytes().expect("a vector takes it")
}

#[track_caller]
fn all_refuse(bench: &Bench, name: &str, words: &[&str]) {
    for reader in READERS {
        let run = bench.refrain([reader, name]);
        run.fails(1, &[&[name], words].concat());
        assert!(run.stdout.is_empty(), "{reader}: {run:?}");
    }
}

#[test]
fn files_that_are_no_traces() {
    let bench = bench();
    all_refuse(&bench, "missing.refrain", &["No such file"]);
    bench.file("empty.refrain", b"");
    all_refuse(&bench, "empty.refrain", &["empty"]);
    bench.file("foreign.refrain", b"PERFILE2 and more than twelve bytes of it");
    all_refuse(&bench, "foreign.refrain", &["not a refrain trace"]);
    std::fs::create_dir(bench.path().join("dir.refrain")).expect("can be made");
    all_refuse(&bench, "dir.refrain", &[]);
}

/// Threads that share a core for years are computed at once, and for longer not at all.
#[test]
fn absurd_times_are_no_hang_in_virtual_time() {
    let bench = bench();
    let thread = |id: u32, ticks: u64| {
        format!(
            "
            t{id} start
            t{id} mutex.lock obj=0x1000 pc=0x10001001 ticket={id} at=+{ticks}+5
            t{id} mutex.unlock obj=0x1000 pc=0x10001002 at=+5
            t{id} exit"
        )
    };
    let of = |ticks: u64| {
        let text = format!(
            "
            machine cpu=\"Example\" cores=1 kernel=\"6.1\"
            clock hz=1000000000 start=0 unix_ns=0
            entry rip=0x10001000 rsp=0xfffeffff0000 brk=0x1000000000
            map 0x10001000 len=0x1000 prot=5 content=blob0
            blob0 0f0b90c3
            blk0 0x10001000 0f0b
            {}{}
            end exited=0
            ",
            thread(0, ticks),
            thread(1, ticks)
        );
        let owned: OwnedTrace = text.parse().expect("the text is a trace");
        owned.to_bytes().expect("a vector takes it")
    };
    let virtually = ["replay", "--clock", "virtual", "a.refrain"];
    bench.file("a.refrain", &of(400_000_000_000_000_000));
    bench.refrain(virtually).succeeds();
    bench.file("a.refrain", &of(4_000_000_000_000_000_000));
    bench.refrain(virtually).fails(1, &["recorded over years"]);
}

#[test]
fn traces_of_another_version() {
    let bench = bench();
    let mut bytes = trace();
    bytes[8..12].copy_from_slice(&99u32.to_le_bytes());
    bench.file("future.refrain", &bytes);
    all_refuse(&bench, "future.refrain", &["format 99"]);
}

#[test]
fn traces_that_were_cut_off_at_once() {
    let bench = bench();
    bench.file("head.refrain", &trace()[..12]);
    all_refuse(&bench, "head.refrain", &["cut off", "record again"]);
}

#[test]
fn a_sound_trace_is_described() {
    let bench = bench();
    bench.file("a.refrain", &trace());
    assert!(bench.refrain(["info", "a.refrain"]).succeeds().text().contains("/tmp/a.out"));
    assert!(bench.refrain(["dump", "a.refrain"]).succeeds().text().contains("t0 e1 mutex.lock"));
    let code = bench.refrain(["dump", "--instructions", "a.refrain"]);
    assert!(code.succeeds().text().contains("ud2"));
    assert!(bench.refrain(["check", "a.refrain"]).succeeds().text().contains("sound"));
    let json = bench.refrain(["info", "--json", "a.refrain"]);
    let json: serde_json::Value = serde_json::from_slice(&json.succeeds().stdout).expect("is JSON");
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["events"], 4);
}

#[test]
fn every_cut_is_read_as_far_as_it_goes() {
    let bench = bench();
    let bytes = trace();
    for length in (12..bytes.len()).step_by(23) {
        bench.file("cut.refrain", &bytes[..length]);
        let check = bench.refrain(["check", "cut.refrain"]);
        assert_eq!(check.status, 1, "{length} bytes: {check:?}");
        let info = bench.refrain(["info", "cut.refrain"]);
        if info.status == 0 {
            assert!(info.text().contains("cut off") || info.text().contains("exited"), "{length}");
        } else {
            info.fails(1, &["cut.refrain"]);
        }
    }
}

#[test]
fn flipped_bits_are_noticed() {
    let bench = bench();
    let bytes = trace();
    for at in (0..bytes.len()).step_by(17) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        bench.file("flipped.refrain", &flipped);
        let check = bench.refrain(["check", "flipped.refrain"]);
        assert_eq!(check.status, 1, "byte {at}: {check:?}");
        assert!(!check.stderr.contains("panicked"), "byte {at}: {check:?}");
        for reader in ["info", "dump", "replay", "locks"] {
            let run = bench.refrain([reader, "flipped.refrain"]);
            assert!(!run.stderr.contains("panicked"), "byte {at}, {reader}: {run:?}");
            assert!(run.status <= 1, "byte {at}, {reader}: {run:?}");
        }
    }
}

#[test]
fn a_trace_without_its_end_is_repaired() {
    let bench = bench();
    let bytes = trace();
    let cut = &bytes[..bytes.len() - 20];
    bench.file("a.refrain", cut);
    assert_eq!(bench.refrain(["check", "a.refrain"]).status, 1);
    let repair = bench.refrain(["check", "--repair", "a.refrain"]);
    assert!(repair.succeeds().text().contains("repaired: 4 events kept"), "{repair:?}");
    assert!(!bench.path().join("a.refrain.old").exists(), "nothing was lost, in half an index");
    let check = bench.refrain(["check", "a.refrain"]);
    assert!(!check.succeeds().text().contains("index"), "the index is there again: {check:?}");
    bench.refrain(["info", "a.refrain"]).succeeds();
}

/// What is lost in the middle is kept elsewhere, and what another repair has left behind or kept
/// stays where it is.
#[test]
fn a_damaged_trace_is_kept_beside_its_repair() {
    let bench = bench();
    let mut bytes = trace();
    let events = bytes.windows(5).position(|w| w == b"\xc7rfc\x04").expect("it has events");
    bytes[events + 41] ^= 4;
    bench.file("a.refrain.repairing", b"stale");
    bench.file("a.refrain.old", b"older");
    bench.file("a.refrain", &bytes);
    let repair = bench.refrain(["check", "--repair", "a.refrain"]);
    assert!(repair.text().contains("the original is a.refrain.old.2"), "{repair:?}");
    let read = |name: &str| std::fs::read(bench.path().join(name)).expect("is there");
    assert_eq!(read("a.refrain.old.2"), bytes);
    assert_eq!(
        (read("a.refrain.old"), read("a.refrain.repairing")),
        ("older".into(), "stale".into())
    );
    // The main thread's events were in the part that is lost.
    let check = bench.refrain(["check", "a.refrain"]);
    assert_eq!(check.status, 1, "{check:?}");
    assert!(check.text().contains("cannot be replayed"), "{check:?}");
    bench.refrain(["replay", "a.refrain"]).fails(1, &["no event of the main thread"]);
}

/// The text of a small trace with these further lines: threads and how the run ended.
fn with(bench: &Bench, name: &str, lines: &str) {
    let text = std::str::from_utf8(SMALL).expect("is text").replace("LINES", lines);
    let owned: OwnedTrace = text.parse().expect("the text is a trace");
    bench.file(name, &owned.to_bytes().expect("a vector takes it"));
}

/// A program that does nothing but `exit_group(0)`, and what else the trace says.
const SMALL: &[u8] = br#"
    argv "./a.out"
    program "/tmp/a.out"
    machine cpu="Example" cores=2 kernel="6.1"
    clock hz=1000000000 start=0 unix_ns=0
    entry rip=0x10001000 rsp=0xfffeffff0000 brk=0x1000000000
    map 0x10001000 len=0x1000 prot=5 content=blob0
    blob0 b8ba00000031ff0f050f0b
    blk0 0x10001000 b8ba00000031ff0f05
    blk1 0x10001009 0f0b
    LINES
"#;

/// Every recorded event has to happen, or the replay is none.
#[test]
fn what_never_happens_is_missed() {
    let bench = bench();
    let replay = |engine: &str| bench.refrain(["replay", "--engine", engine, "a.refrain"]);
    for engine in ["copy", "cranelift"] {
        with(&bench, "a.refrain", "t0 start\nend exited=0");
        let whole = replay(engine);
        assert!(whole.succeeds().text().contains("replayed 1 thread"), "{whole:?}");
        for (lines, words) in [
            ("t0 start\nt1 start\nt1 exit\nt2 start\nend exited=0", "2 threads did not happen"),
            ("t0 start\nt1 start\nend exited=0", "the thread was never created"),
        ] {
            with(&bench, "a.refrain", lines);
            let replay = replay(engine);
            assert_eq!(replay.status, 1, "{lines}: {replay:?}");
            let text = replay.text();
            assert!(text.contains("recorded events did not happen"), "{lines}: {text}");
            assert!(text.contains(words), "{lines}: {text}");
            assert!(!text.starts_with("exited with status 0"), "{lines}: {text}");
        }
        with(&bench, "a.refrain", "t0 start");
        assert_eq!(replay(engine).status, 3);
    }
}

/// A function that this version knows nothing of.
#[test]
fn an_unknown_hook_is_refused_in_one_line() {
    let bench = bench();
    let module = "module \"/lib/libc.so\" bias=0 start=0x10001000 end=0x10002000 \
        hook=0x10001000:\"pthread_fly\"";
    with(&bench, "a.refrain", &format!("{module}\nt0 start\nend exited=0"));
    for reader in ["replay", "locks"] {
        bench.refrain([reader, "a.refrain"]).fails(1, &["0x10001000", "does not know"]);
    }
    let check = bench.refrain(["check", "a.refrain"]);
    assert_eq!(check.status, 1, "{check:?}");
    assert!(check.text().contains("does not know"), "{check:?}");
}

/// Nothing that can be analysed is not the same as nothing that was found.
#[test]
fn an_empty_trace_has_no_ranking() {
    let bench = bench();
    with(&bench, "a.refrain", "");
    for reader in ["replay", "locks"] {
        bench.refrain([reader, "a.refrain"]).fails(1, &["no event of the main thread"]);
    }
}
