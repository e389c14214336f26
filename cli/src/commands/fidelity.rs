//! `refrain fidelity`: PerfPlay's Figure 13 for any trace.

use crate::args::Fidelity;
use crate::failure::Outcome;
use crate::output::{self, Style};
use crate::report::fidelity::render;
use crate::report::figure;
use anyhow::Context;
use refrain_session::{SchedulerKind, Session};

/// Replays under all schedulers and compares the times with the recorded one.
pub(crate) fn run(args: &Fidelity, session: &Session) -> Outcome {
    let schedulers = match args.scheduler.as_slice() {
        [] => &SchedulerKind::OF_FIGURE_13,
        chosen => chosen,
    };
    let how = args.measuring.how();
    let report = session.fidelity(&args.trace, schedulers, &how)?;
    if let Some(path) = &args.svg {
        std::fs::write(path, figure::svg(&report))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.measuring.json {
        output::print_json("fidelity", &report)?;
    } else {
        output::print(&render(&report, Style::of_stdout()))?;
    }
    Ok(0)
}
