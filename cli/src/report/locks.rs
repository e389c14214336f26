//! The ranking of unnecessary lock contention: its data, and the JSON that comes of it. [`text`] is
//! the report for people.

mod text;

pub(crate) use text::render;

use super::comparison::Comparison;
use super::numbers::{counted, duration, signed};
use refrain_session::calibration::Source;
use refrain_session::ranking::{IrregularLock, NotUnderstood, Ranking};
use refrain_transform::{
    self as transform, Analysed, Basis, Gain, Make, OnCores, Picture, Site, Together, UlcpKind,
    WithThreads,
};
use serde::Serialize;
use std::collections::BTreeMap;

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
    /// How long the recording took. (Of several recordings, the middle one.)
    pub(crate) recorded_ns: u64,
    /// What the model makes of the recording, the recorder's work included.
    pub(crate) check_ns: Option<u64>,
    /// What the run gains without unnecessary contention, and how sure that is.
    pub(crate) gain: Option<Gain>,
    /// Virtual time without unnecessary contention. `None` if that replay did not end.
    pub(crate) ulcp_free_ns: Option<u64>,
    /// Groups of all ranks, before `--top`.
    pub(crate) groups_found: usize,
    /// What ranks the groups.
    pub(crate) ranked_by: Basis,
    /// The groups shown.
    pub(crate) groups: Vec<Group>,
    /// Sites where threads waited in the recording, the longest in vain first.
    pub(crate) sites: Vec<Site>,
    /// What the most costly groups gain together.
    pub(crate) together: Vec<Together>,
    /// The run on other numbers of cores.
    pub(crate) over_cores: Vec<OnCores>,
    /// The run with more threads.
    pub(crate) over_threads: Vec<WithThreads>,
    /// Groups that only waits on condition variables made, and no program can avoid.
    pub(crate) spurious: Vec<Group>,
    /// Locks that the program makes itself, by how they are made.
    pub(crate) made: BTreeMap<Make, u64>,
    /// Locks of which nothing can be said.
    pub(crate) irregular: Vec<IrregularLock>,
    /// What threads waited for without its being a lock, as far as can be told; the longest first.
    pub(crate) not_understood: Vec<NotUnderstood>,
    /// What suppressions have taken out of the groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) suppressed: Option<Suppressed>,
    /// The ranking against an older one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline: Option<Comparison>,
    /// What the reader must know to judge the numbers.
    pub(crate) notes: Vec<String>,
    /// Whether the text shows more than the ranking.
    #[serde(skip)]
    pub(crate) details: bool,
    /// The threads over time, if that was asked for.
    #[serde(skip)]
    pub(crate) picture: Option<Picture>,
}

/// Groups that the user does not want to see.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Suppressed {
    /// The file that says so.
    pub(crate) file: String,
    /// How many groups.
    pub(crate) groups: u64,
}

/// A line of source, and those around it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Excerpt {
    /// The file's path.
    pub(crate) file: String,
    /// The number of the line that is meant.
    pub(crate) line: u32,
    /// The lines by their numbers.
    pub(crate) lines: Vec<(u32, String)>,
}

/// A group of pairs at one pair of sites, and what its reader can do.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Group {
    /// Where it is, and what it costs.
    #[serde(flatten)]
    pub(crate) ranked: transform::Group,
    /// What usually helps.
    pub(crate) advice: &'static str,
    /// The source of both sites, where details are wanted and it is there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) excerpts: Vec<Excerpt>,
}

impl Group {
    fn new(ranked: transform::Group) -> Group {
        Group { advice: advice(ranked.kind), ranked, excerpts: Vec::new() }
    }
}

