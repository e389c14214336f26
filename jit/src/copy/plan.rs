//! The accesses of a block, and what its thread looks up before it makes them.
//!
//! A block is executed from its start to its end or not at all, but for faults. So its accesses can
//! share one window, and those whose operands lie near each other share a look: operands with the
//! same registers, which are not written between them, within as many bytes as a line has. A look
//! that needs no register that the block changes before it is made where the window is opened.

use super::classify::{Action, classify};
use crate::accesses::{Memory, constant_address, memory_of};
use crate::common::each_written;
use iced_x86::{
    Decoder, DecoderOptions, EncodingKind, Instruction, InstructionInfoFactory, Mnemonic, OpKind,
    Register,
};
use refrain_vm::{OrderedKind, Processor};

/// No more bytes than a line has: they lie in two lines at most.
const REACH: i64 = 64;

/// A look for some accesses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// Before which instruction of the block it is made.
    pub(super) at: usize,
    /// An instruction with such an operand.
    pub(super) instruction: Instruction,
    /// The first byte, as a displacement in that operand.
    pub(super) start: i64,
    /// How many.
    pub(super) len: u8,
    /// Whether one of the accesses writes.
    pub(super) write: bool,
    /// The accesses have the same operand, and are aligned.
    aligned: bool,
    /// What its operands have in common, and the registers' values among those that they had.
    base: Base,
}

impl Look {
    /// The first byte's address, if that is known.
    pub(super) fn address(&self) -> Option<u64> {
        let of_thread = self.instruction.segment_prefix() == Register::FS;
        (constant_address(&self.instruction).is_some() && !of_thread).then_some(self.start as u64)
    }

    /// Whether what is looked up lies in one line for certain.
    pub(super) fn in_one_line(&self) -> bool {
        let line = |address: u64| address / REACH as u64;
        let last = |start: u64| start.wrapping_add(u64::from(self.len) - 1);
        self.aligned || self.address().is_some_and(|start| line(start) == line(last(start)))
    }
}

/// The registers of an operand, and which of their values in the block it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Base {
    registers: [(Register, u32); 2],
    scale: u32,
    segment: Register,
}

/// See the module's documentation.
#[derive(Default, Debug)]
pub(super) struct Plan {
    /// What each instruction does with memory.
    memory: Vec<Memory>,
    /// Which instructions may change rcx.
    change_rcx: Vec<bool>,
    looks: Vec<Look>,
    accesses: usize,
}

impl Plan {
    /// The plan for the block that begins with `code`, at `pc`; it ends at the latest before the
    /// instruction for whose address and number `ends` says so.
    pub(super) fn make(
        &mut self,
        code: &[u8],
        pc: u64,
        processor: Processor,
        ends: impl Fn(u64, usize) -> bool,
    ) {
        self.memory.clear();
        self.change_rcx.clear();
        self.looks.clear();
        self.accesses = 0;
        let mut decoder = Decoder::with_ip(64, code, pc, DecoderOptions::NONE);
        let mut factory = InstructionInfoFactory::new();
        let mut instruction = Instruction::default();
        let mut values = Values::default();
        let (mut open, mut rcx) = (None, 0);
        loop {
            let index = self.memory.len();
            if index > 0 && ends(decoder.ip(), index) {
                return;
            }
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                return;
            }
            let memory = memory_of(&instruction);
            if memory == Memory::Spans {
                return;
            }
            self.memory.push(memory);
            self.change_rcx.push(true);
            if let Memory::Operand(kind, size) = memory {
                self.accesses += 1;
                let (opened_at, opened) = *open.get_or_insert((index, values));
                let look = look(&instruction, index, (kind, size), &values);
                self.join(look, opened_at, &opened);
            }
            if classify(&instruction, processor) != Action::Copy {
                return;
            }
            each_written(&instruction, &mut factory, |register| values.change(register));
            let changes = values.of(Register::RCX) != rcx;
            self.change_rcx[index] = changes;
            rcx = values.of(Register::RCX);
        }
    }

    /// Has an access looked up with others, or by itself.
    fn join(&mut self, mut look: Look, opened_at: usize, opened: &Values) {
        let is_far = |other: &Look| {
            let start = other.start.min(look.start);
            let end = (other.start + i64::from(other.len)).max(look.start + i64::from(look.len));
            end - start > REACH
        };
        let near = self.looks.iter_mut().find(|it| it.base == look.base && !is_far(it));
        let Some(other) = near else {
            if look.base.registers.iter().all(|&(register, value)| opened.of(register) == value) {
                look.at = opened_at;
            }
            self.looks.push(look);
            return;
        };
        let end = (other.start + i64::from(other.len)).max(look.start + i64::from(look.len));
        let same = (other.start, other.len) == (look.start, look.len);
        other.start = other.start.min(look.start);
        other.len = (end - other.start) as u8;
        other.write |= look.write;
        other.aligned &= look.aligned && same;
    }

    /// How many accesses the block has.
    pub(super) fn accesses(&self) -> usize {
        self.accesses
    }

    /// What an instruction of the block does with memory, as far as the plan goes.
    pub(super) fn memory(&self, index: usize) -> Option<Memory> {
        self.memory.get(index).copied()
    }

    /// Whether an instruction of the block may change rcx.
    pub(super) fn changes_rcx(&self, index: usize) -> bool {
        self.change_rcx.get(index).is_none_or(|&changes| changes)
    }

    /// The looks that are made before an instruction.
    pub(super) fn looks_at(&self, index: usize) -> impl Iterator<Item = Look> + '_ {
        self.looks.iter().copied().filter(move |look| look.at == index)
    }
}

