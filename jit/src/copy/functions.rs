//! Where functions begin, and what is watched in them.

use super::addresses::{SymbolicAddress, symbolic_addresses};
use super::idioms::{Callee, Idioms, Surroundings, callee, held, idioms, writes_only_stack};
use super::listing::Listing;
use super::ordered::{is_candidate, is_locked, is_store};
use super::pieces::Pieces;
use crate::common::{LONGEST_INSTRUCTION, has_memory};
use crate::memory::{read_guest, read_word};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind,
    Register,
};
use refrain_trace::fixed::{FixedMap, FixedSet};
use refrain_vm::{Finding, LockRole, Recall};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

mod atomics;
mod by_register;
mod called;
mod extent;
mod futexes;
mod handed;
mod known;
mod looks;
mod modules;
mod wrappers;

use atomics::Atomics;
use called::{Beside, Locks};
use extent::{Extent, MAX_BYTES, decode, first_bytes, has_locked, instructions, read};
use futexes::futexes;
use known::Known;
use modules::Unread;
use wrappers::{Reached, WRAPPERS};

/// Words that are named by arguments: by which, and at which offset from that.
type Words = Arc<[(Register, u64)]>;

/// The functions and the constant data of all modules.
#[derive(Default)]
pub(super) struct Functions {
    /// In ascending order, each once.
    starts: Vec<u64>,
    /// Modules whose functions are not among them yet, and where the code of each module lies.
    unread: Vec<Unread>,
    code: Vec<Range<u64>>,
    /// In ascending order.
    constant: Vec<Range<u64>>,
    /// Where the functions of each module lie, and whether it is a trusted one.
    modules: Vec<(Range<u64>, bool)>,
    /// The last function of each module: what comes next does not tell where it ends.
    lasts: FixedSet<u64>,
    /// By start, the ends of functions that are followed by something else than another function.
    followed: FixedMap<u64, u64>,
    /// Functions whose calls the machine wants to see: the library's locks.
    hooked: BTreeSet<u64>,
    /// By start, what a hooked function does to a lock, if it does anything to one.
    roles: FixedMap<u64, LockRole>,
    /// By start, what was found in the functions that were looked through.
    found: FixedMap<u64, Arc<Idioms>>,
    /// What was found before.
    known: Known,
    /// Code of atomic operations.
    atomics: Atomics,
    /// By what branches lead to, or the place in the dynamic linker's table that they go through: the
    /// function of the same module that is there, if there is one.
    targets: FixedMap<u64, Option<u64>>,
    /// By start, whether a function has a locked instruction.
    locked: FixedMap<u64, bool>,
    /// By the address that a branch leads to, where a stub that is there leads to, or that address.
    behind_stubs: FixedMap<u64, u64>,
    /// By the address that a call leads to, and how many short functions may lie between: the library's locks
    /// that the short function there calls.
    wrappers: FixedMap<(u64, u32), Reached>,
    /// By the address that a call leads to, whether the function there lets other threads go on.
    yields: FixedMap<u64, Callee>,
    /// By what calls lead to, whether that only waits.
    waits: RefCell<FixedMap<u64, bool>>,
    /// By start, the offsets of fields that functions write.
    written: RefCell<FixedMap<u64, FixedSet<u64>>>,
    /// By start, what short functions do.
    operations: FixedMap<u64, Operation>,
    /// By start and how many others may lie between, which words locked instructions name by the
    /// function's arguments.
    locked_words: FixedMap<(u64, u32), Words>,
    /// By start, the fields that a function looks at right behind a lock: their offsets and sizes.
    second_looks: FixedMap<u64, Arc<[(u64, usize)]>>,
    /// Calls and locked variables.
    pieces: Pieces,
    /// By start, what a function calls beside locks.
    calls_beside: FixedMap<u64, Arc<FixedMap<u64, Beside>>>,
}

