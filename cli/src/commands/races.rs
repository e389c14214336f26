//! `refrain races`: which accesses of a recorded run the program does not order.

use super::detectors;
use crate::args::{RaceReport, Races};
use crate::failure::Outcome;
use crate::output;
use crate::race_suppressions::Suppressions;
use crate::report::data_races::{Report, Suppressed, render, sarif, verdict};
use refrain_session::Session;
use refrain_session::data_races::DataRace;
use refrain_session::detectors::is_std;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

/// Searches a trace and prints what was found.
pub(crate) fn run(args: &Races, session: &Session) -> Outcome {
    if args.detector.is_some() || args.compare || is_std(&args.trace) {
        return detectors::run(args, session);
    }
    let report = search(session, &args.trace, &args.report)?;
    print(&report, &args.report)?;
    Ok(match (report.races.is_empty(), &report.incomplete) {
        (false, _) => args.report.error_exitcode,
        (true, Some(_)) => 1,
        (true, None) => 0,
    })
}

/// Prints a report in the form that is asked for.
pub(crate) fn print(report: &Report, form: &RaceReport) -> anyhow::Result<()> {
    if form.sarif {
        output::print_document(&sarif(report))
    } else if form.json {
        output::print_json("races", report)
    } else {
        output::print(&render(report))
    }
}

/// What races in the trace at `path`.
pub(crate) fn search(session: &Session, path: &Path, form: &RaceReport) -> anyhow::Result<Report> {
    let suppressions = form.suppressions.as_deref().map(Suppressions::read).transpose()?;
    let found = session.races(path, form.atomics)?;
    let mut report = Report {
        command: found.command,
        threads: found.threads,
        incomplete: found.incomplete,
        recorded_threads: found.recorded_threads,
        recorded_events: found.recorded_events,
        ..Report::default()
    };
    sort_out(found.races, suppressions.unwrap_or_default(), form.all, &mut report);
    Ok(report)
}

/// Takes out what is suppressed and what is folded.
fn sort_out(races: Vec<DataRace>, suppressions: Suppressions, all: bool, report: &mut Report) {
    let mut suppressed: BTreeMap<String, u64> = BTreeMap::new();
    for race in races {
        if let Some(rule) = suppressions.of(&race) {
            *suppressed.entry(rule.to_owned()).or_default() += 1;
        } else if race.in_library && !all {
            report.folded += 1;
        } else {
            report.races.push(race);
        }
    }
    report.races.sort_by_key(|race| (race.in_library, Reverse(race.count)));
    let suppressed = suppressed.into_iter().map(|(rule, races)| Suppressed { rule, races });
    report.suppressed = suppressed.collect();
    if report.races.is_empty() {
        report.verdict = Some(verdict(report.incomplete.is_some()));
    }
    let shown = &report.races;
    report.threads.retain(|thread| {
        shown.iter().flat_map(DataRace::sides).any(|side| side.thread == thread.thread)
    });
}
