//! The log of calls that may be within each other: what they are given, and when they end.
//!
//! The frame has where each call under way keeps its return address, innermost last
//! ([`Frame::outer`]). A `ret` that takes the innermost one ends its call, whichever function the `ret`
//! belongs to: functions may end with a jump to another. So calls end in the order of their stack, also
//! where a program changes stacks. What is left in another way (`longjmp`) does not end.
//!
//! [`Frame::outer`]: crate::cranelift::frame::Frame::outer

use super::Lifter;
use super::memory::RECORD;
use crate::cranelift::frame::{self, Outer};
use crate::cranelift::vars::{CURSOR, offset};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, Value};
use refrain_trace::Access;
use refrain_vm::reg::{R8, R9, RAX, RCX, RDI, RDX, RSI, RSP};
use refrain_vm::{LeaveOut, List, Nested};
use std::ops::Range;

/// Records of a call without a list.
const FIXED: u32 = 11;

/// Records that are appended where such a call begins, at most.
pub(crate) fn records(nested: &Nested) -> u32 {
    match nested {
        Nested::Function(Some(_)) => FIXED + List::LONGEST,
        _ => FIXED,
    }
}

impl Lifter<'_> {
    /// Logs a call whose return address has just been pushed: of the function at `pc`, or by the
    /// instruction at `pc`, to a target, if that is outside of a range.
    pub(in super::super) fn enter_nested(
        &mut self,
        pc: u64,
        leaves: Option<(Value, Range<u64>)>,
        list: Option<List>,
    ) {
        let slot = self.var(RSP);
        let arguments = [RDI, RSI, RDX, RCX, R8, R9].map(|register| self.var(register));
        let depth = self.frame_load(I64, frame::OFF_DEPTH);
        let mut wanted = self.icmp_imm(IntCC::UnsignedLessThan, depth, Outer::DEEPEST as u64);
        let mut function = self.iconst(I64, pc);
        if let Some((target, range)) = leaves {
            let start = self.iconst(I64, range.start);
            let within = self.b.ins().isub(target, start);
            let len = range.end - range.start;
            let is_outside = self.icmp_imm(IntCC::UnsignedGreaterThanOrEqual, within, len);
            wanted = self.b.ins().band(wanted, is_outside);
            function = target;
        }
        self.log_if(wanted, |l, cursor| {
            l.end_epoch();
            l.leave_soon();
            let innermost = l.frame_load(I64, frame::OFF_INNERMOST);
            let at = l.outer(depth);
            l.b.ins().store(MemFlagsData::trusted(), innermost, at, 0);
            l.frame_store(slot, frame::OFF_INNERMOST);
            let deeper = l.add_imm(depth, 1);
            l.frame_store(deeper, frame::OFF_DEPTH);
            let on_stack = [8, 16].map(|at| {
                let at = l.add_imm(slot, at);
                l.load_unlogged(I64, at)
            });
            let all: Vec<Value> = arguments.into_iter().chain(on_stack).collect();
            let words = match list {
                Some(list) => l.words_of(list, &all),
                None => l.iconst(I64, 0),
            };
            let (first, rest) = (all[0], &all[1..]);
            let mut records = vec![(first, Access::ENTERED)];
            let given = rest.iter().copied().chain([slot, function, words]);
            records.extend(given.map(|value| (value, Access::GIVEN)));
            let cursor = l.store_records(cursor, pc, &records);
            match list {
                Some(List::Counted(at) | List::Records(at, _)) => {
                    l.store_words(cursor, pc, all[at], words)
                }
                None => cursor,
            }
        });
    }

    /// Logs the end of the innermost call, if a `ret` ends that one: `sp` is where the `ret` has taken
    /// its return address from.
    pub(in super::super) fn leave_nested(&mut self, sp: Value) {
        let (result, pc) = (self.var(RAX), self.pc);
        let innermost = self.frame_load(I64, frame::OFF_INNERMOST);
        let returns = self.b.ins().icmp(IntCC::Equal, sp, innermost);
        self.log_if(returns, |l, cursor| {
            l.end_epoch();
            l.leave_soon();
            let depth = l.frame_load(I64, frame::OFF_DEPTH);
            let depth = l.add_imm(depth, -1);
            l.frame_store(depth, frame::OFF_DEPTH);
            let at = l.outer(depth);
            let outer = l.b.ins().load(I64, MemFlagsData::trusted(), at, 0);
            l.frame_store(outer, frame::OFF_INNERMOST);
            l.store_records(cursor, pc, &[(result, Access::LEFT)])
        });
    }

    /// Where the frame has what the call with this number is within.
    fn outer(&mut self, depth: Value) -> Value {
        let all = self.b.ins().stack_addr(I64, self.slot, frame::OFF_OUTER);
        let at = self.shl_imm(depth, 3);
        self.b.ins().iadd(all, at)
    }

    /// How many words of a list are to be logged.
    fn words_of(&mut self, list: List, arguments: &[Value]) -> Value {
        let (from, on) = (self.b.create_block(), self.b.create_block());
        let words = self.b.append_block_param(on, I64);
        let (List::Counted(at) | List::Records(at, _)) = list;
        let (address, none) = (arguments[at], self.iconst(I64, 0));
        self.b.ins().brif(address, from, &[], on, &[BlockArg::Value(none)]);
        self.b.switch_to_block(from);
        let count = match list {
            List::Counted(_) => {
                let first = self.load_unlogged(I64, address);
                let behind = self.add_imm(address, 8);
                let second = self.load_unlogged(I64, behind);
                let (short, long) = (self.add_imm(first, 2), self.add_imm(second, 5));
                self.b.ins().select(first, short, long)
            }
            List::Records(_, count) => {
                let low = self.and_imm(arguments[count], u32::MAX.into());
                let three = self.iconst(I64, 3);
                self.b.ins().imul(low, three)
            }
        };
        let most = self.iconst(I64, List::LONGEST.into());
        let is_short = self.b.ins().icmp(IntCC::UnsignedLessThan, count, most);
        let count = self.b.ins().select(is_short, count, most);
        self.b.ins().jump(on, &[BlockArg::Value(count)]);
        self.b.switch_to_block(on);
        words
    }

    /// Stores records behind the cursor.
    pub(super) fn store_records(
        &mut self,
        cursor: Value,
        pc: u64,
        records: &[(Value, u16)],
    ) -> Value {
        let flags = MemFlagsData::trusted();
        let mut at = 0;
        for &(value, kind) in records {
            let meta = self.iconst(I64, pc & 0xffff_ffff | u64::from(kind) << 48);
            self.b.ins().store(flags, value, cursor, at);
            self.b.ins().store(flags, meta, cursor, at + 8);
            at += RECORD;
        }
        self.add_imm(cursor, at.into())
    }

    /// Stores so many words of the guest's as records.
    fn store_words(&mut self, cursor: Value, pc: u64, from: Value, words: Value) -> Value {
        let (head, one, done) =
            (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let (cursor_now, from_now, left) = (
            self.b.append_block_param(head, I64),
            self.b.append_block_param(head, I64),
            self.b.append_block_param(head, I64),
        );
        self.b.ins().jump(head, &[cursor, from, words].map(BlockArg::Value));
        self.b.switch_to_block(head);
        self.b.ins().brif(left, one, &[], done, &[]);
        self.b.switch_to_block(one);
        let value = self.load_unlogged(I64, from_now);
        let cursor = self.store_records(cursor_now, pc, &[(value, Access::GIVEN)]);
        let (from, left) = (self.add_imm(from_now, 8), self.add_imm(left, -1));
        self.b.ins().jump(head, &[cursor, from, left].map(BlockArg::Value));
        self.b.switch_to_block(done);
        cursor_now
    }

    /// Appends records where `wanted` is not zero: `records` returns the cursor behind them.
    pub(super) fn log_if(
        &mut self,
        wanted: Value,
        records: impl FnOnce(&mut Self, Value) -> Value,
    ) {
        self.settle_cursor();
        let cursor = self.cursor();
        let (log, on) = (self.b.create_block(), self.b.create_block());
        let after = self.b.append_block_param(on, I64);
        self.b.ins().brif(wanted, log, &[], on, &[BlockArg::Value(cursor)]);
        self.b.set_cold_block(log);
        self.b.switch_to_block(log);
        let state = self.state.clone();
        let end = records(self, cursor);
        self.state = state;
        self.b.ins().jump(on, &[BlockArg::Value(end)]);
        self.b.switch_to_block(on);
        if self.watch.leave_out != LeaveOut::Nothing {
            self.frame_store(after, offset(CURSOR));
        } else {
            self.set_var(CURSOR, after);
        }
    }
}
