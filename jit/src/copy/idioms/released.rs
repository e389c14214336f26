//! The store by which a guard's destructor releases a lock: the guard is what the function's argument
//! points to, and has the lock's address in a field.
//!
//! The locked instruction that takes the lock names the word in another way, in the function that makes the
//! guard. So the store looks like nothing around it. But the destructor is short, does nothing else, and is
//! called beside that locked instruction (as the caller has found out).

use crate::copy::addresses::SymbolicAddress;
use crate::copy::ordered::{is_candidate, is_store, writes_memory};
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Instructions of such a function.
const LONGEST: usize = 12;

/// The index of the store, if these instructions are such a destructor. `addresses` is what their operands
/// name.
pub(super) fn released(
    code: &[Instruction],
    addresses: &[Option<SymbolicAddress>],
) -> Option<usize> {
    let calls = |i: &Instruction| {
        let is_filler = i.mnemonic() == Mnemonic::Int3;
        !is_filler && !matches!(i.flow_control(), FlowControl::Next | FlowControl::Return)
    };
    if code.iter().filter(|i| i.mnemonic() != Mnemonic::Int3).count() > LONGEST
        || code.iter().any(calls)
    {
        return None;
    }
    let mut stores = (0..code.len()).filter(|&at| writes_memory(&code[at]));
    let at = stores.next().filter(|_| stores.next().is_none())?;
    let (store, before) = (&code[at], code[..at].iter().zip(addresses));
    let is_constant = matches!(store.op1_kind(), OpKind::Immediate8 | OpKind::Immediate16)
        || matches!(store.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64);
    let pointer = store.memory_base();
    let is_field = |(load, address): (&Instruction, &Option<SymbolicAddress>)| {
        is_candidate(load)
            && load.mnemonic() == Mnemonic::Mov
            && load.op0_register() == pointer
            && address.is_some_and(|address| address.argument().is_some())
    };
    let is_release = store.mnemonic() == Mnemonic::Mov
        && is_constant
        && is_store(store)
        && pointer != Register::None
        && store.memory_index() == Register::None;
    (is_release && before.rev().any(is_field)).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::released;
    use crate::copy::addresses::symbolic_addresses;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Option<usize> {
        let code = assembled(write);
        released(&code, &symbolic_addresses(&code))
    }

    /// As Rust compiles the destructor of `spin::MutexGuard`.
    #[test]
    fn a_guard_releases_its_lock() {
        let release = |a: &mut CodeAssembler| {
            a.mov(rax, qword_ptr(rdi + 8)).unwrap();
            a.mov(byte_ptr(rax), 0).unwrap();
            a.ret().unwrap();
        };
        assert_eq!(found(release), Some(1));
    }

    #[test]
    fn other_stores_do_not() {
        // What the argument itself points to; what is computed; one of two; before a call.
        let others: [fn(&mut CodeAssembler); 4] = [
            |a| {
                a.mov(byte_ptr(rdi), 0).unwrap();
                a.ret().unwrap();
            },
            |a| {
                a.mov(rax, qword_ptr(rdi)).unwrap();
                a.mov(dword_ptr(rax), ecx).unwrap();
                a.ret().unwrap();
            },
            |a| {
                a.mov(rax, qword_ptr(rdi)).unwrap();
                a.mov(dword_ptr(rax), 0).unwrap();
                a.mov(dword_ptr(rax + 4), 0).unwrap();
                a.ret().unwrap();
            },
            |a| {
                a.mov(rax, qword_ptr(rdi)).unwrap();
                a.mov(dword_ptr(rax), 0).unwrap();
                a.call(rax).unwrap();
                a.ret().unwrap();
            },
        ];
        for other in others {
            assert_eq!(found(other), None);
        }
    }
}
