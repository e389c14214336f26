//! Hash-consed address sets: a set that occurs in a million critical sections is kept once.

use crate::intervals::{self, Interval};
use refrain_trace::fixed::{FixedHasher, FixedMap};
use std::hash::Hasher;

/// A set of a [`SetTable`]. Equal sets of one table have equal ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SetId(pub(crate) u32);

impl SetId {
    /// The set without bytes, in every table.
    pub const EMPTY: SetId = SetId(0);

    /// Whether the set has no bytes.
    pub fn is_empty(self) -> bool {
        self == SetId::EMPTY
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A table of distinct address sets, at 16 bytes an interval and some 24 bytes a set.
#[derive(Clone, Debug)]
pub struct SetTable {
    arena: Vec<Interval>,
    /// End of each set in the arena; set `n` begins where set `n - 1` ends.
    ends: Vec<usize>,
    /// The latest set with a hash, and per set the one before it with the same hash.
    by_hash: FixedMap<u64, u32>,
    same_hash: Vec<u32>,
    /// Per set what is left of it without atomic variables; empty as long as nobody has said which
    /// bytes are.
    plain: Vec<SetId>,
}

impl Default for SetTable {
    fn default() -> SetTable {
        SetTable {
            arena: Vec::new(),
            ends: vec![0],
            by_hash: FixedMap::default(),
            same_hash: vec![0],
            plain: Vec::new(),
        }
    }
}

impl SetTable {
    /// The intervals of a set, ascending, no two touching.
    pub fn get(&self, id: SetId) -> &[Interval] {
        let start = id.index().checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.arena[start..self.ends[id.index()]]
    }

    /// Number of distinct sets, the empty one included.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no set but the empty one.
    pub fn is_empty(&self) -> bool {
        self.ends.len() == 1
    }

    /// Whether two sets have no byte in common.
    pub fn disjoint(&self, a: SetId, b: SetId) -> bool {
        if a.is_empty() || b.is_empty() {
            return true;
        }
        a != b && intervals::disjoint(self.get(a), self.get(b))
    }

    /// The set without atomic variables; the set itself if nobody has said which bytes are.
    pub fn plain(&self, id: SetId) -> SetId {
        self.plain.get(id.index()).copied().unwrap_or(id)
    }

    /// Says which bytes are atomic variables', as a normal list.
    pub(crate) fn set_atomic(&mut self, atomic: &[Interval]) {
        let count = self.len() as u32;
        let plain: Vec<SetId> = (0..count)
            .map(|id| {
                let left = intervals::without(self.get(SetId(id)), atomic);
                self.intern(&left)
            })
            .collect();
        self.plain = plain;
    }

    /// The id of a set, which must be normal.
    pub(crate) fn intern(&mut self, set: &[Interval]) -> SetId {
        if set.is_empty() {
            return SetId::EMPTY;
        }
        let mut hasher = FixedHasher::default();
        for interval in set {
            hasher.write_u64(interval.start);
            hasher.write_u64(interval.end);
        }
        let hash = hasher.finish();
        let latest = self.by_hash.get(&hash).copied().unwrap_or(0);
        let mut candidate = latest;
        while candidate != 0 {
            if self.get(SetId(candidate)) == set {
                return SetId(candidate);
            }
            candidate = self.same_hash[candidate as usize];
        }
        let id = self.ends.len() as u32;
        self.arena.extend_from_slice(set);
        self.ends.push(self.arena.len());
        self.same_hash.push(latest);
        self.by_hash.insert(hash, id);
        SetId(id)
    }
}
