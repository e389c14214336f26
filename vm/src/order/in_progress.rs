//! What a thread keeps of an ordered instruction while translated code executes it, and of its accesses.
//!
//! The states of the fast paths (`record/fast_path`, `replay/fast_path`) hold these values, and the other
//! files of this directory change them. So this file has data alone, and both can use it.

use super::filter::Filter;
use super::lines::{Calms, Claims, Lines, Wish};
use super::runs::Runs;
use refrain_trace::ThreadId;

/// An ordered instruction that a recording thread executes while it holds the slot.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(super) slot: usize,
    pub(super) ticket: u64,
    pub(super) operand: (u64, u8),
    /// It has no event, and takes no ticket: the word is the thread's own.
    pub(super) own: bool,
    /// It only stores.
    pub(super) stores: bool,
    /// What its event says that it has found, if it is going to tell what it really has.
    pub(super) seen: Option<u64>,
}

impl Held {
    /// Whether its event is going to tell what it has found.
    pub(crate) fn tells(&self) -> bool {
        self.seen.is_some()
    }
}

/// An instruction that a replaying thread executes while it has the turn.
#[derive(Clone, Copy)]
pub(crate) struct Performing {
    /// The slot and the ticket of the turn that its thread has, if the instruction has an event.
    pub(super) turn: Option<(usize, u64)>,
    /// The word whose new value its thread meets, if it is a watched one.
    pub(super) operand: Option<(u64, u8)>,
}

/// How a recording thread that orders every access does so (`record_stride`).
pub(crate) struct Accesses {
    pub(super) id: ThreadId,
    pub(super) lines: *const Lines,
    pub(super) filter: Filter,
    pub(super) claims: Claims,
    /// None while it is being used.
    pub(super) runs: Option<Box<Runs>>,
    pub(super) calms: Calms,
    /// A contended line that the thread would rather have.
    pub(super) wish: Option<Wish>,
    /// Slots whose turns the access that is being made has, and their tickets.
    pub(super) turns: [(usize, u64); 2],
    pub(super) held: usize,
}
