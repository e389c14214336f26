//! Which instructions must be ordered against other threads.
//!
//! Locked instructions and `xchg` with memory always. A plain load only where it belongs to an
//! idiom that waits for a word or tries to take it: `while (load != 0) cmpxchg`, as in glibc's
//! `__lll_lock_wait_private` and Rust's futex mutex. Such a load has the same memory operand as
//! a locked instruction a little further down.

use super::desc::Operand;
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, MemorySize, Mnemonic, OpAccess,
    OpKind, Register,
};
use refrain_vm::OrderedKind;

/// How many instructions behind a load may be its locked partner; 0 turns the idiom off.
const LOOKAHEAD: usize = 24;

/// The window of code that a block is made from, for looking ahead.
pub(super) struct Window<'a> {
    code: &'a [u8],
    pc: u64,
    decoder: Decoder<'a>,
    /// As far as anyone has looked.
    decoded: Vec<Instruction>,
}

impl<'a> Window<'a> {
    /// A window of `code` at `pc`.
    pub(super) fn new(code: &'a [u8], pc: u64) -> Window<'a> {
        let decoder = Decoder::with_ip(64, code, pc, DecoderOptions::NONE);
        Window { code, pc, decoder, decoded: Vec::new() }
    }

    /// How `instruction`, the `index`th of the window, is to be ordered, if at all.
    pub(super) fn ordered(&mut self, index: usize, instruction: &Instruction) -> Option<Operand> {
        let kind = if is_locked(instruction) {
            OrderedKind::ReadModifyWrite
        } else if LOOKAHEAD > 0
            && is_plain_load(instruction)
            && self.has_partner(index, instruction)
        {
            OrderedKind::Load
        } else {
            return None;
        };
        Some(Operand {
            size: memory_size(instruction),
            kind,
            fs: instruction.segment_prefix() == Register::FS,
            bit_register: bit_register(instruction),
        })
    }

    /// Whether a locked instruction with the operand of `load`, the `index`th, follows it.
    fn has_partner(&mut self, index: usize, load: &Instruction) -> bool {
        let rest = self.following(index, (load.next_ip() - self.pc) as usize);
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
        let end = self.code.len().min(offset + LOOKAHEAD * AVERAGE);
        if !self.code[offset..end].iter().any(|byte| matches!(byte, 0xf0 | 0x86 | 0x87)) {
            return &[];
        }
        while self.decoded.len() < index + 1 + LOOKAHEAD && self.decoder.can_decode() {
            self.decoded.push(self.decoder.decode());
        }
        let end = self.decoded.len().min(index + 1 + LOOKAHEAD);
        self.decoded.get(index + 1..end).unwrap_or(&[])
    }
}

/// Locked, explicitly or because it is an `xchg` with memory.
pub(super) fn is_locked(instruction: &Instruction) -> bool {
    instruction.has_lock_prefix()
        || instruction.mnemonic() == Mnemonic::Xchg && instruction.op0_kind() == OpKind::Memory
}

pub(super) fn is_plain_load(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd => {
            instruction.op1_kind() == OpKind::Memory
        }
        Mnemonic::Cmp | Mnemonic::Test => {
            instruction.op0_kind() == OpKind::Memory || instruction.op1_kind() == OpKind::Memory
        }
        _ => false,
    }
}

fn same_operand(a: &Instruction, b: &Instruction) -> bool {
    a.memory_base() == b.memory_base()
        && a.memory_index() == b.memory_index()
        && a.memory_index_scale() == b.memory_index_scale()
        && a.memory_displacement64() == b.memory_displacement64()
        && a.segment_prefix() == b.segment_prefix()
}

fn memory_size(instruction: &Instruction) -> u8 {
    match instruction.memory_size() {
        // Bit strings and the like have no size of their own: the register operand's counts.
        MemorySize::Unknown => instruction.op1_register().size() as u8,
        size => size.size() as u8,
    }
}

/// The register with the bit offset of `bts [mem], reg` and its kind.
fn bit_register(instruction: &Instruction) -> Option<u8> {
    let is_bit_string =
        matches!(instruction.mnemonic(), Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc)
            && instruction.op1_kind() == OpKind::Register;
    is_bit_string.then(|| instruction.op1_register().number() as u8)
}
