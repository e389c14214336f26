//! What instructions do with what they load and store, by the program's code: which of them update a
//! variable by adding or by changing bits, and to what else the loaded value goes.
//!
//! # How
//! A load and the store that ends its update stand in one stretch of code without jumps in and out.
//! Between them, and behind the store on every way on that has been executed, the registers and flags that depend
//! on the loaded value are followed until all of them are overwritten. Whatever else reads one of
//! them makes all bits of the load matter, but for tests of single bits, where these do.
//!
//! # What calls do
//! By the System V ABI, a function reads no registers but those of its arguments and those that it
//! keeps, and leaves in the others, and in the flags, what is of no use. Library functions with one
//! argument are known by their events; of all others every general register for arguments counts as
//! read. (Vectors are followed only where they are loaded whole, which compilers do to add to
//! variables side by side; that a program hands such a vector to a function as it is, or returns it, is not
//! considered.) Functions of the same file that are called by their address may know more of each
//! other; they count as reading all that they do not keep.
//!
//! Only the program's own code and that of its libraries is looked at, not the system's.

use super::made::OwnLocks;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};
use refrain_trace::CodeBlock;
use refrain_trace::fixed::{FixedMap, FixedSet};
use refrain_transform::{Bitwise, Operand, Update, Use, Uses};

/// Instructions looked at behind one load, at most.
const STEPS: usize = 400;
/// All bits matter.
const ALL: u64 = u64::MAX;

/// The uses in the executed code.
pub(super) fn uses(
    blocks: &[CodeBlock],
    hooks: impl Iterator<Item = u64>,
    locks: &OwnLocks,
) -> Uses {
    let foreign = |pc: u64| locks.foreign.iter().any(|range| range.contains(&pc));
    let code = Executed::new(blocks, hooks.collect(), &locks.calls);
    uses_in(&code, |pc| !foreign(pc))
}

fn uses_in(code: &Executed<'_>, is_own: impl Fn(u64) -> bool) -> Uses {
    let mut uses = Uses::default();
    let mut factory = InstructionInfoFactory::new();
    for i in code.order.iter().filter(|pc| is_own(**pc)).filter_map(|pc| code.table.get(pc)) {
        Found { uses: &mut uses, code, factory: &mut factory }.look_at(i);
    }
    uses
}

/// Code that was executed.
struct Executed<'a> {
    table: FixedMap<u64, Instruction>,
    /// All addresses, ascending.
    order: Vec<u64>,
    /// Where jumps lead to and blocks begin.
    targets: FixedSet<u64>,
    /// Where calls of functions with one argument return to.
    calls: &'a FixedSet<u64>,
    /// Functions of the library's that are events.
    hooks: FixedSet<u64>,
}

impl<'a> Executed<'a> {
    fn new(blocks: &[CodeBlock], hooks: FixedSet<u64>, calls: &'a FixedSet<u64>) -> Executed<'a> {
        let mut table = FixedMap::default();
        let mut targets: FixedSet<u64> = FixedSet::default();
        for block in blocks {
            targets.insert(block.pc);
            let mut decoder = Decoder::with_ip(64, &block.code, block.pc, DecoderOptions::NONE);
            while decoder.can_decode() {
                let i = decoder.decode();
                if i.code() == Code::INVALID {
                    break;
                }
                if i.op0_kind() == OpKind::NearBranch64 {
                    targets.insert(i.near_branch_target());
                }
                table.insert(i.ip(), i);
            }
        }
        let mut order: Vec<u64> = table.keys().copied().collect();
        order.sort_unstable();
        Executed { table, order, targets, calls, hooks }
    }
}

/// What a register has that depends on the loaded value.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Derived {
    /// How, if that can be the end of an update.
    how: Option<Update>,
    /// Which bits of the loaded value it tells of.
    bits: u64,
}

/// Registers (by number) and flags that depend on the loaded value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Tainted {
    registers: [Option<Derived>; REGISTERS],
    /// Bytes that were loaded.
    size: usize,
    /// Status flags, and the bits of the loaded value that they tell of.
    flags: u32,
    flag_bits: u64,
}

impl Tainted {
    fn is_over(&self) -> bool {
        self.flags == 0 && self.registers.iter().all(Option::is_none)
    }

