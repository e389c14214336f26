//! Faults: each write of some recordings fails, in several ways; and recorders that meet.
//!
//! Whatever fails, the program does what it does natively, and what is left of the trace can be
//! checked, repaired and replayed as far as it goes.

use crate::kills::{ORDERS, report};
use crate::process::{self, CommandLine, Run, same, tool};
use crate::{root, text_data};
use anyhow::{Context, bail, ensure};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How the `FAIL_AT`th write fails.
const WAYS: [&str; 4] = ["full", "broken", "short", "gone"];
/// What makes them fail.
const SHIM: &str = include_str!("../../tests/guest/failing_writes.c");
/// So many failures of one kind are not about single writes.
const TOO_MANY: u64 = 50;
/// Text for the compressor.
const BYTES: u64 = 1 << 20;

/// Fails every write of each recording, one after another.
pub(crate) fn run() -> anyhow::Result<()> {
    let refrain = root::release_refrain()?;
    let scratch = tempfile::tempdir()?;
    let shim = shim(scratch.path())?;
    let (mut runs, mut bad) = (0, 0);
    for (name, line) in programs()? {
        let native = process::run(&line, scratch.path())?;
        for order in ORDERS {
            for how in WAYS {
                let mut counts = Counts::default();
                for at in 1.. {
                    let case = Case { refrain: &refrain, line: &line, order, how, at };
                    match one(&case, &shim, &native, scratch.path()) {
                        Ok(Outcome::Whole) => break,
                        Ok(Outcome::Refused) => counts.refused += 1,
                        Ok(Outcome::Ended) => counts.ended += 1,
                        Err(error) => {
                            counts.bad += 1;
                            println!("{name} {order} {how} {at}: FAILED: {error:#}");
                            ensure!(counts.bad < TOO_MANY, "this goes on and on");
                        }
                    }
                }
                let Counts { refused, ended, bad: failures } = counts;
                runs += refused + ended + failures;
                bad += failures;
                println!(
                    "{name} {order} {how}: {refused} at the start, {ended} later, {failures} bad"
                );
            }
        }
    }
    println!("{runs} failed writes, {bad} taken badly");
    ensure!(bad == 0, "{bad} of {runs} failed writes were taken badly");
    Ok(())
}

#[derive(Default)]
struct Counts {
    refused: u64,
    ended: u64,
    bad: u64,
}

/// One recording with one fault.
struct Case<'a> {
    refrain: &'a Path,
    line: &'a CommandLine,
    order: &'a str,
    how: &'a str,
    at: u64,
}

enum Outcome {
    /// There were fewer writes.
    Whole,
    /// The program was not started.
    Refused,
    /// The recording ended early.
    Ended,
}

fn shim(place: &Path) -> anyhow::Result<PathBuf> {
    let (source, shim) = (place.join("shim.c"), place.join("shim.so"));
    std::fs::write(&source, SHIM)?;
    root::must(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&shim).arg(&source))?;
    Ok(shim)
}

fn programs() -> anyhow::Result<Vec<(&'static str, CommandLine)>> {
    let cache = root::cache()?;
    let mut programs = Vec::new();
    for (name, arguments) in [
        ("locks", &["2000"][..]),
        ("demo", &["500"]),
        ("ex_cond", &["500"]),
        ("ex_pipe", &["500"]),
        ("ex_process", &["10"]),
    ] {
        let program = refrain_corpus::find(name).context("the corpus has it")?;
        let path = refrain_corpus::compile(program, program.variants[0], &cache)?;
        let mut line = CommandLine::new([path.as_os_str()]);
        line.words.extend(arguments.iter().map(Into::into));
        programs.push((name, line));
    }
    if let Some(pigz) = tool("pigz") {
        let mut line = CommandLine::new([pigz.as_os_str()]);
        line.words.extend(["-p4", "-k", "-c"].map(Into::into));
        line.words.push(text_data::file(&cache, BYTES)?.into());
        programs.push(("pigz", line));
    }
    Ok(programs)
}

