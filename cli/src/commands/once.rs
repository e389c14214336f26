//! One replay of a trace, with progress shown and output passed on.

use crate::progress::Progress;
use anyhow::Context;
use refrain_session::child::{self, ParentListener};
use refrain_session::machine::ReplayOptions;
use refrain_session::replay::Report;
use refrain_session::trace_file;
use std::io::Write;
use std::path::Path;

/// Replays the trace at `path`. With `json`, what the program printed goes to standard error.
pub(crate) fn replay(path: &Path, options: &ReplayOptions, json: bool) -> anyhow::Result<Report> {
    // Read here as well, so that a file which is no trace is refused in the same words everywhere.
    drop(trace_file::read(path)?);
    let trace = trace_file::open(path)?;
    let mut news = News::new("replaying", json);
    child::replay(trace, options.clone(), &mut news)
        .with_context(|| format!("cannot replay {}", path.display()))
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
