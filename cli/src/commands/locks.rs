//! `refrain locks`: ranks unnecessary lock contention.

use super::replay::News;
use crate::args::{Locks, Ranking};
use crate::child;
use crate::failure::Outcome;
use crate::output::{self, Style};
use crate::report::locks::{Report, render, resolve};
use crate::symbols::Symbols;
use crate::trace_file;
use anyhow::Context;
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
    let command = trace.header().argv.join(" ");
    Ok(resolve(analysis, &mut Symbols::new(trace.modules()), command, top))
}

/// Prints a ranking as text or as JSON.
pub(crate) fn print(report: &Report, ranking: &Ranking) -> anyhow::Result<()> {
    if ranking.json {
        output::print_json("locks", report)
    } else {
        output::print(&render(report, Style::of_stdout()))
    }
}
