//! The log of calls of functions that an observer has named: what they are given, what they answer.
//!
//! The frame has the stack pointer of the outermost such call ([`Frame::called`]). A call is the
//! outermost one if its stack pointer is above that, and a `ret` with exactly that stack pointer ends
//! it, whichever function it belongs to: functions may end with a jump to another. One that was left
//! in another way (`longjmp`) is ended by the next call of one, further up.
//!
//! [`Frame::called`]: crate::cranelift::frame::Frame::called

use super::Lifter;
use crate::cranelift::frame::{self, off_gpr};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value};
use refrain_trace::Access;
use refrain_vm::reg::{RAX, RDI, RDX, RSI, RSP};
use refrain_vm::{Answer, LeaveOut};

/// Set in [`refrain_vm::SeenWords`] of a thread that logs repetitions.
const REPEATS: i64 = 0x80;
/// Records of a call.
pub(crate) const CALL_RECORDS: u32 = 4;

impl Lifter<'_> {
    /// Logs the arguments of a function at its first instruction.
    pub(in super::super) fn enter_function(&mut self, pc: u64, answer: Answer) {
        let sp = self.var(RSP);
        let arguments = [RDI, RSI, RDX].map(|register| self.var(register));
        let called = self.frame_load(I64, frame::OFF_CALLED);
        let is_outermost = self.b.ins().icmp(IntCC::UnsignedGreaterThan, sp, called);
        self.append_if(is_outermost, |l| {
            l.end_epoch();
            l.frame_store(sp, frame::OFF_CALLED);
            let to = match answer {
                Answer::Register => l.iconst(I64, 0),
                Answer::Memory => arguments[0],
            };
            l.frame_store(to, frame::OFF_ANSWER);
            let back = l.load_unlogged(I64, sp);
            let [first, second, third] = arguments;
            let argument = |value| (value, pc, Access::ARGUMENT);
            let given = [second, third, back].map(argument);
            [(first, pc, Access::CALLED)].into_iter().chain(given).collect()
        });
    }

    /// Logs what a register has before the instruction at `pc`, where repetitions are logged.
    pub(in super::super) fn log_value(&mut self, pc: u64, register: usize) {
        let value = self.var(register);
        let wanted = if self.watch.leave_out == LeaveOut::Touched {
            let word = self.frame_load(I64, frame::OFF_SEEN_WORD);
            self.b.ins().band_imm_u(word, REPEATS)
        } else {
            self.iconst(I64, 1)
        };
        self.append_if(wanted, |_| vec![(value, pc, Access::VALUE)]);
    }

    /// Logs the answer of a function, if it is the one that returns: `sp` is where its return address
    /// has been.
    pub(in super::super) fn leave_function(&mut self, sp: Value) {
        let (result, pc) = (self.var(RAX), self.pc);
        let called = self.frame_load(I64, frame::OFF_CALLED);
        let returns = self.b.ins().icmp(IntCC::Equal, sp, called);
        self.append_if(returns, |l| {
            l.end_epoch();
            l.leave_soon();
            l.frame_store_imm(0, frame::OFF_CALLED);
            let to = l.frame_load(I64, frame::OFF_ANSWER);
            // The frame's own rax, which nobody reads while the register is in use.
            l.frame_store(result, off_gpr(RAX));
            let register = l.b.ins().stack_addr(I64, l.slot, off_gpr(RAX));
            let from = l.b.ins().select(to, to, register);
            let value = l.b.ins().load(I64, MemFlagsData::new(), from, 0);
            let none = l.iconst(I64, 0);
            let failed = l.b.ins().select(result, none, value);
            vec![(l.b.ins().select(to, failed, value), pc, Access::ANSWERED)]
        });
    }

    /// Appends records (address, instruction, kind) where `wanted` is not zero.
    fn append_if(
        &mut self,
        wanted: Value,
        records: impl FnOnce(&mut Self) -> Vec<(Value, u64, u16)>,
    ) {
        self.log_if(wanted, |l, mut cursor| {
            for (address, pc, kind) in records(l) {
                cursor = l.store_records(cursor, pc, &[(address, kind)]);
            }
            cursor
        });
    }
}
