//! The control-flow graph of all recorded code.
//!
//! The trace's blocks overlap and are cut where the recorder happened to cut them. Here they
//! become basic blocks: every instruction start in the table is decoded once, and a block runs
//! from a leader to the next leader or to an instruction that ends it. Streams that overlap out
//! of step (a jump past a `lock` prefix) are separate blocks.

use super::thunk::Batch;
use super::vars::{self, Effects, VarSet};
use crate::accesses::{Memory, is_locked, is_repeated, is_wide, memory_of};
use crate::emulated::{emulated, is_of_state};
use crate::features::may_execute;
use crate::refused::is_refused;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};
use refrain_trace::CodeBlock;
use refrain_vm::{Answer, Emulate, Nested, OrderedKind, Processor};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// How a basic block ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Term {
    /// Runs on at `0`.
    Next(u64),
    /// A direct jump.
    Jump(u64),
    /// A conditional branch: taken, not taken.
    Branch(u64, u64),
    /// A direct call and where it returns to.
    Call(u64, u64),
    /// An indirect call.
    CallIndirect(u64),
    /// An indirect jump.
    JumpIndirect,
    /// A return.
    Return,
    /// A system call; goes on behind it.
    Syscall(u64),
    /// An instruction whose result the machine supplies; goes on behind it.
    Emulate(Emulate, u64),
    /// A locked instruction, or a watched load or store: if there are several threads, it is
    /// reported before it is stepped. The block holds nothing else.
    Watched(OrderedKind, u64),
    /// An instruction that no engine here executes; the block may hold others before it.
    Unsupported(&'static str),
    /// An instruction that raises a signal by itself (`ud2`, `int3`, `hlt`), and where the signal
    /// finds the program: at the instruction, or, after a trap, behind it.
    Raise(i32, u64),
}

/// A basic block.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// First instruction.
    pub(super) pc: u64,
    /// The instructions in [`Graph::code`]; all adjacent.
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) term: Term,
    /// The machine executes its only instruction.
    pub(super) left: bool,
    /// What threads may have to leave for before it is executed, if every access is ordered.
    pub(super) site: Option<Site>,
    /// Accesses that it counts then.
    pub(super) accesses: u32,
    /// A hooked address.
    pub(super) hooked: bool,
    /// Threads may have to leave before it, when they have executed so many instructions.
    pub(super) place: bool,
    /// A function begins here whose calls are logged.
    pub(super) function: Option<Answer>,
    /// One begins here whose calls are logged with those that they are within.
    pub(super) nested: Option<Nested>,
    /// Its call is logged likewise, if it leaves this range.
    pub(super) leaving: Option<Range<u64>>,
    /// The register whose value is logged before its first instruction.
    pub(super) value: Option<usize>,
    pub(super) effects: Effects,
    /// Indirect transfers may lead here.
    indirect: bool,
    /// Status flags that are live at its entry.
    pub(super) live_flags: u8,
}

/// An instruction that threads may have to leave for, if every access is ordered. It is the first of
/// its block, and the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Site {
    /// It has had an event: the thread leaves when no more accesses come before the next one.
    Access(OrderedKind, u8),
    /// It is executed by itself once there are several threads.
    Spans,
}

/// Instructions of a block, at most.
const LONGEST: usize = 512;

/// All code of a trace.
pub(super) struct Graph {
    /// Sorted by pc.
    pub(super) blocks: Vec<Block>,
    code: Vec<Instruction>,
    /// Every decoded instruction, sorted by pc.
    table: Vec<Instruction>,
    /// Status flags that are live behind indirect transfers.
    pub(super) indirect_flags: u8,
    /// Stores that are logged as reads where they change nothing.
    pub(super) compared: BTreeSet<u64>,
    /// The guest's.
    pub(super) processor: Processor,
}

