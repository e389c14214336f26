//! A sign of life on standard error, for people who wait longer than they like.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Work shorter than this shows nothing.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two frames of a spinner.
const FRAME: Duration = Duration::from_millis(100);

/// The progress of one piece of work. Nothing is shown unless standard error is a terminal.
pub(crate) struct Progress {
    what: &'static str,
    state: State,
}

enum State {
    /// Nothing is shown any more, or ever.
    Silent,
    /// A bar is shown once this is long ago.
    Waiting(Instant),
    /// A bar.
    Bar(ProgressBar),
    /// A spinner, on a thread of its own.
    Spinner(Sender<()>, JoinHandle<()>),
}

impl Progress {
    /// Work that reports how much of it is done.
    pub(crate) fn start(what: &'static str) -> Progress {
        let waiting = State::Waiting(Instant::now());
        Progress { what, state: if stderr().is_terminal() { waiting } else { State::Silent } }
    }

    /// Work that does not.
    pub(crate) fn spin(what: &'static str) -> Progress {
        if !stderr().is_terminal() {
            return Progress { what, state: State::Silent };
        }
        let (done, waiting) = channel();
        let timed_out = move |wait| waiting.recv_timeout(wait) == Err(RecvTimeoutError::Timeout);
        let spin = move || {
            if !timed_out(PATIENCE) {
                return;
            }
            let bar = bar(None, "{spinner} {msg} ({elapsed})", what);
            while timed_out(FRAME) {
                bar.tick();
            }
            bar.finish_and_clear();
        };
        Progress { what, state: State::Spinner(done, std::thread::spawn(spin)) }
    }

    /// Reports that `done` of `total` is done.
    pub(crate) fn update(&mut self, done: u64, total: u64) {
        if let State::Waiting(since) = self.state
            && since.elapsed() >= PATIENCE
        {
            let look = "{msg} [{bar:30}] {percent}%, {eta} left";
            self.state = State::Bar(bar(Some(total), look, self.what));
        }
        if let State::Bar(bar) = &self.state {
            bar.set_length(total);
            bar.set_position(done.min(total));
        }
    }

    /// Takes it away for good, so that something can be printed.
    pub(crate) fn finish(&mut self) {
        match std::mem::replace(&mut self.state, State::Silent) {
            State::Silent | State::Waiting(_) => {}
            State::Bar(bar) => bar.finish_and_clear(),
            State::Spinner(done, thread) => {
                drop(done);
                // A spinner that panicked is not worth a second panic.
                let _ = thread.join();
            }
        }
    }
}

fn bar(total: Option<u64>, look: &str, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template(look).expect("the template is valid");
    ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr())
        .with_style(style.progress_chars("=> "))
        .with_message(what)
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
