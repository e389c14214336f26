//! The log of accesses ([`refrain_vm::EngineConfig::accesses`]), for observers of a replay.
//!
//! Before an instruction, translated code appends a record for each of its accesses to the thread's
//! own log, which lies at a fixed distance from GS:
//!
//! ```text
//!       mov [rcx slot], rcx
//!       lea rcx, [operand]
//!       mov [rdx slot], rdx
//!       mov rdx, [room]              minus the bytes that are left
//!       mov [rdx + end of log], rcx
//!       mov [rdx + end of log + 8], what kind of access of which instruction
//!       lea rdx, [rdx + record]
//!       mov [room], rdx
//!       mov rdx, [rdx slot]
//!       mov rcx, [rcx slot]
//! ```
//!
//! Where the observer leaves out what a thread has touched before ([`refrain_vm::Seen`]), the notes are
//! looked up first, and the record is appended among the rare exits:
//!
//! ```text
//!       mov rdx, rcx
//!       mov rcx, [rdx + distance of the notes]
//!       pext rcx, rcx, [the thread's bits]   changes no flag
//!       lea ecx, [rcx - all of them]
//!       jrcxz seen
//!       jmp append                           and back to `seen`
//! seen:
//! ```
//!
//! A block looks once whether there is room for all of its records, and leaves if there is not. What an
//! operand does not tell (string instructions that repeat, lanes, bit strings) is executed and logged
//! by the executor ([`super::cpu`]), which also takes the log whenever code is left.
//!
//! An instruction that faults has been logged already. The guest's handler lets it be executed again,
//! which logs it once more, or the thread ends there.

use super::desc::{Kind, Variant};
use super::emit::{self, Code, RCX, RDX};
use super::faults::Fix;
use super::translate::{BlockEnd, Original};
use super::translator::Translator;
use crate::accesses::{bit_register, is_repeated};
use crate::common;
use crate::emulated::is_of_state;
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use refrain_trace::Access;
use refrain_vm::layout::NOTES;
use refrain_vm::{LeaveOut, reg};

/// Bytes of a record.
pub(super) const RECORD: u64 = size_of::<Access>() as u64;
/// Records of one instruction at most: a value, an operand that is read and written, a word of the
/// stack, a call.
const MOST: u64 = 5;
/// Room for the records of a block.
pub(super) const MARGIN: u64 = super::translator::MAX_BLOCK as u64 * MOST * RECORD;
/// Room for those of an instruction that the executor logs.
pub(super) const ALONE: usize = 32;

/// Where an access is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Operand,
    /// So far from the stack pointer.
    Stack(i8),
    /// At the frame pointer.
    Frame,
}

/// One access of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    place: Place,
    size: u8,
    kind: u16,
}

/// What an instruction accesses.
#[derive(Debug)]
enum Records {
    Of(Vec<Record>),
    /// Its operands do not tell.
    Alone,
}

impl Translator {
    /// Whether accesses of such code are logged.
    pub(super) fn logs(&self, variant: Variant) -> bool {
        self.config.accesses && variant.observed()
    }

    /// Emits the look for room for the records of the block at `pc`.
    pub(super) fn look_for_room(&mut self, pc: u64) {
        self.hot.spill(emit::RCX_SLOT, RCX);
        self.hot.load_sign(emit::LOG_ROOM);
        let go_on = self.hot.forward_unless_rcx_zero();
        self.hot.jmp(self.cold.here());
        self.hot.arrive8(go_on);
        self.hot.reload(RCX, emit::RCX_SLOT);
        self.leave_cold(Kind::LogFull, pc);
    }

    /// Emits an instruction that is not ordered, and the log of its accesses.
    pub(super) fn unordered(&mut self, original: Original) -> BlockEnd {
        if self.logs(original.variant) {
            match records_of(original.instruction) {
                Records::Of(records) => self.log(original, &records),
                Records::Alone => {
                    self.leave_here(Kind::LogAlone, original.instruction.ip(), true);
                    return BlockEnd::Before;
                }
            }
        }
        self.instruction(original)
    }

