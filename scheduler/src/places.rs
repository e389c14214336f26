//! What the same code usually takes: time that was not the program's work.
//!
//! The code from one event to the next is mostly worked through many times in a recording, so that
//! three things show which no event tells.
//!
//! - Who gets a lock (or the word of an atomic instruction) from another core waits for lines of the recorder's, too, and whoever has waited for it
//!   comes back from the recorder on a longer way. Neither happens to a thread that had the lock last
//!   itself. So work after a lock that came from another thread is taken for as long as the same work
//!   after a lock that did not: the quickest tenth for as long as the quickest tenth, and so on.
//! - Where too few locks were their thread's own before, what work is longer than its quickest times, up to
//!   what a few misses take, is dropped.
//! - The recorder's writer, or another program, takes the core away. What is much longer than nearly
//!   always, and seldom, is cut.
//!
//! # Limits
//! What a section misses itself of data that another core has written is dropped, too. Without locks that were
//! their thread's own, work that by its nature differs by less than a few misses is taken for as long as its
//! quickest times. Work that is seldom much longer is taken for shorter than it is. What the recorder's
//! work does to a gain is part of the gain's range.

use crate::config::ticks;
use crate::skeleton::{Operation, Strand, WIDE_WORK};
use refrain_trace::fixed::FixedMap;
use refrain_trace::{Event, ThreadId};

/// What misses may take, in nanoseconds.
const MISSES: u64 = 150;
/// What they may take in the few times in which there are many, at lines that the writer is reading, too.
const MANY: u64 = 500;
/// Longer by so much than nearly always, in nanoseconds, and the thread had no core.
const AWAY: u64 = 30_000;
/// Nearly always: but for one time in so many.
const NEARLY: usize = 20;
/// Seldom: at most one time in so many.
const SELDOM: usize = 50;
/// Fewer times tell nothing.
const ENOUGH: usize = 32;

/// Which code each thread's work is in, by the events before and after it.
#[derive(Debug, Default)]
pub(crate) struct Places {
    numbers: FixedMap<(u64, u64), u32>,
    /// By thread and event: the place of the work before it.
    of_events: Vec<Vec<u32>>,
    /// By thread: the code of its last event.
    last: Vec<u64>,
}

impl Places {
    /// The next event of a thread.
    pub(crate) fn push(&mut self, thread: ThreadId, event: &Event) {
        if self.of_events.len() <= thread.index() {
            self.of_events.resize(thread.index() + 1, Vec::new());
            self.last.resize(thread.index() + 1, 0);
        }
        let last = self.last[thread.index()];
        if !event.is_from_another_thread() {
            self.last[thread.index()] = event.pc;
        }
        let fresh = self.numbers.len() as u32;
        let place = *self.numbers.entry((last, event.pc)).or_insert(fresh);
        self.of_events[thread.index()].push(place);
    }

    /// Takes out of the work what was not the program's. The operations know who comes after them.
    pub(crate) fn drop_from(self, strands: &mut [Strand], ticks_per_second: u64) {
        let ticks = |ns| u32::try_from(ticks(ns, ticks_per_second)).unwrap_or(u32::MAX);
        let mut works = vec![Works::default(); self.numbers.len()];
        self.each(strands, |operation, place, whence| works[place].of(whence).push(operation.work));
        works.iter_mut().for_each(|works| works.look(ticks(AWAY)));
        let misses = [MISSES, MANY].map(ticks);
        self.each(strands, |operation, place, whence| {
            operation.work = works[place].without(operation.work, whence, misses);
        });
    }

    /// Calls `act` with each operation, the place of the work before it, and where what its thread got last
    /// before that came from.
    fn each(&self, strands: &mut [Strand], mut act: impl FnMut(&mut Operation, usize, Whence)) {
        let strands = strands.iter_mut().enumerate();
        for ((thread, strand), places) in strands.zip(&self.of_events) {
            // By lock: who had it after this thread.
            let mut next_at: FixedMap<u32, u16> = FixedMap::default();
            let mut whence = Whence::Elsewhere;
            for (operation, place) in strand.operations.iter_mut().zip(places) {
                if operation.flags & WIDE_WORK == 0 {
                    act(operation, *place as usize, whence);
                }
                if operation.competes() {
                    let own = |next| usize::from(next) == thread;
                    let before = next_at.insert(operation.object, operation.next);
                    let stays = before.is_some_and(own) && own(operation.next);
                    whence = if stays { Whence::Here } else { Whence::Elsewhere };
                }
            }
        }
    }
}

