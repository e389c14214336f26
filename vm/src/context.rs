//! The architectural state of one guest thread.

use crate::processor::{Feature, Processor};
use crate::same_epoch::EpochWords;

/// User-mode registers of a guest thread, as they are between two instructions.
///
/// Engines keep guest state in host registers, or in values of their own, while guest code runs,
/// and store it here when [`crate::Cpu::run`] returns. The layout is fixed, because emitted code
/// addresses the fields; engines take the offsets from `std::mem::offset_of!`.
///
/// The x87/MMX state is not here: it stays in the host's own x87 registers while the thread
/// lives (host code of `refrain` never touches them).
#[repr(C, align(64))]
#[derive(Clone, Debug)]
pub struct Context {
    /// General registers in encoding order: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8–r15.
    pub gpr: [u64; 16],
    /// The next instruction.
    pub rip: u64,
    /// RFLAGS; only the status flags, DF and ID are meaningful.
    pub rflags: u64,
    /// Base of FS, the guest's thread pointer.
    pub fs_base: u64,
    /// SSE control and status.
    pub mxcsr: u32,
    _pad: u32,
    /// SSE registers.
    pub xmm: [[u64; 2]; 16],
    /// Upper halves of the AVX registers; all zero on a processor without AVX.
    pub high: [[u64; 2]; 16],
    /// 0 only if all of `high` is zero. Who writes there sets it.
    pub high_in_use: u64,
    /// What AVX-512 has beyond that, on a processor with AVX-512.
    pub wide: Option<Box<Wide>>,
    /// Instructions retired, or their cost, as [`crate::EngineConfig::count`] says.
    pub retired: u64,
    /// At so many the thread exits, if it is at a place for it ([`crate::EngineConfig::places`]).
    pub leave_at: u64,
    /// What the engine has spent on translating for this thread, and a recorder on taking words over and
    /// on system calls, beside the kernel.
    pub translating: Translating,
    /// Where the next [`refrain_trace::Access`] goes, if the engine logs accesses.
    pub access_cursor: u64,
    /// End of the buffer: at `access_cursor == access_limit` the engine exits with
    /// [`crate::Exit::AccessesFull`].
    pub access_limit: u64,
    /// What this thread's accesses are held against ([`crate::Seen`]).
    pub seen: SeenWords,
    /// Likewise ([`crate::SameEpoch`]).
    pub same_epoch: EpochWords,
}

/// The registers of AVX-512, without what AVX has of them.
#[repr(C, align(64))]
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Wide {
    /// The mask registers, k0 to k7.
    pub masks: [u64; 8],
    /// The upper halves of zmm0 to zmm15.
    pub upper: [[u64; 4]; 16],
    /// zmm16 to zmm31.
    pub more: [[u64; 8]; 16],
}

/// How a thread reads and writes the notes of [`crate::Seen`]. With all zero, nothing is logged.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SeenWords {
    /// Bits that the notes of an access have if it is to be left out: for one byte, …
    pub byte: u64,
    /// … for two, …
    pub pair: u64,
    /// … and for four or eight.
    pub word: u64,
    /// Bits that the notes of an access get that is logged, in each byte.
    pub add: u64,
}

/// Time spent on translating and the like, in ticks of the time-stamp counter.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Translating {
    /// All of it.
    pub total: u64,
    /// Without waiting for the translator, or for a core, as far as that can be told.
    pub busy: u64,
}

impl Translating {
    /// Adds a call of the translator, which the thread came to at `begin`, had for itself from
    /// `locked`, and was back from at `end`.
    pub fn add(&mut self, begin: u64, locked: u64, end: u64) {
        // About a millisecond, more than a block takes: a call that takes longer was preempted.
        const LONGEST: u64 = 1 << 21;
        self.total += end.saturating_sub(begin);
        self.busy += end.saturating_sub(locked).min(LONGEST);
    }

    /// What has come since it was `earlier`.
    pub(crate) fn since(self, earlier: Translating) -> Translating {
        Translating {
            total: self.total.wrapping_sub(earlier.total),
            busy: self.busy.wrapping_sub(earlier.busy),
        }
    }
}

impl Default for Context {
    fn default() -> Self {
        Context {
            gpr: [0; 16],
            rip: 0,
            rflags: 0x202,
            fs_base: 0,
            mxcsr: 0x1f80,
            _pad: 0,
            xmm: [[0; 2]; 16],
            high: [[0; 2]; 16],
            high_in_use: 0,
            wide: None,
            retired: 0,
            leave_at: u64::MAX,
            translating: Translating::default(),
            access_cursor: 0,
            access_limit: 0,
            seen: SeenWords::default(),
            same_epoch: EpochWords::default(),
        }
    }
}

