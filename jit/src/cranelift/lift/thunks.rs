//! Calls of native thunks.

use super::sse_move::int_lanes;
use super::{Lifter, symbol};
use crate::accesses::{is_locked, is_repeated};
use crate::cranelift::frame;
use crate::cranelift::thunk::Batch;
use crate::cranelift::vars::{self, HIGH, VarSet, XMM};
use crate::cranelift::wide;
use crate::lanes::{self, Lanes, Place};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value};
use iced_x86::{Instruction, InstructionInfoFactory, OpKind, Register};
use refrain_trace::Access;
use refrain_vm::reg::RSP;

/// An access of an instruction that runs natively, to be logged behind it.
struct NativeAccess {
    pc: u64,
    address: Value,
    size: usize,
    kind: u16,
}

impl Lifter<'_> {
    /// Has the processor execute the instructions of a batch, one after the other.
    pub(in super::super) fn thunk(&mut self, batch: Batch, factory: &mut InstructionInfoFactory) {
        let mut accesses = Vec::new();
        if self.watch.accesses {
            for i in batch.instructions() {
                self.at(i);
                self.native_accesses(i, factory, &mut accesses);
            }
        }
        self.thunk_unlogged(batch);
        for native in accesses {
            self.pc = native.pc;
            self.log(native.address, native.size, native.kind);
        }
    }

    /// The same without records of its accesses.
    pub(in super::super) fn thunk_unlogged(&mut self, batch: Batch) {
        self.at(&batch.instructions()[0]);
        let effects = batch.effects();
        for var in effects.uses.or(effects.writes).without(VarSet::FLAGS).iter() {
            self.clean(var);
        }
        if !effects.uses.and(VarSet::FLAGS).is_empty() {
            let rflags = self.pack_flags(effects.uses.flags());
            self.frame_store(rflags, frame::OFF_FLAGS_IN);
        }
        let written = effects.writes.flags();
        let index = self.thunks.len() as u32;
        self.thunks.push(batch);
        let thunk = self.symbol(symbol::THUNK, index);
        self.b.ins().call(thunk, &[]);
        for var in effects.writes.without(VarSet::FLAGS).iter() {
            self.state.vals[var] = None;
        }
        // Read at once, because the frame's copy of flags is shared by all thunks.
        let wanted = written & self.live;
        if wanted != 0 {
            let rflags = self.frame_load(I64, frame::OFF_FLAGS_OUT);
            self.unpack_flags(rflags, wanted);
        }
        self.state.dirty = self.state.dirty.or(VarSet::of_flags(written));
        self.clear_flags(written & !self.live);
    }

    /// What a natively executed instruction is about to access, as far as its operands tell.
    fn native_accesses(
        &mut self,
        i: &Instruction,
        factory: &mut InstructionInfoFactory,
        accesses: &mut Vec<NativeAccess>,
    ) {
        if is_repeated(i) {
            return;
        }
        if let Some(lanes) = lanes::of(i) {
            return self.lane_accesses(i, lanes, accesses);
        }
        let info = factory.info(i).clone();
        let mut merged: Option<(usize, u16)> = None;
        for used in info.used_memory() {
            let (reads, writes) = vars::access(used.access());
            let kind = kind_of(i, reads, writes);
            let size = match used.memory_size().size() {
                0 => fallback_size(i),
                size => size,
            };
            if kind == 0 {
                continue;
            }
            let explicit = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
            if explicit {
                merged = Some(merged.map_or((size, kind), |(s, k)| (s.max(size), k | kind)));
            } else {
                let address = self.used_address(used);
                accesses.push(NativeAccess { pc: i.ip(), address, size, kind });
            }
        }
        if let Some((size, kind)) = merged {
            let address = self.address(i);
            let address = self.bit_address(i, address, size);
            accesses.push(NativeAccess { pc: i.ip(), address, size, kind });
        }
    }

    /// What an instruction is about to access that accesses lanes. For those that its mask leaves
    /// out the top of the thread's own stack stands, which no other thread uses.
    fn lane_accesses(&mut self, i: &Instruction, lanes: Lanes, accesses: &mut Vec<NativeAccess>) {
        let kind = if lanes.stores { Access::WRITE } else { Access::READ };
        let base = self.lanes_base(i, lanes);
        let nowhere = self.var(RSP);
        for lane in 0..lanes.count {
            let offset = match lanes.place {
                Place::Row => self.iconst(I64, (lane * lanes.size) as u64),
                Place::Packed => self.packed_offset(lanes, lane),
                Place::Indexed(size) => {
                    let index = self.lane(i.memory_index(), lane, size);
                    let index = self.sign_extend(index, I64);
                    self.shl_imm(index, i.memory_index_scale().trailing_zeros())
                }
            };
            let address = self.b.ins().iadd(base, offset);
            let accessed = self.is_named(lanes, lane);
            let address = self.b.ins().select(accessed, address, nowhere);
            accesses.push(NativeAccess { pc: i.ip(), address, size: lanes.size, kind });
        }
    }

    /// The address from which the lanes' offsets count.
    fn lanes_base(&mut self, i: &Instruction, lanes: Lanes) -> Value {
        if !matches!(lanes.place, Place::Indexed(_)) {
            return self.address(i);
        }
        let mut without = *i;
        without.set_memory_index(Register::None);
        self.address(&without)
    }

    /// Whether the mask names a lane.
    fn is_named(&mut self, lanes: Lanes, lane: usize) -> Value {
        if lanes.mask.is_k() {
            let named = self.mask_bits(lanes.mask, 1 << lane);
            return self.icmp_imm(IntCC::NotEqual, named, 0);
        }
        let mask = self.lane(lanes.mask, lane, lanes.size);
        self.icmp_imm(IntCC::SignedLessThan, mask, 0)
    }

    /// Where a lane is if those that are accessed lie side by side.
    fn packed_offset(&mut self, lanes: Lanes, lane: usize) -> Value {
        let before = self.mask_bits(lanes.mask, (1 << lane) - 1);
        let count = self.b.ins().popcnt(before);
        self.shl_imm(count, lanes.size.trailing_zeros())
    }

    /// These bits of a mask register.
    fn mask_bits(&mut self, register: Register, bits: u64) -> Value {
        let wide = self.frame_load(I64, frame::OFF_WIDE);
        let offset = wide::offset_of_mask(register.number()) as i32;
        let mask = self.b.ins().load(I64, MemFlagsData::trusted(), wide, offset);
        let bits = self.iconst(I64, bits);
        self.b.ins().band(mask, bits)
    }

    /// One of the integers of `size` bytes in a vector register.
    fn lane(&mut self, register: Register, lane: usize, size: usize) -> Value {
        let number = register.number();
        let in_wide = match number {
            0..16 => (lane * size).checked_sub(32),
            _ => Some(lane * size),
        };
        if let Some(offset) = in_wide {
            let wide = self.frame_load(I64, frame::OFF_WIDE);
            let at = (wide::offset_of_vector(number) + offset) as i32;
            let ty = int_lanes(size).lane_type();
            return self.b.ins().load(ty, MemFlagsData::trusted(), wide, at);
        }
        let in_half = 16 / size;
        let first = if lane < in_half { XMM } else { HIGH };
        let half = self.var(first + register.number());
        let half = self.cast(half, int_lanes(size));
        self.b.ins().extractlane(half, (lane % in_half) as u8)
    }

    fn used_address(&mut self, used: &iced_x86::UsedMemory) -> Value {
        let mut address = self.iconst(I64, used.displacement());
        if used.base() != Register::None {
            let base = self.var(used.base().full_register().number());
            address = self.b.ins().iadd(address, base);
        }
        if used.index() != Register::None {
            let index = self.var(used.index().full_register().number());
            let index = self.shl_imm(index, used.scale().trailing_zeros());
            address = self.b.ins().iadd(address, index);
        }
        address
    }

    /// Where `bt`, `bts`, … with a register as bit offset reach.
    pub(in super::super) fn bit_address(
        &mut self,
        i: &Instruction,
        address: Value,
        size: usize,
    ) -> Value {
        use iced_x86::Mnemonic::{Bt, Btc, Btr, Bts};
        let is_bit =
            matches!(i.mnemonic(), Bt | Btc | Btr | Bts) && i.op1_kind() == OpKind::Register;
        if !is_bit {
            return address;
        }
        let index = self.gpr(i.op1_register());
        let index = self.sign_extend(index, I64);
        let shift =
            self.iconst(cranelift_codegen::ir::types::I8, u64::from((8 * size).trailing_zeros()));
        let words = self.b.ins().sshr(index, shift);
        let bytes = self.shl_imm(words, size.trailing_zeros());
        self.b.ins().iadd(address, bytes)
    }
}

/// The kind of record of an instruction's access.
fn kind_of(i: &Instruction, reads: bool, writes: bool) -> u16 {
    if is_locked(i) {
        return Access::ATOMIC;
    }
    let read = if reads { Access::READ } else { 0 };
    let write = if writes { Access::WRITE } else { 0 };
    read | write
}

fn fallback_size(i: &Instruction) -> usize {
    match i.mnemonic() {
        iced_x86::Mnemonic::Fxsave
        | iced_x86::Mnemonic::Fxsave64
        | iced_x86::Mnemonic::Fxrstor
        | iced_x86::Mnemonic::Fxrstor64 => 512,
        _ => 8,
    }
}
