//! `refrain locks`: ranks unnecessary lock contention.

use super::racing;
use super::replay::News;
use crate::args::{Locks, Ranking};
use crate::calibration;
use crate::child;
use crate::failure::Outcome;
use crate::machine::Analysis;
use crate::output::{self, Style};
use crate::report::locks::{self, Report, render};
use crate::report::replay::Divergence;
use crate::symbols::Symbols;
use crate::trace_file;
use anyhow::{Context, anyhow};
use refrain_trace::Trace;
use std::path::Path;

/// Analyses a trace and prints the ranking.
pub(crate) fn run(args: &Locks) -> Outcome {
    print(&rank(&args.trace, args.ranking.top)?, &args.ranking)?;
    Ok(0)
}

/// Analyses the trace at `path` in a child process, and resolves the addresses here.
pub(crate) fn rank(path: &Path, top: usize) -> anyhow::Result<Report> {
    let trace = trace_file::read(path)?;
    let mut news = News::new("analysing", true);
    let analysis = child::analyse(trace_file::open(path)?, &mut news)
        .with_context(|| format!("cannot analyse {}", path.display()))?;
    drop(news);
    let measured = match analysis {
        Analysis::Measured(measured) => measured,
        Analysis::Diverged(divergence) => return Err(diverged(path, &divergence)),
    };
    let ranked = refrain_transform::rank(&measured, &mut Symbols::new(trace.modules()));
    let header = trace.header();
    let cores = u64::from(header.machine.cores.max(1));
    let (_, latencies) = calibration::costs(header.machine.latencies, header.tsc_hz);
    let machine = locks::Machine { cores, latencies };
    Ok(locks::report(ranked, header.argv.join(" "), machine, top, notes(&trace)))
}

/// What left the recording has no ranking. If the program raced, that is why.
fn diverged(path: &Path, divergence: &Divergence) -> anyhow::Error {
    let Divergence { thread, event, kind, .. } = divergence;
    let races = racing::find(path, Some(divergence));
    let why = races.of_the_program().map_or_else(String::new, |pair| {
        format!(", and the program races: {} are not ordered", pair.short())
    });
    anyhow!(
        "cannot analyse {}: the replay diverged at {thread} {event} ({kind}){why}; \
         `refrain replay` says more",
        path.display()
    )
}

/// What the reader must know to judge the numbers.
fn notes(trace: &Trace) -> Vec<String> {
    let cut = "the recording was cut off; only what is there was analysed";
    trace.is_truncated().then(|| cut.to_owned()).into_iter().collect()
}

/// Prints a ranking as text or as JSON.
pub(crate) fn print(report: &Report, ranking: &Ranking) -> anyhow::Result<()> {
    if ranking.json {
        output::print_json("locks", report)
    } else {
        output::print(&render(report, Style::of_stdout()))
    }
}
