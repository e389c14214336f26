//! From x86-64 instructions to Cranelift IR.
//!
//! A [`Lifter`] holds what the translation of a straight run of instructions knows: the value of
//! each variable (or that the frame has it), which of them the frame does not have yet, and where
//! the status flags can be computed from. `region` drives it over the blocks of a region.
//!
//! # Reading order
//! This file (variables, registers), `memory`, `flags`, then the instruction families; `thunks`
//! for what no family lifts.
//!
//! # Invariants
//! - Guest loads and stores are made exactly as often and in the order in which the program makes
//!   them: each is one Cranelift load or store that may trap, and the code is compiled with
//!   `opt_level=none`, which merges and moves none.
//! - A variable without a value is as the frame has it.

mod arith;
mod bits;
pub(super) mod flags;
mod functions;
mod memory;
mod moves;
mod nested;
mod notes;
mod shift;
mod sse_float;
mod sse_int;
mod sse_move;
mod strings;
#[cfg(test)]
mod tests;
mod thunks;
mod wide;

pub(super) use functions::CALL_RECORDS;
pub(super) use nested::records;

use super::frame;
use super::vars::{self, VARS, VarSet, XMM};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32, F64, I8, I8X16, I16, I32, I64};
use cranelift_codegen::ir::{
    self, ExtFuncData, ExternalName, FuncRef, InstBuilder, InstructionData, MemFlagsData, Opcode,
    SigRef, SourceLoc, StackSlot, Type, UserExternalName, Value,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::FunctionBuilder;
use flags::Flags;
use iced_x86::{Instruction, OpKind, Register};
use refrain_vm::{Count, LeaveOut};

/// Namespaces of the symbols that compiled regions refer to.
pub(super) mod symbol {
    /// Goes on at the guest address that the index is.
    pub(in super::super) const CHAIN: u32 = 0;
    /// The engine's exit.
    pub(in super::super) const LEAVE: u32 = 1;
    /// A thunk of this region, by its index.
    pub(in super::super) const THUNK: u32 = 2;
    /// Not a target: what follows is the way in for the block with this index in the region.
    pub(in super::super) const ENTRY: u32 = 3;
    /// The routine that computes lazily kept flags.
    pub(in super::super) const SETTLE: u32 = 4;
    /// Goes on at the guest address in the frame's `rip`.
    pub(in super::super) const INDIRECT: u32 = 5;
    /// The routine that logs an access.
    pub(in super::super) const NOTE: u32 = 6;
}

/// What is compiled into the code besides the program itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    pub(super) accesses: bool,
    /// Which of them are not logged. If there are such, how many records there are differs from path
    /// to path, and the cursor stays in the frame.
    pub(super) leave_out: LeaveOut,
    pub(super) calls: bool,
    /// Log the calls of some functions.
    pub(super) functions: bool,
    /// Log calls that are within each other.
    pub(super) nested: bool,
    pub(super) count: Count,
    /// Watched loads may be told where to read.
    pub(super) tells: bool,
    /// Every access is counted, down to the thread's next event.
    pub(super) every: bool,
    /// Address of a byte that is not 0 once there are several threads.
    pub(super) several: u64,
}

/// The knowledge at one point of the translation.
#[derive(Clone)]
pub(super) struct State {
    vals: [Option<Value>; VARS],
    pub(super) dirty: VarSet,
    flags: Flags,
}

impl State {
    /// Everything is as the frame has it.
    pub(super) fn clean() -> State {
        State { vals: [None; VARS], dirty: VarSet::EMPTY, flags: Flags::default() }
    }
}

/// Translates instructions at the builder's current position.
pub(super) struct Lifter<'a> {
    pub(super) b: FunctionBuilder<'a>,
    slot: StackSlot,
    pub(super) watch: Watch,
    pub(super) state: State,
    /// Status flags that somebody reads behind the current instruction.
    pub(super) live: u8,
    /// Bytes of access records written behind the cursor variable.
    logged: i32,
    /// Address of the current instruction.
    pc: u64,
    /// Where the current instruction, a load, reads in place of its operand's address.
    pub(super) reads_from: Option<Value>,
    /// The address that its access is logged with, then.
    pub(super) logged_as: Option<Value>,
    /// The current instruction is one of [`refrain_vm::EngineConfig::compared`].
    pub(super) compares: bool,
    /// Batches of instructions that run natively.
    pub(super) thunks: Vec<super::thunk::Batch>,
    jump: SigRef,
    entry: SigRef,
    call: SigRef,
    settle: SigRef,
    note: SigRef,
}