/// What a function is among those of a library of atomic operations, and which field of what its
/// argument points to it accesses, if it accesses anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    /// None of them: it is long, calls something, or accesses something else than one such field.
    Other,
    /// At most it loads or stores the field.
    Plain(Option<u64>),
    /// It does so by a locked instruction.
    Locked(Option<u64>),
}

impl Operation {
    /// The field; none if it accesses several, or something else.
    fn field(self) -> Option<u64> {
        match self {
            Operation::Other => None,
            Operation::Plain(field) | Operation::Locked(field) => field,
        }
    }

    /// Whether it accesses no field but this one.
    fn accesses_only(self, field: Option<u64>) -> bool {
        self != Operation::Other && (self.field().is_none() || self.field() == field)
    }
}

impl Functions {
    /// A digest of all that findings depend on besides a function's code; none if that may be any code.
    pub(super) fn surroundings(&self) -> Option<u64> {
        self.known.around()
    }

    /// What is found may be known: from there, if somebody asks.
    pub(super) fn recall_from(&mut self, recall: Recall) {
        self.known.recall_from(recall);
    }

    /// Reads what is known.
    pub(super) fn read_known(&mut self) {
        self.known.read();
    }

    /// What to recall later, if it is more than was recalled.
    pub(super) fn findings(&self) -> Option<Vec<Finding>> {
        self.known.findings()
    }

    /// The code may have changed: what was found in it is forgotten, where it begins is not.
    pub(super) fn forget_code(&mut self) {
        self.found.clear();
        self.targets.clear();
        self.locked.clear();
        self.behind_stubs.clear();
        self.operations.clear();
        self.locked_words.clear();
        self.wrappers.clear();
        self.calls_beside.clear();
        self.second_looks.clear();
        self.pieces.forget();
        self.yields.clear();
        self.waits.get_mut().clear();
        self.written.get_mut().clear();
    }

    /// Whether an address that is part of an instruction may be a variable's.
    fn is_variable(&self, address: u64) -> bool {
        let behind = self.constant.partition_point(|range| range.start <= address);
        behind.checked_sub(1).is_none_or(|last| !self.constant[last].contains(&address))
    }

    /// The function around `pc`, as far as is known.
    fn around(&self, pc: u64) -> Option<Extent> {
        let next = self.starts.partition_point(|&start| start <= pc);
        let start = self.starts[next.checked_sub(1)?];
        let limit = start.saturating_add(MAX_BYTES);
        let told = self.followed.get(&start);
        let end = told.or(self.starts.get(next)).copied().filter(|&end| end <= limit);
        let range = start..end.unwrap_or(limit);
        let ends = end.is_some() && (told.is_some() || !self.lasts.contains(&start));
        range.contains(&pc).then_some(Extent { range, ends })
    }