    /// What is read if somebody reads these registers.
    fn bits_of(&self, registers: &[usize]) -> u64 {
        registers.iter().filter_map(|r| self.registers[*r].as_ref()).fold(0, |m, d| m | d.bits)
    }
}

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RSP: usize = 4;
const RSI: usize = 6;
const RDI: usize = 7;
/// What a function may read, in the order of its arguments.
const ARGUMENTS: [usize; 6] = [RDI, RSI, RDX, RCX, 8, 9];
/// What a function need not keep.
const NOT_KEPT: [usize; 25] = [
    RAX, RCX, RDX, RSI, RDI, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29,
    30, 31,
];
/// What a function keeps.
const KEPT: [usize; 6] = [3, 5, 12, 13, 14, 15];

/// Flags that instructions write.
const FLAGS: u32 = iced_x86::RflagsBits::OF
    | iced_x86::RflagsBits::SF
    | iced_x86::RflagsBits::ZF
    | iced_x86::RflagsBits::AF
    | iced_x86::RflagsBits::CF
    | iced_x86::RflagsBits::PF;

struct Found<'a> {
    uses: &'a mut Uses,
    code: &'a Executed<'a>,
    factory: &'a mut InstructionInfoFactory,
}

/// The number of a general register of at least `least` bytes without its upper byte forms.
fn general(register: Register) -> Option<usize> {
    let high = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
    (register.is_gpr() && !high).then(|| register.full_register().number())
}

/// The number of a register whose value is followed: a general one or, from 16 on, a vector.
fn number(register: Register) -> Option<usize> {
    let vector = register.is_vector_register() && register.number() < 16;
    general(register).or_else(|| vector.then(|| VECTORS + register.number()))
}

/// The number of the first vector register.
const VECTORS: usize = 16;
/// General registers and vectors.
const REGISTERS: usize = 32;

/// Bytes of the numbers that a vector instruction adds, if it does.
fn lanes(mnemonic: Mnemonic) -> Option<u8> {
    match mnemonic {
        Mnemonic::Paddb | Mnemonic::Vpaddb => Some(1),
        Mnemonic::Paddw | Mnemonic::Vpaddw => Some(2),
        Mnemonic::Paddd | Mnemonic::Vpaddd => Some(4),
        Mnemonic::Paddq | Mnemonic::Vpaddq => Some(8),
        _ => None,
    }
}

/// Whether it copies a vector of 16 bytes as it is.
fn copies_vector(i: &Instruction) -> bool {
    use Mnemonic::{
        Movapd, Movaps, Movdqa, Movdqu, Movupd, Movups, Vmovapd, Vmovaps, Vmovdqa, Vmovdqu,
        Vmovupd, Vmovups,
    };
    let copies = matches!(
        i.mnemonic(),
        Movapd
            | Movaps
            | Movdqa
            | Movdqu
            | Movupd
            | Movups
            | Vmovapd
            | Vmovaps
            | Vmovdqa
            | Vmovdqu
            | Vmovupd
            | Vmovups
    );
    copies && (0..i.op_count()).all(|n| i.op_kind(n) == OpKind::Memory || i.op_register(n).is_xmm())
}

/// The place in memory that both operands are, if the instruction has one.
fn memory_operand(i: &Instruction) -> Option<u32> {
    let mut places = (0..i.op_count()).filter(|n| i.op_kind(*n) == OpKind::Memory);
    let place = places.next()?;
    places.next().is_none().then_some(place)
}

/// The constant of an operand, as wide as what it is combined with.
fn constant(i: &Instruction, operand: u32) -> Option<u64> {
    use OpKind::*;
    match i.op_kind(operand) {
        Immediate8 | Immediate16 | Immediate32 | Immediate64 | Immediate8to16 | Immediate8to32
        | Immediate8to64 | Immediate32to64 => Some(i.immediate(operand)),
        _ => None,
    }
}

