//! Byte-precise sets of addresses as sorted intervals.
//!
//! Invariant of a *normal* list: ascending, not empty, and no two intervals touch. So a set has
//! one form, and equal sets are equal lists.

/// Bytes `start..end` of guest memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Interval {
    /// First byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

impl Interval {
    /// `len` bytes from `start`; shorter at the end of the address space.
    pub fn new(start: u64, len: u64) -> Interval {
        Interval { start, end: start.saturating_add(len) }
    }
}

/// Makes a list normal, in place.
pub(crate) fn normalise(list: &mut Vec<Interval>) {
    list.retain(|interval| interval.start < interval.end);
    list.sort_unstable();
    list.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
}

/// Whether two normal lists have no byte in common. Walks the shorter one and leaps in the longer,
/// so it costs `O(short * log(long))` at worst and `O(short + long)` when they interleave.
pub(crate) fn disjoint(a: &[Interval], b: &[Interval]) -> bool {
    let (short, mut long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    for interval in short {
        let skip = leap(long, interval.start);
        long = &long[skip..];
        match long.first() {
            Some(first) if first.start < interval.end => return false,
            Some(_) => {}
            None => return true,
        }
    }
    true
}

/// What is left of a normal list without the bytes of another one.
pub(crate) fn without(list: &[Interval], mut gone: &[Interval]) -> Vec<Interval> {
    let mut left = Vec::new();
    for &interval in list {
        gone = &gone[leap(gone, interval.start)..];
        let mut at = interval.start;
        for hole in gone.iter().take_while(|hole| hole.start < interval.end) {
            left.push(Interval { start: at, end: hole.start.max(at) });
            at = hole.end;
        }
        left.push(Interval { start: at.min(interval.end), end: interval.end });
    }
    left.retain(|interval| interval.start < interval.end);
    left
}

/// The part of a normal list that lies in another.
pub(crate) fn clip(list: &[Interval], mut within: &[Interval]) -> Vec<Interval> {
    let mut out = Vec::new();
    for interval in list {
        within = &within[leap(within, interval.start)..];
        for other in within.iter().take_while(|other| other.start < interval.end) {
            let (start, end) = (interval.start.max(other.start), interval.end.min(other.end));
            out.push(Interval { start, end });
        }
    }
    out
}

/// How many intervals of a normal list end at or before `address`: galloping search.
pub(crate) fn leap(list: &[Interval], address: u64) -> usize {
    let mut step = 1;
    while step < list.len() && list[step].end <= address {
        step *= 2;
    }
    let from = step / 2;
    let to = list.len().min(step + 1);
    from + list[from..to].partition_point(|interval| interval.end <= address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn list() -> impl Strategy<Value = Vec<Interval>> {
        let interval = (0u64..120, 0u64..9).prop_map(|(start, len)| Interval::new(start, len));
        proptest::collection::vec(interval, 0..12)
    }

    fn bytes(list: &[Interval]) -> BTreeSet<u64> {
        list.iter().flat_map(|interval| interval.start..interval.end).collect()
    }

    proptest! {
        #[test]
        fn normal_lists_hold_the_same_bytes(mut list in list()) {
            let before = bytes(&list);
            normalise(&mut list);
            prop_assert_eq!(before, bytes(&list));
            prop_assert!(list.windows(2).all(|pair| pair[0].end < pair[1].start));
        }

        #[test]
        fn without_leaves_the_other_bytes(mut a in list(), mut b in list()) {
            normalise(&mut a);
            normalise(&mut b);
            let left = without(&a, &b);
            prop_assert_eq!(bytes(&left), &bytes(&a) - &bytes(&b));
            let mut normal = left.clone();
            normalise(&mut normal);
            prop_assert_eq!(normal, left);
        }

        #[test]
        fn disjoint_means_no_common_byte(mut a in list(), mut b in list()) {
            normalise(&mut a);
            normalise(&mut b);
            prop_assert_eq!(disjoint(&a, &b), bytes(&a).is_disjoint(&bytes(&b)));
            prop_assert_eq!(disjoint(&a, &b), disjoint(&b, &a));
        }
    }
}