    /// The idioms of the function around `pc`; `None` if no function is known there.
    pub(super) fn idioms(&mut self, pc: u64) -> Option<Arc<Idioms>> {
        self.settle();
        let extent = self.around(pc)?;
        let start = extent.range.start;
        if let Some(found) = self.found.get(&start) {
            return Some(Arc::clone(found));
        }
        if let Some(known) = self.known.get(&extent.range, |len| first_bytes(&extent, len)) {
            self.found.insert(start, Arc::clone(&known));
            return Some(known);
        }
        let (code, bytes) = read(&extent);
        let code = Listing::new(code);
        let module = self.modules.iter().find(|(range, _)| range.contains(&start)).cloned();
        let (module, trusted) = module.unwrap_or_default();
        let Locks { own, library, roles, pauses } = self.locks_of(&code, &extent, &module);
        let locks: Vec<bool> =
            own.iter().zip(&library).map(|(own, library)| own | library).collect();
        let (handed, looks) = match trusted {
            true => (futexes(&code), self.first_looks(&code, &locks, &extent.range, &module)),
            false => (self.named_by_others(&code, &extent, &module), Vec::new()),
        };
        let yields = |call: &Instruction| {
            let at = code.binary_search_by_key(&call.ip(), Instruction::ip);
            at.is_ok_and(|at| pauses[at])
        };
        let accesses = || code.iter().any(|i| is_candidate(i) || is_store(i));
        let called = match trusted || !accesses() {
            true => Beside::default(),
            false => self.called_beside(&extent, &module),
        };
        let held = match called.held && !called.free && !locks.contains(&true) {
            true => vec![true; code.len()],
            false => held(&code, &roles),
        };
        let around = Surroundings {
            locks: &locks,
            handed: &handed,
            looks: &looks,
            pauses: &pauses,
            is_called_beside_locks: called.locks,
            is_called_beside_own: called.own,
            held: &held,
            is_atomic_operation: self.is_atomic_operation(start)
                || called.own && self.operation(start).accesses_only(Some(0))
                || self.releases_beside_lock(start, &code, &module),
            trusted,
            atomic: &self.atomics.within(&extent.range),
            // Linkers lay variables behind the code, which tells them from numbers.
            is_variable: &|address| address >= module.start && self.is_variable(address),
            only_waits: &|call| self.leads_to_waiting(call) || yields(call),
            writes: &|call, offset| self.writes_field(call, offset),
        };
        let found = Arc::new(idioms(&code, &around));
        self.known.keep(start, &bytes, &found);
        self.found.insert(start, Arc::clone(&found));
        Some(found)
    }

    /// Whether the function at `start` is one of a library of atomic operations: of functions side
    /// by side that access nothing but what their argument points to, one of them by a locked
    /// instruction.
    fn is_atomic_operation(&mut self, start: u64) -> bool {
        const FURTHEST: usize = 64;
        let field = self.operation(start).field();
        if field.is_none() {
            return false;
        }
        let at = self.starts.partition_point(|&other| other < start);
        let before: Vec<u64> =
            self.starts[at.saturating_sub(FURTHEST)..at].iter().rev().copied().collect();
        let from = self.starts[at..].iter().take(FURTHEST).copied().collect();
        [before, from].into_iter().any(|side: Vec<u64>| {
            let operations = side.into_iter().map(|other| self.operation(other));
            let mut run = operations.take_while(|operation| operation.accesses_only(field));
            run.any(|operation| matches!(operation, Operation::Locked(_)))
        })
    }

    fn operation(&mut self, start: u64) -> Operation {
        if let Some(&known) = self.operations.get(&start) {
            return known;
        }
        const LONGEST: u64 = 96;
        let extent = self.around(start);
        let short = extent.filter(|extent| extent.range.end - extent.range.start <= LONGEST);
        let found = short.map_or(Operation::Other, |extent| operation(&extent));
        self.operations.insert(start, found);
        found
    }

    /// Whether a call goes to another module, or to a function that only waits.
    fn leads_to_waiting(&self, call: &Instruction) -> bool {
        if call.op0_kind() != OpKind::NearBranch64 {
            return is_foreign(call);
        }
        let target = call.near_branch_target();
        if let Some(&known) = self.waits.borrow().get(&target) {
            return known;
        }
        let found = is_foreign(call) || self.only_waits(call);
        self.waits.borrow_mut().insert(target, found);
        found
    }

