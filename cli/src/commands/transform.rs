//! `refrain transform`: writes the trace without its unnecessary lock contention.

use super::locks;
use super::once::News;
use crate::args::Transform;
use crate::failure::Outcome;
use crate::output::{self, Style};
use crate::report::transform::{Report, render};
use anyhow::{Context, anyhow, bail};
use refrain_session::calibration;
use refrain_session::child;
use refrain_session::machine::{Transformation, Worth};
use refrain_session::model::Model;
use refrain_session::trace_file::{self, NewTrace, advise};
use refrain_trace::verify::{self, ViolationKind};
use refrain_trace::{Trace, Transformed, container};
use std::path::{Path, PathBuf};

/// Transforms a trace and says what that is worth.
pub(crate) fn run(args: &Transform) -> Outcome {
    let trace = trace_file::read(&args.trace)?;
    let shown = args.trace.display();
    if trace.is_transformed() {
        return Err(anyhow!("{shown} is transformed already: transform the recording").into());
    }
    if trace.footer().is_none() {
        return Err(anyhow!("{shown} was cut off; try: refrain check --repair {shown}").into());
    }
    let mut news = News::new("transforming", true);
    let transformation = child::transform(trace_file::open(&args.trace)?, &mut news)
        .with_context(|| format!("cannot transform {shown}"))?;
    drop(news);
    let (record, worth) = match transformation {
        Transformation::Done(record, worth) => (record, worth),
        Transformation::Diverged(divergence) => {
            return Err(locks::diverged(&args.trace, &divergence)?.into());
        }
    };
    let (path, old) = write(&trace, &record, args)?;
    let report = report(&trace, &record, worth, (path, old));
    if args.json {
        output::print_json("transform", &report)?;
    } else {
        output::print(&render(&report, Style::of_stdout()))?;
    }
    Ok(0)
}

/// Writes the transformed trace, which gets its name once it has been verified. An older trace of
/// that name is kept under another one, which is returned too.
fn write(
    trace: &Trace,
    record: &Transformed,
    args: &Transform,
) -> anyhow::Result<(PathBuf, Option<PathBuf>)> {
    let new = NewTrace::create(&args.output, args.force)?;
    let cannot = || format!("cannot write {}", args.output.display());
    let file = new.file().with_context(cannot)?;
    container::write_transformed(trace, record, &file).map_err(|e| advise(&args.trace, e))?;
    file.sync_all().with_context(cannot)?;
    // A pipe cannot be read back.
    if file.metadata().is_ok_and(|it| it.is_file()) {
        let written = Trace::open(Path::new(&format!("/proc/self/fd/{}", descriptor(&file))))?;
        let violations = verify::transformed(&written)?;
        // What is too large to judge may be right all the same.
        if let Some(violation) = violations.iter().find(|it| it.kind != ViolationKind::NotJudged) {
            bail!(
                "this is a bug in refrain, please report it: the transformation is wrong at \
                   {violation}"
            );
        }
    }
    let named = new.publish()?;
    Ok((named.path.clone(), named.old.clone()))
}

fn descriptor(file: &std::fs::File) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(file)
}

fn report(
    trace: &Trace,
    record: &Transformed,
    worth: Worth,
    (path, old): (PathBuf, Option<PathBuf>),
) -> Report {
    let header = trace.header();
    let (_, latencies) = calibration::costs(header.machine.latencies, header.tsc_hz);
    let cores = worth.cores;
    Report {
        command: header.argv.join(" "),
        output: path.display().to_string(),
        old: old.map(|old| old.display().to_string()),
        model: Model { cores, latencies, cost: refrain_session::choices::Cost::Recorded },
        locks_freed: record.locks.len() as u64,
        locks_kept: worth.kept,
        locks_made: worth.made,
        critical_sections: record.sections.len() as u64,
        removed: worth.removed,
        causal_edges: record.edges.len() as u64,
        aux_locks: record.sources().len() as u64,
        lockset_locks: worth.locks_static,
        events: worth.extent.events,
        events_recorded: worth.extent.recorded,
        original_ns: worth.original_ns,
        free_ns: worth.free_ns.clone().ok(),
        static_ns: worth.static_ns.clone().ok(),
        dynamic_ns: worth.dynamic_ns.clone().ok(),
        error: worth.free_ns.err().or(worth.static_ns.err()).or(worth.dynamic_ns.err()),
    }
}
