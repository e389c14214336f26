//! What the paper's detectors found in a trace, and what they cost: its Tables 1 to 3, and the frequencies
//! of rules in its Figures 2 and 5.

use super::numbers::{bytes, count, counted, percent};
use super::table::{self, Column};
use crate::output::Style;
use refrain_analysis::paper::{Prefilter, Which};
use refrain_session::detectors::{Detected, RacySite, Row};

/// As text.
pub(crate) fn render(report: &Detected, style: Style) -> String {
    let mut text = match report.compared {
        true => comparison(report, style),
        false => places(report, style),
    };
    if let Some(why) = &report.incomplete {
        text += &format!("not all was searched: {why}\n");
    }
    text
}

fn places(report: &Detected, style: Style) -> String {
    let Some(row) = report.rows.first() else { return String::new() };
    let mut text = format!(
        "{} ({}): {} at {}\n",
        row.detector,
        row.granularity,
        found(row),
        counted(row.places, "place"),
    );
    if !report.places.is_empty() {
        let header =
            [("steps", Column::Right), ("variable", Column::Left), ("place", Column::Left)];
        let cells = |it: &RacySite| vec![count(it.count), it.variable.clone(), it.place.clone()];
        text += &table::render(&header, report.places.iter().map(cells).collect(), style);
    }
    if row.folded > 0 {
        text += &format!(
            "and {} in libraries of the system (--all shows them)\n",
            counted(row.folded, "place")
        );
    }
    text
}

/// What there is of it, before where.
fn found(row: &Row) -> String {
    match row.detector.as_str() {
        "velodrome" if row.places == 0 => {
            "all critical sections are serializable: cycles".to_owned()
        }
        "velodrome" => "critical sections are not serializable: cycles".to_owned(),
        "singletrack" => {
            let variables = counted(row.variables, "variable");
            format!("{variables} ordered by locks alone, or by nothing,")
        }
        _ => counted(row.variables, "racy variable"),
    }
}

fn comparison(report: &Detected, style: Style) -> String {
    let total = report.reads + report.writes + report.others;
    let detectors = || report.rows.iter().filter(|row| !is_analysis(row));
    let part = |number: u64| percent(number as f64 / total.max(1) as f64);
    let mut text = format!(
        "{} steps: {} reads, {} writes, {} synchronization\n\nTime and warnings (Table 1)\n",
        count(total),
        part(report.reads),
        part(report.writes),
        part(report.others),
    );
    let header = [
        ("detector", Column::Left),
        ("granularity", Column::Left),
        ("ns/step", Column::Right),
        ("slowdown", Column::Right),
        ("warnings", Column::Right),
        ("variables", Column::Right),
    ];
    let cells = |row: &Row| {
        vec![
            row.detector.clone(),
            row.granularity.clone(),
            format!("{:.1}", row.nanoseconds as f64 / total.max(1) as f64),
            slowdown(report, row),
            count(row.places),
            count(row.variables),
        ]
    };
    text += &table::render(&header, detectors().map(cells).collect(), style);
    text += "\nVector clocks, O(n) operations (Table 2) and memory (Table 3)\n";
    let header = [
        ("detector", Column::Left),
        ("granularity", Column::Left),
        ("clocks", Column::Right),
        ("operations", Column::Right),
        ("memory", Column::Right),
    ];
    let cells = |row: &Row| {
        vec![
            row.detector.clone(),
            row.granularity.clone(),
            count(row.clocks),
            count(row.operations),
            bytes(row.bytes),
        ]
    };
    text += &table::render(&header, detectors().map(cells).collect(), style);
    for row in detectors().filter(|row| !row.rules.is_empty()) {
        text += &rules(row);
    }
    text + &prefilters(report, style)
}

/// Whether it is an analysis behind prefilters.
fn is_analysis(row: &Row) -> bool {
    Which::BEHIND_FILTERS.iter().any(|which| which.name() == row.detector)
}

/// How slow the analyses are behind each filter.
fn prefilters(report: &Detected, style: Style) -> String {
    let mut header = vec![("analysis", Column::Left)];
    header.extend(Prefilter::ALL.map(|filter| (filter.name(), Column::Right)));
    let row = |which: Which| {
        let mut cells = vec![which.name().to_owned()];
        for filter in Prefilter::ALL {
            let fine = |row: &&Row| {
                (row.detector.as_str(), row.prefilter.as_str()) == (which.name(), filter.name())
            };
            let slower = report.rows.iter().find(fine).map(|row| slowdown(report, row));
            cells.push(slower.unwrap_or_else(|| "-".to_owned()));
        }
        cells
    };
    let rows = Which::BEHIND_FILTERS.map(row).to_vec();
    format!("\nSlowdown with prefilters (section 5.2)\n{}", table::render(&header, rows, style))
}

fn slowdown(report: &Detected, row: &Row) -> String {
    format!("{:.2}", 1.0 + row.nanoseconds as f64 / report.empty_ns.max(1) as f64)
}

/// How often each rule applies, of all reads or of all writes.
fn rules(row: &Row) -> String {
    let mut text = format!("\nRules of {} ({}; Figures 2 and 5)\n", row.detector, row.granularity);
    for rule in &row.rules {
        let verb = rule.rule.split(' ').next().unwrap_or_default();
        let alike = row.rules.iter().filter(|it| it.rule.starts_with(verb));
        let all: u64 = alike.map(|it| it.count).sum();
        let part = percent(rule.count as f64 / all.max(1) as f64);
        text += &format!("  {:<18} {:>8} of {verb}s\n", rule.rule, part);
    }
    text
}
