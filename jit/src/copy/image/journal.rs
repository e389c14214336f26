//! What the translator makes known while it translates.

use super::Extent;
use crate::copy::desc::Variant;
use crate::copy::emit::REACH;

/// What is made known of a place in translated code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::copy) enum What {
    /// A block.
    Body = 0,
    /// An entry for indirect jumps.
    Jump = 1,
    /// One for returns.
    Return = 2,
    /// A call instruction.
    Call = 3,
}

impl What {
    /// That of a row's last number.
    pub(super) fn of(number: u32) -> What {
        [What::Body, What::Jump, What::Return, What::Call][(number & 3) as usize]
    }
}

/// How many bytes of the journal's code are a row's.
pub(super) fn code_of(row: u32) -> usize {
    LENGTH.of(row) as usize + size_of::<u16>() * LOADS.of(row) as usize
}

/// A bit that no address below 2 GiB has.
const OPAQUE: u32 = REACH as u32;

/// What a link leads to, by its last number, if that was noted.
pub(super) fn target_of(to: u32) -> Option<(u64, Variant)> {
    let (pc, variant) = match to & OPAQUE {
        0 => (to, Variant::Observed),
        _ => (to & !OPAQUE, Variant::Opaque),
    };
    (pc != 0).then_some((pc.into(), variant))
}

/// What the translator has made known, in the order of commits.
#[derive(Default)]
pub(in crate::copy) struct Journal {
    /// Address; place; [what](What), [variant](VARIANT), [bytes of code](LENGTH) and how many [accesses are
    /// watched](LOADS).
    pub(super) rows: Vec<[u32; 3]>,
    /// Field, exit, address and whether the variant is [`Variant::Opaque`] ([`OPAQUE`]).
    pub(super) links: Vec<[u32; 3]>,
    /// From where, to where.
    pub(super) jumps: Vec<[u32; 2]>,
    pub(super) commits: Vec<Commit>,
    /// The code of the rows, and the offsets of what is watched in it, one behind the other.
    pub(super) code: Vec<u8>,
    /// What translations depend on besides code.
    pub(super) phases: Vec<u64>,
    /// What the translation under way is for, and the place of its phase; none if it is not to be kept.
    owner: Option<(u32, u32)>,
    /// Where it has begun.
    begun: Extent,
}

/// Translations that came into code memory together, and where what was noted of them ends.
#[derive(Clone, Copy, Default)]
pub(super) struct Commit {
    pub(super) start: u32,
    /// How far code memory reached before.
    pub(super) begun: Extent,
    /// What they are for, and the place of the phase.
    pub(super) owner: Option<(u32, u32)>,
    pub(super) rows: usize,
    pub(super) links: usize,
    pub(super) jumps: usize,
    pub(super) code: usize,
}

/// In which bits of a row's last number is what.
pub(super) const VARIANT: Bits = Bits(2, 3);
pub(super) const LENGTH: Bits = Bits(5, 11);
pub(super) const LOADS: Bits = Bits(16, 8);

/// From which bit on, and how many.
#[derive(Clone, Copy)]
pub(super) struct Bits(u32, u32);

impl Bits {
    /// What the bits of a number are.
    pub(super) fn of(self, number: u32) -> u32 {
        number >> self.0 & ((1 << self.1) - 1)
    }

    fn put(self, what: usize) -> u32 {
        assert!(what < 1 << self.1, "a block has no more code and accesses");
        (what as u32) << self.0
    }
}

impl Journal {
    /// A translation for `pc` begins. What was noted of one that failed does not count.
    pub(in crate::copy) fn begin(&mut self, pc: u64, phase: Option<u64>, begun: Extent) {
        self.take_back();
        self.begun = begun;
        self.owner = phase.filter(|_| pc < REACH).map(|phase| {
            let last = self.phases.len().checked_sub(1).filter(|&last| self.phases[last] == phase);
            let place = last.unwrap_or_else(|| {
                self.phases.push(phase);
                self.phases.len() - 1
            });
            (pc as u32, place as u32)
        });
    }

    /// Forgets what was noted since the last commit.
    fn take_back(&mut self) {
        let Commit { rows, links, jumps, code, .. } =
            self.commits.last().copied().unwrap_or_default();
        self.rows.truncate(rows);
        self.links.truncate(links);
        self.jumps.truncate(jumps);
        self.code.truncate(code);
    }

    pub(in crate::copy) fn leave_out(&mut self) {
        self.owner = None;
    }

    pub(in crate::copy) fn commit(&mut self, start: u64) {
        if self.owner.is_none() {
            self.take_back();
        }
        self.commits.push(Commit {
            start: start as u32,
            begun: self.begun,
            owner: self.owner,
            rows: self.rows.len(),
            links: self.links.len(),
            jumps: self.jumps.len(),
            code: self.code.len(),
        });
    }

    pub(in crate::copy) fn row(
        &mut self,
        what: What,
        pc: u64,
        variant: Variant,
        place: u64,
        code: &[u8],
        loads: &[u16],
    ) {
        if pc >= REACH || variant.steps() {
            self.leave_out();
            return;
        }
        let rest = what as u32
            | VARIANT.put(variant as usize)
            | LENGTH.put(code.len())
            | LOADS.put(loads.len());
        self.rows.push([pc as u32, place as u32, rest]);
        self.code.extend_from_slice(code);
        self.code.extend(loads.iter().flat_map(|load| load.to_le_bytes()));
    }

    pub(in crate::copy) fn link(&mut self, field: u64, exit: u64, pc: u64, variant: Variant) {
        // A jump to code above 2 GiB, or to code that is executed carefully, always asks where the block is:
        // there is no target to note.
        let pc = if pc < REACH && variant != Variant::Careful { pc as u32 } else { 0 };
        let opaque = if variant == Variant::Opaque { OPAQUE } else { 0 };
        self.links.push([field as u32, exit as u32, pc | opaque]);
    }

    pub(in crate::copy) fn jump(&mut self, from: u64, to: u64) {
        self.jumps.push([from as u32, to as u32]);
    }
}