impl Found<'_> {
    fn look_at(&mut self, i: &Instruction) {
        let Ok(pc) = u32::try_from(i.ip()) else { return };
        let Some(memory) = memory_operand(i) else { return };
        let size = i.memory_size().size();
        if !matches!(size, 1 | 2 | 4 | 8 | 16) || i.has_rep_prefix() || i.has_repne_prefix() {
            return;
        }
        let vector = size == 16;
        let found = match (i.mnemonic(), memory) {
            _ if vector && memory > 0 => {
                let is_new = memory == 1 && copies_vector(i);
                let how = match lanes(i.mnemonic()).filter(|_| i.op0_register().is_xmm()) {
                    Some(size) => Some(Update::AddEach(size)),
                    None => is_new.then(|| Update::Bits(Vec::new())),
                };
                how.and_then(|how| self.load(i, Derived { how: Some(how), bits: ALL }))
            }
            _ if vector => None,
            (Mnemonic::Mov, 0) => self.operand(i, 1).map(Use::Value),
            (Mnemonic::Add | Mnemonic::Sub | Mnemonic::Inc | Mnemonic::Dec, 0) => {
                Some(self.both(i, Update::Add))
            }
            (Mnemonic::Or | Mnemonic::And | Mnemonic::Xor, 0) => {
                let how = bitwise(i.mnemonic());
                let operand = self.operand(i, 1);
                operand.map(|operand| self.both(i, Update::Bits(vec![(how, operand)])))
            }
            (Mnemonic::Not, 0) => {
                let all = (Bitwise::Xor, Operand::Constant(ALL));
                Some(self.both(i, Update::Bits(vec![all])))
            }
            (Mnemonic::Test, 0) => constant(i, 1).map(Use::Load),
            (Mnemonic::Mov | Mnemonic::Movzx, 1) => {
                let derived = Derived { how: Some(Update::Bits(Vec::new())), bits: width(size) };
                self.load(i, derived)
            }
            (Mnemonic::Add, 1) => self.load(i, Derived { how: Some(Update::Add), bits: ALL }),
            (Mnemonic::Or | Mnemonic::Xor | Mnemonic::And, 1) => {
                let how = bitwise(i.mnemonic());
                let operand = self.operand(i, 0);
                operand.and_then(|operand| {
                    let how = Some(Update::Bits(vec![(how, operand)]));
                    self.load(i, Derived { how, bits: ALL })
                })
            }
            _ => None,
        };
        if let Some(found) = found {
            // The end of an update says more than that a value is stored.
            self.uses.uses.entry(pc).or_insert(found);
        }
    }

    /// An operand that is no memory, the same at each look.
    fn operand(&mut self, i: &Instruction, operand: u32) -> Option<Operand> {
        if let Some(constant) = constant(i, operand) {
            return Some(Operand::Constant(constant));
        }
        if i.op_kind(operand) != OpKind::Register {
            return None;
        }
        let register = general(i.op_register(operand))?;
        let pc = u32::try_from(i.ip()).ok()?;
        // An instruction has one such operand.
        self.uses.values.insert(i.ip(), register);
        Some(Operand::Register(pc))
    }

    /// An instruction that loads and stores: who looks at the flags?
    fn both(&mut self, i: &Instruction, update: Update) -> Use {
        let flags = i.rflags_modified() & FLAGS;
        let tainted = Tainted { flags, flag_bits: ALL, ..Tainted::default() };
        let looks = self.follow(i.next_ip(), tainted, STEPS);
        Use::Both(looks, update)
    }

    /// A load into a register.
    fn load(&mut self, i: &Instruction, derived: Derived) -> Option<Use> {
        let register = number(i.op0_register())?;
        // What only a part of a register is loaded to stands beside something else.
        let size = i.memory_size().size();
        if i.op0_register().size() < 4 && size != i.op0_register().size() {
            return Some(Use::Load(ALL));
        }
        let mut tainted = Tainted { size, ..Tainted::default() };
        let flags = i.rflags_modified() & FLAGS;
        (tainted.flags, tainted.flag_bits) = (flags, ALL);
        tainted.registers[register] = Some(derived);
        let mut steps = STEPS;
        let mut looks = 0;
        let mut pc = i.next_ip();
        // Up to the store.
        while steps > 0 && !tainted.is_over() && !self.code.targets.contains(&pc) {
            let Some(next) = self.code.table.get(&pc).copied() else { break };
            if next.flow_control() != FlowControl::Next || next.has_lock_prefix() {
                break;
            }
            if next.mnemonic() == Mnemonic::Xchg && memory_operand(&next).is_some() {
                break;
            }
            if let Some(update) = ends_update(&next, &tainted, size) {
                let load = u32::try_from(i.ip()).ok()?;
                let store = u32::try_from(pc).ok()?;
                match self.uses.uses.entry(store).or_insert_with(|| Use::Store(Vec::new())) {
                    Use::Store(begun) => begun.push((load, update)),
                    _ => unreachable!("only the walk from a load comes to a store ahead"),
                }
                pc = next.next_ip();
                break;
            }
            looks |= self.step(&next, &mut tainted);
            pc = next.next_ip();
            steps -= 1;
        }
        Some(Use::Load(looks | self.follow(pc, tainted, steps)))
    }

    /// Which bits of the loaded value matter from `pc` on, on all ways.
    fn follow(&mut self, pc: u64, tainted: Tainted, mut steps: usize) -> u64 {
        let mut looks = 0;
        let mut ways = vec![(pc, tainted)];
        let mut known: FixedMap<u64, Vec<Tainted>> = FixedMap::default();
        while let Some((pc, mut tainted)) = ways.pop() {
            if tainted.is_over() || looks == ALL {
                continue;
            }
            let seen = known.entry(pc).or_default();
            if seen.contains(&tainted) {
                continue;
            }
            seen.push(tainted.clone());
            // What was never executed does not matter.
            let Some(i) = self.code.table.get(&pc).copied() else { continue };
            if steps == 0 {
                return ALL;
            }
            steps -= 1;
            match i.flow_control() {
                FlowControl::Next => {
                    looks |= self.step(&i, &mut tainted);
                    ways.push((i.next_ip(), tainted));
                }
                FlowControl::UnconditionalBranch => {
                    let to = i.near_branch_target();
                    if !self.code.table.contains_key(&to) {
                        // A function of the library's, which is not executed here.
                        return ALL;
                    }
                    ways.push((to, tainted));
                }
                FlowControl::ConditionalBranch => {
                    looks |= self.step(&i, &mut tainted);
                    if self.code.hooks.contains(&i.near_branch_target()) {
                        return ALL;
                    }
                    ways.push((i.next_ip(), tainted.clone()));
                    ways.push((i.near_branch_target(), tainted));
                }
                FlowControl::Call | FlowControl::IndirectCall => {
                    // `syscall` is one of them for the decoder.
                    looks |= self.step(&i, &mut tainted);
                    if i.mnemonic() == Mnemonic::Syscall {
                        looks |= tainted.bits_of(&[RAX, RDI, RSI, RDX, 8, 9, 10]);
                    } else if i.mnemonic() != Mnemonic::Call {
                        looks = ALL;
                    } else {
                        looks |= tainted.bits_of(self.may_read(&i));
                        for register in (0..REGISTERS).filter(|r| !KEPT.contains(r)) {
                            tainted.registers[register] = None;
                        }
                        tainted.flags = 0;
                    }
                    ways.push((i.next_ip(), tainted));
                }
                FlowControl::Return => {
                    looks |= tainted.bits_of(&[RAX, RDX, RSP]) | tainted.bits_of(&KEPT);
                }
                FlowControl::IndirectBranch => {
                    // A jump through the dynamic linker's table is a call in the last place.
                    looks |= self.step(&i, &mut tainted);
                    if i.is_ip_rel_memory_operand() && i.memory_index() == Register::None {
                        looks |= tainted.bits_of(&ARGUMENTS) | tainted.bits_of(&KEPT);
                    } else if !tainted.is_over() {
                        looks = ALL;
                    }
                }
                _ => looks = ALL,
            }
        }
        looks
    }

    /// The registers whose values may matter to a called function, or behind it although it does
    /// not keep them: compilers know which registers functions of the same file leave alone.
    fn may_read(&self, i: &Instruction) -> &'static [usize] {
        match self.calls_library(i) {
            true if self.code.calls.contains(&i.next_ip()) => &ARGUMENTS[..1],
            true => &ARGUMENTS,
            false if i.op0_kind() != OpKind::NearBranch64 => &ARGUMENTS,
            false => &NOT_KEPT,
        }
    }

    /// Whether a call goes through the dynamic linker's table and nowhere else.
    fn calls_library(&self, i: &Instruction) -> bool {
        if i.is_ip_rel_memory_operand() {
            return true;
        }
        if i.op0_kind() != OpKind::NearBranch64 {
            return false;
        }
        let mut stub = self.code.table.get(&i.near_branch_target());
        if let Some(i) = stub.filter(|i| i.mnemonic() == Mnemonic::Endbr64) {
            stub = self.code.table.get(&i.next_ip());
        }
        stub.is_some_and(|i| {
            i.flow_control() == FlowControl::IndirectBranch && i.is_ip_rel_memory_operand()
        })
    }

    /// Passes an instruction: returns the bits that it reads, and changes what is tainted.
    fn step(&mut self, i: &Instruction, tainted: &mut Tainted) -> u64 {
        let mut looks = 0;
        if i.rflags_read() & tainted.flags != 0 {
            looks |= tainted.flag_bits;
        }
        let flags = i.rflags_modified() & FLAGS;
        let before = tainted.clone();
        tainted.flags &= !flags;
        let taint_flags = |tainted: &mut Tainted, bits: u64| {
            if flags != 0 {
                tainted.flag_bits =
                    if tainted.flags == 0 { bits } else { tainted.flag_bits | bits };
                tainted.flags |= flags;
            }
        };
        let derived = |operand: u32| {
            let register = (i.op_kind(operand) == OpKind::Register)
                .then(|| general(i.op_register(operand)))??;
            Some((register, before.registers[register].clone()?))
        };
        // A narrower one would cut it off.
        let is_wide = i.op0_register().size() >= before.size;
        let no_memory = (0..i.op_count()).all(|n| i.op_kind(n) != OpKind::Memory);
        // What is added may come from memory, from wherever that does not depend on the loaded value.
        let address = [i.memory_base(), i.memory_index()].map(general);
        let elsewhere = address.iter().flatten().all(|r| before.registers[*r].is_none());
        let to_register = no_memory || i.op0_kind() == OpKind::Register && elsewhere;
        let of = |n: u32| {
            let register = number(i.op_register(n)).filter(|_| i.op_kind(n) == OpKind::Register)?;
            before.registers[register].clone()
        };
        if no_memory && i.op0_register().is_xmm() {
            let to = number(i.op0_register()).filter(|to| *to >= VECTORS);
            // Both summands: of two operands the first is one.
            let summands = if i.op_count() > 2 { [1, 2] } else { [0, 1] };
            let from: Vec<Derived> = summands.into_iter().filter_map(of).collect();
            if let (Some(size), [it], Some(to)) = (lanes(i.mnemonic()), &from[..], to) {
                let how = it.how.clone().filter(|how| adds(how) || *how == Update::AddEach(size));
                let how = how.map(|_| Update::AddEach(size));
                tainted.registers[to] = Some(Derived { how, bits: ALL });
                return looks;
            }
            if let (true, Some(it), Some(to)) = (copies_vector(i), of(1), to) {
                tainted.registers[to] = Some(it);
                return looks;
            }
        }
        match i.mnemonic() {
            // A copy.
            Mnemonic::Mov | Mnemonic::Movzx if no_memory => {
                if let (Some((_, from)), Some(to)) = (derived(1), general(i.op0_register())) {
                    if i.op0_register().size() >= 4 {
                        let size = i.op1_register().size();
                        let bits = from.bits & if is_bits(&from) { width(size) } else { ALL };
                        // A part of it does not end the update of all of it.
                        let how = from.how.filter(|_| size >= before.size);
                        tainted.registers[to] = Some(Derived { how, bits });
                        return looks;
                    }
                    return looks | from.bits;
                }
            }
            Mnemonic::Test | Mnemonic::Cmp if no_memory => {
                let both = [derived(0), derived(1)];
                let bits = both.iter().flatten().fold(0, |bits, (_, it)| bits | it.bits);
                if bits != 0 {
                    let single = both[0].as_ref().filter(|(_, it)| is_bits(it));
                    let bits = match (i.mnemonic(), constant(i, 1)) {
                        (Mnemonic::Test, Some(mask)) if single.is_some() => bits & mask,
                        _ => bits,
                    };
                    taint_flags(tainted, bits);
                    return looks;
                }
            }
            Mnemonic::Add | Mnemonic::Sub | Mnemonic::Inc | Mnemonic::Dec if to_register => {
                let other = i.op_count() > 1 && derived(1).is_some();
                if let Some((register, it)) = derived(0).filter(|_| !other) {
                    let adds = it.how.filter(|how| is_wide && adds(how));
                    let how = adds.map(|_| Update::Add);
                    tainted.registers[register] = Some(Derived { how, bits: ALL });
                    taint_flags(tainted, ALL);
                    return looks;
                }
                if let (Mnemonic::Add, Some((_, it)), Some(to)) =
                    (i.mnemonic(), derived(1), general(i.op0_register()))
                    && before.registers[to].is_none()
                    && i.op0_register().size() >= 4
                {
                    let adds = it.how.filter(|how| is_wide && adds(how));
                    let how = adds.map(|_| Update::Add);
                    tainted.registers[to] = Some(Derived { how, bits: ALL });
                    taint_flags(tainted, ALL);
                    return looks;
                }
            }
            Mnemonic::Or | Mnemonic::And | Mnemonic::Xor if no_memory => {
                let other = derived(1).is_some();
                if let Some((register, it)) = derived(0).filter(|_| !other) {
                    let operand = self.operand(i, 1);
                    let mask = match (i.mnemonic(), constant(i, 1)) {
                        (Mnemonic::And, Some(mask)) if is_bits(&it) => {
                            let size = i.op0_register().size();
                            it.bits & if size >= 4 { mask } else { mask | !width(size) }
                        }
                        _ => it.bits,
                    };
                    let whole = is_wide || i.op0_register().size() < 4;
                    let how = match (it.how.filter(|_| whole), operand) {
                        (Some(Update::Bits(mut steps)), Some(operand)) => {
                            steps.push((bitwise(i.mnemonic()), operand));
                            Some(Update::Bits(steps))
                        }
                        _ => None,
                    };
                    tainted.registers[register] = Some(Derived { how, bits: mask });
                    taint_flags(tainted, mask);
                    return looks;
                }
            }
            Mnemonic::Lea => {
                let (base, index) = (general(i.memory_base()), general(i.memory_index()));
                let of = |register: Option<usize>| before.registers[register?].clone();
                if let (Some(it), None) | (None, Some(it)) = (of(base), of(index))
                    && let Some(to) = general(i.op0_register())
                    && i.op0_register().size() >= 4
                {
                    let scaled = index.is_some() && of(index).is_some();
                    let whole = !scaled || i.memory_index_scale() == 1;
                    let adds = it.how.filter(|how| is_wide && adds(how));
                    let how = adds.filter(|_| whole).map(|_| Update::Add);
                    tainted.registers[to] = Some(Derived { how, bits: ALL });
                    return looks;
                }
            }
            _ => {}
        }
        let info = self.factory.info(i);
        for used in info.used_registers() {
            let register = used.register();
            let followed = register.is_gpr() || register.is_vector_register();
            let register = followed.then(|| register.full_register().number());
            let vectors = if used.register().is_gpr() { 0 } else { VECTORS };
            let Some(register) = register.map(|n| n + vectors).filter(|n| *n < REGISTERS) else {
                continue;
            };
            let Some(it) = &before.registers[register] else { continue };
            let access = used.access();
            use OpAccess::{CondRead, Read, ReadCondWrite, ReadWrite, Write};
            if matches!(access, Read | CondRead | ReadWrite | ReadCondWrite) {
                looks |= it.bits;
            }
            // What writes a part of a vector is said to read it, too.
            let overwritten = access == Write && used.register().size() >= 4;
            if overwritten {
                tainted.registers[register] = None;
            } else if !matches!(access, Read | CondRead) {
                tainted.registers[register] = Some(Derived { how: None, bits: it.bits });
            }
        }
        looks
    }
}

