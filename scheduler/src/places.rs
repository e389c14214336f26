//! What the same code usually takes: time that was not the program's work.
//!
//! The code from one event to the next is mostly worked through many times in a recording, so that
//! two things show which no event tells.
//!
//! - What recording adds after an event ([`crate::recording`]) is little as long as the lines that
//!   the recorder writes (the order's tickets) are in the core's cache. Under contention they come
//!   from another core, which takes as long as a short critical section. What work is longer than
//!   its quickest times, up to what a few such misses take, is dropped.
//! - The recorder's writer, or another program, takes the core away. What is much longer than nearly
//!   always, and seldom, is cut.
//!
//! # Limits
//! Work that by its nature differs by less than a few misses is taken for as long as its quickest
//! times, and work that is seldom much longer for shorter than it is. What the recorder's work does to
//! a gain is part of the gain's range.

use crate::config::ticks;
use crate::skeleton::{Strand, WIDE_WORK};
use refrain_trace::fixed::FixedMap;
use refrain_trace::{Event, ThreadId};

/// What misses may take, in nanoseconds.
const MISSES: u64 = 150;
/// Longer by so much than nearly always, in nanoseconds, and the thread had no core.
const AWAY: u64 = 30_000;
/// Nearly always: but for one time in so many.
const NEARLY: usize = 20;
/// Seldom: at most one time in so many.
const SELDOM: usize = 50;
/// Fewer times tell nothing.
const ENOUGH: usize = 32;

/// Work by the code of the events before and after it.
#[derive(Debug, Default)]
pub(crate) struct Places {
    numbers: FixedMap<(u64, u64), u32>,
    /// By place: how long it took.
    works: Vec<Vec<u32>>,
    /// By thread and event: its place.
    of_events: Vec<Vec<u32>>,
    /// By thread: the code of its last event.
    last: Vec<u64>,
}

impl Places {
    /// The next event of a thread, and the work before it.
    pub(crate) fn push(&mut self, thread: ThreadId, event: &Event, work: u64) {
        if self.of_events.len() <= thread.index() {
            self.of_events.resize(thread.index() + 1, Vec::new());
            self.last.resize(thread.index() + 1, 0);
        }
        let last = self.last[thread.index()];
        if !event.is_from_another_thread() {
            self.last[thread.index()] = event.pc;
        }
        let fresh = self.works.len() as u32;
        let place = *self.numbers.entry((last, event.pc)).or_insert(fresh);
        if place == fresh {
            self.works.push(Vec::new());
        }
        self.works[place as usize].push(u32::try_from(work).unwrap_or(u32::MAX));
        self.of_events[thread.index()].push(place);
    }

    /// Takes out of the work what was not the program's.
    pub(crate) fn drop_from(mut self, strands: &mut [Strand], ticks_per_second: u64) {
        let [misses, away] =
            [MISSES, AWAY].map(|ns| u32::try_from(ticks(ns, ticks_per_second)).unwrap_or(u32::MAX));
        let usual: Vec<Option<Usual>> =
            self.works.iter_mut().map(|works| Usual::of(works, away)).collect();
        for (strand, places) in strands.iter_mut().zip(&self.of_events) {
            for (operation, place) in strand.operations.iter_mut().zip(places) {
                if let Some(usual) = usual[*place as usize]
                    && operation.flags & WIDE_WORK == 0
                {
                    let work = operation.work.min(usual.longest);
                    operation.work = work - work.saturating_sub(usual.quick).min(misses);
                }
            }
        }
    }
}

/// How long a place usually takes.
#[derive(Clone, Copy)]
struct Usual {
    /// Few times were quicker.
    quick: u32,
    /// What takes longer was not at work all the time.
    longest: u32,
}

impl Usual {
    fn of(works: &mut [u32], away: u32) -> Option<Usual> {
        let count = works.len();
        if count < ENOUGH {
            return None;
        }
        let quick = *works.select_nth_unstable(count / NEARLY).1;
        let slow = *works.select_nth_unstable(count - 1 - count / NEARLY).1;
        let limit = slow.saturating_add(away);
        let longer = works.iter().filter(|work| **work > limit).count();
        Some(Usual { quick, longest: if longer * SELDOM <= count { limit } else { u32::MAX } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skeleton::{Code, Operation, UNKNOWN};
    use refrain_trace::{EventKind, accessed};

    /// Work at one place, before and after, with a clock of a tick a nanosecond.
    fn dropped(works: &[u32]) -> Vec<u32> {
        let (mut places, mut strand) = (Places::default(), Strand::default());
        for &work in works {
            places.push(ThreadId(0), &Event { pc: 7, ..Event::default() }, u64::from(work));
            let (object, rank, code, flags, next) = (0, 0, Code::Plain, 0, UNKNOWN);
            strand.operations.push(Operation { work, object, rank, code, flags, next });
        }
        let mut strands = [strand];
        places.drop_from(&mut strands, 1_000_000_000);
        strands[0].operations.iter().map(|operation| operation.work).collect()
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
                places.push(ThreadId(0), &event, u64::from(work));
                let (object, rank, code, flags, next) = (0, 0, Code::Plain, 0, UNKNOWN);
                strand.operations.push(Operation { work, object, rank, code, flags, next });
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
