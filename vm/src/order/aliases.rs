//! Lines that show the same memory: of a file that is mapped at several addresses.
//!
//! Such lines are one *class*, and whose a class is stands at one of its lines, the *canonical* one.
//! Classes only grow. If one of the addresses shows something else later, its lines stay in the class:
//! the recording then orders more than it needs to, and stays exact.

use std::ops::Range;

/// Lines that follow each other, and the canonical line of the first; the others' follow it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Alias {
    lines: Range<usize>,
    canonical: usize,
}

/// All lines that are not canonical, by ascending numbers. (Numbers are indices: see
/// [`super::filter::index`].)
#[derive(Clone, Default, Debug)]
pub(super) struct Aliases {
    all: Vec<Alias>,
}

impl Aliases {
    /// The canonical line of a line, and how many lines from there on go on like that.
    fn resolve(&self, line: usize) -> (usize, usize) {
        let next = self.all.partition_point(|alias| alias.lines.end <= line);
        match self.all.get(next) {
            Some(Alias { lines, canonical }) if lines.start <= line => {
                (canonical + (line - lines.start), lines.end - line)
            }
            Some(alias) => (line, alias.lines.start - line),
            None => (line, usize::MAX - line),
        }
    }

    /// The line at which it stands whose the line is.
    pub(super) fn canonical(&self, line: usize) -> usize {
        self.resolve(line).0
    }

    /// Whether the canonical line has others in its class.
    pub(super) fn is_shared(&self, canonical: usize) -> bool {
        self.others(canonical).next().is_some()
    }

    /// The lines of a class.
    pub(super) fn members(&self, canonical: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::once(canonical).chain(self.others(canonical))
    }

    fn others(&self, canonical: usize) -> impl Iterator<Item = usize> + '_ {
        self.all.iter().filter_map(move |alias| {
            let at = canonical.checked_sub(alias.canonical)?;
            (at < alias.lines.len()).then(|| alias.lines.start + at)
        })
    }

    /// From here on, `count` lines from each of two on are in the same classes.
    pub(super) fn unite(&mut self, first: usize, second: usize, count: usize) {
        let mut done = 0;
        while done < count {
            let (to, straight) = self.resolve(first + done);
            let (from, as_straight) = self.resolve(second + done);
            // What overlaps is united piece by piece.
            let apart = if to == from { count } else { to.abs_diff(from) };
            let len = straight.min(as_straight).min(apart).min(count - done);
            if to != from {
                self.redirect(from..from + len, to);
            }
            done += len;
        }
    }

    /// Canonical lines get others for canonical lines, and so do all of their classes.
    fn redirect(&mut self, from: Range<usize>, to: usize) {
        let mut all = vec![Alias { lines: from.clone(), canonical: to }];
        for alias in self.all.drain(..) {
            let Alias { lines, canonical } = alias;
            let shown = canonical..canonical + lines.len();
            let (start, end) = (shown.start.max(from.start), shown.end.min(from.end));
            if start >= end {
                all.push(Alias { lines, canonical });
                continue;
            }
            let line = |canonical: usize| lines.start + (canonical - shown.start);
            for (part, canonical) in [
                (shown.start..start, shown.start),
                (start..end, to + (start - from.start)),
                (end..shown.end, end),
            ] {
                if !part.is_empty() {
                    all.push(Alias { lines: line(part.start)..line(part.end), canonical });
                }
            }
        }
        all.sort_unstable_by_key(|alias| alias.lines.start);
        self.all = all;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the table should say, by the numbers of classes.
    fn check(aliases: &Aliases, classes: &[usize]) {
        for line in 0..classes.len() {
            let canonical = aliases.canonical(line);
            assert_eq!(aliases.canonical(canonical), canonical);
            let mut members: Vec<_> = aliases.members(canonical).collect();
            members.sort_unstable();
            let class = classes[line];
            let expected: Vec<_> =
                (0..classes.len()).filter(|&other| classes[other] == class).collect();
            assert_eq!(members, expected, "{line} in {aliases:?}");
            assert_eq!(aliases.is_shared(canonical), expected.len() > 1);
        }
    }

    #[test]
    fn two_mappings_of_a_file() {
        let mut aliases = Aliases::default();
        aliases.unite(0x100, 0x900, 0x40);
        assert_eq!(aliases.canonical(0x93f), 0x13f);
        assert_eq!(aliases.canonical(0x940), 0x940);
        assert_eq!(aliases.members(0x120).collect::<Vec<_>>(), [0x120, 0x920]);
        assert_eq!(aliases.members(0x140).collect::<Vec<_>>(), [0x140]);
    }

    #[test]
    fn classes_are_those_of_a_naive_union() {
        const LINES: usize = 48;
        let mut state = 7_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) as usize % below
        };
        for _ in 0..500 {
            let mut aliases = Aliases::default();
            let mut classes: Vec<usize> = (0..LINES).collect();
            for _ in 0..5 {
                let count = 1 + random(12);
                let (first, second) = (random(LINES - count), random(LINES - count));
                aliases.unite(first, second, count);
                for at in 0..count {
                    let (to, from) = (classes[first + at], classes[second + at]);
                    classes.iter_mut().filter(|it| **it == from).for_each(|it| *it = to);
                }
                check(&aliases, &classes);
            }
        }
    }
}
