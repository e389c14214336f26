//! The processor as the reference: executes code between loading and storing all registers.

use iced_x86::code_asm::*;
use refrain_trace::CodeBlock;
use refrain_vm::{Context, Wide};
use std::mem::offset_of;
use std::sync::Mutex;

/// Memory that generated instructions access.
pub const SCRATCH: u64 = 0x1800_0000;
/// Its size.
pub const SCRATCH_LEN: usize = 4096;
/// The harness: its code, and the state that it loads and stores.
const HARNESS: u64 = 0x1810_0000;
const STATE: u64 = 0x1820_0000;

/// Only one at a time: the addresses are fixed.
pub static ONE: Mutex<()> = Mutex::new(());

pub struct Native {
    _private: (),
}

impl Native {
    pub fn new() -> Native {
        for (at, protection) in [(SCRATCH, 3), (HARNESS, 7), (STATE, 3)] {
            map(at, 65536, protection);
        }
        Native { _private: () }
    }

    /// Puts the code of blocks where an engine reads it that copies.
    pub fn put(&self, blocks: &[CodeBlock]) {
        let ends = blocks.iter().map(|block| block.pc + block.code.len() as u64);
        let (start, end) = (super::CODE, ends.max().expect("there are blocks"));
        map(start, (end - start) as usize, 3);
        for block in blocks {
            // SAFETY: it was just mapped, writable, and is nobody else's.
            unsafe {
                let to = block.pc as *mut u8;
                std::ptr::copy_nonoverlapping(block.code.as_ptr(), to, block.code.len());
            }
        }
    }

    pub fn fill(&self, bytes: &[u8]) {
        // SAFETY: mapped in `new`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), SCRATCH as *mut u8, SCRATCH_LEN) };
    }

    pub fn memory(&self) -> Vec<u8> {
        // SAFETY: mapped in `new`.
        unsafe { std::slice::from_raw_parts(SCRATCH as *const u8, SCRATCH_LEN).to_vec() }
    }

    /// Executes `code`, which must not fault or jump away.
    pub fn run(&self, code: &[iced_x86::Instruction], context: &mut Context) {
        let bytes = harness(code).expect("the harness is encodable");
        // SAFETY: the harness saves and restores what the calling convention asks for, and keeps
        // to the mapped state and scratch pages; FS is the guest's only while `code` runs.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), HARNESS as *mut u8, bytes.len());
            *(STATE as *mut Context) = context.clone();
            let call: extern "sysv64" fn() = std::mem::transmute(HARNESS);
            call();
            *context = (*(STATE as *const Context)).clone();
        }
    }
}

