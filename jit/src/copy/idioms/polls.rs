//! Loops that wait for another thread to change a word.
//!
//! A short loop that writes no memory and reads the same words in every round can end only because
//! another thread writes them: compilers would have read an ordinary variable once, before the loop.
//! If the loop calls a function, this function may write the words, unless it is another module's
//! (`sched_yield`, `usleep`) or one that only waits. A loop with such a call, or with `pause`, may also
//! wait for a word on the stack, whose address another thread was given.
//!
//! A loop that does work in some rounds polls in the others: what it executes over and over without
//! writing memory, but constants to its own stack, is looked at like a loop of its own.
//!
//! A short loop may store what it has just loaded: who waits for room in a ring keeps what it has seen of the
//! other thread's index.
//!
//! But when compilers run out of registers they read an ordinary variable in every round, too. So the
//! loop must not go through memory, and must not compare what it reads with anything that it changes
//! itself from round to round. Nor must it ask what the round before was for, in a register that it sets to a
//! constant for the next one: who scans a text for ever larger characters looks at the same one again.

use crate::common::{CLOBBERED, is_call, memory_access};
use crate::copy::addresses::SymbolicAddress;
use crate::copy::listing::{Listing, ends_here, target};
use crate::copy::loops::Flow;
use crate::copy::ordered::{compares, is_candidate, is_stack_load, writes_memory};
use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess,
    OpKind, Register, UsedRegister,
};
use std::ops::Range;

/// Instructions of a loop that is looked at.
const LONGEST: usize = 32;
/// The same if nothing in it may write memory or call: compilers unroll loops that add up what others
/// have done.
const LONGEST_UNROLLED: usize = 96;

/// Addresses of the loads that loops of a function poll, in ascending order. `code` is the
/// function's instructions in order, `addresses` what their operands name, `flow` how control flows in it;
/// `waits` tells whether a call only waits.
pub(super) fn polls(
    code: &Listing,
    addresses: &[Option<SymbolicAddress>],
    flow: &Flow,
    waits: impl Fn(&Instruction) -> bool,
) -> Box<[u64]> {
    let mut found = Vec::new();
    let mut factory = InstructionInfoFactory::new();
    let acts = |at: usize| code.is_call(at) || code.writes_memory(at);
    for end in 0..code.len() {
        if let Some(start) = code.target(end).filter(|&start| start <= end)
            && end - start < LONGEST_UNROLLED
            && (end - start < LONGEST || !(start..=end).any(acts))
            && (start..=end).any(|at| code.is_load(at))
            && let Some(body) = Loop::new(&code[start..=end], 0, &waits, false, &mut factory)
        {
            found.extend(body.polled().map(Instruction::ip));
        }
    }
    let is_quiet = |at: usize| match code.is_call(at) {
        true => waits(&code[at]),
        false => is_quiet(&code[at], code.writes_memory(at)),
    };
    for (round, entry) in flow.quiet_rounds(is_quiet) {
        let loads = round.iter().any(|block| block.clone().any(|at| code.is_load(at)));
        // A loop within may come first.
        let start = round[..entry].iter().map(Range::len).sum();
        let body: Vec<Instruction> =
            round.into_iter().flat_map(|b| code[b].iter().copied()).collect();
        if body.len() <= LONGEST_UNROLLED
            && loads
            && let Some(body) = Loop::new(&body, start, &waits, true, &mut factory)
        {
            let others = body.polled().filter(|load| !is_stored(code, addresses, load));
            found.extend(others.map(Instruction::ip));
        }
    }
    found.sort_unstable();
    found.dedup();
    found.into()
}

/// Whether a function stores, as far as one can see, what a load of it loads. Then a round without the
/// store does not wait for another thread.
fn is_stored(
    code: &[Instruction],
    addresses: &[Option<SymbolicAddress>],
    load: &Instruction,
) -> bool {
    let registers = |i: &Instruction| (i.memory_base(), i.memory_index());
    let (named_by, offset) = (registers(load), load.memory_displacement64());
    let place = |address: &Option<SymbolicAddress>| address.and_then(|it| it.variable_or_array());
    let at = code.binary_search_by_key(&load.ip(), Instruction::ip).ok();
    let loaded = at.and_then(|at| place(&addresses[at]));
    code.iter().zip(addresses).any(|(i, address)| {
        let is_elsewhere = || {
            let places = loaded.zip(place(address));
            places.is_some_and(|(loaded, stored)| loaded != stored)
        };
        writes_memory(i)
            && i.memory_displacement64() == offset
            && (registers(i) == named_by || offset != 0 && i.memory_base() != Register::RSP)
            && !is_elsewhere()
    })
}

