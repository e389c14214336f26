//! The difference between two traces, or two schedulers.

use super::numbers::{change, counted, duration, signed};
use super::simulation::spread;
use super::table;
use refrain_session::compare::{Compared, Comparison, Exact, Measured};
use refrain_session::stats::Distribution;

/// The report for people.
pub(crate) fn render(report: &Comparison) -> String {
    let side = |side: &Compared| {
        format!("{} under {} ({})", side.trace, side.scheduler.name(), side.command)
    };
    let mut facts = vec![("A", side(&report.a)), ("B", side(&report.b))];
    if let Some(exact) = &report.virtual_time {
        facts.extend(virtual_time(exact));
    }
    if let Some(wall) = &report.wall {
        facts.extend(measured(wall));
    }
    table::pairs(&facts)
}

fn virtual_time(exact: &Exact) -> [(&'static str, String); 2] {
    let times = format!(
        "A {}, B {} ({} and {}; {}; {})",
        duration(signed(exact.a_ns)),
        duration(signed(exact.b_ns)),
        counted(exact.cores.0.into(), "core"),
        counted(exact.cores.1.into(), "core"),
        exact.latencies.0.name(),
        super::model::costs(exact.cost),
    );
    let difference = format!(
        "B - A = {}, {}, exactly",
        duration(exact.difference_ns),
        change(exact.difference_ns as f64 / exact.a_ns.max(1) as f64)
    );
    [("virtual time", times), ("", difference)]
}

fn measured(wall: &Measured) -> [(&'static str, String); 3] {
    let difference = &wall.difference;
    let share = difference.mean_ns as f64 / wall.a.mean_ns.max(1) as f64;
    let doubt = if difference.is_sure() { "" } else { "; no difference is certain" };
    let interval = format!(
        "B - A = {}, {}; 95 % within {} and {}{doubt}",
        duration(difference.mean_ns),
        change(share),
        duration(difference.low_ns),
        duration(difference.high_ns),
    );
    let times = |name: &str, times: &Distribution| format!("{name} {}", spread(times));
    [
        ("wall clock", times("A", &wall.a)),
        ("", times("B", &wall.b)),
        ("", format!("{interval} ({} engine)", wall.engine)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;
    use refrain_session::calibration::Source;
    use refrain_session::stats::Difference;
    use refrain_session::{Cost, SchedulerKind};

    #[test]
    fn both_clocks() {
        let side = |trace: &str, scheduler| Compared {
            trace: trace.into(),
            command: "server 4".into(),
            scheduler,
        };
        let (a, b) =
            ([100_000_000, 102_000_000, 101_000_000], [90_000_000, 93_000_000, 91_000_000]);
        let pairs: Vec<(u64, u64)> = a.into_iter().zip(b).collect();
        let report = Comparison {
            a: side("before.refrain", SchedulerKind::Elsc),
            b: side("after.refrain", SchedulerKind::Elsc),
            virtual_time: Some(Exact {
                cores: (2, 4),
                latencies: (Source::Typical, Source::Typical),
                cost: Cost::Recorded,
                seed: 1,
                a_ns: 99_000_000,
                b_ns: 89_500_000,
                difference_ns: -9_500_000,
            }),
            wall: Some(Measured {
                engine: "copy",
                a: Distribution::of(&a).expect("there are times"),
                b: Distribution::of(&b).expect("there are times"),
                difference: Difference::of(&pairs, 1).expect("there are pairs"),
            }),
        };
        assert_snapshot!(render(&report));
    }
}
