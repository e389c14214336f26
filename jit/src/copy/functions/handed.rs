//! Locks that one function takes by a locked instruction and another one releases by a plain store, or looks at.
//!
//! The function that releases the lock may have handed its address to the one that takes it, by a call, or
//! through other functions. The fast path of a one-time initialization, too, looks at the state and hands its
//! address to the slow path. The address of a variable need not be handed: any function of the module may
//! take such a lock.

use super::extent::{Extent, instructions};
use super::futexes::futexes;
use super::{Functions, WRAPPERS, Words};
use crate::accesses::constant_address;
use crate::common::without_padding;
use crate::copy::addresses::{
    SymbolicAddress, at_branches, is_by_frame_pointer, symbolic_addresses,
};
use crate::copy::listing::Listing;
use crate::copy::ordered::{is_candidate, is_store};
use crate::copy::pieces::{Field, field_of, is_small};
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a function that takes a lock.
const LONGEST: u64 = 1 << 10;

impl Functions {
    /// Which words of this function locked instructions of other functions of the module name: words whose addresses
    /// it hands to them, variables, and in small modules fields.
    pub(super) fn named_by_others(
        &mut self,
        code: &Listing,
        extent: &Extent,
        module: &Range<u64>,
    ) -> Vec<SymbolicAddress> {
        let mut found = self.handed(code, &extent.range, module, WRAPPERS);
        if self.pieces.may_search(module) {
            let accesses = code.iter().filter(|i| is_store(i) || is_candidate(i));
            let variables = accesses.filter_map(constant_address);
            let mut named: BTreeSet<u64> = variables.filter(|&at| self.is_variable(at)).collect();
            let (pieces, at) = (&mut self.pieces, extent.range.start);
            named.retain(|&variable| pieces.is_locked_around(variable, at, module));
            found.extend(named.into_iter().map(SymbolicAddress::constant));
        }
        if is_small(module) {
            found.extend(self.locked_fields(code, extent, module));
        }
        found
    }

    /// Whether the function at `start` does nothing but store a number to a word at its argument that a locked
    /// instruction of a neighbour names by its own first argument: the methods of a lock lie side by side, and
    /// who takes it may do more than one may look for in an atomic operation.
    pub(super) fn releases_beside_lock(
        &mut self,
        start: u64,
        code: &[Instruction],
        module: &Range<u64>,
    ) -> bool {
        const NEIGHBOURS: usize = 4;
        let Some(word) = stored_number(without_padding(code)) else { return false };
        let at = self.starts.partition_point(|&other| other < start);
        let side = at.saturating_sub(NEIGHBOURS)..self.starts.len().min(at + NEIGHBOURS + 1);
        let mut neighbours = self.starts[side].to_vec();
        neighbours.retain(|other| *other != start && module.contains(other));
        neighbours.into_iter().any(|other| self.locked_words(other, module, 0).contains(&word))
    }

    /// The fields at large offsets that this function loads or stores, and that a locked instruction of some
    /// other function names.
    fn locked_fields(
        &mut self,
        code: &Listing,
        extent: &Extent,
        module: &Range<u64>,
    ) -> Vec<SymbolicAddress> {
        let is_own = is_by_frame_pointer(code);
        let field = |i: &Instruction| {
            let accesses = (is_candidate(i) || is_store(i)) && !is_own(i);
            accesses.then(|| field_of(i)).flatten()
        };
        let mut fields: BTreeSet<Field> = code.iter().filter_map(field).collect();
        let (pieces, at) = (&mut self.pieces, extent.range.start);
        fields.retain(|&field| pieces.is_locked_field_around(field, at, module));
        if fields.is_empty() {
            return Vec::new();
        }
        let is_locked = |i: &Instruction| field(i).is_some_and(|it| fields.contains(&it));
        let addresses = symbolic_addresses(code);
        code.iter().zip(addresses).filter(|(i, _)| is_locked(i)).filter_map(|(_, it)| it).collect()
    }

