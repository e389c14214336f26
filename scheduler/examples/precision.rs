//! Recorded and virtual durations of traces, as a table: `precision FILE.refrain...`.
//!
//! `recorded` is from the guest's first instruction to the end of its last event, the recorder's
//! work included; `virtual` is the ELSC replay with that work included, so that like is compared
//! with like; `own` is the ELSC replay of the program's own time.

use refrain_scheduler::{
    Account, Builder, Config, Constraints, Elsc, Kendo, MemS, Model, Orig, Outcome, Run, Scheduler,
    Skeleton, Waiting, simulate,
};
use refrain_trace::Trace;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    println!(
        "{:<24} {:>9} {:>10} {:>10} {:>7} {:>10}  {:>7} {:>7} {:>7}",
        "ms", "events", "recorded", "virtual", "error", "own", "kendo", "mem-s", "orig-s"
    );
    for path in std::env::args().skip(1) {
        let name = path.rsplit('/').next().unwrap_or(&path).trim_end_matches(".refrain");
        row(name, &Trace::open(path.as_ref())?)?;
    }
    Ok(())
}

fn row(name: &str, trace: &Trace) -> Result<(), Failure> {
    let cores = trace.threads().max(1);
    let (repeated, recorded) = read(trace, Builder::as_recorded)?;
    let virtually = run(&repeated, &Config::ideal(cores), Waiting::Handover, Elsc)?;
    let machine = trace.header().machine.cores.max(1);
    let (skeleton, _) = read(trace, |builder| builder.recorded_on(machine))?;
    let config = Config::typical(machine, skeleton.ticks_per_second());
    let elsc = run(&skeleton, &config, Waiting::Handover, Elsc)?;
    let none = Constraints::none();
    let others = [
        run(&skeleton, &config, Waiting::Polling, Kendo::default()),
        run(&skeleton, &config, Waiting::Handover, MemS::new(&skeleton, &none, &config, &[])),
        run(&skeleton, &config, Waiting::Barging, Orig),
    ];
    let ms = |ticks: u64| skeleton.nanoseconds(ticks) as f64 / 1e6;
    let against = |other: &Result<Run, Failure>| match other {
        Ok(run) => percent(run.duration, elsc.duration),
        Err(deadlock) => {
            eprintln!("{name}: {deadlock}");
            "stuck".to_owned()
        }
    };
    println!(
        "{name:<24} {:>9} {:>10.2} {:>10.2} {:>7} {:>10.2}  {:>7} {:>7} {:>7}",
        skeleton.events(),
        ms(recorded),
        ms(virtually.duration),
        percent(virtually.duration, recorded),
        ms(elsc.duration),
        against(&others[0]),
        against(&others[1]),
        against(&others[2]),
    );
    if std::env::var_os("ACCOUNTS").is_some() {
        for (id, account) in elsc.threads.iter().enumerate() {
            let Account { running, blocked, artificial, runnable, io, .. } = account;
            println!(
                "  t{id}: {:.2}..{:.2} running {:.2} blocked {:.2} artificial {:.2} runnable {:.2} io {:.2}",
                ms(account.started),
                ms(account.finished),
                ms(*running),
                ms(*blocked),
                ms(*artificial),
                ms(*runnable),
                ms(*io)
            );
        }
    }
    Ok(())
}

fn percent(value: u64, of: u64) -> String {
    format!("{:+.2} %", (value as f64 / of as f64 - 1.0) * 100.0)
}

fn run<S: Scheduler>(
    skeleton: &Skeleton,
    config: &Config,
    waiting: Waiting,
    mut by: S,
) -> Result<Run, Failure> {
    let model = Model::waiting(waiting);
    match simulate(skeleton, &Constraints::none(), config, &model, &mut by, &mut ()) {
        Outcome::Completed(run) => Ok(run),
        Outcome::Deadlocked(deadlock) => Err(deadlock.to_string().into()),
    }
}

/// The trace's skeleton and how long the recorded run took.
fn read(trace: &Trace, mode: impl Fn(Builder) -> Builder) -> Result<(Skeleton, u64), Failure> {
    let start = trace.began()?;
    let builder = Builder::new(trace.threads() as usize, trace.header().tsc_hz, start);
    let mut builder = mode(builder);
    let took = builder.read::<Failure>(trace)?;
    Ok((builder.finish()?, took))
}
