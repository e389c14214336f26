//! Exactness: a recorded program behaves as it does natively, and every replay of a recording is
//! equal to it.

use crate::process::{self, CommandLine, Run, same};
use crate::root;
use crate::workload::{self, Size, Workload};
use anyhow::{Context, bail};
use std::path::Path;

/// What to check.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Replays of each recording on each engine
    #[arg(long, default_value_t = 20)]
    pub(crate) replays: u32,
    /// Engines
    #[arg(long, value_delimiter = ',', default_value = "tiered,cranelift,copy")]
    pub(crate) engines: Vec<String>,
    /// Bytes of text for the compressors and sorters
    #[arg(long, default_value_t = 8 << 20)]
    pub(crate) bytes: u64,
    /// Corpus programs with their larger arguments
    #[arg(long)]
    pub(crate) large: bool,
    /// Only workloads whose names contain one of these
    pub(crate) names: Vec<String>,
}

/// Checks every workload and prints a line for each. Fails if any replay differs, races on purpose
/// apart.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let refrain = root::release_refrain()?;
    let cache = root::cache()?;
    let mut workloads =
        workload::corpus(&cache, |_| if options.large { Size::Full } else { Size::Small })?;
    let (tools, missing) = workload::tools(&cache, options.bytes)?;
    workloads.extend(tools);
    let wanted = |workload: &&Workload| {
        options.names.is_empty() || options.names.iter().any(|name| workload.name.contains(name))
    };
    let (mut checked, mut failed) = (0, 0);
    for workload in workloads.iter().filter(wanted) {
        checked += 1;
        let (verdict, text) = match check(workload, &refrain, options) {
            Ok(text) => ("ok", text),
            Err(error) if workload.racy => ("races", format!("{error:#}")),
            Err(error) => ("FAILED", format!("{error:#}")),
        };
        failed += usize::from(verdict == "FAILED");
        println!("{:<18} {verdict:<6}  {}", workload.name, text.trim().replace('\n', "\n    "));
    }
    for name in &missing {
        println!("not installed, so not checked: {name}");
    }
    if failed > 0 {
        bail!("{failed} of {checked} programs failed");
    }
    Ok(())
}

/// Records a workload and replays it so many times on each engine.
pub(crate) fn check(
    workload: &Workload,
    refrain: &Path,
    options: &Options,
) -> anyhow::Result<String> {
    let scratch = tempfile::tempdir()?;
    let native = process::run(&workload.line, scratch.path())?;
    let trace = scratch.path().join("exact.refrain");
    let record = workload.line.recorded(refrain, &trace);
    let result = process::run(&record, scratch.path())
        .and_then(|recorded| same(&native, &recorded, "recording"))
        .and_then(|()| replay_all(refrain, &trace, scratch.path(), options));
    if result.is_err() && trace.exists() {
        // Keep what shows the failure.
        let kept =
            root::cache()?.join(format!("failed-{}.refrain", workload.name.replace(' ', "_")));
        std::fs::copy(&trace, &kept)?;
        return result.with_context(|| format!("see {}", kept.display()));
    }
    result
}

fn replay_all(
    refrain: &Path,
    trace: &Path,
    scratch: &Path,
    options: &Options,
) -> anyhow::Result<String> {
    let mut last = String::new();
    for engine in &options.engines {
        for _ in 0..options.replays {
            let line = CommandLine::new([
                refrain.as_os_str(),
                "replay".as_ref(),
                "--engine".as_ref(),
                engine.as_ref(),
                trace.as_os_str(),
            ]);
            last = last_line(&process::run(&line, scratch)?, engine)?;
        }
    }
    Ok(format!("{} × {}: {last}", options.replays, options.engines.join(", ")))
}

fn last_line(run: &Run, engine: &str) -> anyhow::Result<String> {
    let output = String::from_utf8_lossy(&run.output);
    if run.status != 0 {
        bail!("replay on {engine}: {} {}", run.errors.trim(), output.trim());
    }
    Ok(output.lines().last().unwrap_or_default().to_owned())
}