    /// Emits the log of what a register has before an instruction, if the observer has asked for it.
    pub(super) fn log_value(&mut self, original: Original) {
        if !self.logs(original.variant) {
            return;
        }
        let pc = original.instruction.ip();
        let Some(&register) = self.config.values.get(&pc) else { return };
        self.hot.spill(emit::RCX_SLOT, RCX);
        let unwanted = (self.config.leave_out == LeaveOut::Touched).then(|| {
            // Who wants repetitions has the sign bit here, and nobody else.
            const SIGN: i32 = 0x80;
            self.hot.load_signed_byte(emit::SEEN);
            self.hot.add_to_rcx(SIGN);
            let wanted = self.hot.forward_if_rcx_zero();
            let unwanted = self.hot.forward();
            self.hot.arrive8(wanted);
            unwanted
        });
        self.hot.spill(emit::SCRATCH, RDX);
        match register {
            reg::RCX => self.hot.reload(RCX, emit::RCX_SLOT),
            register => self.hot.copy_to_rcx(register as u8),
        }
        append(&mut self.hot, pc, 0, Access::VALUE);
        self.hot.reload(RDX, emit::SCRATCH);
        if let Some(field) = unwanted {
            self.hot.arrive8(field);
        }
        self.hot.reload(RCX, emit::RCX_SLOT);
    }

    /// Emits the log of a call or return to the address in rcx, if the observer has asked for it. The
    /// guest's rcx is in its slot.
    pub(super) fn log_transfer(&mut self, original: Original, kind: u16) {
        if !self.config.calls || !self.logs(original.variant) {
            return;
        }
        self.hot.spill(emit::SCRATCH, RDX);
        append(&mut self.hot, original.instruction.ip(), 0, kind);
        self.hot.reload(RDX, emit::SCRATCH);
    }

    /// The same of a call whose target is known.
    pub(super) fn log_call(&mut self, original: Original, target: u64) {
        if self.config.calls && self.logs(original.variant) {
            self.hot.spill(emit::RCX_SLOT, RCX);
            self.hot.load_constant(RCX, target);
            self.log_transfer(original, Access::CALL);
            self.hot.reload(RCX, emit::RCX_SLOT);
        }
    }

    fn log(&mut self, original: Original, records: &[Record]) {
        for record in records {
            // If the note of a wild address cannot be read, the guest's own access would have faulted.
            self.mark(original, Fix::Note);
            self.hot.spill(emit::RCX_SLOT, RCX);
            match record.place {
                Place::Operand => super::careful::full_address(
                    &mut self.encoder,
                    &mut self.hot,
                    original.instruction,
                ),
                Place::Stack(offset) => self.hot.stack_address(offset),
                Place::Frame => self.hot.copy_to_rcx(reg::RBP as u8),
            }
            self.hot.spill(emit::SCRATCH, RDX);
            let pc = original.instruction.ip();
            let noted = matches!(record.size, 1 | 2 | 4 | 8 | 16 | 32);
            if self.config.leave_out == LeaveOut::Touched && noted {
                self.append_unseen(pc, *record);
            } else {
                append(&mut self.hot, pc, record.size.into(), record.kind);
            }
            self.hot.reload(RDX, emit::SCRATCH);
            self.hot.reload(RCX, emit::RCX_SLOT);
        }
    }

    /// Emits what appends a record for the address in rcx unless the thread's notes have it.
    fn append_unseen(&mut self, pc: u64, Record { size, kind, .. }: Record) {
        const JUMP: u8 = 5;
        self.hot.copy_rcx_to_rdx();
        let append_at = self.cold.here();
        let words = usize::from(size).div_ceil(8);
        for word in 0..words {
            self.hot.load_wide(RCX, NOTES + 8 * word as u64);
            self.hot.load_at_rdx_plus_rcx(size.min(8));
            self.hot.extract_bits(emit::SEEN);
            let all = (1 << size.min(8)) - 1;
            self.hot.add_to_rcx(-all);
            self.hot.skip_if_rcx_zero(JUMP);
            self.hot.jmp(append_at);
        }
        let seen = self.hot.here();
        let cold = &mut self.cold;
        cold.spill(emit::OPERAND, RDX);
        cold.load_wide(RCX, NOTES);
        cold.add_rcx_to_rdx();
        cold.save_flags();
        cold.reload(RCX, emit::SEEN_ADD);
        for word in 0..words {
            cold.or_at_rdx(8 * word as u8, size.min(8));
        }
        cold.restore_flags();
        cold.reload(RCX, emit::OPERAND);
        append(cold, pc, size.into(), kind);
        cold.jmp(seen);
    }
}

