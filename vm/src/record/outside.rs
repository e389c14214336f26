//! Signals from outside: they do to the guest what they would do natively, except that a signal that
//! would end the program ends the recording.
//!
//! Every thread blocks them; one thread of the recorder's own takes them and passes them on. It cannot take
//! what another process has sent to a single thread (`tgkill`): it calls that thread, which does.
//!
//! A thread that computes takes a signal with its next event, unless its instructions are counted
//! (`super::delivery`). A thread without further events would never take the signal. Only a count of
//! instructions names a place in such a computation: a loop may pass the same instruction with the same
//! registers any number of times. So when a signal has waited for long, the recorder calls every thread
//! that may take the signal, and begins to count instructions, which serves the signals after the first
//! event from then on. If no thread has taken the signal even so, and users end programs by such signals,
//! the recorder tells the user, who may send the signal again: the recording ends then and keeps what it
//! has.

use super::machine::{Machine, Stop};
use super::notice::Notice;
use super::signals::{Delivery, Due, Signal, bit, is_own};
use crate::{host, kick, reserve};
use refrain_trace::Ending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Signals that end a recording from outside.
const TERMINATION: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// Signals that go on acting as the system has it: faults.
pub(super) const LEFT_ALONE: [i32; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// A thread that has events takes its signals sooner.
const PATIENCE: Duration = Duration::from_millis(300);
/// Between two looks whether another process has sent a single thread a signal: only that thread can get
/// it, and nobody is told. Only processes that have been forked do so.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// Between two attempts to get the attention of the thread that takes signals.
const BETWEEN_CALLS: Duration = Duration::from_micros(50);

/// A signal is pending that a thread could handle, and has not come to.
#[derive(Clone, Copy, Debug)]
struct Overdue {
    /// Signals that have been handled; one more, and this is about another signal.
    handled: u64,
    since: Instant,
    done: Done,
}

/// What has been done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Done {
    Nothing,
    /// Whoever may take the signal has been called.
    Called,
    /// And the user has been told.
    Told,
}

impl Overdue {
    /// What is overdue now, if this was before.
    fn now(before: Option<Overdue>, machine: &Machine) -> Option<Overdue> {
        let Due { signals, handled } = machine.signals.due()?;
        let new = Overdue { handled, since: Instant::now(), done: Done::Nothing };
        let known = before.filter(|known| known.handled == handled).unwrap_or(new);
        if known.limit() != Some(Duration::ZERO) {
            return Some(known);
        }
        Some(match known.done {
            Done::Nothing => {
                machine.signals.call_everybody();
                machine.expect_signals();
                Overdue { done: Done::Called, ..new }
            }
            // Others are nobody's wish to end the program: they may wait.
            _ if !TERMINATION.iter().any(|&signal| signals & bit(signal as u64) != 0) => {
                Overdue { done: Done::Called, ..new }
            }
            Done::Called | Done::Told => {
                machine.warn(Notice::SignalWaits);
                Overdue { done: Done::Told, ..new }
            }
        })
    }

    /// How long nothing more is done about it; `None` if all has been done.
    fn limit(&self) -> Option<Duration> {
        (self.done != Done::Told).then(|| PATIENCE.saturating_sub(self.since.elapsed()))
    }
}

/// Before `main`: whether SIGPIPE is ignored. Rust's runtime ignores it after that.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
static IGNORES_PIPES: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    IGNORES_PIPES.store(host::is_ignored(libc::SIGPIPE), Ordering::Relaxed);
}

/// What the program inherits: the signals that are ignored and those that are blocked.
pub(super) fn inherited() -> (Vec<i32>, u64) {
    let mut ignored = host::ignored_signals();
    ignored.retain(|&it| it != libc::SIGPIPE || IGNORES_PIPES.load(Ordering::Relaxed));
    (ignored, host::mask())
}

/// Has the kernel send SIGPIPE again, to threads that block it.
pub(super) fn expect_broken_pipes() {
    host::set_ignored(libc::SIGPIPE, false);
}

/// Blocks signals in every thread from here on; one thread takes them.
pub(super) fn block_signals() -> u64 {
    host::block_signals_but(&LEFT_ALONE)
}

/// Takes the signals that come from outside.
pub(super) fn watch_signals(machine: Arc<Machine>) -> io::Result<()> {
    let (tell, told) = crossbeam::channel::bounded(1);
    let watcher = machine.clone();
    reserve::spawn(Builder::new(), move || {
        // The C library has unblocked some signals of its own.
        let signals = block_signals();
        let _ = tell.send(host::thread_id());
        let mut overdue = None;
        loop {
            let asked = watcher.asked_for_signals.load(Ordering::SeqCst);
            let all = watcher.passed_signals.load(Ordering::SeqCst) == asked;
            overdue = Overdue::now(overdue, &watcher);
            let looks = watcher.has_relatives.load(Ordering::SeqCst);
            if looks {
                watcher.signals.call_for_mail(host::has_signals);
            }
            let limit = if all { overdue.and_then(|it| it.limit()) } else { Some(Duration::ZERO) };
            let limit = limit.into_iter().chain(looks.then_some(BETWEEN_LOOKS)).min();
            let Some((number, info)) = host::wait_for_signal(signals, limit) else {
                watcher.passed_signals.store(asked, Ordering::SeqCst);
                continue;
            };
            overdue = Overdue::now(overdue, &watcher);
            if ends(number) && overdue.is_some_and(|it| it.done == Done::Told) {
                watcher.stop(Stop::Ended(Ending::Stopped(number as i32)));
            } else {
                pass_on(&watcher, number, info);
            }
        }
    })?;
    let id = told.recv().expect("the thread tells its id before all else");
    machine.watcher.store(id, Ordering::Relaxed);
    Ok(())
}

impl Machine {
    /// From now on the process has a child that may send signals to its threads, or another process may write to
    /// its memory.
    pub(super) fn begin_relatives(&self) {
        let watcher = self.watcher.load(Ordering::Relaxed);
        if !self.has_relatives.swap(true, Ordering::SeqCst) && watcher != 0 {
            kick::kick(watcher);
        }
    }

    /// Waits until all signals are passed on that have come from outside so far. The program has
    /// stopped a timer, and may take its signal's handler away next: natively it has taken by then what
    /// the timer has sent.
    pub(super) fn collect_signals(&self) {
        let watcher = self.watcher.load(Ordering::Relaxed);
        if self.is_child() || watcher == 0 {
            return;
        }
        let mine = self.asked_for_signals.fetch_add(1, Ordering::SeqCst) + 1;
        // Again, since the thread may not have been waiting yet.
        while self.passed_signals.load(Ordering::SeqCst) < mine {
            kick::kick(watcher);
            std::thread::sleep(BETWEEN_CALLS);
        }
    }
}

fn ends(signal: u64) -> bool {
    TERMINATION.contains(&(signal as i32))
}

/// Does to the guest what the signal would do natively.
fn pass_on(machine: &Machine, number: u64, info: [u8; 128]) {
    if is_own(&info) {
        return;
    }
    let target = machine.signals.target_of(&info);
    let delivery = machine.signals.send(target, Signal { number, info });
    if delivery == Delivery::Stop {
        host::stop_process(number as i32);
    }
    if delivery == Delivery::Terminate {
        let ending = if ends(number) { Ending::Stopped } else { Ending::Signaled };
        machine.stop(Stop::Ended(ending(number as i32)));
    }
}
