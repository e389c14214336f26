//! What critical sections do to shared bytes, where that is simple enough to say: which bits they
//! look at, and whether they add, change bits, or store a value. From this follows which conflicts
//! are benign: those of sections that come to the same in either order.
//!
//! # Rule
//! Two sections are benign if, for every byte over which they conflict, what each does to the byte
//! is known ([`Effect`]), neither looks at bits that the other may change, and the changes come to
//! the same in either order: additions to the same variable, changes of different bits, changes by
//! one of `or`, `and` and `xor` alone, stores of one value. As neither section reads anything that
//! the other changes, each does in the other order what it did in the recording, so that the end is
//! the same: what replays of the pair in both orders would find (PerfPlay, Algorithm 1, line 9).
//!
//! A section that changes several variables may keep them consistent. If other sections of its lock
//! look at some of them, what it does is taken for unknown.
//!
//! # Deviations from PerfPlay
//! 1. No pair is replayed in reversed order; the rule is judged by the accesses of one exact replay,
//!    with the values of the registers that they store. So it holds of every section, and it may call a
//!    pair a true contention that replays would find benign (a maximum, sums of floating-point
//!    numbers, sections that put back what they found), but not the other way around.
//! 2. The paper drops the contention of a benign pair altogether. A sum without exclusion loses
//!    additions, though: changes keep their exclusion, as that of an atomic instruction, and lose
//!    their order.

use crate::intervals::{Interval, normalise};
use crate::shadow::Shared;
use crate::{Lock, Section, Sections, SetId};
use refrain_trace::ThreadId;
use refrain_trace::fixed::FixedMap;
use std::collections::{BTreeMap, BTreeSet};

/// What an instruction stores, or combines with what is there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// A constant.
    Constant(u64),
    /// What a register had before the instruction at this address
    /// ([`refrain_trace::Access::VALUE`]).
    Register(u32),
}

/// How bits are changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Bitwise {
    /// Set where the operand has ones.
    Or,
    /// Cleared where the operand has zeros.
    And,
    /// Turned where the operand has ones.
    Xor,
    /// Several of these.
    Several,
}

/// How an update computes the new value from the old one, and from nothing else that is not the
/// same in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Update {
    /// It adds something.
    Add,
    /// It adds to variables side by side, of so many bytes each.
    AddEach(u8),
    /// It changes bits, by these operations one after the other.
    Bits(Vec<(Bitwise, Operand)>),
}

/// What the program does with what an instruction accesses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Use {
    /// A load: the bits whose values matter to anything but the update that it may begin.
    Load(u64),
    /// The store of an update that the load at this address has begun, or one of several, whose
    /// values are all in it.
    Store(Vec<(u32, Update)>),
    /// A load and a store in one instruction: the bits that matter otherwise, and the update.
    Both(u64, Update),
    /// A store of a value.
    Value(Operand),
}

/// Uses by the addresses of instructions. What is not in it may do anything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Uses {
    /// The uses.
    pub uses: FixedMap<u32, Use>,
    /// Instructions before which the value of a register is to be known.
    pub values: BTreeMap<u64, usize>,
}

/// What one access does to its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Deed {
    /// Looks at these bits.
    Look(u64),
    /// Adds to variables of so many bytes.
    Add(u8),
    /// Changes bits.
    Bits(Bitwise, u64, u32),
    /// Stores a value, by the instruction at this address.
    Value(u64, u32),
}

/// What a section does to a byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Effect {
    at: u64,
    /// The bits that it looks at.
    looks: u8,
    change: ByteChange,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum ByteChange {
    None,
    /// The variable begins so many bytes before, and has so many.
    Add(u8, u8),
    Bits(Bitwise, u8, u32),
    Value(u8, u32),
    /// Anything: such a byte is in no list.
    Any,
}

/// Why a conflict is benign.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Benign {
    /// Both store the same value.
    Redundant,
    /// They change and look at different bits.
    Bits,
    /// Their changes come to the same in either order.
    Commutes,
}