impl Context {
    /// Sets the upper halves of the AVX registers.
    pub fn set_high(&mut self, high: [[u64; 2]; 16]) {
        self.high = high;
        self.high_in_use = u64::from(high != [[0; 2]; 16]);
    }

    /// Gives all vector registers and mask registers the values that a program or a handler finds.
    pub(crate) fn reset_vectors(&mut self) {
        let fresh = Context::default();
        self.xmm = fresh.xmm;
        self.set_high(fresh.high);
        self.wide = self.wide.as_ref().map(|_| Box::default());
    }

    /// As the first program of a recording finds it on this processor.
    pub(crate) fn at_start(processor: Processor, entry: &refrain_trace::Entry) -> Context {
        let wide = processor.has(Feature::Avx512F).then(Box::default);
        Context { wide, ..Context::default() }.at_entry(entry)
    }

    /// As a program finds it that begins there. What is counted goes on.
    pub(crate) fn at_entry(&self, entry: &refrain_trace::Entry) -> Context {
        let mut context = Context {
            retired: self.retired,
            translating: self.translating,
            access_cursor: self.access_cursor,
            access_limit: self.access_limit,
            seen: self.seen,
            same_epoch: self.same_epoch,
            wide: self.wide.as_ref().map(|_| Box::default()),
            ..Context::default()
        };
        context.rip = entry.rip;
        context.gpr[reg::RSP] = entry.rsp;
        context
    }

    /// The arguments of the system call that the guest has just made.
    pub(crate) fn syscall_args(&self) -> [u64; 6] {
        use reg::*;
        [RDI, RSI, RDX, R10, R8, R9].map(|r| self.gpr[r])
    }

    /// The arguments of the function at whose first instruction the guest is.
    pub(crate) fn call_args(&self) -> [u64; 6] {
        use reg::*;
        [RDI, RSI, RDX, RCX, R8, R9].map(|r| self.gpr[r])
    }

    /// Returns from a system call: the result, and what the instruction itself clobbers.
    pub(crate) fn finish_syscall(&mut self, result: i64) {
        self.gpr[reg::RAX] = result as u64;
        self.gpr[reg::RCX] = self.rip;
        self.gpr[reg::R11] = self.rflags;
    }

    /// Brings back the registers that were saved; what the engine counts goes on.
    pub(crate) fn restore(&mut self, saved: Context) {
        let Context { retired, translating, access_cursor, access_limit, .. } = *self;
        let Context { seen, same_epoch, .. } = *self;
        *self = Context {
            retired,
            translating,
            access_cursor,
            access_limit,
            seen,
            same_epoch,
            ..saved
        };
    }

    /// Goes back to the `syscall` instruction of the call that has just returned.
    pub(crate) fn begin_syscall_again(&mut self, nr: u16) {
        const LENGTH: u64 = 2;
        self.rip -= LENGTH;
        self.gpr[reg::RAX] = u64::from(nr);
    }

    /// The result of `rdtsc` or `rdtscp`; the latter also says that this is processor 0.
    pub(crate) fn set_ticks(&mut self, ticks: u64, with_processor: bool) {
        self.gpr[reg::RAX] = ticks & 0xffff_ffff;
        self.gpr[reg::RDX] = ticks >> 32;
        if with_processor {
            self.gpr[reg::RCX] = 0;
        }
    }

    /// The result of `rdrand` or `rdseed`: OF, SF, ZF, AF and PF are cleared.
    pub(crate) fn set_random(&mut self, register: u8, size: u8, value: u64, success: bool) {
        let target = &mut self.gpr[usize::from(register & 15)];
        *target = match size {
            2 => *target & !0xffff | value & 0xffff,
            4 => value & 0xffff_ffff,
            _ => value,
        };
        self.rflags = self.rflags & !0x8d5 | u64::from(success);
    }

    /// Returns from a function none of which has run, to `site`.
    pub(crate) fn return_to(&mut self, site: u64, result: u64) {
        self.rip = site;
        self.gpr[reg::RSP] += 8;
        self.gpr[reg::RAX] = result;
    }
}

/// Indices into [`Context::gpr`].
#[allow(missing_docs)]
pub mod reg {
    pub const RAX: usize = 0;
    pub const RCX: usize = 1;
    pub const RDX: usize = 2;
    pub const RBX: usize = 3;
    pub const RSP: usize = 4;
    pub const RBP: usize = 5;
    pub const RSI: usize = 6;
    pub const RDI: usize = 7;
    pub const R8: usize = 8;
    pub const R9: usize = 9;
    pub const R10: usize = 10;
    pub const R11: usize = 11;
    pub const R12: usize = 12;
    pub const R13: usize = 13;
    pub const R14: usize = 14;
    pub const R15: usize = 15;
}