fn harness(code: &[iced_x86::Instruction]) -> Result<Vec<u8>, iced_x86::IcedError> {
    let gpr = [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15];
    let xmm = [
        xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm9, xmm10, xmm11, xmm12, xmm13,
        xmm14, xmm15,
    ];
    let at = |offset: usize| STATE + offset as u64;
    let host_rsp = at(4096);
    let host_fs = at(4104);
    let host_mxcsr = at(4112);
    let mut a = CodeAssembler::new(64)?;
    for register in [rbp, rbx, r12, r13, r14, r15] {
        a.push(register)?;
    }
    a.mov(qword_ptr(host_rsp), rsp)?;
    a.rdfsbase(rax)?;
    a.mov(qword_ptr(host_fs), rax)?;
    a.stmxcsr(dword_ptr(host_mxcsr))?;
    a.ldmxcsr(dword_ptr(at(offset_of!(Context, mxcsr))))?;
    for (n, register) in xmm.into_iter().enumerate() {
        a.movups(register, xmmword_ptr(at(offset_of!(Context, xmm) + 16 * n)))?;
    }
    let ymm = [
        ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7, ymm8, ymm9, ymm10, ymm11, ymm12, ymm13,
        ymm14, ymm15,
    ];
    let avx = is_x86_feature_detected!("avx");
    for (n, register) in ymm.into_iter().enumerate().filter(|_| avx) {
        let high = xmmword_ptr(at(offset_of!(Context, high) + 16 * n));
        a.vinsertf128(register, register, high, 1)?;
    }
    let avx_512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    if avx_512 {
        a.mov(rax, qword_ptr(at(offset_of!(Context, wide))))?;
        wide(&mut a, true)?;
    }
    a.mov(rax, qword_ptr(at(offset_of!(Context, fs_base))))?;
    a.wrfsbase(rax)?;
    a.push(qword_ptr(at(offset_of!(Context, rflags))))?;
    a.popfq()?;
    for (n, register) in gpr.into_iter().enumerate() {
        a.mov(register, qword_ptr(at(offset_of!(Context, gpr) + 8 * n)))?;
    }
    for i in code {
        a.add_instruction(*i)?;
    }
    for (n, register) in gpr.into_iter().enumerate() {
        a.mov(qword_ptr(at(offset_of!(Context, gpr) + 8 * n)), register)?;
    }
    a.mov(rsp, qword_ptr(host_rsp))?;
    a.pushfq()?;
    a.pop(qword_ptr(at(offset_of!(Context, rflags))))?;
    a.cld()?;
    a.mov(rax, qword_ptr(host_fs))?;
    a.wrfsbase(rax)?;
    for (n, register) in xmm.into_iter().enumerate() {
        a.movups(xmmword_ptr(at(offset_of!(Context, xmm) + 16 * n)), register)?;
    }
    for (n, register) in ymm.into_iter().enumerate().filter(|_| avx) {
        a.vextractf128(xmmword_ptr(at(offset_of!(Context, high) + 16 * n)), register, 1)?;
    }
    if avx_512 {
        a.mov(rax, qword_ptr(at(offset_of!(Context, wide))))?;
        wide(&mut a, false)?;
    }
    if avx {
        a.vzeroupper()?;
    }
    a.stmxcsr(dword_ptr(at(offset_of!(Context, mxcsr))))?;
    a.ldmxcsr(dword_ptr(host_mxcsr))?;
    for register in [r15, r14, r13, r12, rbx, rbp] {
        a.pop(register)?;
    }
    a.ret()?;
    a.assemble(HARNESS)
}

/// Loads or stores what AVX-512 has beyond AVX, in the [`Wide`] that rax points to.
fn wide(a: &mut CodeAssembler, loads: bool) -> Result<(), iced_x86::IcedError> {
    let upper = [
        zmm0, zmm1, zmm2, zmm3, zmm4, zmm5, zmm6, zmm7, zmm8, zmm9, zmm10, zmm11, zmm12, zmm13,
        zmm14, zmm15,
    ];
    for (n, register) in upper.into_iter().enumerate() {
        let place = ymmword_ptr(rax + offset_of!(Wide, upper) + 32 * n);
        match loads {
            true => a.vinserti64x4(register, register, place, 1)?,
            false => a.vextracti64x4(place, register, 1)?,
        }
    }
    let more = [
        zmm16, zmm17, zmm18, zmm19, zmm20, zmm21, zmm22, zmm23, zmm24, zmm25, zmm26, zmm27, zmm28,
        zmm29, zmm30, zmm31,
    ];
    for (n, register) in more.into_iter().enumerate() {
        let place = zmmword_ptr(rax + offset_of!(Wide, more) + 64 * n);
        match loads {
            true => a.vmovdqu64(register, place)?,
            false => a.vmovdqu64(place, register)?,
        }
    }
    for (n, register) in [k0, k1, k2, k3, k4, k5, k6, k7].into_iter().enumerate() {
        let place = qword_ptr(rax + offset_of!(Wide, masks) + 8 * n);
        match loads {
            true => a.kmovq(register, place)?,
            false => a.kmovq(place, register)?,
        }
    }
    Ok(())
}

fn map(at: u64, len: usize, protection: i32) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: low addresses that nothing else in a test process uses.
    let got = unsafe { libc::mmap(at as *mut libc::c_void, len, protection, flags, -1, 0) };
    assert_eq!(got as u64, at);
}
