//! The routine that logs an access which is new in its thread's epoch, and notes it
//! ([`refrain_vm::SameEpoch::log`] says the same in Rust).
//!
//! Translated code calls it with the access's address in rdi and the rest of the record in rsi; the
//! frame is 8 bytes up. It changes no register.

use super::frame;
use super::vars::{CURSOR, offset};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use refrain_trace::Access;
use refrain_vm::same_epoch::{
    CELL, CELLS, EPOCH_SHIFT, GRANULE, GRANULES, LARGEST, NEVER, offset as notes,
};

/// What the routine uses.
const SAVED: [AsmRegister64; 5] = [rax, rcx, rdx, rsi, r8];
/// Where the frame is from the stack pointer.
const FRAME: i32 = 8 * (SAVED.len() as i32 + 1);
/// Where the saved rsi has the kind of the access.
const KIND: i32 = 8 + 6;

pub(super) fn assemble(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let (mut unnoted, mut noted) = (a.create_label(), a.create_label());
    let (mut begin, mut done) = (a.create_label(), a.create_label());
    for register in SAVED {
        a.push(register)?;
    }
    append(a)?;
    // The last byte in r8. What has no byte, or too many, is not noted.
    a.mov(rcx, rsi)?;
    a.shr(rcx, 32)?;
    a.movzx(ecx, cx)?;
    a.lea(r8, ptr(rdi + rcx - 1))?;
    a.lea(eax, ptr(rcx - 1))?;
    a.cmp(eax, LARGEST as u32)?;
    a.jae(unnoted)?;
    // The notes of the first cell in rax, the bits of the bytes in rdx.
    cell(a, CELLS - 1)?;
    a.mov(edx, 1)?;
    a.shl(rdx, cl)?;
    a.dec(rdx)?;
    a.mov(ecx, edi)?;
    a.and(ecx, CELL as i32 - 1)?;
    a.shl(rdx, cl)?;
    // As many bytes of the table as there are cells.
    a.bsr(rcx, rdx)?;
    a.or(ecx, 7)?;
    a.xor(ecx, 63)?;
    a.mov(rsi, qword_ptr(rax + notes::SYNCHRONIZING))?;
    a.shl(rsi, cl)?;
    a.jnz(unnoted)?;
    a.mov(rcx, qword_ptr(rsp + FRAME + frame::OFF_EPOCH))?;
    a.cmp(rcx, (NEVER << EPOCH_SHIFT) as i32)?;
    a.je(done)?;
    // Whether it is in one granule, whose tag then belongs at rsi.
    a.mov(rsi, rdi)?;
    a.xor(rsi, r8)?;
    a.shr(rsi, GRANULE.ilog2())?;
    a.jnz(done)?;
    a.and(r8, -(GRANULE as i32))?;
    a.or(r8, rcx)?;
    a.mov(rsi, rdi)?;
    a.shr(rsi, (GRANULE / 8).ilog2())?;
    a.and(esi, ((GRANULES - 1) * 8) as i32)?;
    a.add(rsi, qword_ptr(rsp + FRAME + frame::OFF_EPOCH_NOTES))?;
    a.cmp(qword_ptr(rsi + notes::TAGS), r8)?;
    a.jne(begin)?;

    a.set_label(&mut noted)?;
    a.or(qword_ptr(rax + notes::ACCESSED), rdx)?;
    a.test(byte_ptr(rsp + KIND), Access::WRITE as i32)?;
    a.jz(done)?;
    a.or(qword_ptr(rax + notes::WRITTEN), rdx)?;
    a.set_label(&mut done)?;
    for register in SAVED.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;

    a.set_label(&mut begin)?;
    a.mov(qword_ptr(rsi + notes::TAGS), r8)?;
    a.mov(r8, rax)?;
    cell(a, (CELLS - 1) & !(GRANULE / CELL - 1))?;
    for offset in (0..(GRANULE / CELL) as i32).step_by(8) {
        a.mov(qword_ptr(rax + notes::ACCESSED + offset), 0)?;
        a.mov(qword_ptr(rax + notes::WRITTEN + offset), 0)?;
    }
    a.mov(rax, r8)?;
    a.jmp(noted)?;

    // A store may release a word, and so begin an epoch.
    a.set_label(&mut unnoted)?;
    a.test(byte_ptr(rsp + KIND), Access::WRITE as i32)?;
    a.jz(done)?;
    a.mov(qword_ptr(rsp + FRAME + frame::OFF_EPOCH), (NEVER << EPOCH_SHIFT) as i32)?;
    a.mov(qword_ptr(rsp + FRAME + frame::OFF_LIMIT), 0)?;
    a.jmp(done)
}

/// Appends the record.
fn append(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rax, qword_ptr(rsp + FRAME + offset(CURSOR)))?;
    a.mov(qword_ptr(rax), rdi)?;
    a.mov(qword_ptr(rax + 8), rsi)?;
    a.add(rax, size_of::<Access>() as i32)?;
    a.mov(qword_ptr(rsp + FRAME + offset(CURSOR)), rax)
}

/// Has rax lead to the notes of the cell at rdi, of whose number these bits count.
fn cell(a: &mut CodeAssembler, bits: u64) -> Result<(), IcedError> {
    a.mov(rax, rdi)?;
    a.shr(rax, CELL.ilog2())?;
    a.and(eax, bits as i32)?;
    a.add(rax, qword_ptr(rsp + FRAME + frame::OFF_EPOCH_NOTES))
}
