//! Moves, extensions, the stack, conditional moves and sets, and the flag register as a whole.

use super::{Lifter, int, is_integer};
use crate::cranelift::frame;
use crate::cranelift::vars::{AF, CF, PF, SF, ZF};
use cranelift_codegen::ir::types::{I8, I16, I32, I64};
use cranelift_codegen::ir::{InstBuilder, Type, Value};
use iced_x86::{Code, ConditionCode, Instruction, Mnemonic, OpKind, Register};
use refrain_vm::reg::RSP;

pub(super) fn lifts(i: &Instruction) -> bool {
    use Mnemonic::*;
    match i.mnemonic() {
        Mov | Movzx | Movsx | Movsxd | Lea | Cbw | Cwde | Cdqe | Cwd | Cdq | Cqo | Leave => {
            is_integer(i)
        }
        Push | Pop => is_integer(i),
        Xchg => {
            is_integer(i) && i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Register
        }
        Nop | Endbr64 | Endbr32 | Pause | Prefetcht0 | Prefetcht1 | Prefetcht2 | Prefetchnta
        | Prefetchw => true,
        // Without shadow stacks, which the guest's processor lacks, these do nothing.
        Rdsspd | Rdsspq => true,
        Pushfq | Popfq | Lahf | Sahf | Cld | Std | Clc | Stc | Cmc => true,
        Movbe | Rdfsbase | Wrfsbase => is_integer(i),
        _ => is_cmov(i) || is_setcc(i),
    }
}

fn is_cmov(i: &Instruction) -> bool {
    i.condition_code() != ConditionCode::None
        && i.op_count() == 2
        && i.op0_kind() == OpKind::Register
        && i.op0_register().is_gpr()
        && format_is_cmov(i.mnemonic())
}

fn format_is_cmov(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Cmova
            | Cmovae
            | Cmovb
            | Cmovbe
            | Cmove
            | Cmovg
            | Cmovge
            | Cmovl
            | Cmovle
            | Cmovne
            | Cmovno
            | Cmovnp
            | Cmovns
            | Cmovo
            | Cmovp
            | Cmovs
    )
}

fn is_setcc(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        i.mnemonic(),
        Seta | Setae
            | Setb
            | Setbe
            | Sete
            | Setg
            | Setge
            | Setl
            | Setle
            | Setne
            | Setno
            | Setnp
            | Setns
            | Seto
            | Setp
            | Sets
    )
}

