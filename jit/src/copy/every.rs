//! Every access: translated code that looks whether its thread may make an access by itself, and
//! counts it ([`refrain_vm::EngineConfig::every_access`]).
//!
//! In a recording, an access becomes this:
//!
//! ```text
//!       mov [rcx slot], rcx
//!       lea rcx, [operand]
//!       pext rcx, rcx, [line mask]     the line's index; changes no flag
//!       mov [window], 1
//!       movzx ecx, [rcx + table]       1 if the thread may; the same for the last byte's line
//!       lea ecx, [rcx - 1]
//!       jrcxz may
//!       ...                            asks the machine, makes the access, tells the machine
//!       jmp done
//! may:  rcx = [count] + 1, [count] = rcx
//!       mov rcx, [rcx slot]
//!       the instruction
//!       mov [window], 0
//! done:
//! ```
//!
//! In a replay the look is whether accesses are left before the thread's next event, which the
//! machine performs in the access' place:
//!
//! ```text
//!       mov [rcx slot], rcx
//!       mov rcx, [count]
//!       jrcxz event
//!       [count] = rcx - 1
//!       mov rcx, [rcx slot]
//!       the instruction
//!       jmp done
//! event: leave
//! done:
//! ```
//!
//! # Which accesses
//! All operands in memory; not what `push`, `pop`, `call`, `ret`, `enter` and `leave` do to the stack
//! by themselves. What has several operands in memory, or others than its encoding names, leaves
//! translated code: string instructions (page by page, if they repeat), gathers, `xsave` and its like.

use super::desc::{Desc, Kind, Operand};
use super::emit::{self, RCX, RDX};
use super::ordered::{bit_offset, bit_register};
use super::translate::{Flow, Place};
use super::translator::Translator;
use super::watch::operand_address;
use iced_x86::{
    EncodingKind, Instruction, InstructionInfoFactory, MemorySize, Mnemonic, OpAccess, OpKind,
    Register, UsedMemory,
};
use refrain_vm::layout::PAGE;
use refrain_vm::{Context, OrderedKind, Span, reg};

/// Bytes of the largest operand that is looked up in line.
const LARGEST: usize = 64;
/// Bytes that `xsave` and its like may access.
const LARGEST_STATE: u64 = 4096;

/// What an instruction does with memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
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

fn memory_of(instruction: &Instruction) -> Memory {
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
        && instruction.memory_size() != MemorySize::Unknown;
    if !simple {
        return Memory::Spans;
    }
    let reads_only = |access| matches!(access, OpAccess::Read | OpAccess::CondRead);
    let own = used.iter().filter(|memory| is_operand(instruction, memory));
    let kind = match own.clone().all(|memory| reads_only(memory.access())) {
        true => OrderedKind::Read,
        false => OrderedKind::Write,
    };
    // The address of `pop [rsp + x]` is that after the pop.
    let pops = instruction.mnemonic() == Mnemonic::Pop
        && instruction.memory_base().full_register() == Register::RSP;
    Memory::Operand(kind, size as u8 + if pops { 8 } else { 0 })
}

