//! What the operands of a function's instructions name: a variable, or an offset from a pointer,
//! also where the address has gone through registers and the stack.
//!
//! Code that is not optimised computes the address of an atomic variable, keeps it in a stack slot,
//! and accesses the variable through that slot; a member function of an atomic variable does the
//! same with its argument. So one pass in the order of the code follows
//! addresses through copies, constants that are added, and slots that a frame pointer names, or the
//! stack pointer where there is no frame pointer. It ignores branches, but for one rule: behind a
//! return or a jump, registers and slots have what they have at the first branch to there. (The slow
//! path of a function lies behind its end, where registers have been given back; and the end of a loop
//! may lie before the rest of it, so that nothing but branches back leads there.) Where the pass is
//! wrong, an access more or less is watched.

use super::listing::{Listing, numbers};
use crate::accesses::constant_address;
use crate::common::{CLOBBERED, has_memory};
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};
use refrain_trace::fixed::{FixedMap, FixedSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Instructions of a function without a frame pointer whose stack slots are followed: without
/// optimisation, functions are short, and with it, long ones use a slot for many things.
const LONGEST: usize = 256;

/// Where variables may lie: nobody has the first page, and what is above is the kernel's.
const PLACES: Range<u64> = 1 << 12..1 << 47;

/// What an address is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct SymbolicAddress {
    pointer: Pointer,
    /// What was added to the pointer; the address, if there is none.
    offset: u64,
    way: Way,
    /// Where the array is that an index is counted from, if that is known.
    array: Option<u64>,
}

/// Which way an address has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Way {
    /// Through registers alone.
    Registers,
    /// From a stack slot.
    Slot,
    /// From a stack slot that a single instruction writes, with something else.
    Once,
    /// From a stack slot of the compiler's own: one that a single instruction writes, with a
    /// constant, or with what comes from another slot or of an addition, or in which an address is only
    /// handed on.
    Kept,
}

/// Where a pointer comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pointer {
    /// The address is that of a variable.
    None,
    /// A register has it when the function begins.
    Argument(Register),
    /// It lies at this address.
    Stored(u64),
    /// The instruction with this index put it into a register; the last numbers are those of registers of
    /// which nothing is known.
    Made(usize),
    /// It was loaded from this place, in the order in which they were met.
    Loaded(usize),
    /// This sum of two registers, in the order in which they were met.
    Sum(usize),
}

impl SymbolicAddress {
    fn of(pointer: Pointer) -> SymbolicAddress {
        SymbolicAddress { pointer, offset: 0, way: Way::Registers, array: None }
    }

    pub(super) fn constant(offset: u64) -> SymbolicAddress {
        SymbolicAddress { offset, ..SymbolicAddress::of(Pointer::None) }
    }

    pub(super) fn plus(self, offset: u64) -> SymbolicAddress {
        let way = if offset == 0 { self.way } else { Way::Registers };
        let array = self.array.map(|array| array.wrapping_add(offset));
        SymbolicAddress { offset: self.offset.wrapping_add(offset), way, array, ..self }
    }

    /// Whether the address lay in a stack slot of the compiler's own, as it is.
    pub(super) fn is_kept(self) -> bool {
        self.way == Way::Kept
    }

    /// Whether the address lay, as it is, in a stack slot that only one instruction writes.
    pub(super) fn is_constant(self) -> bool {
        matches!(self.way, Way::Kept | Way::Once)
    }

    /// The variable's address, where it is known.
    pub(super) fn variable(self) -> Option<u64> {
        (self.pointer == Pointer::None).then_some(self.offset)
    }

    /// The variable, or the array whose element it is.
    pub(super) fn variable_or_array(self) -> Option<u64> {
        self.variable().or_else(|| self.array())
    }

    /// The array whose element it is. (A loop may begin with a number as its index.)
    fn array(self) -> Option<u64> {
        self.array.filter(|at| PLACES.contains(at))
    }

    /// Where the pointer to it lies, if that is known: of another module's variable, in a table that
    /// the linker has made.
    pub(super) fn pointer_at(self) -> Option<u64> {
        match self.pointer {
            Pointer::Stored(at) => Some(at),
            _ => None,
        }
    }

    /// Where it lay, if it is what lay there.
    pub(super) fn loaded_from(self) -> Option<u64> {
        self.pointer_at().filter(|_| self.offset == 0)
    }

    /// The argument that it is counted from (or what another register has when the function begins),
    /// and the offset.
    pub(super) fn argument(self) -> Option<(Register, u64)> {
        match self.pointer {
            Pointer::Argument(register) => Some((register, self.offset)),
            _ => None,
        }
    }

