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
//! itself from round to round.

use crate::common::{CLOBBERED, is_call};
use crate::copy::addresses::SymbolicAddress;
use crate::copy::loops::{Flow, ends_here, target};
use crate::copy::ordered::{is_candidate, is_stack_load, writes_memory};
use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
    UsedRegister,
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
    code: &[Instruction],
    addresses: &[Option<SymbolicAddress>],
    flow: &Flow,
    waits: impl Fn(&Instruction) -> bool,
) -> Box<[u64]> {
    let mut found = Vec::new();
    let mut factory = InstructionInfoFactory::new();
    for (end, branch) in code.iter().enumerate() {
        let is_branch =
            branch.op0_kind() == OpKind::NearBranch64 && branch.flow_control() != FlowControl::Call;
        if !is_branch || branch.near_branch_target() > branch.ip() {
            continue;
        }
        let target = branch.near_branch_target();
        let first = end.saturating_sub(LONGEST_UNROLLED - 1);
        if let Ok(start) = code[first..=end].binary_search_by_key(&target, Instruction::ip)
            && (end - first - start < LONGEST || !code[first + start..=end].iter().any(acts))
            && let Some(body) =
                Loop::new(&code[first + start..=end], 0, &waits, false, &mut factory)
        {
            found.extend(body.polled().map(Instruction::ip));
        }
    }
    for (round, entry) in flow.quiet_rounds(code, |i| is_quiet(i) || is_call(i) && waits(i)) {
        // A loop within may come first.
        let start = round[..entry].iter().map(Range::len).sum();
        let body: Vec<Instruction> =
            round.into_iter().flat_map(|b| code[b].iter().copied()).collect();
        if body.len() <= LONGEST_UNROLLED
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

/// Whether an instruction only computes, reads memory, or writes a constant to the stack.
fn is_quiet(instruction: &Instruction) -> bool {
    let plain = matches!(
        instruction.flow_control(),
        FlowControl::Next | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
    );
    plain && (!acts(instruction) || sets_own(instruction)) && !instruction.is_string_instruction()
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

/// Whether an instruction may write memory, or calls.
fn acts(instruction: &Instruction) -> bool {
    is_call(instruction) || writes_memory(instruction)
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
        let mut uses = Vec::with_capacity(body.len());
        for (at, instruction) in body.iter().enumerate() {
            let (read, write) = if !again[at] {
                Default::default()
            } else if is_call(instruction) {
                if !waits(instruction) {
                    return None;
                }
                (Registers::default(), Registers::of(CLOBBERED.into_iter()))
            } else {
                let info = factory.info(instruction);
                let reads = || info.used_memory().iter().all(|used| reads_only(used.access()));
                let sets = may_set_own && sets_own(instruction) || keeps(body, at);
                if !sets && !reads() {
                    return None;
                }
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
        let accesses = |i: &Instruction| !matches!(i.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
        let goes_through = |at: usize| found.changes(at, address(&body[at]));
        let goes_through_memory = (0..body.len()).any(|at| accesses(&body[at]) && goes_through(at));
        (!goes_through_memory).then_some(found)
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

/// Whether an access changes nothing.
pub(super) fn reads_only(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None)
}

#[cfg(test)]
mod tests {
    use super::{Flow, polls};
    use crate::copy::addresses::symbolic_addresses;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;
    use iced_x86::{Instruction, Mnemonic};

    const FOREIGN: u64 = 0x5000;

    /// Mnemonics of the loads that are polled in what `write` assembles.
    fn polled(write: impl FnOnce(&mut CodeAssembler)) -> Vec<Mnemonic> {
        let code = assembled(write);
        let foreign = |call: &Instruction| call.near_branch_target() == FOREIGN;
        let found = polls(&code, &symbolic_addresses(&code), &Flow::of(&code), foreign);
        code.iter().filter(|i| found.contains(&i.ip())).map(Instruction::mnemonic).collect()
    }

    /// Who waits adds up what each of the others has done, in arrays by their numbers.
    #[test]
    fn arrays_that_are_added_up() {
        let found = polled(|a| {
            let [mut again, mut next, mut done] = std::array::from_fn(|_| a.create_label());
            a.set_label(&mut again).unwrap();
            a.mov(edi, 200).unwrap();
            a.call(FOREIGN).unwrap();
            a.xor(eax, eax).unwrap();
            a.xor(ecx, ecx).unwrap();
            a.set_label(&mut next).unwrap();
            a.movsxd(rdx, eax).unwrap();
            a.add(eax, 1).unwrap();
            a.mov(rsi, qword_ptr(r15 + rdx * 8)).unwrap();
            a.add(rcx, rsi).unwrap();
            a.cmp(eax, edi).unwrap();
            a.jne(next).unwrap();
            // It computes by the instruction for addresses.
            a.lea(rbx, ptr(rbx + rcx)).unwrap();
            a.cmp(rcx, rbp).unwrap();
            a.jge(done).unwrap();
            a.jmp(again).unwrap();
            a.set_label(&mut done).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(found, [Mnemonic::Mov]);
    }

    /// As where a thread is told to stop once the others have done enough, and the function has filled another
    /// array before: both operands have the same register, which is the number of the element.
    #[test]
    fn arrays_that_are_added_up_beside_others() {
        let found = |filled: AsmRegister64| {
            polled(|a| {
                let [mut again, mut next, mut more, mut fill] =
                    std::array::from_fn(|_| a.create_label());
                a.set_label(&mut fill).unwrap();
                a.mov(dword_ptr(rax + filled), 1).unwrap();
                a.add(rax, 4).unwrap();
                a.cmp(rax, 16).unwrap();
                a.jne(fill).unwrap();
                a.set_label(&mut again).unwrap();
                a.xor(eax, eax).unwrap();
                a.xor(ebp, ebp).unwrap();
                a.set_label(&mut next).unwrap();
                a.add(ebp, dword_ptr(rax + rbx)).unwrap();
                a.add(rax, 4).unwrap();
                a.cmp(rax, 16).unwrap();
                a.jne(next).unwrap();
                a.cmp(ebp, 50).unwrap();
                a.jle(more).unwrap();
                a.mov(dword_ptr(0x7000), 1).unwrap();
                a.set_label(&mut more).unwrap();
                a.call(FOREIGN).unwrap();
                a.cmp(ebp, 100).unwrap();
                a.jl(again).unwrap();
                a.ret().unwrap();
            })
        };
        assert_eq!(found(rcx), [Mnemonic::Add]);
        assert_eq!(found(rbx), [], "it stores what it loads");
    }

    /// As gcc has it with `-Og`: the inner loop comes first, and rounds of the outer one begin behind it.
    #[test]
    fn arrays_that_are_added_up_in_a_loop_before_its_beginning() {
        let found = |resets: bool, filled: i64| {
            polled(|a| {
                let [mut next, mut compare, mut more, mut again, mut done] =
                    std::array::from_fn(|_| a.create_label());
                a.mov(rdx, filled).unwrap();
                a.mov(dword_ptr(rdx + rcx * 4), 1).unwrap();
                a.jmp(again).unwrap();
                a.set_label(&mut next).unwrap();
                a.movsxd(rcx, r12d).unwrap();
                a.mov(rdx, 0x8000_i64).unwrap();
                a.mov(edx, dword_ptr(rdx + rcx * 4)).unwrap();
                a.add(ebx, edx).unwrap();
                a.add(r12d, 1).unwrap();
                a.set_label(&mut compare).unwrap();
                a.cmp(r12d, 3).unwrap();
                a.jle(next).unwrap();
                a.cmp(ebx, 50).unwrap();
                a.jle(more).unwrap();
                a.mov(dword_ptr(0x7000), 1).unwrap();
                a.set_label(&mut more).unwrap();
                a.call(FOREIGN).unwrap();
                a.cmp(ebx, 100).unwrap();
                a.jg(done).unwrap();
                a.set_label(&mut again).unwrap();
                if resets {
                    a.mov(r12d, 0).unwrap();
                }
                a.mov(ebx, 0).unwrap();
                a.jmp(compare).unwrap();
                a.set_label(&mut done).unwrap();
                a.ret().unwrap();
            })
        };
        assert_eq!(found(true, 0x9000), [Mnemonic::Mov]);
        assert_eq!(found(true, 0x8000), [], "it stores what it loads");
        assert_eq!(found(false, 0x9000), [], "it goes on in the array");
    }

    /// Who waits for room in a ring keeps what it has seen of the other's index.
    #[test]
    fn what_is_polled_may_be_kept() {
        let keeps = |between: fn(&mut CodeAssembler)| {
            polled(|a| {
                let mut again = a.create_label();
                a.set_label(&mut again).unwrap();
                a.mov(rax, qword_ptr(r14)).unwrap();
                between(a);
                a.mov(qword_ptr(r13 + 0x40), rax).unwrap();
                a.cmp(rax, rbx).unwrap();
                a.je(again).unwrap();
                a.ret().unwrap();
            })
        };
        assert_eq!(keeps(|_| ()), [Mnemonic::Mov]);
        assert_eq!(keeps(|a| a.inc(rcx).unwrap()), [Mnemonic::Mov]);
        assert_eq!(keeps(|a| a.inc(rax).unwrap()), [], "it counts");
    }

    #[test]
    fn loops_that_wait_are_found() {
        let spin = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.pause().unwrap();
            a.mov(eax, dword_ptr(rdi + 8)).unwrap();
            a.test(eax, eax).unwrap();
            a.je(again).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(spin, [Mnemonic::Mov]);
        let counting = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.inc(rcx).unwrap();
            a.cmp(byte_ptr(rbx), 0).unwrap();
            a.je(again).unwrap();
        });
        assert_eq!(counting, [Mnemonic::Cmp]);
        let yielding = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.call(FOREIGN).unwrap();
            a.mov(rax, qword_ptr(rbx)).unwrap();
            a.cmp(rax, rbp).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(yielding, [Mnemonic::Mov]);
        let on_stack = |waits: fn(&mut CodeAssembler)| {
            polled(|a| {
                let mut again = a.create_label();
                a.set_label(&mut again).unwrap();
                waits(a);
                a.cmp(byte_ptr(rsp + 16), 0).unwrap();
                a.je(again).unwrap();
            })
        };
        let sleeps = on_stack(|a| {
            a.mov(edi, 50).unwrap();
            a.call(FOREIGN).unwrap();
        });
        assert_eq!(sleeps, [Mnemonic::Cmp]);
        assert_eq!(on_stack(|a| a.pause().unwrap()), [Mnemonic::Cmp], "a lock's queue");
        assert_eq!(on_stack(|_| ()), []);
        let backing_off = polled(|a| {
            let (mut again, mut spin) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            a.inc(ebp).unwrap();
            a.cmp(ebp, 100).unwrap();
            a.jb(spin).unwrap();
            a.call(FOREIGN).unwrap();
            a.set_label(&mut spin).unwrap();
            a.mov(rax, qword_ptr(rbx)).unwrap();
            a.cmp(rax, r12).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(backing_off, [Mnemonic::Mov]);
    }

    /// A number that another thread sets, and one that the loop halves until it is small.
    #[test]
    fn floating_point_numbers() {
        let sets = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.movsd_2(xmm0, qword_ptr(rdi)).unwrap();
            a.comisd(xmm1, xmm0).unwrap();
            a.ja(again).unwrap();
        });
        assert_eq!(sets, [Mnemonic::Movsd]);
        let halves = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mulsd(xmm0, xmm1).unwrap();
            a.comisd(xmm0, qword_ptr(rdi)).unwrap();
            a.ja(again).unwrap();
        });
        assert_eq!(halves, []);
    }

    /// As a server waits for its helpers: it adds up what they have still to do, over and over.
    #[test]
    fn loops_around_loops() {
        let sum = |again_and_again: bool| {
            polled(|a| {
                let (mut outer, mut inner) = (a.create_label(), a.create_label());
                a.set_label(&mut outer).unwrap();
                a.lea(rdx, qword_ptr(rdi)).unwrap();
                a.mov(eax, 1).unwrap();
                a.xor(ecx, ecx).unwrap();
                a.set_label(&mut inner).unwrap();
                a.inc(eax).unwrap();
                a.add(rdx, 64).unwrap();
                a.mov(rsi, qword_ptr(rdx)).unwrap();
                a.add(rcx, rsi).unwrap();
                a.cmp(eax, dword_ptr(rbx)).unwrap();
                a.jb(inner).unwrap();
                a.test(rcx, rcx).unwrap();
                if again_and_again {
                    a.jne(outer).unwrap();
                }
                a.ret().unwrap();
            })
        };
        assert_eq!(sum(true), [Mnemonic::Mov, Mnemonic::Cmp]);
        assert_eq!(sum(false), []);
    }

    /// As compilers make of `for (i = 0; i < 16; i++) if (*flag != old) return true; else relax(i);`
    /// with the flag's address and the old value in memory, and the end of the function inside.
    #[test]
    fn loops_with_ways_out_inside() {
        let spin = polled(|a| {
            let (mut again, mut inner) = (a.create_label(), a.create_label());
            let (mut found, mut relax) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            a.mov(rax, qword_ptr(rbp + 16)).unwrap();
            a.mov(eax, dword_ptr(rax)).unwrap();
            a.cmp(dword_ptr(rbp), eax).unwrap();
            a.jne(found).unwrap();
            a.set_label(&mut inner).unwrap();
            a.cmp(ebx, 11).unwrap();
            a.jg(relax).unwrap();
            a.pause().unwrap();
            a.add(ebx, 1).unwrap();
            a.mov(rax, qword_ptr(rbp + 16)).unwrap();
            a.movzx(eax, word_ptr(rax)).unwrap();
            a.cmp(dword_ptr(rbp), eax).unwrap();
            a.je(inner).unwrap();
            a.set_label(&mut found).unwrap();
            a.mov(dword_ptr(rdi), 1).unwrap();
            a.pop(rbx).unwrap();
            a.pop(rbp).unwrap();
            a.ret().unwrap();
            a.set_label(&mut relax).unwrap();
            a.call(FOREIGN).unwrap();
            a.add(ebx, 1).unwrap();
            a.cmp(ebx, 16).unwrap();
            a.jne(again).unwrap();
        });
        use Mnemonic::{Cmp, Mov, Movzx};
        assert_eq!(spin, [Mov, Mov, Cmp, Mov, Movzx, Cmp]);
    }

    #[test]
    fn loops_that_work_are_not() {
        let scan = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.inc(rdi).unwrap();
            a.cmp(byte_ptr(rdi), 0).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(scan, []);
        let list = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rax, qword_ptr(rax)).unwrap();
            a.test(rax, rax).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(list, []);
        let fill = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rax, qword_ptr(rbx)).unwrap();
            a.mov(qword_ptr(rdi + rcx * 8), rax).unwrap();
            a.dec(rcx).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(fill, []);
        let drain = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.mov(rdi, rbx).unwrap();
            a.call(0x4000).unwrap();
            a.cmp(qword_ptr(rbx + 8), 0).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(drain, []);
        let progress = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.call(FOREIGN).unwrap();
            a.inc(rbp).unwrap();
            a.cmp(rbp, qword_ptr(rbx)).unwrap();
            a.jb(again).unwrap();
        });
        assert_eq!(progress, []);
        let iteration = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.call(FOREIGN).unwrap();
            a.mov(rax, qword_ptr(rbx + 8)).unwrap();
            a.add(rbp, 16).unwrap();
            a.cmp(rax, rbp).unwrap();
            a.jne(again).unwrap();
        });
        assert_eq!(iteration, []);
        let matching = polled(|a| {
            let (mut again, mut found) = (a.create_label(), a.create_label());
            a.set_label(&mut again).unwrap();
            a.inc(r13).unwrap();
            a.cmp(r13, 4).unwrap();
            a.je(found).unwrap();
            a.mov(rdx, r12).unwrap();
            a.sub(rdx, r13).unwrap();
            a.mov(eax, edx).unwrap();
            a.cmp(word_ptr(r12), ax).unwrap();
            a.jne(again).unwrap();
            a.set_label(&mut found).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(matching, []);
        // What is compared on several occasions ends in one place, which lies before.
        let unequal = polled(|a| {
            let (mut decide, mut go_on) = (a.create_label(), a.create_label());
            a.cmp(al, cl).unwrap();
            a.je(go_on).unwrap();
            a.set_label(&mut decide).unwrap();
            a.setb(al).unwrap();
            a.ret().unwrap();
            a.set_label(&mut go_on).unwrap();
            a.movzx(ecx, byte_ptr(rdi + rdx)).unwrap();
            a.cmp(al, cl).unwrap();
            a.jne(decide).unwrap();
        });
        assert_eq!(unequal, []);
        let walking = polled(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.add(rax, qword_ptr(rdi + rcx * 8)).unwrap();
            a.inc(rcx).unwrap();
            a.cmp(dword_ptr(rbx), 0).unwrap();
            a.je(again).unwrap();
        });
        assert_eq!(walking, []);
    }

    /// As compilers make of `for (;;) { if (out != ring->in) { *to++ = ...; ring->out = ++out; } }`: in
    /// the rounds without work, the loop waits.
    #[test]
    fn rounds_without_work() {
        let reads = |stores: i32, counts: bool| {
            polled(|a| {
                let (mut again, mut work) = (a.create_label(), a.create_label());
                a.set_label(&mut work).unwrap();
                a.mov(qword_ptr(rdi), rcx).unwrap();
                a.inc(rcx).unwrap();
                a.mov(qword_ptr(rbx + stores), rcx).unwrap();
                a.set_label(&mut again).unwrap();
                a.mov(byte_ptr(rsp + 8), 0).unwrap();
                if counts {
                    a.inc(rdx).unwrap();
                    a.mov(qword_ptr(rsp + 16), rdx).unwrap();
                }
                a.cmp(qword_ptr(rbx + 8), rcx).unwrap();
                a.jne(work).unwrap();
                a.test(eax, eax).unwrap();
                a.je(again).unwrap();
                a.jmp(work).unwrap();
            })
        };
        assert_eq!(reads(16, false), [Mnemonic::Cmp]);
        assert_eq!(reads(8, false), [], "its own word");
        assert_eq!(reads(16, true), [], "each round writes something");
    }
}