impl<'a> Lifter<'a> {
    pub(super) fn new(mut b: FunctionBuilder<'a>, slot: StackSlot, watch: Watch) -> Lifter<'a> {
        // A jump passes the hot registers as a C function's arguments. The call that marks a way
        // in has them as its results: the tail convention returns values in rax, rcx, rdx, rsi,
        // rdi, r8, r9. Calls of thunks clobber all, which is what Winch's convention says.
        let mut jump = ir::Signature::new(CallConv::SystemV);
        jump.params.extend(vars::HOT.map(|_| ir::AbiParam::new(I64)));
        let mut entry = ir::Signature::new(CallConv::Tail);
        entry.returns.extend([ir::AbiParam::new(I64); 7]);
        let jump = b.import_signature(jump);
        let entry = b.import_signature(entry);
        let call = b.import_signature(ir::Signature::new(CallConv::Winch));
        let settle = b.import_signature(ir::Signature::new(CallConv::PreserveAll));
        let mut note = ir::Signature::new(CallConv::PreserveAll);
        note.params.extend([ir::AbiParam::new(I64); 2]);
        let note = b.import_signature(note);
        Lifter {
            b,
            slot,
            watch,
            state: State::clean(),
            live: 0x3f,
            logged: 0,
            reads_from: None,
            logged_as: None,
            compares: false,
            pc: 0,
            thunks: Vec::new(),
            jump,
            entry,
            call,
            settle,
            note,
        }
    }

    /// Translates one instruction that is not a control transfer.
    pub(super) fn lift(&mut self, i: &Instruction) {
        self.at(i);
        let done = moves::lift(self, i)
            || arith::lift(self, i)
            || wide::lift(self, i)
            || shift::lift(self, i)
            || bits::lift(self, i)
            || strings::lift(self, i)
            || sse_move::lift(self, i)
            || sse_int::lift(self, i)
            || sse_float::lift(self, i);
        assert!(done, "`lifts` speaks for the families: {i:?}");
    }

    /// Whether some family lifts the instruction.
    pub(super) fn lifts(i: &Instruction) -> bool {
        moves::lifts(i)
            || arith::lifts(i)
            || wide::lifts(i)
            || shift::lifts(i)
            || bits::lifts(i)
            || strings::lifts(i)
            || sse_move::lifts(i)
            || sse_int::lifts(i)
            || sse_float::lifts(i)
    }

    /// What follows belongs to this instruction.
    pub(super) fn at(&mut self, i: &Instruction) {
        self.pc = i.ip();
        self.b.set_srcloc(SourceLoc::new(i.ip() as u32));
    }

    /// A reference to a symbol.
    pub(super) fn symbol(&mut self, namespace: u32, index: u32) -> FuncRef {
        let name =
            self.b.func.declare_imported_user_function(UserExternalName { namespace, index });
        let signature = match namespace {
            symbol::THUNK => self.call,
            symbol::SETTLE => self.settle,
            symbol::NOTE => self.note,
            symbol::ENTRY => self.entry,
            _ => self.jump,
        };
        self.b.import_function(ExtFuncData {
            name: ExternalName::user(name),
            signature,
            colocated: true,
            patchable: false,
        })
    }

    /// Goes to a symbol for good. The linker makes a jump of the call.
    pub(super) fn go(&mut self, namespace: u32, index: u32) {
        let target = self.symbol(namespace, index);
        let hot = vars::HOT.map(|var| self.var(var));
        self.b.ins().call(target, &hot);
        self.b.ins().trap(ir::TrapCode::unwrap_user(1));
    }

    /// Begins a way in: from here on the state is what comes from outside.
    pub(super) fn come(&mut self, index: u32) {
        self.state = State::clean();
        let marker = self.symbol(symbol::ENTRY, index);
        let marker = self.b.ins().call(marker, &[]);
        let [_, rcx, rdx, rsi, rdi, r8, r9] = self.b.inst_results(marker) else {
            panic!("as many as in the signature")
        };
        for (var, value) in vars::HOT.into_iter().zip([*rdi, *rsi, *rdx, *rcx, *r8, *r9]) {
            self.set_var(var, value);
        }
    }

    // The frame.

    pub(super) fn frame_load(&mut self, ty: Type, offset: i32) -> Value {
        let at = self.b.ins().stack_addr(I64, self.slot, offset);
        self.b.ins().load(ty, MemFlagsData::trusted(), at, 0)
    }

    pub(super) fn frame_store(&mut self, value: Value, offset: i32) {
        let at = self.b.ins().stack_addr(I64, self.slot, offset);
        self.b.ins().store(MemFlagsData::trusted(), value, at, 0);
    }

    pub(super) fn frame_store_imm(&mut self, value: u64, offset: i32) {
        let value = self.iconst(I64, value);
        self.frame_store(value, offset);
    }

    // Variables.

    pub(super) fn var(&mut self, var: usize) -> Value {
        if let Some(value) = self.state.vals[var] {
            return value;
        }
        let value = if (vars::FLAG..vars::FLAG + 6).contains(&var) {
            let rflags = self.frame_load(I64, frame::OFF_RFLAGS);
            self.flag_bit(rflags, var - vars::FLAG)
        } else {
            self.frame_load(Self::type_of(var), vars::offset(var))
        };
        self.state.vals[var] = Some(value);
        value
    }

    pub(super) fn set_var(&mut self, var: usize, value: Value) {
        self.state.vals[var] = Some(value);
        self.state.dirty.insert(var);
    }

    pub(super) fn set_param(&mut self, var: usize, value: Value) {
        self.state.vals[var] = Some(value);
    }

    pub(super) fn type_of(var: usize) -> Type {
        match var {
            XMM..vars::FLAG | vars::HIGH..VARS => I8X16,
            vars::FLAG..vars::CURSOR => I8,
            _ => I64,
        }
    }

    /// Stores a dirty variable, which is clean from now on. One without a value is dead: it will
    /// be overwritten before anybody reads it.
    fn clean(&mut self, var: usize) {
        if self.state.dirty.has(var) {
            if let Some(value) = self.state.vals[var] {
                self.frame_store(value, vars::offset(var));
            }
            self.state.dirty.remove(var);
        }
    }

    /// From now on the variable is in the frame only.
    pub(super) fn evict(&mut self, var: usize) {
        self.clean(var);
        self.state.vals[var] = None;
    }

    /// The address of the memory operand, bit offsets included.
    pub(super) fn operand_address(&mut self, i: &Instruction) -> Value {
        let address = self.address(i);
        self.bit_address(i, address, i.memory_size().size())
    }

    /// Stores all dirty variables but the flags and the hot registers; they stay dirty in the state,
    /// which other paths may go on with.
    pub(super) fn store_dirty(&mut self) {
        for var in self.state.dirty.without(VarSet::FLAGS).without(VarSet::HOT).iter() {
            let value = self.state.vals[var]
                .unwrap_or_else(|| panic!("dirty variable {var} has no value at {:#x}", self.pc));
            self.frame_store(value, vars::offset(var));
        }
    }

    // Constants and small helpers.

    pub(super) fn iconst(&mut self, ty: Type, value: u64) -> Value {
        let bits = ty.bits();
        let value = if bits == 64 { value } else { value & ((1 << bits) - 1) };
        self.b.ins().iconst(ty, value as i64)
    }

    pub(super) fn icmp_imm(&mut self, cc: IntCC, a: Value, value: u64) -> Value {
        let ty = self.ty(a);
        let value = self.iconst(ty, value);
        self.b.ins().icmp(cc, a, value)
    }

    pub(super) fn and_imm(&mut self, a: Value, value: u64) -> Value {
        let ty = self.ty(a);
        let value = self.iconst(ty, value);
        self.b.ins().band(a, value)
    }

    pub(super) fn add_imm(&mut self, a: Value, value: i64) -> Value {
        if value == 0 {
            return a;
        }
        let ty = self.ty(a);
        let (a, value) = match self.sum_of(a) {
            Some((base, offset)) => (base, offset.wrapping_add(value)),
            None => (a, value),
        };
        let value = self.iconst(ty, value as u64);
        self.b.ins().iadd(a, value)
    }

    /// Takes a sum with a constant apart, so that pushes and pops in a row do not become a chain.
    fn sum_of(&self, value: Value) -> Option<(Value, i64)> {
        let dfg = &self.b.func.dfg;
        let constant = |value| match dfg.insts[dfg.value_def(value).inst()?] {
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => Some(imm.bits()),
            _ => None,
        };
        match dfg.insts[dfg.value_def(value).inst()?] {
            InstructionData::Binary { opcode: Opcode::Iadd, args } => {
                Some((args[0], constant(args[1])?))
            }
            _ => None,
        }
    }

    /// Counts so much more, if anything is counted.
    pub(super) fn retire(&mut self, more: i64) {
        if self.watch.count != Count::Nothing && more != 0 {
            let retired = self.var(vars::RETIRED);
            let retired = self.add_imm(retired, more);
            self.set_var(vars::RETIRED, retired);
        }
    }

    /// The same for what is known only when the code runs.
    pub(super) fn retire_value(&mut self, more: Value) {
        let retired = self.var(vars::RETIRED);
        let retired = self.b.ins().iadd(retired, more);
        self.set_var(vars::RETIRED, retired);
    }

    pub(super) fn shr_imm(&mut self, a: Value, count: u32) -> Value {
        if count == 0 {
            return a;
        }
        let count = self.iconst(I8, u64::from(count));
        self.b.ins().ushr(a, count)
    }

    pub(super) fn shl_imm(&mut self, a: Value, count: u32) -> Value {
        if count == 0 {
            return a;
        }
        let count = self.iconst(I8, u64::from(count));
        self.b.ins().ishl(a, count)
    }

    pub(super) fn ty(&self, value: Value) -> Type {
        self.b.func.dfg.value_type(value)
    }

    /// Zero-extends or truncates an integer.
    pub(super) fn resize(&mut self, value: Value, ty: Type) -> Value {
        let from = self.ty(value).bits();
        match ty.bits().cmp(&from) {
            std::cmp::Ordering::Greater => self.b.ins().uextend(ty, value),
            std::cmp::Ordering::Less => self.b.ins().ireduce(ty, value),
            std::cmp::Ordering::Equal => value,
        }
    }

    pub(super) fn sign_extend(&mut self, value: Value, ty: Type) -> Value {
        if self.ty(value) == ty { value } else { self.b.ins().sextend(ty, value) }
    }

    // Registers.

    /// The value of a general register, in its own size.
    pub(super) fn gpr(&mut self, register: Register) -> Value {
        let full = self.var(register.full_register().number());
        match register.size() {
            8 => full,
            1 if is_high_byte(register) => {
                let shifted = self.shr_imm(full, 8);
                self.b.ins().ireduce(I8, shifted)
            }
            size => self.b.ins().ireduce(int(size), full),
        }
    }

    /// Writes a general register: 32-bit writes clear the upper half, smaller ones keep the rest.
    pub(super) fn set_gpr(&mut self, register: Register, value: Value) {
        let var = register.full_register().number();
        let full = match register.size() {
            8 => value,
            4 => self.b.ins().uextend(I64, value),
            size => {
                let old = self.var(var);
                let shift = if is_high_byte(register) { 8 } else { 0 };
                let mask = if size == 1 { 0xff_u64 } else { 0xffff } << shift;
                let kept = self.and_imm(old, !mask);
                let wide = self.b.ins().uextend(I64, value);
                let placed = self.shl_imm(wide, shift);
                self.b.ins().bor(kept, placed)
            }
        };
        self.set_var(var, full);
    }

    pub(super) fn xmm(&mut self, register: Register) -> Value {
        self.var(XMM + register.number())
    }

    pub(super) fn set_xmm(&mut self, register: Register, value: Value) {
        let value = self.cast(value, I8X16);
        self.set_var(XMM + register.number(), value);
    }

    /// Reinterprets a vector.
    pub(super) fn cast(&mut self, value: Value, ty: Type) -> Value {
        if self.ty(value) == ty {
            return value;
        }
        let flags = MemFlagsData::new().with_endianness(ir::Endianness::Little);
        self.b.ins().bitcast(ty, flags, value)
    }

    // Integer operands.

    /// An operand's size in bytes.
    pub(super) fn operand_size(i: &Instruction, n: u32) -> usize {
        match i.op_kind(n) {
            OpKind::Register => i.op_register(n).size(),
            OpKind::Memory => i.memory_size().size(),
            OpKind::Immediate8 => 1,
            OpKind::Immediate16 | OpKind::Immediate8to16 => 2,
            OpKind::Immediate32 | OpKind::Immediate8to32 => 4,
            _ => 8,
        }
    }

    /// Reads an integer operand in size `ty`, which is its own.
    pub(super) fn read(&mut self, i: &Instruction, n: u32, ty: Type) -> Value {
        match i.op_kind(n) {
            OpKind::Register => self.gpr(i.op_register(n)),
            OpKind::Memory => {
                let address = self.address(i);
                self.load(ty, address, i.memory_size().size())
            }
            _ => self.iconst(ty, i.immediate(n)),
        }
    }

    /// Where operand 0 is, for an instruction that reads and then writes it: the address of a
    /// memory operand is computed once.
    pub(super) fn place(&mut self, i: &Instruction, n: u32) -> UpdatedOperand {
        match i.op_kind(n) {
            OpKind::Register => UpdatedOperand::Register(i.op_register(n)),
            _ => UpdatedOperand::Memory(self.address(i), i.memory_size().size()),
        }
    }

    /// Reads a place that will be written by the same instruction; the access is logged once.
    pub(super) fn read_place(&mut self, place: UpdatedOperand, ty: Type) -> Value {
        match place {
            UpdatedOperand::Register(register) => self.gpr(register),
            UpdatedOperand::Memory(address, size) => {
                let value = self.load_unlogged(ty, address);
                self.log(address, size, refrain_trace::Access::READ | refrain_trace::Access::WRITE);
                value
            }
        }
    }

    /// Completes what [`Lifter::read_place`] began.
    pub(super) fn write_back(&mut self, place: UpdatedOperand, value: Value) {
        match place {
            UpdatedOperand::Register(register) => self.set_gpr(register, value),
            UpdatedOperand::Memory(address, _) => self.store_unlogged(address, value),
        }
    }

    /// Writes an integer operand that the instruction does not read.
    pub(super) fn write(&mut self, i: &Instruction, n: u32, value: Value) {
        match i.op_kind(n) {
            OpKind::Register => self.set_gpr(i.op_register(n), value),
            _ => {
                let address = self.address(i);
                self.store(address, value, i.memory_size().size());
            }
        }
    }
}

/// An operand that is read and written.
#[derive(Clone, Copy)]
pub(super) enum UpdatedOperand {
    Register(Register),
    Memory(Value, usize),
}

/// The integer type of a size.
pub(super) fn int(size: usize) -> Type {
    match size {
        1 => I8,
        2 => I16,
        4 => I32,
        8 => I64,
        _ => unreachable!("integer operands have 1, 2, 4 or 8 bytes, not {size}"),
    }
}

/// The scalar type of a float of `size` bytes.
pub(super) fn float(size: usize) -> Type {
    if size == 4 { F32 } else { F64 }
}

fn is_high_byte(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}

/// Whether all register operands are general registers (not segments, MMX, …).
pub(super) fn is_integer(i: &Instruction) -> bool {
    (0..i.op_count()).all(|n| i.op_kind(n) != OpKind::Register || i.op_register(n).is_gpr())
}

/// Whether all register operands are SSE or general registers (not MMX).
pub(super) fn is_sse(i: &Instruction) -> bool {
    (0..i.op_count()).all(|n| {
        i.op_kind(n) != OpKind::Register || i.op_register(n).is_gpr() || i.op_register(n).is_xmm()
    })
}

/// The element type of a string instruction with 64-bit addresses.
pub(super) fn int_of(i: &Instruction) -> Option<Type> {
    (i.is_string_instruction() && !strings::is_narrow(i)).then(|| int(i.memory_size().size()))
}
