//! Schedules: what a scheduler decided, kept.

use crate::splitmix::SplitMix;
use crate::{Error, Model, Waiting};
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

/// The machine's noise: the work before each event takes longer, by a part that is drawn evenly for
/// the event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Noise {
    /// Decides every draw.
    pub seed: u64,
    /// Work takes up to so many thousandths longer.
    pub per_mille: u32,
}

impl Noise {
    /// By how many ticks the work before an event takes longer.
    #[inline]
    pub(crate) fn more(self, thread: u32, event: u32, work: u64) -> u64 {
        let most = u128::from(work) * u128::from(self.per_mille) / 1000;
        // An odd factor keeps the states of all events apart; SplitMix mixes them.
        let place =
            (u64::from(thread) << 32 | u64::from(event)).wrapping_mul(0xd134_2543_de82_ef95);
        SplitMix::new(self.seed ^ place).below((most as u64).saturating_add(1))
    }
}

/// All decisions of a replay, in their order. [`crate::Recorder`] keeps one, [`crate::Fixed`]
/// repeats it.
///
/// The text form has a line for each decision and names threads and events as every report does:
///
/// ```text
/// refrain schedule 1
/// total
/// noise 7 10
/// t3 e1042 @77120 #310
/// ```
///
/// `total` stands there if releases were decided on too ([`crate::Scope::Total`]), `barging` if
/// waiting threads were woken first ([`Waiting::Barging`]), `polling` if they stayed awake
/// ([`Waiting::Polling`]), `noise` with its seed and thousandths if there was some; `@` is the
/// virtual time and `#` the step of a grant.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Schedule {
    /// Whether every operation on an object was decided on, not competing ones only.
    pub total: bool,
    /// How threads waited. A thread that barges is granted its request twice: to wake, and to go.
    pub waiting: Waiting,
    /// The noise.
    pub noise: Option<Noise>,
    /// What went, in order.
    pub grants: Vec<Grant>,
}

/// How threads wait, as the text form says it.
const WAITING: [(Waiting, &str); 3] =
    [(Waiting::Barging, "barging"), (Waiting::Polling, "polling"), (Waiting::Glibc, "glibc")];

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}")?;
        if self.total {
            writeln!(f, "total")?;
        }
        if let Some((_, word)) = WAITING.iter().find(|(waiting, _)| *waiting == self.waiting) {
            writeln!(f, "{word}")?;
        }
        if let Some(Noise { seed, per_mille }) = self.noise {
            writeln!(f, "noise {seed} {per_mille}")?;
        }
        for Grant { thread, event, at, step } in &self.grants {
            writeln!(f, "{thread} {event} @{at} #{step}")?;
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
            let wanted =
                "`total`, `barging`, `polling`, `glibc`, `noise 7 10` or `t3 e1042 @77120 #310`";
            let bad = Error::BadSchedule { line, wanted };
            match words.as_slice() {
                [] => {}
                ["total"] => schedule.total = true,
                ["noise", seed, per_mille] => {
                    let read = || Some((number(seed, "")?, number(per_mille, "")?));
                    let (seed, per_mille) = read().ok_or(bad)?;
                    schedule.noise = Some(Noise { seed, per_mille });
                }
                [word] => {
                    let waiting = WAITING.iter().find(|(_, name)| name == word).ok_or(bad)?;
                    schedule.waiting = waiting.0;
                }
                [thread, event, at, step] => {
                    schedule.grants.push(grant(thread, event, at, step).ok_or(bad)?);
                }
                _ => return Err(bad),
            }
        }
        Ok(schedule)
    }
}

impl Schedule {
    /// What the simulation assumed whose decisions these are.
    pub fn model(&self) -> Model<'static> {
        Model { waiting: self.waiting, noise: self.noise, ..Model::default() }
    }
}

fn grant(thread: &str, event: &str, at: &str, step: &str) -> Option<Grant> {
    let (thread, event) = (ThreadId(number(thread, "t")?), EventId(number(event, "e")?));
    Some(Grant { thread, event, at: number(at, "@")?, step: number(step, "#")? })
}

fn number<T: FromStr>(word: &str, prefix: &str) -> Option<T> {
    let digits = word.strip_prefix(prefix)?;
    // `parse` would take a sign.
    let all = digits.bytes().all(|byte| byte.is_ascii_digit());
    if all { digits.parse().ok() } else { None }
}
