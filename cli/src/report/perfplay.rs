//! PerfPlay's tables and figures (section 6), for any recordings: as text, and as a page with bars.
//!
//! What there is of each is an [`Exhibit`]: rows of numbers, of which some are drawn.

use super::numbers::{bytes, change, count, percent};
use super::table::{self, Column};
use crate::output::Style;
use anyhow::Context;
use minijinja::{AutoEscape, Environment, context};
use refrain_session::compare::Row;
use refrain_session::evaluation::{EvaluatedGroup, Evaluation};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = include_str!("perfplay/page.html");

/// All recordings.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Report {
    /// In the order in which they were named.
    pub(crate) recordings: Vec<Evaluation>,
}

/// A table or a figure of the paper.
struct Exhibit {
    /// As the paper numbers it.
    number: &'static str,
    title: &'static str,
    /// What the columns mean, where the paper's words do not say it.
    legend: &'static str,
    header: Vec<(&'static str, Column)>,
    rows: Vec<Vec<String>>,
    /// Bars: name, what is drawn, and a part of the longest run or bar.
    bars: Vec<(String, &'static str, f64)>,
}

/// The report for people.
pub(crate) fn render(report: &Report, style: Style) -> String {
    let mut text = String::new();
    for exhibit in exhibits(report) {
        if !text.is_empty() {
            text.push('\n');
        }
        text += &format!("{}: {}\n\n", exhibit.number, exhibit.title);
        text += &table::render(&exhibit.header, exhibit.rows, style);
        if !exhibit.legend.is_empty() {
            text += &format!("\n{}\n", exhibit.legend);
        }
    }
    for note in notes(report) {
        text += &format!("\nnote: {note}\n");
    }
    text
}

/// The same as a page of its own.
pub(crate) fn page(report: &Report) -> anyhow::Result<String> {
    let mut templates = Environment::new();
    templates.set_auto_escape_callback(|_| AutoEscape::Html);
    templates.add_template("page", PAGE).context("the template of the page")?;
    let exhibits = exhibits(report).into_iter().map(|exhibit| {
        let longest = exhibit.bars.iter().map(|bar| bar.2).fold(f64::MIN_POSITIVE, f64::max);
        // Room is left for the numbers.
        let bars = exhibit.bars.iter().map(|(name, kind, part)| {
            context! {
                name => name, kind => *kind, width => format!("{:.1}", part.max(0.0) / longest * 70.0),
                part => percent(*part),
            }
        });
        context! {
            number => exhibit.number,
            title => exhibit.title,
            legend => exhibit.legend,
            header => exhibit.header.iter().map(|(name, column)| (*name, *column == Column::Right))
                .collect::<Vec<_>>(),
            rows => exhibit.rows,
            bars => bars.collect::<Vec<_>>(),
        }
    });
    let page = context! {
        exhibits => exhibits.collect::<Vec<_>>(),
        notes => notes(report),
    };
    let template = templates.get_template("page").context("the template of the page")?;
    template.render(page).context("cannot make the page")
}

fn exhibits(report: &Report) -> Vec<Exhibit> {
    let named: Vec<(String, &Evaluation)> = names(&report.recordings);
    let mut found = vec![
        breakdown(&named),
        opportunities(&named),
        locksets(&named),
        fidelity(&named),
        performance(&named),
    ];
    found.extend(series(
        &report.recordings,
        "Figures 15 and 19",
        "ULCPs with more threads",
        |a, b| a.threads != b.threads,
    ));
    found.extend(series(
        &report.recordings,
        "Figures 16 and 19",
        "ULCPs with other input",
        |a, b| a.threads == b.threads && a.command != b.command,
    ));
    found
}

/// Why numbers are missing.
fn notes(report: &Report) -> Vec<String> {
    let mut found = Vec::new();
    for (name, of) in names(&report.recordings) {
        if of.ulcp_free_ns.is_none() {
            found.push(format!("{name}: the replay without ULCPs did not end"));
        }
        if let Err(why) = &of.locksets {
            found.push(format!("{name}: no overhead of locksets: {why}"));
        }
        match &of.schedulers {
            Err(why) => found.push(format!("{name}: no replays under other schedulers: {why}")),
            Ok(rows) => found.extend(rows.iter().filter_map(|row| {
                Some(format!("{name}: {}: {}", row.scheduler.name(), row.why.as_ref()?))
            })),
        }
    }
    found
}

/// Characters of a name, at most.
const LONGEST: usize = 32;

/// Programs by their names, with arguments where that alone tells recordings apart.
fn names(recordings: &[Evaluation]) -> Vec<(String, &Evaluation)> {
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    for recording in recordings {
        *times.entry(program(recording)).or_default() += 1;
    }
    let name = |recording: &Evaluation| {
        let program = program(recording);
        match times[program] {
            1 => program.to_owned(),
            _ => with_arguments(recording),
        }
    };
    recordings.iter().map(|recording| (name(recording), recording)).collect()
}

/// Of paths the last part.
fn with_arguments(recording: &Evaluation) -> String {
    let words = recording.command.iter().map(|word| last(word));
    let name = words.collect::<Vec<_>>().join(" ");
    match name.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name,
    }
}

fn program(recording: &Evaluation) -> &str {
    recording.command.first().map_or("", |path| last(path))
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn breakdown(named: &[(String, &Evaluation)]) -> Exhibit {
    let row = |(name, of): &(String, &Evaluation)| {
        let kinds = &of.kinds;
        let counts = [
            of.acquisitions,
            kinds.null_lock,
            kinds.read_read,
            kinds.disjoint_write,
            kinds.benign(),
        ];
        let mut cells = vec![name.clone(), bytes(of.size)];
        cells.extend(counts.map(count));
        cells
    };
    Exhibit {
        number: "Table 1",
        title: "breakdown of ULCPs",
        legend: "NL null-lock, RR read-read, DW disjoint write: pairs of critical sections",
        header: vec![
            ("program", Column::Left),
            ("size", Column::Right),
            ("locks", Column::Right),
            ("NL", Column::Right),
            ("RR", Column::Right),
            ("DW", Column::Right),
            ("benign", Column::Right),
        ],
        rows: named.iter().map(row).collect(),
        bars: Vec::new(),
    }
}

fn opportunities(named: &[(String, &Evaluation)]) -> Exhibit {
    let row = |(name, of): &(String, &Evaluation)| {
        let first = of.groups.iter().max_by(|a, b| a.share.total_cmp(&b.share));
        vec![
            name.clone(),
            count(of.groups.len() as u64),
            first.map_or_else(|| "-".to_owned(), |group| percent(group.share)),
            first.map_or_else(String::new, |group| group.sites[0].clone()),
        ]
    };
    Exhibit {
        number: "Table 2",
        title: "grouped ULCPs, and the most beneficial one",
        legend: "P (Eq. 2): its part of what all groups' pairs cost together",
        header: vec![
            ("program", Column::Left),
            ("groups", Column::Right),
            ("P", Column::Right),
            ("acquired in", Column::Left),
        ],
        rows: named.iter().map(row).collect(),
        bars: Vec::new(),
    }
}

fn locksets(named: &[(String, &Evaluation)]) -> Exhibit {
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (name, of) in named {
        let Ok(times) = &of.locksets else {
            rows.push(vec![name.clone(), "-".to_owned(), "-".to_owned()]);
            continue;
        };
        let (whole, dynamic) = (times.static_overhead(), times.dynamic_overhead());
        rows.push(vec![name.clone(), exactly(whole), exactly(dynamic)]);
        bars.push((name.clone(), "without", whole));
        bars.push((name.clone(), "with", dynamic));
    }
    Exhibit {
        number: "Table 3",
        title: "overhead of locksets, without and with the dynamic locking strategy",
        legend: "",
        header: vec![
            ("program", Column::Left),
            ("without", Column::Right),
            ("with", Column::Right),
        ],
        rows,
        bars,
    }
}

/// Overheads are small.
fn exactly(part: f64) -> String {
    format!("{:.2} %", part * 100.0)
}

fn fidelity(named: &[(String, &Evaluation)]) -> Exhibit {
    let mut columns: Vec<&'static str> = Vec::new();
    let all = named.iter().filter_map(|(_, of)| of.schedulers.as_ref().ok());
    for row in all.flatten() {
        if !columns.contains(&row.scheduler.name()) {
            columns.push(row.scheduler.name());
        }
    }
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (name, of) in named {
        let mut cells = vec![name.clone()];
        for column in &columns {
            let of_program = of.schedulers.as_deref().unwrap_or_default();
            let row = of_program.iter().find(|row| row.scheduler.name() == *column);
            let Some((mean, spread)) = row.and_then(|row| normalized(row, of.recorded_ns)) else {
                cells.push("-".to_owned());
                continue;
            };
            cells.push(format!("{mean:.3} ± {spread:.3}"));
            bars.push((name.clone(), *column, mean));
        }
        rows.push(cells);
    }
    let header = [("program", Column::Left)].into_iter();
    Exhibit {
        number: "Figure 13",
        title: "performance fidelity: replay time, recorded run = 1",
        legend: "mean and standard deviation; kendo is the paper's SYNC-S",
        header: header.chain(columns.into_iter().map(|name| (name, Column::Right))).collect(),
        rows,
        bars,
    }
}

/// Mean and standard deviation, as parts of the recorded run.
fn normalized(row: &Row, recorded_ns: u64) -> Option<(f64, f64)> {
    let times = row.times.as_ref()?;
    let recorded = recorded_ns.max(1) as f64;
    Some((times.mean_ns as f64 / recorded, times.stddev_ns as f64 / recorded))
}

fn performance(named: &[(String, &Evaluation)]) -> Exhibit {
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (name, of) in named {
        let (loss, waste) = (of.degradation(), of.waste());
        rows.push(vec![name.clone(), part(loss), part(waste)]);
        bars.extend(loss.map(|loss| (name.clone(), "T_pd", loss)));
        bars.extend(waste.map(|waste| (name.clone(), "T_rw", waste)));
    }
    Exhibit {
        number: "Figure 14",
        title: "performance impact of ULCPs, as parts of the run",
        legend: "T_pd: the run with ULCPs less the run without; T_rw: waiting beyond that, per thread",
        header: vec![("program", Column::Left), ("T_pd", Column::Right), ("T_rw", Column::Right)],
        rows,
        bars,
    }
}

fn part(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), change)
}

