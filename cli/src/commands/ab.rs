//! `refrain ab`: two traces, or two schedulers, replayed in turns.

use super::once::News;
use crate::args::Ab;
use crate::failure::Outcome;
use crate::output;
use crate::report::ab::{self, Report, render};
use anyhow::bail;
use refrain_session::compare::Side;
use refrain_session::{SchedulerKind, Session, trace_file};

/// Compares A and B.
pub(crate) fn run(args: &Ab, session: &Session) -> Outcome {
    let report = compare(args, session)?;
    if args.measuring.json {
        output::print_json("ab", &report)?;
    } else {
        output::print(&render(&report))?;
    }
    Ok(0)
}

fn compare(args: &Ab, session: &Session) -> anyhow::Result<Report> {
    let (first, second) = schedulers(args)?;
    let a = Side { trace: &args.a, scheduler: first };
    let b = Side { trace: args.b.as_deref().unwrap_or(&args.a), scheduler: second };
    let compared = session.compare([a, b], &args.measuring.how(), &mut News::new(true));
    let [a, b] = [side(a)?, side(b)?];
    let compared = compared?;
    Ok(Report { a, b, virtual_time: compared.virtual_time, wall: compared.wall })
}

fn schedulers(args: &Ab) -> anyhow::Result<(SchedulerKind, SchedulerKind)> {
    let pair = match *args.scheduler.as_slice() {
        [] => (SchedulerKind::Elsc, SchedulerKind::Elsc),
        [one] => (one, one),
        [one, other] => (one, other),
        _ => bail!("--scheduler is for A and for B: two are enough"),
    };
    if args.b.is_none() && pair.0 == pair.1 {
        bail!("nothing to compare: name a second trace, or two schedulers (--scheduler twice)");
    }
    Ok(pair)
}

fn side(Side { trace, scheduler }: Side<'_>) -> anyhow::Result<ab::Side> {
    let command = trace_file::read(trace)?.header().argv.join(" ");
    Ok(ab::Side { trace: trace.display().to_string(), command, scheduler })
}