    /// Whether a call leads to a function of its module that writes nothing but its own stack, and
    /// calls nothing of its module: one that sleeps for a moment, or looks at something.
    fn only_waits(&self, call: &Instruction) -> bool {
        const LONGEST: usize = 64;
        let target = call.near_branch_target();
        let Some(extent) = self.around(target).filter(|extent| extent.range.start == target) else {
            return false;
        };
        if extent.ends && extent.range.end - target > (LONGEST * LONGEST_INSTRUCTION) as u64 {
            return false;
        }
        let code = instructions(&extent);
        let mut factory = InstructionInfoFactory::new();
        let mut is_harmless = |i: &Instruction| match i.flow_control() {
            // System calls are among them.
            FlowControl::Call | FlowControl::IndirectCall => {
                i.mnemonic() == Mnemonic::Call && is_foreign(i)
            }
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                extent.range.contains(&i.near_branch_target()) || foreign_slot(i).is_some()
            }
            FlowControl::Next | FlowControl::Return => {
                writes_only_stack(factory.info(i).used_memory())
            }
            _ => false,
        };
        call.is_call_near() && code.len() <= LONGEST && code.iter().all(&mut is_harmless)
    }

    /// Whether what a branch leads to, in any module, lets other threads go on.
    fn callee(&mut self, branch: &Instruction) -> Callee {
        let to = match branch.op0_kind() {
            OpKind::NearBranch64 => Some(self.behind_stub(branch.near_branch_target())),
            _ => indirect_slot(branch).and_then(word),
        };
        let Some(to) = to else { return Callee::Other };
        if let Some(&known) = self.yields.get(&to) {
            return known;
        }
        const LONGEST: u64 = 64;
        let module = |at: u64| self.modules.iter().find(|(range, _)| range.contains(&at));
        // A language's function that lets others go on may only jump to the C library's.
        let jumps_to = module(to).and_then(|_| stub_slot(to)).and_then(word);
        let start = jumps_to.unwrap_or(to);
        let found = module(start).map_or(Callee::Other, |(range, _)| {
            let extent = Extent { range: start..range.end.min(start + LONGEST), ends: true };
            // Most functions have no system call, and need not be decoded to know it.
            let code = first_bytes(&extent, MAX_BYTES);
            let calls = code.windows(2).any(|code| code == SYSCALL);
            if calls { callee(&decode(&extent, &code)) } else { Callee::Other }
        });
        self.yields.insert(to, found);
        found
    }

    /// Whether a branch calls a function of the module that has locked instructions, or ends in it.
    fn calls_locked(
        &mut self,
        branch: &Instruction,
        inside: &Range<u64>,
        module: &Range<u64>,
    ) -> bool {
        let function = self.leads_to(branch, inside, module);
        function.is_some_and(|function| self.has_locked(function))
    }

    /// Whether the function at `start` has locked instructions.
    fn has_locked(&mut self, start: u64) -> bool {
        if let Some(&known) = self.locked.get(&start) {
            return known;
        }
        let found = self.around(start).is_some_and(|extent| has_locked(&extent));
        self.locked.insert(start, found);
        found
    }

    /// Where a branch to an address leads: to there, or by a stub that is there.
    fn behind_stub(&mut self, target: u64) -> u64 {
        *self
            .behind_stubs
            .entry(target)
            .or_insert_with(|| stub_slot(target).and_then(word).unwrap_or(target))
    }

    /// The other function of the module that a branch leads to. Libraries call their own functions
    /// through the dynamic linker's tables, too, by stubs or directly.
    fn leads_to(
        &mut self,
        branch: &Instruction,
        inside: &Range<u64>,
        module: &Range<u64>,
    ) -> Option<u64> {
        let target = match branch.op0_kind() {
            OpKind::NearBranch64 => branch.near_branch_target(),
            _ => indirect_slot(branch).filter(|&slot| !self.is_variable(slot))?,
        };
        if inside.contains(&target) {
            return None;
        }
        if let Some(&known) = self.targets.get(&target) {
            return known;
        }
        let function = match branch.op0_kind() {
            OpKind::NearBranch64 => self.behind_stub(target),
            _ => word(target).unwrap_or(target),
        };
        let is_own = module.contains(&function) && self.starts.binary_search(&function).is_ok();
        let found = is_own.then_some(function);
        self.targets.insert(target, found);
        found
    }
}

