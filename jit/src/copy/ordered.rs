//! Which instructions are ordered against other threads, and what their operands are.
//!
//! Locked instructions and `xchg` with memory always are; plain loads and stores where `idioms`
//! finds them, where the machine asked for it ([`refrain_vm::RecordingEngine::watch`]), and, in a replay,
//! exactly where the recording watched. Where no function is known, a load is watched whose
//! operand is that of a locked instruction that follows shortly.

use super::desc::Operand;
use super::text::Text;
use crate::accesses::bit_register;
pub(super) use crate::accesses::is_locked;
use crate::common::{self, has_memory};
use iced_x86::{
    Decoder, DecoderOptions, EncodingKind, Instruction, InstructionInfoFactory, MemorySize,
    Mnemonic, OpAccess, OpKind, Register,
};
use memchr::memchr3_iter;
use refrain_trace::fixed::FixedSet;
use refrain_vm::OrderedKind;

/// How many instructions behind a load may be its locked partner.
const LOOKAHEAD: usize = 24;

/// Operands of locked instructions of a function, and which others may well name the same words:
/// the operands are the same, or the same field of something that another register points to.
#[derive(Default)]
pub(super) struct Operands {
    operands: FixedSet<(Register, Register, u32, u64, Register)>,
    fields: FixedSet<(u64, Register)>,
}

impl Operands {
    pub(super) fn add(&mut self, locked: &Instruction) {
        self.operands.insert(named(locked));
        self.fields.extend(field(locked));
    }

    pub(super) fn look_like(&self, other: &Instruction) -> bool {
        let is_empty = self.operands.is_empty();
        !is_empty
            && (self.operands.contains(&named(other))
                || field(other).is_some_and(|field| self.fields.contains(&field)))
    }
}

/// What a memory operand says.
fn named(instruction: &Instruction) -> (Register, Register, u32, u64, Register) {
    let i = instruction;
    let (scale, offset) = (i.memory_index_scale(), i.memory_displacement64());
    (i.memory_base(), i.memory_index(), scale, offset, i.segment_prefix())
}

/// Which field of what a register points to a memory operand is.
fn field(instruction: &Instruction) -> Option<(u64, Register)> {
    let base = instruction.memory_base();
    let points = base != Register::None
        && !matches!(base.full_register(), Register::RSP | Register::RIP)
        && instruction.memory_index() == Register::None;
    (points && instruction.memory_displacement64() != 0)
        .then(|| (instruction.memory_displacement64(), instruction.segment_prefix()))
}

/// The window of code that a block is made from, for looking ahead.
pub(super) struct Window<'a> {
    text: &'a Text,
    /// Made when somebody looks ahead, which is seldom.
    decoder: Option<Decoder<'a>>,
    /// As far as anyone has looked.
    decoded: Vec<Instruction>,
}

