//! ULCP identification: PerfPlay, Algorithm 1.
//!
//! # Pairs
//! The paper encodes "three sequential critical sections as two pairs" (section 2.1), and so does
//! this: a pair is two critical sections that follow each other in the order of their lock, of
//! different threads, not both holding it as readers. It is the lock's being handed from one
//! thread to another, the only place where it can make a thread wait. A lock with `n` sections
//! has at most `n - 1` pairs.
//!
//! # Deviations
//! 1. The sequential search of section 3.1 goes on past ULCPs to the first true contention; as a
//!    count of pairs it would be quadratic for a lock that is only read. Here it is used for
//!    causal edges alone (`topology`), in a form that is near-linear.
//! 2. `benign` needs reversed replays with values and is not told here: [`Verdict::Conflict`]
//!    holds both it and the true contentions, as where Algorithm 1 returns FALSE.
//! 3. A null-lock whose empty section is the second half of a wait on a condition variable is
//!    spurious (Appendix, Case 1): no programmer can remove it.

use crate::{LockKind, Section, SectionId, Sections, SetId, SetTable};
use serde::{Deserialize, Serialize};

/// Kinds of unnecessary lock contention pairs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UlcpKind {
    /// One of the two has no shared access.
    NullLock,
    /// Neither writes shared data.
    ReadRead,
    /// Neither writes what the other uses.
    DisjointWrite,
}

/// What a pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Unnecessary contention.
    Ulcp(UlcpKind),
    /// A null-lock that a wait on a condition variable made.
    AfterWait,
    /// One writes what the other uses: true contention (or benign, which is not told here).
    Conflict,
}

/// Two critical sections that follow each other in the order of their lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The one that had the lock first.
    pub first: SectionId,
    /// The other.
    pub second: SectionId,
    /// What the pair is.
    pub verdict: Verdict,
}

/// Algorithm 1 on two critical sections of one lock.
pub fn identify(sets: &SetTable, first: &Section, second: &Section) -> Verdict {
    if first.is_null() || second.is_null() {
        let real = |section: &Section| section.is_null() && !section.after_wait;
        if real(first) || real(second) {
            Verdict::Ulcp(UlcpKind::NullLock)
        } else {
            Verdict::AfterWait
        }
    } else if first.writes.is_empty() && second.writes.is_empty() {
        Verdict::Ulcp(UlcpKind::ReadRead)
    } else if !conflict(sets, first, second) {
        Verdict::Ulcp(UlcpKind::DisjointWrite)
    } else {
        Verdict::Conflict
    }
}

/// Whether one section writes what the other uses.
pub(crate) fn conflict(sets: &SetTable, a: &Section, b: &Section) -> bool {
    !(sets.disjoint(a.reads, b.writes)
        && sets.disjoint(a.writes, b.reads)
        && sets.disjoint(a.writes, b.writes))
}

/// Pairs of the regular locks, in the order of the sections.
pub fn pairs(sections: &Sections) -> impl Iterator<Item = Pair> {
    let locks = sections.locks().iter().filter(|lock| lock.kind == LockKind::Regular);
    let mut memory = Memory::new();
    locks.flat_map(|lock| lock.sections.clone().skip(1)).filter_map(move |index| {
        let (first, second) = (&sections.all()[index - 1], &sections.all()[index]);
        if first.thread == second.thread || (first.shared && second.shared) {
            return None;
        }
        let verdict = memory.identify(sections.sets(), first, second);
        let id = |index: usize| SectionId(index as u32);
        Some(Pair { first: id(index - 1), second: id(index), verdict })
    })
}

type Key = [SetId; 4];

/// Remembers verdicts of pairs of sets, which repeat with the code that makes them.
struct Memory(Vec<(Key, Verdict)>);

impl Memory {
    const WAYS: usize = 1 << 12;

    fn new() -> Memory {
        // The empty key is never asked for: such a pair is a null-lock.
        Memory(vec![([SetId::EMPTY; 4], Verdict::AfterWait); Memory::WAYS])
    }

    fn identify(&mut self, sets: &SetTable, first: &Section, second: &Section) -> Verdict {
        if first.is_null() || second.is_null() {
            return identify(sets, first, second);
        }
        let key = [first.reads, first.writes, second.reads, second.writes];
        let mix = key.iter().fold(0u64, |hash, id| {
            (hash.rotate_left(20) ^ u64::from(id.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        let entry = &mut self.0[(mix >> 40) as usize % Memory::WAYS];
        if entry.0 != key {
            *entry = (key, identify(sets, first, second));
        }
        entry.1
    }
}
