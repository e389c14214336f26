//! Stores of addresses that are fixed when a program is linked: those of tables of virtual functions are.

use iced_x86::{
    Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};
use refrain_trace::CodeBlock;
use std::collections::BTreeMap;

/// What a store of eight bytes stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Constant {
    /// This.
    Address(u64),
    /// What the word at this address has, or something not far behind: the address of a symbol, if the
    /// word is in the table in which the loader leaves those.
    Word(u64),
}

/// The stores of these blocks that store a constant, by their addresses.
pub fn constant_stores(blocks: &[CodeBlock]) -> BTreeMap<u64, Constant> {
    let mut infos = InstructionInfoFactory::new();
    let mut stores = BTreeMap::new();
    for block in blocks {
        let mut known = BTreeMap::new();
        for it in Decoder::with_ip(64, &block.code, block.pc, DecoderOptions::NONE) {
            if let Some(constant) = stored(&it, &known) {
                stores.insert(it.ip(), constant);
            }
            follow(&it, &mut known, &mut infos);
        }
    }
    stores
}

type Known = BTreeMap<Register, Constant>;

fn stored(it: &Instruction, known: &Known) -> Option<Constant> {
    match it.code() {
        Code::Mov_rm64_r64 if it.op0_kind() == OpKind::Memory => {
            known.get(&it.op1_register()).copied()
        }
        Code::Mov_rm64_imm32 if it.op0_kind() == OpKind::Memory => {
            Some(Constant::Address(it.immediate32to64() as u64))
        }
        _ => None,
    }
}

/// What is known of registers behind an instruction.
fn follow(it: &Instruction, known: &mut Known, infos: &mut InstructionInfoFactory) {
    let now = result(it, known);
    let writes = |access| !matches!(access, OpAccess::Read | OpAccess::CondRead);
    let used = infos.info(it).used_registers().iter();
    for register in used.filter(|used| writes(used.access())) {
        known.remove(&register.register().full_register());
    }
    if it.is_call_near() || it.is_call_near_indirect() {
        known.clear();
    }
    known.extend(now);
}

/// The register that an instruction gives a constant, and which.
fn result(it: &Instruction, known: &Known) -> Option<(Register, Constant)> {
    let constant = match (it.mnemonic(), it.op1_kind()) {
        (Mnemonic::Lea, _) if it.is_ip_rel_memory_operand() => {
            Constant::Address(it.ip_rel_memory_address())
        }
        (Mnemonic::Mov, OpKind::Memory) if it.is_ip_rel_memory_operand() => {
            Constant::Word(it.ip_rel_memory_address())
        }
        (Mnemonic::Mov, OpKind::Register) => *known.get(&it.op1_register())?,
        (Mnemonic::Mov, OpKind::Immediate32) => Constant::Address(it.immediate32().into()),
        (Mnemonic::Mov, OpKind::Immediate64 | OpKind::Immediate32to64) => {
            Constant::Address(it.immediate(1))
        }
        // Behind two words, or those of a base, is the first function of a table.
        (Mnemonic::Add, OpKind::Immediate8to64 | OpKind::Immediate32to64) => {
            match *known.get(&it.op0_register())? {
                Constant::Address(address) => {
                    Constant::Address(address.wrapping_add(it.immediate(1)))
                }
                word @ Constant::Word(_) => word,
            }
        }
        _ => return None,
    };
    let is_whole = it.op0_kind() == OpKind::Register
        && (it.op0_register().is_gpr64()
            || it.op0_register().is_gpr32() && it.op1_kind() == OpKind::Immediate32);
    is_whole.then(|| (it.op0_register().full_register(), constant))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Constant::{Address, Word};

    fn of(code: &[u8]) -> Vec<(u64, Constant)> {
        let block = CodeBlock { pc: 0x1000, code: code.to_vec(), loads: Vec::new() };
        constant_stores(&[block]).into_iter().collect()
    }

    #[test]
    fn the_address_of_a_table_is_stored() {
        // lea rax, [rip+0x100]; mov [rdi], rax
        assert_eq!(of(b"\x48\x8d\x05\x00\x01\0\0\x48\x89\x07"), [(0x1007, Address(0x1107))]);
        // mov qword ptr [rdi], 0x403d90
        assert_eq!(of(b"\x48\xc7\x07\x90\x3d\x40\0"), [(0x1000, Address(0x40_3d90))]);
        // mov edx, 0x403d90; mov [rax+8], rdx
        let held = of(b"\xba\x90\x3d\x40\0\x48\x89\x50\x08");
        assert_eq!(held, [(0x1005, Address(0x40_3d90))]);
    }

    #[test]
    fn the_address_comes_from_a_table_of_the_loader() {
        // mov rax, [rip+0x100]; add rax, 16; mov rdx, rax; mov [rdi], rdx
        let code = b"\x48\x8b\x05\x00\x01\0\0\x48\x83\xc0\x10\x48\x89\xc2\x48\x89\x17";
        assert_eq!(of(code), [(0x100e, Word(0x1107))]);
    }

    #[test]
    fn what_a_register_has_had_is_of_no_account() {
        // lea rax, [rip+0x100]; mov eax, [rsi]; mov [rdi], rax
        assert_eq!(of(b"\x48\x8d\x05\x00\x01\0\0\x8b\x06\x48\x89\x07"), []);
        // lea rax, [rip+0x100]; mov [rdi], eax
        assert_eq!(of(b"\x48\x8d\x05\x00\x01\0\0\x89\x07"), []);
    }
}