impl<'a> Window<'a> {
    pub(super) fn new(text: &'a Text) -> Window<'a> {
        Window { text, decoder: None, decoded: Vec::new() }
    }

    /// Where it begins.
    pub(super) fn start(&self) -> u64 {
        self.text.pc
    }

    /// Whether a locked instruction with the operand of `load`, the `index`th, follows it.
    pub(super) fn has_partner(&mut self, index: usize, load: &Instruction) -> bool {
        let rest = self.following(index, (load.next_ip() - self.text.pc) as usize);
        if !rest.iter().any(|other| is_locked(other) && same_operand(load, other)) {
            return false;
        }
        let mut factory = InstructionInfoFactory::new();
        let mut overwrites = |instruction: &Instruction| {
            factory.info(instruction).used_registers().iter().any(|used| {
                let full = used.register().full_register();
                !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
                    && (full == load.memory_base().full_register()
                        || full == load.memory_index().full_register())
            })
        };
        if overwrites(load) {
            return false;
        }
        for other in rest {
            if is_locked(other) && same_operand(load, other) {
                return true;
            }
            if other.mnemonic() == Mnemonic::Ret || overwrites(other) {
                return false;
            }
        }
        false
    }

    /// The instructions behind the `index`th, which ends at `offset`; none if no byte of them
    /// can begin a locked instruction.
    fn following(&mut self, index: usize, offset: usize) -> &[Instruction] {
        const AVERAGE: usize = 6;
        let (code, pc) = (self.text.all(), self.text.pc);
        let end = code.len().min(offset + LOOKAHEAD * AVERAGE);
        if !may_hold_locked(&code[offset..end]) {
            return &[];
        }
        let decoder = self
            .decoder
            .get_or_insert_with(|| Decoder::with_ip(64, code, pc, DecoderOptions::NONE));
        while self.decoded.len() < index + 1 + LOOKAHEAD && decoder.can_decode() {
            self.decoded.push(decoder.decode());
        }
        let end = self.decoded.len().min(index + 1 + LOOKAHEAD);
        self.decoded.get(index + 1..end).unwrap_or(&[])
    }
}

/// Whether some byte may be where a locked instruction begins; `false` is certain.
pub(super) fn may_hold_locked(code: &[u8]) -> bool {
    may_begin_locked(code).next().is_some()
}

/// The lock prefix, which compilers write before all others.
pub(super) const LOCK: u8 = 0xf0;
/// The opcodes of `xchg`, which locks without the prefix.
pub(super) const XCHG: [u8; 2] = [0x86, 0x87];

/// Where in some bytes of code a locked instruction may begin; nowhere else does one.
pub(super) fn may_begin_locked(code: &[u8]) -> impl Iterator<Item = usize> + '_ {
    memchr3_iter(LOCK, XCHG[0], XCHG[1], code)
}

/// Whether an instruction writes its one explicit operand of at most eight bytes from registers, locked
/// instructions apart.
pub(super) fn is_store(instruction: &Instruction) -> bool {
    if !is_encoded(instruction)
        || instruction.op_count() == 0
        || instruction.op0_kind() != OpKind::Memory
        || !is_word(instruction.memory_size())
        || is_locked(instruction)
        || bit_register(instruction).is_some()
    {
        return false;
    }
    let mut registers = (1..instruction.op_count())
        .filter(|&index| instruction.op_kind(index) == OpKind::Register)
        .map(|index| instruction.op_register(index));
    let writes = |access| matches!(access, OpAccess::Write | OpAccess::ReadWrite);
    registers.all(is_held) && memory_access(instruction).is_some_and(writes)
}

/// Whether all that an instruction does with memory is to read its one explicit operand of at
/// most eight bytes into or against registers, or onto the stack (an argument behind the sixth).
pub(super) fn is_load(instruction: &Instruction) -> bool {
    if is_push_of_memory(instruction) {
        return instruction.memory_size() == MemorySize::UInt64;
    }
    let operands = instruction.op_count();
    let kinds = || (0..operands).map(|index| instruction.op_kind(index));
    if operands < 2
        || !is_encoded(instruction)
        || !is_word(instruction.memory_size())
        || kinds().filter(|&kind| kind == OpKind::Memory).count() != 1
        || bit_register(instruction).is_some()
    {
        return false;
    }
    let held = (0..operands)
        .filter(|&index| instruction.op_kind(index) == OpKind::Register)
        .all(|index| is_held(instruction.op_register(index)));
    // A conditional move reads in any case, whatever the information says.
    let reads = |access| matches!(access, OpAccess::Read | OpAccess::CondRead);
    held && memory_access(instruction).is_some_and(reads)
}

fn is_push_of_memory(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Push && instruction.op0_kind() == OpKind::Memory
}

/// What an instruction with an explicit operand in memory does there, if that is all that it does
/// with memory.
fn memory_access(instruction: &Instruction) -> Option<OpAccess> {
    common::memory_access(instruction).or_else(|| {
        let mut factory = InstructionInfoFactory::new();
        match factory.info(instruction).used_memory() {
            [used] => Some(used.access()),
            _ => None,
        }
    })
}

/// Whether an operand in memory is a number, or the half of a vector that `movlps` and the like move.
fn is_word(size: MemorySize) -> bool {
    use MemorySize::*;
    let is_integer =
        matches!(size, UInt8 | UInt16 | UInt32 | UInt64 | Int8 | Int16 | Int32 | Int64);
    is_integer || matches!(size, Float32 | Float64 | Packed64_Float32)
}

