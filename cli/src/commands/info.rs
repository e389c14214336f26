//! `refrain info`: what a trace holds.

use crate::args::Info;
use crate::failure::Outcome;
use crate::output::{self, Style};
use crate::progress::Progress;
use crate::report::info::{Report, render};
use anyhow::Context;
use refrain_session::trace_file::{self, advise};
use refrain_session::{Purpose, Session};

/// Prints the description.
pub(crate) fn run(args: &Info, session: &Session) -> Outcome {
    session.confine(&Purpose::Read { trace: &args.trace, symbols: false })?;
    let progress = Progress::spin("reading");
    let trace = trace_file::read(&args.trace)?;
    let size = std::fs::metadata(&args.trace).context("cannot measure the trace")?.len();
    let report = Report::of(&trace, size).map_err(|error| advise(&args.trace, error))?;
    drop(progress);
    if args.json {
        output::print_json("info", &report)?;
    } else {
        output::print(&render(&report, Style::of_stdout()))?;
    }
    Ok(0)
}