    /// The words that this function hands to the kernel for a futex call, and those that locked instructions
    /// of other functions of the module name by what it hands to them: by a call, or by a branch to its own
    /// cold part; or to so many others, which hand it on.
    pub(super) fn handed(
        &mut self,
        code: &[Instruction],
        inside: &Range<u64>,
        module: &Range<u64>,
        depth: u32,
    ) -> Vec<SymbolicAddress> {
        let mut words: Vec<(usize, Words)> = Vec::new();
        for (at, branch) in code.iter().enumerate() {
            if let Some(function) = self.leads_to(branch, inside, module) {
                let named = self.locked_words(function, module, depth);
                if !named.is_empty() {
                    words.push((at, named));
                }
            }
        }
        let mut found = futexes(code);
        if words.is_empty() {
            return found;
        }
        at_branches(&Listing::new(code.to_vec()), |at, argument| {
            if let Ok(at) = words.binary_search_by_key(&at, |(at, _)| *at) {
                let words = words[at].1.iter();
                found.extend(
                    words.filter_map(|&(register, offset)| Some(argument(register)?.plus(offset))),
                );
            }
        });
        found
    }

    /// Which words a short function names in its locked instructions and futex calls, or hands to other functions
    /// that do. A word is given by one of the function's arguments, and its offset from that.
    fn locked_words(&mut self, target: u64, module: &Range<u64>, depth: u32) -> Words {
        if let Some(known) = self.locked_words.get(&(target, depth)) {
            return Arc::clone(known);
        }
        let extent = self.around(target).filter(|extent| {
            let range = &extent.range;
            range.start == target && range.end - target <= LONGEST
        });
        let words = extent.map(|extent| self.words_of(&extent, module, depth)).unwrap_or_default();
        self.locked_words.insert((target, depth), Arc::clone(&words));
        words
    }

    /// The same, of a function that lies there.
    fn words_of(&mut self, extent: &Extent, module: &Range<u64>, depth: u32) -> Words {
        let has_locked = self.has_locked(extent.range.start);
        if !has_locked && depth == 0 {
            return Arc::default();
        }
        let code = instructions(extent);
        let handed = match depth {
            0 => Vec::new(),
            _ => self.handed(&code, &extent.range, module, depth - 1),
        };
        let mut words: Vec<_> = handed.into_iter().filter_map(SymbolicAddress::argument).collect();
        if has_locked {
            let code = Listing::new(code);
            let addresses = symbolic_addresses(&code).into_iter().zip(0..);
            let locked = addresses.filter(|(_, at)| code.is_locked(*at));
            words.extend(locked.filter_map(|(address, _)| address?.argument()));
        }
        words.sort_unstable();
        words.dedup();
        words.into()
    }
}

/// The word to which a function stores a number, if it does nothing else, as by its first argument.
fn stored_number(code: &[Instruction]) -> Option<(Register, u64)> {
    use Register::{EAX, RAX};
    let [.., store, end] = code else { return None };
    let is_zero = |i: &Instruction| {
        i.mnemonic() == Mnemonic::Xor && (i.op0_register(), i.op1_register()) == (EAX, EAX)
    };
    let is_harmless = |i: &Instruction| i.mnemonic() == Mnemonic::Endbr64 || is_zero(i);
    let is_number = store.op1_kind() != OpKind::Register
        || store.op1_register().full_register() == RAX && code.iter().any(is_zero);
    let is_release = store.mnemonic() == Mnemonic::Mov
        && is_store(store)
        && is_number
        && (store.memory_base(), store.memory_index()) == (Register::RDI, Register::None)
        && end.flow_control() == FlowControl::Return
        && code[..code.len() - 2].iter().all(is_harmless);
    is_release.then(|| (Register::RDI, store.memory_displacement64()))
}

#[cfg(test)]
mod tests {
    use crate::copy::functions::tests::{SLOT, fill_slot, jump_through_slot, write_functions};
    use iced_x86::code_asm::*;