/// A block whose accesses are counted at once, while it is under construction.
#[derive(Default)]
pub(super) struct Every {
    pub(super) plan: Plan,
    /// Accesses that were emitted so far.
    pub(super) made: usize,
    /// What rcx is has been put into its slot before, in the block.
    pub(super) rcx_is_saved: bool,
    /// Where the number of the block's accesses is to be filled in: among the rare exits or not, and
    /// how many of them to leave out, times a sign.
    pub(super) counts: Vec<(bool, u64, i32, usize)>,
    /// Short jumps that want to go to rare exits.
    pub(super) jumps: Vec<(u64, u64)>,
    /// Where the block is executed carefully from.
    pub(super) careful: Vec<u64>,
}

/// How often the block has changed each register so far.
#[derive(Clone, Copy, Default)]
struct Values([u32; 16]);

impl Values {
    fn change(&mut self, register: Register) {
        if register.is_gpr() {
            self.0[register.full_register().number()] += 1;
        }
    }

    fn of(&self, register: Register) -> u32 {
        if register.is_gpr() { self.0[register.full_register().number()] } else { 0 }
    }
}

/// The look for one access.
fn look(
    instruction: &Instruction,
    index: usize,
    (kind, size): (OrderedKind, u8),
    values: &Values,
) -> Look {
    let constant = constant_address(instruction).is_some();
    let [base, index_register] = match constant {
        true => [Register::None; 2],
        false => [instruction.memory_base(), instruction.memory_index()],
    };
    let narrow = [base, index_register].iter().any(|register| register.size() == 4);
    let valued = |register| (register, values.of(register));
    let mut registers = [valued(base), valued(index_register)];
    if narrow {
        // Such an address wraps at 4 GiB: it is near no other one for certain.
        registers[0].1 ^= (index as u32 + 1) << 16;
    }
    Look {
        at: index,
        instruction: *instruction,
        start: instruction.memory_displacement64() as i64,
        len: size,
        write: kind == OrderedKind::Write,
        aligned: is_within_a_line(instruction, size),
        base: Base {
            registers,
            scale: instruction.memory_index_scale(),
            segment: match instruction.segment_prefix() {
                Register::FS => Register::FS,
                _ => Register::None,
            },
        },
    }
}

/// Whether an operand cannot lie in two lines: one byte, or an instruction of SSE that faults unless
/// its operand is aligned.
pub(super) fn is_within_a_line(instruction: &Instruction, size: u8) -> bool {
    use Mnemonic::*;
    let may_be_unaligned = matches!(instruction.mnemonic(), Movups | Movupd | Movdqu | Lddqu);
    let of_vectors = size == 16
        && instruction.encoding() == EncodingKind::Legacy
        && (0..instruction.op_count()).any(|at| {
            instruction.op_kind(at) == OpKind::Register && instruction.op_register(at).is_xmm()
        });
    size == 1 || of_vectors && !may_be_unaligned
}
