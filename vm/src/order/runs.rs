//! Which lines a thread gets together with one that it takes over.
//!
//! Lines that a thread takes over one after the other, forwards or backwards, are taken to be a buffer that
//! the thread goes through, so that it gets the lines that follow with the next one. Otherwise, a second line
//! of a page brings the rest of the page: a collector of garbage and the threads that use its objects go
//! through all of a page in any order. If one of the lines that came along has been taken back, both threads
//! use the page, and twice as many lines have to be taken over one by one before the rest comes again.

use super::filter::LINE;
use crate::layout::PAGE;
use std::ops::Range;

/// So many lines in a row show that a thread goes through them.
const ROW: usize = 4;
/// Lines that are taken over with another one, at most.
const MOST: usize = 1024;
/// Lines in between that a thread has already, or that nobody has for himself, at most.
const GAP: usize = 64;

/// Lines of a page.
const PAGE_LINES: usize = (PAGE / LINE) as usize;
/// Pages that are remembered.
const PAGES: usize = 64;

/// Where a thread has taken over lines lately, at several places in turns.
#[derive(Default, Debug)]
pub(crate) struct Runs {
    runs: [Range<usize>; 4],
    /// Which one the next line that belongs to none takes the place of.
    oldest: usize,
    pages: Pages,
}

/// The pages of the lines that a thread has taken over lately.
#[derive(Debug)]
struct Pages([Page; PAGES]);

/// One of them.
#[derive(Clone, Debug)]
struct Page {
    /// Its number; none at first.
    number: Option<usize>,
    /// What the thread got at the last time.
    last: Range<usize>,
    /// Lines that it has taken over since it got the whole page, and how many it takes until it does.
    single: u32,
    needed: u32,
}

/// Which neighbours of a line a thread should have with it: so many, or all of its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Neighbours {
    None,
    Behind(usize),
    Before(usize),
    Page,
}

/// The lines of the page of a line.
pub(super) fn page(line: usize) -> Range<usize> {
    let first = line - line % PAGE_LINES;
    first..first + PAGE_LINES
}

impl Default for Pages {
    fn default() -> Pages {
        const NONE: Page = Page { number: None, last: 0..0, single: 0, needed: 1 };
        Pages([NONE; PAGES])
    }
}

impl Pages {
    /// A thread has taken over a line that belongs to no run.
    fn take(&mut self, line: usize) -> Neighbours {
        let number = line / PAGE_LINES;
        let known = &mut self.0[number % PAGES];
        let one = line..line + 1;
        if known.number != Some(number) {
            *known = Page { number: Some(number), last: one, single: 1, needed: 1 };
            return Neighbours::None;
        }
        if known.last.contains(&line) {
            if known.last.len() > 1 {
                (known.single, known.needed) = (1, known.needed.saturating_mul(2));
            }
            known.last = one;
            return Neighbours::None;
        }
        if known.single < known.needed {
            (known.last, known.single) = (one, known.single + 1);
            return Neighbours::None;
        }
        (known.last, known.single) = (page(line), 0);
        Neighbours::Page
    }
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
                return if reach > 0 { Neighbours::Behind(reach) } else { self.pages.take(line) };
            }
            if is_near(line + 1, run.start) && (line + 1..run.start).all(&skips) {
                run.start = line.saturating_sub(reach);
                return if reach > 0 { Neighbours::Before(reach) } else { self.pages.take(line) };
            }
        }
        self.runs[self.oldest] = line..line + 1;
        self.oldest = (self.oldest + 1) % self.runs.len();
        self.pages.take(line)
    }
}

#[cfg(test)]
mod tests {
    use super::Neighbours::{self, Before, Behind, None};
    use super::*;

    #[test]
    fn two_buffers_in_turns() {
        let mut runs = Runs::default();
        let is_no_run = |taken| matches!(taken, None | Neighbours::Page);
        for at in 0..ROW {
            assert!(is_no_run(runs.take(100 + at, |_| false)));
            assert!(is_no_run(runs.take(900 - at, |_| false)));
        }
        assert_eq!(runs.take(104, |_| false), Behind(4));
        assert_eq!(runs.take(896, |_| false), Before(4));
        assert_eq!(runs.take(109, |_| false), Behind(9));
        assert_eq!(runs.take(891, |_| false), Before(9));
    }

    #[test]
    fn a_second_line_brings_the_rest_of_its_page() {
        let mut runs = Runs::default();
        let strided: Vec<_> = (0..12).map(|at| runs.take(6 + at * 80, |_| false)).collect();
        assert!(strided.iter().all(|taken| *taken == None), "each is in another page");
        assert_eq!(runs.take(6 + 40, |_| false), Neighbours::Page);
        assert_eq!(page(6 + 40), 0..64);
        // The edge of what a thread has anyway, again and again.
        let edge = (0..100).map(|_| runs.take(5000, |line| line > 5000));
        assert!(edge.collect::<Vec<_>>().iter().all(|taken| *taken == None));
    }

    /// Two threads have lines of a page in turns: each takes back what the other one got with its own.
    #[test]
    fn what_comes_back_comes_along_less_and_less() {
        let mut runs = Runs::default();
        let mut pages = 0;
        for round in 0..10_000 {
            let taken = runs.take(6400 + round % 2 * 40, |_| false);
            assert!(matches!(taken, None | Neighbours::Page), "{taken:?}");
            pages += usize::from(taken == Neighbours::Page);
        }
        assert!((2..20).contains(&pages), "{pages}");
    }

    #[test]
    fn gaps_and_bounds() {
        let mut runs = Runs::default();
        for at in 0..3 {
            let taken = runs.take(at * 2, |line| line % 2 == 1);
            assert!(matches!(taken, None | Neighbours::Page), "{taken:?}");
        }
        assert_eq!(runs.take(6, |line| line % 2 == 1), Behind(5));
        let mut at = 12;
        for _ in 0..20 {
            if let Behind(more) = runs.take(at, |_| false) {
                assert!(more <= MOST);
                at += more + 1;
            }
        }
        assert!(at > 10 * MOST);
        assert_eq!(runs.take(usize::MAX / 2, |_| true), None);
    }
}
