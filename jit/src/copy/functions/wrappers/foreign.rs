//! Locks that another module makes itself of atomic instructions: GLib's mutexes, `omp critical`.
//!
//! A short function takes a lock if it compares a word with a constant, and stores another constant there if
//! they are equal. A function that counts references or adds up computes what it stores.

use super::Reached;
use crate::copy::functions::Functions;
use crate::copy::functions::extent::instructions;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// The longest of them, in bytes.
const LONGEST: u64 = 192;
/// `Functions::wrappers` keeps under this key whether a function takes such a lock; the other keys are
/// numbers of wrappers around each other, which are small.
const FOREIGN: u32 = u32::MAX;

impl Functions {
    /// Whether what a call leads to is a short function of another module that takes such a lock. The C
    /// library's locks are known by name.
    pub(in crate::copy::functions) fn takes_foreign_lock(
        &mut self,
        call: u64,
        target: u64,
    ) -> bool {
        let start = self.behind_stub(target);
        if !self.takes_lock(start) {
            return false;
        }
        let module = |at| self.modules.iter().position(|(range, _)| range.contains(&at));
        module(call) != module(start) && module(start).is_some_and(|module| !self.modules[module].1)
    }

    fn takes_lock(&mut self, start: u64) -> bool {
        if let Some(known) = self.wrappers.get(&(start, FOREIGN)) {
            return known.any;
        }
        let extent = self.around(start);
        let short = extent.filter(|it| it.range.start == start && it.range.end - start <= LONGEST);
        let any = short
            .is_some_and(|extent| self.has_locked(start) && takes_lock(&instructions(&extent)));
        self.wrappers.insert((start, FOREIGN), Reached { any, ..Reached::default() });
        any
    }
}

fn takes_lock(code: &[Instruction]) -> bool {
    code.iter().enumerate().any(|(at, instruction)| {
        instruction.mnemonic() == Mnemonic::Cmpxchg
            && instruction.has_lock_prefix()
            && is_constant(&code[..at], Register::RAX)
            && is_constant(&code[..at], instruction.op1_register())
    })
}

/// Whether the code before leaves a constant in the register.
fn is_constant(before: &[Instruction], register: Register) -> bool {
    let whole = register.full_register();
    let names = |i: &&Instruction| {
        i.op0_kind() == OpKind::Register && i.op0_register().full_register() == whole
    };
    before.iter().rev().find(names).is_some_and(|i| match i.mnemonic() {
        Mnemonic::Xor => i.op1_kind() == OpKind::Register && i.op1_register() == i.op0_register(),
        Mnemonic::Mov => i.op1_kind() != OpKind::Register && i.op1_kind() != OpKind::Memory,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::functions::tests::{fill_slot, jump_through_slot, write_functions};
    use iced_x86::code_asm::*;

    fn code(write: impl Fn(&mut CodeAssembler)) -> Vec<Instruction> {
        let mut a = CodeAssembler::new(64).expect("64 bits");
        write(&mut a);
        a.instructions().to_vec()
    }

    #[test]
    fn a_lock_is_taken_by_constants() {
        let lock = code(|a| {
            a.xor(eax, eax).unwrap();
            a.mov(edx, 1).unwrap();
            a.lock().cmpxchg(dword_ptr(rdi), edx).unwrap();
        });
        assert!(takes_lock(&lock));
        let count = code(|a| {
            a.mov(eax, dword_ptr(rdi)).unwrap();
            a.lea(edx, dword_ptr(rax + 1)).unwrap();
            a.lock().cmpxchg(dword_ptr(rdi), edx).unwrap();
        });
        assert!(!takes_lock(&count));
        let given = code(|a| {
            a.mov(eax, esi).unwrap();
            a.lock().cmpxchg(dword_ptr(rdi), edx).unwrap();
        });
        assert!(!takes_lock(&given));
    }

    /// Functions of 16 bytes: one that takes a lock, the stub that leads to it, and who calls the stub. Another
    /// module is like it.
    #[test]
    fn who_calls_it_from_another_module_looks_beside_a_lock() {
        fn take(a: &mut CodeAssembler) {
            a.xor(eax, eax).unwrap();
            a.mov(edx, 1).unwrap();
            a.lock().cmpxchg(dword_ptr(rdi), edx).unwrap();
        }
        fn call(a: &mut CodeAssembler) {
            a.call((-16_i64) as u64).unwrap();
            a.mov(eax, dword_ptr(rdi + 8)).unwrap();
        }
        let (mut functions, own) = write_functions(&[take, jump_through_slot, call]);
        let (_, foreign) = write_functions(&[take]);
        functions.with(&foreign, &[], &[], false, None);
        functions.settle();
        fill_slot(own[1], foreign[0]);
        assert_eq!(functions.idioms(own[2]).expect("known").sites.len(), 1);
    }
}
