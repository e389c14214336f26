//! How stable and how precise replays under different schedulers are: PerfPlay's Figure 13.

use super::model;
use super::numbers::{change, counted, duration, signed};
use super::table::{self, Column};
use crate::output::Style;
use refrain_session::compare::{Fidelity, Row};
use std::fmt::Write;

/// The report for people.
pub(crate) fn render(report: &Fidelity, style: Style) -> String {
    let mut text = table::pairs(&[
        ("replayed", report.command.clone()),
        ("recorded", duration(signed(report.recorded_ns))),
        ("clocks", format!("virtual: {}", model::describe(&report.model))),
        ("", format!("wall: {} engine", report.engine)),
    ]);
    text.push('\n');
    let header = [
        ("clock", Column::Left),
        ("scheduler", Column::Left),
        ("runs", Column::Right),
        ("mean", Column::Right),
        ("stddev", Column::Right),
        ("min", Column::Right),
        ("max", Column::Right),
        ("error", Column::Right),
        ("median", Column::Right),
    ];
    text += &table::render(&header, report.rows.iter().map(cells).collect(), style);
    text += "\nerror   mean against the recorded run\nmedian  the same for the median\n";
    for row in report.rows.iter().filter(|row| row.failed > 0) {
        let why = row.why.as_deref().unwrap_or("no reason is known");
        let (clock, scheduler) = (row.clock.name(), row.scheduler.name());
        let failed = counted(row.failed, "replay");
        let _ = writeln!(text, "\nnote: {clock} {scheduler}: {failed} did not end: {why}");
    }
    text
}

fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![row.clock.name().to_owned(), row.scheduler.name().to_owned()];
    let time = |ns: u64| duration(signed(ns));
    match &row.times {
        None => cells.extend(["0", "-", "-", "-", "-", "-", "-"].map(str::to_owned)),
        Some(times) => {
            cells.push(times.runs.to_string());
            cells.extend([times.mean_ns, times.stddev_ns, times.min_ns, times.max_ns].map(time));
            cells.push(row.error.map_or_else(String::new, change));
            cells.push(row.median_error.map_or_else(String::new, change));
        }
    }
    cells
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use insta::assert_snapshot;
    use refrain_session::Cost;
    use refrain_session::calibration::Source;
    use refrain_session::{Clock, SchedulerKind, VirtualMachine};

    pub(crate) fn example() -> Fidelity {
        let row = |scheduler, clock, times: &[u64], failed| {
            Row::new((scheduler, clock), (times.to_vec(), failed), 100_000_000)
        };
        let why = "diverged at t2 e17 (a different event) <&>".to_owned();
        Fidelity {
            command: "demo 12000 3".into(),
            engine: "copy",
            model: VirtualMachine { cores: 2, latencies: Source::Calibrated, cost: Cost::Recorded },
            recorded_ns: 100_000_000,
            rows: vec![
                row(SchedulerKind::MemS, Clock::Virtual, &[180_000_000; 3], (0, None)),
                row(SchedulerKind::Elsc, Clock::Virtual, &[99_000_000; 3], (0, None)),
                row(SchedulerKind::OrigS, Clock::Wall, &[90_000_000, 120_000_000], (1, Some(why))),
                row(SchedulerKind::Kendo, Clock::Wall, &[], (0, None)),
            ],
        }
    }

    #[test]
    fn at_100_columns() {
        assert_snapshot!(render(&example(), Style { width: 100, colour: false }));
    }

    #[test]
    fn as_json() {
        let mut report = example();
        report.rows.truncate(1);
        assert_snapshot!(crate::output::json("fidelity", &report).expect("can be written"));
    }
}
