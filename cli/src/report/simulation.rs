//! What a replay in virtual time says: how long the run takes, and where each thread's time goes.

use super::model;
use super::numbers::{count, counted, duration, signed};
use super::table::{self, Column};
use crate::output::Style;
use refrain_scheduler::{Account, Run};
use refrain_session::VirtualMachine;
use refrain_session::stats::Distribution;
use refrain_session::{Clock, SchedulerKind};
use serde::Serialize;

/// A replay in virtual time.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Report {
    /// The command that was recorded.
    pub(crate) command: String,
    /// Who decided.
    pub(crate) scheduler: SchedulerKind,
    /// The file that decided instead, if there is one.
    pub(crate) schedule: Option<String>,
    /// Always the virtual one.
    pub(crate) clock: Clock,
    /// The seed of the first repetition, if there is one.
    pub(crate) seed: Option<u64>,
    /// The modelled machine.
    #[serde(flatten)]
    pub(crate) model: VirtualMachine,
    /// The recorded run, from its first instruction to its last event.
    pub(crate) recorded_ns: u64,
    /// The first repetition.
    pub(crate) duration_ns: u64,
    /// All repetitions.
    pub(crate) times: Distribution,
    /// Threads of the first repetition.
    pub(crate) threads: Vec<Thread>,
}

/// Where a thread's time went; the parts add up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Thread {
    /// As in `t2`.
    pub(crate) thread: String,
    /// From its creation to its last event.
    pub(crate) alive_ns: u64,
    /// On a core, at the program's work.
    pub(crate) running_ns: u64,
    /// On a core, waiting for a spin lock.
    pub(crate) spinning_ns: u64,
    /// Waiting for something in the program.
    pub(crate) blocked_ns: u64,
    /// Held back to honour an order.
    pub(crate) artificial_ns: u64,
    /// Ready, without a core.
    pub(crate) runnable_ns: u64,
    /// Waiting for something outside the program.
    pub(crate) io_ns: u64,
    /// Operations that found their object taken.
    pub(crate) contended: u64,
    /// Tries that the recording saw succeed, and that found the lock taken here: the program
    /// would have gone another way.
    pub(crate) tries_differ: u64,
}

impl Thread {
    fn new((id, account): (usize, &Account)) -> Thread {
        Thread {
            thread: format!("t{id}"),
            alive_ns: account.finished.saturating_sub(account.started),
            running_ns: account.running,
            spinning_ns: account.spinning,
            blocked_ns: account.blocked,
            artificial_ns: account.artificial,
            runnable_ns: account.runnable,
            io_ns: account.io,
            contended: account.contended,
            tries_differ: account.tries_differ,
        }
    }
}

/// The threads of a replay whose times are in nanoseconds.
pub(crate) fn threads(run: &Run) -> Vec<Thread> {
    run.threads.iter().enumerate().map(Thread::new).collect()
}

/// The report for people.
pub(crate) fn render(report: &Report, style: Style) -> String {
    let seed = report.seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
    let mut facts = vec![
        ("replayed", report.command.clone()),
        (
            "under",
            format!(
                "{}{seed}, {}",
                report.schedule.as_deref().unwrap_or(report.scheduler.name()),
                model::describe(&report.model)
            ),
        ),
        ("virtual time", duration(signed(report.duration_ns))),
    ];
    if report.times.runs > 1 {
        facts.push(("", spread(&report.times)));
    }
    let recorded = duration(signed(report.recorded_ns));
    facts.push(("recorded", format!("{recorded} (with the recorder's own work)")));
    let mut text = table::pairs(&facts);
    text.push('\n');
    text += &accounts(&report.threads, style);
    let tries: u64 = report.threads.iter().map(|thread| thread.tries_differ).sum();
    if tries > 0 {
        let what = counted(tries, "try-lock");
        text += &format!(
            "\nnote: {what} succeeded in the recording and found the lock taken here; the program \
             might have gone another way\n"
        );
    }
    text
}

/// How the times of repetitions are distributed.
pub(crate) fn spread(times: &Distribution) -> String {
    let time = |ns: u64| duration(signed(ns));
    format!(
        "{}: mean {} ± {}, from {} to {}, median {}, 90 % within {}",
        counted(times.runs, "replay"),
        time(times.mean_ns),
        time(times.stddev_ns),
        time(times.min_ns),
        time(times.max_ns),
        time(times.p50_ns),
        time(times.p90_ns),
    )
}

fn accounts(threads: &[Thread], style: Style) -> String {
    let header = [
        ("thread", Column::Left),
        ("alive", Column::Right),
        ("running", Column::Right),
        ("spinning", Column::Right),
        ("blocked", Column::Right),
        ("held", Column::Right),
        ("no core", Column::Right),
        ("outside", Column::Right),
        ("contended", Column::Right),
    ];
    let rows = threads.iter().map(|thread| {
        let mut row = vec![thread.thread.clone()];
        row.extend(
            [
                thread.alive_ns,
                thread.running_ns,
                thread.spinning_ns,
                thread.blocked_ns,
                thread.artificial_ns,
                thread.runnable_ns,
                thread.io_ns,
            ]
            .map(|ns| duration(signed(ns))),
        );
        row.push(count(thread.contended));
        row
    });
    table::render(&header, rows.collect(), style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;
    use refrain_session::Cost;
    use refrain_session::calibration::Source;

    #[test]
    fn at_100_columns() {
        let account = Account {
            started: 1_000,
            finished: 2_001_000,
            running: 1_500_000,
            blocked: 300_000,
            artificial: 150_000,
            runnable: 50_000,
            contended: 1_234,
            tries_differ: 2,
            ..Account::default()
        };
        let run = Run { duration: 2_001_000, threads: vec![account, Account::default()] };
        let report = Report {
            command: "demo 12000 3".into(),
            scheduler: SchedulerKind::OrigS,
            schedule: None,
            clock: Clock::Virtual,
            seed: Some(7),
            model: VirtualMachine { cores: 2, latencies: Source::Typical, cost: Cost::Recorded },
            recorded_ns: 1_990_000,
            duration_ns: run.duration,
            times: Distribution::of(&[2_001_000, 2_003_000]).expect("there are times"),
            threads: threads(&run),
        };
        assert_snapshot!(render(&report, Style { width: 100, colour: false }));
    }
}
