//! `refrain locks`: ranks unnecessary lock contention.

use super::once::News;
use super::racing;
use crate::args::{Locks, Ranking};
use crate::failure::Outcome;
use crate::output::{self, SCHEMA_VERSION, Style};
use crate::report::baseline::Baseline;
use crate::report::html;
use crate::report::locks::{
    self, Beside, Excerpt, IrregularLock, NotUnderstood, Report, Suppressed, render,
};
use crate::report::numbers::{count, counted};
use crate::report::several;
use crate::suppressions::Suppressions;
use anyhow::{Context, anyhow};
use refrain_session::calibration;
use refrain_session::child;
use refrain_session::machine::{self, Analysis, Extent};
use refrain_session::replay::Divergence;
use refrain_session::symbols::{Place, Symbols};
use refrain_session::trace_file;
use refrain_trace::Trace;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Analyses traces and prints the ranking. The status is that of `--error-exitcode` if there is
/// something to see to.
pub(crate) fn run(args: &Locks) -> Outcome {
    // What is wrong with these is said before the analysis.
    let suppressions = args.suppressions.as_deref().map(Suppressions::read).transpose()?;
    let baseline = args.baseline.as_deref().map(|path| Baseline::read(path, SCHEMA_VERSION));
    let baseline = baseline.transpose()?;
    let reports = args.traces.iter().map(|trace| rank(trace, args.html.is_some()));
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
        None => report.groups.iter().any(locks::is_sure),
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

/// Analyses the trace at `path` in a child process, and resolves the addresses here.
pub(crate) fn rank(path: &Path, draws: bool) -> anyhow::Result<Report> {
    let trace = trace_file::read(path)?;
    if trace.is_transformed() {
        return Err(anyhow!("{} is a transformed trace: rank the recording", path.display()));
    }
    let mut news = News::new("analysing", true);
    let analysis = child::analyse(trace_file::open(path)?, draws, &mut news)
        .with_context(|| format!("cannot analyse {}", path.display()))?;
    drop(news);
    let (measured, mut beside, extent) = match analysis {
        Analysis::Measured(measured, beside, extent) => (measured, beside, extent),
        Analysis::Diverged(divergence) => return Err(diverged(path, &divergence)?),
    };
    let mut symbols = Symbols::new(trace.modules());
    let ranked = refrain_transform::rank(&measured, &mut symbols);
    let picture = beside.picture.take();
    let beside = with_places(beside, ranked.original_ns, &mut symbols);
    let header = trace.header();
    let cores = u64::from(header.machine.cores.max(1));
    let (_, latencies) = calibration::costs(header.machine.latencies, header.tsc_hz);
    let machine = locks::Machine { cores, latencies };
    let beside = (beside, notes(&trace, extent));
    let machine = (machine, extent.recorded_ns);
    let mut report = locks::report(ranked, header.argv.join(" "), machine, beside);
    match picture {
        Some(Ok(picture)) => report.picture = Some(picture),
        Some(Err(why)) => report.notes.push(format!("no picture of the threads: {why}")),
        None => {}
    }
    Ok(report)
}

/// Places that threads waited at for words that are no locks: at most so many, and each for at
/// least this part of the run.
const NOT_UNDERSTOOD: usize = 5;
const WORTH_A_LINE: u64 = 200;

/// What was found beside the ranking, with its places.
fn with_places(found: machine::Beside, original_ns: u64, symbols: &mut Symbols) -> Beside {
    let mut made = BTreeMap::new();
    for make in found.made {
        *made.entry(make).or_default() += 1;
    }
    let irregular = found.irregular.into_iter().map(|(address, why, site, critical_sections)| {
        let site = refrain_transform::Resolver::resolve(symbols, site).into();
        IrregularLock { address, why, site, critical_sections }
    });
    let irregular = irregular.collect();
    let mut not_understood: Vec<NotUnderstood> = Vec::new();
    for unknown in found.unknown {
        let site: Place = refrain_transform::Resolver::resolve(symbols, unknown.pc + 1).into();
        match not_understood.iter_mut().find(|it| it.site.short() == site.short()) {
            Some(there) => {
                there.words += 1;
                there.waits += unknown.waits;
                there.waited_ns += unknown.ticks;
            }
            None => not_understood.push(NotUnderstood {
                site,
                words: 1,
                waits: unknown.waits,
                waited_ns: unknown.ticks,
            }),
        }
    }
    not_understood.retain(|it| it.waited_ns > original_ns / WORTH_A_LINE);
    not_understood.sort_by_key(|it| std::cmp::Reverse(it.waited_ns));
    not_understood.truncate(NOT_UNDERSTOOD);
    Beside { made, irregular, not_understood }
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

/// What left the recording has no ranking. If the program raced, that is why, and the next recording
/// knows it.
pub(super) fn diverged(path: &Path, divergence: &Divergence) -> anyhow::Result<anyhow::Error> {
    let Divergence { thread, event, kind, .. } = divergence;
    let races = racing::explain(path, divergence, true)?;
    let pair = races.as_ref().and_then(|races| races.of_the_program());
    let why = pair.map_or_else(String::new, |pair| {
        format!(", and the program races: {} are not ordered", pair.short())
    });
    let learned = races.is_some_and(|races| races.every_access || races.learned > Some(0));
    let then = if learned { "record it again, which orders more; " } else { "" };
    Ok(anyhow!(
        "cannot analyse {}: the replay diverged at {thread} {event} ({kind}){why}; {then}\
         `refrain replay` says more",
        path.display()
    ))
}

/// What the reader must know to judge the numbers.
fn notes(trace: &Trace, Extent { events, recorded, .. }: Extent) -> Vec<String> {
    let cut = || {
        let (events, recorded) = (count(events), counted(recorded, "event"));
        format!("the recording was cut off: {events} of {recorded} could be replayed and analysed")
    };
    let every = || {
        "with the order of every access, sections and waits took several times as long as without: \
         gains are rough, and locks that the program makes itself are not recognised"
            .to_owned()
    };
    let is_every = trace.header().order.is_of_every_access();
    [trace.is_truncated().then(cut), is_every.then(every)].into_iter().flatten().collect()
}

/// The first groups of a ranking as a page, with their source.
fn page(report: Report, top: usize) -> anyhow::Result<String> {
    let mut report = report.truncated(top);
    for group in &mut report.groups {
        group.excerpts = excerpts(&[&group.first, &group.second]);
    }
    html::render(&report, report.picture.as_ref())
}

/// Prints the first groups of a ranking as text or as JSON.
pub(crate) fn print(report: Report, ranking: &Ranking) -> anyhow::Result<()> {
    let mut report = report.truncated(ranking.top);
    report.details = ranking.details;
    if ranking.details {
        for group in &mut report.groups {
            group.excerpts = excerpts(&[&group.first, &group.second]);
        }
    }
    if ranking.json {
        output::print_json("locks", &report)
    } else {
        output::print(&render(&report, Style::of_stdout()))
    }
}
