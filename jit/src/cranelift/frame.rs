//! What translated code works on: the guest's registers at the host stack pointer.
//!
//! While translated code runs, `rsp` holds the address of a [`Frame`]. Cranelift sees it as the
//! one explicit stack slot of every region, so that a guest register in memory is `[rsp + disp]`:
//! no host register is lost to a context pointer, and processors that rename stack memory forward
//! such loads for free. Above the frame lies [`SPILL`] bytes of scratch that regions spill to
//! (regions never return to each other, so all share it); below it is stack for thunks, for the
//! few calls into Rust, and for signal handlers.

use crate::fault::ThreadArea;
use refrain_vm::Context;
use std::mem::offset_of;

/// Bytes above the frame for spills; a region that wants more is not installed.
pub(super) const SPILL: usize = 32 << 10;
/// Bytes below the frame.
pub(super) const BELOW: usize = 256 << 10;

/// Architectural state and what translated code and [`super::cpu`] tell each other.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct Frame {
    pub(super) context: Context,
    /// 0: `context.rflags` holds the status flags. Otherwise they follow from `lazy_a` and
    /// `lazy_b`: see [`lazy`].
    pub(super) lazy_tag: u64,
    pub(super) lazy_a: u64,
    pub(super) lazy_b: u64,
    /// 1 if the direction flag is set (`context.rflags` does not hold it meanwhile).
    pub(super) direction: u64,
    /// [`ID`], if it is set, which nothing but `popfq` changes; likewise.
    pub(super) identification: u64,
    /// RFLAGS for a thunk to load.
    pub(super) flags_in: u64,
    /// RFLAGS that a thunk stored.
    pub(super) flags_out: u64,
    /// Why translated code left: one of [`leave`].
    pub(super) leave: u64,
    /// Goes with it: an address, an index.
    pub(super) detail: u64,
    /// The host's stack pointer inside the entry routine.
    pub(super) host_rsp: u64,
    /// The host's MXCSR.
    pub(super) host_mxcsr: u64,
    /// Accesses before the thread's next event, where all are counted. Less than none if more have
    /// been made.
    pub(super) left: i64,
    /// Address of what the thread met last ([`refrain_vm::LastMet`]).
    pub(super) met: u64,
    /// The stack pointer at the first instruction of the function that is logged
    /// ([`refrain_vm::EngineConfig::functions`]); 0 outside of one.
    pub(super) called: u64,
    /// Where that function leaves its answer, if not in rax.
    pub(super) answer: u64,
    /// Where the innermost of the calls that are logged with those that they are within keeps its
    /// return address ([`refrain_vm::EngineConfig::nested`]); 0 outside of one.
    pub(super) innermost: u64,
    /// How many such calls the thread is in.
    pub(super) depth: u64,
    /// The values of `innermost` before each of them.
    pub(super) outer: Outer,
}

/// Calls that one is within.
#[expect(dead_code, reason = "translated code has it")]
pub(super) struct Outer([u64; Outer::DEEPEST]);

impl Outer {
    /// Calls further in are not logged.
    pub(super) const DEEPEST: usize = refrain_vm::Nested::DEEPEST;
}

impl Default for Outer {
    fn default() -> Outer {
        Outer([0; Outer::DEEPEST])
    }
}

/// What GS points to while a thread is in translated code.
#[repr(C)]
pub(super) struct Gs {
    pub(super) area: ThreadArea,
    /// The thread's frame.
    pub(super) frame: *mut Frame,
}

/// Values of [`Frame::leave`]. Exits with operands keep an index into the engine's exit table in
/// the upper half.
pub(super) mod leave {
    /// Nothing yet; left by a fault if still so.
    pub(in super::super) const NONE: u64 = 0;
    /// Control goes to `context.rip`, for which no translated entry was found.
    pub(in super::super) const LOOKUP: u64 = 1;
    /// The same for a direct jump.
    pub(in super::super) const LINK: u64 = 10;
    /// `rip` is at a hook.
    pub(in super::super) const HOOK: u64 = 2;
    /// A system call.
    pub(in super::super) const SYSCALL: u64 = 3;
    /// The access buffer is full.
    pub(in super::super) const ACCESSES_FULL: u64 = 4;
    /// An ordered instruction; `detail` is its address; [`super::Frame`]'s rip tells which.
    pub(in super::super) const ORDERED: u64 = 5;
    /// An instruction to emulate; rip is past it, `detail` is where it is.
    pub(in super::super) const EMULATE: u64 = 6;
    /// The instruction at `rip` cannot be executed.
    pub(in super::super) const UNSUPPORTED: u64 = 7;
    /// A stepped instruction is done.
    pub(in super::super) const STEPPED: u64 = 8;
    /// The guest's instruction raises `detail` (a signal number) by itself.
    pub(in super::super) const RAISE: u64 = 9;
    /// `rip` is where the thread was to leave.
    pub(in super::super) const INTERRUPTED: u64 = 11;
    /// `rip` is at an instruction with other operands than one in memory.
    pub(in super::super) const SPANS: u64 = 12;
    /// `rip` is at an instruction that the machine executes.
    pub(in super::super) const ALONE: u64 = 13;
}

/// Forms of lazily kept flags: `tag = form << 8 | operand bytes`.
pub(super) mod lazy {
    /// `a - b`.
    pub(in super::super) const SUB: u64 = 1;
    /// `a + b`.
    pub(in super::super) const ADD: u64 = 2;
    /// A logical operation with result `a`.
    pub(in super::super) const LOGIC: u64 = 3;
}

