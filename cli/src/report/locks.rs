//! The ranking of unnecessary lock contention.

use super::numbers::{count, counted, duration, percent};
use super::table::{self, Column};
use crate::calibration::Source;
use crate::output::Style;
use crate::symbols::Place;
use refrain_transform::{self as transform, Analysed, PairCounts, UlcpKind};
use serde::Serialize;
use std::fmt::Write;

/// The machine that virtual time models.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Machine {
    /// Its cores.
    pub(crate) cores: u64,
    /// Where its latencies come from.
    pub(crate) latencies: Source,
}

/// The ranking with source lines.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Report {
    /// The command that was recorded.
    pub(crate) command: String,
    /// Modelled cores.
    pub(crate) cores: u64,
    /// Where the latencies of the modelled machine come from.
    pub(crate) latencies: Source,
    /// What was analysed.
    pub(crate) analysed: Analysed,
    /// Virtual time of the trace as recorded.
    pub(crate) original_ns: u64,
    /// Virtual time without unnecessary contention. `None` if that replay did not end.
    pub(crate) ulcp_free_ns: Option<u64>,
    /// Groups of all ranks, before `--top`.
    pub(crate) groups_found: usize,
    /// The groups shown.
    pub(crate) groups: Vec<Group>,
    /// Groups that only waits on condition variables made, and no program can avoid.
    pub(crate) spurious: Vec<Group>,
    /// What the reader must know to judge the numbers.
    pub(crate) notes: Vec<String>,
}

/// A group of pairs at one pair of sites.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Group {
    /// 1 for the most expensive.
    pub(crate) rank: u32,
    /// Kind of most of the pairs.
    pub(crate) kind: UlcpKind,
    /// Where the earlier critical section begins.
    pub(crate) first: Place,
    /// Where the later one begins.
    pub(crate) second: Place,
    /// Pairs.
    pub(crate) pairs: u64,
    /// Pairs by kind.
    pub(crate) kinds: PairCounts,
    /// Pairs of the same code that truly contend.
    pub(crate) conflicts: u64,
    /// Virtual time that removing them gains, summed over the pairs (Eq. 1), as if each thread
    /// had a core of its own.
    pub(crate) delta_ns: i64,
    /// Share in the gains of all groups (Eq. 2).
    pub(crate) share: f64,
    /// By how much the run is shorter if this group alone is removed.
    pub(crate) alone_ns: Option<i64>,
    /// Why that is not known, if its replay did not end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) alone_error: Option<String>,
}

impl Group {
    fn new(group: transform::Group) -> Group {
        Group {
            rank: group.rank,
            kind: group.kind,
            first: group.first.acquire.into(),
            second: group.second.acquire.into(),
            pairs: group.pairs,
            kinds: group.kinds,
            conflicts: group.conflicts,
            delta_ns: group.gain_ns,
            share: group.share,
            alone_ns: group.alone_ns,
            alone_error: group.alone_error,
        }
    }
}

/// Takes the `top` first groups of a ranking.
pub(crate) fn report(
    ranked: transform::Report,
    command: String,
    machine: Machine,
    top: usize,
    mut notes: Vec<String>,
) -> Report {
    let groups_found = ranked.groups.len();
    notes.extend(ranked.ulcp_free_error.map(|why| format!("{why}; no gain is known")));
    notes.extend(ranked.groups.iter().take(top).filter_map(|group| {
        let why = group.alone_error.as_ref()?;
        Some(format!("the replay with group {} alone fixed did not end: {why}", group.rank))
    }));
    Report {
        command,
        cores: machine.cores,
        latencies: machine.latencies,
        analysed: ranked.analysed,
        original_ns: ranked.original_ns,
        ulcp_free_ns: ranked.ulcp_free_ns,
        groups_found,
        groups: ranked.groups.into_iter().take(top).map(Group::new).collect(),
        spurious: ranked.spurious.into_iter().map(Group::new).collect(),
        notes,
    }
}

/// The report for people.
pub(crate) fn render(report: &Report, style: Style) -> String {
    let mut text = summary(report);
    if report.groups.is_empty() {
        text += "\nno unnecessary lock contention was found\n";
    } else {
        text.push('\n');
        text += &ranking(&report.groups, style);
        text += &legend(style);
    }
    if report.groups.len() < report.groups_found {
        let _ = writeln!(
            text,
            "\n{}; --top {} shows all",
            counted((report.groups_found - report.groups.len()) as u64, "more group"),
            report.groups_found
        );
    }
    if !report.spurious.is_empty() {
        text += "\nnull-locks that only waits on condition variables made; no fix can leave them out\n\n";
        text += &ranking(&report.spurious, style);
    }
    for note in &report.notes {
        let _ = writeln!(text, "\nnote: {note}");
    }
    text
}

fn summary(report: &Report) -> String {
    let analysed = &report.analysed;
    let handed = analysed.pairs.ulcps() + analysed.pairs.after_wait + analysed.tlcps;
    let free = report.ulcp_free_ns.map_or_else(
        || "unknown".to_owned(),
        |free| {
            let gain = report.original_ns as i64 - free as i64;
            let share = gain as f64 / report.original_ns.max(1) as f64;
            let (less, share) = (if gain < 0 { "more" } else { "less" }, percent(share.abs()));
            format!("{} ({} {less}, {share})", duration(free as i64), duration(gain.abs()))
        },
    );
    let machine = format!("{}, {}", counted(report.cores, "core"), report.latencies.name());
    table::pairs(&[
        ("analysed", report.command.clone()),
        (
            "",
            format!(
                "{}, {}, {}, {}",
                counted(analysed.threads, "thread"),
                counted(analysed.events, "event"),
                counted(analysed.locks, "lock"),
                counted(analysed.critical_sections, "critical section"),
            ),
        ),
        (
            "",
            format!(
                "{} from one thread to another: {} unnecessary, {} of true contention",
                counted(handed, "hand-over"),
                count(analysed.pairs.ulcps()),
                count(analysed.tlcps)
            ),
        ),
        (
            "",
            format!(
                "{} found the lock taken in the recording",
                counted(analysed.contended, "acquisition")
            ),
        ),
        (
            "T original",
            format!("{} (virtual time, {machine})", duration(report.original_ns as i64)),
        ),
        ("T ULCP-free", free),
    ])
}

