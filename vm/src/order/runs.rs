//! Lines that a thread takes over one after the other, forwards or backwards. They are taken to be a
//! buffer that the thread goes through, so that it gets the lines that follow with the next one.

use std::ops::Range;

/// So many lines in a row show that a thread goes through them.
const ROW: usize = 4;
/// Lines that are taken over with another one, at most.
const MOST: usize = 1024;
/// Lines in between that a thread has already, or that nobody has for himself, at most.
const GAP: usize = 64;

/// Where a thread has taken over lines lately, at several places in turns.
#[derive(Default, Debug)]
pub(crate) struct Runs {
    runs: [Range<usize>; 4],
    /// Which one the next line that belongs to none takes the place of.
    oldest: usize,
}

/// Which neighbours of a line a thread should have with it: so many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Neighbours {
    None,
    Behind(usize),
    Before(usize),
}

impl Runs {
    /// A thread has taken over a line. `skips` says of lines that they do not end a run.
    pub(super) fn take(&mut self, line: usize, skips: impl Fn(usize) -> bool) -> Neighbours {
        for run in &mut self.runs {
            if run.start == run.end {
                continue;
            }
            let reach = if run.len() < ROW { 0 } else { run.len().min(MOST) };
            let is_near = |from: usize, to: usize| from <= to && to - from <= GAP;
            if is_near(run.end, line) && (run.end..line).all(&skips) {
                run.end = line + 1 + reach;
                return if reach > 0 { Neighbours::Behind(reach) } else { Neighbours::None };
            }
            if is_near(line + 1, run.start) && (line + 1..run.start).all(&skips) {
                run.start = line.saturating_sub(reach);
                return if reach > 0 { Neighbours::Before(reach) } else { Neighbours::None };
            }
        }
        self.runs[self.oldest] = line..line + 1;
        self.oldest = (self.oldest + 1) % self.runs.len();
        Neighbours::None
    }
}

#[cfg(test)]
mod tests {
    use super::Neighbours::{Before, Behind, None};
    use super::*;

    #[test]
    fn two_buffers_in_turns() {
        let mut runs = Runs::default();
        for at in 0..ROW {
            assert_eq!(runs.take(100 + at, |_| false), None);
            assert_eq!(runs.take(900 - at, |_| false), None);
        }
        assert_eq!(runs.take(104, |_| false), Behind(4));
        assert_eq!(runs.take(896, |_| false), Before(4));
        assert_eq!(runs.take(109, |_| false), Behind(9));
        assert_eq!(runs.take(891, |_| false), Before(9));
    }

    #[test]
    fn what_is_not_in_a_row_brings_nothing() {
        let mut runs = Runs::default();
        let strided = (0..100).map(|at| runs.take(at * 3, |_| false));
        assert!(strided.collect::<Vec<_>>().iter().all(|taken| *taken == None));
        // The edge of what a thread has anyway, again and again.
        let edge = (0..100).map(|_| runs.take(5000, |line| line > 5000));
        assert!(edge.collect::<Vec<_>>().iter().all(|taken| *taken == None));
    }

    #[test]
    fn gaps_and_bounds() {
        let mut runs = Runs::default();
        (0..3).for_each(|at| assert_eq!(runs.take(at * 2, |line| line % 2 == 1), None));
        assert_eq!(runs.take(6, |line| line % 2 == 1), Behind(5));
        let mut at = 12;
        for _ in 0..20 {
            if let Behind(more) = runs.take(at, |_| false) {
                assert!(more <= MOST);
                at += more + 1;
            }
        }
        assert!(at > 10 * MOST);
        assert_eq!(runs.take(usize::MAX - 1, |_| true), None);
    }
}