/// Whether an operand cannot lie in two lines: one byte, or an instruction of SSE that faults unless
/// its operand is aligned.
fn is_within_a_line(instruction: &Instruction, operand: Operand) -> bool {
    use Mnemonic::*;
    let may_be_unaligned = matches!(instruction.mnemonic(), Movups | Movupd | Movdqu | Lddqu);
    let of_vectors = operand.size == 16
        && instruction.encoding() == EncodingKind::Legacy
        && (0..instruction.op_count()).any(|at| {
            instruction.op_kind(at) == OpKind::Register && instruction.op_register(at).is_xmm()
        });
    operand.size == 1 || of_vectors && !may_be_unaligned
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

impl Translator {
    /// Emits an instruction whose accesses are looked at and counted.
    pub(super) fn every_access(&mut self, place: Place) -> Flow {
        let instruction = place.instruction;
        match memory_of(instruction) {
            Memory::None => self.instruction(place),
            Memory::Spans => {
                self.hot.spill(emit::RCX_SLOT, RCX);
                self.leave_here(Kind::Spans, instruction.ip(), false);
                Flow::EndBefore
            }
            Memory::Operand(kind, size) => {
                let is_branch = instruction.flow_control() != iced_x86::FlowControl::Next;
                let kind = if is_branch { OrderedKind::Target } else { kind };
                let operand = Operand { size, kind, fs: false, bit_register: None };
                match self.config.watched {
                    None => self.looked_up(place, operand),
                    Some(_) => self.counted_down(place, operand),
                }
            }
        }
    }

    /// Emits an access of a recording.
    fn looked_up(&mut self, place: Place, operand: Operand) -> Flow {
        let table = match operand.kind {
            OrderedKind::Write => emit::WRITABLE,
            _ => emit::READABLE,
        };
        self.hot.spill(emit::RCX_SLOT, RCX);
        self.full_address(place.instruction);
        self.hot.set_byte(emit::WINDOW, 1);
        let may = if is_within_a_line(place.instruction, operand) {
            self.hot.line_of_rcx();
            self.hot.look_up(table);
            self.hot.forward_if_rcx_zero()
        } else {
            self.hot.spill(emit::OPERAND, RCX);
            self.hot.line_of_rcx();
            self.hot.look_up(table);
            let may_first = self.hot.forward_if_rcx_zero();
            let not_first = self.hot.forward();
            self.hot.arrive8(may_first);
            self.hot.reload(RCX, emit::OPERAND);
            self.hot.add_to_rcx(i32::from(operand.size) - 1);
            self.hot.line_of_rcx();
            self.hot.look_up(table);
            let may = self.hot.forward_if_rcx_zero();
            self.hot.arrive8(not_first);
            may
        };
        self.hot.reload(RCX, emit::RCX_SLOT);
        self.full_address(place.instruction);
        self.hot.spill(emit::OPERAND, RCX);
        let done = self.asked(place, operand);
        self.hot.arrive8(may);
        self.hot.reload(RCX, emit::COUNT);
        self.hot.add_to_rcx(1);
        self.hot.spill(emit::COUNT, RCX);
        self.hot.reload(RCX, emit::RCX_SLOT);
        if operand.kind == OrderedKind::Target {
            self.hot.arrive8(done);
            self.closes_window = true;
            let flow = self.instruction(place);
            self.closes_window = false;
            return flow;
        }
        let flow = self.instruction(place);
        if flow == Flow::Next {
            self.hot.set_byte(emit::WINDOW, 0);
            self.hot.arrive8(done);
        }
        flow
    }

    /// Emits what asks the machine for an access and makes it; the jump to where it is over.
    fn asked(&mut self, place: Place, operand: Operand) -> u64 {
        let field = Self::call_machine(&mut self.hot, self.machine_gate);
        let go_on = self.hot.here();
        if operand.kind != OrderedKind::Target {
            self.performed(place);
        }
        let done = self.hot.forward();
        let desc = Desc::new(Kind::Ordered(operand), place.instruction.ip());
        self.exits.push((field, Desc { go_on, ..desc }, place.index));
        done
    }

    /// Emits an access of a replay.
    fn counted_down(&mut self, place: Place, operand: Operand) -> Flow {
        self.hot.spill(emit::RCX_SLOT, RCX);
        self.hot.reload(RCX, emit::COUNT);
        let more = self.hot.forward_unless_rcx_zero();
        self.hot.reload(RCX, emit::RCX_SLOT);
        self.full_address(place.instruction);
        self.hot.spill(emit::OPERAND, RCX);
        let field = Self::call_machine(&mut self.hot, self.leave);
        let desc = Desc::new(Kind::Ordered(operand), place.instruction.ip());
        self.exits.push((field, desc, place.index));
        self.hot.arrive8(more);
        self.hot.add_to_rcx(-1);
        self.hot.spill(emit::COUNT, RCX);
        self.hot.reload(RCX, emit::RCX_SLOT);
        self.instruction(place)
    }

    /// Emits the computation of an operand's address, FS base included, into rcx. All registers are
    /// the guest's.
    fn full_address(&mut self, instruction: &Instruction) {
        operand_address(&mut self.encoder, &mut self.hot, instruction);
        if instruction.segment_prefix() == Register::FS {
            self.hot.spill(emit::SCRATCH, RDX);
            self.hot.read_fs_base_to_rdx();
            self.hot.add_rdx_to_rcx();
            self.hot.reload(RDX, emit::SCRATCH);
        }
    }
}

/// A part of a repeated instruction that is executed by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// Repetitions of the whole.
    total: u64,
    /// Repetitions of the part.
    now: u64,
    /// It also ends where ZF is this, if it compares.
    ends_at: Option<bool>,
}

impl Part {
    /// Sets rcx, so that the instruction ends after the repetitions of this part.
    pub(super) fn begin(self, context: &mut Context) {
        context.gpr[reg::RCX] = self.now;
    }

    /// The part has been executed; whether the instruction goes on, at `rip`.
    pub(super) fn end(self, context: &mut Context) -> bool {
        const ZF: u64 = 1 << 6;
        let left = context.gpr[reg::RCX];
        context.gpr[reg::RCX] = self.total - (self.now - left);
        let ended = self.ends_at.is_some_and(|zero| (context.rflags & ZF != 0) == zero);
        left == 0 && self.now < self.total && !ended
    }
}

/// The bytes that the instruction accesses, or the first part of it that is executed by itself.
pub(super) fn spans_of(instruction: &Instruction, context: &Context) -> (Vec<Span>, Option<Part>) {
    if instruction.is_string_instruction() {
        return string_spans(instruction, context);
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

/// The same for a string instruction: as many repetitions as fit into a page.
fn string_spans(instruction: &Instruction, context: &Context) -> (Vec<Span>, Option<Part>) {
    use Mnemonic::{Cmpsb, Cmpsd, Cmpsq, Cmpsw, Scasb, Scasd, Scasq, Scasw};
    const DF: u64 = 1 << 10;
    let size = instruction.memory_size().size().max(1) as u64;
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let total = if repeats { context.gpr[reg::RCX] } else { 1 };
    let now = total.min(PAGE / size);
    let backwards = context.rflags & DF != 0;
    let compares = matches!(
        instruction.mnemonic(),
        Cmpsb | Cmpsw | Cmpsd | Cmpsq | Scasb | Scasw | Scasd | Scasq
    );
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

/// A register's value, or that of an element of an index register.
fn value_of(context: &Context, register: Register, at: usize, size: usize) -> Option<u64> {
    if register.is_segment_register() {
        return Some(if register == Register::FS { context.fs_base } else { 0 });
    }
    if register.is_gpr() {
        let value = context.gpr[register.full_register().number()];
        return Some(if register.size() == 4 { value & 0xffff_ffff } else { value });
    }
    let (number, offset) = (register.number(), at * size);
    let half = if offset < 16 { &context.xmm } else { &context.high };
    let word = half.get(number)?[offset % 16 / 8];
    Some(match size {
        4 => i64::from((word >> (offset % 8 * 8)) as i32) as u64,
        _ => word,
    })
}