/// A section's effects in a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EffectsId(u32);

impl EffectsId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Lists of effects, each of which is kept once. The first is empty.
#[derive(Clone, Debug)]
pub(crate) struct EffectTable {
    lists: Vec<Vec<Effect>>,
    ids: FixedMap<Vec<Effect>, u32>,
}

impl Default for EffectTable {
    fn default() -> EffectTable {
        let ids = [(Vec::new(), 0)].into_iter().collect();
        EffectTable { lists: vec![Vec::new()], ids }
    }
}

/// More different lists of one thread, and the rest is not kept.
const LISTS: usize = 1 << 12;

impl EffectTable {
    pub(crate) fn get(&self, id: EffectsId) -> &[Effect] {
        &self.lists[id.0 as usize]
    }

    fn find(&self, id: EffectsId, at: u64) -> Option<&Effect> {
        let list = self.get(id);
        list.binary_search_by_key(&at, |effect| effect.at).ok().map(|index| &list[index])
    }

    pub(crate) fn intern(&mut self, list: Vec<Effect>) -> EffectsId {
        if let Some(id) = self.ids.get(&list) {
            return EffectsId(*id);
        }
        if self.lists.len() > LISTS {
            return EffectsId::default();
        }
        let id = self.lists.len() as u32;
        self.lists.push(list.clone());
        self.ids.insert(list, id);
        EffectsId(id)
    }

    /// The lists of a thread, in a common table, with what concerns shared bytes alone and without
    /// what is different nearly every time.
    pub(crate) fn adopt(
        &mut self,
        other: &EffectTable,
        shared: &Shared,
        varied: &Varied,
    ) -> Vec<EffectsId> {
        let mut clipped = Vec::new();
        let adopted = other.lists.iter().map(|list| {
            let kept = list.iter().filter_map(|effect| {
                clipped.clear();
                shared.clip(Interval::new(effect.at, 1), &mut clipped);
                let change = varied.simplified(effect.change);
                let kept = !clipped.is_empty() && change != ByteChange::Any;
                // Who stored the value does not matter any more.
                let change = match change {
                    ByteChange::Value(value, _) => ByteChange::Value(value, 0),
                    ByteChange::Bits(by, mask, _) => ByteChange::Bits(by, mask, 0),
                    change => change,
                };
                kept.then_some(Effect { change, ..*effect })
            });
            self.intern(kept.collect())
        });
        adopted.collect()
    }

    /// Why sections with these effects come to the same in either order, if they conflict over
    /// these bytes; `None` if they do not.
    pub(crate) fn benign(&self, a: EffectsId, b: EffectsId, over: &[Interval]) -> Option<Benign> {
        if self.get(a).is_empty() || self.get(b).is_empty() {
            return None;
        }
        let mut why = None;
        for at in over.iter().flat_map(|interval| interval.start..interval.end) {
            why = why.max(Some(self.find(a, at)?.commutes(self.find(b, at)?)?));
        }
        why
    }
}

impl Effect {
    fn commutes(&self, other: &Effect) -> Option<Benign> {
        use ByteChange::{Add, Bits, None as Nothing, Value};
        if self.looks & other.change.mask() != 0 || other.looks & self.change.mask() != 0 {
            return None;
        }
        match (self.change, other.change) {
            (Bits(_, a, _), Bits(_, b, _)) if a & b == 0 => Some(Benign::Bits),
            (Nothing, _) | (_, Nothing) | (Bits(_, 0, _), _) | (_, Bits(_, 0, _)) => {
                Some(Benign::Bits)
            }
            (Bits(a, ..), Bits(b, ..)) => {
                (a == b && a != Bitwise::Several).then_some(Benign::Commutes)
            }
            (Add(from, size), Add(other, other_size)) => {
                ((from, size) == (other, other_size)).then_some(Benign::Commutes)
            }
            (Value(a, _), Value(b, _)) => (a == b).then_some(Benign::Redundant),
            _ => None,
        }
    }
}

