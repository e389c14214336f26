//! Stores to other fields of what a locked instruction counts in: who adds to `object->count` by one, and puts
//! down right beside it in `object->last` what was counted.
//!
//! Who counts like that shares the object with others, and shows no lock that would guard it. So others may look
//! at what is stored there without a lock, too. An exchange may have taken a lock, which guards the object then: a
//! function that exchanges fields of the object is left out.

use super::beside::connected;
use crate::copy::addresses::SymbolicAddress;
use crate::copy::ordered::{is_locked, is_store};
use iced_x86::{Instruction, Mnemonic, Register};

/// Instructions between the two, at most.
const REACH: u32 = 12;
/// Bytes between the fields, at most: a cache line.
const FURTHEST: u64 = 64;

/// Indices of such stores. `addresses` is what the operands of the instructions name.
pub(super) fn siblings(code: &[Instruction], addresses: &[Option<SymbolicAddress>]) -> Vec<usize> {
    use Mnemonic::{Add, Dec, Inc, Sub, Xadd};
    let is_object = |i: &Instruction| !matches!(i.memory_base(), Register::RSP | Register::RIP);
    let adds: Vec<bool> = code
        .iter()
        .map(|i| {
            is_locked(i) && matches!(i.mnemonic(), Add | Sub | Inc | Dec | Xadd) && is_object(i)
        })
        .collect();
    if !adds.contains(&true) {
        return Vec::new();
    }
    let locked = |adding: bool| {
        let adds = &adds;
        let other = (0..code.len()).filter(move |&at| is_locked(&code[at]) && adds[at] == adding);
        other.filter_map(|at| addresses[at])
    };
    let beside = connected(code, &adds, REACH);
    let is_sibling = |at: usize| {
        let is_plain = code[at].mnemonic() == Mnemonic::Mov && is_store(&code[at]);
        let is_near = |field: SymbolicAddress| {
            locked(true).any(|counter| counter.is_near(field, FURTHEST))
                && !locked(false).any(|other| other.is_near(field, FURTHEST))
        };
        beside[at] && is_plain && is_object(&code[at]) && addresses[at].is_some_and(is_near)
    };
    (0..code.len()).filter(|&at| is_sibling(at)).collect()
}

#[cfg(test)]
mod tests {
    use super::siblings;
    use crate::copy::addresses::symbolic_addresses;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;

    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<usize> {
        let code = assembled(write);
        siblings(&code, &symbolic_addresses(&code))
    }

    #[test]
    fn what_is_counted_and_put_down() {
        let counts = |a: &mut CodeAssembler, field: i32, more: i32| {
            a.lock().xadd(qword_ptr(rbx), rax).unwrap();
            a.add(r15, rax).unwrap();
            for _ in 0..more {
                a.inc(rcx).unwrap();
            }
            a.mov(qword_ptr(rbx + field), r15).unwrap();
            a.mov(qword_ptr(rdi + field), r15).unwrap();
        };
        assert_eq!(found(|a| counts(a, 8, 0)), [2], "not what another pointer points to");
        assert_eq!(found(|a| counts(a, 8, 20)), [], "it is far away");
        assert_eq!(found(|a| counts(a, 0x200, 0)), [], "in another cache line");
        let guarded = |a: &mut CodeAssembler| {
            a.lock().cmpxchg(dword_ptr(rbx + 16), ecx).unwrap();
            counts(a, 8, 0);
        };
        assert_eq!(found(guarded), [], "there may be a lock in the object");
        let loads = |a: &mut CodeAssembler| {
            a.lock().inc(qword_ptr(rbx)).unwrap();
            a.mov(rax, qword_ptr(rbx + 8)).unwrap();
            a.add(qword_ptr(rbx + 16), 1).unwrap();
        };
        assert_eq!(found(loads), [], "no store of a value");
    }
}