/// Whether an instruction, which is no call, only computes, reads memory, or writes a constant to the stack.
fn is_quiet(instruction: &Instruction, writes_memory: bool) -> bool {
    let plain = matches!(
        instruction.flow_control(),
        FlowControl::Next | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
    );
    let writes = writes_memory && !sets_own(instruction);
    !writes && plain && !instruction.is_string_instruction()
}

/// Whether an instruction writes a constant to the stack.
fn sets_own(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_kind() == OpKind::Memory
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None
        && !matches!(instruction.op1_kind(), OpKind::Register)
}

/// Whether an instruction stores the value that another one has loaded right before. A thread that waits for
/// another thread's index keeps a copy of the index so.
fn keeps(body: &[Instruction], at: usize) -> bool {
    const NEAR: usize = 4;
    let store = &body[at];
    let kept = store.op1_register();
    let is_store = store.mnemonic() == Mnemonic::Mov
        && store.op0_kind() == OpKind::Memory
        && store.op1_kind() == OpKind::Register
        && store.memory_index() == Register::None;
    let before = body[at.saturating_sub(NEAR)..at].iter().rev();
    let mut makes = before.filter(|i| i.op0_kind() == OpKind::Register && i.op0_register() == kept);
    let loads = |i: &Instruction| i.mnemonic() == Mnemonic::Mov && is_candidate(i);
    is_store && makes.next().is_some_and(loads)
}

/// A loop that writes no memory, but for what is on a way out of it.
struct Loop<'a> {
    body: &'a [Instruction],
    /// By instruction, the general registers that it reads and that it writes.
    uses: Vec<(Registers, Registers)>,
    /// By instruction, what the registers before it were computed from; `None` where no round of the
    /// loop gets to.
    origins: Vec<Option<Origins>>,
    /// Registers that, at the beginning of a round, hold what the loop made of what they or others
    /// held a round before.
    changing: Registers,
}

/// General registers, and those of vectors.
const REGISTERS: usize = 32;

/// By register: the registers whose values at the beginning of a round its value is computed from.
/// A loaded value counts as computed from the address of its load.
type Origins = [Registers; REGISTERS];

impl<'a> Loop<'a> {
    /// A loop, unless it writes memory (but constants on its own stack, if it may) or does not wait. `start` is the
    /// instruction with which rounds begin.
    fn new(
        body: &'a [Instruction],
        start: usize,
        waits: &impl Fn(&Instruction) -> bool,
        may_set_own: bool,
        factory: &mut InstructionInfoFactory,
    ) -> Option<Loop<'a>> {
        let inside: Vec<Option<usize>> = body.iter().map(|i| target(body, i)).collect();
        let again = again(body, start, &inside);
        // Most loops write memory or call something, and need no further look.
        let is_allowed = |(at, i): (usize, &Instruction), factory: &mut InstructionInfoFactory| {
            if is_call(i) {
                return waits(i);
            }
            reads_memory_only(i, factory) || may_set_own && sets_own(i) || keeps(body, at)
        };
        let mut rounds = body.iter().enumerate().filter(|&(at, _)| again[at]);
        if !rounds.all(|it| is_allowed(it, factory)) {
            return None;
        }
        let mut uses = Vec::with_capacity(body.len());
        for (at, instruction) in body.iter().enumerate() {
            let (read, write) = if !again[at] {
                Default::default()
            } else if is_call(instruction) {
                (Registers::default(), Registers::of(CLOBBERED.into_iter()))
            } else {
                let options = InstructionInfoOptions::NO_MEMORY_USAGE;
                let info = factory.info_options(instruction, options);
                let of = |wanted: fn(OpAccess) -> bool| {
                    let used = info.used_registers().iter();
                    Registers::of(used.filter(|u| wanted(u.access())).map(UsedRegister::register))
                };
                (of(|access| access != OpAccess::Write), of(|access| !reads_only(access)))
            };
            uses.push((read, write));
        }
        let (mut origins, after) = origins(body, start, &inside, &uses);
        // What lies between may end elsewhere: the branch back need not be reached from its target.
        origins.last()?.as_ref()?;
        for (origins, again) in origins.iter_mut().zip(again) {
            *origins = origins.filter(|_| again);
        }
        let written = uses.iter().fold(Registers::default(), |all, (_, write)| all.or(*write));
        let changing = changing(after, written);
        let found = Loop { body, uses, origins, changing };
        if found.goes_through_states() {
            return None;
        }
        let accesses = |i: &Instruction| !matches!(i.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
        let goes_through = |at: usize| found.changes(at, address(&body[at]));
        let goes_through_memory = (0..body.len()).any(|at| accesses(&body[at]) && goes_through(at));
        (!goes_through_memory).then_some(found)
    }

