//! The log of accesses ([`refrain_vm::EngineConfig::accesses`]), for observers of a replay.
//!
//! Before an instruction, translated code appends a record for each of its accesses to the thread's
//! own log, which lies at a fixed distance from GS:
//!
//! ```text
//!       mov [rcx slot], rcx
//!       mov [rdx slot], rdx
//!       lea rdx, [operand]
//!       mov rcx, [room]              minus the bytes that are left
//!       mov [rcx + end of log], rdx
//!       mov [rcx + end of log + 8], what kind of access of which instruction
//!       lea rcx, [rcx + record]
//!       mov [room], rcx
//!       mov rdx, [rdx slot]
//!       mov rcx, [rcx slot]
//! ```
//!
//! Where the observer leaves out what a thread has touched before ([`refrain_vm::Seen`]), the notes are
//! looked up first, without a change of the flags, and the record is appended among the rare exits:
//!
//! ```text
//!       mov rcx, [rdx + distance of the notes]
//!       pext rcx, rcx, [the thread's bits]
//!       lea ecx, [rcx + 0x100 - all of them]
//!       movzx ecx, ch                        0 if one is missing
//!       jrcxz append
//! seen:
//! ```
//!
//! A block checks once, at its start, whether the log has room for all of its records, and leaves
//! translated code if not. What an
//! operand does not tell (string instructions that repeat, lanes, bit strings) is executed and logged
//! by the executor ([`super::cpu`]), which also takes the log whenever code is left.
//!
//! Calls that the observer has named are logged by the executor, which translated code is left for at
//! their first instruction and before the `ret` that ends them. Which accesses a thread has made in its
//! present epoch ([`refrain_vm::SameEpoch`]) the executor sees when it takes the log: translated code
//! logs them all.
//!
//! An instruction that faults has been logged already, unless its address has no note that could be read: then
//! it is executed without its log ([`super::faults::FaultMap::without_log`]). The guest's handler lets it be
//! executed again, which logs it once more, or the thread ends there.

use super::accessed::{Place, Record, Records, records_of};
use super::desc::{Desc, Kind, Variant};
use super::emit::{self, Code, RCX, RDX, SHORT};
use super::faults::Fix;
use super::state::RECORD;
use super::translate::{BlockEnd, Original};
use super::translator::Translator;
use super::watch::operand_address;
use crate::accesses::logged_pc;
use iced_x86::{Encoder, FlowControl, Instruction, Register};
use refrain_trace::Access;
use refrain_vm::layout::NOTES;
use refrain_vm::{EngineConfig, LeaveOut, reg};

/// Room for those of an instruction that the executor logs.
pub(super) const ALONE: usize = 64;

impl Translator {
    /// Whether accesses of such code are logged.
    pub(super) fn logs(&self, variant: Variant) -> bool {
        self.config.accesses && variant.observed()
    }

    /// Emits the check whether the log has room for the records of the block at `pc`.
    pub(super) fn look_for_room(&mut self, pc: u64) {
        self.hot.spill(emit::RCX_SLOT, RCX);
        self.hot.load_sign(emit::LOG_ROOM);
        let go_on = self.hot.forward_unless_rcx_zero();
        self.hot.jmp(self.cold.here());
        self.hot.arrive8(go_on);
        self.hot.reload(RCX, emit::RCX_SLOT);
        self.leave_cold(Kind::LogFull, pc);
    }

    /// Whether the observer has named the calls of the function, or by the instruction, at `pc`.
    pub(super) fn names(&self, pc: u64, variant: Variant) -> bool {
        let EngineConfig { functions, nested, .. } = &self.config;
        self.logs(variant) && (functions.contains_key(&pc) || nested.contains_key(&pc))
    }

    /// Emits the exit before the block at `pc`, if it begins with a call that is named, unless that
    /// has been logged.
    pub(super) fn log_named_call(&mut self, pc: u64, variant: Variant) {
        if !self.names(pc, variant) {
            return;
        }
        self.hot.spill(emit::RCX_SLOT, RCX);
        self.hot.reload(RCX, emit::MINUS_LOGGED);
        self.hot.add_to_rcx(pc as i32);
        let logged = self.hot.forward_if_rcx_zero();
        self.hot.jmp(self.cold.here());
        self.hot.arrive8(logged);
        self.hot.spill(emit::MINUS_LOGGED, RCX);
        self.hot.reload(RCX, emit::RCX_SLOT);
        self.leave_cold(Kind::LogCall, pc);
    }