/// Recordings of one program that differ in a way, in the order of threads and time, with the group
/// that costs most in the last of them.
fn series(
    recordings: &[Evaluation],
    number: &'static str,
    title: &'static str,
    differ: impl Fn(&Evaluation, &Evaluation) -> bool,
) -> Option<Exhibit> {
    let programs: BTreeSet<&str> = recordings.iter().map(program).collect();
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for name in programs {
        let of_program = || recordings.iter().filter(|it| program(it) == name);
        let mut series: Vec<&Evaluation> =
            of_program().filter(|a| of_program().any(|b| differ(a, b))).collect();
        series.sort_by_key(|it| (it.threads, it.original_ns));
        let Some(bug) = series.last().and_then(|last| last.groups.first()) else { continue };
        for of in series {
            let same = |group: &&EvaluatedGroup| group.sites == bug.sites;
            let alone = of.groups.iter().find(same).and_then(|group| of.of_group(group));
            let shown = with_arguments(of);
            rows.push(vec![
                shown.clone(),
                count(of.threads),
                part(of.degradation()),
                part(of.waste()),
                part(alone),
            ]);
            bars.extend(of.degradation().map(|loss| (shown.clone(), "T_pd", loss)));
            bars.extend(of.waste().map(|waste| (shown, "T_rw", waste)));
        }
    }
    (!rows.is_empty()).then(|| Exhibit {
        number,
        title,
        legend: "bug: the group alone that costs most in the program's last row (Figure 19)",
        header: vec![
            ("program", Column::Left),
            ("threads", Column::Right),
            ("T_pd", Column::Right),
            ("T_rw", Column::Right),
            ("bug T_pd", Column::Right),
        ],
        rows,
        bars,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;
    use refrain_session::compare::Row;
    use refrain_session::evaluation::Locksets;
    use refrain_session::{Clock, SchedulerKind};
    use refrain_transform::{PairCounts, Waiting};

    fn evaluation(command: &str, threads: u64, run_ns: u64) -> Evaluation {
        let group = |line, share, ns| EvaluatedGroup {
            sites: [format!("put queue.c:{line}"), format!("put queue.c:{line}")],
            share,
            delta_ns: ns,
            alone_ns: Some(ns / 3),
        };
        let row = |scheduler, times: &[u64]| {
            Row::new((scheduler, Clock::Virtual), (times.to_vec(), (0, None)), run_ns)
        };
        Evaluation {
            command: command.split(' ').map(str::to_owned).collect(),
            threads,
            size: 61_440,
            recorded_ns: run_ns,
            acquisitions: 12_345,
            kinds: PairCounts { null_lock: 7, read_read: 1_200, ..PairCounts::default() },
            original_ns: run_ns,
            ulcp_free_ns: Some(run_ns / 4 * 3),
            waiting: Some(Waiting { original_ns: run_ns, ulcp_free_ns: run_ns / 8 }),
            groups: vec![group(12, 0.75, run_ns as i64 / 2), group(40, 0.25, run_ns as i64 / 8)],
            locksets: Ok(Locksets {
                free_ns: 1_000_000,
                static_ns: 1_043_000,
                dynamic_ns: 1_002_000,
            }),
            schedulers: Ok(vec![
                row(SchedulerKind::MemS, &[run_ns * 2; 3]),
                row(SchedulerKind::Elsc, &[run_ns; 3]),
            ]),
        }
    }

    fn report() -> Report {
        let mut cut = evaluation("/usr/bin/other", 2, 5_000_000);
        cut.ulcp_free_ns = None;
        cut.locksets = Err("it was cut off".to_owned());
        cut.schedulers = Err("it was cut off".to_owned());
        Report {
            recordings: vec![
                evaluation("./queue 100 2", 3, 40_000_000),
                evaluation("./queue 100 4", 5, 30_000_000),
                evaluation("./queue 400 2", 3, 160_000_000),
                cut,
            ],
        }
    }

    #[test]
    fn at_80_columns() {
        assert_snapshot!(render(&report(), Style { width: 80, colour: false }));
    }

    #[test]
    fn a_page() {
        let page = page(&report()).expect("it can be made");
        let body = page.split_once("<body>").expect("it has a body").1;
        assert_snapshot!(body);
    }

    #[test]
    fn waste_is_what_threads_wait_beyond_the_run() {
        let of = evaluation("a", 5, 1_000_000);
        assert_eq!(of.degradation(), Some(0.25));
        assert_eq!(of.waste(), Some((0.875 - 0.25) / 5.0));
        assert_eq!(of.of_group(&of.groups[0]), Some(0.166_666));
    }
}
