//! The measurements.

use super::Options;
use crate::process::{self, CommandLine, median, middle};
use crate::root;
use crate::workload::{self, Size, Workload};
use anyhow::{Context, bail};
use refrain_corpus::Group;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Replays under one scheduler by one clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) mean_ns: f64,
    pub(super) median_ns: f64,
    pub(super) stddev_ns: f64,
}

/// One workload.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) events: u64,
    pub(super) recorded_ns: f64,
    /// How far the recordings are apart, in parts of that.
    pub(super) apart: f64,
    /// A run of the program by itself.
    pub(super) native: Duration,
    /// The program's own time, by the model of the recorded machine.
    pub(super) own_ns: f64,
    /// How far replays by the wall clock were off, in parts of the recorded time.
    pub(super) wall_error: Option<f64>,
    /// By clock and scheduler: `virtual elsc`.
    times: Vec<(String, Times)>,
    /// Which replays did not come to their end, and why.
    pub(super) failures: Vec<(String, String)>,
}

impl Row {
    /// The replays under a scheduler, if they came to their end.
    pub(super) fn times(&self, which: &str) -> Option<Times> {
        self.times.iter().find(|(name, _)| name == which).map(|&(_, times)| times)
    }
}

/// A workload, or why it could not be measured.
pub(super) type Measured = Result<Row, (String, String)>;

/// Measures every workload that ends by itself and does not race on purpose.
pub(super) fn measure(options: &Options, refrain: &Path) -> anyhow::Result<Vec<Measured>> {
    let cache = root::cache()?;
    let size = |group: Group| match group {
        Group::Ending | Group::Racy | Group::Litmus | Group::Locks => Size::None,
        // They are there to use everything often, not to be like any program.
        Group::Exerciser => Size::Small,
        Group::Case | Group::Kernel => Size::Full,
    };
    let mut workloads = workload::corpus(&cache, size)?;
    workloads.extend(workload::tools(&cache, options.bytes)?.0);
    let wanted = |workload: &&Workload| {
        let names = &options.names;
        names.is_empty() || names.iter().any(|name| workload.name.contains(name))
    };
    let mut rows = Vec::new();
    for workload in workloads.iter().filter(wanted) {
        eprintln!("{}", workload.name);
        let row = row(workload, refrain, options);
        rows.push(row.map_err(|error| (workload.name.clone(), format!("{error:#}"))));
    }
    Ok(rows)
}

/// One of a workload's recordings.
struct Recording {
    trace: PathBuf,
    recorded_ns: f64,
    own_ns: f64,
    wall_error: Result<f64, String>,
}

fn row(workload: &Workload, refrain: &Path, options: &Options) -> anyhow::Result<Row> {
    let scratch = tempfile::tempdir()?;
    let (mut natives, mut recordings) = (Vec::new(), Vec::new());
    for number in 0..options.runs.max(1) {
        natives.push(process::run(&workload.line, scratch.path())?.wall);
        let trace = scratch.path().join(format!("{number}.refrain"));
        process::run(&workload.line.recorded(refrain, &trace), scratch.path())?;
        recordings.push(recording(trace, refrain, options)?);
    }
    let errors = recordings.iter().map(|recording| recording.wall_error.clone());
    let wall_error = errors.collect::<Result<Vec<f64>, String>>();
    // The recording that took neither the least nor the most time.
    recordings.sort_by(|a, b| a.recorded_ns.total_cmp(&b.recorded_ns));
    let Recording { trace, recorded_ns, own_ns, .. } = &recordings[recordings.len() / 2];
    let longest = recordings.last().map_or(*recorded_ns, |recording| recording.recorded_ns);
    let apart = (longest - recordings[0].recorded_ns) / recorded_ns;
    let repeat = options.repeat.to_string();
    let by_virtual = ["fidelity", "--json", "--clock", "virtual", "--repeat", &repeat];
    // Whether they come to their end is all that is asked of these.
    let by_wall = ["fidelity", "--json", "--clock", "wall", "--repeat", "1"];
    let others = ["--scheduler", "mem-s", "--scheduler", "kendo", "--scheduler", "orig-s"];
    let mut all = rows(&json(refrain, &by_virtual, trace)?)?;
    all.extend(rows(&json(refrain, &[&by_wall[..], &others[..]].concat(), trace)?)?);
    let (mut times, mut failures) = (Vec::new(), Vec::new());
    for (which, outcome) in all {
        match outcome {
            Ok(found) => times.push((which, found)),
            Err(why) => failures.push((which, why)),
        }
    }
    failures.extend(wall_error.as_ref().err().map(|why| ("wall elsc".to_owned(), why.clone())));
    let info = json(refrain, &["info", "--json"], trace)?;
    Ok(Row {
        name: workload.name.clone(),
        events: number_at(&info, "events")? as u64,
        recorded_ns: *recorded_ns,
        apart,
        native: median(&natives),
        own_ns: *own_ns,
        wall_error: wall_error.ok().and_then(|errors| middle(&errors, f64::total_cmp)),
        times,
        failures,
    })
}

/// Replays a trace by the wall clock at once, so that the machine is as it was when it was
/// recorded.
fn recording(trace: PathBuf, refrain: &Path, options: &Options) -> anyhow::Result<Recording> {
    let own = json(refrain, &["replay", "--clock", "virtual", "--json"], &trace)?;
    let recorded_ns = number_at(&own, "recorded_ns")?;
    let repeat = options.repeat.to_string();
    let elsc = ["--clock", "wall", "--scheduler", "elsc", "--repeat", &repeat];
    let report = json(refrain, &[&["fidelity", "--json"][..], &elsc[..]].concat(), &trace)?;
    let (_, replayed) = rows(&report)?.pop().context("no row for ELSC")?;
    // One slow replay of five says something of the machine, not of the replay.
    let wall_error = replayed.map(|times| times.median_ns / recorded_ns - 1.0);
    Ok(Recording { trace, recorded_ns, own_ns: number_at(&own, "duration_ns")?, wall_error })
}

fn rows(report: &Value) -> anyhow::Result<Vec<(String, Result<Times, String>)>> {
    Ok(report["rows"].as_array().context("no rows")?.iter().map(times).collect())
}

fn times(row: &Value) -> (String, Result<Times, String>) {
    let word = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let number = |field: &str| row["times"][field].as_f64().unwrap_or(0.0);
    let outcome = if row["failed"] == 0 {
        Ok(Times {
            mean_ns: number("mean_ns"),
            median_ns: number("p50_ns"),
            stddev_ns: number("stddev_ns"),
        })
    } else {
        Err(word("why"))
    };
    (format!("{} {}", word("clock"), word("scheduler")), outcome)
}

fn number_at(report: &Value, field: &str) -> anyhow::Result<f64> {
    report[field].as_f64().with_context(|| format!("no {field} in the report"))
}

fn json(refrain: &Path, arguments: &[&str], trace: &Path) -> anyhow::Result<Value> {
    let mut line = CommandLine::new([refrain.as_os_str()]);
    line.words.extend(arguments.iter().map(Into::into));
    line.words.push(trace.into());
    let scratch = tempfile::tempdir()?;
    let run = process::run(&line, scratch.path())?;
    if run.status != 0 {
        bail!("{}: {}", line.shown(), run.errors.trim());
    }
    serde_json::from_slice(&run.output).context("the report is no JSON")
}
