//! Words that a function loads twice, and compares with themselves, or stores twice.
//!
//! Compilers load an ordinary word once, and know that it is the same the second time. So who compares a
//! word with what it was before expects that another thread has stored to it: a reader of a seqlock looks
//! whether its version is still the same, and what was read meanwhile is whole then. In a replay, the
//! writer's next store must not come before that second look, or else what was whole would not be.
//! Nor do compilers keep a store that is overwritten before anything is loaded: the writer makes the
//! version odd, writes, and makes it even.

use crate::common::{CLOBBERED, has_memory, is_call};
use crate::copy::addresses::SymbolicAddress;
use crate::copy::listing::{Listing, numbers};
use crate::copy::ordered::is_on_stack;
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Instructions between the two looks, at most.
const REACH: usize = 192;
/// The same if the function begins anew where they differ: the search through a node of a tree, with all that
/// is in it compared in a row.
const LONGEST: usize = 1024;
/// The function begins anew at most so many instructions before the first look.
const BEFORE: usize = 8;
/// Instructions between the two stores, at most.
const APART: usize = 48;

/// What is found.
#[derive(Default, Debug, PartialEq, Eq)]
pub(super) struct Twice {
    /// Loads of a word, the first and the second one of each pair.
    pub(super) loads: Vec<(usize, usize)>,
    /// Stores of a word, each of which is of a pair.
    pub(super) stores: Vec<usize>,
}

/// Finds such accesses in a function's code, by indices. `addresses` says what operands name.
pub(super) fn twice(code: &Listing, addresses: &[Option<SymbolicAddress>]) -> Twice {
    let mut found = Twice::default();
    let mut loaded = Loaded::default();
    for (at, i) in code.iter().enumerate() {
        if i.mnemonic() == Mnemonic::Cmp {
            let pair = loaded.of_operand(code, at, 0).zip(loaded.of_operand(code, at, 1));
            if let Some((one, other)) = pair
                && let (first, again) = (one.min(other), one.max(other))
                && (again - first <= REACH || begins_anew(code, at, first) && at - first <= LONGEST)
                && is_same(code, addresses, (first, again))
            {
                found.loads.push((first, again));
            }
        }
        loaded.follow(code, at);
    }
    for at in (0..code.len()).filter(|&at| code.is_store(at) && !is_on_stack(&code[at])) {
        let i = &code[at];
        let Some(address) = addresses[at] else { continue };
        let rest = code.iter().enumerate().skip(at + 1).take(APART);
        for (next, other) in rest {
            let is_it = code.is_store(next)
                && addresses[next].is_some_and(|it| it.is_same(address))
                && other.memory_size() == i.memory_size();
            if is_it && other.mnemonic() == Mnemonic::Mov {
                found.stores.extend([at, next]);
                break;
            }
            if other.flow_control() != FlowControl::Next
                || code.is_call(next)
                || reads_others(other)
            {
                break;
            }
        }
    }
    found.stores.sort_unstable();
    found.stores.dedup();
    found
}

/// Whether an instruction may read memory that is not its thread's own stack.
pub(super) fn reads_others(i: &Instruction) -> bool {
    use Mnemonic::*;
    let names_only = matches!(i.mnemonic(), Lea | Nop);
    let moves =
        matches!(i.mnemonic(), Mov | Movups | Movaps | Movdqu | Movdqa | Movsd | Movss | Movq);
    let writes_only = names_only || moves && i.op0_kind() == OpKind::Memory;
    is_call(i) || i.is_string_instruction() || has_memory(i) && !writes_only && !is_on_stack(i)
}

/// Whether the branch behind the comparison at `at` leads back to the load at `first`.
fn begins_anew(code: &Listing, at: usize, first: usize) -> bool {
    let back = (at + 1 < code.len()).then(|| code.target(at + 1)).flatten();
    back.is_some_and(|to| (first.saturating_sub(BEFORE)..=first).contains(&to))
}

/// Whether two loads are of one word, with other memory read between them, and no store to the word.
fn is_same(
    code: &Listing,
    addresses: &[Option<SymbolicAddress>],
    (first, again): (usize, usize),
) -> bool {
    let Some(address) = addresses[first] else { return false };
    // A loop over an array changes the index, which `addresses` does not know.
    if [first, again].iter().any(|&at| code[at].memory_index() != Register::None) {
        return false;
    }
    let is_it = |at: usize| addresses[at].is_some_and(|it| it.is_same(address));
    let stores = |at: usize| is_it(at) && !code.is_candidate(at);
    first != again
        && is_it(again)
        && code[first].memory_size() == code[again].memory_size()
        && !(first + 1..again).any(stores)
}

/// For each register and each slot of the stack: the instruction that loaded its value.
#[derive(Default)]
struct Loaded {
    registers: [Option<usize>; 16],
    slots: Vec<((Register, u64), usize)>,
}

impl Loaded {
    /// Which instruction loaded an operand of the one at `at`: that one itself if it lies in memory.
    fn of_operand(&self, code: &Listing, at: usize, operand: u32) -> Option<usize> {
        let i = &code[at];
        match i.op_kind(operand) {
            OpKind::Register if i.op_register(operand).is_gpr() => {
                self.registers[i.op_register(operand).full_register().number()]
            }
            OpKind::Memory => match slot(i) {
                Some(slot) => self.slot(slot),
                None => code.is_candidate(at).then_some(at),
            },
            _ => None,
        }
    }

