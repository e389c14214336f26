//! What is in the time of a replay by the wall clock, and what is kept apart.
//!
//! In it are
//! - the program's own code, executed on this machine's cores;
//! - waiting for other threads, as long as it takes here: for locks, ends of threads, futexes;
//! - what happened outside of the program, as long as it took in the recording. A system call is
//!   not issued again, but it *lasts*: a thread that waited (for a timer, a device, a peer) leaves
//!   its core to others meanwhile, and one for which the kernel worked occupies it. A wait of the
//!   library that was timed out lasts too. Under policies that decide the order anew this is the
//!   same, since a timer and a device do not know of locks;
//! - the recorder's translating, by one thread at a time, as long as it took of a core: it is in
//!   the recorded duration too, and differs from an engine's, which knows already what there is
//!   in the code.
//!
//! What the replay itself does for a call (reading its payload, storing its result, comparing its
//! output) happens within the call's time. Kept apart is all that comes before the first guest
//! instruction: reading the trace, restoring memory, compiling.
//!
//! Only replays that are measured let calls last; others would wait for nothing.

use crate::context::Translating;
use crate::host;
use refrain_trace::linux::waits_off_core;
use refrain_trace::{Event, EventKind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A sleeping thread wakes up late, by about so much. (In the recording it did too, so that the
/// time until which it sleeps is that of its waking.)
const LATE: Duration = Duration::from_micros(20);

/// What a replay knows in which calls last.
pub(crate) struct RecordedTimes {
    /// Of the time-stamp counter that the trace has its times from.
    ticks_per_second: u64,
    ticks_per_second_here: u64,
    /// Held by the thread whose translating lasts.
    translator: Mutex<()>,
}

impl RecordedTimes {
    /// For a replay of a trace with times of such a counter.
    pub(crate) fn new(ticks_per_second: u64) -> RecordedTimes {
        let ticks_per_second_here = host::ticks_per_second();
        RecordedTimes { ticks_per_second, ticks_per_second_here, translator: Mutex::default() }
    }

    fn recorded(&self, ticks: u64) -> Duration {
        duration(ticks, self.ticks_per_second)
    }
}

/// A thread's account of translating.
#[derive(Default)]
pub(crate) struct Translation {
    /// Its engine's translating that is settled.
    seen: Translating,
    /// By how much the engine's was longer than the recorder's so far.
    ahead: Duration,
}

/// What a thread does with its core until its time has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Core {
    Free,
    Busy,
}

impl RecordedTimes {
    /// Lets a system call last that the thread came to at this time.
    pub(crate) fn last(&self, event: &Event, came: Instant) {
        let timed_out = event.value as i64 == -i64::from(libc::ETIMEDOUT);
        let waits_for_threads = i64::from(event.nr) == libc::SYS_futex && !timed_out;
        if !waits_for_threads {
            let core = if waits_off_core(event.nr) { Core::Free } else { Core::Busy };
            self.hold(event, came, core);
        }
    }

    /// Lets a wait of the library, which begins now, last if it was timed out.
    pub(crate) fn last_timeout(&self, event: &Event) {
        if timed_out(event) {
            self.hold(event, Instant::now(), Core::Free);
        }
    }

    /// Lets the recorder's translating since the thread's previous event last: by as much as this
    /// engine's, which has taken `so_far`, falls short of it.
    pub(crate) fn last_translating(
        &self,
        translation: &mut Translation,
        so_far: Translating,
        event: &Event,
    ) {
        // A thread's first event tells of its creator's.
        if event.busy == 0 || event.kind() == EventKind::ThreadStart {
            return;
        }
        let own = so_far.since(std::mem::replace(&mut translation.seen, so_far)).busy;
        let here = translation.ahead + duration(own, self.ticks_per_second_here);
        let recorded = self.recorded(event.busy);
        translation.ahead = here.saturating_sub(recorded);
        if recorded > here {
            let _translator = self.translator.lock().unwrap_or_else(PoisonError::into_inner);
            pass_until(Instant::now().checked_add(recorded - here), Core::Busy);
        }
    }

    /// Lets the wait of a library's function last that began at `before` and that a signal, which comes
    /// now, has interrupted.
    pub(crate) fn last_until_signal(&self, before: u64, event: &Event) {
        self.hold(&Event { begin: before, end: event.begin, ..*event }, Instant::now(), Core::Free);
    }

    fn hold(&self, event: &Event, came: Instant, core: Core) {
        let took = self.recorded(event.end.saturating_sub(event.begin));
        // No clock reaches what a damaged trace may ask for.
        pass_until(came.checked_add(took), core);
    }
}

fn timed_out(event: &Event) -> bool {
    use EventKind::*;
    match event.kind() {
        CondWaitEnd | MutexTimedLock | ReadTimedLock | WriteTimedLock | ThreadJoin => {
            event.result == libc::ETIMEDOUT
        }
        SemTimedWait => event.result == -1 && event.value == libc::ETIMEDOUT as u64,
        _ => false,
    }
}

/// Ticks of a time-stamp counter as time.
fn duration(ticks: u64, hz: u64) -> Duration {
    let hz = hz.max(1);
    let rest = u128::from(ticks % hz) * 1_000_000_000 / u128::from(hz);
    Duration::new(ticks / hz, rest as u32)
}

fn pass_until(time: Option<Instant>, core: Core) {
    while let Some(time) = time {
        let left = time.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        match core {
            Core::Free if left > LATE => std::thread::sleep(left - LATE),
            // The rest is short, but others may need the core.
            Core::Free => host::yield_now(),
            Core::Busy => std::hint::spin_loop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_time() {
        assert_eq!(duration(5_000, 2_000), Duration::from_millis(2_500));
        assert_eq!(duration(u64::MAX, 1).as_secs(), u64::MAX);
        assert_eq!(duration(7, 0), Duration::from_secs(7), "a damaged trace does no harm");
    }

    #[test]
    fn waits_that_were_timed_out_are_known() {
        let event = |kind: EventKind, result, value| Event {
            code: kind as u8,
            result,
            value,
            ..Event::default()
        };
        let late = libc::ETIMEDOUT;
        assert!(timed_out(&event(EventKind::CondWaitEnd, late, 0x1000)));
        assert!(timed_out(&event(EventKind::MutexTimedLock, late, 0)));
        assert!(timed_out(&event(EventKind::SemTimedWait, -1, late as u64)));
        assert!(!timed_out(&event(EventKind::SemTimedWait, -1, libc::EINTR as u64)));
        assert!(!timed_out(&event(EventKind::BarrierLeave, -1, 0)));
        assert!(!timed_out(&event(EventKind::MutexLock, 0, 0)));
    }
}
