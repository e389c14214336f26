//! Where things are.

use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the checkout.
pub(crate) fn directory() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the root of the workspace").to_owned()
}

/// A `cargo` command in the root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments).current_dir(directory());
    command
}

/// Runs a command to its end, and fails if it does.
pub(crate) fn must(command: &mut Command) -> anyhow::Result<()> {
    let shown = format!("{command:?}");
    eprintln!("$ {shown}");
    let status = command.status().with_context(|| format!("cannot run {shown}"))?;
    if !status.success() {
        bail!("{shown} failed: {status}");
    }
    Ok(())
}

/// As [`must`], and only says something if it fails.
pub(crate) fn must_quietly(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Builds `refrain` as its users do, whatever profile the environment asks for, and returns the executable;
/// or the one that the variable REFRAIN names, to measure or check another build. (Without optimization
/// between crates, an event of a lock takes twice as long.)
pub(crate) fn release_refrain() -> anyhow::Result<PathBuf> {
    if let Some(other) = std::env::var_os("REFRAIN") {
        return std::path::absolute(other).context("REFRAIN names no path");
    }
    let mut build = cargo(&["build", "--release", "--package", "refrain"]);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"CARGO_PROFILE_") {
            build.env_remove(name);
        }
    }
    if let Some(commit) = commit() {
        build.env("REFRAIN_COMMIT", commit);
    }
    must(&mut build)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.map_or_else(|| directory().join("target"), |t| directory().join(t));
    let executable = target.join("release/refrain");
    if !executable.is_file() {
        bail!("{} is not there after the build", executable.display());
    }
    Ok(executable)
}

/// The commit of the checkout, with `-dirty` where files differ from it; none without git.
fn commit() -> Option<String> {
    let describe = ["describe", "--always", "--abbrev=7", "--exclude=*", "--dirty"];
    let output = Command::new("git").args(describe).current_dir(directory()).output().ok()?;
    let text =
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())?;
    Some(text.trim().to_owned()).filter(|commit| !commit.is_empty())
}

/// The commit that a build of refrain says it was made of.
pub(crate) fn built_from(refrain: &Path) -> anyhow::Result<String> {
    let output = Command::new(refrain)
        .arg("--version")
        .output()
        .with_context(|| format!("cannot run {}", refrain.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let commit = text.trim().split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    Ok(commit.unwrap_or("unknown").to_owned())
}

/// A directory for compiled workloads and generated data that is kept between runs.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    let directory = directory().join("target/xtask");
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(directory)
}

/// CPU, cores and kernel.
pub(crate) fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("an unknown CPU", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{model}, {cores} cores, Linux {}", kernel.trim())
}