/// Columns that it takes to show where the lock is needed, and the gain of each group alone.
const WIDE: u16 = 100;

/// What the columns say.
fn legend(style: Style) -> String {
    let mut text =
        "\nΔT  what the pairs wait for nothing, each for itself: it ranks, but gains overlap\n\
                    P   the group's share in the ΔT of all groups\n"
            .to_owned();
    if style.width >= WIDE {
        text += "conflicts  pairs of the same sites that need their lock\n\
                 alone      by how much the run is shorter if this group alone is fixed\n";
    }
    text
}

fn ranking(groups: &[Group], style: Style) -> String {
    let wide = style.width >= WIDE;
    let mut header = vec![
        ("rank", Column::Right),
        ("kind", Column::Left),
        ("pairs", Column::Right),
        ("ΔT", Column::Right),
        ("P", Column::Right),
    ];
    if wide {
        header.insert(3, ("conflicts", Column::Right));
        header.push(("alone", Column::Right));
    }
    header.push(("first site / second site", Column::Left));
    let rows = groups.iter().map(|group| {
        let mut row = vec![
            group.rank.to_string(),
            name(group.kind).to_owned(),
            count(group.pairs),
            duration(group.delta_ns),
            percent(group.share),
        ];
        if wide {
            row.insert(3, count(group.conflicts));
            row.push(group.alone_ns.map_or_else(String::new, duration));
        }
        row.push(sites(group));
        row
    });
    table::render(&header, rows.collect(), style)
}

/// The kind as JSON has it too.
fn name(kind: UlcpKind) -> &'static str {
    match kind {
        UlcpKind::NullLock => "null-lock",
        UlcpKind::ReadRead => "read-read",
        UlcpKind::DisjointWrite => "disjoint-write",
    }
}

/// Both sites, one per line; once if they are the same.
fn sites(group: &Group) -> String {
    let mut lines = lines_of(&group.first);
    let second = lines_of(&group.second);
    if lines == second {
        lines[0] += " (both)";
    } else {
        lines.extend(second);
    }
    lines.join("\n")
}

fn lines_of(place: &Place) -> Vec<String> {
    let mut lines = vec![place.short()];
    lines.extend(place.inlined_into().map(|line| format!("  {line}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;

    fn group(rank: u32, kind: UlcpKind, sites: [Place; 2], numbers: (u64, i64, f64)) -> Group {
        let [first, second] = sites;
        let (pairs, delta_ns, share) = numbers;
        let kinds = PairCounts { null_lock: pairs, ..PairCounts::default() };
        let alone_ns = (rank < 3).then_some(delta_ns / 2);
        Group {
            rank,
            kind,
            first,
            second,
            pairs,
            kinds,
            conflicts: 3,
            delta_ns,
            share,
            alone_ns,
            alone_error: None,
        }
    }

    fn example() -> Report {
        let lookup = Place::example("cache_lookup", "/src/corpus/c/demo.c", 92);
        let served = Place::example("count_served", "/src/corpus/c/demo.c", 113);
        let mut inlined = Place::example("lock", "mutex.h", 7);
        inlined.frames.extend(Place::example("log_if_slow", "demo.c", 136).frames);
        let mut bare = Place::example("x", "y", 0x9a1c0);
        bare.frames.clear();
        let lookups = [lookup.clone(), lookup];
        let woken =
            [Place::example("worker", "queue.c", 53), Place::example("enter", "queue.c", 51)];
        Report {
            command: "demo 12000 3".into(),
            cores: 2,
            latencies: Source::Typical,
            analysed: Analysed {
                threads: 4,
                events: 98_304,
                locks: 4,
                critical_sections: 48_000,
                pairs: PairCounts { read_read: 143_988, ..PairCounts::default() },
                tlcps: 35_997,
                ..Analysed::default()
            },
            original_ns: 345_600_000,
            ulcp_free_ns: Some(201_000_000),
            groups_found: 4,
            groups: vec![
                group(1, UlcpKind::ReadRead, lookups, (35_988, 101_234_567, 0.6998)),
                group(2, UlcpKind::DisjointWrite, [served, inlined], (1_204, 43_000_000, 0.2974)),
                group(3, UlcpKind::NullLock, [bare.clone(), bare], (1, -1_500, -0.00001)),
            ],
            spurious: vec![group(1, UlcpKind::NullLock, woken, (7, 0, 0.0))],
            notes: vec!["the trace was cut off: only its whole part was analysed".into()],
        }
    }

    #[test]
    fn at_80_columns() {
        assert_snapshot!(render(&example(), Style { width: 80, colour: false }));
    }

    #[test]
    fn at_120_columns() {
        assert_snapshot!(render(&example(), Style { width: 120, colour: false }));
    }

    #[test]
    fn nothing_found() {
        let report = Report {
            groups: Vec::new(),
            groups_found: 0,
            spurious: Vec::new(),
            notes: Vec::new(),
            ..example()
        };
        assert_snapshot!(render(&report, Style { width: 80, colour: false }));
    }

    #[test]
    fn as_json() {
        let mut report = example();
        report.groups.truncate(1);
        report.spurious.clear();
        assert_snapshot!(crate::output::json("locks", &report).expect("can be written"));
    }
}