    /// Which field of what a pointer points to it is.
    fn field(self) -> Option<u64> {
        let points = !matches!(self.pointer, Pointer::None | Pointer::Sum(_));
        (points && self.offset != 0).then_some(self.offset)
    }

    /// Whether both are of fields of what one pointer points to, and so many bytes apart at most.
    pub(super) fn is_near(self, other: SymbolicAddress, most: u64) -> bool {
        let forth = self.offset.wrapping_sub(other.offset);
        self.pointer == other.pointer
            && self.pointer != Pointer::None
            && forth.min(forth.wrapping_neg()) <= most
    }

    /// Whether two addresses are the same.
    pub(super) fn is_same(self, other: SymbolicAddress) -> bool {
        (self.pointer, self.offset) == (other.pointer, other.offset)
    }
}

/// Places, and which others are the same, or the same field of what another pointer points to, or of
/// another element of the same array.
#[derive(Default)]
pub(super) struct SymbolicAddresses {
    same: FixedSet<(Pointer, u64)>,
    fields: FixedSet<u64>,
    arrays: FixedSet<u64>,
}

impl SymbolicAddresses {
    pub(super) fn add(&mut self, address: SymbolicAddress) {
        self.same.insert((address.pointer, address.offset));
        self.fields.extend(address.field());
        self.arrays.extend(address.array());
    }

    /// The same field of something else is not like it.
    pub(super) fn add_alone(&mut self, address: SymbolicAddress) {
        self.same.insert((address.pointer, address.offset));
    }

    pub(super) fn look_like(&self, other: SymbolicAddress) -> bool {
        !self.same.is_empty()
            && (self.same.contains(&(other.pointer, other.offset))
                || other.field().is_some_and(|field| self.fields.contains(&field))
                || other.array().is_some_and(|array| self.arrays.contains(&array)))
    }
}

impl FromIterator<SymbolicAddress> for SymbolicAddresses {
    fn from_iter<I: IntoIterator<Item = SymbolicAddress>>(addresses: I) -> SymbolicAddresses {
        let mut all = SymbolicAddresses::default();
        addresses.into_iter().for_each(|address| all.add(address));
        all
    }
}

/// What the memory operand of each instruction of a function names, as far as that is known.
pub(super) fn symbolic_addresses(code: &Listing) -> Vec<Option<SymbolicAddress>> {
    let mut addresses = Vec::with_capacity(code.len());
    pass(code, |pass, at| {
        let operand = if code.has_memory(at) { pass.operand(&code[at]) } else { None };
        addresses.push(operand);
    });
    addresses
}

/// Calls `see` at each branch of a function, calls among them: with its index, and what is found in
/// registers where it leads to.
pub(super) fn at_branches(
    code: &Listing,
    mut see: impl FnMut(usize, &dyn Fn(Register) -> Option<SymbolicAddress>),
) {
    pass(code, |pass, at| {
        if code[at].flow_control() != FlowControl::Next {
            see(at, &|register| pass.register(register));
        }
    });
}

/// Goes over a function's code, and calls `see` before each instruction, with its index.
fn pass(code: &Listing, mut see: impl FnMut(&mut Pass, usize)) {
    let mut pass = Pass::new(code);
    let enters_before =
        |at: usize| code.target(at).is_some_and(|to| to <= at && code.is_behind_end(to));
    let mut later = Arrivals::default();
    if (0..code.len()).any(enters_before) {
        let start = pass.state.clone();
        later = go_over(&mut pass, code, Arrivals::default(), |_, _| ());
        pass.state = start;
    }
    go_over(&mut pass, code, later, &mut see);
}

/// By instruction behind a return or a jump: what registers and slots have at the first branch to it.
type Arrivals = FixedMap<usize, State>;

/// Goes over a function's code once. `later` has the states at branches that come behind what they lead to;
/// returns what it finds of those.
fn go_over(
    pass: &mut Pass,
    code: &Listing,
    mut later: Arrivals,
    mut see: impl FnMut(&mut Pass, usize),
) -> Arrivals {
    let mut arrivals = Arrivals::default();
    let mut backward = Arrivals::default();
    for at in 0..code.len() {
        if code.is_behind_end(at) {
            let behind = later.remove(&at);
            if let Some(state) = arrivals.remove(&at).or(behind) {
                pass.state = state;
            }
        }
        see(pass, at);
        if let Some(to) = code.target(at).filter(|&to| code.is_behind_end(to)) {
            let states = if to > at { &mut arrivals } else { &mut backward };
            states.entry(to).or_insert_with(|| pass.state.clone());
        }
        pass.follow(code, at);
    }
    backward
}

