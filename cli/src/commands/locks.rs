//! `refrain locks`: ranks unnecessary lock contention.

use crate::args::{Locks, Ranking as Form};
use crate::failure::Outcome;
use crate::output::{self, SCHEMA_VERSION, Style};
use crate::report::baseline::Baseline;
use crate::report::html;
use crate::report::locks::{self, Excerpt, Report, Suppressed, render};
use crate::report::numbers::{count, counted};
use crate::report::several;
use crate::suppressions::Suppressions;
use anyhow::{Context, anyhow};
use refrain_session::Session;
use refrain_session::ranking::Ranking;
use refrain_session::symbols::Place;
use std::collections::BTreeSet;
use std::path::Path;

/// Analyses traces and prints the ranking. The status is that of `--error-exitcode` if there is
/// something to see to.
pub(crate) fn run(args: &Locks, session: &Session) -> Outcome {
    // What is wrong with these is said before the analysis.
    let suppressions = args.suppressions.as_deref().map(Suppressions::read).transpose()?;
    let baseline = args.baseline.as_deref().map(|path| Baseline::read(path, SCHEMA_VERSION));
    let baseline = baseline.transpose()?;
    let reports = args.traces.iter().map(|trace| rank(session, trace, args.html.is_some()));
    let reports = reports.collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(other) = reports.iter().find(|report| report.command != reports[0].command) {
        return Err(anyhow!(
            "`{}` and `{}` are not recordings of one program with the same arguments",
            reports[0].command,
            other.command
        )
        .into());
    }
    let mut report = several::join(reports).expect("there is at least one trace");
    if let (Some(rules), Some(path)) = (&suppressions, &args.suppressions) {
        suppress(&mut report, rules, path);
    }
    report.baseline = baseline.map(|baseline| baseline.compare(&report));
    let fails = match &report.baseline {
        Some(comparison) => comparison.is_worse(),
        None => report.groups.iter().any(|group| report.is_sure(group)),
    };
    if let Some(path) = &args.html {
        let page = page(report.clone(), args.ranking.top)?;
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(report, &args.ranking)?;
    Ok(if fails { args.error_exitcode } else { 0 })
}

/// Takes the groups out that a rule holds of. Their gains are still part of the totals.
fn suppress(report: &mut Report, rules: &Suppressions, path: &Path) {
    let mut used = BTreeSet::new();
    let before = report.groups.len();
    report.groups.retain(|group| {
        let line = rules.matching(group);
        used.extend(line);
        line.is_none()
    });
    let gone = before - report.groups.len();
    report.groups_found -= gone;
    let file = path.display().to_string();
    let unused: Vec<String> =
        rules.lines().filter(|line| !used.contains(line)).map(|line| line.to_string()).collect();
    if !unused.is_empty() {
        let lines = unused.join(", ");
        report.notes.push(format!("{file}: nothing was suppressed by line {lines}"));
    }
    report.suppressed = Some(Suppressed { file, groups: gone as u64 });
}

/// Ranks the trace at `path`.
pub(crate) fn rank(session: &Session, path: &Path, draws: bool) -> anyhow::Result<Report> {
    let ranking = session.rank(path, draws)?;
    let notes = notes(&ranking);
    Ok(locks::report(ranking, notes))
}

/// Lines around one that are shown.
const AROUND: u32 = 2;
/// Files that are longer are no source.
const LONGEST_SOURCE: u64 = 4 << 20;

/// The source of places, as far as it is there; each line once.
fn excerpts(places: &[&Place]) -> Vec<Excerpt> {
    let mut found: Vec<Excerpt> = Vec::new();
    for frame in places.iter().filter_map(|place| place.frames.first()) {
        let (Some(file), Some(line)) = (&frame.file, frame.line) else { continue };
        if found.iter().any(|it| (&it.file, it.line) == (file, line)) {
            continue;
        }
        let regular =
            std::fs::metadata(file).is_ok_and(|it| it.is_file() && it.len() < LONGEST_SOURCE);
        let Some(text) = regular.then(|| std::fs::read_to_string(file).ok()).flatten() else {
            continue;
        };
        let near = |(number, _): &(u32, String)| number.abs_diff(line) <= AROUND;
        let numbered = (1..).zip(text.lines().map(|line| line.replace('\t', "    ")));
        found.push(Excerpt { file: file.clone(), line, lines: numbered.filter(near).collect() });
    }
    found
}

/// What the reader must know to judge the numbers.
fn notes(ranking: &Ranking) -> Vec<String> {
    let cut = || {
        let events = count(ranking.events);
        let recorded = counted(ranking.events_recorded, "event");
        format!("the recording was cut off: {events} of {recorded} could be replayed and analysed")
    };
    let every = || {
        "with the order of every access, sections and waits took several times as long as without: \
         gains are rough, and locks that the program makes itself are not recognised"
            .to_owned()
    };
    let is_every = ranking.order.is_of_every_access();
    [ranking.is_truncated.then(cut), is_every.then(every)].into_iter().flatten().collect()
}

/// The first groups of a ranking as a page, with their source.
fn page(report: Report, top: usize) -> anyhow::Result<String> {
    let mut report = report.truncated(top);
    for group in &mut report.groups {
        group.excerpts = excerpts(&[&group.ranked.first, &group.ranked.second]);
    }
    html::render(&report, report.picture.as_ref())
}

/// Prints the first groups of a ranking as text or as JSON.
pub(crate) fn print(report: Report, form: &Form) -> anyhow::Result<()> {
    let mut report = report.truncated(form.top);
    report.details = form.details;
    if form.details {
        for group in &mut report.groups {
            group.excerpts = excerpts(&[&group.ranked.first, &group.ranked.second]);
        }
    }
    if form.json {
        output::print_json("locks", &report)
    } else {
        output::print(&render(&report, Style::of_stdout()))
    }
}
