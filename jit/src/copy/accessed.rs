//! What an instruction accesses, for the log of accesses ([`super::log`]): as far as its operands tell.

use super::ordered::is_locked;
use crate::accesses::bit_register;
use crate::common;
use crate::emulated::is_of_state;
use crate::lanes;
use iced_x86::{
    Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};
use refrain_trace::Access;

/// Where an access is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Operand,
    /// The operand of `pop [rsp + x]`, whose address is that after the pop.
    Popped,
    /// So far from the stack pointer.
    Stack(i8),
    /// At the frame pointer.
    Frame,
}

/// One access of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) place: Place,
    pub(super) size: u8,
    pub(super) kind: u16,
}

/// What an instruction accesses.
#[derive(Debug)]
pub(super) enum Records {
    Of(Vec<Record>),
    /// Its operands do not tell.
    Alone,
}

/// What an instruction accesses.
pub(super) fn records_of(instruction: &Instruction) -> Records {
    if !is_locked(instruction)
        && let Some(access) = common::memory_access(instruction)
    {
        return Records::Of(of_operand(instruction, access).into_iter().collect());
    }
    if is_of_state(instruction) {
        return Records::Of(Vec::new());
    }
    let named = (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory);
    if instruction.is_string_instruction()
        || lanes::of(instruction).is_some()
        || named && bit_register(instruction).is_some()
    {
        return Records::Alone;
    }
    let mut factory = InstructionInfoFactory::new();
    let (mut of_stack, mut operand) = (Vec::new(), OpAccess::None);
    for memory in factory.info(instruction).used_memory() {
        if matches!(memory.access(), OpAccess::None | OpAccess::NoMemAccess) {
            continue;
        }
        if named && !is_of_stack(instruction, memory) {
            operand = joined(operand, memory.access());
            continue;
        }
        match of_itself(instruction, memory) {
            Some(record) => of_stack.push(record),
            None => return Records::Alone,
        }
    }
    if operand != OpAccess::None && !(1..=64).contains(&instruction.memory_size().size()) {
        return Records::Alone;
    }
    Records::Of(of_operand(instruction, operand).into_iter().chain(of_stack).collect())
}

/// The record of an access to the operand.
fn of_operand(instruction: &Instruction, access: OpAccess) -> Option<Record> {
    let kind = match access {
        OpAccess::None | OpAccess::NoMemAccess => return None,
        OpAccess::Read | OpAccess::CondRead => Access::READ,
        OpAccess::Write | OpAccess::CondWrite => Access::WRITE,
        _ if is_locked(instruction) => Access::ATOMIC,
        _ => Access::READ | Access::WRITE,
    };
    let of_rsp = instruction.memory_base().full_register() == Register::RSP;
    let pops = of_rsp && instruction.mnemonic() == Mnemonic::Pop;
    let place = if pops { Place::Popped } else { Place::Operand };
    let size = instruction.memory_size().size() as u8;
    Some(Record { place, size, kind })
}

/// The record of what an instruction accesses by itself, if it is a word of the stack.
fn of_itself(instruction: &Instruction, memory: &UsedMemory) -> Option<Record> {
    let place = match (memory.base(), instruction.mnemonic()) {
        (_, Mnemonic::Enter) => return None,
        (Register::RBP, Mnemonic::Leave) => Place::Frame,
        (Register::RSP, _) if memory.index() == Register::None => {
            Place::Stack(i8::try_from(memory.displacement() as i64).ok()?)
        }
        _ => return None,
    };
    let kind = match memory.access() {
        OpAccess::Read | OpAccess::CondRead => Access::READ,
        _ => Access::WRITE,
    };
    Some(Record { place, size: memory.memory_size().size() as u8, kind })
}

/// Whether an instruction accesses this word of the stack by itself, and not as its operand.
fn is_of_stack(instruction: &Instruction, memory: &UsedMemory) -> bool {
    if instruction.mnemonic() == Mnemonic::Pop && memory.access() != OpAccess::Read {
        return false;
    }
    let same = memory.base() == instruction.memory_base()
        && memory.index() == instruction.memory_index()
        && memory.displacement() == instruction.memory_displacement64();
    memory.base() == Register::RSP && instruction.is_stack_instruction() && !same
}

/// The kind of access that stands for two accesses to one operand.
fn joined(one: OpAccess, other: OpAccess) -> OpAccess {
    match (one, other) {
        (OpAccess::None, other) => other,
        (one, other) if one == other => one,
        _ => OpAccess::ReadWrite,
    }
}
