//! How often MEM-S's token must travel for accesses that have no place in a skeleton.
//!
//! A caller knows how many shared accesses a segment has, not when each of them was. Taken as
//! spread evenly over their segments, accesses of threads at work at the same time alternate: if
//! thread *i* accesses at rate `r[i]` and all together at rate `R`, the access before one of its
//! own was another thread's with probability `1 - r[i] / R`. So of `k` accesses the token comes
//! from elsewhere for `k - ∫ r² / R dt` of them.
//!
//! Everything is integer arithmetic: the result is the same on every machine.

use crate::sweep::{Side, sweep};
use refrain_trace::{EventId, ThreadId};

/// Binary digits behind the point of a rate.
const RATE: u32 = 24;
/// And of the integral of the inverse of all rates, so that a product of all three has 64.
const INVERSE: u32 = 40;

/// A segment with accesses.
#[derive(Clone, Copy, Debug)]
struct Span {
    begin: u64,
    end: u64,
    event: u32,
    accesses: u64,
    /// The integral at its beginning; then how many accesses need no travel.
    at_home: u128,
}

impl Span {
    fn rate(&self) -> u128 {
        ((u128::from(self.accesses) << RATE) / u128::from(self.end - self.begin)).max(1)
    }
}

/// When segments with accesses were under way in a replay.
#[derive(Debug)]
pub(crate) struct Travel<'a> {
    accesses: &'a [Vec<u64>],
    spans: Vec<Vec<Span>>,
    /// By thread: when its segment in hand began.
    began: Vec<u64>,
}

impl<'a> Travel<'a> {
    /// `accesses[thread][event]` is how many there are before the event, since the one before.
    pub(crate) fn new(accesses: &'a [Vec<u64>], threads: usize) -> Travel<'a> {
        Travel { accesses, spans: vec![Vec::new(); threads], began: vec![u64::MAX; threads] }
    }

    /// An event of the replay. Nobody knows when a thread's first segment began: it counts as
    /// one that overlaps no other.
    pub(crate) fn event(&mut self, thread: ThreadId, event: EventId, begin: u64, end: u64) {
        let of_thread = self.accesses.get(thread.index());
        let accesses = of_thread.and_then(|events| events.get(event.index())).copied();
        let began = std::mem::replace(&mut self.began[thread.index()], end).min(begin);
        if let Some(accesses) = accesses.filter(|&accesses| accesses > 0) {
            let event = event.0 as u32;
            let span = Span { begin: began, end: begin, event, accesses, at_home: 0 };
            self.spans[thread.index()].push(span);
        }
    }

    /// Calls `each` with the thread and event at the end of every segment with accesses, each
    /// thread's in order, how many it has, and for how many of them the token comes from another
    /// thread.
    pub(crate) fn finish(mut self, mut each: impl FnMut(ThreadId, u32, u64, u64)) {
        let (mut last, mut all, mut inverse) = (0, 0u128, 0u128);
        sweep(
            &mut self.spans,
            |span| (span.begin, span.end),
            |time, side, span| {
                inverse += (u128::from(time - last) << INVERSE).checked_div(all).unwrap_or(0);
                last = time;
                let rate = span.rate();
                match side {
                    Side::Begins => {
                        all += rate;
                        span.at_home = inverse;
                    }
                    Side::Ends => {
                        all -= rate;
                        let at_home = (rate * rate).saturating_mul(inverse - span.at_home);
                        span.at_home = at_home.saturating_add(1 << 63) >> 64;
                    }
                }
            },
        );
        for (thread, spans) in self.spans.into_iter().enumerate() {
            for Span { begin, end, event, accesses, at_home } in spans {
                let at_home = u64::try_from(at_home).unwrap_or(u64::MAX).min(accesses);
                let travels = if begin < end { accesses - at_home } else { 0 };
                each(ThreadId(thread as u32), event, accesses, travels);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn travels(accesses: &[Vec<u64>], events: &[(u32, u64, u64, u64)]) -> Vec<(u32, u64)> {
        let mut travel = Travel::new(accesses, accesses.len());
        for &(thread, event, begin, end) in events {
            travel.event(ThreadId(thread), EventId(event), begin, end);
        }
        let mut found = Vec::new();
        travel.finish(|thread, _, _, travels| found.push((thread.0, travels)));
        found
    }

    #[test]
    fn who_is_alone_keeps_the_token() {
        let accesses = [vec![0, 100], vec![0, 0, 100]];
        let events = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 50, 50), (1, 1, 50, 50), (1, 2, 90, 90)];
        assert_eq!(travels(&accesses, &events), [(0, 0), (1, 0)]);
    }

    #[test]
    fn equal_threads_take_turns() {
        let accesses = [vec![0, 100], vec![0, 100]];
        let events = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 50, 50), (1, 1, 50, 50)];
        assert_eq!(travels(&accesses, &events), [(0, 50), (1, 50)]);
    }

    #[test]
    fn the_rarer_thread_nearly_always_finds_the_token_elsewhere() {
        let accesses = [vec![0, 900], vec![0, 100]];
        let events = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 1000, 1000), (1, 1, 1000, 1000)];
        assert_eq!(travels(&accesses, &events), [(0, 90), (1, 90)]);
    }

    #[test]
    fn only_the_time_together_counts() {
        let accesses = [vec![0, 100], vec![0, 100]];
        let events = [(0, 0, 0, 0), (1, 0, 50, 50), (0, 1, 100, 100), (1, 1, 150, 150)];
        assert_eq!(travels(&accesses, &events), [(0, 25), (1, 25)]);
    }
}
