//! The few routines at the start of the code memory: the way in, the way out, and calls between.

use super::frame::off_gpr;
use super::frame::{self, Frame, leave};
use super::image::Gs;
use super::vars::HOT;
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use std::mem::offset_of;

/// Addresses of the routines.
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
    /// Where a faulting thread goes on: finds the frame by GS, then leaves.
    pub(super) resume: u64,
}

/// Room for them.
pub(super) const SIZE: u64 = 1024;

/// Where the hot registers are between regions: the arguments of the C calling convention.
const PASSED: [AsmRegister64; 6] = [rdi, rsi, rdx, rcx, r8, r9];

/// Assembles the routines for address `at`.
pub(super) fn assemble(at: u64) -> (Vec<u8>, Routines) {
    let (bytes, offsets) = build(at).expect("the routines are fixed and encodable");
    assert!(bytes.len() as u64 <= SIZE, "the routines fit the room that is left for them");
    let [enter, leave, step, settle, resume] = offsets;
    (bytes, Routines { enter, leave, step, settle, resume })
}

fn build(at: u64) -> Result<(Vec<u8>, [u64; 5]), IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let mut labels: [_; 5] = std::array::from_fn(|_| a.create_label());

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

    let result =
        a.assemble_options(at, iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    let mut offsets = [0; 5];
    for (offset, label) in offsets.iter_mut().zip(&labels) {
        *offset = result.label_ip(label)?;
    }
    Ok((result.inner.code_buffer, offsets))
}

/// Computes the status flags of a frame out of their lazy form.
extern "sysv64" fn settle(frame: *mut Frame) {
    // SAFETY: only the routine above calls this, with the frame that the calling thread runs on;
    // no Rust reference to it is live while translated code runs.
    unsafe { (*frame).settle_status() };
}
