//! Which store each watched load read (STRIDE, section IV).

use super::numbers::{count, counted, percent};
use super::table::{self, Column};
use crate::output::Style;
use refrain_session::linkages::{Linkages, Read, Site};
use refrain_trace::harmless::escape;
use std::fmt::Write;

/// As text.
pub(crate) fn render(report: &Linkages, style: Style) -> String {
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

fn kinds(report: &Linkages, style: Style) -> String {
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

fn sites(report: &Linkages, style: Style) -> String {
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
        let report = Linkages {
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
            ..Linkages::default()
        };
        insta::assert_snapshot!(render(&report, Style { width: 80, colour: false }));
        let nothing = render(&Linkages::default(), Style { width: 80, colour: false });
        assert_eq!(nothing, "0 watched loads with an event, 0 without; 0 stores to 0 words\n");
    }
}
