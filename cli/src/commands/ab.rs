//! `refrain ab`: two traces, or two schedulers, replayed in turns.

use crate::args::Ab;
use crate::failure::Outcome;
use crate::output;
use crate::report::ab::render;
use anyhow::bail;
use refrain_session::{SchedulerKind, Session};

/// Compares A and B.
pub(crate) fn run(args: &Ab, session: &Session) -> Outcome {
    let (first, second) = schedulers(args)?;
    let sides = [(args.a.as_path(), first), (args.b.as_deref().unwrap_or(&args.a), second)];
    let report = session.compare(sides, &args.measuring.how())?;
    if args.measuring.json {
        output::print_json("ab", &report)?;
    } else {
        output::print(&render(&report))?;
    }
    Ok(0)
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
