//! The ranking of unnecessary lock contention.

use super::numbers::{count, counted, duration, percent};
use super::table::{self, Column};
use crate::output::Style;
use crate::symbols::{Code, Place, Symbols};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// What the replay child found; addresses are not resolved, because the child reaches no files.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Analysis {
    /// What was analysed and with which result.
    pub(crate) totals: Totals,
    /// Groups, the most expensive first.
    pub(crate) groups: Vec<RawGroup>,
    /// What the reader must know to judge the numbers.
    pub(crate) notes: Vec<String>,
}

/// What was analysed, and what all changes together gain.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Totals {
    /// Guest threads.
    pub(crate) threads: u64,
    /// Events.
    pub(crate) events: u64,
    /// Locks.
    pub(crate) locks: u64,
    /// Critical sections.
    pub(crate) sections: u64,
    /// Pairs of critical sections that were compared.
    pub(crate) pairs: u64,
    /// Pairs that contend truly.
    pub(crate) true_pairs: u64,
    /// Modelled cores.
    pub(crate) cores: u64,
    /// Virtual time of the trace as recorded.
    pub(crate) original_ns: u64,
    /// Virtual time without unnecessary contention.
    pub(crate) ulcp_free_ns: u64,
}

/// Pairs of one kind at one pair of sites.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct RawGroup {
    /// `null-lock`, `read-read`, `disjoint-write`, `benign`.
    pub(crate) kind: String,
    /// Return address of the first acquisition.
    pub(crate) first: u64,
    /// Return address of the second.
    pub(crate) second: u64,
    /// Pairs.
    pub(crate) pairs: u64,
    /// Virtual time that removing them gains (Eq. 1); a negative number is a loss.
    pub(crate) delta_ns: i64,
    /// Share of the group in the gain of all (Eq. 2).
    pub(crate) share: f64,
}

/// The ranking with source lines.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Report {
    /// The command that was recorded.
    pub(crate) command: String,
    /// Sums.
    pub(crate) totals: Totals,
    /// Groups of all ranks, before `--top`.
    pub(crate) groups_found: usize,
    /// The groups shown.
    pub(crate) groups: Vec<Group>,
    /// What the reader must know.
    pub(crate) notes: Vec<String>,
}

/// A group with source lines.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Group {
    /// 1 for the most expensive.
    pub(crate) rank: usize,
    /// Kind of contention.
    pub(crate) kind: String,
    /// Where the earlier critical section begins.
    pub(crate) first: Place,
    /// Where the later one begins.
    pub(crate) second: Place,
    /// Pairs.
    pub(crate) pairs: u64,
    /// Gain.
    pub(crate) delta_ns: i64,
    /// Share in the gain of all.
    pub(crate) share: f64,
}

/// Resolves the addresses of the `top` first groups.
pub(crate) fn resolve(
    analysis: Analysis,
    symbols: &mut Symbols,
    command: String,
    top: usize,
) -> Report {
    let Analysis { totals, groups, notes } = analysis;
    let groups_found = groups.len();
    let shown = &groups[..top.min(groups_found)];
    let codes: Vec<Code> = shown
        .iter()
        .flat_map(|group| [Code::After(group.first), Code::After(group.second)])
        .collect();
    let mut places = symbols.places(&codes).into_iter();
    let mut next = || places.next().expect("every group has two places");
    let groups = shown.iter().enumerate().map(|(index, group)| Group {
        rank: index + 1,
        kind: group.kind.clone(),
        first: next(),
        second: next(),
        pairs: group.pairs,
        delta_ns: group.delta_ns,
        share: group.share,
    });
    Report { command, totals, groups_found, groups: groups.collect(), notes }
}

/// The report for people.
pub(crate) fn render(report: &Report, style: Style) -> String {
    let mut text = summary(report);
    if report.groups.is_empty() {
        text += "\nno unnecessary lock contention was found\n";
    } else {
        text.push('\n');
        text += &ranking(&report.groups, style);
    }
    if report.groups.len() < report.groups_found {
        let _ = writeln!(
            text,
            "\n{}; --top {} shows all",
            counted((report.groups_found - report.groups.len()) as u64, "more group"),
            report.groups_found
        );
    }
    for note in &report.notes {
        let _ = writeln!(text, "\nnote: {note}");
    }
    text
}

