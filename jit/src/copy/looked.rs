//! Blocks of generated code whose translations begin with a look at the code ([`super::generated`]).

use super::desc::Variant;
use refrain_trace::fixed::{FixedMap, FixedSet};

/// A block, by its address and how it is translated.
pub(super) type Key = (u64, Variant);

/// The blocks whose translations begin with a look.
#[derive(Default)]
pub(super) struct LookedBlocks {
    /// Their translations.
    pub(super) blocks: FixedMap<Key, Looked>,
    /// By line index: the blocks of that line that are told when it has changed.
    pub(super) keeping: FixedMap<usize, Vec<Key>>,
    /// The addresses of blocks whose lines are written too often for that: these blocks compare their code each
    /// time.
    pub(super) comparing: FixedSet<u64>,
}

impl LookedBlocks {
    /// There are no translations any more.
    pub(super) fn forget(&mut self) {
        self.blocks.clear();
        self.keeping.clear();
    }
}

/// The translation of a block of generated code behind its look ([`super::generated`]).
pub(super) struct Looked {
    /// The code that it is the translation of.
    pub(super) code: Vec<u8>,
    /// Where it begins.
    pub(super) start: u64,
    /// Where the translation goes on.
    pub(super) behind: u64,
    /// How others lead to its new translation when its code has changed.
    pub(super) way: Way,
}

/// How a block of generated code is told that its code has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// It compares by itself.
    Compares,
    /// It looks whether its thread keeps the code.
    Keeps(Keeping),
    /// In a replay, which compares where the recording did: it begins with a jump.
    Follows {
        /// The displacement of the jump.
        jump: u64,
        /// The way to the block's new translation.
        changed: u64,
    },
}

/// Where a block looks whether its thread keeps its code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Keeping {
    /// The displacement of the first line's entry.
    pub(super) entry: u64,
    /// Of the jump if that line is not kept.
    pub(super) jump: u64,
    /// The way to the block's new translation.
    pub(super) changed: u64,
    /// How often it has asked, and the code was what it had been.
    pub(super) asked: u32,
}