    /// Whether a round compares with a constant what a register held at its beginning, and sets the register to
    /// constants alone.
    fn goes_through_states(&self) -> bool {
        let is_constant = |kind: OpKind| !matches!(kind, OpKind::Register | OpKind::Memory);
        let of_constant = |i: &Instruction| {
            i.op_count() == 2 && i.op0_kind() == OpKind::Register && is_constant(i.op1_kind())
        };
        self.body.iter().enumerate().any(|(at, i)| {
            let Some(origins) = self.origins[at].filter(|_| compares(i) && of_constant(i)) else {
                return false;
            };
            let asked = Registers::of([i.op0_register()].into_iter());
            let is_of_round = from(&origins, asked).without(asked).is_empty();
            let mut sets =
                self.body.iter().zip(&self.uses).filter(|(_, used)| !used.1.and(asked).is_empty());
            let sets_constant = |i: &Instruction| i.mnemonic() == Mnemonic::Mov && of_constant(i);
            let is_set = sets.clone().next().is_some() && sets.all(|(i, _)| sets_constant(i));
            is_of_round && !from(&origins, asked).is_empty() && is_set
        })
    }

    /// Whether one of these registers, before the instruction, has what changes from round to
    /// round by the loop's own doing.
    fn changes(&self, at: usize, registers: Registers) -> bool {
        let origins = self.origins[at].as_ref();
        origins.is_some_and(|origins| !from(origins, registers).and(self.changing).is_empty())
    }

    /// The loads whose words it polls.
    fn polled(&self) -> impl Iterator<Item = &'a Instruction> {
        // Compilers do not pause, and calls cannot know of words whose address nobody was given.
        let waits = |i: &Instruction| is_call(i) || i.mnemonic() == Mnemonic::Pause;
        let waits = self.body.iter().any(waits);
        let may_be = move |load| is_candidate(load) || waits && is_stack_load(load);
        let loads = self.body.iter().enumerate();
        loads
            .filter(move |&(at, load)| {
                self.origins[at].is_some() && may_be(load) && !self.is_held_against_changing(at)
            })
            .map(|(_, load)| load)
    }

    /// Whether what the load reads meets something that changes: in the load itself, or where the
    /// register that it goes to is used first.
    fn is_held_against_changing(&self, at: usize) -> bool {
        let (read, result) = self.uses[at];
        if self.changes(at, read) {
            return true;
        }
        let mut uses = self.uses.iter().enumerate().skip(at + 1);
        let first = uses.find(|(_, (read, _))| !read.and(result).is_empty());
        first.is_some_and(|(at, (read, _))| self.changes(at, read.without(result)))
    }
}

/// Of each instruction between a branch and its target, whether a round goes on behind it. Others are
/// on a way out. `start` is the instruction with which rounds begin, and `inside` says where branches to
/// instructions of the loop lead.
fn again(body: &[Instruction], start: usize, inside: &[Option<usize>]) -> Vec<bool> {
    let mut again = vec![false; body.len()];
    loop {
        let mut grown = false;
        for at in (0..body.len()).rev() {
            let goes_on = |to: usize| to == start || again[to];
            let jumps = inside[at].is_some_and(goes_on);
            let follows = follows(body, at) && goes_on(at + 1);
            grown |= (jumps || follows) && !again[at];
            again[at] |= jumps || follows;
        }
        if !grown {
            return again;
        }
    }
}

