//! What a program sends while other threads change it: a recording of a call that is known to do so keeps
//! the bytes, and a replay sends these, as a watched load reads what was recorded.

use refrain_tests::Bench;
use refrain_trace::payload::{Effect, SyscallRecord};
use refrain_trace::{OwnedEvent, OwnedTrace, Trace};
use std::path::PathBuf;

const SENDS: &str = r#"
#include <unistd.h>
int main(void) {
    return write(1, "hello\n", 6) != 6;
}
"#;

const TRACE: &str = "a.refrain";

fn bench() -> Bench {
    let bench = Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"));
    bench.cc(SENDS, &["-o", "sends"]);
    bench
}

fn path(bench: &Bench) -> PathBuf {
    bench.path().join(TRACE)
}

fn recorded(bench: &Bench) -> OwnedTrace {
    let recorded = bench.refrain(["record", "--force", "-o", TRACE, "--", "./sends"]);
    assert_eq!(recorded.succeeds().text(), "hello\n");
    OwnedTrace::read(&Trace::open(&path(bench)).expect("a trace")).expect("can be read")
}

/// The event of the one call that sends something.
fn sending(trace: &mut OwnedTrace) -> &mut OwnedEvent {
    let mut events = trace.threads[0].iter_mut();
    let sends = |it: &&mut OwnedEvent| {
        let effect = it.payload.as_ref().map(|record| &record.effect);
        matches!(effect, Some(Effect::Output { .. }))
    };
    events.find(sends).expect("it writes")
}

#[test]
fn bytes_that_are_known_to_race_are_kept() {
    let bench = bench();
    let mut trace = recorded(&bench);
    let pc = sending(&mut trace).event.pc;
    let mut modules = trace.modules.iter();
    let library = modules.find(|it| (it.start..it.end).contains(&pc)).expect("it is code");
    let (identity, site) = (library.identity(), pc - library.bias);
    let profile = format!(r#"{{"sites": {{"{identity}": [{site}]}}}}"#);
    bench.file("profile.json", profile.as_bytes());
    bench.refrain(["sites", "import", "profile.json"]).succeeds();
    let mut trace = recorded(&bench);
    let kept = &sending(&mut trace).payload;
    let Some(SyscallRecord { effect: Effect::Output { raced, .. }, .. }) = kept else {
        panic!("{kept:?}");
    };
    assert_eq!(raced, b"hello\n");
    for engine in ["tiered", "cranelift", "copy"] {
        bench.refrain(["replay", "--engine", engine, TRACE]).succeeds();
    }
}

/// The replayed program sends "hello"; the recorded one sent something else, and the trace has it, or
/// something that cannot be it.
#[test]
fn bytes_that_raced_are_taken_from_the_trace() {
    /// CRC-32 of "HELLO" and a line feed.
    const CRC: u32 = 0xfdac_d76e;
    let bench = bench();
    let trace = recorded(&bench);
    for (kept, status) in [("HELLO\n", 0), ("HELLo\n", 1), ("", 1)] {
        let mut other = trace.clone();
        let record = sending(&mut other).payload.as_mut().expect("it has one");
        record.effect = Effect::Output { fd: 1, len: 6, crc: CRC, raced: kept.into() };
        std::fs::write(path(&bench), other.to_bytes().expect("can be written")).expect("ours");
        for engine in ["tiered", "cranelift", "copy"] {
            let replay = bench.refrain(["replay", "--engine", engine, TRACE]);
            assert_eq!(replay.status, status, "{kept:?}: {replay:?}");
        }
    }
}
