//! The page that the measurements are kept on.

use super::Options;
use super::rows::{Measured, Row};
use crate::process::middle;
use crate::{root, table};
use std::fmt::Write;

/// What the project wants of the precision, in parts of the recorded time.
const VIRTUAL_MEDIAN: f64 = 0.03;
const VIRTUAL_WORST: f64 = 0.08;
const WALL: f64 = 0.10;

/// The whole page, in Markdown.
pub(super) fn page(measured: &[Measured], options: &Options) -> String {
    let rows: Vec<&Row> = measured.iter().filter_map(|row| row.as_ref().ok()).collect();
    let mut page = format!(
        "# Fidelity\n\nWritten by `cargo xtask fidelity` on {}. Each program was recorded {} times, \
         and each recording replayed {} times by the wall clock at once, on the `copy` engine. \
         The recording of median duration was then replayed under each scheduler.\n\n",
        root::machine(),
        options.runs,
        options.repeat
    );
    page += "- *apart*: the longest recording against the shortest, in parts of the median one: \
             what the machine's other users and the program's own races make of a run.\n\
             - *error*: ELSC against the recorded duration; by the wall clock the median over the \
             recordings of the median replay's error.\n\
             - *mem-s*, *kendo*, *orig-s*: mean virtual duration against ELSC's. *spread*: \
             standard deviation of virtual ORIG-S against its mean; that of all others is 0.\n\
             - *own/native*: the program's own time, as the virtual clock has it on the recorded \
             machine, against a native run, which includes starting the process.\n\n";
    let header = [
        "program",
        "events",
        "recorded",
        "apart",
        "virtual error",
        "wall error",
        "mem-s",
        "kendo",
        "orig-s",
        "spread",
        "own/native",
    ];
    page += &table::render(&header, &rows.iter().map(|row| cells(row)).collect::<Vec<_>>());
    page += &summary(&rows);
    page += &failures(measured);
    page
}

fn virtual_error(row: &Row) -> Option<f64> {
    Some(row.times("virtual elsc")?.mean_ns / row.recorded_ns - 1.0)
}

fn wall_error(row: &Row) -> Option<f64> {
    row.wall_error
}

fn against_elsc(row: &Row, which: &str) -> Option<f64> {
    Some(row.times(which)?.mean_ns / row.times("virtual elsc")?.mean_ns - 1.0)
}

fn percent(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{:+.2} %", value * 100.0))
}

fn cells(row: &Row) -> Vec<String> {
    let spread = row.times("virtual orig-s").map(|times| times.stddev_ns / times.mean_ns);
    vec![
        row.name.clone(),
        row.events.to_string(),
        format!("{:.1} ms", row.recorded_ns / 1e6),
        format!("{:.0} %", row.apart * 100.0),
        percent(virtual_error(row)),
        percent(wall_error(row)),
        percent(against_elsc(row, "virtual mem-s")),
        percent(against_elsc(row, "virtual kendo")),
        percent(against_elsc(row, "virtual orig-s")),
        spread.map_or("-".to_owned(), |spread| format!("{:.2} %", spread * 100.0)),
        format!("{:.2}", row.own_ns / 1e9 / row.native.as_secs_f64()),
    ]
}

/// The limits, and the shape of Figure 13.
fn summary(rows: &[&Row]) -> String {
    let all = |value: &dyn Fn(&Row) -> Option<f64>| -> Vec<f64> {
        rows.iter().filter_map(|row| value(row)).collect()
    };
    let middle = |values: &[f64]| middle(values, f64::total_cmp);
    let largest = |values: &[f64]| values.iter().copied().max_by(f64::total_cmp);
    let by_virtual = all(&|row| virtual_error(row).map(f64::abs));
    let by_wall = all(&|row| wall_error(row).map(f64::abs));
    let moved = ["virtual elsc", "virtual kendo", "virtual mem-s"].map(|which| {
        rows.iter()
            .filter(|row| row.times(which).is_some_and(|times| times.stddev_ns > 0.0))
            .count()
    });
    let near = by_wall.iter().filter(|&&error| error <= WALL).count();
    let as_near =
        |row: &&&Row| wall_error(row).is_some_and(|e| (WALL..=row.apart).contains(&e.abs()));
    let as_near = rows.iter().filter(as_near).count();
    let mut text = String::from("\n## Limits\n\n");
    let verdict = |met: bool| if met { "met" } else { "MISSED" };
    let mut limit = |what: &str, found: Option<f64>, limit: f64| {
        let met = verdict(found.is_some_and(|found| found <= limit));
        let _ =
            writeln!(text, "- {what}: {} (limit {:.0} %, {met})", percent(found), limit * 100.0);
    };
    limit("virtual ELSC, median size of the error", middle(&by_virtual), VIRTUAL_MEDIAN);
    limit("virtual ELSC, largest error", largest(&by_virtual), VIRTUAL_WORST);
    limit("wall ELSC, median size of the error", middle(&by_wall), WALL);
    let _ = writeln!(
        text,
        "- wall ELSC within {:.0} %: {near} of {} programs; {as_near} others are off by no more than \
         their recordings are apart\n- programs whose virtual time differed \
         between replays: {} (ELSC), {} (Kendo), {} (MEM-S)",
        WALL * 100.0,
        by_wall.len(),
        moved[0],
        moved[1],
        moved[2]
    );
    text += "\n## Figure 13\n\nMedians over all programs, virtual clock, against ELSC: ";
    let medians = ["mem-s", "kendo", "orig-s"].map(|name| {
        let values = all(&|row| against_elsc(row, &format!("virtual {name}")));
        format!("{name} {}", percent(middle(&values)))
    });
    let _ = writeln!(text, "{}.", medians.join(", "));
    text
}

/// What did not come to its end.
fn failures(measured: &[Measured]) -> String {
    let mut text = String::new();
    for row in measured {
        match row {
            Err((name, why)) => {
                let _ = writeln!(text, "- {name}: {why}");
            }
            Ok(row) => {
                for (which, why) in &row.failures {
                    // What follows tells how to repeat it, with a path that is gone.
                    let why = why.split(" (`").next().unwrap_or(why);
                    let _ = writeln!(text, "- {}, {which}: {why}", row.name);
                }
            }
        }
    }
    match text.is_empty() {
        true => text,
        false => format!("\n## Replays that did not end\n\n{text}"),
    }
}
