//! Shows what a session tells while it works: progress, and what replayed programs print.

use crate::progress::Progress;
use anyhow::Context;
use refrain_session::Listener;
use std::io::Write;

/// Shows progress and passes output on.
pub(crate) struct News {
    progress: Option<Progress>,
    all_to_stderr: bool,
}

impl News {
    /// All that the programs print goes to standard error, or only what they print there.
    pub(crate) fn new(all_to_stderr: bool) -> News {
        News { progress: None, all_to_stderr }
    }
}

impl Listener for News {
    fn begin(&mut self, what: &'static str) {
        // The one before is taken away first.
        self.progress = None;
        self.progress = Some(Progress::start(what));
    }

    fn progress(&mut self, done: u64, total: u64) {
        if let Some(progress) = &mut self.progress {
            progress.update(done, total);
        }
    }

    fn output(&mut self, descriptor: i32, bytes: &[u8]) -> anyhow::Result<()> {
        self.progress = None;
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