    /// Emits the exit before a `ret` that ends a call which is named.
    pub(super) fn log_ends(&mut self, original: Original) {
        if !self.logs(original.variant) {
            return;
        }
        let EngineConfig { functions, nested, .. } = &self.config;
        let outermost = (!functions.is_empty()).then_some(emit::MINUS_CALLED);
        let innermost = (!nested.is_empty()).then_some(emit::MINUS_INNERMOST);
        // The block has counted the `ret`, its last instruction.
        let rest = u32::from(self.counts(original.variant));
        for called in [outermost, innermost].into_iter().flatten() {
            self.make_room(RETURN);
            self.hot.spill(emit::RCX_SLOT, RCX);
            self.hot.reload(RCX, called);
            self.hot.add_rsp_to_rcx();
            let goes_on = self.hot.forward_unless_rcx_zero();
            self.hot.jmp(self.cold.here());
            self.hot.arrive8(goes_on);
            self.hot.reload(RCX, emit::RCX_SLOT);
            let desc = Desc { rest, ..Desc::new(Kind::LogEnd, original.instruction.ip()) };
            Self::leave(&mut self.cold, &mut self.arena, self.leave, desc);
        }
    }

    /// Emits an instruction that is not ordered, and the log of its accesses.
    pub(super) fn unordered(&mut self, original: Original) -> BlockEnd {
        if self.logs(original.variant) {
            match self.records_to_log(original.instruction) {
                Records::Of(records) => {
                    self.log(original, &records);
                    self.make_room_for(original.instruction);
                    let transfers = original.instruction.flow_control() != FlowControl::Next;
                    if self.config.calls && transfers {
                        self.make_room(RETURN + APPENDED);
                    }
                }
                Records::Alone => {
                    self.make_room_for(original.instruction);
                    self.leave_here(Kind::LogAlone, original.instruction.ip(), true);
                    return BlockEnd::Before;
                }
            }
        }
        self.instruction(original)
    }

    /// What translated code is to log of an instruction.
    fn records_to_log(&self, instruction: &Instruction) -> Records {
        match self.config.compared.contains(&instruction.ip()) {
            true => Records::Alone,
            false => records_of(instruction),
        }
    }

    /// Emits the log of an instruction of a run in which accesses are counted. An instruction that the
    /// executor would have to log is refused: its block ends there.
    pub(super) fn log_counted(&mut self, original: Original) -> Option<BlockEnd> {
        if !self.logs(original.variant) {
            return None;
        }
        match self.records_to_log(original.instruction) {
            Records::Of(records) => {
                self.log(original, &records);
                // What counts accesses makes no room.
                self.make_room(SHORT);
                None
            }
            Records::Alone => Some(self.leave_unsupported(original.instruction)),
        }
    }