impl ByteChange {
    /// The bits that it may change.
    fn mask(self) -> u8 {
        match self {
            ByteChange::None => 0,
            ByteChange::Bits(_, mask, _) => mask,
            _ => 0xff,
        }
    }

    /// Both in one section, in whatever order.
    fn and(self, other: ByteChange) -> ByteChange {
        use ByteChange::{Any, Bits, None};
        match (self, other) {
            (None, change) | (change, None) => change,
            (a, b) if a == b => a,
            (Bits(a, mask, pc), Bits(b, more, other)) => {
                let by = if a == b { a } else { Bitwise::Several };
                Bits(by, mask | more, pc.max(other))
            }
            _ => Any,
        }
    }
}

/// Different effects on one byte, of all threads: more are not compared.
const COMPARED: usize = 64;

/// Bytes over which all sections of a lock are benign that use them.
pub(crate) fn commuting(sections: &Sections, of_lock: &[Section]) -> Vec<Interval> {
    type Users = (ThreadId, SetId, SetId, EffectsId);
    let table = &sections.effects;
    let kinds: BTreeSet<Users> = of_lock
        .iter()
        .map(|section| (section.thread, section.reads, section.writes, section.effects))
        .collect();
    // By byte: what the threads do to it; `None` if not all of that is known.
    let mut bytes: BTreeMap<u64, Option<BTreeSet<(ThreadId, Effect)>>> = BTreeMap::new();
    for (thread, .., effects) in &kinds {
        for effect in table.get(*effects) {
            let users = bytes.entry(effect.at).or_insert_with(|| Some(BTreeSet::new()));
            if let Some(known) = users {
                known.insert((*thread, *effect));
                if known.len() > COMPARED {
                    *users = None;
                }
            }
        }
    }
    for (_, reads, writes, effects) in &kinds {
        let sets = [reads, writes].into_iter().flat_map(|id| sections.sets().get(*id));
        for interval in sets {
            for (at, users) in bytes.range_mut(interval.start..interval.end) {
                if users.is_some() && table.find(*effects, *at).is_none() {
                    *users = None;
                }
            }
        }
    }
    let commutes = |users: &BTreeSet<(ThreadId, Effect)>| {
        let pairs = users.iter().flat_map(|a| users.iter().map(move |b| (a, b)));
        pairs.filter(|(a, b)| a.0 != b.0).all(|(a, b)| a.1.commutes(&b.1).is_some())
    };
    let mut free: Vec<Interval> = bytes
        .into_iter()
        .filter(|(_, users)| users.as_ref().is_some_and(commutes))
        .map(|(at, _)| Interval::new(at, 1))
        .collect();
    normalise(&mut free);
    free
}

/// The sections, by number, that change several variables of which sections of other threads under
/// the lock look at some: the lock keeps these consistent, which no atomic update would.
pub(crate) fn consistent(sections: &Sections, lock: &Lock) -> Vec<usize> {
    let of_lock = sections.of(lock);
    let table = &sections.effects;
    let tied: BTreeSet<EffectsId> = of_lock
        .iter()
        .map(|section| section.effects)
        .filter(|&effects| variables(table.get(effects)).len() > 1)
        .collect();
    if tied.is_empty() {
        return Vec::new();
    }
    let free = commuting(sections, of_lock);
    let is_free = |at: u64| {
        let before = free.partition_point(|interval| interval.end <= at);
        free.get(before).is_some_and(|interval| interval.start <= at)
    };
    let changed = |effects: &EffectsId| {
        let changes = table.get(*effects).iter().filter(|effect| effect.change.mask() != 0);
        changes.map(|effect| effect.at).collect::<Vec<_>>()
    };
    let tied: BTreeSet<EffectsId> =
        tied.into_iter().filter(|effects| !changed(effects).into_iter().all(is_free)).collect();
    let numbered = lock.sections.clone().zip(of_lock);
    numbered.filter(|(_, section)| tied.contains(&section.effects)).map(|(at, _)| at).collect()
}

