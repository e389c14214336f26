//! What compilers make of `__atomic_load(from, to)` without optimisation: a value goes from where one
//! pointer points to where another one does, and both pointers lie in stack slots that do not change.

use super::places::Place;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Instructions between the load and the store, and one more.
const REACH: usize = 4;

/// Whether the instruction at `at` loads what is then stored through another pointer. `places` are
/// those of the function's `code`.
pub(super) fn is_copied(code: &[Instruction], places: &[Option<Place>], at: usize) -> bool {
    let load = &code[at];
    let moves = |i: &Instruction| matches!(i.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx);
    let is_pointed = |at: usize| {
        let i: &Instruction = &code[at];
        i.memory_displacement64() == 0
            && i.memory_index() == Register::None
            && places[at].is_some_and(Place::is_constant)
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

#[cfg(test)]
mod tests {
    use super::is_copied;
    use crate::copy::places::places;
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
        let code: Vec<_> = iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0).iter().collect();
        let places = places(&code);
        let found: Vec<bool> = (0..code.len()).map(|at| is_copied(&code, &places, at)).collect();
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
}
