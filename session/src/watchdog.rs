//! Watches a replay child from outside, and ends one that takes too much memory or falls silent.
//!
//! A replay whose code runs in circles says so itself (`vm`); the watchdog is for a child that
//! does not, because it has been taken over or because of a bug. It counts the child's processor
//! time and its own looks, not the time of day, so that a machine that is busy or was suspended
//! kills nothing.

use crate::sandbox::Need;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::fs;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// So long a child may do nothing at all, beyond what the recording did nothing for.
const SILENCE: Duration = Duration::from_secs(120);
/// Before a child has said what its trace needs: reading takes little.
const WHILE_READING: Need = Need { memory: 2 << 30, patience: Duration::from_secs(600) };
/// Of the times in /proc: a constant of the interface on x86-64.
const TICKS_PER_SECOND: f64 = 100.0;
/// A child that does less than this in a second does nothing.
const IDLE: f64 = 0.02;

/// Why a child was ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It used more than so many bytes of memory.
    Memory(u64),
    /// It did nothing for so long.
    Silence(Duration),
    /// It took so much processor time, which was all that it was given.
    Time(Duration),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Memory(limit) => write!(
                f,
                "the replay took more than {} MiB of memory, which the trace does not account for \
                 or this machine does not have",
                limit >> 20
            ),
            Verdict::Silence(time) => {
                write!(f, "the replay process did nothing for {} s", time.as_secs())
            }
            Verdict::Time(time) => {
                write!(f, "the replay process took {} s of processor time", time.as_secs())
            }
        }
    }
}

/// What is known of the child, by those who listen to it.
struct Known {
    need: Need,
    /// The memory that the user allows.
    most: Option<u64>,
    /// The processor time that it is given.
    time: Option<Duration>,
    /// What it has done, as it says.
    done: u64,
    verdict: Option<Verdict>,
}

/// Watches a child until it is dropped.
pub(crate) struct Watchdog {
    known: Arc<Mutex<Known>>,
    watching: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Watchdog {
    /// Watches the process with this id, which the caller waits for only when it has called off
    /// the watchdog: the id stays the child's until then.
    pub(crate) fn watch(child: u32, most: Option<u64>, time: Option<Duration>) -> Watchdog {
        let need = bounded(WHILE_READING, most);
        let known = Known { need, most, time, done: 0, verdict: None };
        let known = Arc::new(Mutex::new(known));
        let (call_off, called_off) = channel();
        let watched = known.clone();
        let thread = std::thread::spawn(move || {
            let mut look = Look::new(child);
            while called_off.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let mut known = lock(&watched);
                let Some(verdict) = look.judge(&known) else { continue };
                known.verdict = Some(verdict);
                if let Some(child) = i32::try_from(child).ok().and_then(Pid::from_raw) {
                    let _ = kill_process(child, Signal::KILL);
                }
                return;
            }
        });
        Watchdog { known, watching: Some((call_off, thread)) }
    }

    /// The child says what its trace needs. Believed up to what this machine has.
    pub(crate) fn needs(&self, need: Need) {
        let mut known = lock(&self.known);
        known.need = bounded(need, known.most);
    }

    /// The child says how much it has done.
    pub(crate) fn done(&self, done: u64) {
        lock(&self.known).done = done;
    }

    /// Watches no longer; says why the child was ended, if it was.
    pub(crate) fn call_off(mut self) -> Option<Verdict> {
        self.end();
        lock(&self.known).verdict
    }

