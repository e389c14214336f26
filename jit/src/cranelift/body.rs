//! A region as a Cranelift function.
//!
//! The function is never called: control comes to one of its *ways in* (one per entry block) by
//! a jump and leaves by a jump. To Cranelift a way in is a block that begins with a call of a
//! marker symbol, behind which the linker finds the address, and a jump out is a call of a symbol
//! followed by a trap; the linker makes a jump of it. So nothing of a calling convention is left
//! but the stack frame, whose only explicit slot is the [`Frame`].
//!
//! Values of guest registers pass between blocks of a region as block parameters, where more than
//! one edge leads to a block; a block with one edge simply goes on with its predecessor's state.

mod rep;

use super::flow::{self, Dataflow};
use super::frame::{self, Frame, leave};
use super::graph::{Block, Graph, Site, Term, is_counted};
use super::lift::{Lifter, State, Watch, int, symbol};
use super::regions::Region;
use super::thunk::Batch;
use super::vars::{self, FLAG, RETIRED, VarSet};
use crate::accesses::is_repeated;
use crate::cost::{BYTES_A_QUARTER, weigh};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{
    self, BlockArg, Function, InstBuilder, MemFlagsData, StackSlotData, StackSlotKind, Value,
};
use cranelift_codegen::isa::TargetFrontendConfig;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic};
use refrain_trace::Access;
use refrain_vm::reg::RCX;
use refrain_vm::{Count, LastMet, Met, Nested, OrderedKind};
use std::mem::offset_of;
use std::slice;

/// Translates a region into `func` and returns the thunks that it calls.
pub(super) fn translate(
    graph: &Graph,
    region: &Region,
    watch: Watch,
    config: TargetFrontendConfig,
    func: &mut Function,
    context: &mut FunctionBuilderContext,
) -> Vec<Batch> {
    func.signature = ir::Signature::new(cranelift_codegen::isa::CallConv::SystemV);
    func.signature.params.push(ir::AbiParam::new(I32));
    let mut b = FunctionBuilder::new(func, context);
    let slot = b.create_sized_stack_slot(StackSlotData::new(
        StackSlotKind::ExplicitSlot,
        size_of::<Frame>() as u32,
        4,
    ));
    let flow = flow::solve(graph, region, watch);
    let blocks = region.blocks.iter().map(|_| b.create_block()).collect();
    let lifter = Lifter::new(b, slot, watch);
    let mut body = Body {
        graph,
        region,
        flow,
        blocks,
        tasks: Vec::new(),
        l: lifter,
        factory: InstructionInfoFactory::new(),
    };
    body.ways_in();
    while let Some(task) = body.tasks.pop() {
        body.block(task);
    }
    body.l.b.seal_all_blocks();
    let Lifter { b, thunks, .. } = body.l;
    b.finalize(config);
    thunks
}

/// A block to translate, and what is known at its start.
struct Task {
    at: usize,
    block: ir::Block,
    state: State,
}

pub(super) struct Body<'a> {
    graph: &'a Graph,
    region: &'a Region,
    flow: Dataflow,
    blocks: Vec<ir::Block>,
    tasks: Vec<Task>,
    pub(super) l: Lifter<'a>,
    pub(super) factory: InstructionInfoFactory,
}