/// What registers and slots have between two instructions.
#[derive(Clone)]
struct State {
    registers: [SymbolicAddress; 16],
    /// By displacement from the frame pointer, or from the stack pointer in a function without one.
    slots: BTreeMap<u64, SymbolicAddress>,
}

/// How far a pass has come.
struct Pass {
    state: State,
    /// How many instructions write a slot, or take its address; `None` without a frame pointer.
    writers: Option<BTreeMap<u64, usize>>,
    /// Slots that one instruction writes, and the next one alone reads.
    handed_on: BTreeSet<u64>,
    /// The number of each sum of two addresses so far, by the addresses and the scale of the second.
    sums: FixedMap<(SymbolicAddress, SymbolicAddress, u32), usize>,
    /// The number of each place that a pointer was loaded from so far, not counting the stack.
    loaded: FixedMap<SymbolicAddress, usize>,
    /// The register by which the function names its slots, if they are followed.
    frame: Option<Register>,
}

impl Pass {
    fn new(code: &[Instruction]) -> Pass {
        let writers = has_frame(code).then(|| {
            let mut writers = BTreeMap::new();
            for instruction in code {
                let written = instruction.op0_kind() == OpKind::Memory
                    || instruction.mnemonic() == Mnemonic::Lea;
                if let Some(slot) = slot(instruction, Register::RBP).filter(|_| written) {
                    *writers.entry(slot).or_default() += 1;
                }
            }
            writers
        });
        let argument = |number| SymbolicAddress::of(Pointer::Argument(Register::RAX + number));
        Pass {
            state: State {
                registers: std::array::from_fn(|number| argument(number as u32)),
                slots: BTreeMap::new(),
            },
            writers,
            handed_on: if has_frame(code) { handed_on(code) } else { BTreeSet::new() },
            sums: FixedMap::default(),
            loaded: FixedMap::default(),
            frame: match (has_frame(code), code.len()) {
                (true, _) => Some(Register::RBP),
                (false, ..=LONGEST) => Some(Register::RSP),
                _ => None,
            },
        }
    }

    fn register(&self, register: Register) -> Option<SymbolicAddress> {
        let is_stack = register == Register::RSP || register == Register::RBP && self.has_frame();
        (register.is_gpr64() && !is_stack).then(|| self.state.registers[register.number()])
    }

    fn has_frame(&self) -> bool {
        self.writers.is_some()
    }

    fn slot(&self, instruction: &Instruction) -> Option<u64> {
        slot(instruction, self.frame?)
    }

    /// What a memory operand names.
    fn operand(&mut self, instruction: &Instruction) -> Option<SymbolicAddress> {
        if !has_memory(instruction) || instruction.segment_prefix() != Register::None {
            return None;
        }
        if let Some(address) = constant_address(instruction) {
            return Some(SymbolicAddress::constant(address));
        }
        let base = match instruction.memory_base() {
            Register::None => SymbolicAddress::constant(0),
            base => self.register(base)?,
        };
        let pointer = match instruction.memory_index() {
            Register::None if is_nowhere(instruction, base) => {
                let number = instruction.memory_base().number();
                SymbolicAddress::of(Pointer::Made(usize::MAX - number))
            }
            Register::None => base,
            index => {
                let index = self.register(index)?;
                self.sum(base, index, instruction.memory_index_scale())
            }
        };
        Some(pointer.plus(instruction.memory_displacement64()))
    }

    fn sum(
        &mut self,
        base: SymbolicAddress,
        index: SymbolicAddress,
        scale: u32,
    ) -> SymbolicAddress {
        let known = |a, b| self.sums.get(&(a, b, scale)).copied();
        let turned = || if scale == 1 { known(index, base) } else { None };
        let number = known(base, index).or_else(turned).unwrap_or_else(|| {
            let number = self.sums.len();
            self.sums.insert((base, index, scale), number);
            number
        });
        let array = base.variable().or_else(|| index.variable().filter(|_| scale == 1));
        SymbolicAddress { array, ..SymbolicAddress::of(Pointer::Sum(number)) }
    }

