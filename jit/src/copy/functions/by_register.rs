//! Calls by a register that was loaded from a table of the linker's.
//!
//! Where code calls without stubs (Rust's does, and that of `-fno-plt`), the compiler loads an address
//! once that a loop calls often, or several calls do.

use crate::accesses::constant_address;
use crate::copy::addresses::{SymbolicAddress, at_branches};
use crate::copy::listing::Listing;
use iced_x86::{Code, Instruction, MemoryOperand, OpKind, Register};
use refrain_trace::fixed::FixedSet;

/// Has each call by a register name the variable that the register was loaded from, as if it went
/// by that.
pub(super) fn name_slots(code: &mut [Instruction]) {
    let loaded = code.iter().filter(|i| loads_variable(i));
    let loaded: FixedSet<Register> = loaded.map(Instruction::op0_register).collect();
    let by_loaded = |i: &Instruction| by_register(i).is_some_and(|it| loaded.contains(&it));
    // Addresses are followed through registers only where that may find something.
    if !code.iter().any(by_loaded) {
        return;
    }
    let mut slots = Vec::new();
    at_branches(&Listing::new(code.to_vec()), |at, held| {
        let address = by_register(&code[at]).and_then(held);
        slots.extend(address.and_then(SymbolicAddress::loaded_from).map(|slot| (at, slot)));
    });
    for (at, slot) in slots {
        let operand = MemoryOperand::with_base_displ(Register::RIP, slot as i64);
        let mut call = Instruction::with1(Code::Call_rm64, operand)
            .expect("a call by a variable is an instruction");
        call.set_len(code[at].len());
        call.set_ip(code[at].ip());
        code[at] = call;
    }
}

fn loads_variable(instruction: &Instruction) -> bool {
    instruction.code() == Code::Mov_r64_rm64 && constant_address(instruction).is_some()
}

/// The register that a call goes by.
fn by_register(call: &Instruction) -> Option<Register> {
    let is_one = call.code() == Code::Call_rm64 && call.op0_kind() == OpKind::Register;
    is_one.then(|| call.op0_register())
}

#[cfg(test)]
mod tests {
    use super::name_slots;
    use crate::copy::tests::instructions;
    use iced_x86::Instruction;
    use iced_x86::code_asm::*;

    #[test]
    fn registers_that_keep_an_address() {
        let mut code = instructions(|a| {
            let mut again = a.create_label();
            a.mov(rbx, qword_ptr(0x7000)).unwrap();
            a.mov(rcx, qword_ptr(0x7008)).unwrap();
            a.set_label(&mut again).unwrap();
            a.call(rbx).unwrap();
            a.call(rcx).unwrap();
            a.add(rbx, 8).unwrap();
            a.call(rbx).unwrap();
            a.mov(rbx, qword_ptr(rdi)).unwrap();
            a.call(rbx).unwrap();
        });
        let ends: Vec<u64> = code.iter().map(Instruction::next_ip).collect();
        name_slots(&mut code);
        assert_eq!(code.iter().map(Instruction::next_ip).collect::<Vec<_>>(), ends);
        let calls = code.iter().filter(|i| i.is_call_near_indirect());
        let slots: Vec<_> = calls
            .map(|i| i.is_ip_rel_memory_operand().then(|| i.memory_displacement64()))
            .collect();
        // The call before may have changed rcx.
        assert_eq!(slots, [Some(0x7000), None, None, None]);
    }
}
