//! What compilers make of atomic loads without optimisation, where that is more than a load.
//!
//! - `__atomic_load(from, to)` in C and C++: a value goes from where one pointer points to where
//!   another one does, and both pointers lie in stack slots that do not change.
//! - A `match` on the memory's order in Rust: one load for each order that there is, all alike.

use crate::common::has_memory;
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::collections::{BTreeMap, BTreeSet};

/// Instructions between the load and the store, and one more.
const REACH: usize = 4;

/// Whether the instruction at `at` loads what is then stored through another pointer. `is_constant`
/// tells of which instructions of the function's `code` the pointer lies in a slot that does not change.
pub(super) fn is_copied(
    code: &[Instruction],
    is_constant: impl Fn(usize) -> bool,
    at: usize,
) -> bool {
    let load = &code[at];
    let moves = |i: &Instruction| matches!(i.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx);
    let is_pointed = |at: usize| {
        let i: &Instruction = &code[at];
        i.memory_displacement64() == 0 && i.memory_index() == Register::None && is_constant(at)
    };
    if !moves(load) || load.op0_kind() != OpKind::Register || !is_pointed(at) {
        return false;
    }
    let mut value = load.op0_register().full_register();
    for (next, i) in code.iter().enumerate().skip(at + 1).take(REACH) {
        if !moves(i) {
            return false;
        }
        let to_memory = i.op0_kind() == OpKind::Memory;
        let of_value =
            i.op1_kind() == OpKind::Register && i.op1_register().full_register() == value;
        if to_memory {
            return of_value && is_pointed(next);
        }
        if of_value {
            value = i.op0_register().full_register();
        } else if i.op0_register().full_register() == value {
            return false;
        }
    }
    false
}

/// Indices of the loads that a function with a table of jumps has at least three times: of what the
/// same stack slot points to, into the same other slot.
pub(super) fn arms(code: &[Instruction]) -> BTreeSet<usize> {
    const ORDERS: usize = 3;
    if !code.iter().any(|i| i.flow_control() == FlowControl::IndirectBranch) {
        return BTreeSet::new();
    }
    let mut alike: BTreeMap<(u64, Code, u64), Vec<usize>> = BTreeMap::new();
    for (at, arm) in code.windows(3).enumerate() {
        let [pointer, load, store] = arm else { continue };
        let base = pointer.op0_register();
        let loads = slot(pointer).is_some()
            && pointer.code() == Code::Mov_r64_rm64
            && load.mnemonic() == Mnemonic::Mov
            && (load.memory_base(), load.memory_displacement64()) == (base, 0)
            && load.memory_index() == Register::None
            && load.op0_kind() == OpKind::Register;
        let stores = store.mnemonic() == Mnemonic::Mov
            && store.op0_kind() == OpKind::Memory
            && store.op1_kind() == OpKind::Register
            && store.op1_register() == load.op0_register();
        if let (true, true, Some(from), Some(to)) = (loads, stores, slot(pointer), slot(store)) {
            alike.entry((from, load.code(), to)).or_default().push(at + 1);
        }
    }
    alike.into_values().filter(|arms| arms.len() >= ORDERS).flatten().collect()
}

/// The displacement of a stack slot.
fn slot(instruction: &Instruction) -> Option<u64> {
    let is_slot = has_memory(instruction)
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None;
    is_slot.then(|| instruction.memory_displacement64())
}

#[cfg(test)]
mod tests {
    use super::{arms, is_copied};
    use crate::copy::addresses::{SymbolicAddress, symbolic_addresses};
    use crate::copy::listing::Listing;
    use iced_x86::code_asm::*;

    /// Whether a load is found in what loads through one slot and stores through another one.
    fn found(more: impl FnOnce(&mut CodeAssembler), stored: AsmRegister32) -> bool {
        let mut a = CodeAssembler::new(64).expect("64 is a bitness");
        a.push(rbp).unwrap();
        a.mov(rbp, rsp).unwrap();
        a.mov(qword_ptr(rbp - 8), rdi).unwrap();
        a.mov(qword_ptr(rbp - 16), rsi).unwrap();
        more(&mut a);
        a.mov(rax, qword_ptr(rbp - 8)).unwrap();
        a.mov(eax, dword_ptr(rax)).unwrap();
        a.mov(edx, eax).unwrap();
        a.mov(rax, qword_ptr(rbp - 16)).unwrap();
        a.mov(dword_ptr(rax), stored).unwrap();
        let bytes = a.assemble(0x1000).expect("what the tests write can be encoded");
        let code = Listing::new(iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0).iter().collect());
        let addresses = symbolic_addresses(&code);
        let is_constant = |at: usize| addresses[at].is_some_and(SymbolicAddress::is_constant);
        let found: Vec<bool> =
            (0..code.len()).map(|at| is_copied(&code, is_constant, at)).collect();
        let load = code.len() - 4;
        assert!(found.iter().enumerate().all(|(at, &is)| !is || at == load));
        found[load]
    }

    #[test]
    fn a_value_goes_from_one_pointer_to_another() {
        assert!(found(|_| (), edx));
        assert!(!found(|_| (), ecx), "something else is stored");
        let walks = |a: &mut CodeAssembler| a.add(qword_ptr(rbp - 8), 4).unwrap();
        assert!(!found(walks, edx), "a loop over an array");
    }

    #[test]
    fn one_load_for_each_order_of_memory() {
        let found = |orders: usize, table: bool| {
            let mut a = CodeAssembler::new(64).expect("64 is a bitness");
            let mut end = a.create_label();
            a.mov(qword_ptr(rsp), rdi).unwrap();
            if table {
                a.jmp(rax).unwrap();
            }
            for _ in 0..orders {
                a.mov(rax, qword_ptr(rsp)).unwrap();
                a.mov(eax, dword_ptr(rax)).unwrap();
                a.mov(dword_ptr(rsp + 8), eax).unwrap();
                a.jmp(end).unwrap();
            }
            a.set_label(&mut end).unwrap();
            a.ret().unwrap();
            let bytes = a.assemble(0x1000).expect("what the tests write can be encoded");
            let code =
                Listing::new(iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0).iter().collect());
            arms(&code).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(found(3, true), [3, 7, 11]);
        assert_eq!(found(2, true), []);
        assert_eq!(found(3, false), []);
    }
}
