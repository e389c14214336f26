//! What one pair costs: PerfPlay, Eq. 1.
//!
//! `ΔT = Δ MAX{Time2, Time3} − Δ Time1`, where Δ is the difference between the replay with ULCPs
//! and the one without, and for critical sections A before B
//! - Time1 is the start of the segment before A,
//! - Time2 the end of the segment after A,
//! - Time3 the end of the segment after B.
//!
//! # Deviations
//! 1. A gain may be negative: without its ULCPs a program can take another turn for the worse.
//!    It is summed as it is.
//! 2. Gains of pairs overlap (README of the papers): they rank, they do not add up.

use crate::{Error, Plan, Replayer, Section, SectionId, Sections};
use refrain_trace::{EventId, ThreadId};

/// When each critical section's neighbourhood began and ended in one replay, in ticks.
#[derive(Clone, Debug)]
pub struct Timeline {
    before: Vec<u64>,
    after: Vec<u64>,
    /// Duration of the whole replay.
    pub duration: u64,
}

impl Timeline {
    /// Replays the original, or a transformed trace.
    pub fn new(
        sections: &Sections,
        replayer: &mut dyn Replayer,
        plan: Option<&Plan>,
    ) -> Result<Timeline, Error> {
        let count = sections.all().len();
        let (mut before, mut after) = (vec![0; count], vec![0; count]);
        let mut cursors = Cursors::new(sections);
        let mut visit = |thread: ThreadId, event: EventId, begin: u64, end: u64| {
            cursors.visit(thread, event, |id, edge| match edge {
                // The segment before an acquisition begins when the event before it ends.
                Edge::Before => before[id] = end,
                // A release's own end stands for that of a segment that does not follow.
                Edge::Release => after[id] = end,
                Edge::After => after[id] = begin,
            });
        };
        let what = if plan.is_some() { "transformed" } else { "original" };
        let replayed = replayer.replay(plan, &mut visit);
        let duration = replayed.map_err(|why| Error::Replay { what, why })?;
        Ok(Timeline { before, after, duration })
    }

    /// Start of the segment before a section.
    pub fn before(&self, section: SectionId) -> u64 {
        self.before[section.index()]
    }

    /// End of the segment after a section.
    pub fn after(&self, section: SectionId) -> u64 {
        self.after[section.index()]
    }
}

/// Eq. 1, in ticks.
pub(crate) fn gain(original: &Timeline, free: &Timeline, a: SectionId, b: SectionId) -> i64 {
    let span = |time: &Timeline| time.after(a).max(time.after(b)) as i64 - time.before(a) as i64;
    span(original) - span(free)
}

#[derive(Clone, Copy)]
enum Edge {
    Before,
    Release,
    After,
}

/// Finds, for each event of a thread, the sections whose times it tells. Events come in order,
/// so each list is read once.
struct Cursors(Vec<[Cursor; 3]>);

#[derive(Default)]
struct Cursor {
    /// (event, section), ascending.
    list: Vec<(u32, u32)>,
    next: usize,
}

impl Cursors {
    fn new(sections: &Sections) -> Cursors {
        let threads = sections.all().iter().map(|section| section.thread.index() + 1).max();
        let mut cursors: Vec<[Cursor; 3]> = Vec::new();
        cursors.resize_with(threads.unwrap_or(0), Default::default);
        for (id, section) in sections.all().iter().enumerate() {
            let Section { thread, acquire, release, .. } = *section;
            let events = [acquire.checked_sub(1), Some(release), release.checked_add(1)];
            for (cursor, event) in cursors[thread.index()].iter_mut().zip(events) {
                cursor.list.extend(event.map(|event| (event, id as u32)));
            }
        }
        for cursor in cursors.iter_mut().flatten() {
            cursor.list.sort_unstable();
        }
        Cursors(cursors)
    }

    #[inline]
    fn visit(&mut self, thread: ThreadId, event: EventId, mut tell: impl FnMut(usize, Edge)) {
        let Some(cursors) = self.0.get_mut(thread.index()) else { return };
        for (cursor, edge) in cursors.iter_mut().zip([Edge::Before, Edge::Release, Edge::After]) {
            while let Some(&(at, id)) = cursor.list.get(cursor.next) {
                if u64::from(at) > event.0 {
                    break;
                }
                if u64::from(at) == event.0 {
                    tell(id as usize, edge);
                }
                cursor.next += 1;
            }
        }
    }
}
