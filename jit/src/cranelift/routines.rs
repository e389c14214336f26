//! The few routines at the start of the code memory: the way in, the way out, and calls between.

use super::frame::{self, Frame, leave};
use super::image::Gs;
use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, ptr, r12, r13, r14, r15, rax, rbp, rbx, rdi, rdx, rsi, rsp, dword_ptr, qword_ptr};
use std::mem::offset_of;

/// Addresses of the routines.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Routines {
    /// `extern "sysv64" fn(*mut Frame, entry: u64, thunk: u64)`: makes the frame the stack and
    /// jumps to `entry`.
    pub(super) enter: u64,
    /// Where translated code jumps to, to come back from `enter`.
    pub(super) leave: u64,
    /// Calls the thunk that `enter` was given, then leaves.
    pub(super) step: u64,
    /// Called to compute lazily kept flags.
    pub(super) settle: u64,
    /// Where a faulting thread goes on: finds the frame by GS, then leaves.
    pub(super) resume: u64,
}

/// Room for them.
pub(super) const SIZE: u64 = 512;

/// Assembles the routines for address `at`.
pub(super) fn assemble(at: u64) -> (Vec<u8>, Routines) {
    let (bytes, offsets) = build(at).expect("the routines are fixed and encodable");
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
    a.mov(rax, rdx)?;
    a.jmp(rsi)?;

    a.set_label(&mut labels[2])?;
    a.call(rax)?;
    a.mov(qword_ptr(rsp + frame::OFF_LEAVE), leave::STEPPED as i32)?;
    a.jmp(labels[1])?;

    a.set_label(&mut labels[4])?;
    a.mov(rsp, qword_ptr(offset_of!(Gs, frame) as u64).gs())?;
    a.set_label(&mut labels[1])?;
    a.stmxcsr(dword_ptr(rsp + frame::OFF_MXCSR))?;
    a.ldmxcsr(dword_ptr(rsp + frame::OFF_HOST_MXCSR))?;
    a.cld()?;
    a.mov(rsp, qword_ptr(rsp + frame::OFF_HOST_RSP))?;
    for register in [r15, r14, r13, r12, rbx, rbp] {
        a.pop(register)?;
    }
    a.ret()?;

    // Called with the frame 8 bytes up; Rust wants the stack aligned to 16 at its call.
    a.set_label(&mut labels[3])?;
    a.lea(rdi, ptr(rsp + 8))?;
    a.sub(rsp, 8)?;
    a.mov(rax, settle as *const () as u64)?;
    a.call(rax)?;
    a.add(rsp, 8)?;
    a.ret()?;

    let result = a.assemble_options(at, iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
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