/// What decides where blocks are cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cuts<'a> {
    /// Hooked addresses, sorted.
    pub(super) hooks: &'a [u64],
    /// Where threads may have to leave.
    pub(super) places: &'a BTreeSet<u64>,
    /// Instructions that the machine executes.
    pub(super) alone: &'a BTreeSet<u64>,
    /// Where functions begin whose calls are logged.
    pub(super) functions: &'a BTreeMap<u64, Answer>,
    /// Functions, and call instructions, whose calls are logged with those that they are within.
    pub(super) nested: &'a BTreeMap<u64, Nested>,
    /// Instructions before which a register's value is logged.
    pub(super) values: &'a BTreeMap<u64, usize>,
    /// Stores that are logged as reads where they change nothing.
    pub(super) compared: &'a BTreeSet<u64>,
    /// Plain loads and stores that are watched.
    pub(super) watched: Option<&'a BTreeSet<u64>>,
    pub(super) order_atomics: bool,
    /// Every access is ordered: those at `watched` instructions have had events.
    pub(super) every_access: bool,
    /// The guest's.
    pub(super) processor: Processor,
    /// Repeated string instructions may stop in between, and so begin blocks.
    pub(super) pieces: bool,
}

impl Graph {
    /// Builds the graph. Returns the first address where two blocks disagree about the code.
    pub(super) fn new(blocks: &[CodeBlock], cuts: Cuts<'_>) -> Result<Graph, u64> {
        let table = decode(blocks)?;
        let leaders = leaders(blocks, &table, cuts);
        let mut graph = Graph {
            blocks: Vec::new(),
            code: Vec::new(),
            table,
            indirect_flags: 0,
            compared: cuts.compared.clone(),
            processor: cuts.processor,
        };
        let mut factory = InstructionInfoFactory::new();
        for &pc in &leaders {
            let mut rest = Some(pc);
            while let Some(pc) = rest {
                rest = graph.push_block(pc, &leaders, cuts, &mut factory);
            }
        }
        graph.blocks.sort_by_key(|block| block.pc);
        graph.blocks.dedup_by_key(|block| block.pc);
        graph.solve_flags();
        Ok(graph)
    }

    /// The block that starts at `pc`.
    pub(super) fn at(&self, pc: u64) -> Option<usize> {
        self.blocks.binary_search_by_key(&pc, |b| b.pc).ok()
    }

    /// The instructions of a block.
    pub(super) fn instructions(&self, block: &Block) -> &[Instruction] {
        &self.code[block.first as usize..][..block.count as usize]
    }

    /// The instruction at `pc`, if it is known.
    pub(super) fn instruction(&self, pc: u64) -> Option<&Instruction> {
        find(&self.table, pc)
    }

    /// Adds the block at `pc`. Returns where it was cut if it became too long.
    fn push_block(
        &mut self,
        pc: u64,
        leaders: &[u64],
        cuts: Cuts<'_>,
        factory: &mut InstructionInfoFactory,
    ) -> Option<u64> {
        let first = self.code.len();
        let mut at = pc;
        let mut long = None;
        let mut effects = Effects::default();
        let (mut site, mut left, mut accesses) = (None, false, 0);
        let term = loop {
            if at != pc && leaders.binary_search(&at).is_ok() {
                break Term::Next(at);
            }
            if self.code.len() - first == LONGEST {
                long = Some(at);
                break Term::Next(at);
            }
            let Some(&i) = find(&self.table, at) else { break Term::Next(at) };
            at = i.next_ip();
            let term = ending(&i, cuts);
            let alone = matches!(term, Some(Term::Watched(..)))
                || site_of(&i, cuts).is_some()
                || is_left(&i, cuts);
            if alone && i.ip() != pc {
                break Term::Next(i.ip());
            }
            if i.ip() == pc {
                (site, left) = (site_of(&i, cuts), is_left(&i, cuts));
            }
            self.code.push(i);
            accesses += u32::from(cuts.every_access && is_counted(&i));
            effects = effects.then(effects_of(factory, &i, term));
            if let Some(term) = term {
                break term;
            }
            if site.is_some() || left {
                break Term::Next(at);
            }
        };
        let (first, count) = (first as u32, (self.code.len() - first) as u32);
        let hooked = cuts.hooks.binary_search(&pc).is_ok();
        let last = self.code.last().and_then(|last| cuts.nested.get(&last.ip()));
        let leaving = match (term, last) {
            (Term::CallIndirect(_), Some(Nested::Site(range))) => Some(range.clone()),
            _ => None,
        };
        self.blocks.push(Block {
            pc,
            first,
            count,
            term,
            site,
            left,
            accesses,
            hooked,
            place: cuts.places.contains(&pc),
            function: cuts.functions.get(&pc).copied(),
            nested: cuts.nested.get(&pc).filter(|it| matches!(it, Nested::Function(_))).cloned(),
            leaving,
            value: cuts.values.get(&pc).copied(),
            effects,
            indirect: false,
            live_flags: 0,
        });
        long
    }