    /// Emits the log of what a register has before an instruction, if the observer has asked for it.
    pub(super) fn log_value(&mut self, original: Original) {
        if !self.logs(original.variant) {
            return;
        }
        let pc = original.instruction.ip();
        let Some(&register) = self.config.values.get(&pc) else { return };
        self.make_room(APPENDED);
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
            reg::RCX => self.hot.reload(RDX, emit::RCX_SLOT),
            reg::RDX => {}
            register => {
                self.hot.copy_to_rcx(register as u8);
                self.hot.copy_rcx_to_rdx();
            }
        }
        append(&mut self.hot, pc, 0, Access::VALUE);
        self.hot.reload(RDX, emit::SCRATCH);
        if let Some(field) = unwanted {
            self.hot.arrive8(field);
        }
        self.hot.reload(RCX, emit::RCX_SLOT);
    }

    /// Emits the log of a call or return to the thread's target, if the observer has asked for it. rcx
    /// is the target too, and the guest's is in its slot.
    pub(super) fn log_transfer(&mut self, original: Original, kind: u16) {
        if self.config.calls && self.logs(original.variant) {
            self.hot.spill(emit::SCRATCH, RDX);
            self.hot.copy_rcx_to_rdx();
            append(&mut self.hot, original.instruction.ip(), 0, kind);
            self.hot.reload(RDX, emit::SCRATCH);
            self.hot.reload(RCX, emit::TARGET);
        }
    }

    /// The same of a call whose target is known.
    pub(super) fn log_call(&mut self, original: Original, target: u64) {
        if self.config.calls && self.logs(original.variant) {
            self.hot.spill(emit::RCX_SLOT, RCX);
            self.hot.spill(emit::SCRATCH, RDX);
            self.hot.load_constant(RDX, target);
            append(&mut self.hot, original.instruction.ip(), 0, Access::CALL);
            self.hot.reload(RDX, emit::SCRATCH);
            self.hot.reload(RCX, emit::RCX_SLOT);
        }
    }

    fn log(&mut self, original: Original, records: &[Record]) {
        for record in records {
            self.make_room(LOOK);
            // If the note of a wild address cannot be read, the guest's own access faults.
            self.mark(original, Fix::Note);
            self.hot.spill(emit::RCX_SLOT, RCX);
            self.hot.spill(emit::SCRATCH, RDX);
            match record.place {
                Place::Operand | Place::Popped => {
                    operand_in_rdx(&mut self.encoder, &mut self.hot, original.instruction);
                    if record.place == Place::Popped {
                        self.hot.add_to_rdx(8);
                    }
                }
                Place::Stack(offset) => self.hot.stack_address(offset),
                Place::Frame => self.hot.copy_rbp_to_rdx(),
            }
            let pc = original.instruction.ip();
            let noted = matches!(record.size, 1 | 2 | 4 | 8 | 16 | 32);
            if self.config.leave_out == LeaveOut::Touched && noted {
                self.append_unseen(pc, *record);
            } else {
                self.make_room(APPENDED);
                append(&mut self.hot, pc, record.size.into(), record.kind);
            }
            self.hot.reload(RDX, emit::SCRATCH);
            self.hot.reload(RCX, emit::RCX_SLOT);
        }
        if !records.is_empty() {
            self.mark(original, Fix::None);
        }
    }

    /// Emits code that appends a record for the address in rdx, unless the notes say that the thread has
    /// touched all of its bytes before.
    fn append_unseen(&mut self, pc: u64, Record { size, kind, .. }: Record) {
        const ONE_MORE: i32 = 0x100;
        let append_at = self.cold.here();
        let words = usize::from(size).div_ceil(8);
        for word in 0..words {
            self.make_room(LOOK);
            self.hot.load_wide(RCX, NOTES + 8 * word as u64);
            self.hot.load_at_rdx_plus_rcx(size.min(8));
            self.hot.extract_bits(emit::SEEN);
            let all = (1 << size.min(8)) - 1;
            self.hot.add_to_rcx(ONE_MORE - all);
            self.hot.second_byte_of_rcx();
            let field = self.hot.forward_if_rcx_zero();
            self.every.jumps.push((field, append_at));
        }
        let seen = self.hot.here();
        let cold = &mut self.cold;
        cold.reload(RCX, emit::SEEN_ADD);
        let unnoted = cold.forward_if_rcx_zero();
        cold.spill(emit::OPERAND, RDX);
        cold.load_wide(RCX, NOTES);
        cold.add_rdx_to_rcx();
        cold.save_flags();
        cold.reload(RDX, emit::SEEN_ADD);
        for word in 0..words {
            cold.or_at_rcx(8 * word as u8, size.min(8));
        }
        cold.restore_flags();
        cold.reload(RDX, emit::OPERAND);
        cold.arrive8(unnoted);
        append(cold, pc, size.into(), kind);
        cold.jmp(seen);
    }
}

/// Bytes of the log of an access at most, up to the next look at a note.
const LOOK: u64 = 112;
/// Bytes of a record that is appended in line.
const APPENDED: u64 = 120;
/// Bytes of a return without its log.
const RETURN: u64 = 96;

/// Emits what appends a record for the address in rdx. rcx is clobbered.
fn append(code: &mut Code, pc: u64, size: u32, kind: u16) {
    code.reload(RCX, emit::LOG_ROOM);
    code.log_rdx();
    code.log_constant(8, logged_pc(pc));
    code.log_constant(12, size | u32::from(kind) << 16);
    code.add_to_rcx(RECORD as i32);
    code.spill(emit::LOG_ROOM, RCX);
}

/// Emits the computation of an operand's address, FS base included, into rdx. All registers are the
/// guest's still; rcx is in its slot, and may be clobbered.
fn operand_in_rdx(encoder: &mut Encoder, code: &mut Code, instruction: &Instruction) {
    operand_address(encoder, code, instruction, Register::RDX);
    if instruction.segment_prefix() == Register::FS {
        code.read_fs_base_to_rcx();
        code.add_rcx_to_rdx();
    }
}