/// The variables that are updated, by address. Bits are taken for those of aligned words.
fn variables(list: &[Effect]) -> BTreeSet<u64> {
    let variable = |effect: &Effect| match effect.change {
        ByteChange::Add(before, _) => Some(effect.at.wrapping_sub(before.into())),
        ByteChange::Bits(_, mask, _) if mask != 0 => Some(effect.at & !7),
        _ => None,
    };
    list.iter().filter_map(variable).collect()
}

/// Deeds of one section, up to so many: more are taken for anything.
const DEEDS: usize = 64;

/// The effects of a section: `known` are its accesses whose deeds are known, `others` the bytes of
/// all its other accesses.
pub(crate) fn effects(
    known: &[(Interval, Deed)],
    others: impl Iterator<Item = Interval>,
) -> Vec<Effect> {
    if known.is_empty() || known.len() > DEEDS {
        return Vec::new();
    }
    let mut bytes: Vec<Effect> = Vec::with_capacity(8 * known.len());
    for &(interval, deed) in known {
        for (offset, at) in (interval.start..interval.end).enumerate() {
            let byte = |word: u64| word.to_le_bytes().get(offset).copied().unwrap_or(0xff);
            let (looks, change) = match deed {
                Deed::Look(0) => (0, ByteChange::None),
                Deed::Look(bits) => (byte(bits), ByteChange::None),
                Deed::Add(size) => (0, ByteChange::Add(offset as u8 % size.max(1), size)),
                Deed::Bits(by, mask, pc) => (0, ByteChange::Bits(by, byte(mask), pc)),
                Deed::Value(value, pc) => (0, ByteChange::Value(byte(value), pc)),
            };
            bytes.push(Effect { at, looks, change });
        }
    }
    // Of each byte in the order of the deeds.
    bytes.sort_by_key(|effect| effect.at);
    bytes.dedup_by(|next, first| {
        let same = next.at == first.at;
        if same {
            first.looks |= next.looks;
            first.change = first.change.and(next.change);
        }
        same
    });
    for interval in others {
        if bytes.is_empty() {
            break;
        }
        let from = bytes.partition_point(|effect| effect.at < interval.start);
        let behind = bytes[from..].partition_point(|effect| effect.at < interval.end);
        bytes.drain(from..from + behind);
    }
    bytes.retain(|effect| effect.change != ByteChange::Any);
    bytes
}

/// Different operands of one instruction, at most: where there are more, sections would be of too
/// many kinds.
const OPERANDS: usize = 4;

/// The operands that instructions had.
#[derive(Clone, Debug, Default)]
pub(crate) struct Varied(FixedMap<u32, Vec<u64>>);

impl Varied {
    /// Notes an operand of the instruction at `pc`.
    pub(crate) fn note(&mut self, pc: u32, operand: u64) {
        let known = self.0.entry(pc).or_default();
        if known.len() <= OPERANDS && !known.contains(&operand) {
            known.push(operand);
        }
    }

    pub(crate) fn is(&self, pc: u32) -> bool {
        self.0.get(&pc).is_some_and(|operands| operands.len() > OPERANDS)
    }

    pub(crate) fn merge(&mut self, other: &Varied) {
        for (pc, operands) in &other.0 {
            operands.iter().for_each(|operand| self.note(*pc, *operand));
        }
    }

    /// What is left of a change if operands that vary are not told apart.
    fn simplified(&self, change: ByteChange) -> ByteChange {
        match change {
            ByteChange::Value(_, pc) if self.is(pc) => ByteChange::Any,
            ByteChange::Bits(Bitwise::Several, _, pc) if self.is(pc) => ByteChange::Any,
            ByteChange::Bits(by, _, pc) if self.is(pc) => ByteChange::Bits(by, 0xff, pc),
            change => change,
        }
    }
}