    /// Liveness of the status flags over the whole graph, the least solution.
    ///
    /// Behind an indirect transfer those are live that some block reads to which one may lead:
    /// any that is not reached directly only. An indirect transfer to one of the others that does
    /// read more is refused ([`Graph::is_hidden`]); compilers make none. What the machine sees at
    /// an exit is right for the flags that the program can still read.
    fn solve_flags(&mut self) {
        self.mark_indirect_targets();
        let mut changed = true;
        while changed {
            changed = false;
            for index in (0..self.blocks.len()).rev() {
                let out = self.live_flags_behind(&self.blocks[index], 0);
                let block = &mut self.blocks[index];
                let out = VarSet::of_flags(out);
                let live = out.without(block.effects.kills).or(block.effects.uses).flags();
                if live & !block.live_flags != 0 {
                    block.live_flags |= live;
                    changed = true;
                }
                let seen = if block.indirect { live } else { 0 };
                changed |= seen & !self.indirect_flags != 0;
                self.indirect_flags |= seen;
            }
        }
    }

    /// Marks what is called, returned to, or not reached by any direct jump.
    fn mark_indirect_targets(&mut self) {
        let mut direct = vec![false; self.blocks.len()];
        let mut called = vec![false; self.blocks.len()];
        for block in &self.blocks {
            let mark =
                |marks: &mut Vec<bool>, pc| self.at(pc).into_iter().for_each(|b| marks[b] = true);
            match block.term {
                Term::Next(a) | Term::Jump(a) | Term::Watched(_, a) => mark(&mut direct, a),
                Term::Branch(a, b) => {
                    mark(&mut direct, a);
                    mark(&mut direct, b);
                }
                Term::Call(a, b) => {
                    mark(&mut called, a);
                    mark(&mut called, b);
                }
                Term::CallIndirect(a) => mark(&mut called, a),
                _ => {}
            }
        }
        for (at, block) in self.blocks.iter_mut().enumerate() {
            block.indirect = called[at] || !direct[at];
        }
    }

    /// Whether an indirect transfer to the block could lose flags that it reads.
    pub(super) fn is_hidden(&self, pc: u64) -> bool {
        let block = self.at(pc).map(|b| &self.blocks[b]);
        block.is_some_and(|b| !b.indirect && b.live_flags & !self.indirect_flags != 0)
    }

    /// Status flags live where the block ends. At the end of all that is known they are kept for
    /// the machine to see, as far as the block itself sets them.
    pub(super) fn live_flags_out(&self, block: &Block) -> u8 {
        self.live_flags_behind(block, 0x3f)
    }

    fn live_flags_behind(&self, block: &Block, at_end: u8) -> u8 {
        let live = |pc| self.live_flags_at(pc);
        match block.term {
            Term::Syscall(a) | Term::Emulate(_, a) if self.at(a).is_none() => at_end,
            Term::Next(a) | Term::Jump(a) | Term::Watched(_, a) | Term::Call(a, _) => live(a),
            Term::Branch(a, b) => live(a) | live(b),
            Term::Syscall(a) | Term::Emulate(_, a) => live(a),
            Term::CallIndirect(_) | Term::JumpIndirect | Term::Return => self.indirect_flags,
            Term::Unsupported(_) | Term::Raise(..) => 0,
        }
    }

    /// Status flags live at `pc`; none if it is not known, since no code goes on there.
    pub(super) fn live_flags_at(&self, pc: u64) -> u8 {
        self.at(pc).map_or(0, |b| self.blocks[b].live_flags)
    }
}

