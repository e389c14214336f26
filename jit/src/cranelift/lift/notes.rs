//! Which accesses are logged, by notes on guest memory: [`refrain_vm::Seen`] and
//! [`refrain_vm::SameEpoch`].

use super::{Lifter, symbol};
use crate::cranelift::frame;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value};
use refrain_trace::Access;
use refrain_vm::LeaveOut;
use refrain_vm::layout::NOTES;
use refrain_vm::same_epoch::{CELL, CELLS, EPOCH_SHIFT, GRANULE, GRANULES, LARGEST, NEVER, offset};

impl Lifter<'_> {
    /// Appends an access record unless the notes tell that it is not wanted.
    pub(super) fn append_unseen(&mut self, address: Value, size: usize, kind: u16) {
        let notes = self.add_imm(address, NOTES as i64);
        let wanted = match size {
            16 | 32 => {
                let first = self.unlike_note(notes, 0);
                (8..size as i32).step_by(8).fold(first, |wanted, offset| {
                    let more = self.unlike_note(notes, offset);
                    self.b.ins().bor(wanted, more)
                })
            }
            8 => self.unlike_note(notes, 0),
            _ => self.unlike_short_note(notes, size),
        };
        let (log, on) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(wanted, log, &[], on, &[]);
        self.b.set_cold_block(log);
        self.b.switch_to_block(log);
        self.append(address, size as u64, kind);
        let ty = super::int(size.min(8));
        for offset in (0..size as i32).step_by(8) {
            let note = self.b.ins().load(ty, MemFlagsData::new(), notes, offset);
            let own = self.frame_load(ty, frame::OFF_SEEN_ADD);
            let note = self.b.ins().bor(note, own);
            self.b.ins().store(MemFlagsData::new(), note, notes, offset);
        }
        self.b.ins().jump(on, &[]);
        self.b.switch_to_block(on);
    }

    /// Not zero if the thread is new to one of eight bytes.
    fn unlike_note(&mut self, notes: Value, offset: i32) -> Value {
        let word = self.frame_load(I64, frame::OFF_SEEN_WORD);
        let note = self.b.ins().load(I64, MemFlagsData::new(), notes, offset);
        self.b.ins().band_not(word, note)
    }

    /// The same for one, two or four bytes, in the 32 bits that processors like best.
    fn unlike_short_note(&mut self, notes: Value, size: usize) -> Value {
        let flags = MemFlagsData::new();
        let offset = match size {
            1 => frame::OFF_SEEN_BYTE,
            2 => frame::OFF_SEEN_PAIR,
            _ => frame::OFF_SEEN_WORD,
        };
        let word = self.frame_load(I32, offset);
        let note = match size {
            1 => self.b.ins().uload8(I32, flags, notes, 0),
            2 => self.b.ins().uload16(I32, flags, notes, 0),
            _ => self.b.ins().load(I32, flags, notes, 0),
        };
        self.b.ins().band_not(word, note)
    }

    /// Appends an access record unless the thread has accessed the bytes in this epoch.
    pub(super) fn append_new_in_epoch(&mut self, address: Value, size: usize, kind: u16) {
        let (log, on) = (self.b.create_block(), self.b.create_block());
        if size as u64 <= LARGEST {
            let new = self.is_new_in_epoch(address, size, kind);
            self.b.ins().brif(new, log, &[], on, &[]);
            self.b.set_cold_block(log);
        } else {
            self.b.ins().jump(log, &[]);
        }
        self.b.switch_to_block(log);
        let record = self.record(size as u64, kind);
        let note = self.symbol(symbol::NOTE, 0);
        self.b.ins().call(note, &[address, record]);
        self.b.ins().jump(on, &[]);
        self.b.switch_to_block(on);
    }

    /// Not zero if the thread's notes lack a byte of an access in its epoch.
    fn is_new_in_epoch(&mut self, address: Value, size: usize, kind: u16) -> Value {
        let flags = MemFlagsData::trusted();
        let notes = self.frame_load(I64, frame::OFF_EPOCH_NOTES);
        // The granule of the first byte has to be noted as that of the last one: an access to two
        // granules is new.
        let last = self.add_imm(address, size as i64 - 1);
        let granule = self.and_imm(last, !(GRANULE - 1));
        let epoch = self.frame_load(I64, frame::OFF_EPOCH);
        let wanted = self.b.ins().bor(granule, epoch);
        let index = self.shr_imm(address, (GRANULE / 8).trailing_zeros());
        let index = self.and_imm(index, (GRANULES - 1) * 8);
        let at = self.b.ins().iadd(notes, index);
        let tag = self.b.ins().load(I64, flags, at, offset::TAGS);
        let other = self.b.ins().bxor(tag, wanted);
        let cell = self.shr_imm(address, CELL.trailing_zeros());
        let cell = self.and_imm(cell, CELLS - 1);
        let at = self.b.ins().iadd(notes, cell);
        let plane = match kind & Access::WRITE {
            0 => offset::ACCESSED,
            _ => offset::WRITTEN,
        };
        let ty = if size > 16 { I64 } else { I32 };
        let bits = self.b.ins().load(ty, flags, at, plane);
        let first = self.and_imm(address, CELL - 1);
        let bits = self.b.ins().ushr(bits, first);
        let bytes = self.iconst(ty, (1u64 << size) - 1);
        let missing = self.b.ins().band_not(bytes, bits);
        let missing = if ty == I64 { missing } else { self.b.ins().uextend(I64, missing) };
        self.b.ins().bor(other, missing)
    }

    /// What is noted of the epoch does not count any more, until the log has been taken.
    pub(in super::super) fn end_epoch(&mut self) {
        if self.watch.leave_out == LeaveOut::SameEpoch {
            self.frame_store_imm(NEVER << EPOCH_SHIFT, frame::OFF_EPOCH);
        }
    }

    /// At the next check for room, the log is taken.
    pub(in super::super) fn leave_soon(&mut self) {
        if self.watch.leave_out == LeaveOut::SameEpoch {
            self.frame_store_imm(0, frame::OFF_LIMIT);
        }
    }
}