/// Where a lock, or the word of an atomic instruction, was before a thread got it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whence {
    /// The same thread had it last.
    Here,
    /// Another one had it, or nobody knows.
    Elsewhere,
}

/// What the work at a place took.
#[derive(Clone, Debug, Default)]
struct Works {
    here: Vec<u32>,
    elsewhere: Vec<u32>,
    usual: Option<Usual>,
}

/// How long a place usually takes.
#[derive(Clone, Copy, Debug)]
struct Usual {
    /// Few times were quicker, or slower.
    quick: u32,
    slow: u32,
    /// What takes longer was not at work all the time.
    longest: u32,
    /// Enough locks were here before for the others to be held against.
    has_own: bool,
}

impl Works {
    fn of(&mut self, whence: Whence) -> &mut Vec<u32> {
        match whence {
            Whence::Here => &mut self.here,
            Whence::Elsewhere => &mut self.elsewhere,
        }
    }

    /// Everything has been seen.
    fn look(&mut self, away: u32) {
        self.here.sort_unstable();
        self.elsewhere.sort_unstable();
        let has_own = self.here.len() >= ENOUGH;
        let mut all = Vec::new();
        let of = if has_own {
            &self.here
        } else {
            all.extend(self.here.iter().chain(&self.elsewhere));
            all.sort_unstable();
            &all
        };
        let count = of.len();
        if count < ENOUGH {
            return;
        }
        let (quick, slow) = (of[count / NEARLY], of[count - 1 - count / NEARLY]);
        let limit = slow.saturating_add(away);
        let longer = count - of.partition_point(|work| *work <= limit);
        let longest = if longer * SELDOM <= count { limit } else { u32::MAX };
        self.usual = Some(Usual { quick, slow, longest, has_own });
    }

