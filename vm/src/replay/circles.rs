//! Guest code that runs in circles: no event happens any more, and the processor is busy.
//!
//! The gate finds out when every thread waits. But a thread that neither waits nor comes to an event
//! would keep a replay from ending. The replay tells such a thread from one that has much to compute by
//! the processor time that it takes without an event, beyond what the recording accounts for. (The time
//! of day would blame a machine that is busy or was suspended.)

use super::machine::Machine;
use super::outcome::{Divergence, DivergenceKind};
use crate::{Result, host};
use refrain_trace::{EventId, ThreadId};
use std::time::Duration;

/// Between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// What was seen at the last look that saw an event.
pub(super) struct Circles {
    patience: Option<Duration>,
    arrived: u64,
    /// Processor time, divided by the threads that were awake to take it.
    spent: Duration,
    last: Duration,
}

impl Circles {
    pub(super) fn new(patience: Option<Duration>) -> Circles {
        Circles { patience, arrived: 0, spent: Duration::ZERO, last: host::processor_time() }
    }

    /// What is to be said of the threads that run in circles, if any does.
    pub(super) fn look(&mut self, machine: &Machine) -> Result<Option<Found>> {
        let Some(patience) = self.patience else { return Ok(None) };
        let now = host::processor_time();
        let taken = now.saturating_sub(std::mem::replace(&mut self.last, now));
        let arrived = machine.gate.arrivals.sum();
        if std::mem::replace(&mut self.arrived, arrived) != arrived {
            self.spent = Duration::ZERO;
            return Ok(None);
        }
        let awake = u32::try_from(machine.gate.awake().max(1)).unwrap_or(u32::MAX);
        self.spent += taken / awake;
        if self.spent <= patience {
            return Ok(None);
        }
        blame(machine, patience)
    }
}

/// What threads that come to no event are doing.
pub(super) enum Found {
    /// This one runs in circles where the recording has an event.
    Endless(Divergence),
    /// All have done what was recorded of them; the recording was cut off while they computed.
    Over,
}

/// Judges the threads that do not wait; of those to blame, the one that is furthest behind.
fn blame(machine: &Machine, patience: Duration) -> Result<Option<Found>> {
    let threads = (0..machine.trace.threads()).map(ThreadId);
    let mut running: Vec<ThreadId> =
        threads.filter(|&thread| machine.gate.is_running(thread)).collect();
    running.sort_by_key(|&thread| machine.gate.arrivals.of(thread));
    let mut found = None;
    for thread in running {
        let arrived = machine.gate.arrivals.of(thread);
        let mut cursor = machine.trace.cursor(thread);
        let (mut pc, mut next) = (0, None);
        while let Some(event) = cursor.next()? {
            if event.end > arrived {
                next = Some(event);
                break;
            }
            pc = event.pc;
        }
        let expected = match next {
            Some(event) => format!("{event:?}"),
            None if machine.trace.is_truncated() => {
                found = Some(Found::Over);
                continue;
            }
            None => "the end of the recording".to_owned(),
        };
        // Of the events, the one that does not come; or, after the last, that one.
        let event = EventId(cursor.position().0.saturating_sub(1));
        let actual = format!("{} s of computing without an event", patience.as_secs());
        let kind = DivergenceKind::Endless;
        let divergence = Divergence { kind, thread, event, pc, expected, actual };
        return Ok(Some(Found::Endless(divergence)));
    }
    Ok(found)
}
