//! `refrain transform`: writes the trace without its unnecessary lock contention.

use crate::args::Transform;
use crate::failure::Outcome;
use crate::output::{self, Style};
use crate::report::transform::{Report, render};
use refrain_session::{Cost, Session, TransformedTrace, VirtualMachine, calibration, trace_file};
use refrain_trace::Trace;

/// Transforms a trace and says what that is worth.
pub(crate) fn run(args: &Transform, session: &Session) -> Outcome {
    let output = (args.output.as_path(), args.force);
    let transformed = session.transform(&args.trace, output)?;
    let report = report(&trace_file::read(&args.trace)?, transformed);
    if args.json {
        output::print_json("transform", &report)?;
    } else {
        output::print(&render(&report, Style::of_stdout()))?;
    }
    Ok(0)
}

fn report(trace: &Trace, transformed: TransformedTrace) -> Report {
    let TransformedTrace { path, old, record, worth } = transformed;
    let header = trace.header();
    let (_, latencies) = calibration::costs(&header.machine, header.tsc_hz);
    let cores = worth.cores;
    Report {
        command: header.argv.join(" "),
        output: path.display().to_string(),
        old: old.map(|old| old.display().to_string()),
        model: VirtualMachine { cores, latencies, cost: Cost::Recorded },
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