/// What usually helps.
fn advice(kind: UlcpKind) -> &'static str {
    match kind {
        UlcpKind::NullLock => {
            "One of the two sections touched no data that several threads use in this run. Take the \
             lock only in the branch that needs it. If each thread has its own part of the data, \
             give each part a lock of its own; if only one thread ever uses the data, leave the lock out."
        }
        UlcpKind::ReadRead => {
            "Both sections only read. Use a reader-writer lock, or no lock for data that hardly \
             ever changes (replace it as a whole, as RCU does). If they poll, have them wait for a \
             signal instead."
        }
        UlcpKind::DisjointWrite => {
            "One section writes, but only data that the other never uses. Give each field, row or \
             partition a lock of its own, or make the field atomic."
        }
        UlcpKind::RedundantWrite => {
            "Both sections store the same value. Store it without the lock, as an atomic variable, or \
             look first whether it is there already."
        }
        UlcpKind::DisjointBits => {
            "The sections use different bits of one word. Change them by an atomic instruction (or, \
             and, xor) without the lock, or give each user a word of its own."
        }
        UlcpKind::CommutativeUpdate => {
            "What the sections do to the same data comes to the same in either order, but must not be \
             lost: they add, or set bits, and do not look at the result. Do that by an atomic \
             instruction without the lock (whatever else changes the data must then do so by atomic \
             instructions, too), or let each thread have a sum of its own."
        }
    }
}

/// Why the gains are not to be believed.
fn doubt(recorded_ns: u64, check_ns: Option<u64>) -> Option<String> {
    Some(format!(
        "the model takes {} for the run that was recorded in {}: something in it took time that the \
         model does not know (a machine that was busy otherwise, waits that are not for locks). So \
         gains are not shown, and the rows are ranked by the waiting that was recorded",
        duration(signed(check_ns?)),
        duration(signed(recorded_ns))
    ))
}

/// How much of everything was analysed, in words.
pub(super) fn counts(analysed: &Analysed) -> String {
    let parts = [
        counted(analysed.threads, "thread"),
        counted(analysed.events, "event"),
        counted(analysed.locks, "lock"),
        counted(analysed.critical_sections, "critical section"),
    ];
    parts.join(", ")
}

impl Report {
    /// Whether the model's gains are to be believed.
    pub(crate) fn believes_gains(&self) -> bool {
        self.ranked_by == Basis::Gain
    }

    /// Whether a group's gain is surely above zero: its whole range is.
    pub(crate) fn is_sure(&self, group: &Group) -> bool {
        self.believes_gains() && group.ranked.alone.is_some_and(|gain| gain.least_ns > 0)
    }

    /// Keeps the `top` first groups, and as many sites.
    pub(crate) fn truncated(mut self, top: usize) -> Report {
        self.groups.truncate(top);
        self.sites.truncate(top);
        self
    }
}