/// Whether the next instruction of a loop may be executed right after this one: between them may be
/// code that is not part of the loop.
fn follows(body: &[Instruction], at: usize) -> bool {
    let next = body.get(at + 1).is_some_and(|next| next.ip() == body[at].next_ip());
    next && !ends_here(&body[at])
}

/// What each register comes from before each instruction of a loop, and when a round is over.
fn origins(
    body: &[Instruction],
    start: usize,
    inside: &[Option<usize>],
    uses: &[(Registers, Registers)],
) -> (Vec<Option<Origins>>, Origins) {
    let mut before = vec![None; body.len()];
    let mut after = None;
    before[start] = Some(std::array::from_fn(|register| Registers(1 << register)));
    loop {
        let mut grown = false;
        for at in 0..body.len() {
            let Some(mut origins) = before[at] else { continue };
            let (read, write) = uses[at];
            let made = from(&origins, read);
            for (register, origin) in origins.iter_mut().enumerate() {
                if write.has(register) {
                    *origin = made;
                }
            }
            let mut flow = |to: &mut Option<Origins>| {
                grown |= to.is_none();
                for (to, from) in to.get_or_insert_default().iter_mut().zip(origins) {
                    grown |= !from.without(*to).is_empty();
                    *to = to.or(from);
                }
            };
            let next = follows(body, at).then_some(at + 1);
            for to in next.into_iter().chain(inside[at]) {
                flow(if to == start { &mut after } else { &mut before[to] });
            }
        }
        if !grown {
            return (before, after.unwrap_or_default());
        }
    }
}

/// What any of these registers comes from.
fn from(origins: &Origins, registers: Registers) -> Registers {
    let wanted = origins.iter().enumerate().filter(|&(register, _)| registers.has(register));
    wanted.fold(Registers::default(), |all, (_, origin)| all.or(*origin))
}

/// Of the registers at the beginning of a round, those that come from themselves, by way of what
/// the loop writes, and those that come from such.
fn changing(mut after: Origins, written: Registers) -> Registers {
    // Through any number of rounds: what comes from `via` comes from all that `via` comes from.
    for via in 0..REGISTERS {
        let further = after[via];
        for origin in &mut after {
            if origin.has(via) {
                *origin = origin.or(further);
            }
        }
    }
    let own = |register: &usize| written.has(*register) && after[*register].has(*register);
    let own = Registers((0..REGISTERS).filter(own).fold(0, |set, register| set | 1 << register));
    let moved = (0..REGISTERS).filter(|&register| !after[register].and(own).is_empty());
    Registers(moved.fold(0, |set, register| set | 1 << register))
}

/// The registers that make up the address of an instruction's memory operand.
fn address(instruction: &Instruction) -> Registers {
    Registers::of([instruction.memory_base(), instruction.memory_index()].into_iter())
}

/// A set of registers.
#[derive(Clone, Copy, Default)]
struct Registers(u32);

impl Registers {
    fn of(registers: impl Iterator<Item = Register>) -> Registers {
        let bit = |r: Register| match r {
            _ if r.is_gpr() => 1 << r.full_register().number(),
            _ if r.is_vector_register() && r.number() < REGISTERS / 2 => {
                1 << (r.number() + REGISTERS / 2)
            }
            _ => 0,
        };
        Registers(registers.fold(0, |set, register| set | bit(register)))
    }

    fn or(self, other: Registers) -> Registers {
        Registers(self.0 | other.0)
    }

    fn and(self, other: Registers) -> Registers {
        Registers(self.0 & other.0)
    }

    fn without(self, other: Registers) -> Registers {
        Registers(self.0 & !other.0)
    }

    fn has(self, register: usize) -> bool {
        self.0 >> register & 1 != 0
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Whether an instruction writes no memory.
fn reads_memory_only(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
    memory_access(instruction).map_or_else(
        || {
            let options = InstructionInfoOptions::NO_REGISTER_USAGE;
            let info = factory.info_options(instruction, options);
            info.used_memory().iter().all(|used| reads_only(used.access()))
        },
        reads_only,
    )
}

/// Whether an access changes nothing.
pub(super) fn reads_only(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None)
}

#[cfg(test)]
mod tests;