/// What the instruction does as far as translated code does it: instructions that are left to the
/// machine do nothing but give an address.
fn effects_of(
    factory: &mut InstructionInfoFactory,
    i: &Instruction,
    term: Option<Term>,
) -> Effects {
    let effects = vars::effects(factory, i);
    match term {
        Some(Term::Syscall(_) | Term::Emulate(..) | Term::Unsupported(_) | Term::Raise(..)) => {
            Effects::default()
        }
        // If it is reported, it has not overwritten anything yet.
        Some(Term::Watched(..)) => Effects { kills: VarSet::EMPTY, ..effects },
        _ => effects,
    }
}

fn find(table: &[Instruction], pc: u64) -> Option<&Instruction> {
    table.binary_search_by_key(&pc, Instruction::ip).ok().map(|i| &table[i])
}

/// Decodes every block from its start.
fn decode(blocks: &[CodeBlock]) -> Result<Vec<Instruction>, u64> {
    let mut table = Vec::new();
    for block in blocks {
        let mut decoder = Decoder::with_ip(64, &block.code, block.pc, DecoderOptions::NONE);
        while decoder.can_decode() {
            let i = decoder.decode();
            let truncated =
                i.is_invalid() && decoder.last_error() == iced_x86::DecoderError::NoMoreBytes;
            if truncated {
                break;
            }
            table.push(i);
        }
    }
    table.sort_by_key(Instruction::ip);
    table.dedup_by(|a, b| a.ip() == b.ip() && a.len() == b.len() && a == b);
    match table.windows(2).find(|w| w[0].ip() == w[1].ip()) {
        Some(w) => Err(w[0].ip()),
        None => Ok(table),
    }
}

fn leaders(blocks: &[CodeBlock], table: &[Instruction], cuts: Cuts<'_>) -> Vec<u64> {
    let mut leaders: Vec<u64> = blocks.iter().map(|b| b.pc).collect();
    leaders.extend(cuts.hooks);
    leaders.extend(cuts.places);
    leaders.extend(cuts.functions.keys());
    let is_function = |it: &(&u64, &Nested)| matches!(it.1, Nested::Function(_));
    leaders.extend(cuts.nested.iter().filter(is_function).map(|(pc, _)| pc));
    leaders.extend(cuts.values.keys());
    for i in table {
        let direct = i.is_jcc_short_or_near()
            || i.is_jmp_short_or_near()
            || i.is_call_near()
            || i.is_loop()
            || i.is_loopcc()
            || i.is_jcx_short();
        if direct {
            leaders.push(i.near_branch_target());
        }
        if site_of(i, cuts).is_some() || is_left(i, cuts) {
            leaders.extend([i.ip(), i.next_ip()]);
        }
        match ending(i, cuts) {
            Some(Term::Watched(_, next)) => leaders.extend([i.ip(), next]),
            Some(_) => leaders.push(i.next_ip()),
            None if cuts.pieces && is_repeated(i) => leaders.push(i.ip()),
            None => {}
        }
    }
    leaders.retain(|&pc| find(table, pc).is_some());
    leaders.sort_unstable();
    leaders.dedup();
    leaders
}

/// Whether an instruction with one memory operand writes it. (`push` writes to the stack.)
fn writes_memory(i: &Instruction) -> bool {
    if i.mnemonic() == Mnemonic::Push {
        return false;
    }
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(i).used_memory();
    used.iter().any(|used| matches!(used.access(), OpAccess::Write | OpAccess::ReadWrite))
}

/// Whether an instruction accesses memory that it can count by itself.
pub(super) fn is_counted(i: &Instruction) -> bool {
    matches!(memory_of(i), Memory::Operand(..))
}

/// Whether the machine executes the instruction.
fn is_left(i: &Instruction, cuts: Cuts<'_>) -> bool {
    cuts.alone.contains(&i.ip())
}

/// What threads may have to leave for at an instruction, if every access is ordered.
fn site_of(i: &Instruction, cuts: Cuts<'_>) -> Option<Site> {
    if !cuts.every_access {
        return None;
    }
    match memory_of(i) {
        Memory::None => None,
        Memory::Spans => Some(Site::Spans),
        Memory::Operand(kind, size) => {
            let watched = cuts.watched.is_some_and(|watched| watched.contains(&i.ip()));
            watched.then_some(Site::Access(kind, size))
        }
    }
}

