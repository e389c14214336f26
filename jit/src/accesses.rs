//! What an instruction does with memory, for engines that order every access
//! ([`refrain_vm::EngineConfig::every_access`]). Both engines count accesses by these rules, so that an
//! access has the same number in both.
//!
//! All operands in memory are accesses, and so is each branch of code that the guest has generated
//! (`copy/generated`). What `push`, `pop`, `call`, `ret`, `enter` and `leave` do to the stack by themselves
//! is no access. An instruction that has several operands in memory, or others than its encoding names,
//! is executed by itself: string instructions (page by page, if they repeat), gathers, instructions of
//! AVX-512 under a mask, `fxsave` and its like. `xsave` and `xrstor`, which the machine executes, on the
//! thread's own stack as a rule, are no accesses.

use crate::common::{self, has_memory};
use crate::emulated::is_of_state;
use crate::lanes;
use crate::values::value_of;
use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, MemorySize, Mnemonic, OpAccess, OpKind,
    Register, UsedMemory,
};
use refrain_trace::Access;
use refrain_vm::layout::PAGE;
use refrain_vm::{Context, OrderedKind, Span, reg};

/// Bytes of the largest operand that is looked up in line.
const LARGEST: usize = 64;
/// Bytes that instructions may access whose operand has no size.
const LARGEST_STATE: u64 = 4096;

/// What an instruction does with memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    /// Nothing that is looked at.
    None,
    /// It accesses its operand.
    Operand(OrderedKind, u8),
    /// Something else.
    Spans,
}

/// Whether an instruction accesses the stack by itself, and nothing else unless it has an operand in
/// memory.
fn is_of_stack(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    instruction.is_stack_instruction()
        || matches!(
            instruction.mnemonic(),
            Call | Ret | Enter | Leave | Push | Pop | Pushfq | Popfq
        )
}

pub(crate) fn memory_of(instruction: &Instruction) -> Memory {
    let size = instruction.memory_size().size() as u8;
    match common::memory_access(instruction) {
        Some(OpAccess::None) => Memory::None,
        Some(OpAccess::Read) => Memory::Operand(OrderedKind::Read, size),
        Some(_) => Memory::Operand(OrderedKind::Write, size),
        None => memory_by_table(instruction),
    }
}

fn memory_by_table(instruction: &Instruction) -> Memory {
    if is_of_state(instruction) {
        return Memory::None;
    }
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_memory();
    let accessed = |access| !matches!(access, OpAccess::None | OpAccess::NoMemAccess);
    if !used.iter().any(|memory| accessed(memory.access())) {
        return Memory::None;
    }
    let operands = 0..instruction.op_count();
    let named = operands.filter(|&at| instruction.op_kind(at) == OpKind::Memory).count();
    if named == 0 && is_of_stack(instruction) {
        return Memory::None;
    }
    let size = instruction.memory_size().size();
    let simple = named == 1
        && !instruction.is_string_instruction()
        && !instruction.is_vsib()
        && bit_register(instruction).is_none()
        && (1..=LARGEST).contains(&size)
        && instruction.memory_size() != MemorySize::Unknown
        && !lanes::are_under_mask(instruction);
    if !simple {
        return Memory::Spans;
    }
    let reads_only = |access| matches!(access, OpAccess::Read | OpAccess::CondRead);
    let mut own = used.iter().filter(|memory| is_operand(instruction, memory));
    let kind = if instruction.flow_control() != FlowControl::Next {
        OrderedKind::Target
    } else if own.all(|memory| reads_only(memory.access())) {
        OrderedKind::Read
    } else {
        OrderedKind::Write
    };
    // The address of `pop [rsp + x]` is that after the pop.
    let pops = instruction.mnemonic() == Mnemonic::Pop
        && instruction.memory_base().full_register() == Register::RSP;
    Memory::Operand(kind, size as u8 + if pops { 8 } else { 0 })
}

/// Whether the operand's address is known without any register.
pub(crate) fn constant_address(instruction: &Instruction) -> Option<u64> {
    let without_registers =
        instruction.memory_base() == Register::None && instruction.memory_index() == Register::None;
    (without_registers || instruction.is_ip_rel_memory_operand())
        .then(|| instruction.memory_displacement64())
}

/// Whether a register's worth of memory is all that an instruction accesses, at its operand's address.
pub(crate) fn fits_register(instruction: &Instruction) -> bool {
    bit_register(instruction).is_none() && instruction.memory_size().size() <= size_of::<u64>()
}