/// Emits what appends a record for the address in rcx. rdx is clobbered.
fn append(code: &mut Code, pc: u64, size: u32, kind: u16) {
    code.reload(RDX, emit::LOG_ROOM);
    code.log_rcx();
    code.log_constant(8, logged_pc(pc));
    code.log_constant(12, size | u32::from(kind) << 16);
    code.add_to_rdx(RECORD as i8);
    code.spill(emit::LOG_ROOM, RDX);
}

/// An instruction's address in a record.
pub(super) fn logged_pc(pc: u64) -> u32 {
    u32::try_from(pc).unwrap_or(0)
}

/// What an instruction accesses. One that reads and writes its operand has a record of each, unless it
/// does so at once.
fn records_of(instruction: &Instruction) -> Records {
    let size = instruction.memory_size().size();
    let of_operand = |access: OpAccess| {
        let kinds: &[u16] = match access {
            OpAccess::None | OpAccess::NoMemAccess => &[],
            OpAccess::Read => &[Access::READ],
            OpAccess::Write => &[Access::WRITE],
            _ if super::ordered::is_locked(instruction) => &[Access::ATOMIC],
            _ => &[Access::READ, Access::WRITE],
        };
        let record = |&kind| Record { place: Place::Operand, size: size as u8, kind };
        kinds.iter().map(record).collect::<Vec<Record>>()
    };
    match common::memory_access(instruction) {
        Some(access) if !super::ordered::is_locked(instruction) => {
            return Records::Of(of_operand(access));
        }
        _ => {}
    }
    if is_of_state(instruction) {
        return Records::Of(Vec::new());
    }
    if is_repeated(instruction)
        || instruction.is_string_instruction()
        || instruction.is_vsib()
        || bit_register(instruction).is_some()
    {
        return Records::Alone;
    }
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_memory();
    let named = (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory);
    let mut records = Vec::new();
    let mut operand = OpAccess::None;
    for memory in used {
        let access = memory.access();
        if matches!(access, OpAccess::None | OpAccess::NoMemAccess) {
            continue;
        }
        let is_stack = memory.base() == Register::RSP && instruction.is_stack_instruction();
        let is_operand = named && !(is_stack && memory_is_of_stack(instruction, memory));
        if is_operand {
            operand = joined(operand, access);
            continue;
        }
        let place = match (memory.base(), instruction.mnemonic()) {
            (Register::RBP, Mnemonic::Leave) => Place::Frame,
            (Register::RSP, Mnemonic::Enter) => return Records::Alone,
            (Register::RSP, _) if memory.index() == Register::None => {
                match i8::try_from(memory.displacement() as i64) {
                    Ok(offset) => Place::Stack(offset),
                    Err(_) => return Records::Alone,
                }
            }
            _ => return Records::Alone,
        };
        let kind = match access {
            OpAccess::Read | OpAccess::CondRead => Access::READ,
            _ => Access::WRITE,
        };
        records.push(Record { place, size: memory.memory_size().size() as u8, kind });
    }
    let conditional =
        matches!(operand, OpAccess::CondRead | OpAccess::CondWrite | OpAccess::ReadCondWrite)
            && !super::ordered::is_locked(instruction)
            && instruction.mnemonic() != Mnemonic::Cmpxchg;
    // The address of `pop [rsp + x]` is that after the pop.
    let pops = named && instruction.mnemonic() == Mnemonic::Pop;
    if operand != OpAccess::None && (!(1..=64).contains(&size) || conditional || pops) {
        return Records::Alone;
    }
    let mut all = of_operand(operand);
    all.extend(records);
    Records::Of(all)
}

/// Whether a stack instruction accesses this word by itself, and not as its operand.
fn memory_is_of_stack(instruction: &Instruction, memory: &iced_x86::UsedMemory) -> bool {
    let same = memory.base() == instruction.memory_base()
        && memory.index() == instruction.memory_index()
        && memory.displacement() == instruction.memory_displacement64();
    !same
}

/// What two accesses to one operand are together.
fn joined(one: OpAccess, other: OpAccess) -> OpAccess {
    match (one, other) {
        (OpAccess::None, other) => other,
        (one, other) if one == other => one,
        _ => OpAccess::ReadWrite,
    }
}
