//! Which memory the guest may execute.

use super::translator::Translator;
use crate::memory::read_guest;
use refrain_vm::Fault;
use refrain_vm::layout::guest_may_map;
use std::ops::Range;

impl Translator {
    /// Memory around `pc` that the guest may execute; none if it may not execute that. (What is not the guest's
    /// memory, it may not map either.)
    pub(super) fn executable_around(&self, pc: u64) -> Range<u64> {
        match &self.executable {
            Some(ranges) if guest_may_map(&(pc..pc.saturating_add(1))) => {
                ranges.get(&pc).map_or(pc..pc, Range::clone)
            }
            _ => pc..u64::MAX,
        }
    }

    /// Where what the guest may execute from `pc` on ends; at `pc` if it may not execute that.
    pub(super) fn executable_end(&self, pc: u64) -> u64 {
        self.executable_around(pc).end
    }

    /// An instruction goes on at an address where there is no code.
    pub(super) fn fault_of_fetch(&self, address: u64) -> Fault {
        let is_there = read_guest(address, &mut [0]) == 1;
        match is_there && self.executable_end(address) == address {
            true => Fault::forbidden(address),
            false => Fault::fetch(address),
        }
    }
}
