//! Whole replays of mutants whose checksums are right, by the command that REFRAIN names, of the
//! trace that SEED names. `cargo test` tries some in tests/tests/mutants.rs, and `cargo xtask soak
//! --mutants N` as many as one likes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refrain_trace::{OwnedTrace, Trace};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

fuzz_target!(|data: &[u8]| {
    static SEED: OnceLock<OwnedTrace> = OnceLock::new();
    let seed = SEED.get_or_init(|| {
        let path = std::env::var_os("SEED").expect("SEED names a recorded trace");
        let trace = Trace::open(Path::new(&path)).expect("SEED is a trace");
        OwnedTrace::read(&trace).expect("SEED is a whole trace")
    });
    let Some(bytes) = refrain_trace::fuzzing::mutant(seed, data) else { return };
    let path = std::env::temp_dir().join(format!("mutant-{}.refrain", std::process::id()));
    std::fs::write(&path, bytes).expect("there is room");
    let refrain = std::env::var_os("REFRAIN").expect("REFRAIN names the command");
    let mut command = Command::new(refrain);
    let run = command.args(["--max-memory", "1024", "replay"]).arg(&path).output();
    let run = run.expect("REFRAIN can be run");
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(matches!(run.status.code(), Some(0 | 1 | 3)), "{}: {errors}", run.status);
    assert!(!errors.contains("panicked") && !errors.contains("this is a bug"), "{errors}");
});
