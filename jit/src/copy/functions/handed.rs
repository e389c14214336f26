//! Locks that a function hands to others: what it calls takes them by a locked instruction, and the
//! function itself releases them by a plain store, or looks at them.

use super::Functions;
use super::extent::{has_locked, instructions};
use crate::copy::addresses::{SymbolicAddress, at_calls, symbolic_addresses};
use crate::copy::ordered::is_locked;
use iced_x86::{Instruction, Register};
use std::sync::Arc;

/// Bytes of a function that takes a lock.
const LONGEST: u64 = 512;

impl Functions {
    /// The words that locked instructions of called functions name by their arguments. `own` says which
    /// instructions call a function of the module that has locked instructions.
    pub(super) fn handed(&mut self, code: &[Instruction], own: &[bool]) -> Vec<SymbolicAddress> {
        let mut found = Vec::new();
        if !own.contains(&true) {
            return found;
        }
        at_calls(code, |at, argument| {
            if own[at] && code[at].is_call_near() {
                let words = self.locked_words(code[at].near_branch_target());
                let words = words.iter();
                found.extend(
                    words.filter_map(|&(register, offset)| Some(argument(register)?.plus(offset))),
                );
            }
        });
        found
    }

    /// Which words the locked instructions of a short function name: by which of its arguments, and at
    /// which offset from that.
    fn locked_words(&mut self, target: u64) -> Arc<[(Register, u64)]> {
        if let Some(known) = self.locked_words.get(&target) {
            return Arc::clone(known);
        }
        let extent = self.around(target).filter(|extent| {
            let range = &extent.range;
            range.start == target && range.end - target <= LONGEST && has_locked(extent)
        });
        let code = extent.map(|extent| instructions(&extent)).unwrap_or_default();
        let addresses = code.iter().zip(symbolic_addresses(&code));
        let locked = addresses.filter(|(i, _)| is_locked(i));
        let mut words: Vec<_> = locked.filter_map(|(_, address)| address?.argument()).collect();
        words.dedup();
        let words: Arc<[(Register, u64)]> = words.into();
        self.locked_words.insert(target, Arc::clone(&words));
        words
    }
}