/// Status flags in RFLAGS, in the order of the flag variables.
pub(super) const FLAG_BITS: [u32; 6] = [0, 2, 4, 6, 7, 11];
/// All of them.
pub(super) const STATUS: u64 = 0x8d5;
/// The direction flag.
pub(super) const DF: u64 = 0x400;
/// The identification flag: a program that can change it may use `cpuid`.
pub(super) const ID: u64 = 1 << 21;

pub(super) const OFF_RIP: i32 = offset_of!(Frame, context.rip) as i32;
pub(super) const OFF_RFLAGS: i32 = offset_of!(Frame, context.rflags) as i32;
pub(super) const OFF_WIDE: i32 = offset_of!(Frame, context.wide) as i32;
pub(super) const OFF_FS_BASE: i32 = offset_of!(Frame, context.fs_base) as i32;
pub(super) const OFF_MXCSR: i32 = offset_of!(Frame, context.mxcsr) as i32;
pub(super) const OFF_LIMIT: i32 = offset_of!(Frame, context.access_limit) as i32;
pub(super) const OFF_LEAVE_AT: i32 = offset_of!(Frame, context.leave_at) as i32;
pub(super) const OFF_SEEN_BYTE: i32 = offset_of!(Frame, context.seen.byte) as i32;
pub(super) const OFF_SEEN_PAIR: i32 = offset_of!(Frame, context.seen.pair) as i32;
pub(super) const OFF_SEEN_WORD: i32 = offset_of!(Frame, context.seen.word) as i32;
pub(super) const OFF_SEEN_ADD: i32 = offset_of!(Frame, context.seen.add) as i32;
pub(super) const OFF_EPOCH: i32 = offset_of!(Frame, context.same_epoch.epoch) as i32;
pub(super) const OFF_EPOCH_NOTES: i32 = offset_of!(Frame, context.same_epoch.notes) as i32;
pub(super) const OFF_TAG: i32 = offset_of!(Frame, lazy_tag) as i32;
pub(super) const OFF_A: i32 = offset_of!(Frame, lazy_a) as i32;
pub(super) const OFF_B: i32 = offset_of!(Frame, lazy_b) as i32;
pub(super) const OFF_DIRECTION: i32 = offset_of!(Frame, direction) as i32;
pub(super) const OFF_IDENTIFICATION: i32 = offset_of!(Frame, identification) as i32;
pub(super) const OFF_FLAGS_IN: i32 = offset_of!(Frame, flags_in) as i32;
pub(super) const OFF_FLAGS_OUT: i32 = offset_of!(Frame, flags_out) as i32;
pub(super) const OFF_LEAVE: i32 = offset_of!(Frame, leave) as i32;
pub(super) const OFF_DETAIL: i32 = offset_of!(Frame, detail) as i32;
pub(super) const OFF_HOST_RSP: i32 = offset_of!(Frame, host_rsp) as i32;
pub(super) const OFF_HOST_MXCSR: i32 = offset_of!(Frame, host_mxcsr) as i32;
pub(super) const OFF_LEFT: i32 = offset_of!(Frame, left) as i32;
pub(super) const OFF_MET: i32 = offset_of!(Frame, met) as i32;
pub(super) const OFF_CALLED: i32 = offset_of!(Frame, called) as i32;
pub(super) const OFF_ANSWER: i32 = offset_of!(Frame, answer) as i32;
pub(super) const OFF_INNERMOST: i32 = offset_of!(Frame, innermost) as i32;
pub(super) const OFF_DEPTH: i32 = offset_of!(Frame, depth) as i32;
pub(super) const OFF_OUTER: i32 = offset_of!(Frame, outer) as i32;

/// Offset of general register `index`.
pub(super) const fn off_gpr(index: usize) -> i32 {
    (offset_of!(Frame, context.gpr) + 8 * index) as i32
}

/// Offset of SSE register `index`.
pub(super) const fn off_xmm(index: usize) -> i32 {
    (offset_of!(Frame, context.xmm) + 16 * index) as i32
}

/// Offset of the upper half of AVX register `index`.
pub(super) const fn off_high(index: usize) -> i32 {
    (offset_of!(Frame, context.high) + 16 * index) as i32
}

impl Frame {
    /// Brings `context.rflags` up to date: the status flags out of their lazy form, DF and ID.
    pub(super) fn settle_flags(&mut self) {
        self.settle_status();
        let direction = if self.direction != 0 { DF } else { 0 };
        self.context.rflags = self.context.rflags & !(DF | ID) | direction | self.identification;
    }

    /// Computes the status flags out of their lazy form, if they are in it.
    pub(super) fn settle_status(&mut self) {
        if self.lazy_tag != 0 {
            let status = status_of(self.lazy_tag, self.lazy_a, self.lazy_b);
            self.context.rflags = self.context.rflags & !STATUS | status;
            self.lazy_tag = 0;
        }
    }
}

/// The status flags of a lazily kept operation.
fn status_of(tag: u64, a: u64, b: u64) -> u64 {
    let bits = (tag & 0xff) * 8;
    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    let sign = 1u64 << (bits - 1);
    let (a, b) = (a & mask, b & mask);
    let (result, carry, overflow, adjust) = match tag >> 8 {
        lazy::SUB => {
            let result = a.wrapping_sub(b) & mask;
            (result, a < b, (a ^ b) & (a ^ result) & sign != 0, (a ^ b ^ result) & 0x10)
        }
        lazy::ADD => {
            let result = a.wrapping_add(b) & mask;
            (result, result < a, (a ^ result) & (b ^ result) & sign != 0, (a ^ b ^ result) & 0x10)
        }
        _ => (a, false, false, 0),
    };
    u64::from(carry)
        | u64::from((result as u8).count_ones().is_multiple_of(2)) << 2
        | adjust
        | u64::from(result == 0) << 6
        | u64::from(result & sign != 0) << 7
        | u64::from(overflow) << 11
}