    fn slot(&self, slot: (Register, u64)) -> Option<usize> {
        self.slots.iter().find(|(other, _)| *other == slot).map(|&(_, by)| by)
    }

    fn follow(&mut self, code: &Listing, at: usize) {
        let i = &code[at];
        let moves = matches!(i.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx);
        let source = if moves { self.of_operand(code, at, 1) } else { None };
        if code.is_call(at) {
            CLOBBERED.iter().for_each(|register| self.registers[register.number()] = None);
        }
        numbers(code.written(at)).for_each(|number| self.registers[number] = None);
        if moves && i.op0_kind() == OpKind::Register && i.op0_register().is_gpr() {
            self.registers[i.op0_register().full_register().number()] = source;
        }
        if i.op0_kind() == OpKind::Memory
            && let Some(slot) = slot(i).filter(|_| code.is_store(at))
        {
            self.slots.retain(|(other, _)| *other != slot);
            if let Some(by) = source.filter(|_| moves) {
                self.slots.push((slot, by));
            }
        }
    }
}

/// A slot of the stack that an instruction names.
fn slot(i: &Instruction) -> Option<(Register, u64)> {
    (is_on_stack(i) && i.memory_index() == Register::None)
        .then(|| (i.memory_base(), i.memory_displacement64()))
}

#[cfg(test)]
mod tests {
    use super::{Twice, twice};
    use crate::copy::addresses::symbolic_addresses;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Twice {
        let code = assembled(write);
        twice(&code, &symbolic_addresses(&code))
    }

    /// A reader of a seqlock.
    fn read(a: &mut CodeAssembler, field: i32, kept: bool) {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.mov(eax, dword_ptr(rdi + 8)).unwrap();
        a.test(al, 1).unwrap();
        a.jne(again).unwrap();
        if kept {
            a.mov(dword_ptr(rsp - 4), eax).unwrap();
            a.xor(eax, eax).unwrap();
        }
        a.movups(xmm0, xmmword_ptr(rdi + 16)).unwrap();
        a.mov(edx, dword_ptr(rdi + field)).unwrap();
        if kept {
            a.mov(eax, dword_ptr(rsp - 4)).unwrap();
        }
        a.cmp(edx, eax).unwrap();
        a.jne(again).unwrap();
        a.ret().unwrap();
    }

    #[test]
    fn versions() {
        assert_eq!(found(|a| read(a, 8, false)).loads, [(0, 4)]);
        assert_eq!(found(|a| read(a, 12, false)).loads, [], "another word");
        assert_eq!(found(|a| read(a, 8, true)).loads, [(0, 6)], "by the stack");
        let by_itself = found(|a| {
            a.mov(rcx, qword_ptr(rdi)).unwrap();
            a.add(rax, qword_ptr(rsi)).unwrap();
            a.cmp(qword_ptr(rdi), rcx).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(by_itself.loads, [(0, 2)]);
        let own = found(|a| {
            a.mov(rcx, qword_ptr(rdi)).unwrap();
            a.mov(qword_ptr(rdi), rsi).unwrap();
            a.cmp(qword_ptr(rdi), rcx).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(own.loads, [], "it is the function that stores");
    }

    /// As a tree is searched whose nodes say which of their entries count, and are compared one by one.
    #[test]
    fn far_apart() {
        let search = |goes_back: bool| {
            found(|a| {
                let (mut again, mut out) = (a.create_label(), a.create_label());
                a.set_label(&mut again).unwrap();
                a.mov(rdx, qword_ptr(rdi + 0xf0)).unwrap();
                for entry in 0..70 {
                    a.cmp(rcx, qword_ptr(rdi + 8 * entry)).unwrap();
                    a.seta(r8b).unwrap();
                    a.add(eax, r8d).unwrap();
                }
                a.mov(r9, qword_ptr(rdi + 0xf0)).unwrap();
                a.cmp(r9, rdx).unwrap();
                a.jne(if goes_back { again } else { out }).unwrap();
                a.set_label(&mut out).unwrap();
                a.ret().unwrap();
            })
            .loads
        };
        assert_eq!(search(true), [(0, 211)]);
        assert_eq!(search(false), [], "it does not begin anew");
    }

    #[test]
    fn odd_and_even() {
        let stores = |loads: bool| {
            found(|a| {
                a.lea(edx, dword_ptr(rax + 1)).unwrap();
                a.mov(dword_ptr(rdi), edx).unwrap();
                a.movups(xmmword_ptr(rdi + 8), xmm0).unwrap();
                if loads {
                    a.mov(rcx, qword_ptr(rsi)).unwrap();
                }
                a.add(eax, 2).unwrap();
                a.mov(dword_ptr(rdi), eax).unwrap();
                a.ret().unwrap();
            })
            .stores
        };
        assert_eq!(stores(false), [1, 4]);
        assert_eq!(stores(true), [], "what is loaded may be the word");
    }
}
