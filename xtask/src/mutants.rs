//! Mutants: recorded traces in which something is not what the recorder wrote, with checksums that
//! are right. Whatever reads or replays one must say something of it, soon, without a panic, with
//! little memory; and must not call exact what a replay compares.

use crate::kills::ORDERS;
use crate::process::{self, CommandLine};
use crate::root;
use crate::workload::{self, Size};
use anyhow::{Context, bail};
use refrain_trace::mutants::mutant;
use refrain_trace::{OwnedTrace, Trace};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The commands that each mutant is given to.
const COMMANDS: [&str; 3] = ["check", "replay", "locks"];
/// Recordings that are mutated: of small programs of different kinds, in each order.
const SEEDS: usize = 8;
/// No trace with more events is mutated: each mutant is written as a whole.
const EVENTS: u64 = 20_000;
/// A program that is mutated into computing for ever is stopped after 20 s of it.
const SLOW: Duration = Duration::from_secs(240);
const MEMORY_MIB: u64 = 1024;

/// Tries so many mutants. Fails if any is taken badly; they are kept then.
pub(crate) fn run(count: u64, first: u64) -> anyhow::Result<()> {
    let refrain = root::release_refrain()?;
    let scratch = tempfile::tempdir().context("no place for mutants")?;
    let kept = root::cache()?.join("mutants");
    let seeds = seeds(&refrain, scratch.path())?;
    let began = Instant::now();
    let mut exact = BTreeMap::<String, u64>::new();
    let (mut bad, mut peak) = (0, 0);
    for number in first..first.saturating_add(count) {
        let (name, trace) = &seeds[number as usize % seeds.len()];
        let mutant = mutant(trace, number);
        // A mutant may be so wrong that no file can hold it.
        let Ok(bytes) = mutant.trace.to_bytes() else { continue };
        let path = scratch.path().join("mutant.refrain");
        std::fs::write(&path, &bytes).context("cannot write a mutant")?;
        for command in COMMANDS {
            let run = taken(&refrain, command, &path, scratch.path())?;
            peak = peak.max(run.peak_kib);
            let is_exact = command == "replay" && run.status == 0;
            if is_exact {
                *exact.entry(kind(&mutant.what)).or_default() += 1;
            }
            let complaint = complaint(&run, is_exact && mutant.is_compared);
            if let Some(complaint) = complaint {
                bad += 1;
                let copy = keep(&kept, number, &path)?;
                println!("{command} {}: {complaint} ({name}: {})", copy.display(), mutant.what);
            }
        }
        if (number + 1).is_multiple_of(100) {
            let seconds = began.elapsed().as_secs();
            println!("{} mutants in {seconds} s, {bad} taken badly", number + 1 - first);
        }
    }
    println!(
        "{count} mutants from {first}: {bad} taken badly; {} replayed exactly, with other \
         inputs or times; the parent's memory at most {} MiB",
        exact.values().sum::<u64>(),
        peak >> 10
    );
    exact.iter().for_each(|(what, number)| println!("{number:6} exactly: {what}"));
    if bad > 0 {
        bail!("{bad} mutants were taken badly");
    }
    Ok(())
}

/// What was changed, without where and how.
fn kind(what: &str) -> String {
    let words = what.split(' ').filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

/// What is wrong with how a mutant was taken.
fn complaint(run: &process::Run, called_exact: bool) -> Option<String> {
    let first = run.errors.lines().next().unwrap_or_default();
    // 3: equal as far as the trace goes, which was cut off.
    if ![0, 1, 3].contains(&run.status) {
        return Some(format!("status {}: {first}", run.status));
    }
    let is_bug = |line: &str| line.contains("panicked") || line.contains("this is a bug");
    if let Some(line) = run.errors.lines().find(|line| is_bug(line)) {
        return Some(line.to_owned());
    }
    if run.wall > SLOW {
        return Some(format!("took {} s", run.wall.as_secs()));
    }
    if run.peak_kib > MEMORY_MIB << 10 {
        return Some(format!("took {} MiB", run.peak_kib >> 10));
    }
    called_exact.then(|| "called exact".to_owned())
}

fn taken(
    refrain: &Path,
    command: &str,
    trace: &Path,
    scratch: &Path,
) -> anyhow::Result<process::Run> {
    let memory = MEMORY_MIB.to_string();
    let words = [refrain.as_os_str(), command.as_ref(), trace.as_os_str()];
    let line =
        CommandLine::new(words.into_iter().chain(["--max-memory".as_ref(), memory.as_ref()]));
    process::run_watched(&line, scratch)
}

/// Keeps a mutant for whoever looks into it.
fn keep(place: &Path, number: u64, path: &Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(place).context("no place for mutants")?;
    let copy = place.join(format!("{number}.refrain"));
    std::fs::copy(path, &copy).context("cannot keep a mutant")?;
    Ok(copy)
}

/// Records small programs.
fn seeds(refrain: &Path, scratch: &Path) -> anyhow::Result<Vec<(String, OwnedTrace)>> {
    let mut seeds = Vec::new();
    for workload in workload::corpus(&root::cache()?, |_| Size::Small)? {
        if workload.racy || seeds.len() >= SEEDS {
            continue;
        }
        let path = scratch.join("seed.refrain");
        for order in ORDERS {
            let name = format!("{} {order}", workload.name);
            let line = workload.line.recorded_in(order, refrain, &path);
            let run = process::run(&line, scratch)?;
            let trace = Trace::open(&path)
                .with_context(|| format!("{name} was not recorded: {}", run.errors))?;
            if trace.events() <= EVENTS {
                seeds.push((name, OwnedTrace::read(&trace)?));
            }
        }
    }
    if seeds.is_empty() {
        bail!("no workload is small enough to be mutated");
    }
    Ok(seeds)
}