/// Whether bits of it are bits of the loaded value, at the same places.
fn is_bits(it: &Derived) -> bool {
    matches!(it.how, Some(Update::Bits(_)))
}

/// Whether it is the loaded value itself, or that and something added.
fn adds(how: &Update) -> bool {
    *how == Update::Add || matches!(how, Update::Bits(steps) if steps.is_empty())
}

fn bitwise(mnemonic: Mnemonic) -> Bitwise {
    match mnemonic {
        Mnemonic::Or => Bitwise::Or,
        Mnemonic::And => Bitwise::And,
        _ => Bitwise::Xor,
    }
}

/// As many ones as so many bytes have bits.
fn width(bytes: usize) -> u64 {
    if bytes >= 8 { ALL } else { (1 << (8 * bytes)) - 1 }
}

/// The update that a store ends.
fn ends_update(i: &Instruction, tainted: &Tainted, size: usize) -> Option<Update> {
    if (i.mnemonic() != Mnemonic::Mov && !copies_vector(i))
        || i.op0_kind() != OpKind::Memory
        || i.op1_kind() != OpKind::Register
        || i.memory_size().size() != size
    {
        return None;
    }
    let of = |register| general(register).and_then(|r| tainted.registers[r].as_ref());
    // An address that depends on the loaded value is another matter.
    if of(i.memory_base()).is_some() || of(i.memory_index()).is_some() {
        return None;
    }
    let stored = number(i.op1_register()).and_then(|r| tainted.registers[r].as_ref());
    let how = stored?.how.as_ref();
    how.filter(|how| !matches!(how, Update::Bits(steps) if steps.is_empty())).cloned()
}

#[cfg(test)]
mod tests;
