//! Code that is assembled: the routines that all regions share, and what joins regions.
//!
//! All of it runs at any address. What ends with a jump to [`Routines::leave`] ends with its
//! field, for the linker to fill in.

use super::frame::off_gpr;
use super::frame::{self, Frame, Gs, leave};
use super::table::Table;
use super::vars::HOT;
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use std::mem::offset_of;

/// Where the routines are.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Routines {
    /// `extern "sysv64" fn(*mut Frame, entry: u64, thunk: u64)`: makes the frame the stack and
    /// jumps to `entry`.
    pub(super) enter: u64,
    /// Where translated code jumps to, to come back from `enter`; takes the hot registers.
    pub(super) leave: u64,
    /// Calls the thunk that `enter` was given, then leaves.
    pub(super) step: u64,
    /// Called to compute lazily kept flags.
    pub(super) settle: u64,
    /// Called to log an access ([`super::noting`]).
    pub(super) note: u64,
    /// Where a faulting thread goes on: finds the frame by GS, then leaves.
    pub(super) resume: u64,
}

/// `jmp rel32`, to be filled in.
const JUMP: [u8; 5] = [0xe9, 0, 0, 0, 0];

/// Where the hot registers are between regions: the arguments of the C calling convention.
const PASSED: [AsmRegister64; 6] = [rdi, rsi, rdx, rcx, r8, r9];

impl Routines {
    /// The same from `base` on.
    pub(super) fn at(self, base: u64) -> Routines {
        let Routines { enter, leave, step, settle, note, resume } = self;
        let [enter, leave, step, settle, note, resume] =
            [enter, leave, step, settle, note, resume].map(|offset| base + offset);
        Routines { enter, leave, step, settle, note, resume }
    }
}

/// Assembles the routines, and says how far from their start each is.
pub(super) fn assemble() -> (Vec<u8>, Routines) {
    let (bytes, offsets) = build().expect("the routines are fixed and encodable");
    let [enter, leave, step, settle, resume, note] = offsets;
    (bytes, Routines { enter, leave, step, settle, note, resume })
}

/// Code that goes on at a guest address which had no way in when it was made.
pub(super) fn stub(pc: u64, why: u64, table: &Table) -> Vec<u8> {
    build_stub(pc, why, table).expect("stubs are fixed and encodable")
}

/// Code that goes on at the guest address in the frame. Each place has its own, so that the
/// processor predicts them apart.
pub(super) fn indirect(table: &Table) -> Vec<u8> {
    build_indirect(table).expect("the code is fixed and encodable")
}