    /// A lock that is taken by a call, and released by a store far away.
    #[test]
    fn locks_that_are_handed_over() {
        fn takes(a: &mut CodeAssembler, released: i32) {
            a.mov(rdi, rbx).unwrap();
            a.call(-16_i64 as u64).unwrap();
            (0..100).for_each(|_| a.inc(rcx).unwrap());
            a.mov(dword_ptr(rbx + released), 0).unwrap();
        }
        fn lock(a: &mut CodeAssembler) {
            a.mov(eax, 1).unwrap();
            a.xchg(dword_ptr(rdi + 4), eax).unwrap();
        }
        for (released, sites) in [(4, 1), (8, 0)] {
            let (mut functions, starts) = match released {
                4 => write_functions(&[lock, |a| takes(a, 4)]),
                _ => write_functions(&[lock, |a| takes(a, 8)]),
            };
            let found = functions.idioms(starts[1]).expect("known").sites.len();
            assert_eq!(found, sites, "the store to field {released}");
        }
    }

    /// The methods of a lock: who takes it calls others while it waits.
    #[test]
    fn releases_beside_their_locks() {
        fn lock(a: &mut CodeAssembler) {
            a.lock().cmpxchg(qword_ptr(rdi + 8), rcx).unwrap();
            a.mov(cl, byte_ptr(rdi + 16)).unwrap();
            a.call(0x1000).unwrap();
        }
        fn yields(a: &mut CodeAssembler) {
            a.call(0x1000).unwrap();
        }
        let sites = |release: fn(&mut CodeAssembler)| {
            let (mut functions, starts) = write_functions(&[lock, yields, release]);
            functions.idioms(starts[2]).expect("known").sites.len()
        };
        assert_eq!(sites(|a| a.mov(qword_ptr(rdi + 8), 0).unwrap()), 1);
        assert_eq!(sites(|a| a.mov(qword_ptr(rdi + 16), 0).unwrap()), 0, "another field");
        assert_eq!(sites(|a| a.mov(qword_ptr(rdi + 8), rsi).unwrap()), 0, "what the caller says");
        let initializes = |a: &mut CodeAssembler| {
            a.mov(qword_ptr(rdi + 16), 1).unwrap();
            a.mov(qword_ptr(rdi + 8), 0).unwrap();
        };
        assert_eq!(sites(initializes), 0, "a constructor");
        let zero = |a: &mut CodeAssembler| {
            a.xor(eax, eax).unwrap();
            a.mov(qword_ptr(rdi + 8), rax).unwrap();
        };
        assert_eq!(sites(zero), 1);
    }

    /// A variable that is changed in one function, and stored to and loaded in another one.
    #[test]
    fn variables_that_are_locked_elsewhere() {
        let (mut functions, starts) = write_functions(&[
            // The assembler cannot know the distances: to 4096 bytes behind the first function.
            |a| {
                a.db(&[0xf0, 0x0f, 0xb0, 0x0d]).unwrap();
                a.dd(&[4096 - 8]).unwrap();
            },
            |a| {
                let mut access = |opcode: &[u8], behind: u32, number: &[u8], field: u32| {
                    a.db(opcode).unwrap();
                    a.dd(&[4096 - 16 - behind + field]).unwrap();
                    a.db(number).unwrap();
                };
                access(&[0xc6, 0x05], 7, &[0], 0);
                access(&[0xc6, 0x05], 14, &[0], 1);
                // `mov cl, [variable]`
                access(&[0x8a, 0x0d], 20, &[], 0);
            },
        ]);
        let found = functions.idioms(starts[1]).expect("known");
        assert_eq!(*found.sites, [starts[1], starts[1] + 14], "not the variable beside it");
    }