    /// What an instruction does to registers and slots.
    fn follow(&mut self, code: &Listing, at: usize) {
        let instruction = &code[at];
        let made = self.made(at, instruction);
        let unknown = SymbolicAddress::of(Pointer::Made(at));
        if code.is_call(at) {
            CLOBBERED.iter().for_each(|register| self.state.registers[register.number()] = unknown);
            return;
        }
        for number in numbers(code.written(at)) {
            self.state.registers[number] = unknown;
        }
        if instruction.op0_kind() == OpKind::Memory
            && let Some(slot) = self.slot(instruction)
        {
            self.state.slots.remove(&slot);
            // Optimised code keeps addresses of variables in any slot, among others.
            let is_variable =
                |it: &SymbolicAddress| matches!(it.pointer, Pointer::None | Pointer::Stored(_));
            let has_frame = self.has_frame();
            if let Some(address) = made.filter(|it| has_frame || !is_variable(it)) {
                let once = self.writers.as_ref().is_some_and(|all| all.get(&slot) == Some(&1));
                // Functions begin by storing their arguments.
                let is_argument = matches!(address.pointer, Pointer::Argument(_));
                let computed = address.pointer == Pointer::None
                    || address.offset != 0
                    || self.handed_on.contains(&slot) && !is_argument;
                let own = computed || address.way != Way::Registers;
                let way = match (once, own) {
                    (true, true) => Way::Kept,
                    (true, false) => Way::Once,
                    (false, _) => Way::Slot,
                };
                self.state.slots.insert(slot, SymbolicAddress { way, ..address });
            }
        } else if instruction.op0_kind() == OpKind::Register
            && let Some(address) = made
        {
            self.state.registers[instruction.op0_register().full_register().number()] = address;
        }
    }

    /// The address that an instruction puts where its first operand says.
    fn made(&mut self, at: usize, instruction: &Instruction) -> Option<SymbolicAddress> {
        use Code::*;
        let to_register = instruction.op0_kind() == OpKind::Register;
        match instruction.code() {
            Mov_r64_rm64 | Mov_rm64_r64 if instruction.op1_kind() == OpKind::Register => {
                self.register(instruction.op1_register())
            }
            Mov_r64_rm64 if constant_address(instruction).is_some() => {
                Some(SymbolicAddress::of(Pointer::Stored(constant_address(instruction)?)))
            }
            Mov_r64_rm64 => {
                let Some(slot) = self.slot(instruction) else {
                    let place =
                        SymbolicAddress { way: Way::Registers, ..self.operand(instruction)? };
                    let number = self.loaded.len();
                    let number = *self.loaded.entry(place).or_insert(number);
                    return Some(SymbolicAddress::of(Pointer::Loaded(number)));
                };
                let unknown =
                    SymbolicAddress { way: Way::Slot, ..SymbolicAddress::of(Pointer::Made(at)) };
                Some(*self.state.slots.entry(slot).or_insert(unknown))
            }
            Lea_r64_m => self.operand(instruction),
            Mov_rm64_imm32 => Some(SymbolicAddress::constant(instruction.immediate(1))),
            Mov_r64_imm64 | Mov_r32_imm32 | Mov_rm32_imm32 if to_register => {
                Some(SymbolicAddress::constant(instruction.immediate(1)))
            }
            Add_rm64_imm8 | Add_rm64_imm32 | Add_RAX_imm32 if to_register => {
                let address = self.register(instruction.op0_register())?;
                Some(address.plus(instruction.immediate(1)))
            }
            // To subtract -128 is shorter than to add 128.
            Sub_rm64_imm8 | Sub_rm64_imm32 | Sub_RAX_imm32
                if to_register && (instruction.immediate(1) as i64) < 0 =>
            {
                let address = self.register(instruction.op0_register())?;
                Some(address.plus(instruction.immediate(1).wrapping_neg()))
            }
            Add_r64_rm64 | Add_rm64_r64
                if to_register && instruction.op1_kind() == OpKind::Register =>
            {
                let base = self.register(instruction.op0_register())?;
                let index = self.register(instruction.op1_register())?;
                Some(self.sum(base, index, 1))
            }
            _ => None,
        }
    }
}

/// The slots of a function with a frame pointer that one instruction writes and one other names: the next
/// instruction, or any if an order of memory is stored behind the write. Compilers keep the address of an
/// atomic variable so, and make the second out of what C++'s library inlines (`load(std::memory_order)`).
fn handed_on(code: &[Instruction]) -> BTreeSet<u64> {
    let mut uses: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (at, instruction) in code.iter().enumerate() {
        if let Some(slot) = slot(instruction, Register::RBP) {
            uses.entry(slot).or_default().push(at);
        }
    }
    let is_handed_on = |uses: &[usize]| match *uses {
        [write, read] => {
            let is_handed_on = read == write + 1 || is_order_stored(&code[write + 1..]);
            let (write, read) = (&code[write], &code[read]);
            is_handed_on
                && write.code() == Code::Mov_rm64_r64
                && read.code() == Code::Mov_r64_rm64
                && read.op0_kind() == OpKind::Register
        }
        _ => false,
    };
    uses.into_iter().filter(|(_, uses)| is_handed_on(uses)).map(|(slot, _)| slot).collect()
}

