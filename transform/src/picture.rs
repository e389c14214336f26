//! Where each thread's time goes, with and without unnecessary contention, in so many columns that a
//! picture of it has a bounded size.
//!
//! Both are replays on the recorded cores with everything else in its recorded order, so that their
//! columns can be held against each other.

use crate::ulcp::{Verdict, pairs};
use crate::{Cores, Plan, Replayer, Sections, Topology};
use refrain_trace::{EventId, ThreadId};
use serde::{Deserialize, Serialize};

/// Columns.
pub const COLUMNS: usize = 800;
/// Threads that have a lane, those with most events.
pub const LANES: usize = 48;
/// What a column of a lane adds up to.
pub const WHOLE: u32 = 1000;

/// Shares of a column, in parts of [`WHOLE`]; what is left the thread did not live.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Column {
    /// Outside of sections, at work or waiting for something else than a lock.
    pub outside: u32,
    /// Inside of a section.
    pub inside: u32,
    /// Waiting for a lock, behind a section that it conflicts with.
    pub waiting: u32,
    /// Waiting for a lock in vain.
    pub vain: u32,
}

/// One thread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lane {
    /// Which.
    pub thread: u32,
    /// The original.
    pub original: Vec<Column>,
    /// Without unnecessary contention.
    pub free: Vec<Column>,
}

/// Threads over time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Picture {
    /// What all columns are together: the longer of the two runs.
    pub width_ns: u64,
    /// The original in its recorded order.
    pub original_ns: u64,
    /// With the causal edges alone.
    pub free_ns: u64,
    /// By thread.
    pub lanes: Vec<Lane>,
    /// Threads without a lane.
    pub left_out: u64,
}

/// Draws the run with and without its unnecessary contention. An error says which replay did not end.
pub fn picture(sections: &Sections, replayer: &mut dyn Replayer) -> Result<Picture, String> {
    let plan = Topology::new(sections).plan(sections);
    let mut nothing = |_: ThreadId, _: EventId, _: u64, _: u64| {};
    let original = replayer.replay(None, Cores::Recorded, &mut nothing)?;
    let free = replayer.replay(Some(&plan), Cores::Recorded, &mut nothing)?;
    let width = original.max(free).max(1);
    let vain = vain(sections);
    let mut draw = |plan: Option<&Plan>| -> Result<Vec<Drawing>, String> {
        let mut drawings = Drawing::of(sections, width, if plan.is_some() { &[] } else { &vain });
        let mut visit = |thread: ThreadId, event: EventId, begin, end| {
            if let Some(drawing) = drawings.get_mut(thread.index()) {
                drawing.event(event.0, begin, end);
            }
        };
        replayer.replay(plan, Cores::Recorded, &mut visit)?;
        Ok(drawings)
    };
    let before = draw(None)?;
    let after = draw(Some(&plan))?;
    let mut order: Vec<usize> = (0..before.len()).filter(|&at| before[at].events > 0).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(before[at].events));
    let left_out = order.len().saturating_sub(LANES) as u64;
    order.truncate(LANES);
    order.sort_unstable();
    let lane = |at: usize| Lane {
        thread: at as u32,
        original: before[at].columns(),
        free: after[at].columns(),
    };
    Ok(Picture {
        width_ns: replayer.nanoseconds(width),
        original_ns: replayer.nanoseconds(original),
        free_ns: replayer.nanoseconds(free),
        lanes: order.into_iter().map(lane).collect(),
        left_out,
    })
}

/// By section, whether it waited in vain: for no section that it conflicts with.
fn vain(sections: &Sections) -> Vec<bool> {
    let mut vain = vec![false; sections.all().len()];
    let mut needed = vec![false; sections.all().len()];
    for pair in pairs(sections) {
        match pair.verdict {
            Verdict::Ulcp(_) => vain[pair.second.index()] = true,
            Verdict::OfWaits => {}
            Verdict::AtomicOnly | Verdict::Conflict => needed[pair.second.index()] = true,
        }
    }
    vain.into_iter().zip(needed).map(|(vain, needed)| vain && !needed).collect()
}

/// What an event is to its thread's sections.
#[derive(Clone, Copy)]
enum Step {
    Begins { vain: bool },
    Ends,
}

/// A lane in the making: ticks of each kind by column.
struct Drawing {
    /// Ascending by event.
    steps: Vec<(u32, Step)>,
    next: usize,
    open: u32,
    left: u64,
    events: u64,
    width: u64,
    ticks: Vec<[u64; 4]>,
}

impl Drawing {
    /// A drawing for each thread.
    fn of(sections: &Sections, width: u64, vain: &[bool]) -> Vec<Drawing> {
        let new = |_| Drawing {
            steps: Vec::new(),
            next: 0,
            open: 0,
            left: u64::MAX,
            events: 0,
            width,
            ticks: vec![[0; 4]; COLUMNS],
        };
        let mut drawings: Vec<Drawing> = (0..sections.threads).map(new).collect();
        for (at, section) in sections.all().iter().enumerate() {
            let Some(drawing) = drawings.get_mut(section.thread.index()) else { continue };
            let vain = vain.get(at).copied().unwrap_or(false);
            drawing.steps.push((section.acquire, Step::Begins { vain }));
            drawing.steps.push((section.release, Step::Ends));
        }
        for drawing in &mut drawings {
            drawing.steps.sort_by_key(|(event, _)| *event);
        }
        drawings
    }

    fn event(&mut self, event: u64, begin: u64, end: u64) {
        self.events += 1;
        let mut kind = self.kind();
        if self.left != u64::MAX {
            self.fill(self.left, begin, kind);
        }
        self.left = end;
        while let Some(&(at, step)) = self.steps.get(self.next) {
            if u64::from(at) > event {
                break;
            }
            self.next += 1;
            match step {
                Step::Begins { vain } => {
                    kind = if vain { VAIN } else { WAITING };
                    self.open += 1;
                }
                Step::Ends => self.open = self.open.saturating_sub(1),
            }
        }
        self.fill(begin, end, kind);
    }

    fn kind(&self) -> usize {
        if self.open > 0 { INSIDE } else { OUTSIDE }
    }

    fn fill(&mut self, from: u64, to: u64, kind: usize) {
        let columns = COLUMNS as u128;
        let start = |column: u128| (column * u128::from(self.width)).div_ceil(columns) as u64;
        let mut at = from;
        while at < to {
            let column = (u128::from(at) * columns / u128::from(self.width)).min(columns - 1);
            let end = if column + 1 == columns { to } else { start(column + 1).min(to) };
            // A column may be narrower than a tick.
            let end = end.max(at + 1);
            self.ticks[column as usize][kind] += end - at;
            at = end;
        }
    }

    fn columns(&self) -> Vec<Column> {
        let whole = (self.width / COLUMNS as u64).max(1);
        let share = |ticks: u64| {
            (u128::from(ticks) * u128::from(WHOLE) / u128::from(whole)).min(WHOLE.into()) as u32
        };
        let column = |ticks: &[u64; 4]| Column {
            outside: share(ticks[OUTSIDE]),
            inside: share(ticks[INSIDE]),
            waiting: share(ticks[WAITING]),
            vain: share(ticks[VAIN]),
        };
        self.ticks.iter().map(column).collect()
    }
}

const OUTSIDE: usize = 0;
const INSIDE: usize = 1;
const WAITING: usize = 2;
const VAIN: usize = 3;
