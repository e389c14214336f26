//! Which store each watched load read (STRIDE, section IV).

use super::numbers::{count, counted, percent};
use super::table::{self, Column};
use crate::output::Style;
use refrain_session::text::escape;
use serde::Serialize;
use std::fmt::Write;

/// The counts of a trace, and the loads that were asked for.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// The file.
    pub(crate) trace: String,
    /// Watched loads that have an event.
    pub(crate) loads: u64,
    /// Those that have none: they read what their thread had met last.
    pub(crate) without_event: u64,
    /// Words that are stored to by watched stores and locked instructions, and how often they are.
    pub(crate) words: u64,
    pub(crate) stores: u64,
    /// Loads of what another thread stored.
    pub(crate) others: u64,
    /// Of what their own thread stored.
    pub(crate) own: u64,
    /// Of what was there before.
    pub(crate) initial: u64,
    /// Of what no watched store wrote.
    pub(crate) unwatched: u64,
    /// Of a word that is stored to in other pieces.
    pub(crate) mixed: u64,
    /// Values that were compared to find the stores, for all loads and for one at most.
    pub(crate) comparisons: u64,
    pub(crate) most_comparisons: u32,
    /// The instructions that loaded most often.
    pub(crate) sites: Vec<Site>,
    /// The loads that were asked for, thread by thread.
    pub(crate) reads: Vec<Read>,
}

/// An instruction.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Site {
    pub(crate) place: String,
    pub(crate) loads: u64,
    /// How many read what another thread stored.
    pub(crate) others: u64,
    /// On average.
    pub(crate) comparisons: f64,
    /// Where most of what they read was stored.
    pub(crate) writer: Option<String>,
}

/// A load.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Read {
    /// Its thread and event.
    pub(crate) load: String,
    pub(crate) address: u64,
    pub(crate) value: u64,
    pub(crate) place: String,
    /// Thread and event of the store, or what else it read.
    pub(crate) writer: String,
    pub(crate) written_at: Option<String>,
}

/// As text.
pub(crate) fn render(report: &Report, style: Style) -> String {
    let mut text = format!(
        "{} with an event, {} without; {} to {}\n",
        counted(report.loads, "watched load"),
        count(report.without_event),
        counted(report.stores, "store"),
        counted(report.words, "word"),
    );
    if report.loads > 0 {
        text.push('\n');
        text += &kinds(report, style);
        let average = report.comparisons as f64 / report.loads as f64;
        let most = report.most_comparisons;
        let _ = writeln!(text, "\n{average:.2} comparisons for each load, {most} at most\n");
        text += &sites(report, style);
    }
    if !report.reads.is_empty() {
        text.push('\n');
    }
    for read in &report.reads {
        let Read { load, address, value, place, writer, written_at } = read;
        let _ = write!(text, "{load} read {value:#x} at {address:#x}, {}: ", escape(place));
        let _ = match written_at {
            Some(place) => writeln!(text, "{writer}, {}", escape(place)),
            None => writeln!(text, "{writer}"),
        };
    }
    text
}

fn kinds(report: &Report, style: Style) -> String {
    let header = [("read", Column::Left), ("loads", Column::Right), ("share", Column::Right)];
    let kinds = [
        ("what another thread stored", report.others),
        ("what their thread stored", report.own),
        ("the value before all stores", report.initial),
        ("what no watched store wrote", report.unwatched),
        ("a word that is stored to in other pieces", report.mixed),
    ];
    let share = |number: u64| percent(number as f64 / report.loads as f64);
    let rows = kinds.into_iter().filter(|&(_, number)| number > 0);
    let rows = rows.map(|(what, number)| vec![what.to_owned(), count(number), share(number)]);
    table::render(&header, rows.collect(), style)
}

fn sites(report: &Report, style: Style) -> String {
    let header = [
        ("loads", Column::Right),
        ("of others", Column::Right),
        ("comparisons", Column::Right),
        ("load, and where most of what it read was stored", Column::Left),
    ];
    let row = |site: &Site| {
        let writer = site.writer.as_ref().map(|writer| format!("\n<- {writer}"));
        vec![
            count(site.loads),
            count(site.others),
            format!("{:.2}", site.comparisons),
            format!("{}{}", site.place, writer.unwrap_or_default()),
        ]
    };
    table::render(&header, report.sites.iter().map(row).collect(), style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report() {
        let report = Report {
            loads: 1200,
            without_event: 52_000,
            words: 2,
            stores: 900,
            others: 900,
            own: 200,
            initial: 100,
            comparisons: 1320,
            most_comparisons: 7,
            sites: vec![
                Site {
                    place: "take queue.c:12".into(),
                    loads: 1100,
                    others: 900,
                    comparisons: 1.1,
                    writer: Some("put queue.c:7".into()),
                },
                Site {
                    place: "main queue.c:30".into(),
                    loads: 100,
                    others: 0,
                    comparisons: 1.0,
                    writer: None,
                },
            ],
            reads: vec![Read {
                load: "t1 e5".into(),
                address: 0x4010,
                value: 3,
                place: "take queue.c:12".into(),
                writer: "t0 e9".into(),
                written_at: Some("put queue.c:7".into()),
            }],
            ..Report::default()
        };
        insta::assert_snapshot!(render(&report, Style { width: 80, colour: false }));
        let nothing = render(&Report::default(), Style { width: 80, colour: false });
        assert_eq!(nothing, "0 watched loads with an event, 0 without; 0 stores to 0 words\n");
    }
}
