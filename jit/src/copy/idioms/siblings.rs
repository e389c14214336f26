//! Stores to an object that a thread counts in: the thread adds to one field of the object by a locked instruction,
//! and stores to another field a few instructions before or after that.
//!
//! The locked instruction tells that threads share the object, and that no lock of the library's guards the count.
//! So another thread may load the other field without a lock, too. But an exchange of a field may take a lock in
//! the object, which guards the other fields. So the idiom leaves a function out that exchanges a field nearby.

use super::beside::connected;
use crate::copy::addresses::SymbolicAddress;
use crate::copy::listing::Listing;
use crate::copy::ordered::{is_locked, is_store};
use iced_x86::{Instruction, Mnemonic, Register};

/// Instructions between the two, at most.
const REACH: u32 = 12;
/// Bytes between the fields, at most: a cache line.
const FURTHEST: u64 = 64;

/// Indices of such stores. `addresses` is what the operands of the instructions name.
pub(super) fn siblings(code: &Listing, addresses: &[Option<SymbolicAddress>]) -> Vec<usize> {
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
    let locked = (0..code.len()).filter(|&at| is_locked(&code[at]));
    let (counters, others): (Vec<usize>, Vec<usize>) = locked.partition(|&at| adds[at]);
    let is_near = |field: SymbolicAddress, locked: &[usize]| {
        let mut fields = locked.iter().filter_map(|&at| addresses[at]);
        fields.any(|other| other.is_near(field, FURTHEST))
    };
    let beside = connected(code, &adds, REACH);
    let is_sibling = |at: usize| {
        let is_plain = code[at].mnemonic() == Mnemonic::Mov && is_store(&code[at]);
        beside[at]
            && is_plain
            && is_object(&code[at])
            && addresses[at].is_some_and(|it| is_near(it, &counters) && !is_near(it, &others))
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
