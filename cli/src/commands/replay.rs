//! `refrain replay`: replays a trace and says what was checked.

use super::racing;
use crate::args::Replay;
use crate::child::{self, ParentListener};
use crate::failure::Outcome;
use crate::machine::ReplayOptions;
use crate::output;
use crate::progress::Progress;
use crate::report::replay::{Report, render};
use crate::symbols::{Code, Place, Symbols};
use crate::trace_file;
use anyhow::Context;
use std::io::Write;
use std::path::Path;

/// Replays in a child process; a divergence makes the status 1.
pub(crate) fn run(args: &Replay) -> Outcome {
    let options = ReplayOptions {
        engine: args.engine,
        echo: args.echo,
        count: args.count,
        observe: args.observe,
    };
    let mut report = replay(&args.trace, options, args.json)?;
    if args.races || report.divergence.is_some() {
        report.races = Some(racing::find(&args.trace, report.divergence.as_ref()));
    }
    if args.json {
        output::print_json("replay", &report)?;
    } else {
        output::print(&render(&report, place(&args.trace, &report).as_ref()))?;
    }
    Ok(u8::from(report.divergence.is_some()))
}

/// Replays the trace at `path`. With `json`, what the program printed goes to standard error.
pub(crate) fn replay(path: &Path, options: ReplayOptions, json: bool) -> anyhow::Result<Report> {
    // Read here as well, so that a file which is no trace is refused in the same words everywhere.
    drop(trace_file::read(path)?);
    let trace = trace_file::open(path)?;
    let mut news = News::new("replaying", json);
    child::replay(trace, options, &mut news)
        .with_context(|| format!("cannot replay {}", path.display()))
}

/// Where a divergence happened.
fn place(path: &Path, report: &Report) -> Option<Place> {
    let divergence = report.divergence.as_ref()?;
    let trace = trace_file::read(path).ok()?;
    let mut symbols = Symbols::new(trace.modules());
    // The pc of an event is nearly always a return address; the byte before a plain instruction
    // belongs to the same line often enough.
    Some(symbols.place(Code::After(divergence.pc)))
}

/// Shows progress and passes output on.
pub(crate) struct News {
    progress: Progress,
    all_to_stderr: bool,
}

impl News {
    /// Of work with this name.
    pub(crate) fn new(what: &'static str, all_to_stderr: bool) -> News {
        News { progress: Progress::start(what), all_to_stderr }
    }
}

impl ParentListener for News {
    fn progress(&mut self, done: u64, total: u64) {
        self.progress.update(done, total);
    }

    fn output(&mut self, descriptor: i32, bytes: &[u8]) -> anyhow::Result<()> {
        self.progress.finish();
        if descriptor == 2 || self.all_to_stderr {
            std::io::stderr().write_all(bytes).context("cannot print")
        } else if descriptor == 1 {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush()).context("cannot print")
        } else {
            // Files and pipes of the recording; they are compared, and do not exist here.
            Ok(())
        }
    }
}
