//! What the translator makes known while it translates.

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

/// A bit that no address below 2 GiB has.
pub(super) const OPAQUE: u32 = REACH as u32;

/// What the translator has made known, in the order of commits.
#[derive(Default)]
pub(in crate::copy) struct Journal {
    /// Address; place; what, variant and bytes of code.
    pub(super) rows: Vec<[u32; 3]>,
    /// Field, exit, address and whether the variant is [`Variant::Opaque`] ([`OPAQUE`]).
    pub(super) links: Vec<[u32; 3]>,
    /// From where, to where.
    pub(super) jumps: Vec<[u32; 2]>,
    pub(super) commits: Vec<Commit>,
    /// The code of the rows, one behind the other.
    pub(super) code: Vec<u8>,
    /// What the translation under way is for; 0 if it is not to be kept.
    owner: u32,
}

/// Translations that came into code memory together, and where what was noted of them ends: start, owner, and
/// the ends of rows, links, jumps and code.
pub(super) type Commit = [u32; 6];

impl Journal {
    pub(in crate::copy) fn begin(&mut self, pc: u64) {
        let [.., rows, links, jumps, code] = self.commits.last().copied().unwrap_or_default();
        self.rows.truncate(rows as usize);
        self.links.truncate(links as usize);
        self.jumps.truncate(jumps as usize);
        self.code.truncate(code as usize);
        self.owner = if pc < REACH { pc as u32 } else { 0 };
    }

    pub(in crate::copy) fn leave_out(&mut self) {
        self.owner = 0;
    }

    pub(in crate::copy) fn commit(&mut self, start: u64) {
        let ends = [self.rows.len(), self.links.len(), self.jumps.len(), self.code.len()];
        let [rows, links, jumps, code] = ends.map(|end| end as u32);
        self.commits.push([start as u32, self.owner, rows, links, jumps, code]);
    }

    pub(in crate::copy) fn row(
        &mut self,
        what: What,
        pc: u64,
        variant: Variant,
        place: u64,
        code: &[u8],
    ) {
        if pc >= REACH || variant.steps() {
            self.leave_out();
            return;
        }
        let rest = what as u32 | (variant as u32) << 8 | (code.len() as u32) << 16;
        self.rows.push([pc as u32, place as u32, rest]);
        self.code.extend_from_slice(code);
    }

    pub(in crate::copy) fn link(&mut self, field: u64, exit: u64, pc: u64, variant: Variant) {
        // Where a jump leads that leads far away is asked for.
        let pc = if pc < REACH { pc as u32 } else { 0 };
        let opaque = if variant == Variant::Opaque { OPAQUE } else { 0 };
        self.links.push([field as u32, exit as u32, pc | opaque]);
    }

    pub(in crate::copy) fn jump(&mut self, from: u64, to: u64) {
        self.jumps.push([from as u32, to as u32]);
    }
}
