//! Schedules: what a scheduler decided, kept.

use crate::Error;
use refrain_trace::{EventId, ThreadId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The first words of the text form.
const TITLE: &str = "refrain schedule 1";

/// One decision: an event goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// The event's thread.
    pub thread: ThreadId,
    /// The event.
    pub event: EventId,
    /// When it went, in ticks of virtual time.
    pub at: u64,
    /// After how many steps of threads.
    pub step: u64,
}

/// Noise that a scheduler added to the work before an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Noise {
    /// The event's thread.
    pub thread: ThreadId,
    /// The event.
    pub event: EventId,
    /// By how many ticks its work took longer.
    pub more: u64,
}

/// All decisions of a replay, in their order. [`crate::Recorder`] keeps one, [`crate::Fixed`]
/// repeats it.
///
/// The text form has a line for each decision and names threads and events as every report does:
///
/// ```text
/// refrain schedule 1
/// total
/// t3 e1042 @77120 #310
/// t0 e17 +250
/// ```
///
/// `total` stands there if releases were decided on too ([`crate::Scope::Total`]), `barging` if
/// waiting threads are woken first ([`crate::Scheduler::barges`]), `polling` if they stay awake
/// ([`crate::Scheduler::polls`]); `@` is the virtual time and `#` the step of a grant; a line with
/// `+` is noise.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Schedule {
    /// Whether every operation on an object was decided on, not competing ones only.
    pub total: bool,
    /// Whether a waiting thread is granted its request twice: to wake, and to go, see
    /// [`crate::Scheduler::barges`].
    pub barging: bool,
    /// Whether a waiting thread stays awake, see [`crate::Scheduler::polls`].
    pub polling: bool,
    /// What went, in order.
    pub grants: Vec<Grant>,
    /// What took longer, in the order in which each thread came to it.
    pub noise: Vec<Noise>,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}")?;
        if self.total {
            writeln!(f, "total")?;
        }
        if self.barging {
            writeln!(f, "barging")?;
        }
        if self.polling {
            writeln!(f, "polling")?;
        }
        for Grant { thread, event, at, step } in &self.grants {
            writeln!(f, "{thread} {event} @{at} #{step}")?;
        }
        for Noise { thread, event, more } in &self.noise {
            writeln!(f, "{thread} {event} +{more}")?;
        }
        Ok(())
    }
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Schedule, Error> {
        let mut lines = text.lines().zip(1..);
        if lines.next().is_none_or(|(line, _)| line != TITLE) {
            return Err(Error::BadSchedule { line: 1, wanted: TITLE });
        }
        let mut schedule = Schedule::default();
        for (text, line) in lines {
            let words: Vec<&str> = text.split_whitespace().collect();
            match words.as_slice() {
                [] => {}
                ["total"] => schedule.total = true,
                ["barging"] => schedule.barging = true,
                ["polling"] => schedule.polling = true,
                [thread, event, rest @ ..] => {
                    let wanted = "`t3 e1042 @77120 #310` or `t3 e1042 +250`";
                    let bad = Error::BadSchedule { line, wanted };
                    schedule.read(thread, event, rest).ok_or(bad)?;
                }
                _ => {
                    return Err(Error::BadSchedule {
                        line,
                        wanted: "`total`, `barging`, `polling` or a decision",
                    });
                }
            }
        }
        Ok(schedule)
    }
}

impl Schedule {
    fn read(&mut self, thread: &str, event: &str, rest: &[&str]) -> Option<()> {
        let thread = ThreadId(u32::try_from(number(thread, 't')?).ok()?);
        let event = EventId(number(event, 'e')?);
        match *rest {
            [at, step] => {
                let (at, step) = (number(at, '@')?, number(step, '#')?);
                self.grants.push(Grant { thread, event, at, step });
            }
            [more] => self.noise.push(Noise { thread, event, more: number(more, '+')? }),
            _ => return None,
        }
        Some(())
    }
}

fn number(word: &str, prefix: char) -> Option<u64> {
    let digits = word.strip_prefix(prefix)?;
    // `parse` would take a sign.
    let all = digits.bytes().all(|byte| byte.is_ascii_digit());
    if all { digits.parse().ok() } else { None }
}