fn operation(extent: &Extent) -> Operation {
    let code = Listing::new(instructions(extent));
    let (mut field, mut locks) = (None, false);
    for (i, address) in code.iter().zip(symbolic_addresses(&code)) {
        let stays = match i.flow_control() {
            FlowControl::Next | FlowControl::Return => true,
            // Linkers fill gaps with them.
            FlowControl::Interrupt => i.mnemonic() == Mnemonic::Int3,
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                extent.range.contains(&i.near_branch_target())
            }
            _ => false,
        };
        let base = i.memory_base();
        let own = !has_memory(i)
            || matches!(i.mnemonic(), Mnemonic::Lea | Mnemonic::Nop)
            || matches!(base, Register::RSP | Register::RBP);
        if !own {
            let Some((_, offset)) = address.and_then(SymbolicAddress::argument) else {
                return Operation::Other;
            };
            if *field.get_or_insert(offset) != offset {
                return Operation::Other;
            }
        }
        if !stays {
            return Operation::Other;
        }
        locks |= is_locked(i);
    }
    if locks { Operation::Locked(field) } else { Operation::Plain(field) }
}

/// Whether a call goes through a table that the dynamic linker fills: directly, or by a stub.
fn is_foreign(call: &Instruction) -> bool {
    foreign_slot(call).is_some()
}

/// Where in a table of the dynamic linker's the address lies that a branch jumps to, if it goes by one.
fn foreign_slot(branch: &Instruction) -> Option<u64> {
    indirect_slot(branch).or_else(|| {
        let is_direct = branch.op0_kind() == OpKind::NearBranch64;
        is_direct.then(|| stub_slot(branch.near_branch_target())).flatten()
    })
}

/// The same of a branch to an address: a stub may be there.
fn stub_slot(target: u64) -> Option<u64> {
    const LONGEST_STUB: usize = 16;
    /// An indirect jump by an address that is relative to the instruction's own.
    const JUMP: [u8; 2] = [0xff, 0x25];
    let mut code = [0; LONGEST_STUB];
    let readable = read_guest(target, &mut code);
    // Most calls lead to no stub, and nothing need be decoded to know it.
    if !code[..readable].windows(JUMP.len()).any(|bytes| bytes == JUMP) {
        return None;
    }
    Decoder::with_ip(64, &code[..readable], target, DecoderOptions::NONE)
        .iter()
        .find(|i| i.mnemonic() != Mnemonic::Endbr64)
        .and_then(|jump| indirect_slot(&jump).filter(|_| jump.is_jmp_near_indirect()))
}

/// The variable through which an indirect branch goes by itself.
fn indirect_slot(branch: &Instruction) -> Option<u64> {
    let is_indirect = branch.is_call_near_indirect() || branch.is_jmp_near_indirect();
    (is_indirect && branch.is_ip_rel_memory_operand()).then(|| branch.memory_displacement64())
}

/// The bytes of `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The word at an address, if there is memory.
fn word(address: u64) -> Option<u64> {
    read_word(address).ok()
}

#[cfg(test)]
mod tests {
    use super::{Extent, Functions, MAX_BYTES};
    use iced_x86::code_asm::*;

    #[test]
    fn lookup() {
        let extent = |range, ends| Some(Extent { range, ends });
        let mut functions = Functions::default();
        assert_eq!(functions.around(0x1000), None);
        functions.with(&[0x3000, 0x1000, 0x2000, 0x1000], &[], &[], false, None);
        assert_eq!(functions.around(0xfff), None);
        assert_eq!(functions.around(0x1000), extent(0x1000..0x2000, true));
        assert_eq!(functions.around(0x1fff), extent(0x1000..0x2000, true));
        assert_eq!(functions.around(0x2000), extent(0x2000..0x3000, true));
        assert_eq!(functions.around(0x4000), extent(0x3000..0x3000 + MAX_BYTES, false));
        assert_eq!(functions.around(0x3000 + MAX_BYTES), None);
        functions.with(&[0x8000, 0x7000], &[], &[], false, None);
        assert_eq!(functions.around(0x4000), extent(0x3000..0x7000, false));
        assert_eq!(functions.around(0x7000), extent(0x7000..0x8000, true));
        functions.with(&[u64::MAX], &[], &[], false, None);
        assert_eq!(functions.around(u64::MAX), None);
    }

