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
    assert!(repair.succeeds().text().contains("a.refrain.old"));
    let kept = std::fs::read(bench.path().join("a.refrain.old")).expect("the original is kept");
    assert_eq!(kept, cut);
    let check = bench.refrain(["check", "a.refrain"]).text();
    assert!(!check.contains("index"), "the index is there again: {check}");
    bench.refrain(["info", "a.refrain"]).succeeds();
}
