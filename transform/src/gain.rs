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
//! 3. The two replays are aligned: each of the two threads enters its segment before A or B when
//!    it did in the original, and takes from there to Time2 or Time3 as long as it does without
//!    ULCPs. Compared as they are, the replays drift apart: what A's thread has gained *before* A
//!    lets A begin earlier, B not, and the sum over the pairs tells how far threads run ahead of
//!    each other (that is how a group that costs most came out as a loss).
//! 4. Times are those of a machine with a core for each thread, as in the paper's evaluation. On
//!    fewer cores they would tell whose turn it was for a core: B may well come much later after
//!    A where nobody waits for a lock.

use crate::{Cores, Error, Plan, Replayer, Section, SectionId, Sections};
use refrain_trace::{EventId, ThreadId};

/// When each critical section's neighbourhood began and ended in one replay, in ticks.
#[derive(Clone, Debug)]
pub struct Timeline {
    before: Vec<u64>,
    after: Vec<u64>,
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
        let replayed = replayer.replay(plan, Cores::Enough, &mut visit);
        replayed.map_err(|why| Error::Replay { what, why })?;
        Ok(Timeline { before, after })
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
    let took = |id| free.after(id).saturating_sub(free.before(id));
    let without = |id| original.before(id).saturating_add(took(id));
    original.after(a).max(original.after(b)) as i64 - without(a).max(without(b)) as i64
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