impl Body<'_> {
    fn source(&self, at: usize) -> &Block {
        &self.graph.blocks[self.region.blocks[at] as usize]
    }

    /// More than one edge leads to the block, so that values come as parameters.
    fn merges(&self, at: usize) -> bool {
        self.flow.edges[at] + u32::from(self.region.entries[at]) > 1
    }

    /// A short block that ends in an indirect transfer: each predecessor gets one of its own,
    /// which goes on with what is known there.
    fn is_tail(&self, at: usize) -> bool {
        let block = self.source(at);
        matches!(block.term, Term::Return | Term::JumpIndirect)
            && block.count <= 6
            && self.flow.room[at].is_none()
    }

    /// The variables that are parameters of a block.
    fn params(&self, at: usize) -> VarSet {
        self.flow.needed[at]
    }

    /// The function's own entry, which only keeps the ways in alive, and the ways in.
    fn ways_in(&mut self) {
        let start = self.l.b.create_block();
        self.l.b.append_block_params_for_function_params(start);
        let entries: Vec<usize> =
            (0..self.blocks.len()).filter(|&at| self.region.entries[at]).collect();
        let ways: Vec<_> = entries.iter().map(|_| self.l.b.create_block()).collect();
        self.l.b.switch_to_block(start);
        if let [only] = ways[..] {
            self.l.b.ins().jump(only, &[]);
        } else {
            let which = self.l.b.block_params(start)[0];
            let calls: Vec<_> = ways
                .iter()
                .map(|&w| {
                    ir::BlockCall::new(w, std::iter::empty(), &mut self.l.b.func.dfg.value_lists)
                })
                .collect();
            let table = self.l.b.create_jump_table(ir::JumpTableData::new(calls[0], &calls[1..]));
            self.l.b.ins().br_table(which, table);
        }
        for at in 0..self.blocks.len() {
            if self.merges(at) && (self.region.entries[at] || !self.is_tail(at)) {
                let mut state = State::clean();
                state.dirty = self.flow.dirty[at];
                std::mem::swap(&mut self.l.state, &mut state);
                for var in self.params(at).iter() {
                    let value = self.l.b.append_block_param(self.blocks[at], Lifter::type_of(var));
                    self.l.set_param(var, value);
                }
                std::mem::swap(&mut self.l.state, &mut state);
                self.tasks.push(Task { at, block: self.blocks[at], state });
            }
        }
        for (at, way) in entries.into_iter().zip(ways) {
            self.way_in(at, way);
        }
    }

    fn way_in(&mut self, at: usize, way: ir::Block) {
        self.l.b.switch_to_block(way);
        self.l.b.set_srcloc(ir::SourceLoc::new(self.source(at).pc as u32));
        self.l.come(at as u32);
        if let Some(records) = self.flow.entry_room[at] {
            let pc = self.source(at).pc;
            self.check_room(records, |body| body.leave(pc, leave::ACCESSES_FULL));
        }
        if self.l.watch.every {
            let pc = self.source(at).pc;
            self.check_handover(|body| body.leave(pc, leave::INTERRUPTED));
        }
        let flags = self.flow.needed[at].flags();
        if flags != 0 {
            self.fetch_flags(flags);
        }
        if self.merges(at) {
            let args = self.args(at);
            self.l.b.ins().jump(self.blocks[at], &args);
        } else {
            self.l.b.ins().jump(self.blocks[at], &[]);
            let state = self.l.state.clone();
            self.tasks.push(Task { at, block: self.blocks[at], state });
        }
    }

    /// Loads status flags, which may be in their lazy form.
    fn fetch_flags(&mut self, flags: u8) {
        let tag = self.l.frame_load(I64, frame::OFF_TAG);
        let (lazy, plain) = (self.l.b.create_block(), self.l.b.create_block());
        self.l.b.ins().brif(tag, lazy, &[], plain, &[]);
        self.l.b.set_cold_block(lazy);
        self.l.b.switch_to_block(lazy);
        let settle = self.l.symbol(symbol::SETTLE, 0);
        self.l.b.ins().call(settle, &[]);
        self.l.b.ins().jump(plain, &[]);
        self.l.b.switch_to_block(plain);
        for flag in (0..6).filter(|f| flags >> f & 1 != 0) {
            self.l.var(FLAG + flag);
        }
    }

    /// The current values of a block's parameters.
    fn args(&mut self, at: usize) -> Vec<BlockArg> {
        let values = self.params(at).iter().map(|var| {
            let is_flag = VarSet::FLAGS.has(var);
            BlockArg::Value(if is_flag { self.l.flag(var - FLAG) } else { self.l.var(var) })
        });
        values.collect()
    }

    fn block(&mut self, task: Task) {
        let Task { at, block, state } = task;
        self.l.b.switch_to_block(block);
        self.l.state = state;
        let source = self.source(at).clone();
        if let Some(records) = self.flow.room[at] {
            let live = source.live_flags;
            self.check_room(records, |body| body.exit(source.pc, leave::ACCESSES_FULL, live));
        }
        if source.place {
            let live = source.live_flags;
            let (retired, limit) =
                (self.l.var(RETIRED), self.l.frame_load(I64, frame::OFF_LEAVE_AT));
            let reached = self.l.b.ins().icmp(IntCC::Equal, retired, limit);
            self.leave_if(reached, |body| body.exit(source.pc, leave::INTERRUPTED, live));
        }
        if self.l.watch.every && self.region.loops[at] {
            let live = source.live_flags;
            self.check_handover(|body| body.exit(source.pc, leave::INTERRUPTED, live));
        }
        if let Some(answer) = source.function {
            self.l.enter_function(source.pc, answer);
        }
        if let Some(Nested::Function(list)) = source.nested {
            self.l.enter_nested(source.pc, None, list);
        }
        if let Some(register) = source.value {
            self.l.log_value(source.pc, register);
        }
        self.site(&source);
        let instructions = self.graph.instructions(&source).to_vec();
        if source.left {
            let live = source.live_flags;
            // A watched one is left for by itself, once there are several threads.
            let leaves = match source.term {
                Term::Watched(..) => {
                    let several = self.several();
                    self.l.icmp_imm(IntCC::Equal, several, 0)
                }
                _ => self.l.iconst(I64, 1),
            };
            // The machine executes this instruction, and none behind it.
            let own =
                u32::from(source.accesses > 0 && instructions.first().is_some_and(is_counted));
            self.leave_if(leaves, |body| {
                body.count_down(own);
                body.exit(source.pc, leave::ALONE, live);
            });
        }
        self.count_down(source.accesses);
        let (last, ends) = (instructions.last(), ends_block(source.term));
        let plain = instructions.len() - usize::from(ends);
        let not_retired = match source.term {
            Term::Unsupported(_) => true,
            Term::Raise(_, at) => last.is_some_and(|last| last.ip() == at),
            _ => false,
        };
        let retired = &instructions[..instructions.len() - usize::from(not_retired)];
        self.l.retire(weigh(self.l.watch.count, retired));
        let live = self.live_behind(&source, &instructions);
        if self.instructions(&instructions[..plain], &live) {
            self.l.live = self.graph.live_flags_out(&source);
            let last = last.copied().unwrap_or_default();
            self.end(at, source.term, &last);
        }
    }

    /// Status flags live behind each instruction.
    fn live_behind(&mut self, source: &Block, instructions: &[Instruction]) -> Vec<u8> {
        let mut live = self.graph.live_flags_out(source);
        let mut all = vec![0; instructions.len()];
        for (n, i) in instructions.iter().enumerate().rev() {
            all[n] = live;
            let read = vars::flag_mask(i.rflags_read());
            let written = vars::flag_mask(i.rflags_modified());
            live =
                if vars::writes_flags_sometimes(i) { live | read } else { live & !written | read };
        }
        all
    }

    /// Translates instructions that are no control transfers. Returns false if one of them cannot
    /// be executed; the block then ends there.
    fn instructions(&mut self, instructions: &[Instruction], live: &[u8]) -> bool {
        let mut pending: Option<(Batch, u8)> = None;
        for (i, &live) in instructions.iter().zip(live) {
            let lifted = Lifter::lifts(i);
            let alone = is_repeated(i) && (self.l.watch.accesses || self.weighs());
            let batch =
                if lifted { None } else { Batch::new(i, self.graph.processor, &mut self.factory) };
            if let (Some((pending, behind)), Some(batch), false) = (&mut pending, &batch, alone)
                && pending.join(batch, self.l.watch.accesses)
            {
                *behind = live;
                continue;
            }
            if let Some((batch, live)) = pending.take() {
                self.l.live = live;
                self.l.thunk(batch, &mut self.factory);
            }
            self.l.live = live;
            match batch {
                _ if lifted => {
                    self.l.compares = self.graph.compared.contains(&i.ip());
                    self.l.lift(i);
                }
                Some(batch) if alone => self.repeated(i, batch, instructions),
                Some(batch) => pending = Some((batch, live)),
                None => {
                    self.l.at(i);
                    self.exit(i.ip(), leave::UNSUPPORTED, 0);
                    return false;
                }
            }
        }
        if let Some((batch, live)) = pending {
            self.l.live = live;
            self.l.thunk(batch, &mut self.factory);
        }
        true
    }

    fn weighs(&self) -> bool {
        self.l.watch.count == Count::Cycles
    }

    /// A repeated string instruction, which is the first of the block's `instructions`.
    fn repeated(&mut self, i: &Instruction, batch: Batch, instructions: &[Instruction]) {
        let left = self.weighs().then(|| self.l.var(RCX));
        if self.l.watch.accesses {
            rep::drive(self, i, batch, weigh(self.l.watch.count, instructions));
        } else {
            self.l.thunk(batch, &mut self.factory);
        }
        if let Some(before) = left {
            let after = self.l.var(RCX);
            let elements = self.l.b.ins().isub(before, after);
            let bytes = self.l.b.ins().imul_imm_u(elements, i.memory_size().size() as i64);
            let quarters = self.l.shr_imm(bytes, BYTES_A_QUARTER.ilog2());
            self.l.retire_value(quarters);
        }
    }

    /// Leaves here if the access buffer has not got room for `records`.
    fn check_room(&mut self, records: u32, leave: impl FnOnce(&mut Self)) {
        let cursor = self.l.cursor();
        let limit = self.l.frame_load(I64, frame::OFF_LIMIT);
        let room = self.l.b.ins().isub(limit, cursor);
        let full = self.l.icmp_imm(
            IntCC::SignedLessThan,
            room,
            u64::from(records) * size_of::<Access>() as u64,
        );
        self.leave_if(full, leave);
    }

    // Where every access is ordered.

    /// Leaves for an instruction that is executed by itself, or has an event now.
    fn site(&mut self, source: &Block) {
        let live = source.live_flags;
        match source.site {
            None => {}
            Some(Site::Spans) => {
                let several = self.several();
                self.leave_if(several, |body| body.exit(source.pc, leave::SPANS, live));
            }
            Some(Site::Access(..)) => {
                let i = self.graph.instructions(source)[0];
                let left = self.l.frame_load(I64, frame::OFF_LEFT);
                // Less than none if a handover is late, behind which some may come.
                let none = self.l.icmp_imm(IntCC::SignedLessThanOrEqual, left, 0);
                self.leave_if(none, |body| {
                    let address = body.l.operand_address(&i);
                    body.l.frame_store(address, frame::OFF_DETAIL);
                    body.exit(source.pc, leave::ORDERED, live);
                });
            }
        }
    }

    /// Leaves here if more accesses have been made than were to come before the thread's next event:
    /// it is a handover, then, which may come late.
    fn check_handover(&mut self, leave: impl FnOnce(&mut Self)) {
        let left = self.l.frame_load(I64, frame::OFF_LEFT);
        let late = self.l.icmp_imm(IntCC::SignedLessThan, left, 0);
        self.leave_if(late, leave);
    }

    fn count_down(&mut self, accesses: u32) {
        if accesses != 0 {
            let left = self.l.frame_load(I64, frame::OFF_LEFT);
            let left = self.l.add_imm(left, -i64::from(accesses));
            self.l.frame_store(left, frame::OFF_LEFT);
        }
    }

    /// Not 0 once there are several threads.
    fn several(&mut self) -> Value {
        let flag = self.l.iconst(I64, self.l.watch.several);
        self.l.b.ins().uload8(I64, MemFlagsData::trusted(), flag, 0)
    }

    /// Leaves here if `condition` is not 0.
    fn leave_if(&mut self, condition: Value, leave: impl FnOnce(&mut Self)) {
        let (out, on) = (self.l.b.create_block(), self.l.b.create_block());
        self.l.b.ins().brif(condition, out, &[], on, &[]);
        self.l.b.set_cold_block(out);
        self.l.b.switch_to_block(out);
        let state = self.l.state.clone();
        leave(self);
        self.l.state = state;
        self.l.b.switch_to_block(on);
    }

    // Where blocks end.

    fn end(&mut self, at: usize, term: Term, i: &Instruction) {
        if ends_block(term) {
            self.l.at(i);
        }
        match term {
            Term::Next(pc) | Term::Jump(pc) => self.edge(at, pc),
            Term::Branch(taken, next) => self.branch(at, i, taken, next),
            Term::Call(target, next) => {
                let address = self.l.iconst(I64, next);
                self.l.push(address);
                let target_value = self.l.iconst(I64, target);
                self.log_transfer(target_value, Access::CALL);
                self.chain(target);
            }
            Term::CallIndirect(next) => {
                let target = self.l.read(i, 0, I64);
                let address = self.l.iconst(I64, next);
                self.l.push(address);
                self.log_transfer(target, Access::CALL);
                if let Some(range) = self.source(at).leaving.clone() {
                    self.l.enter_nested(i.ip(), Some((target, range)), None);
                }
                self.indirect(target);
            }
            Term::JumpIndirect => {
                let target = self.l.read(i, 0, I64);
                self.indirect(target);
            }
            Term::Return => {
                let sp = self.l.var(refrain_vm::reg::RSP);
                let target = self.l.pop(I64);
                if i.op_count() == 1 {
                    let rsp = self.l.var(refrain_vm::reg::RSP);
                    let rsp = self.l.add_imm(rsp, i64::from(i.immediate16()));
                    self.l.set_var(refrain_vm::reg::RSP, rsp);
                }
                self.log_transfer(target, Access::RETURN);
                if self.l.watch.functions {
                    self.l.leave_function(sp);
                }
                if self.l.watch.nested {
                    self.l.leave_nested(sp);
                }
                self.indirect(target);
            }
            Term::Syscall(next) => self.exit(next, leave::SYSCALL, self.l.live),
            Term::Emulate(_, next) => {
                self.l.frame_store_imm(i.ip(), frame::OFF_DETAIL);
                self.exit(next, leave::EMULATE, self.l.live);
            }
            Term::Watched(kind, next) => {
                self.watched(at, i, kind);
                let goes_on = self.instructions(&[*i], &[self.l.live]);
                (self.l.reads_from, self.l.logged_as) = (None, None);
                if goes_on {
                    self.edge(at, next);
                }
            }
            Term::Unsupported(_) => self.exit(i.ip(), leave::UNSUPPORTED, 0),
            Term::Raise(signal, at) => {
                self.l.frame_store_imm(signal as u64, frame::OFF_DETAIL);
                self.exit(at, leave::RAISE, 0);
            }
        }
    }

    /// Leaves for an ordered instruction.
    fn report(&mut self, at: usize, i: &Instruction) {
        let address = self.l.operand_address(i);
        self.l.frame_store(address, frame::OFF_DETAIL);
        self.exit(i.ip(), leave::ORDERED, self.source(at).live_flags);
    }

    /// Leaves for a watched instruction, if there are several threads. A load may find what it is to
    /// read in what the thread met last; then it reads there.
    fn watched(&mut self, at: usize, i: &Instruction, kind: OrderedKind) {
        let address = self.l.operand_address(i);
        let several = self.several();
        let (ask, on) = (self.l.b.create_block(), self.l.b.create_block());
        let reads = kind.is_load() && self.l.watch.tells && reads_where_told(i);
        let from = reads.then(|| self.l.b.append_block_param(on, I64));
        let own = from.map(|_| BlockArg::Value(address));
        self.l.b.ins().brif(several, ask, &[], on, own.as_slice());
        self.l.b.switch_to_block(ask);
        if reads {
            let size = i.memory_size().size();
            let met = self.met(address, size);
            let (take, other) = (self.l.b.create_block(), self.l.b.create_block());
            let (alone, out) = (self.l.b.create_block(), self.l.b.create_block());
            self.l.b.ins().brif(met.found, take, &[], other, &[]);
            self.l.b.switch_to_block(take);
            self.count_met();
            self.l.b.ins().jump(on, &[BlockArg::Value(met.place)]);
            self.l.b.switch_to_block(other);
            self.l.b.ins().brif(met.alone, alone, &[], out, &[]);
            self.l.b.switch_to_block(alone);
            self.meet_alone((address, size), &met);
            self.l.b.ins().jump(take, &[]);
            self.l.b.set_cold_block(out);
            self.l.b.switch_to_block(out);
        } else {
            self.l.b.set_cold_block(ask);
        }
        let state = self.l.state.clone();
        self.l.retire(-weigh(self.l.watch.count, slice::from_ref(i)));
        self.report(at, i);
        self.l.state = state;
        self.l.b.switch_to_block(on);
        self.l.reads_from = from;
        self.l.logged_as = from.map(|_| address);
    }

    /// What the thread has met of a watched load of so many bytes.
    fn met(&mut self, address: Value, size: usize) -> MetLoad {
        let flags = MemFlagsData::trusted();
        let met = self.l.frame_load(I64, frame::OFF_MET);
        let left = self.l.b.ins().load(I64, flags, met, 0);
        let factor = self.l.iconst(I64, LastMet::FACTOR.into());
        let place = self.l.b.ins().imul(address, factor);
        let place = self.l.b.ins().ushr_imm_u(place, i64::from(LastMet::SHIFT));
        let place = self.l.b.ins().band_imm_u(place, LastMet::ENTRIES as i64 - 1);
        let place = self.l.shl_imm(place, size_of::<Met>().trailing_zeros());
        let entry = self.l.b.ins().iadd(met, place);
        let first = LastMet::first(size as u8);
        let at = |field: usize| (first + field) as i32;
        let tag = self.l.b.ins().load(I64, flags, entry, at(offset_of!(Met, tag)));
        let size = self.l.iconst(I64, Met::tag(0, size as u8));
        let wanted = self.l.b.ins().bxor(address, size);
        let same = self.l.b.ins().icmp(IntCC::Equal, tag, wanted);
        let none = self.l.iconst(I64, 0);
        let some = self.l.b.ins().icmp(IntCC::NotEqual, left, none);
        let alone = self.l.b.ins().load(I64, flags, met, offset_of!(LastMet, alone) as i32);
        let not_alone = self.l.b.ins().icmp(IntCC::Equal, alone, none);
        let known = self.l.b.ins().band(same, some);
        let found = self.l.b.ins().band(known, not_alone);
        let alone = self.l.b.ins().band_not(known, not_alone);
        let place = self.l.add_imm(entry, at(offset_of!(Met, value)).into());
        let memory = self.l.add_imm(entry, at(offset_of!(Met, version)).into());
        MetLoad { found, alone, place, memory }
    }

    /// The thread, which is alone, meets what is in memory, if that has changed ([`LastMet::replay_alone`]).
    fn meet_alone(&mut self, (address, size): (Value, usize), met: &MetLoad) {
        let value = self.l.load_unlogged(int(size), address);
        let value = self.l.resize(value, I64);
        let flags = MemFlagsData::trusted();
        let before = self.l.b.ins().load(I64, flags, met.memory, 0);
        let known = self.l.b.ins().load(I64, flags, met.place, 0);
        let same = self.l.b.ins().icmp(IntCC::Equal, value, before);
        let read = self.l.b.ins().select(same, known, value);
        self.l.b.ins().store(flags, value, met.memory, 0);
        self.l.b.ins().store(flags, read, met.place, 0);
    }

    /// Counts a load that needed no event.
    fn count_met(&mut self) {
        let flags = MemFlagsData::trusted();
        let met = self.l.frame_load(I64, frame::OFF_MET);
        let left = self.l.b.ins().load(I64, flags, met, 0);
        let left = self.l.add_imm(left, -1);
        self.l.b.ins().store(flags, left, met, 0);
    }

    fn log_transfer(&mut self, target: Value, kind: u16) {
        if self.l.watch.calls {
            self.l.append(target, 0, kind);
        }
    }

    fn branch(&mut self, at: usize, i: &Instruction, taken: u64, next: u64) {
        let condition = self.branch_condition(i);
        self.l.settle_cursor();
        let (to_taken, taken_args) = self.target(at, taken);
        let (to_next, next_args) = self.target(at, next);
        let state = self.l.state.clone();
        self.l.b.ins().brif(condition, to_taken.block, &taken_args, to_next.block, &next_args);
        for (target, pc) in [(to_taken, taken), (to_next, next)] {
            match target.kind {
                TargetKind::Merge => {}
                TargetKind::Inside(at) => {
                    self.tasks.push(Task { at, block: target.block, state: state.clone() })
                }
                TargetKind::Outside => {
                    self.l.b.switch_to_block(target.block);
                    self.l.state = state.clone();
                    self.chain(pc);
                }
            }
        }
    }

    /// Where an edge goes: to a block inside, or to a new one that leaves the region.
    fn target(&mut self, at: usize, pc: u64) -> (Target, Vec<BlockArg>) {
        match self.follower(at, pc) {
            Some(next) if self.merges(next) && self.is_tail(next) => {
                let block = self.l.b.create_block();
                (Target { block, kind: TargetKind::Inside(next) }, Vec::new())
            }
            Some(next) if self.merges(next) => {
                let args = self.args(next);
                (Target { block: self.blocks[next], kind: TargetKind::Merge }, args)
            }
            Some(next) => {
                (Target { block: self.blocks[next], kind: TargetKind::Inside(next) }, Vec::new())
            }
            None => {
                (Target { block: self.l.b.create_block(), kind: TargetKind::Outside }, Vec::new())
            }
        }
    }

    fn follower(&self, at: usize, pc: u64) -> Option<usize> {
        let block = self.graph.at(pc)?;
        let position = self.region.position(block)?;
        self.flow.followers[at].contains(&position).then_some(position)
    }

    fn branch_condition(&mut self, i: &Instruction) -> Value {
        use Mnemonic::*;
        match i.mnemonic() {
            Jcxz | Jecxz | Jrcxz => {
                let register = if i.mnemonic() == Jrcxz {
                    iced_x86::Register::RCX
                } else {
                    iced_x86::Register::ECX
                };
                let count = self.l.gpr(register);
                self.l.icmp_imm(IntCC::Equal, count, 0)
            }
            Loop | Loope | Loopne => {
                // The address-size prefix makes ecx the counter; iced tells by the code.
                let narrow = matches!(
                    i.code(),
                    iced_x86::Code::Loop_rel8_64_ECX
                        | iced_x86::Code::Loope_rel8_64_ECX
                        | iced_x86::Code::Loopne_rel8_64_ECX
                );
                let register =
                    if narrow { iced_x86::Register::ECX } else { iced_x86::Register::RCX };
                let count = self.l.gpr(register);
                let count = self.l.add_imm(count, -1);
                self.l.set_gpr(register, count);
                let more = self.l.icmp_imm(IntCC::NotEqual, count, 0);
                if i.mnemonic() == Loop {
                    return more;
                }
                let zero = self.l.flag(vars::ZF);
                let wanted = self.l.icmp_imm(
                    if i.mnemonic() == Loope { IntCC::NotEqual } else { IntCC::Equal },
                    zero,
                    0,
                );
                self.l.b.ins().band(more, wanted)
            }
            _ => self.l.condition(i.condition_code()),
        }
    }

    /// Goes on at `pc`, inside the region or outside.
    fn edge(&mut self, at: usize, pc: u64) {
        self.l.settle_cursor();
        let (target, args) = self.target(at, pc);
        self.l.b.ins().jump(target.block, &args);
        match target.kind {
            TargetKind::Merge => {}
            TargetKind::Inside(at) => {
                let state = self.l.state.clone();
                self.tasks.push(Task { at, block: target.block, state });
            }
            TargetKind::Outside => {
                self.l.b.switch_to_block(target.block);
                self.chain(pc);
            }
        }
    }

    /// Stores what the frame does not have yet.
    fn store_all(&mut self, live: u8, unlikely: bool) {
        self.l.settle_cursor();
        self.l.store_dirty();
        self.l.store_flags(live, unlikely);
    }

    /// Leaves the region for a known guest address.
    fn chain(&mut self, pc: u64) {
        self.store_all(self.graph.live_flags_at(pc), false);
        if let Ok(index) = u32::try_from(pc) {
            self.l.go(symbol::CHAIN, index);
        } else {
            self.leave(pc, leave::LINK);
        }
    }

    /// Leaves the region for a computed guest address.
    fn indirect(&mut self, target: Value) {
        self.store_all(self.graph.indirect_flags, true);
        self.l.frame_store(target, frame::OFF_RIP);
        self.l.go(symbol::INDIRECT, 0);
    }

    /// Leaves translated code with everything stored.
    pub(super) fn exit(&mut self, rip: u64, why: u64, live: u8) {
        self.store_all(live, true);
        self.leave(rip, why);
    }

    fn leave(&mut self, rip: u64, why: u64) {
        self.l.frame_store_imm(rip, frame::OFF_RIP);
        self.l.frame_store_imm(why, frame::OFF_LEAVE);
        self.l.go(symbol::LEAVE, 0);
    }
}

struct Target {
    block: ir::Block,
    kind: TargetKind,
}

enum TargetKind {
    /// A block with parameters.
    Merge,
    /// A block that goes on with this state.
    Inside(usize),
    /// A new block that leaves the region.
    Outside,
}

/// What a thread has met of a watched load.
struct MetLoad {
    /// Whether the load needs no event, and reads what the thread met last.
    found: Value,
    /// Whether it needs no event, but reads what is in memory if that has changed: the thread is alone.
    alone: Value,
    /// Where what the thread met last is, and what was in memory then.
    place: Value,
    memory: Value,
}

/// Whether the lifter reads a load's operand at the address that it is told.
fn reads_where_told(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(i.mnemonic(), Mov | Movzx | Movsx | Movsxd | Cmp | Test)
        && matches!(i.memory_size().size(), 1 | 2 | 4 | 8)
}

/// Whether the last instruction is translated by [`Body::end`].
fn ends_block(term: Term) -> bool {
    !matches!(term, Term::Next(_))
}