/// Whether a register holds what is loaded and stored: a number, or a vector of them.
fn is_held(register: Register) -> bool {
    register.is_gpr() || register.is_xmm()
}

/// Whether the memory operand of an instruction is all that its encoding says of memory.
fn is_encoded(instruction: &Instruction) -> bool {
    match instruction.encoding() {
        EncodingKind::Legacy => true,
        // Floating-point numbers alone: others have `mulx` and the like.
        EncodingKind::VEX => {
            matches!(instruction.memory_size(), MemorySize::Float32 | MemorySize::Float64)
        }
        _ => false,
    }
}

/// A load that may be part of an idiom if it reads the right word. Words on the thread's own
/// stack and in its thread-local storage are not looked for.
pub(super) fn is_candidate(instruction: &Instruction) -> bool {
    may_be_shared(instruction) && is_load(instruction)
}

/// Whether an operand in memory lies neither on the thread's own stack, as far as its pointer tells, nor in the
/// thread-local storage.
pub(super) fn may_be_shared(instruction: &Instruction) -> bool {
    instruction.memory_base().full_register() != Register::RSP
        && !matches!(instruction.segment_prefix(), Register::FS | Register::GS)
}

/// Whether an instruction only compares its operands.
pub(super) fn compares(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test)
}

/// Whether an instruction may write its first operand, and that is in memory.
pub(super) fn writes_memory(instruction: &Instruction) -> bool {
    // Compilers fill gaps with a `nop` that has an operand.
    let touches = !compares(instruction)
        && instruction.mnemonic() != Mnemonic::Nop
        && !is_push_of_memory(instruction);
    instruction.op0_kind() == OpKind::Memory && touches
}

/// Whether an instruction's operand in memory is named by the stack or the frame pointer.
pub(super) fn is_on_stack(instruction: &Instruction) -> bool {
    matches!(instruction.memory_base(), Register::RSP | Register::RBP)
}

/// A load from the stack that names it by its pointer.
pub(super) fn is_stack_load(instruction: &Instruction) -> bool {
    instruction.memory_base() == Register::RSP
        && instruction.segment_prefix() == Register::None
        && is_load(instruction)
}

/// The loads that a lookahead is worth for: those that compilers make of atomic loads.
pub(super) fn may_have_partner(instruction: &Instruction) -> bool {
    let memory = |index| instruction.op_kind(index) == OpKind::Memory;
    match instruction.mnemonic() {
        Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd => memory(1),
        Mnemonic::Cmp | Mnemonic::Test => memory(0) || memory(1),
        _ => false,
    }
}

/// Whether two memory operands are written alike.
pub(super) fn same_operand(a: &Instruction, b: &Instruction) -> bool {
    named(a) == named(b)
}

pub(super) fn operand(instruction: &Instruction, kind: OrderedKind) -> Operand {
    Operand {
        size: memory_size(instruction),
        kind,
        fs: instruction.segment_prefix() == Register::FS,
        bit_register: bit_register(instruction),
        found: found(instruction),
    }
}

/// The register that holds what a locked instruction has found in its word, once it is executed.
pub(super) fn found(instruction: &Instruction) -> Option<u8> {
    let register = match instruction.mnemonic() {
        Mnemonic::Xchg | Mnemonic::Xadd => {
            let is_first = instruction.op0_kind() == OpKind::Register;
            instruction.op_register(u32::from(!is_first))
        }
        Mnemonic::Cmpxchg => Register::RAX,
        _ => return None,
    };
    let is_upper = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
    let has_memory = has_memory(instruction);
    (has_memory && !is_upper).then(|| register.full_register().number() as u8)
}

fn memory_size(instruction: &Instruction) -> u8 {
    match instruction.memory_size() {
        // Bit strings and the like have no size of their own: the register operand's counts.
        MemorySize::Unknown => instruction.op1_register().size() as u8,
        size => size.size() as u8,
    }
}