/// Whether the code begins by storing an order of memory into a slot, at most behind a value that an atomic
/// operation stores.
fn is_order_stored(code: &[Instruction]) -> bool {
    const LAST: u64 = 5;
    let is_slot = |i: &&Instruction| {
        i.mnemonic() == Mnemonic::Mov
            && i.op0_kind() == OpKind::Memory
            && slot(i, Register::RBP).is_some()
    };
    let is_order = |i: &Instruction| i.code() == Code::Mov_rm32_imm32 && i.immediate(1) <= LAST;
    code.iter().take(2).take_while(is_slot).any(is_order)
}

/// Whether a function looks as if nobody had optimised it: it has a frame pointer, and a quarter of its
/// instructions name slots by that. (Distributions compile optimised code with frame pointers, too.)
pub(super) fn is_unoptimised(code: &[Instruction]) -> bool {
    const SHARE: usize = 4;
    let names_slot = |i: &&Instruction| slot(i, Register::RBP).is_some();
    has_frame(code) && code.iter().filter(names_slot).count() * SHARE >= code.len()
}

/// Whether a function begins by setting up a frame pointer.
pub(super) fn has_frame(code: &[Instruction]) -> bool {
    const PROLOGUE: usize = 4;
    code.iter().take(PROLOGUE).any(|i| {
        i.mnemonic() == Mnemonic::Mov
            && (i.op0_register(), i.op1_register()) == (Register::RBP, Register::RSP)
    })
}

/// Tells whether an operand of the function's lies in its stack frame, by the frame pointer if it has one.
pub(super) fn is_by_frame_pointer(code: &[Instruction]) -> impl Fn(&Instruction) -> bool {
    let has_frame = has_frame(code);
    move |i| has_frame && i.memory_base() == Register::RBP
}

/// What a function's code tells of its stack frame.
pub(super) struct Frame {
    /// Whether there is one: the function moves the stack pointer into `rbp`, and writes `rbp` otherwise
    /// only to have its caller's back.
    is_kept: bool,
    /// Offsets from `rbp` whose addresses the function takes.
    lent: Vec<i64>,
}

impl Frame {
    /// Bytes from an address that a function takes that may belong to the same variable.
    const LARGEST: i64 = 128;

    pub(super) fn of(code: &[Instruction]) -> Frame {
        let mut frame = Frame { is_kept: false, lent: Vec::new() };
        for i in code.iter().filter(|i| i.op0_kind() == OpKind::Register) {
            if i.mnemonic() == Mnemonic::Lea && i.memory_base() == Register::RBP {
                frame.lent.push(i.memory_displacement64() as i64);
            }
            let is_it = i.op0_register().full_register() == Register::RBP;
            match i.mnemonic() {
                Mnemonic::Push | Mnemonic::Pop => {}
                Mnemonic::Mov if is_it && i.op1_register() == Register::RSP => frame.is_kept = true,
                _ if is_it && !matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) => {
                    frame.is_kept = false;
                    break;
                }
                _ => {}
            }
        }
        frame
    }

    /// Whether nobody but the function's thread can know a word that an instruction names: it lies in
    /// the frame, and the function takes the address of no variable that it may be part of. (What lies
    /// above the frame pointer is the caller's.)
    pub(super) fn is_own(&self, instruction: &Instruction) -> bool {
        let Some(word) = slot(instruction, Register::RBP).map(|word| word as i64) else {
            return false;
        };
        let may_hold =
            |&at: &i64| (at < 0) == (word < 0) && (at..at + Self::LARGEST).contains(&word);
        self.is_kept && !self.lent.iter().any(may_hold)
    }
}

/// The displacement of a slot that the frame or stack pointer names.
fn slot(instruction: &Instruction, pointer: Register) -> Option<u64> {
    let names = has_memory(instruction)
        && instruction.memory_base() == pointer
        && instruction.memory_index() == Register::None
        && instruction.segment_prefix() == Register::None;
    names.then(|| instruction.memory_displacement64())
}

/// Whether nothing lies where an operand by a register would: its number is of a way that does not lead to
/// this instruction.
fn is_nowhere(instruction: &Instruction, base: SymbolicAddress) -> bool {
    let at = base.plus(instruction.memory_displacement64()).variable();
    instruction.memory_base() != Register::None && at.is_some_and(|at| !PLACES.contains(&at))
}

#[cfg(test)]
mod tests;
