//! `refrain replay`: replays a trace and says what was checked.

use crate::args::Replay;
use crate::child::{self, ParentListener};
use crate::failure::Outcome;
use crate::machine::ReplayOptions;
use crate::output;
use crate::progress::Progress;
use crate::report::replay::{Report, render};
use crate::symbols::{Code, Symbols};
use crate::trace_file::{self, Trace};
use anyhow::Context;
use std::io::Write;
use std::path::Path;

/// Replays in a child process; a divergence makes the status 1.
pub(crate) fn run(args: &Replay) -> Outcome {
    let options = ReplayOptions { engine: args.engine, echo: args.echo, count: args.count };
    let report = replay(&args.trace, options, args.json)?;
    if args.json {
        output::print_json("replay", &report)?;
    } else {
        output::print(&render(&report, place(&args.trace, &report).as_ref()))?;
    }
    Ok(u8::from(report.divergence.is_some()))
}

/// Replays the trace at `path`. With `quiet` the program's output goes to standard error only.
pub(crate) fn replay(path: &Path, options: ReplayOptions, quiet: bool) -> anyhow::Result<Report> {
    let trace = trace_file::open(path)?;
    let mut news = News { progress: Progress::start("replaying"), all_to_stderr: quiet };
    child::replay(trace, options, &mut news)
        .with_context(|| format!("cannot replay {}", path.display()))
}

/// Where a divergence happened.
fn place(path: &Path, report: &Report) -> Option<crate::symbols::Place> {
    let divergence = report.divergence.as_ref()?;
    let trace = Trace::open(path).ok()?;
    let mut symbols = Symbols::new(trace.modules());
    // The pc of an event is nearly always a return address; of a plain instruction the byte
    // before it belongs to the same line often enough.
    Some(symbols.place(Code::After(divergence.pc)))
}

/// Shows progress and passes output on.
pub(crate) struct News {
    pub(crate) progress: Progress,
    pub(crate) all_to_stderr: bool,
}

impl ParentListener for News {
    fn progress(&mut self, done: u64, total: u64) {
        self.progress.update(done, total);
    }

    fn output(&mut self, descriptor: i32, bytes: &[u8]) -> anyhow::Result<()> {
        self.progress.finish();
        if descriptor == 1 && !self.all_to_stderr {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush()).context("cannot print")
        } else {
            std::io::stderr().write_all(bytes).context("cannot print")
        }
    }
}
