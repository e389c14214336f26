//! Runs tests of the crates without unsafe code under Miri.
//!
//! Miri interprets Rust and finds undefined behaviour: here, in what these crates make of their
//! dependencies. It cannot run C (zstd, so no test that reads a trace's file form), translated code
//! or system calls (`vm`, `jit`), and what takes seconds natively takes hours.

use crate::root::{directory, must};
use std::process::Command;

/// A package, the targets that Miri can run, and parts of the names of tests that it cannot.
const RUNS: &[(&str, &[&str], &[&str])] = &[
    // Mutants are written as files. Snapshots need a kind of socket that Miri has not.
    ("refrain-trace", &["--lib", "--test", "text"], &["mutants", "the_small_trace"]),
    // Tens of thousands of timers.
    ("refrain-scheduler", &["--lib", "--test", "arrival", "--test", "orders"], &["timers"]),
    ("refrain-transform", &["--lib", "--test", "known", "--test", "made"], &[]),
    ("refrain-analysis", &["--lib", "--test", "cases", "--test", "detector"], &[]),
];

/// Runs them all, up to the first that fails.
pub(crate) fn run() -> anyhow::Result<()> {
    for (package, targets, skipped) in RUNS {
        let mut command = Command::new("cargo");
        // Miri needs a nightly compiler; the toolchain that runs this must not be inherited.
        command.args(["+nightly", "miri", "test", "--package", package]).args(*targets).arg("--");
        command.args(skipped.iter().flat_map(|name| ["--skip", name]));
        command.current_dir(directory()).env_remove("RUSTUP_TOOLCHAIN");
        // Tests read case files. Of generated inputs a few must do.
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "4");
        must(&mut command)?;
    }
    Ok(())
}
