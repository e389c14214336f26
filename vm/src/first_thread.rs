//! The process's first thread, on which the guest's main thread runs: programs expect that
//! `gettid` is `getpid` there, and users look for a program's name and state at its first thread.

use crate::barrier::Barrier;
use crate::hidden::Hidden;
use crate::host;
use crossbeam::channel::{Receiver, Sender, unbounded};
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

type Job = Box<dyn FnOnce() + Send>;

static JOBS: OnceLock<Sender<Job>> = OnceLock::new();

/// Runs `main` on a thread of its own, and keeps this one, which must be the process's first, for
/// the main thread of a program that `main` records. The process ends when `main` returns, with
/// the status that it returns. This returns only if the system refuses the thread. This thread
/// does `meanwhile` while `main` gets ready.
pub fn lend_first_thread(
    main: impl FnOnce() -> u8 + Send + 'static,
    meanwhile: impl FnOnce(),
) -> io::Error {
    /// As of Rust programs whose first thread panics.
    const PANICKED: i32 = 101;
    let (jobs, to_do): (Sender<Job>, Receiver<Job>) = unbounded();
    prepare();
    let first = JOBS.set(jobs).is_ok();
    assert!(first, "a process has one first thread, and lends it once");
    let run = move || {
        let status = catch_unwind(AssertUnwindSafe(main)).map_or(PANICKED, i32::from);
        std::process::exit(status)
    };
    if let Err(error) = std::thread::Builder::new().spawn(run) {
        return error;
    }
    meanwhile();
    loop {
        // The other end is static.
        if let Ok(job) = to_do.recv() {
            job();
        }
    }
}

/// What costs nothing as long as the process has one thread: with several, the kernel waits for all
/// processors, some ten milliseconds each time.
fn prepare() {
    host::share_one_heap();
    host::read_clocks();
    // Both are for the whole process and last; who needs them learns whether there are any.
    drop(Barrier::new());
    drop(File::open("/dev/null").and_then(Hidden::copy));
}

/// Has the first thread do something, if it was lent; if not, the job comes back.
pub(crate) fn run_there(job: Job) -> Result<(), Job> {
    match JOBS.get() {
        Some(jobs) => jobs.send(job).map_err(|refused| refused.0),
        None => Err(job),
    }
}