    fn end(&mut self) {
        if let Some((call_off, thread)) = self.watching.take() {
            drop(call_off);
            // A watchdog that panicked has nothing to say.
            let _ = thread.join();
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock(known: &Mutex<Known>) -> std::sync::MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is needed, but no more memory than the user allows, or three quarters of the machine's.
fn bounded(need: Need, most: Option<u64>) -> Need {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let there = field(&text, "MemTotal:").unwrap_or(u64::MAX);
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max").unwrap_or_default();
    let there = there.min(group.trim().parse().unwrap_or(u64::MAX));
    let most = most.unwrap_or(there / 4 * 3);
    Need { memory: need.memory.min(most), ..need }
}

/// A figure of kilobytes in a file of /proc, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What a child does, from one look to the next.
struct Look {
    child: u32,
    /// What it had done and which processor time it had taken when it last did something.
    done: u64,
    busy: f64,
    idle_for: Duration,
}

impl Look {
    fn new(child: u32) -> Look {
        Look { child, done: 0, busy: 0.0, idle_for: Duration::ZERO }
    }

    /// What to do about the child, if anything.
    fn judge(&mut self, known: &Known) -> Option<Verdict> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child)).ok()?;
        let used = field(&status, "VmRSS:")? + field(&status, "VmSwap:").unwrap_or(0);
        if used > known.need.memory {
            return Some(Verdict::Memory(known.need.memory));
        }
        // Stopped by the terminal or a debugger, it is not to blame.
        let stopped = status.lines().any(|line| {
            line.strip_prefix("State:")
                .is_some_and(|state| state.trim_start().starts_with(['T', 't']))
        });
        let busy = busy_seconds(self.child)?;
        if let Some(time) = known.time.filter(|time| busy >= time.as_secs_f64()) {
            return Some(Verdict::Time(time));
        }
        if stopped || known.done != self.done || busy > self.busy + IDLE {
            (self.done, self.busy, self.idle_for) = (known.done, busy, Duration::ZERO);
            return None;
        }
        self.idle_for += LOOK;
        // A slow processor second by second is still idle: the reference moves along.
        if self.idle_for.as_millis().is_multiple_of(1000) {
            self.busy = busy;
        }
        let limit = SILENCE.saturating_add(known.need.patience);
        (self.idle_for > limit).then_some(Verdict::Silence(limit))
    }
}

/// Processor time that a process has taken, in seconds.
fn busy_seconds(process: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may hold anything; what follows it does not.
    let words: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| words.get(index)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(memory: u64, done: u64) -> Known {
        let need = Need { memory, patience: Duration::ZERO };
        Known { need, done, verdict: None, most: None, time: None }
    }

    #[test]
    fn too_much_memory_is_noticed() {
        let mut look = Look::new(std::process::id());
        assert_eq!(look.judge(&known(4096, 0)), Some(Verdict::Memory(4096)));
        assert_eq!(look.judge(&known(u64::MAX, 0)), None);
    }

    #[test]
    fn processor_time_is_given_by_who_asks() {
        let mut look = Look::new(std::process::id());
        let given = |time| Known { time: Some(time), ..known(u64::MAX, 0) };
        assert_eq!(look.judge(&given(Duration::ZERO)), Some(Verdict::Time(Duration::ZERO)));
        assert_eq!(look.judge(&given(Duration::MAX)), None);
    }

    #[test]
    fn silence_is_counted_in_looks_and_ended_by_any_work() {
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().expect("starts");
        let mut look = Look::new(sleeper.id());
        let looks = (SILENCE.as_millis() / LOOK.as_millis()) as usize;
        let mut judge = |done| look.judge(&known(u64::MAX, done));
        assert!((0..looks).all(|_| judge(0).is_none()));
        assert_eq!(judge(1), None, "it has said something");
        assert!((0..looks).all(|_| judge(1).is_none()));
        assert_eq!(judge(1), Some(Verdict::Silence(SILENCE)));
        sleeper.kill().and_then(|()| sleeper.wait()).expect("is ours");
    }

    #[test]
    fn a_child_that_is_gone_is_no_business_of_the_watchdog() {
        let mut child = std::process::Command::new("true").spawn().expect("starts");
        child.wait().expect("is ours");
        assert_eq!(Look::new(child.id()).judge(&known(0, 0)), None);
    }
}