/// Whether an instruction may go on somewhere else than behind itself, without a signal.
pub(crate) fn transfers_control(instruction: &Instruction) -> bool {
    use FlowControl::*;
    let branches = matches!(
        instruction.flow_control(),
        UnconditionalBranch | ConditionalBranch | IndirectBranch | Call | IndirectCall | Return
    );
    branches && instruction.mnemonic() != Mnemonic::Syscall
}

/// Whether this is what the instruction's operand names, and not the stack.
fn is_operand(instruction: &Instruction, memory: &UsedMemory) -> bool {
    let base = match instruction.is_ip_rel_memory_operand() {
        true => Register::None,
        false => instruction.memory_base(),
    };
    let same = memory.index() == instruction.memory_index()
        && memory.displacement() == instruction.memory_displacement64()
        && (memory.base() == base || memory.base() == instruction.memory_base());
    same || !is_of_stack(instruction)
}

/// The register with the bit offset of `bts [mem], reg` and its kind.
pub(crate) fn bit_register(instruction: &Instruction) -> Option<u8> {
    let is_bit_string = matches!(
        instruction.mnemonic(),
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
    ) && instruction.op1_kind() == OpKind::Register;
    is_bit_string.then(|| instruction.op1_register().number() as u8)
}

/// How far from its operand a bit string's instruction accesses memory: the register with the bit
/// offset has so many bytes, and holds `value`.
pub(crate) fn bit_offset(size: u8, value: u64) -> u64 {
    let bytes = match size {
        2 => (i64::from(value as i16) >> 4) * 2,
        4 => (i64::from(value as i32) >> 5) * 4,
        _ => (value as i64 >> 6) * 8,
    };
    bytes as u64
}

/// A part of a repeated instruction that is executed by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// Repetitions of the whole.
    total: u64,
    /// Repetitions of the part.
    now: u64,
    /// It also ends where ZF is this, if it compares.
    ends_at: Option<bool>,
}

impl Part {
    /// Sets rcx, so that the instruction ends after the repetitions of this part.
    pub(crate) fn begin(self, context: &mut Context) {
        context.gpr[reg::RCX] = self.now;
    }

    /// The part has been executed; whether the instruction goes on, at `rip`.
    pub(crate) fn end(self, context: &mut Context) -> bool {
        const ZF: u64 = 1 << 6;
        let left = context.gpr[reg::RCX];
        context.gpr[reg::RCX] = self.total - (self.now - left);
        let ended = self.ends_at.is_some_and(|zero| (context.rflags & ZF != 0) == zero);
        left == 0 && self.now < self.total && !ended
    }
}

/// The bytes that the instruction accesses, or the first part of it that is executed by itself.
pub(crate) fn spans_of(instruction: &Instruction, context: &Context) -> (Vec<Span>, Option<Part>) {
    if instruction.is_string_instruction() {
        return string_spans(instruction, context, PAGE);
    }
    if let Some(spans) = lanes::spans(instruction, context) {
        return (spans, None);
    }
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_memory();
    let mut spans = Vec::new();
    for memory in used.iter().filter(|memory| is_operand(instruction, memory)) {
        let write = !matches!(memory.access(), OpAccess::Read | OpAccess::CondRead);
        let size = match memory.memory_size().size() as u64 {
            0 => LARGEST_STATE,
            size => size,
        };
        let elements = match memory.vsib_size() {
            0 => 1,
            size => memory.index().size() / size as usize,
        };
        for element in 0..elements {
            let value = |register: Register, at, size| value_of(context, register, at, size);
            let Some(start) = memory.virtual_address(element, value) else { continue };
            let (start, len) = match bit_register(instruction) {
                Some(register) => {
                    let size = instruction.op1_register().size() as u8;
                    let offset = bit_offset(size, context.gpr[usize::from(register)]);
                    (start.wrapping_add(offset), size.into())
                }
                None => (start, size),
            };
            spans.push(Span { start, len, write });
        }
    }
    (spans, None)
}

/// Whether an instruction does nothing but move 16 bytes between memory and a vector register. An event
/// holds eight bytes of an operand, so a replay cannot take such a load from the trace: where it is known to
/// race, it takes a turn among the stores of its word, as a locked instruction does.
pub(crate) fn is_wide(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        instruction.mnemonic(),
        Movaps
            | Movapd
            | Movups
            | Movupd
            | Movdqa
            | Movdqu
            | Lddqu
            | Vmovaps
            | Vmovapd
            | Vmovups
            | Vmovupd
            | Vmovdqa
            | Vmovdqu
            | Vlddqu
    ) && has_memory(instruction)
        && instruction.memory_size().size() == 16
}