    /// What was the program's of work that took so long.
    fn without(&self, work: u32, whence: Whence, [misses, many]: [u32; 2]) -> u32 {
        let Some(Usual { quick, slow, longest, has_own }) = self.usual else { return work };
        if !has_own {
            let work = work.min(longest);
            return work - work.saturating_sub(quick).min(misses);
        }
        let same = match whence {
            Whence::Here => work,
            Whence::Elsewhere => {
                let [below, upto] = [
                    self.elsewhere.partition_point(|other| *other < work),
                    self.elsewhere.partition_point(|other| *other <= work),
                ];
                let all = self.elsewhere.len().max(1);
                work.min(self.here[below.midpoint(upto) * (self.here.len() - 1) / all])
            }
        };
        let work = same.min(longest);
        work - work.saturating_sub(slow).min(many)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skeleton::{Code, UNKNOWN};
    use refrain_trace::{EventKind, accessed};

    fn operation(work: u32, code: Code, next: u16) -> Operation {
        Operation { work, object: 0, rank: 0, code, flags: 0, next }
    }

    /// Sections of thread 0 at one place, with a clock of a tick a nanosecond: for each its work, and whether the
    /// lock was the thread's own before.
    fn sections(works: &[(u32, bool)]) -> Vec<u32> {
        let (mut places, mut strand) = (Places::default(), Strand::default());
        // What came before the first lock says whether that was the thread's own.
        let owns = works.iter().map(|(_, own)| *own).chain([true]);
        let works = std::iter::once(0).chain(works.iter().map(|(work, _)| *work));
        for (work, is_next) in works.zip(owns) {
            let next = if is_next { 0 } else { 1 };
            for (pc, work, code) in [(5, 0, Code::Lock), (7, work, Code::Unlock)] {
                places.push(ThreadId(0), &Event { pc, ..Event::default() });
                strand.operations.push(operation(work, code, next));
            }
        }
        let mut strands = [strand];
        places.drop_from(&mut strands, 1_000_000_000);
        strands[0].operations.iter().skip(3).step_by(2).map(|it| it.work).collect()
    }

    /// Work at one place without locks.
    fn dropped(works: &[u32]) -> Vec<u32> {
        let (mut places, mut strand) = (Places::default(), Strand::default());
        for &work in works {
            places.push(ThreadId(0), &Event { pc: 7, ..Event::default() });
            strand.operations.push(operation(work, Code::Plain, UNKNOWN));
        }
        let mut strands = [strand];
        places.drop_from(&mut strands, 1_000_000_000);
        strands[0].operations.iter().map(|operation| operation.work).collect()
    }

    /// Of each twenty, the lock of ten was the thread's own before, and of nine it stays so.
    fn own(nth: u32) -> (bool, bool) {
        let own = |nth: u32| nth % 20 < 10;
        (own(nth), own(nth) && own(nth + 1))
    }

    #[test]
    fn a_section_takes_what_it_takes_with_a_lock_of_ones_own() {
        // With its own lock a section takes 100 or 300, with one from elsewhere 250 or 900.
        let work = |nth: u32| match (own(nth).1, nth.is_multiple_of(2)) {
            (true, short) => {
                if short {
                    100
                } else {
                    300
                }
            }
            (false, short) => {
                if short {
                    250
                } else {
                    900
                }
            }
        };
        let left = sections(&(0..400).map(|nth| (work(nth), own(nth).0)).collect::<Vec<_>>());
        let seldom = |left: usize| left <= 20;
        let wrong =
            |nth: &u32| left[*nth as usize] != if nth.is_multiple_of(2) { 100 } else { 300 };
        assert!(seldom((0..400).filter(wrong).count()), "{left:?}");
        assert!(left.iter().all(|work| [100, 300].contains(work)), "{left:?}");
    }

    #[test]
    fn a_lock_from_elsewhere_makes_nothing_longer() {
        let work = |nth: u32| if own(nth).1 { 500 } else { 400 };
        let left = sections(&(0..400).map(|nth| (work(nth), own(nth).0)).collect::<Vec<_>>());
        assert!((0..400).all(|nth| left[nth as usize] == work(nth)), "{left:?}");
    }

    #[test]
    fn many_misses_at_once_are_dropped() {
        let work = |nth: u32| if nth == 45 { 450 } else { 100 + nth % 3 };
        let left = sections(&(0..400).map(|nth| (work(nth), own(nth).0)).collect::<Vec<_>>());
        assert!(left.iter().all(|work| (100..103).contains(work)), "{left:?}");
    }

    #[test]
    fn misses_and_lost_cores_are_dropped() {
        // The first has another event before it, so it is a place of its own.
        let mut works = vec![100; 100];
        works[10] = 180;
        works[20] = 400;
        works[30] = 2_000_000;
        let left = dropped(&works);
        assert_eq!((left[10], left[20]), (100, 250));
        assert_eq!(left[30], 30_100 - 150);
        assert_eq!(left.iter().filter(|work| **work == 100).count(), 98);
    }

    #[test]
    fn a_handover_is_no_place() {
        let (mut places, mut strand) = (Places::default(), Strand::default());
        for nth in 0..100 {
            let (code, nr) = (EventKind::Handover as u8, accessed::WORD);
            let handover = Event { code, nr, ..Event::default() };
            let here = Event { pc: 7, ..Event::default() };
            let work = if nth == 30 { 4_000_000 } else { 100 };
            // Before the longest work, another thread takes a word over.
            let both = [(handover, 0), (here, work)];
            for (event, work) in both.into_iter().skip(usize::from(nth != 30)) {
                places.push(ThreadId(0), &event);
                strand.operations.push(operation(work, Code::Plain, UNKNOWN));
            }
        }
        let mut strands = [strand];
        places.drop_from(&mut strands, 1_000_000_000);
        let longest = strands[0].operations.iter().map(|operation| operation.work).max();
        assert_eq!(longest, Some(30_100 - 150));
    }

    #[test]
    fn what_is_often_long_is_work() {
        let works: Vec<u32> = (0..200).map(|n| if n % 10 == 5 { 500_000 } else { 100 }).collect();
        let left = dropped(&works);
        assert!(left.iter().all(|work| [100, 499_850].contains(work)), "{left:?}");
    }

    #[test]
    fn few_times_tell_nothing() {
        let works: Vec<u32> = (0..20).map(|n| 100 + n * 10_000).collect();
        assert_eq!(dropped(&works), works);
    }
}