fn summary(report: &Report) -> String {
    let totals = &report.totals;
    let gain = totals.original_ns as i64 - totals.ulcp_free_ns as i64;
    let share = if totals.original_ns == 0 { 0.0 } else { gain as f64 / totals.original_ns as f64 };
    table::pairs(&[
        ("analysed", report.command.clone()),
        (
            "",
            format!(
                "{}, {}, {}, {}",
                counted(totals.threads, "thread"),
                counted(totals.events, "event"),
                counted(totals.locks, "lock"),
                counted(totals.sections, "critical section"),
            ),
        ),
        (
            "",
            format!(
                "{} compared, {} of them true contention",
                counted(totals.pairs, "pair"),
                count(totals.true_pairs)
            ),
        ),
        (
            "T original",
            format!(
                "{} (virtual time, {})",
                duration(totals.original_ns as i64),
                counted(totals.cores, "core")
            ),
        ),
        (
            "T ULCP-free",
            format!(
                "{} ({} less, {})",
                duration(totals.ulcp_free_ns as i64),
                duration(gain),
                percent(share)
            ),
        ),
    ])
}

fn ranking(groups: &[Group], style: Style) -> String {
    let header = [
        ("rank", Column::Right),
        ("kind", Column::Left),
        ("pairs", Column::Right),
        ("ΔT", Column::Right),
        ("share P", Column::Right),
        ("first site / second site", Column::Left),
    ];
    let rows = groups.iter().map(|group| {
        vec![
            group.rank.to_string(),
            group.kind.clone(),
            count(group.pairs),
            duration(group.delta_ns),
            percent(group.share),
            sites(group),
        ]
    });
    table::render(&header, rows.collect(), style)
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

    fn report() -> Report {
        let group = |rank, kind: &str, first, second, pairs, delta_ns, share| Group {
            rank,
            kind: kind.into(),
            first,
            second,
            pairs,
            delta_ns,
            share,
        };
        let lookup = Place::example("cache_lookup", "/src/corpus/c/demo.c", 92);
        let served = Place::example("count_served", "/src/corpus/c/demo.c", 113);
        let mut inlined = Place::example("lock", "mutex.h", 7);
        inlined.frames.extend(Place::example("log_if_slow", "demo.c", 136).frames);
        let mut bare = Place::example("x", "y", 0x9a1c0);
        bare.frames.clear();
        Report {
            command: "demo 12000 3".into(),
            totals: Totals {
                threads: 4,
                events: 98_304,
                locks: 4,
                sections: 48_000,
                pairs: 143_988,
                true_pairs: 35_997,
                cores: 2,
                original_ns: 345_600_000,
                ulcp_free_ns: 201_000_000,
            },
            groups_found: 4,
            groups: vec![
                group(1, "read-read", lookup.clone(), lookup, 35_988, 101_234_567, 0.6998),
                group(2, "disjoint-write", served, inlined, 1_204, 43_000_000, 0.2974),
                group(3, "null-lock", bare.clone(), bare, 1, -1_500, -0.00001),
            ],
            notes: vec!["the trace was cut off: only its whole part was analysed".into()],
        }
    }

    #[test]
    fn at_80_columns() {
        assert_snapshot!(render(&report(), Style { width: 80, colour: false }));
    }

    #[test]
    fn at_120_columns() {
        assert_snapshot!(render(&report(), Style { width: 120, colour: false }));
    }

    #[test]
    fn nothing_found() {
        let report = Report { groups: Vec::new(), groups_found: 0, notes: Vec::new(), ..report() };
        assert_snapshot!(render(&report, Style { width: 80, colour: false }));
    }

    #[test]
    fn as_json() {
        let mut report = report();
        report.groups.truncate(1);
        assert_snapshot!(crate::output::json("locks", &report).expect("can be written"));
    }

    #[test]
    fn ranks_follow_the_order_of_the_analysis() {
        let group = |kind: &str| RawGroup {
            kind: kind.into(),
            first: 1,
            second: 2,
            pairs: 1,
            delta_ns: 0,
            share: 0.0,
        };
        let analysis =
            Analysis { groups: vec![group("a"), group("b"), group("c")], ..Analysis::default() };
        let report = resolve(analysis, &mut Symbols::new(&[]), "x".into(), 2);
        let ranks: Vec<_> = report.groups.iter().map(|g| (g.rank, g.kind.as_str())).collect();
        assert_eq!(ranks, [(1, "a"), (2, "b")]);
        assert_eq!(report.groups_found, 3);
        assert_eq!(report.groups[0].first.short(), "0x1");
    }
}
