//! The page that the measurements are kept on.

use super::Options;
use super::rows::{Measured, Row};
use crate::process::middle;
use crate::{root, table};
use std::fmt::Write;

/// What the project wants, in parts of the run time.
const MEDIAN: f64 = 0.05;
const NINETY: f64 = 0.12;
const NONE: f64 = 0.02;
const CHECK_MEDIAN: f64 = 0.05;
const CHECK_WORST: f64 = 0.15;

/// The whole page, in Markdown.
pub(super) fn page(measured: &[Measured], options: &Options) -> String {
    let rows: Vec<&Row> = measured.iter().filter_map(|row| row.as_ref().ok()).collect();
    let mut page = format!(
        "# Predictions\n\nWritten by `cargo xtask predict` on {}. Each pair of corpus/pairs was run {} \
         times natively, the slow and the fixed variant in turns; the slow variant was recorded {} \
         times, and `refrain locks` predicted what the removal of unnecessary contention gains.\n\n",
        root::machine(),
        options.runs,
        options.recordings
    );
    page += "- *native*: run time of the slow variant, median.\n\
             - *real gain*: what the fix saves of it, median and quartiles over the pairs of runs.\n\
             - *predicted*: median over single recordings; *range*: what all recordings together say.\n\
             - *error*: predicted less real, in points of run time.\n\
             - *check*: the arrival model of the run as recorded, against the recorded duration; the \
             worst of the recordings.\n\n";
    let header = ["pair", "native", "real gain", "predicted", "range", "error", "check"];
    page += &table::render(&header, &rows.iter().map(|row| cells(row)).collect::<Vec<_>>());
    page += &summary(&rows);
    for (name, why) in measured.iter().filter_map(|row| row.as_ref().err()) {
        let _ = writeln!(page, "- `{name}` could not be measured: {why}");
    }
    page
}

fn cells(row: &Row) -> Vec<String> {
    let [low, real, high] = row.real.map(points);
    let [least, _, most] = row.range.map(points);
    vec![
        row.name.to_owned(),
        format!("{:.1} ms", row.native_ns / 1e6),
        format!("{real} % ({low} to {high})"),
        format!("{} %", points(row.predicted[row.predicted.len() / 2])),
        format!("{least} to {most} %"),
        format!("{:+.1}", row.error() * 100.0),
        format!("{:+.1} %", check(row) * 100.0),
    ]
}

fn points(part: f64) -> String {
    format!("{:.1}", part * 100.0)
}

fn check(row: &Row) -> f64 {
    let off = row.recorded.iter().map(|(recorded, model)| model / recorded - 1.0);
    off.max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0)
}

fn summary(rows: &[&Row]) -> String {
    let mut text = String::from("\n## Limits\n\n");
    let mut line = |what: &str, found: String, met: bool| {
        let met = if met { "met" } else { "MISSED" };
        let _ = writeln!(text, "- {what}: {found} ({met})");
    };
    let share = |part: usize, of: usize| part as f64 / of.max(1) as f64;
    let (with, without): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.unnecessary);
    let errors: Vec<f64> = with.iter().map(|row| row.error().abs()).collect();
    let median = middle(&errors, f64::total_cmp).unwrap_or(0.0);
    line(
        "median error, at most 5 points",
        format!("{:.1} points over {} pairs", median * 100.0, with.len()),
        median <= MEDIAN,
    );
    let near = errors.iter().filter(|&&error| error <= NINETY).count();
    line(
        "within 12 points, at least 90 %",
        format!("{near} of {}", errors.len()),
        share(near, errors.len()) >= 0.9,
    );
    let inside = with.iter().filter(|row| (row.range[0]..=row.range[2]).contains(&row.real[1]));
    let inside = inside.count();
    line(
        "real gain inside of the range, at least 80 %",
        format!("{inside} of {}", with.len()),
        share(inside, with.len()) >= 0.8,
    );
    let most = |row: &Row| row.predicted.iter().fold(0.0f64, |most, gain| most.max(gain.abs()));
    let none = without.iter().filter(|row| most(row) <= NONE).count();
    line(
        "without unnecessary contention, predicted gain within 2 %",
        format!("{none} of {}", without.len()),
        none == without.len(),
    );
    let named: Vec<_> = rows.iter().filter_map(|row| row.named.as_ref()).collect();
    let right = named.iter().filter(|(first, wanted)| first == wanted).count();
    line(
        "the best of several sites first",
        format!("{right} of {}", named.len()),
        right == named.len(),
    );
    let checks: Vec<f64> = rows.iter().map(|row| check(row).abs()).collect();
    let median = middle(&checks, f64::total_cmp).unwrap_or(0.0);
    let worst = checks.iter().copied().max_by(f64::total_cmp).unwrap_or(0.0);
    line(
        "arrival model against the recorded duration, median within 5 %, each within 15 %",
        format!("median {:.1} %, worst {:.1} %", median * 100.0, worst * 100.0),
        median <= CHECK_MEDIAN && worst <= CHECK_WORST,
    );
    text
}