fn build() -> Result<(Vec<u8>, [u64; 6]), IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let mut labels: [_; 6] = std::array::from_fn(|_| a.create_label());

    a.set_label(&mut labels[0])?;
    for register in [rbp, rbx, r12, r13, r14, r15] {
        a.push(register)?;
    }
    a.mov(qword_ptr(rdi + frame::OFF_HOST_RSP), rsp)?;
    a.stmxcsr(dword_ptr(rdi + frame::OFF_HOST_MXCSR))?;
    a.ldmxcsr(dword_ptr(rdi + frame::OFF_MXCSR))?;
    a.mov(rsp, rdi)?;
    a.mov(r11, rsi)?;
    a.mov(rax, rdx)?;
    for (var, register) in HOT.into_iter().zip(PASSED) {
        a.mov(register, qword_ptr(rsp + off_gpr(var)))?;
    }
    a.jmp(r11)?;

    a.set_label(&mut labels[2])?;
    a.call(rax)?;
    a.mov(qword_ptr(rsp + frame::OFF_LEAVE), leave::STEPPED as i32)?;
    let mut plain = a.create_label();
    a.jmp(plain)?;

    // After a fault the hot registers are lost: nobody knows where Cranelift keeps them.
    a.set_label(&mut labels[4])?;
    a.mov(rsp, qword_ptr(offset_of!(Gs, frame) as u64).gs())?;
    a.jmp(plain)?;

    a.set_label(&mut labels[1])?;
    for (var, register) in HOT.into_iter().zip(PASSED) {
        a.mov(qword_ptr(rsp + off_gpr(var)), register)?;
    }
    a.set_label(&mut plain)?;
    a.stmxcsr(dword_ptr(rsp + frame::OFF_MXCSR))?;
    a.ldmxcsr(dword_ptr(rsp + frame::OFF_HOST_MXCSR))?;
    a.cld()?;
    a.mov(rsp, qword_ptr(rsp + frame::OFF_HOST_RSP))?;
    for register in [r15, r14, r13, r12, rbx, rbp] {
        a.pop(register)?;
    }
    a.ret()?;

    // Called with the frame 8 bytes up, and changes no register. Nine pushes and the return
    // address leave the stack aligned for Rust.
    a.set_label(&mut labels[3])?;
    let saved = [rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11];
    let vectors = [
        xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm9, xmm10, xmm11, xmm12, xmm13,
        xmm14, xmm15,
    ];
    for register in saved {
        a.push(register)?;
    }
    a.lea(rdi, ptr(rsp + 8 * (saved.len() + 1)))?;
    a.sub(rsp, 16 * vectors.len() as i32)?;
    for (n, register) in vectors.into_iter().enumerate() {
        a.movups(xmmword_ptr(rsp + 16 * n), register)?;
    }
    a.mov(rax, settle as *const () as u64)?;
    a.call(rax)?;
    for (n, register) in vectors.into_iter().enumerate() {
        a.movups(register, xmmword_ptr(rsp + 16 * n))?;
    }
    a.add(rsp, 16 * vectors.len() as i32)?;
    for register in saved.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;

    a.set_label(&mut labels[5])?;
    super::noting::assemble(&mut a)?;

    let result =
        a.assemble_options(0, iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    let mut offsets = [0; 6];
    for (offset, label) in offsets.iter_mut().zip(&labels) {
        *offset = result.label_ip(label)?;
    }
    Ok((result.inner.code_buffer, offsets))
}

fn build_stub(pc: u64, why: u64, table: &Table) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let mut missing = a.create_label();
    if why == leave::LINK && table.pcs().contains(&pc) {
        a.mov(rax, table.address() + 4 * (pc - table.pcs().start))?;
        a.mov(eax, dword_ptr(rax))?;
        a.test(rax, rax)?;
        a.jz(missing)?;
        a.jmp(rax)?;
    }
    a.set_label(&mut missing)?;
    a.mov(rax, pc)?;
    a.mov(qword_ptr(rsp + frame::OFF_RIP), rax)?;
    a.mov(qword_ptr(rsp + frame::OFF_LEAVE), why as i32)?;
    a.db(&JUMP)?;
    a.assemble(0)
}

/// Hot registers are in use; rax, r10 and r11 are not.
fn build_indirect(table: &Table) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let mut missing = a.create_label();
    let pcs = table.pcs();
    a.mov(rax, qword_ptr(rsp + frame::OFF_RIP))?;
    a.sub(rax, pcs.start as i32)?;
    a.cmp(rax, (pcs.end - pcs.start) as i32)?;
    a.jae(missing)?;
    a.mov(r10, table.address())?;
    a.mov(eax, dword_ptr(r10 + rax * 4))?;
    a.test(eax, eax)?;
    a.jz(missing)?;
    a.jmp(rax)?;
    a.set_label(&mut missing)?;
    a.mov(qword_ptr(rsp + frame::OFF_LEAVE), leave::LOOKUP as i32)?;
    a.db(&JUMP)?;
    a.assemble(0)
}

/// Computes the status flags of a frame out of their lazy form.
extern "sysv64" fn settle(frame: *mut Frame) {
    // SAFETY: only the routine above calls this, with the frame that the calling thread runs on;
    // no Rust reference to it is live while translated code runs.
    unsafe { (*frame).settle_status() };
}