    /// A flag far behind the begin of something large, which some functions exchange, and one stores beside the lock
    /// of what the flag tells of.
    #[test]
    fn fields_that_are_locked_elsewhere() {
        fn exchange(a: &mut CodeAssembler) {
            a.lock().cmpxchg(byte_ptr(rcx + 0x298), dl).unwrap();
            a.lock().inc(dword_ptr(rcx + 0x18)).unwrap();
        }
        let sites = |field: fn(&mut CodeAssembler)| {
            let (mut functions, starts) = write_functions(&[exchange, field]);
            functions.idioms(starts[1]).expect("known").sites.len()
        };
        fn compute(a: &mut CodeAssembler) {
            (0..100).for_each(|_| a.inc(rcx).unwrap());
        }
        let flag = |a: &mut CodeAssembler| {
            compute(a);
            a.mov(byte_ptr(r15 + 0x298), al).unwrap();
            a.mov(dl, byte_ptr(r15 + 0x298)).unwrap();
        };
        assert_eq!(sites(flag), 2);
        let others = |a: &mut CodeAssembler| {
            compute(a);
            a.mov(byte_ptr(r15 + 0x299), al).unwrap();
            a.mov(dword_ptr(r15 + 0x298), eax).unwrap();
            a.mov(byte_ptr(rsp + 0x298), al).unwrap();
            a.mov(dword_ptr(r15 + 0x18), eax).unwrap();
        };
        assert_eq!(
            sites(others),
            0,
            "another field, another size, the stack, a field that many things have"
        );
    }

    /// As in a one-time initialization: a look at the state, and a slow path that is called by the
    /// function's cold part, or by the linker's table through another function.
    #[test]
    fn states_that_are_handed_to_a_slow_path() {
        fn look(a: &mut CodeAssembler, field: i32, cold: i64) {
            a.cmp(dword_ptr(rdi + field), 2).unwrap();
            a.jne(cold as u64).unwrap();
        }
        fn initialize(a: &mut CodeAssembler) {
            a.add(rdi, 8).unwrap();
            a.call(-16_i64 as u64).unwrap();
        }
        fn take(a: &mut CodeAssembler) {
            a.lock().bts(dword_ptr(rdi), 0).unwrap();
        }
        let sites = |field: fn(&mut CodeAssembler)| {
            let (mut functions, starts) = write_functions(&[take, initialize, field]);
            functions.idioms(starts[2]).expect("known").sites.len()
        };
        assert_eq!(sites(|a| look(a, 8, -16)), 1, "the cold part");
        assert_eq!(sites(|a| look(a, 12, -16)), 0, "another field");
        let behind_the_end = |a: &mut CodeAssembler| {
            let mut slow = a.create_label();
            a.push(rbx).unwrap();
            a.mov(rbx, rdi).unwrap();
            a.cmp(dword_ptr(rbx + 8), 2).unwrap();
            a.jne(slow).unwrap();
            a.lea(rax, ptr(rbx + 16)).unwrap();
            a.pop(rbx).unwrap();
            a.ret().unwrap();
            a.set_label(&mut slow).unwrap();
            a.mov(rdi, rbx).unwrap();
            a.call(-16_i64 as u64).unwrap();
        };
        assert_eq!(sites(behind_the_end), 1, "the slow path, where rbx has been given back");

        let (mut functions, starts) = write_functions(&[take, jump_through_slot, |a| {
            a.mov(eax, dword_ptr(rdi)).unwrap();
            (0..100).for_each(|_| a.inc(rcx).unwrap());
            // It calls through the slot, which the assembler cannot know.
            a.db(&[0xff, 0x15]).unwrap();
            a.dd(&[(SLOT as i32 - 16 - 308) as u32]).unwrap();
        }]);
        let slot = starts[1] + SLOT;
        fill_slot(starts[1], starts[0]);
        assert_eq!(functions.idioms(starts[2]).expect("known").sites.len(), 0, "a variable");
        functions.with(&[], &[], std::slice::from_ref(&(slot..slot + 8)), false, None);
        functions.forget_code();
        assert_eq!(functions.idioms(starts[2]).expect("known").sites.len(), 1);
    }
}
