//! ULCP identification: PerfPlay, Algorithm 1.
//!
//! # Pairs
//! A pair is two critical sections of one lock and two threads that exclude each other, where the
//! later one waited for the earlier one (it came while that one was on), or had the lock next.
//! The later section's search goes back from the latest such section to the earliest, and ends at
//! the first true contention (section 3.1: sequential searching, seen from the section that
//! waits): behind that, nothing is unnecessary to wait for. Three sections that follow each other
//! without waiting are two pairs (section 2.1). A lock has as many pairs as it has hand-overs and
//! waits.
//!
//! # Atomic variables
//! Sections that conflict in atomic variables alone ([`Verdict::AtomicOnly`]) are no ULCP: the lock
//! may be what keeps two variables consistent. They are told apart, since a lock around a single
//! atomic variable is one too many.
//!
//! # Deviations
//! 1. `benign` needs reversed replays with values and is not told here: [`Verdict::Conflict`]
//!    holds both it and the true contentions, as where Algorithm 1 returns FALSE.
//! 2. A null-lock whose empty section is the second half of a wait on a condition variable is
//!    spurious (Appendix, Case 1): no programmer can remove it. When the thread was woken, and so
//!    for whom it waited then, is not recorded: such a section is paired with the one before it.

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

impl UlcpKind {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            UlcpKind::NullLock => "null-lock",
            UlcpKind::ReadRead => "read-read",
            UlcpKind::DisjointWrite => "disjoint-write",
        }
    }
}

/// What a pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Unnecessary contention.
    Ulcp(UlcpKind),
    /// A null-lock that a wait on a condition variable made.
    AfterWait,
    /// One writes what the other uses, but only atomic variables: no ULCP.
    AtomicOnly,
    /// One writes what the other uses: true contention (or benign, which is not told here).
    Conflict,
}

impl Verdict {
    /// Whether the sections need their order.
    pub fn conflicts(self) -> bool {
        matches!(self, Verdict::AtomicOnly | Verdict::Conflict)
    }
}

/// Two critical sections of which the later one waited for the earlier, or followed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The one that had the lock first.
    pub first: SectionId,
    /// The other.
    pub second: SectionId,
    /// What the pair is.
    pub verdict: Verdict,
    /// The second came while the first was on.
    pub waited: bool,
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
    } else if conflict(sets, &first.plain(sets), &second.plain(sets)) {
        Verdict::Conflict
    } else {
        Verdict::AtomicOnly
    }
}

/// Whether one section writes what the other uses.
pub(crate) fn conflict(sets: &SetTable, a: &Section, b: &Section) -> bool {
    !(sets.disjoint(a.reads, b.writes)
        && sets.disjoint(a.writes, b.reads)
        && sets.disjoint(a.writes, b.writes))
}

/// Pairs of the regular locks, in the order of the later sections; of one section, the nearest
/// earlier one first.
pub fn pairs(sections: &Sections) -> impl Iterator<Item = Pair> {
    let locks = sections.locks().iter().filter(|lock| lock.kind == LockKind::Regular);
    let mut memory = Memory::new();
    locks
        .flat_map(|lock| lock.sections.clone().skip(1).map(|index| (lock.sections.start, index)))
        .flat_map(move |(start, index)| search(sections, &mut memory, start, index))
}

/// The pairs of one section with those before it. The first section of its lock is `start`.
fn search(sections: &Sections, memory: &mut Memory, start: usize, index: usize) -> Vec<Pair> {
    let second = &sections.all()[index];
    let waits = sections.waits(index);
    let next_to = (index > start).then(|| index as u32 - 1);
    let next_to = next_to.filter(|before| {
        waits.iter().all(|(_, at)| at != before)
            && excludes(&sections.all()[*before as usize], second)
    });
    // What it had the lock next after is nearer than all that it waited for.
    let mut found = Vec::new();
    for (first, waited) in
        next_to.map(|at| (at, false)).into_iter().chain(waits.iter().map(|&(_, at)| (at, true)))
    {
        let verdict = memory.identify(sections.sets(), &sections.all()[first as usize], second);
        found.push(Pair {
            first: SectionId(first),
            second: SectionId(index as u32),
            verdict,
            waited,
        });
        if verdict.conflicts() {
            break;
        }
    }
    found
}

/// Whether two sections of a lock cannot be at the same time, if they are of two threads.
pub(crate) fn excludes(a: &Section, b: &Section) -> bool {
    a.thread != b.thread && !(a.shared && b.shared)
}

type Key = [SetId; 4];

/// Remembers verdicts of pairs of sets, which repeat with the code that makes them.
pub(crate) struct Memory(Vec<(Key, Verdict)>);

impl Memory {
    const WAYS: usize = 1 << 12;

    pub(crate) fn new() -> Memory {
        // The empty key is never asked for: such a pair is a null-lock.
        Memory(vec![([SetId::EMPTY; 4], Verdict::AfterWait); Memory::WAYS])
    }

    pub(crate) fn identify(
        &mut self,
        sets: &SetTable,
        first: &Section,
        second: &Section,
    ) -> Verdict {
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