fn one(case: &Case<'_>, shim: &Path, native: &Run, scratch: &Path) -> anyhow::Result<Outcome> {
    let place = tempfile::tempdir()?;
    let trace = place.path().join("a.refrain");
    // Variables for the recorder alone: the program sees the two that tell the shim what to do.
    let preload = format!("LD_PRELOAD={}", shim.display());
    let (at, how) = (format!("FAIL_AT={}", case.at), format!("FAIL_HOW={}", case.how));
    let recorded = case.line.recorded_in(case.order, case.refrain, &trace);
    let run = process::run(&recorded.under(["env", &preload, &at, &how]), scratch)?;
    if run.status == 125 && run.errors.contains("cannot write the trace") {
        let left = std::fs::read_dir(place.path())?.count();
        ensure!(left == 0, "refused, and left {left} files");
        return Ok(Outcome::Refused);
    }
    same(native, &run, "recording")?;
    let whole = !run.errors.contains("went on unrecorded");
    let (_, check) = report(case.refrain, &["check"], &trace)?;
    if check["unusable"].is_string() {
        let (events, why) = (&check["events"], &check["unusable"]);
        ensure!(!whole && *events == 0, "{events} events are there, and {why}: {}", run.errors);
        return Ok(Outcome::Ended);
    }
    let wanted = if whole { 0 } else { 3 };
    let replays = || -> anyhow::Result<()> {
        let (status, replay) = report(case.refrain, &["replay", "--engine", "copy"], &trace)?;
        // A footer that cannot be cut off again stays, and all that it stands for is there.
        let stays = case.how == "gone" && status == 0;
        ensure!(status == wanted || stays, "replay ends with {status}: {}", replay["divergence"]);
        Ok(())
    };
    replays()?;
    let (status, repaired) = report(case.refrain, &["check", "--repair"], &trace)?;
    ensure!(status == 0, "is not sound after its repair: {repaired}");
    replays().context("after its repair")?;
    Ok(if whole { Outcome::Whole } else { Outcome::Ended })
}

/// Starts so many recorders at once in one folder, with one name, again and again.
pub(crate) fn together(times: u64, recorders: usize) -> anyhow::Result<()> {
    let refrain = root::release_refrain()?;
    let programs = programs()?;
    let (mut sound, mut bad) = (0, 0);
    for time in 0..times {
        let (name, line) = &programs[time as usize % programs.len()];
        let place = tempfile::tempdir()?;
        let trace = place.path().join("a.refrain");
        let order = ORDERS[time as usize / programs.len() % ORDERS.len()];
        // Without --force, so that nothing may be lost.
        let mut recorded = line.recorded_in(order, &refrain, &trace);
        recorded.words.retain(|word| word != "--force");
        let start = || {
            let mut command = Command::new(&recorded.words[0]);
            command.args(&recorded.words[1..]).stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        };
        let all = (0..recorders).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
        for mut recorder in all {
            recorder.wait()?;
        }
        match judge(&refrain, place.path(), recorders) {
            Ok(()) => sound += recorders,
            Err(error) => {
                bad += 1;
                println!("{time} {name} {order}: FAILED: {error:#}");
            }
        }
    }
    println!("{times} times {recorders} recorders in one folder: {sound} sound traces, {bad} bad");
    ensure!(bad == 0, "{bad} of {times} times something was lost");
    Ok(())
}

/// Every recorder has left a whole trace under a name of its own.
fn judge(refrain: &Path, place: &Path, recorders: usize) -> anyhow::Result<()> {
    let path = |entry: std::io::Result<std::fs::DirEntry>| Ok(entry?.path());
    let found = std::fs::read_dir(place)?.map(path).collect::<anyhow::Result<BTreeSet<_>>>()?;
    if found.len() != recorders {
        bail!("{found:?} are left");
    }
    for trace in found {
        for command in [&["check"][..], &["replay", "--engine", "copy"]] {
            let (status, answer) = report(refrain, command, &trace)?;
            ensure!(status == 0, "{} of {}: {answer}", command[0], trace.display());
        }
    }
    Ok(())
}