    /// What functions do, each at an address of its own in this process, as guests' functions are.
    pub(super) fn write_functions(write: &[fn(&mut CodeAssembler)]) -> (Functions, Vec<u64>) {
        let mut code: Vec<u8> = Vec::new();
        let mut starts = Vec::new();
        for write in write {
            let mut a = CodeAssembler::new(64).expect("64 is a bitness");
            write(&mut a);
            a.ret().expect("can be encoded");
            starts.push(code.len() as u64);
            code.extend(a.assemble(0).expect("what the tests write can be encoded"));
            code.resize(code.len().next_multiple_of(16), 0xcc);
        }
        starts.push(code.len() as u64);
        // Whole pieces of code are read, and no test has the handler of faults.
        code.resize(code.len() + MAX_BYTES as usize + (64 << 10), 0xcc);
        let code = code.leak();
        let starts: Vec<u64> = starts.iter().map(|at| code.as_ptr() as u64 + at).collect();
        let mut functions = Functions::default();
        functions.with(&starts, &[], &[], false, None);
        (functions, starts)
    }

    /// Where the table's slot is in [`jump_through_slot`].
    pub(super) const SLOT: u64 = 6;

    /// A function that leads to another one, by a slot of the linker's table.
    pub(super) fn jump_through_slot(a: &mut CodeAssembler) {
        let mut slot = a.create_label();
        a.jmp(qword_ptr(slot)).unwrap();
        a.set_label(&mut slot).unwrap();
        a.dq(&[0]).unwrap();
    }

    /// The slot of a function that is [`jump_through_slot`] leads to this address.
    pub(super) fn fill_slot(stub: u64, address: u64) {
        // SAFETY: the code is leaked memory of this test's own (`write_functions`).
        unsafe { ((stub + SLOT) as *mut u64).write_unaligned(address) };
    }

    /// Between a module's last function and the next module lies what is no code.
    #[test]
    fn last_functions_of_modules() {
        let (_, starts) = write_functions(&[
            |a| a.nop().unwrap(),
            |a| {
                a.lock().inc(dword_ptr(rdi)).unwrap();
                a.mov(eax, dword_ptr(rdi + 8)).unwrap();
            },
            |a| a.nop().unwrap(),
        ]);
        let mut functions = Functions::default();
        functions.with(&starts[..1], &[], &[], false, None);
        functions.with(&starts[2..], &[], &[], false, None);
        assert_eq!(functions.idioms(starts[0]).expect("known").sites.len(), 0);
        assert_eq!(functions.idioms(starts[1]).expect("known").sites.len(), 0);
        functions.with(&starts[1..2], &[], &[], false, None);
        assert_eq!(functions.idioms(starts[1]).expect("known").sites.len(), 1);
    }

    /// A number in a register is no address of a variable's; one behind the code is.
    #[test]
    fn numbers_are_no_variables() {
        let (mut functions, starts) = write_functions(&[
            |a| {
                a.mov(esi, 5).unwrap();
                a.mov(eax, dword_ptr(rsi + 0x10ee4)).unwrap();
            },
            |a| {
                let mut behind = a.create_label();
                a.lea(rsi, ptr(behind)).unwrap();
                a.mov(eax, dword_ptr(rsi + 0x100)).unwrap();
                a.set_label(&mut behind).unwrap();
            },
        ]);
        let mut sites = |at: usize| functions.idioms(starts[at]).expect("known").sites.len();
        assert_eq!([sites(0), sites(1)], [0, 1]);
    }

