//! Guest memory: effective addresses, loads, stores and their log.

use super::Lifter;
use crate::cranelift::frame;
use crate::cranelift::vars::{CURSOR, offset};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Type, Value};
use iced_x86::{Instruction, Register};
use refrain_trace::Access;
use refrain_vm::LeaveOut;

/// Bytes of an access record.
pub(crate) const RECORD: i32 = size_of::<Access>() as i32;

impl Lifter<'_> {
    /// The linear address of the memory operand.
    pub(super) fn address(&mut self, i: &Instruction) -> Value {
        if let Some(elsewhere) = self.reads_from.take() {
            return elsewhere;
        }
        let offset = self.offset(i);
        if i.memory_segment() == Register::FS {
            let base = self.frame_load(I64, frame::OFF_FS_BASE);
            return self.b.ins().iadd(base, offset);
        }
        offset
    }

    /// The effective address of the memory operand, without its segment.
    pub(super) fn offset(&mut self, i: &Instruction) -> Value {
        if i.is_ip_rel_memory_operand() {
            return self.iconst(I64, i.memory_displacement64());
        }
        let narrow = i.memory_base().is_gpr32() || i.memory_index().is_gpr32();
        let mut sum = None;
        if i.memory_base() != Register::None {
            sum = Some(self.var(i.memory_base().full_register().number()));
        }
        if i.memory_index() != Register::None {
            let index = self.var(i.memory_index().full_register().number());
            let scaled = self.shl_imm(index, i.memory_index_scale().trailing_zeros());
            sum = Some(match sum {
                Some(base) => self.b.ins().iadd(base, scaled),
                None => scaled,
            });
        }
        let displacement = i.memory_displacement64();
        let address = match sum {
            Some(sum) => self.add_imm(sum, displacement as i64),
            None => self.iconst(I64, displacement),
        };
        if narrow {
            let low = self.b.ins().ireduce(I32, address);
            return self.b.ins().uextend(I64, low);
        }
        address
    }

    /// A load of `size` bytes, logged.
    pub(super) fn load(&mut self, ty: Type, address: Value, size: usize) -> Value {
        let value = self.load_unlogged(ty, address);
        self.log(address, size, Access::READ);
        value
    }

    pub(in crate::cranelift) fn load_unlogged(&mut self, ty: Type, address: Value) -> Value {
        self.b.ins().load(ty, MemFlagsData::new(), address, 0)
    }

    /// A store, logged.
    pub(super) fn store(&mut self, address: Value, value: Value, size: usize) {
        if self.compares && size == 8 && self.watch.accesses {
            return self.store_compared(address, value);
        }
        self.store_unlogged(address, value);
        self.log(address, size, Access::WRITE);
    }

    /// A store of eight bytes, logged as a read if memory has the value already.
    fn store_compared(&mut self, address: Value, value: Value) {
        let old = self.load_unlogged(I64, address);
        let changes = self.b.ins().icmp(IntCC::NotEqual, old, value);
        self.store_unlogged(address, value);
        if self.watch.leave_out == LeaveOut::Nothing {
            let meta = |kind: u16| self.pc & 0xffff_ffff | 8 << 32 | u64::from(kind) << 48;
            let [read, write] = [Access::READ, Access::WRITE].map(meta);
            let (read, write) = (self.iconst(I64, read), self.iconst(I64, write));
            let meta = self.b.ins().select(changes, write, read);
            return self.append_raw(address, meta);
        }
        let [write, read, on] = [(); 3].map(|()| self.b.create_block());
        self.b.ins().brif(changes, write, &[], read, &[]);
        for (block, kind) in [(write, Access::WRITE), (read, Access::READ)] {
            self.b.switch_to_block(block);
            self.log(address, 8, kind);
            self.b.ins().jump(on, &[]);
        }
        self.b.switch_to_block(on);
    }

    pub(super) fn store_unlogged(&mut self, address: Value, value: Value) {
        self.b.ins().store(MemFlagsData::new(), value, address, 0);
    }

    /// Appends an access record, if accesses are watched. Whoever translates the block has made
    /// sure that there is room. The access comes first: if it faults, nothing was accessed, and
    /// there may be no note.
    pub(super) fn log(&mut self, address: Value, size: usize, kind: u16) {
        let address = self.logged_as.take().unwrap_or(address);
        match self.watch.leave_out {
            LeaveOut::Touched if matches!(size, 1 | 2 | 4 | 8 | 16 | 32) => {
                self.append_unseen(address, size, kind);
            }
            LeaveOut::SameEpoch => self.append_new_in_epoch(address, size, kind),
            _ if self.watch.accesses => self.append(address, size as u64, kind),
            _ => {}
        }
    }

    /// Where the next record goes, but for those behind [`Self::settle_cursor`].
    pub(in super::super) fn cursor(&mut self) -> Value {
        if self.watch.leave_out != LeaveOut::Nothing {
            return self.frame_load(I64, offset(CURSOR));
        }
        self.var(CURSOR)
    }

    /// Appends a record.
    pub(in super::super) fn append(&mut self, address: Value, size: u64, kind: u16) {
        let meta = self.record(size, kind);
        self.append_raw(address, meta);
    }

    /// The second half of a record of the present instruction.
    pub(super) fn record(&mut self, size: u64, kind: u16) -> Value {
        self.iconst(I64, self.pc & 0xffff_ffff | size << 32 | u64::from(kind) << 48)
    }

    /// Appends a record whose size is known at run time only.
    pub(in super::super) fn append_sized(&mut self, address: Value, size: Value, kind: u16) {
        let fixed = self.iconst(I64, self.pc & 0xffff_ffff | u64::from(kind) << 48);
        let size = self.shl_imm(size, 32);
        let meta = self.b.ins().bor(fixed, size);
        self.append_raw(address, meta);
    }

    fn append_raw(&mut self, address: Value, meta: Value) {
        let cursor = self.cursor();
        let at = self.logged;
        self.b.ins().store(MemFlagsData::trusted(), address, cursor, at);
        self.b.ins().store(MemFlagsData::trusted(), meta, cursor, at + 8);
        if self.watch.leave_out != LeaveOut::Nothing {
            let cursor = self.add_imm(cursor, RECORD.into());
            self.frame_store(cursor, offset(CURSOR));
        } else {
            self.logged += RECORD;
        }
    }

    /// Moves the cursor behind the records written since the last time.
    pub(in super::super) fn settle_cursor(&mut self) {
        if self.logged != 0 {
            let cursor = self.var(CURSOR);
            let cursor = self.add_imm(cursor, i64::from(self.logged));
            self.set_var(CURSOR, cursor);
            self.logged = 0;
        }
    }
}
