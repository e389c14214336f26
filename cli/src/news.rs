//! Shows what a session tells while it works: progress, and what replayed programs print.

use crate::logging;
use crate::progress::Progress;
use refrain_session::Listener;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shows progress and passes output on.
pub(crate) struct News {
    progress: Mutex<Option<Progress>>,
    all_to_stderr: bool,
}

impl News {
    /// All that programs print goes to standard error, or only what they print there.
    pub(crate) fn new(all_to_stderr: bool) -> News {
        News { progress: Mutex::default(), all_to_stderr }
    }

    fn shown(&self) -> MutexGuard<'_, Option<Progress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for News {
    fn begin(&self, what: &'static str) {
        *self.shown() = Some(Progress::start(what));
    }

    fn progress(&self, done: u64, total: u64) {
        if let Some(progress) = &mut *self.shown() {
            progress.update(done, total);
        }
    }

    fn output(&self, descriptor: i32, bytes: &[u8]) -> io::Result<()> {
        self.end();
        if descriptor == 2 || self.all_to_stderr {
            io::stderr().write_all(bytes)
        } else if descriptor == 1 {
            let mut out = io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        } else {
            // Files and pipes of the recording; they are compared, and do not exist here.
            Ok(())
        }
    }

    fn diagnostic(&self, line: &str) {
        if logging::is_on() {
            eprintln!("{line}");
        }
    }

    fn end(&self) {
        *self.shown() = None;
    }
}
