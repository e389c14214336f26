//! What a transformation did, and PerfPlay's Table 3 of it.

use super::model;
use super::numbers::{count, counted, duration, percent, signed};
use super::table::{self, Column};
use super::words::paragraph;
use crate::output::Style;
use refrain_session::VirtualMachine;
use refrain_trace::harmless::escape;
use serde::Serialize;

/// A transformed trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Report {
    /// The command that was recorded.
    pub(crate) command: String,
    /// The transformed trace.
    pub(crate) output: String,
    /// Where the trace is now that had this name before.
    pub(crate) old: Option<String>,
    /// The modelled machine.
    #[serde(flatten)]
    pub(crate) model: VirtualMachine,
    /// Locks that are freed.
    pub(crate) locks_freed: u64,
    /// Locks of irregular use, which keep their order.
    pub(crate) locks_kept: u64,
    /// Of the freed ones, those that the program makes itself of atomic instructions.
    pub(crate) locks_made: u64,
    /// Critical sections of the freed locks.
    pub(crate) critical_sections: u64,
    /// Of these, those that conflict with none, so that they need no lock.
    pub(crate) removed: u64,
    /// Pairs of sections that keep their order.
    pub(crate) causal_edges: u64,
    /// Auxiliary locks (Rule 3).
    pub(crate) aux_locks: u64,
    /// Auxiliary locks in the locksets of all sections together.
    pub(crate) lockset_locks: u64,
    /// Events analysed.
    pub(crate) events: u64,
    /// Events of the trace.
    pub(crate) events_recorded: u64,
    /// The original in virtual time, every lock in its recorded order.
    pub(crate) original_ns: u64,
    /// The transformed trace, as if auxiliary locks took no time.
    pub(crate) free_ns: Option<u64>,
    /// The same with all locks of the locksets (Rule 3).
    pub(crate) static_ns: Option<u64>,
    /// The same with dynamic locking: this is the transformed trace's virtual time.
    pub(crate) dynamic_ns: Option<u64>,
    /// Why one of these is not known.
    pub(crate) error: Option<String>,
}

/// The report for people.
pub(crate) fn render(report: &Report, style: Style) -> String {
    let time = |ns: u64| duration(signed(ns));
    let keeping = report.critical_sections.saturating_sub(report.removed);
    let mut locks = format!("{} freed", counted(report.locks_freed, "lock"));
    if report.locks_kept > 0 {
        locks += &format!("; {} of irregular use keep their order", report.locks_kept);
    }
    let mut facts = vec![
        ("transformed", report.command.clone()),
        ("locks", locks),
        (
            "sections",
            format!(
                "{}: {} need no lock, {} keep an order",
                counted(report.critical_sections, "critical section"),
                count(report.removed),
                count(keeping)
            ),
        ),
        (
            "order",
            format!(
                "{} between sections, {}",
                counted(report.causal_edges, "causal edge"),
                counted(report.aux_locks, "auxiliary lock")
            ),
        ),
        ("written", report.output.clone()),
    ];
    if let Some(old) = &report.old {
        facts.push(("", format!("what was there is {old}")));
    }
    let mut text = table::pairs(&facts);
    text += &format!("\nVirtual time, {}:\n\n", model::describe(&report.model));
    let overhead = |ns: Option<u64>| match (ns, report.free_ns) {
        (Some(ns), Some(free)) if free > 0 => percent((ns as f64 - free as f64) / free as f64),
        _ => "-".to_owned(),
    };
    let row = |what: &str, ns: Option<u64>, cost: String| {
        vec![ns.map_or_else(|| "-".to_owned(), time), cost, what.to_owned()]
    };
    let none = String::new;
    text += &table::render(
        &[("time", Column::Right), ("overhead", Column::Right), ("replay", Column::Left)],
        vec![
            row("original, each lock in its recorded order", Some(report.original_ns), none()),
            row("transformed, causal edges for free", report.free_ns, none()),
            row("with whole locksets", report.static_ns, overhead(report.static_ns)),
            row("with dynamic locking", report.dynamic_ns, overhead(report.dynamic_ns)),
        ],
        style,
    );
    if let Some(why) = &report.error {
        let note = format!("note: a replay in virtual time did not end: {}", escape(why));
        text += &paragraph(&note, style);
    }
    if report.locks_made > 0 {
        let note = format!(
            "note: of the freed locks the program makes {} itself of atomic instructions, which a \
             replay by the wall clock executes in their recorded order",
            count(report.locks_made)
        );
        text += &paragraph(&note, style);
    }
    if report.events < report.events_recorded {
        let note = format!(
            "note: the recording was cut off: {} of {} could be analysed",
            count(report.events),
            counted(report.events_recorded, "event")
        );
        text += &paragraph(&note, style);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;
    use refrain_session::Cost;
    use refrain_session::calibration::Source;

    #[test]
    fn a_transformation() {
        let report = Report {
            command: "demo".into(),
            output: "b.refrain".into(),
            old: None,
            model: VirtualMachine { cores: 2, latencies: Source::Typical, cost: Cost::Recorded },
            locks_freed: 6,
            locks_kept: 1,
            locks_made: 2,
            critical_sections: 15_629,
            removed: 9_000,
            causal_edges: 4_321,
            aux_locks: 2_100,
            lockset_locks: 6_421,
            events: 32_695,
            events_recorded: 32_695,
            original_ns: 257_000_000,
            free_ns: Some(187_000_000),
            static_ns: Some(191_000_000),
            dynamic_ns: Some(187_500_000),
            error: None,
        };
        assert_snapshot!(render(&report, Style { width: 80, colour: false }));
    }
}