fn ending(i: &Instruction, cuts: Cuts<'_>) -> Option<Term> {
    let next = i.next_ip();
    if cuts.order_atomics && !cuts.every_access {
        if is_locked(i) {
            return Some(Term::Watched(OrderedKind::ReadModifyWrite, next));
        }
        if cuts.watched.is_some_and(|watched| watched.contains(&i.ip())) {
            let kind = if is_wide(i) {
                OrderedKind::ReadModifyWrite
            } else if writes_memory(i) {
                OrderedKind::Store
            } else {
                OrderedKind::Load
            };
            return Some(Term::Watched(kind, next));
        }
    }
    match i.code() {
        Code::INVALID | Code::Ud2 => return Some(Term::Raise(libc::SIGILL, i.ip())),
        Code::Int3 | Code::Int1 => return Some(Term::Raise(libc::SIGTRAP, next)),
        Code::Hlt => return Some(Term::Raise(libc::SIGSEGV, i.ip())),
        Code::Syscall => return Some(Term::Syscall(next)),
        _ => {}
    }
    if let Some(emulate) = emulated(i) {
        return Some(Term::Emulate(emulate, next));
    }
    match i.flow_control() {
        FlowControl::Next => {
            let alone = site_of(i, cuts).is_some();
            let cannot = alone
                && Batch::new(i, cuts.processor, &mut InstructionInfoFactory::new()).is_none();
            let refused = unsupported(i, cuts.processor).or_else(|| cannot.then(|| name(i)));
            refused.map(Term::Unsupported)
        }
        FlowControl::UnconditionalBranch if i.is_jmp_short_or_near() => {
            Some(Term::Jump(i.near_branch_target()))
        }
        FlowControl::ConditionalBranch => Some(Term::Branch(i.near_branch_target(), next)),
        FlowControl::Call if i.is_call_near() => Some(Term::Call(i.near_branch_target(), next)),
        FlowControl::IndirectCall if i.is_call_near_indirect() => Some(Term::CallIndirect(next)),
        FlowControl::IndirectBranch if i.is_jmp_near_indirect() => Some(Term::JumpIndirect),
        FlowControl::Return if matches!(i.code(), Code::Retnq | Code::Retnq_imm16) => {
            Some(Term::Return)
        }
        _ => Some(Term::Unsupported(name(i))),
    }
}

/// The name to refuse an instruction by, if it is not for user programs on this processor.
fn unsupported(i: &Instruction, processor: Processor) -> Option<&'static str> {
    let segment = |n| {
        matches!(i.op_kind(n), OpKind::Register)
            && (i.op_register(n).is_segment_register()
                || i.op_register(n).is_cr()
                || i.op_register(n).is_dr())
    };
    let odd_segment = i.memory_segment() == Register::GS
        && (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    let odd_stack = matches!(
        i.code(),
        Code::Enterq_imm16_imm8 | Code::Pushw_FS | Code::Pushq_FS | Code::Popw_FS | Code::Popq_FS
    );
    let refused = is_refused(i.mnemonic())
        || is_of_state(i) && emulated(i).is_none()
        || !may_execute(processor, i)
        || odd_segment
        || odd_stack
        || i.is_privileged()
        || (0..i.op_count()).any(segment);
    refused.then(|| name(i))
}

pub(super) fn name(i: &Instruction) -> &'static str {
    mnemonic_name(i.mnemonic())
}

/// The mnemonic as text. iced's names exist as `Debug` output only, so they are leaked once each.
fn mnemonic_name(mnemonic: Mnemonic) -> &'static str {
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    static NAMES: Mutex<BTreeMap<usize, &'static str>> = Mutex::new(BTreeMap::new());
    let mut names = NAMES.lock().expect("no panic while the lock is held");
    names
        .entry(mnemonic as usize)
        .or_insert_with(|| Box::leak(format!("{mnemonic:?}").to_lowercase().into_boxed_str()))
}
