//! Runs the fuzz targets of `fuzz/` with cargo-fuzz.

use crate::root::{cache, directory, must, release_refrain};
use anyhow::{Context, bail};
use std::process::Command;

/// Runs each target for so long. A crash is left in `fuzz/artifacts` and fails the run.
pub(crate) fn run(seconds: u64) -> anyhow::Result<()> {
    let fuzz = directory().join("fuzz");
    let fuzz_command = || {
        let mut command = Command::new("cargo");
        // libFuzzer's instrumentation needs a nightly compiler; the toolchain that runs this
        // command must not be inherited.
        command.args(["+nightly", "fuzz"]).current_dir(directory()).env_remove("RUSTUP_TOOLCHAIN");
        command
    };
    let list = fuzz_command()
        .args(["list", "--fuzz-dir"])
        .arg(&fuzz)
        .output()
        .context("cannot run cargo")?;
    if !list.status.success() {
        bail!(
            "cannot list the fuzz targets; they need: rustup toolchain install nightly; cargo \
             install cargo-fuzz\n{}",
            String::from_utf8_lossy(&list.stderr)
        );
    }
    let targets = String::from_utf8(list.stdout)?;
    if targets.trim().is_empty() {
        bail!("{} holds no targets", fuzz.display());
    }
    for target in targets.split_whitespace() {
        let mut command = fuzz_command();
        // What is mutated into computing for ever is stopped after 20 s of it.
        let timeout = if target == REPLAYS { "-timeout=240" } else { "-timeout=10" };
        if target == REPLAYS {
            let refrain = release_refrain()?;
            let seed = cache()?.join("fuzz-seed.refrain");
            let record = ["record", "--quiet", "--force", "-o"];
            let program = ["--", "/bin/echo", "seed"];
            must(Command::new(&refrain).args(record).arg(&seed).args(program))?;
            command.env("REFRAIN", refrain).env("SEED", seed);
        }
        must(
            command
                .args(["run", "--fuzz-dir"])
                .arg(&fuzz)
                .args([target, "--", timeout, "-rss_limit_mb=2048"])
                .arg(format!("-max_total_time={seconds}")),
        )?;
    }
    Ok(())
}

/// The target that replays whole traces, by the command.
const REPLAYS: &str = "replay";
