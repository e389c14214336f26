//! `refrain perfplay`: the tables and figures of PerfPlay's evaluation, for any recordings.

use crate::args::Perfplay;
use crate::failure::Outcome;
use crate::output::{self, Style};
use crate::report::perfplay::{Report, page, render};
use anyhow::Context;
use refrain_session::Session;

/// Measures all recordings, and shows what there is of each table and figure.
pub(crate) fn run(args: &Perfplay, session: &Session) -> Outcome {
    let recordings = args.traces.iter().map(|trace| session.evaluate(trace, args.repeat));
    let report = Report { recordings: recordings.collect::<Result<_, _>>()? };
    if let Some(path) = &args.html {
        std::fs::write(path, page(&report)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        output::print_json("perfplay", &report)?;
    } else {
        output::print(&render(&report, Style::of_stdout()))?;
    }
    Ok(0)
}