/// Locked, explicitly or because it is an `xchg` with memory.
pub(crate) fn is_locked(instruction: &Instruction) -> bool {
    instruction.has_lock_prefix()
        || instruction.mnemonic() == Mnemonic::Xchg && instruction.op0_kind() == OpKind::Memory
}

/// An instruction's address in a record.
pub(crate) fn logged_pc(pc: u64) -> u32 {
    u32::try_from(pc).unwrap_or(0)
}

/// The records of what an instruction has accessed.
pub(crate) fn records(instruction: &Instruction, mut spans: Vec<Span>) -> Vec<Access> {
    let pc = logged_pc(instruction.ip());
    let pops = instruction.mnemonic() == Mnemonic::Pop;
    let writes_only =
        pops || instruction.is_string_instruction() || lanes::of(instruction).is_some();
    let record = |span: &Span| {
        let kind = match (span.write, is_locked(instruction)) {
            (true, true) => Access::ATOMIC,
            (true, false) if writes_only => Access::WRITE,
            (true, false) => Access::READ | Access::WRITE,
            (false, _) => Access::READ,
        };
        Access { address: span.start, pc, size: span.len as u16, kind }
    };
    // What is copied is read first.
    spans.sort_by_key(|span| span.write);
    spans.iter().filter(|span| span.len > 0).map(record).collect()
}

/// A string instruction with a repeat prefix that means something.
pub(crate) fn is_repeated(i: &Instruction) -> bool {
    i.is_string_instruction() && (i.has_rep_prefix() || i.has_repne_prefix())
}

/// A string instruction that moves, stores or loads, and compares nothing.
pub(crate) fn moves_strings(i: &Instruction) -> bool {
    use Mnemonic::*;
    i.is_string_instruction()
        && matches!(
            i.mnemonic(),
            Movsb
                | Movsw
                | Movsd
                | Movsq
                | Stosb
                | Stosw
                | Stosd
                | Stosq
                | Lodsb
                | Lodsw
                | Lodsd
                | Lodsq
        )
}

/// A string instruction that compares: repeated, it ends where ZF says so.
pub(crate) fn compares(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(i.mnemonic(), Cmpsb | Cmpsw | Cmpsd | Cmpsq | Scasb | Scasw | Scasd | Scasq)
}

/// The same for a string instruction: as many repetitions as fit into `most` bytes, or one.
pub(crate) fn string_spans(
    instruction: &Instruction,
    context: &Context,
    most: u64,
) -> (Vec<Span>, Option<Part>) {
    const DF: u64 = 1 << 10;
    let size = instruction.memory_size().size().max(1) as u64;
    let repeats = is_repeated(instruction);
    let total = if repeats { context.gpr[reg::RCX] } else { 1 };
    let now = total.min((most / size).max(1));
    let backwards = context.rflags & DF != 0;
    let compares = compares(instruction);
    let mut spans = Vec::new();
    for at in 0..instruction.op_count() {
        use OpKind::{
            MemoryESDI, MemoryESEDI, MemoryESRDI, MemorySegESI, MemorySegRSI, MemorySegSI,
        };
        let (start, destination) = match instruction.op_kind(at) {
            MemoryESRDI | MemoryESEDI | MemoryESDI => (context.gpr[reg::RDI], true),
            MemorySegRSI | MemorySegESI | MemorySegSI => (context.gpr[reg::RSI], false),
            _ => continue,
        };
        let len = now * size;
        let start = if backwards { start.wrapping_add(size).wrapping_sub(len) } else { start };
        spans.push(Span { start, len, write: destination && !compares });
    }
    let ends_at = compares.then(|| instruction.has_repne_prefix());
    (spans, repeats.then_some(Part { total, now, ends_at }))
}

#[cfg(test)]
mod tests {
    use super::{memory_by_table, memory_of};
    use crate::common::tests::of_all_kinds;

    #[test]
    fn the_short_way_says_what_the_table_says() {
        for i in of_all_kinds() {
            assert_eq!(memory_of(&i), memory_by_table(&i), "{i}");
        }
    }
}
