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
//! 1. `benign` is judged by what the instructions of the sections do, and not by reversed replays
//!    ([`crate::effects`]); [`Verdict::Conflict`] holds those that are not seen to be benign, too.
//!    A benign pair is told by its kind.
//! 2. A null-lock whose empty section is the second half of a wait on a condition variable is
//!    spurious (Appendix, Case 1): no programmer can remove it. So are two sections, each before or
//!    behind such a wait, that only look: the wait needs the lock. When the thread was woken, and so
//!    for whom it waited then, is not recorded: a second half is paired with the section before it.

use crate::effects::Benign;
use crate::intervals::{Interval, clip, normalise};
use crate::{EffectsId, LockKind, Section, SectionId, Sections, SetId, SetTable};
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
    /// Benign: both store the same value.
    RedundantWrite,
    /// Benign: they change and look at different bits of the same bytes.
    DisjointBits,
    /// Benign: updates that come to the same in either order, as additions do.
    CommutativeUpdate,
}

impl UlcpKind {
    /// All kinds.
    pub const ALL: [UlcpKind; 6] = [
        UlcpKind::NullLock,
        UlcpKind::ReadRead,
        UlcpKind::DisjointWrite,
        UlcpKind::RedundantWrite,
        UlcpKind::DisjointBits,
        UlcpKind::CommutativeUpdate,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            UlcpKind::NullLock => "null-lock",
            UlcpKind::ReadRead => "read-read",
            UlcpKind::DisjointWrite => "disjoint-write",
            UlcpKind::RedundantWrite => "redundant-write",
            UlcpKind::DisjointBits => "disjoint-bits",
            UlcpKind::CommutativeUpdate => "commutative-update",
        }
    }
}

/// What a pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Unnecessary contention.
    Ulcp(UlcpKind),
    /// What waits on condition variables made, and no program can leave out.
    OfWaits,
    /// One writes what the other uses, but only atomic variables: no ULCP.
    AtomicOnly,
    /// One writes what the other uses: true contention, as far as can be told.
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
pub fn identify(sections: &Sections, first: &Section, second: &Section) -> Verdict {
    let sets = sections.sets();
    if first.only_waits() && second.only_waits() {
        Verdict::OfWaits
    } else if first.is_null() || second.is_null() {
        let real = |section: &Section| section.is_null() && !section.after_wait;
        if real(first) || real(second) {
            Verdict::Ulcp(UlcpKind::NullLock)
        } else {
            Verdict::OfWaits
        }
    } else if first.writes.is_empty() && second.writes.is_empty() {
        Verdict::Ulcp(UlcpKind::ReadRead)
    } else if !conflict(sets, first, second) {
        Verdict::Ulcp(UlcpKind::DisjointWrite)
    } else if let Some(benign) = benign(sections, first, second) {
        Verdict::Ulcp(match benign {
            Benign::Redundant => UlcpKind::RedundantWrite,
            Benign::Bits => UlcpKind::DisjointBits,
            Benign::Commutes => UlcpKind::CommutativeUpdate,
        })
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

/// Sections that conflict over more bytes are not looked at byte by byte.
const MOST_BYTES: u64 = 1 << 9;

/// Why sections that conflict come to the same in either order, if they do.
pub(crate) fn benign(sections: &Sections, a: &Section, b: &Section) -> Option<Benign> {
    if a.effects == EffectsId::default() || b.effects == EffectsId::default() {
        return None;
    }
    let get = |id| sections.sets().get(id);
    let mut over: Vec<Interval> = clip(get(a.reads), get(b.writes));
    over.extend(clip(get(a.writes), get(b.reads)));
    over.extend(clip(get(a.writes), get(b.writes)));
    normalise(&mut over);
    if over.iter().map(|interval| interval.end - interval.start).sum::<u64>() > MOST_BYTES {
        return None;
    }
    sections.effects.benign(a.effects, b.effects, &over)
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
        let verdict = memory.identify(sections, &sections.all()[first as usize], second);
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

type Key = ([SetId; 4], [EffectsId; 2]);

/// Remembers verdicts of pairs of sets, which repeat with the code that makes them.
pub(crate) struct Memory(Vec<(Key, Verdict)>);

impl Memory {
    const WAYS: usize = 1 << 12;

    pub(crate) fn new() -> Memory {
        // The empty key is never asked for: such a pair is a null-lock.
        Memory(vec![(Key::default(), Verdict::OfWaits); Memory::WAYS])
    }

    pub(crate) fn identify(
        &mut self,
        sections: &Sections,
        first: &Section,
        second: &Section,
    ) -> Verdict {
        if first.is_null() || second.is_null() || (first.only_waits() && second.only_waits()) {
            return identify(sections, first, second);
        }
        let sets = [first.reads, first.writes, second.reads, second.writes];
        let effects = [first.effects, second.effects];
        let key = (sets, effects);
        let ids = sets.iter().map(|id| id.index()).chain(effects.iter().map(|id| id.index()));
        let mix = ids.fold(0u64, |hash, id| {
            (hash.rotate_left(20) ^ id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        let entry = &mut self.0[(mix >> 40) as usize % Memory::WAYS];
        if entry.0 != key {
            *entry = (key, identify(sections, first, second));
        }
        entry.1
    }
}