/// A ranking with all its groups, and what its reader must know beside.
pub(crate) fn report(ranking: Ranking, mut notes: Vec<String>) -> Report {
    let Ranking { ranked, recorded_ns, .. } = ranking;
    let groups_found = ranked.groups.len();
    if ranked.ranked_by == Basis::RecordedWaiting {
        notes.extend(doubt(recorded_ns, ranked.check_ns));
    }
    notes.extend(ranked.ulcp_free_error.map(|why| format!("{why}; no gain is known")));
    notes.extend(ranked.groups.iter().filter_map(|group| {
        let why = group.alone_error.as_ref()?;
        Some(format!("the replay with group {} alone fixed did not end: {why}", group.rank))
    }));
    let picture = match ranking.picture {
        Some(Ok(picture)) => Some(picture),
        Some(Err(why)) => {
            notes.push(format!("no picture of the threads: {why}"));
            None
        }
        None => None,
    };
    Report {
        command: ranking.command,
        cores: ranking.cores,
        latencies: ranking.latencies,
        analysed: ranked.analysed,
        original_ns: ranked.original_ns,
        recorded_ns,
        check_ns: ranked.check_ns,
        gain: ranked.gain,
        ulcp_free_ns: ranked.ulcp_free_ns,
        groups_found,
        ranked_by: ranked.ranked_by,
        groups: ranked.groups.into_iter().map(Group::new).collect(),
        sites: ranked.sites,
        together: ranked.together,
        over_cores: ranked.over_cores,
        over_threads: ranked.over_threads,
        spurious: ranked.spurious.into_iter().map(Group::new).collect(),
        made: ranking.made,
        irregular: ranking.irregular,
        not_understood: ranking.not_understood,
        suppressed: None,
        baseline: None,
        notes,
        details: false,
        picture,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::output::Style;
    use crate::report::example;
    use insta::assert_snapshot;
    use refrain_session::symbols::Place;
    use refrain_transform::{Irregularity, PairCounts};

    fn group(rank: u32, kind: UlcpKind, sites: [Place; 2], numbers: (u64, i64, f64)) -> Group {
        let [first, second] = sites;
        let (pairs, delta_ns, share) = numbers;
        let kinds = PairCounts { null_lock: pairs, ..PairCounts::default() };
        let alone_ns = (rank < 3).then_some(delta_ns / 2);
        Group::new(transform::Group {
            rank,
            kind,
            first,
            second,
            pairs,
            kinds,
            conflicts: 3,
            delta_ns,
            in_vain_ns: u64::from(4 - rank) * 7_000_000,
            share,
            alone_ns,
            alone: None,
            alone_error: None,
        })
    }

    pub(crate) fn example() -> Report {
        let lookup = example::place("cache_lookup", "/src/corpus/c/demo.c", 92);
        let served = example::place("count_served", "/src/corpus/c/demo.c", 113);
        let mut inlined = example::place("lock", "mutex.h", 7);
        inlined.frames.extend(example::place("log_if_slow", "demo.c", 136).frames);
        let mut bare = example::place("x", "y", 0x9a1c0);
        bare.frames.clear();
        let lookups = [lookup.clone(), lookup];
        let woken =
            [example::place("worker", "queue.c", 53), example::place("enter", "queue.c", 51)];
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
            recorded_ns: 351_000_000,
            check_ns: Some(349_000_000),
            gain: Some(Gain {
                least_ns: 120_000_000,
                likely_ns: 144_600_000,
                most_ns: 160_000_000,
            }),
            ulcp_free_ns: Some(201_000_000),
            groups_found: 4,
            ranked_by: Basis::Gain,
            groups: vec![
                group(1, UlcpKind::ReadRead, lookups, (35_988, 101_234_567, 0.6998)),
                group(2, UlcpKind::DisjointWrite, [served, inlined], (1_204, 43_000_000, 0.2974)),
                group(3, UlcpKind::NullLock, [bare.clone(), bare], (1, -1_500, -0.00001)),
            ],
            sites: vec![Site {
                site: example::place("cache_lookup", "/src/corpus/c/demo.c", 92),
                critical_sections: 12_000,
                waited: 3_104,
                waited_ns: 98_700_000,
                unnecessary_ns: 90_014_400,
                unnecessary: 0.912,
                gain: Some(Gain {
                    least_ns: 90_000_000,
                    likely_ns: 101_000_000,
                    most_ns: 120_000_000,
                }),
            }],
            together: vec![Together {
                groups: 2,
                gain: Gain { least_ns: 110_000_000, likely_ns: 140_000_000, most_ns: 155_000_000 },
            }],
            over_cores: [(1, 500_000_000, 500_000_000), (2, 345_600_000, 201_000_000)]
                .map(|(cores, original_ns, ulcp_free_ns)| OnCores {
                    cores,
                    original_ns,
                    ulcp_free_ns,
                })
                .to_vec(),
            over_threads: vec![WithThreads {
                copies: 2,
                original_ns: 690_000_000,
                ulcp_free_ns: 402_000_000,
            }],
            spurious: vec![group(1, UlcpKind::NullLock, woken, (7, 0, 0.0))],
            made: BTreeMap::new(),
            irregular: Vec::new(),
            not_understood: Vec::new(),
            suppressed: None,
            baseline: None,
            notes: vec!["the trace was cut off: only its whole part was analysed".into()],
            details: false,
            picture: None,
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
    fn at_60_columns() {
        let text = render(&example(), Style { width: 60, colour: false });
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert_snapshot!(text);
    }

    #[test]
    fn in_detail_with_the_source() {
        let mut report = Report { details: true, ..example() };
        report.groups.truncate(1);
        let lines = [(91, "static int lookup(int key) {"), (92, "    lock(&m);"), (93, "}")];
        report.groups[0].excerpts = vec![Excerpt {
            file: "/src/corpus/c/demo.c".into(),
            line: 92,
            lines: lines.map(|(line, text)| (line, text.to_owned())).to_vec(),
        }];
        assert_snapshot!(render(&report, Style { width: 80, colour: false }));
    }

    #[test]
    fn what_is_not_ranked_is_said() {
        let report = Report {
            groups: Vec::new(),
            groups_found: 0,
            spurious: Vec::new(),
            notes: Vec::new(),
            analysed: Analysed { critical_sections: 40, locks: 2, ..Analysed::default() },
            made: [(Make::Word, 2), (Make::Ticket, 1)].into(),
            irregular: vec![IrregularLock {
                address: 0x1000_4080,
                why: Irregularity::ReadersWrite,
                site: example::place("find_", "irregular.c", 5),
                critical_sections: 40,
            }],
            not_understood: vec![NotUnderstood {
                site: example::place("wait_for_turn", "queue.c", 77),
                words: 3,
                waits: 1_204,
                waited_ns: 12_300_000,
            }],
            ..example()
        };
        assert_snapshot!(render(&report, Style { width: 80, colour: false }));
    }

    #[test]
    fn fixing_what_does_not_help_is_no_gain() {
        let report = Report { ulcp_free_ns: Some(350_000_000), notes: Vec::new(), ..example() };
        let text = render(&report, Style { width: 80, colour: false });
        assert!(text.contains("no gain"), "{text}");
        assert!(!text.contains("-1.50"), "{text}");
    }

    #[test]
    fn no_rows_are_not_no_groups_and_no_sections_are_no_clean_result() {
        let style = Style { width: 80, colour: false };
        let none = Report { groups: Vec::new(), groups_found: 4, ..example() };
        let text = render(&none, style);
        assert!(text.contains("4 groups; --top 4 shows them"), "{text}");
        assert!(!text.contains("no unnecessary lock contention"), "{text}");
        let empty = Report {
            groups: Vec::new(),
            groups_found: 0,
            analysed: Analysed::default(),
            ..example()
        };
        let text = render(&empty, style);
        assert!(!text.contains("no unnecessary lock contention"), "{text}");
        assert!(text.contains("holds no critical section"), "{text}");
    }

    #[test]
    fn gains_of_a_model_that_is_far_off_are_not_shown() {
        let report = Report {
            ranked_by: Basis::RecordedWaiting,
            check_ns: Some(420_000_000),
            notes: doubt(351_000_000, Some(420_000_000)).into_iter().collect(),
            ..example()
        };
        assert!(!report.groups.iter().any(|group| report.is_sure(group)));
        assert_snapshot!(render(&report, Style { width: 80, colour: false }));
    }

    #[test]
    fn places_that_cost_next_to_nothing_have_no_rows() {
        let style = Style { width: 80, colour: false };
        let mut report = example();
        report.groups[2].ranked.in_vain_ns = 300_000;
        let text = render(&report, style);
        assert!(!text.contains("\n   3  "), "{text}");
        assert!(text.contains("1 more row costs less than a thousandth"), "{text}");
        let ranked_by = Basis::RecordedWaiting;
        let unbelieved = render(&Report { ranked_by, ..report.clone() }, style);
        assert!(unbelieved.contains("\n   3  "), "{unbelieved}");
        let detailed = render(&Report { details: true, ..report.clone() }, style);
        assert!(detailed.contains("\n   3  "), "{detailed}");
        report.groups.drain(..2);
        report.groups_found = 1;
        let gain = Some(Gain { least_ns: 20, likely_ns: 349, most_ns: 26_000_000 });
        let text = render(&Report { gain, ulcp_free_ns: Some(345_599_651), ..report }, style);
        assert!(text.contains("no unnecessary lock contention was found that"), "{text}");
        assert!(text.contains("no sure gain"), "{text}");
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