    /// Functions of 16 bytes: a lock and its release by a plain store, a look at a number, and who calls
    /// some of them; and the same again, without who calls them.
    #[test]
    fn short_functions_beside_locks() {
        fn lock(a: &mut CodeAssembler) {
            a.lock().bts(dword_ptr(rdi), 0).unwrap();
            a.call(0x1000).unwrap();
        }
        fn unlock(a: &mut CodeAssembler) {
            a.mov(dword_ptr(rdi), 0).unwrap();
        }
        fn look(a: &mut CodeAssembler) {
            a.mov(eax, dword_ptr(rdi + 8)).unwrap();
        }
        fn none(a: &mut CodeAssembler) {
            a.nop().unwrap();
            a.call(0x1000).unwrap();
        }
        let (mut functions, starts) = write_functions(&[
            lock,
            none,
            unlock,
            look,
            none,
            |a| {
                a.call((-80_i64) as u64).unwrap();
                a.call((-32_i64) as u64).unwrap();
                a.call((-48_i64) as u64).unwrap();
            },
            none,
            unlock,
            look,
        ]);
        let mut sites = |at: usize| functions.idioms(starts[at]).expect("known").sites.len();
        assert_eq!([sites(2), sites(3)], [1, 1]);
        assert_eq!([sites(7), sites(8)], [0, 0]);
    }

    /// As in a library whose functions others may replace: it calls its own through a table.
    #[test]
    fn calls_through_tables() {
        let (mut functions, starts) = write_functions(&[
            |a| {
                // The next function is 16 bytes further.
                a.call(16).unwrap();
                a.mov(eax, dword_ptr(rdi + 8)).unwrap();
            },
            jump_through_slot,
            |a| a.lock().inc(dword_ptr(rdi)).unwrap(),
        ]);
        assert_eq!(functions.idioms(starts[0]).expect("known").sites.len(), 0);
        functions.forget_code();
        fill_slot(starts[1], starts[2]);
        assert_eq!(functions.idioms(starts[0]).expect("known").sites.len(), 1);
    }

    /// As in the class of a counter, next to a function that looks at another field.
    #[test]
    fn operations_on_a_field() {
        let (mut functions, starts) = write_functions(&[
            |a| a.mov(eax, dword_ptr(rdi + 0x40)).unwrap(),
            |a| a.mov(eax, dword_ptr(rdi + 0x48)).unwrap(),
            |a| a.lock().add(dword_ptr(rdi + 0x48), esi).unwrap(),
            |a| {
                a.lock().inc(dword_ptr(rdi + 0x48)).unwrap();
                a.mov(eax, dword_ptr(rdi + 0x40)).unwrap();
            },
            |a| a.mov(eax, dword_ptr(rdi + 0x48)).unwrap(),
        ]);
        let found: Vec<bool> =
            starts[..5].iter().map(|&start| functions.is_atomic_operation(start)).collect();
        assert_eq!(found, [false, true, true, false, false]);
        let mut sites = |at: usize| functions.idioms(starts[at]).expect("known").sites.len();
        assert_eq!([sites(0), sites(1), sites(4)], [0, 1, 0]);
    }

    /// As in a library of atomic operations, next to a function of another kind.
    #[test]
    fn atomic_operations() {
        let (mut functions, starts) = write_functions(&[
            |a| a.mov(eax, dword_ptr(rdi)).unwrap(),
            |a| a.mov(rax, qword_ptr(rdi + 8)).unwrap(),
            |a| a.mov(eax, dword_ptr(rdi)).unwrap(),
            |a| a.mov(dword_ptr(rdi), esi).unwrap(),
            |a| a.lock().inc(dword_ptr(rdi)).unwrap(),
        ]);
        let found: Vec<bool> =
            starts[..5].iter().map(|&start| functions.is_atomic_operation(start)).collect();
        assert_eq!(found, [false, false, true, true, true]);
        let mut sites = |at: usize| functions.idioms(starts[at]).expect("known").sites.len();
        // (The first one answers what the word is: `answers`.)
        assert_eq!([sites(0), sites(1), sites(2), sites(3)], [1, 0, 1, 1]);
    }