pub(super) fn lift(l: &mut Lifter<'_>, i: &Instruction) -> bool {
    use Mnemonic::*;
    if !lifts(i) {
        return false;
    }
    match i.mnemonic() {
        Mov => {
            let ty = int(Lifter::operand_size(i, 0));
            let value = l.read(i, 1, ty);
            l.write(i, 0, value);
        }
        Movbe => {
            let ty = int(Lifter::operand_size(i, 0));
            let value = l.read(i, 1, ty);
            let value = l.b.ins().bswap(value);
            l.write(i, 0, value);
        }
        Movzx | Movsx | Movsxd => {
            let (to, from) = (int(Lifter::operand_size(i, 0)), int(Lifter::operand_size(i, 1)));
            let value = l.read(i, 1, from);
            let value =
                if i.mnemonic() == Movzx { l.resize(value, to) } else { l.sign_extend(value, to) };
            l.write(i, 0, value);
        }
        Lea => {
            let address = l.offset(i);
            let value = l.resize(address, int(i.op0_register().size()));
            l.set_gpr(i.op0_register(), value);
        }
        Xchg => {
            let ty = int(Lifter::operand_size(i, 0));
            let (a, b) = (l.read(i, 0, ty), l.read(i, 1, ty));
            l.write(i, 0, b);
            l.write(i, 1, a);
        }
        Rdfsbase => {
            let base = l.frame_load(I64, frame::OFF_FS_BASE);
            let value = l.resize(base, int(i.op0_register().size()));
            l.set_gpr(i.op0_register(), value);
        }
        Wrfsbase => {
            let value = l.gpr(i.op0_register());
            let value = l.resize(value, I64);
            l.frame_store(value, frame::OFF_FS_BASE);
        }
        Cbw => extend(l, Register::AL, Register::AX, I16),
        Cwde => extend(l, Register::AX, Register::EAX, I32),
        Cdqe => extend(l, Register::EAX, Register::RAX, I64),
        Cwd => spread(l, Register::AX, Register::DX),
        Cdq => spread(l, Register::EAX, Register::EDX),
        Cqo => spread(l, Register::RAX, Register::RDX),
        Push => push(l, i),
        Pop => pop(l, i),
        Leave => {
            let rbp = l.gpr(Register::RBP);
            let value = l.load(I64, rbp, 8);
            let rsp = l.add_imm(rbp, 8);
            l.set_var(RSP, rsp);
            l.set_gpr(Register::RBP, value);
        }
        Pushfq => {
            let status = l.pack_flags(0x3f);
            let direction = l.frame_load(I64, frame::OFF_DIRECTION);
            let direction = l.shl_imm(direction, 10);
            let value = l.b.ins().bor(status, direction);
            let identification = l.frame_load(I64, frame::OFF_IDENTIFICATION);
            let value = l.b.ins().bor(value, identification);
            l.push(value);
        }
        Popfq => {
            let value = l.pop(I64);
            l.unpack_flags(value, 0x3f);
            let direction = l.shr_imm(value, 10);
            let direction = l.and_imm(direction, 1);
            l.frame_store(direction, frame::OFF_DIRECTION);
            let identification = l.and_imm(value, frame::ID);
            l.frame_store(identification, frame::OFF_IDENTIFICATION);
        }
        Lahf => {
            let status = l.pack_flags(1 << CF | 1 << PF | 1 << AF | 1 << ZF | 1 << SF);
            let value = l.resize(status, I8);
            l.set_gpr(Register::AH, value);
        }
        Sahf => {
            let value = l.gpr(Register::AH);
            let value = l.resize(value, I64);
            l.unpack_flags(value, 1 << CF | 1 << PF | 1 << AF | 1 << ZF | 1 << SF);
        }
        Cld => l.frame_store_imm(0, frame::OFF_DIRECTION),
        Std => l.frame_store_imm(1, frame::OFF_DIRECTION),
        Clc | Stc => {
            let value = l.iconst(I8, u64::from(i.mnemonic() == Stc));
            l.set_flag(CF, value);
        }
        Cmc => {
            let carry = l.flag(CF);
            let one = l.iconst(I8, 1);
            let value = l.b.ins().bxor(carry, one);
            l.set_flag(CF, value);
        }
        _ if is_setcc(i) => {
            let value = l.condition(i.condition_code());
            l.write(i, 0, value);
        }
        _ if is_cmov(i) => {
            let ty = int(Lifter::operand_size(i, 0));
            let new = l.read(i, 1, ty);
            let old = l.read(i, 0, ty);
            let condition = l.condition(i.condition_code());
            let value = l.b.ins().select(condition, new, old);
            l.write(i, 0, value);
        }
        // Nothing to do for hints.
        _ => {}
    }
    true
}

fn extend(l: &mut Lifter<'_>, from: Register, to: Register, ty: Type) {
    let value = l.gpr(from);
    let value = l.b.ins().sextend(ty, value);
    l.set_gpr(to, value);
}

fn spread(l: &mut Lifter<'_>, from: Register, to: Register) {
    let value = l.gpr(from);
    let count = l.iconst(I8, l.ty(value).bits() as u64 - 1);
    let value = l.b.ins().sshr(value, count);
    l.set_gpr(to, value);
}

fn push(l: &mut Lifter<'_>, i: &Instruction) {
    // Immediates are extended to the operand size that the encoding gives.
    let narrow =
        matches!(i.code(), Code::Push_r16 | Code::Push_rm16 | Code::Push_imm16 | Code::Pushw_imm8);
    let ty = if narrow { I16 } else { I64 };
    let value = match i.op0_kind() {
        OpKind::Register | OpKind::Memory => l.read(i, 0, ty),
        _ => l.iconst(ty, i.immediate(0)),
    };
    l.push(value);
}

fn pop(l: &mut Lifter<'_>, i: &Instruction) {
    let ty = int(Lifter::operand_size(i, 0));
    // The address of a memory operand is computed with the stack pointer already moved.
    let value = l.pop(ty);
    l.write(i, 0, value);
}

impl Lifter<'_> {
    pub(in super::super) fn push(&mut self, value: Value) {
        let size = self.ty(value).bytes();
        let rsp = self.var(RSP);
        let rsp = self.add_imm(rsp, -i64::from(size));
        self.store(rsp, value, size as usize);
        self.set_var(RSP, rsp);
    }

    pub(in super::super) fn pop(&mut self, ty: Type) -> Value {
        let size = ty.bytes();
        let rsp = self.var(RSP);
        let value = self.load(ty, rsp, size as usize);
        let rsp = self.add_imm(rsp, i64::from(size));
        self.set_var(RSP, rsp);
        value
    }
}
