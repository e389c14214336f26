//! A progress bar on standard error, for people who wait longer than they like.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

/// Work shorter than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(500);

/// The progress of one piece of work.
pub(crate) struct Progress {
    started: Instant,
    what: &'static str,
    bar: Option<ProgressBar>,
    wanted: bool,
}

impl Progress {
    /// Starts measuring. Nothing is shown unless standard error is a terminal.
    pub(crate) fn start(what: &'static str) -> Progress {
        let wanted = stderr().is_terminal() && std::env::var_os("CI").is_none();
        Progress { started: Instant::now(), what, bar: None, wanted }
    }

    /// Reports that `done` of `total` is done.
    pub(crate) fn update(&mut self, done: u64, total: u64) {
        if !self.wanted || self.started.elapsed() < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let style = "{msg} [{bar:30}] {percent}%, {eta} left";
            let style = ProgressStyle::with_template(style).expect("the template is valid");
            bar.with_style(style.progress_chars("=> ")).with_message(self.what)
        });
        bar.set_length(total);
        bar.set_position(done.min(total));
    }

    /// Takes the bar away, so that something can be printed.
    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