    /// Who waits for room calls a function of its language's by a register, and that one jumps to the C
    /// library's by the linker's table.
    #[test]
    fn functions_that_let_others_go_on() {
        let (mut functions, starts) = write_functions(&[
            |a| {
                a.mov(eax, libc::SYS_sched_yield as u32).unwrap();
                a.syscall().unwrap();
            },
            jump_through_slot,
            jump_through_slot,
            |a| {
                // It loads the slot of the function before it, which the assembler cannot know.
                a.db(&[0x48, 0x8b, 0x1d]).unwrap();
                a.dd(&[(SLOT as i32 - 16 - 7) as u32]).unwrap();
                a.call(rbx).unwrap();
                a.mov(eax, dword_ptr(rdi + 8)).unwrap();
            },
        ]);
        let slot = starts[2] + SLOT;
        functions.with(&[], &[], std::slice::from_ref(&(slot..slot + 8)), false, None);
        fill_slot(starts[2], starts[1]);
        assert_eq!(functions.idioms(starts[3]).expect("known").sites.len(), 0);
        functions.forget_code();
        fill_slot(starts[1], starts[0]);
        assert_eq!(functions.idioms(starts[3]).expect("known").sites.len(), 1);
    }

    #[test]
    fn functions_that_only_wait() {
        let waits = |write: fn(&mut CodeAssembler)| {
            let mut a = CodeAssembler::new(64).expect("64 is a bitness");
            write(&mut a);
            // The function is part of this process, as guests' functions are.
            let code = vec![0xcc_u8; 256].leak();
            let start = code.as_ptr() as u64;
            let bytes = a.assemble(start).expect("what the tests write can be encoded");
            code[..bytes.len()].copy_from_slice(&bytes);
            let mut functions = Functions::default();
            functions.with(&[start, start + bytes.len() as u64], &[], &[], false, None);
            let mut caller = CodeAssembler::new(64).expect("64 is a bitness");
            caller.call(start).expect("can be encoded");
            let call = caller.instructions()[0];
            functions.only_waits(&call)
        };
        assert!(waits(|a| {
            a.sub(rsp, 24).unwrap();
            a.mov(qword_ptr(rsp + 8), rdi).unwrap();
            a.mov(rax, qword_ptr(rdi)).unwrap();
            a.add(rsp, 24).unwrap();
            a.ret().unwrap();
        }));
        assert!(!waits(|a| {
            a.mov(qword_ptr(rdi), rax).unwrap();
            a.ret().unwrap();
        }));
        assert!(!waits(|a| {
            a.syscall().unwrap();
            a.ret().unwrap();
        }));
    }

    #[test]
    fn what_lies_behind_a_function_is_none() {
        let extent = |range| Some(Extent { range, ends: true });
        let mut functions = Functions::default();
        let followed = [0x1000..0x1100, 0x9000..0x9010];
        functions.with(&[0x1000, 0x8000, 0x9000], &followed, &[], false, None);
        assert_eq!(functions.around(0x10ff), extent(0x1000..0x1100));
        assert_eq!(functions.around(0x1100), None);
        assert_eq!(functions.around(0x7fff), None);
        assert_eq!(functions.around(0x8000), extent(0x8000..0x9000));
        assert_eq!(functions.around(0x900f), extent(0x9000..0x9010), "the last one");
        assert_eq!(functions.around(0x9010), None);
        functions.with(&[0x1000, 0x1200], &[], &[], false, None);
        assert_eq!(functions.around(0x1100), extent(0x1000..0x1200), "another module's");
    }

    #[test]
    fn variables() {
        let mut functions = Functions::default();
        assert!(functions.is_variable(0x1000));
        functions.with(&[], &[], &[0x2000..0x3000, 0x1000..0x1008], false, None);
        assert!(functions.is_variable(0xfff));
        assert!(!functions.is_variable(0x1007));
        assert!(functions.is_variable(0x1008));
        assert!(!functions.is_variable(0x2fff));
        assert!(functions.is_variable(0x3000));
    }
}
