//! Where the guest generates code, and what the translator remembers of its blocks there.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges where the guest generates code.
#[derive(Default)]
pub(in super::super) struct Generated {
    /// Ends by starts; none overlap.
    ranges: BTreeMap<u64, u64>,
}

impl Generated {
    /// Adds a range, which may overlap others.
    pub(in super::super) fn add(&mut self, range: Range<u64>) {
        let mut all = range;
        while let Some((&start, &end)) = self.ranges.range(..=all.end).next_back()
            && end >= all.start
        {
            self.ranges.remove(&start);
            all = start.min(all.start)..end.max(all.end);
        }
        self.ranges.insert(all.start, all.end);
    }

    /// Whether the code at an address is generated.
    pub(in super::super) fn holds(&self, pc: u64) -> bool {
        self.ranges.range(..=pc).next_back().is_some_and(|(_, &end)| pc < end)
    }
}

/// A block's translation behind its look.
pub(in super::super) struct Looked {
    /// The code that it is the translation of.
    pub(super) code: Vec<u8>,
    /// Where it begins.
    pub(super) start: u64,
    /// Where the translation goes on.
    pub(super) behind: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined() {
        let mut generated = Generated::default();
        generated.add(10..20);
        generated.add(30..40);
        assert!(!generated.holds(9) && generated.holds(10) && !generated.holds(25));
        generated.add(15..35);
        assert!(generated.holds(25) && generated.holds(39) && !generated.holds(40));
        assert_eq!(generated.ranges, BTreeMap::from([(10, 40)]));
    }
}
