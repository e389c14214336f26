//! The translator: everything about translated code that its lock protects.
//!
//! # Memory
//! Blocks and entry stubs are allocated upwards from the start of the code memory, exits that
//! are seldom taken downwards from its end, in chunks. Nothing is freed piecemeal: [`flush`]
//! forgets every block at once, and [`reclaim`] starts again at the beginning.
//!
//! [`flush`]: Translator::flush
//! [`reclaim`]: Translator::reclaim

use super::classify::Copied;
use super::desc::{Arena, Desc, Kind, Variant};
use super::emit::{self, Code, REACH};
use super::faults::FaultMap;
use super::functions::Functions;
use super::image::{CHUNK, Extent, Persistent, What};
use super::inline;
use super::kept::Kept;
use super::learned::Learned;
use super::looked::LookedBlocks;
use super::own;
use super::places::{KeptBefore, Places};
use super::plan::Every;
use super::state;
use super::tables::{ReturnTable, Tables, Use, behind_tables};
use super::{HOOK_WORDS, hook_bit};
use crate::memory::CodeMemory;
use iced_x86::Encoder;
use rangemap::RangeSet;
use refrain_trace::fixed::{FixedHasher, FixedMap, FixedSet};
use refrain_vm::layout::PAGE;
use refrain_vm::{EngineConfig, EngineError, FastPath, Fault, OrderedFastPath};
use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::hash::Hasher;
use std::mem::replace;
use std::ops::Range;

/// Room that one translation may need in each direction: a run of blocks, each instruction of the
/// last one watched in every way, and its code looked at if the guest has generated it.
const MARGIN: u64 = 32 << 10;
/// No exit is shorter.
const MIN_EXIT: u64 = 8;
/// Where blocks begin.
const BLOCK_ALIGNMENT: u64 = 16;
/// Bytes of a `jmp` to a fixed place.
const JUMP: u64 = 5;
/// Pages of code of a short program.
const EXPECTED: usize = 64;
/// Code memory that the system gives at once.
pub(super) const STEP: u64 = 128 << 10;

/// Why there is no translation.
pub(super) enum Failure {
    /// The code cannot be read.
    Fault(Fault),
    /// The code memory is full.
    Full,
}

/// A call that was emitted, without the stub that it calls.
pub(super) struct PendingCall {
    /// Displacement of the call.
    pub(super) field: u64,
    pub(super) return_address: u64,
    /// The callee, or `None` if it is the thread's target.
    pub(super) target: Option<u64>,
    pub(super) variant: Variant,
}

/// A block that is executed behind one that was emitted, whatever that does.
pub(super) struct Following {
    /// Displacement of the jump that leads there.
    pub(super) field: u64,
    pub(super) target: u64,
    pub(super) variant: Variant,
}

/// Hooked addresses.
pub(super) struct Hooks {
    /// One bit per hash of an address: this is asked of every instruction.
    may_be: [u64; HOOK_WORDS],
    all: BTreeSet<u64>,
}

impl Hooks {
    /// Adds one; whether it is new.
    pub(super) fn insert(&mut self, pc: u64) -> bool {
        let (word, bit) = hook_bit(pc);
        self.may_be[word] |= bit;
        self.all.insert(pc)
    }

    pub(super) fn contains(&self, pc: u64) -> bool {
        let (word, bit) = hook_bit(pc);
        self.may_be[word] & bit != 0 && self.all.contains(&pc)
    }

    /// Whether one of these addresses is hooked.
    pub(super) fn any(&self, range: Range<u64>) -> bool {
        !range.is_empty() && self.all.range(range).next().is_some()
    }
}

/// See the module's documentation.
pub(super) struct Translator {
    pub(super) config: EngineConfig,
    pub(super) tables: Tables,
    /// For observed code, if it can be had.
    pub(super) returns: Option<ReturnTable>,
    /// What the last call that was emitted returns to.
    pub(super) continuation: Option<(u64, Variant)>,
    /// Blocks that may be emitted behind the one under construction.
    pub(super) next: Vec<Following>,
    /// Calls whose stubs are still to be emitted.
    pub(super) calls: Vec<PendingCall>,
    pub(super) memory: CodeMemory,
    pub(super) arena: Arena,
    /// The block or stub under construction.
    pub(super) hot: Code,
    /// Its rare exits.
    pub(super) cold: Code,
    hot_next: u64,
    /// Where the memory ends that the system has been asked for.
    hot_ready: u64,
    cold_next: u64,
    cold_end: u64,
    cold_chunk: u64,
    /// The way out of translated code.
    pub(super) leave: u64,
    /// The way to fast-path functions.
    fast_path_gate: u64,
    /// The way to what the machine does around ordered instructions.
    pub(super) machine_gate: u64,
    /// The ways to loads that need no event, by the logarithm of their size.
    pub(super) load_gates: [u64; 4],
    /// Those for loads that loops poll.
    pub(super) poll_gates: [u64; 4],
    /// For a recording's stores, its locked instructions, and for what comes behind either ([`own`]), likewise.
    pub(super) own_gates: [[u64; 4]; 3],
    /// Tables whose unused entries lead to their miss exits: those that code refers to.
    armed: FixedSet<(u8, Variant)>,
    /// Miss exits of the tables.
    misses: FixedMap<(u8, Variant), u64>,
    /// Bodies of blocks.
    pub(super) bodies: Places,
    /// Entries for indirect jumps.
    pub(super) jump_entries: Places,
    /// Entries for returns.
    pub(super) return_entries: Places,
    /// Where the translation of a call instruction begins: each has one, because the return
    /// table has room for one return address of the host's.
    pub(super) call_sites: Places,
    /// Entries of the return table to be set once the code is in place.
    pub(super) pending_returns: Vec<(u64, Variant, u64)>,
    /// Every patchable field, and what it leads to when it is not linked. Both lie below 2 GiB.
    pub(super) links: Vec<(u32, u32)>,
    pub(super) faults: FaultMap,
    pub(super) functions: Functions,
    /// Sites that the machine asked for.
    pub(super) learned: Learned,
    /// There may be several threads: ordered instructions are watched.
    pub(super) several: bool,
    /// Threads that are to leave translated code, by their numbers: until they have, nothing is
    /// linked.
    wanted: BTreeSet<u32>,
    pub(super) hooks: Hooks,
    /// Functions of the machine's that stand in at hooked addresses.
    pub(super) fast_paths: FixedMap<u64, FastPath>,
    /// What is called around ordered instructions.
    pub(super) ordered_fast_path: Option<OrderedFastPath>,
    /// Where the guest generates code.
    pub(super) generated: RangeSet<u64>,
    /// What the guest may execute, once that is known.
    pub(super) executable: Option<RangeSet<u64>>,
    /// Blocks of such code that look whether their thread may read it.
    pub(super) looked: LookedBlocks,
    /// Pages that hold guest code of some block, but for code that the guest generates.
    pub(super) pages: FixedSet<u64>,
    /// The last of them that was added.
    pub(super) last_page: Option<u64>,
    pub(super) copied: Copied,
    /// In the block under construction: fields among the rare exits that are to hold how many
    /// instructions it has behind so many, times a sign.
    pub(super) rests: Vec<(u64, usize, i32)>,
    /// In the block under construction: exits before an instruction in its middle: where the
    /// address of the descriptor is to be filled in, and how many instructions come before.
    pub(super) exits: Vec<(u64, Desc, usize)>,
    /// The accesses of the block under construction, if it has to do with all of them.
    pub(super) every: Every,
    /// Where blocks end that are executed carefully, by where they begin.
    pub(super) careful_ends: FixedMap<u64, u64>,
    /// The branch under construction ends the window of its access.
    pub(super) closes_window: bool,
    /// Offsets of the plain loads and stores that are watched in the block under construction.
    pub(super) watched_loads: Vec<u16>,
    kept: Kept,
    kept_before: KeptBefore,
    names: Vec<&'static str>,
    /// Made when it is used first.
    pub(super) encoder: LazyCell<Encoder>,
    /// Counts flushes: blocks of another generation are not linked to.
    pub(super) generation: u64,
    /// In a recording: what is kept for later ones.
    pub(super) persistent: Option<Box<Persistent>>,
}

impl Translator {
    /// A translator for the code memory behind `tables`.
    pub(super) fn new(config: EngineConfig, tables: Tables) -> Result<Translator, EngineError> {
        let [code, descriptors] = behind_tables(tables.memory());
        let memory = tables.memory().code(code)?;
        // SAFETY: `tables` keeps the memory, which was reserved for it and this translator alone.
        let arena = unsafe { Arena::new(descriptors) };
        let mut translator = Translator {
            config,
            tables,
            returns: ReturnTable::new(),
            continuation: None,
            next: Vec::new(),
            calls: Vec::new(),
            memory,
            arena,
            hot: Code::default(),
            cold: Code::default(),
            hot_next: 0,
            hot_ready: 0,
            cold_next: 0,
            cold_end: 0,
            cold_chunk: 0,
            leave: 0,
            fast_path_gate: 0,
            machine_gate: 0,
            load_gates: [0; 4],
            poll_gates: [0; 4],
            own_gates: [[0; 4]; 3],
            armed: FixedSet::default(),
            misses: FixedMap::default(),
            bodies: Places::with_room(EXPECTED),
            jump_entries: Places::default(),
            return_entries: Places::with_room(EXPECTED),
            call_sites: Places::with_room(EXPECTED),
            pending_returns: Vec::new(),
            links: Vec::new(),
            faults: FaultMap::default(),
            functions: Functions::default(),
            learned: Learned::default(),
            several: false,
            wanted: BTreeSet::new(),
            hooks: Hooks { may_be: [0; HOOK_WORDS], all: BTreeSet::new() },
            fast_paths: FixedMap::default(),
            ordered_fast_path: None,
            generated: RangeSet::new(),
            executable: None,
            looked: LookedBlocks::default(),
            pages: FixedSet::default(),
            last_page: None,
            copied: Copied::default(),
            rests: Vec::new(),
            exits: Vec::new(),
            every: Every::default(),
            careful_ends: FixedMap::default(),
            closes_window: false,
            watched_loads: Vec::new(),
            kept: Kept::default(),
            kept_before: KeptBefore::with_room(EXPECTED),
            names: Vec::new(),
            encoder: LazyCell::new(|| Encoder::new(64)),
            generation: 0,
            persistent: None,
        };
        translator.begin_memory();
        Ok(translator)
    }

    /// Whether code is translated for a recording. A replay is given its watched sites.
    pub(super) fn records(&self) -> bool {
        self.config.watched.is_none()
    }

    /// Where translated code lies.
    pub(super) fn code(&self) -> Range<u64> {
        self.memory.range()
    }

    /// The body of the block at `pc`, translated now if need be.
    pub(super) fn body(&mut self, pc: u64, variant: Variant) -> Result<u64, Failure> {
        if let Some(body) = self.bodies.get(pc, variant) {
            return Ok(body);
        }
        if !variant.steps() {
            self.bring_back(pc);
        }
        match self.bodies.get(pc, variant) {
            Some(body) => Ok(body),
            None => self.translate_now(pc, variant, false),
        }
    }

    /// Translates the block at `pc`, with or without an entry for indirect jumps before it.
    fn translate_now(
        &mut self,
        pc: u64,
        variant: Variant,
        with_entry: bool,
    ) -> Result<u64, Failure> {
        if pc >= REACH && self.returns.take().is_some() {
            // Code has turned up that the return table does not cover: from now on returns are
            // checked.
            self.flush();
        }
        self.begin(pc)?;
        let body = self.translate(pc, variant, with_entry)?;
        self.commit();
        Ok(body)
    }

    /// Undoes what was noted of a block that turned out not to be readable.
    pub(super) fn forget_block(&mut self, pc: u64, variant: Variant) {
        self.bodies.remove(pc, variant);
        self.jump_entries.remove(pc, variant);
        self.faults.forget_last();
    }

    /// Lets the patchable field of an exit lead to a block, unless somebody is to come out there.
    pub(super) fn link(&self, field: u64, body: u64) {
        if self.may_link() {
            self.patch(field, body);
        }
    }

    /// Lets a field lead somewhere else.
    pub(super) fn patch(&self, field: u64, to: u64) {
        // SAFETY: the field is the target of a jump whose targets, the old one and the new one, go on
        // at one guest address.
        unsafe { self.memory.patch(field, emit::displacement(field, to)) };
    }

    /// Lets a look at a table be at another byte behind GS.
    pub(super) fn make_displacement(&self, field: u64, to: u32) {
        // SAFETY: the field is the displacement of a look that goes on at one guest address, whatever it
        // finds.
        unsafe { self.memory.patch(field, to) };
    }

    /// Whether translated code may lead from block to block.
    pub(super) fn may_link(&self) -> bool {
        self.wanted.is_empty()
    }

    /// The thread is to leave translated code: every block leads out of it, until [`Self::left`]
    /// says that it has.
    pub(super) fn want(&mut self, thread: u32) {
        if self.wanted.insert(thread) {
            self.unlink(|variant| variant == Variant::Observed);
        }
    }

    /// The thread is outside.
    pub(super) fn left(&mut self, thread: u32) {
        self.wanted.remove(&thread);
    }

    /// Makes every block lead out of translated code, through the tables of these variants too.
    fn unlink(&mut self, which: impl Fn(Variant) -> bool) {
        self.reset_tables(which);
        if let Some(returns) = &mut self.returns {
            returns.reset();
        }
        for &(field, exit) in &self.links {
            self.patch(field.into(), exit.into());
        }
    }

    /// Makes the jump table of `variant` lead `pc` to its block.
    pub(super) fn enter_jump(&mut self, pc: u64, variant: Variant) -> Result<(), Failure> {
        if !self.jump_entries.contains(pc, variant) {
            self.bring_back(pc);
        }
        if !self.jump_entries.contains(pc, variant) {
            if let Some(body) = self.bodies.get(pc, variant) {
                self.begin(pc)?;
                self.jump_entry(pc, variant);
                self.note_jump(self.hot.here(), body);
                self.hot.jmp(body);
                self.commit();
            } else {
                self.translate_now(pc, variant, true)?;
            }
        }
        let entry = self.jump_entries.get(pc, variant).expect("was there or was just made");
        if self.may_link() {
            self.table(Use::Jump, variant);
            self.tables.set(Use::Jump, variant, pc, entry);
        }
        Ok(())
    }

    /// Makes the return table of `variant` lead `pc` to its block. For return addresses that
    /// translated calls have pushed, the entry is there already.
    pub(super) fn enter_return(&mut self, pc: u64, variant: Variant) -> Result<(), Failure> {
        if !self.return_entries.contains(pc, variant) {
            self.bring_back(pc);
        }
        let entry = match self.return_entries.get(pc, variant) {
            Some(entry) => entry,
            None => {
                let body = self.body(pc, variant)?;
                self.begin(pc)?;
                let entry = self.hot.here();
                self.return_entry(pc, variant);
                self.note_entry(What::Return, pc, variant, entry);
                self.note_jump(self.hot.here(), body);
                self.hot.jmp(body);
                self.commit();
                self.return_entries.insert(pc, variant, entry);
                entry
            }
        };
        self.set_return(pc, variant, entry);
        Ok(())
    }

    /// Emits the entry for indirect jumps to `pc`. The body follows.
    ///
    /// The check leaves the flags alone even where the code at `pc` has no use for them: whoever
    /// comes here may be on the way to another address with the same place in the table.
    pub(super) fn jump_entry(&mut self, pc: u64, variant: Variant) {
        self.jump_entries.insert(pc, variant, self.hot.here());
        self.note_entry(What::Jump, pc, variant, self.hot.here());
        let miss = self.misses[&(Use::Jump as u8, variant)];
        self.check_target(pc, miss);
        self.hot.reload(emit::RCX, emit::RCX_SLOT);
    }

    /// Whether returns of this variant go by the return table.
    pub(super) fn exact_returns(&self, variant: Variant) -> bool {
        variant == Variant::Observed && self.returns.is_some()
    }

    pub(super) fn set_return(&mut self, pc: u64, variant: Variant, entry: u64) {
        if !self.may_link() {
            return;
        }
        match &mut self.returns {
            Some(returns) if variant == Variant::Observed => returns.set(pc, entry),
            _ => {
                self.table(Use::Return, variant);
                self.tables.set(Use::Return, variant, pc, entry);
            }
        }
    }

    /// Emits what a return to `pc` comes to: the check of the address, rcx put back, and the
    /// guest's return address written again to where the host's was.
    pub(super) fn return_entry(&mut self, pc: u64, variant: Variant) {
        if !self.exact_returns(variant) {
            self.check_target(pc, self.misses[&(Use::Return as u8, variant)]);
        }
        self.hot.reload(emit::RCX, emit::RCX_SLOT);
        self.hot.store_on_stack(-8, pc);
    }

    /// Emits a comparison of the thread's target with `pc`, and a jump to `miss` if they differ.
    /// rcx is clobbered; the guest's is in its slot.
    fn check_target(&mut self, pc: u64, miss: u64) {
        let hot = &mut self.hot;
        if let Ok(negated) = i32::try_from(-(pc as i128)) {
            hot.reload(emit::RCX, emit::TARGET);
            hot.add_to_rcx(negated);
        } else {
            hot.spill(emit::SCRATCH, emit::RDX);
            hot.load_constant(emit::RDX, pc.wrapping_neg());
            hot.reload(emit::RCX, emit::TARGET);
            hot.add_rdx_to_rcx();
            hot.reload(emit::RDX, emit::SCRATCH);
        }
        hot.skip_if_rcx_zero(JUMP as u8);
        hot.jmp(miss);
    }

    /// Emits an exit at the current place of `code`: rcx is in its slot already.
    pub(super) fn leave(code: &mut Code, arena: &mut Arena, leave: u64, desc: Desc) {
        let address = arena.keep(desc);
        code.load_constant(emit::RCX, address);
        code.jmp(leave);
    }

    /// Emits the call of a function of the machine's, and the exit for when it declines. Code for
    /// when it does not is to follow; it finds the guest's registers as they were but for rax.
    pub(super) fn fast_path(&mut self, pc: u64, fast_path: FastPath) {
        const LOAD: u64 = 10;
        const SPILL: u64 = 9;
        self.hot.spill(emit::RCX_SLOT, emit::RCX);
        let declined = self.arena.keep(Desc::new(Kind::Hook, pc));
        self.hot.load_wide(emit::RCX, declined);
        self.hot.spill(emit::SCRATCH, emit::RCX);
        let goes_on = self.hot.here() + LOAD + SPILL + LOAD + JUMP;
        self.hot.load_wide(emit::RCX, goes_on);
        self.hot.spill(emit::ENTRY, emit::RCX);
        self.hot.load_wide(emit::RCX, fast_path as usize as u64);
        self.hot.jmp(self.fast_path_gate);
        assert_eq!(self.hot.here(), goes_on, "the code in between has a fixed length");
    }

    /// Emits, at the current place of `code`, the way to the gate to the machine; rcx is in its
    /// slot already. Returns where the address of the descriptor is to be filled in.
    pub(super) fn call_machine(code: &mut Code, gate: u64) -> u64 {
        code.load_wide(emit::RCX, 0);
        let field = code.here() - 8;
        code.jmp(gate);
        field
    }

    /// Emits an exit in line.
    pub(super) fn leave_here(&mut self, kind: Kind, pc: u64, spill: bool) {
        if spill {
            self.hot.spill(emit::RCX_SLOT, emit::RCX);
        }
        Self::leave(&mut self.hot, &mut self.arena, self.leave, Desc::new(kind, pc));
    }

    /// Emits the end of an exit among the rare ones, where rcx is in its slot already.
    pub(super) fn leave_cold(&mut self, kind: Kind, pc: u64) {
        Self::leave(&mut self.cold, &mut self.arena, self.leave, Desc::new(kind, pc));
    }

    /// The number of an instruction's name.
    pub(super) fn name(&mut self, mnemonic: iced_x86::Mnemonic) -> u32 {
        let name = format!("{mnemonic:?}").to_lowercase();
        let known = self.names.iter().position(|&other| other == name);
        known.unwrap_or_else(|| {
            // One string per mnemonic of the instruction set at most.
            self.names.push(Box::leak(name.into_boxed_str()));
            self.names.len() - 1
        }) as u32
    }

    /// The name that [`Translator::name`] numbered.
    pub(super) fn named(&self, index: u32) -> &'static str {
        self.names[index as usize]
    }

    /// Remembers a block's code.
    pub(super) fn keep(&mut self, pc: u64, code: &[u8]) {
        let mut hash = FixedHasher::default();
        hash.write(code);
        // Code that was executed by one thread alone is kept again when there are several, with
        // what is watched in it.
        hash.write_u8(u8::from(self.several));
        if self.kept_before.insert(pc, hash.finish()) {
            self.kept.push(pc, code, &self.watched_loads);
        }
    }

    /// What was remembered since the last call.
    pub(super) fn take_kept(&mut self) -> Kept {
        std::mem::take(&mut self.kept)
    }

    /// Gets ready for emitting what is for `pc`.
    fn begin(&mut self, pc: u64) -> Result<(), Failure> {
        if self.cold_next + MARGIN > self.cold_end {
            self.cold_chunk -= CHUNK;
            self.cold_next = self.cold_chunk;
            self.cold_end = self.cold_chunk + CHUNK;
            self.memory.prepare(self.cold_chunk..self.cold_end);
        }
        if self.hot_next + MARGIN > self.cold_chunk || !self.arena.has_room(MARGIN / MIN_EXIT) {
            return Err(Failure::Full);
        }
        if self.hot_next + MARGIN > self.hot_ready && self.hot_ready + STEP <= self.cold_chunk {
            self.memory.prepare(self.hot_ready..self.hot_ready + STEP);
            self.hot_ready += STEP;
        }
        self.hot.reset(self.hot_next);
        self.cold.reset(self.cold_next);
        self.pending_returns.clear();
        self.calls.clear();
        self.note_begin(pc);
        Ok(())
    }

    /// Puts what was emitted in its place, and only then tells the tables.
    fn commit(&mut self) {
        // What lies between blocks is decoded speculatively behind indirect jumps.
        self.hot.put(&[0xcc; BLOCK_ALIGNMENT as usize]);
        let fits = self.hot.here() <= self.cold_chunk && self.cold.here() <= self.cold_end;
        assert!(fits, "a translation is longer than the margin that it was given");
        let end = self.hot.here() / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
        // SAFETY: both lie in free parts of the code memory, which no translated code leads to; they
        // were emitted for these addresses.
        unsafe {
            self.memory.write(self.hot.base(), self.hot.bytes());
            self.memory.write(self.cold.base(), self.cold.bytes());
        }
        self.hot_next = end;
        self.cold_next = self.cold.here();
        self.note_commit(self.hot.base());
        if self.pending_returns.is_empty() {
            return;
        }
        let mut returns = std::mem::take(&mut self.pending_returns);
        for (pc, variant, entry) in returns.drain(..) {
            self.set_return(pc, variant, entry);
        }
        self.pending_returns = returns;
    }

    /// How far translations reach.
    pub(super) fn extent(&self) -> Extent {
        let (chunk, cold) = (self.cold_chunk, self.cold_next);
        let (descriptors, faults) = (self.arena.len(), self.faults.lengths());
        Extent { hot: self.hot_next, chunk, cold, descriptors, faults }
    }

    /// Goes on translating behind code of an earlier recording, which reaches up to `end`.
    pub(super) fn begin_behind(&mut self, end: Extent) {
        self.hot_next = end.hot;
        self.hot_ready = end.hot - end.hot % PAGE;
        self.cold_chunk = end.chunk;
        self.cold_next = end.cold;
        self.cold_end = end.chunk + CHUNK;
    }

    /// Forgets every block. Threads that execute old code leave it at the end of a block; its
    /// memory stays as it is.
    pub(super) fn flush(&mut self) {
        self.generation += 1;
        self.forget_kept();
        self.unlink(|_| true);
        self.links.clear();
        self.bodies.clear();
        self.looked.forget();
        self.jump_entries.clear();
        self.return_entries.clear();
        self.call_sites.clear();
        self.careful_ends.clear();
        self.functions.forget_code();
        self.pages.clear();
        self.last_page = None;
    }

    /// Emits a jump out of code memory, which may be far away.
    fn gate(&mut self, to: *const ()) -> u64 {
        const BEFORE_ADDRESS: u64 = 6;
        // The guest may have accesses fault that are not aligned.
        while !(self.hot.here() + BEFORE_ADDRESS).is_multiple_of(8) {
            self.hot.put(&[0xcc]);
        }
        let address = self.hot.here();
        // jmp [rip + 0], and the address behind it.
        self.hot.put(&[0xff, 0x25, 0, 0, 0, 0]);
        self.hot.put(&(to as u64).to_le_bytes());
        address
    }

    /// Address of a table for code to refer to. Most programs need two of the tables, and filling
    /// one takes longer than many a program runs.
    pub(super) fn table(&mut self, which: Use, variant: Variant) -> u32 {
        if self.armed.insert((which as u8, variant)) {
            self.tables.reset(which, variant, self.misses[&(which as u8, variant)]);
        }
        self.tables.address(which, variant)
    }

    /// Whether code refers to a table.
    pub(super) fn is_armed(&self, which: Use, variant: Variant) -> bool {
        self.armed.contains(&(which as u8, variant))
    }

    fn reset_tables(&self, of: impl Fn(Variant) -> bool) {
        let reset =
            |&(which, variant): &(Use, Variant)| of(variant) && self.is_armed(which, variant);
        for (which, variant) in uses().filter(reset) {
            self.tables.reset(which, variant, self.misses[&(which as u8, variant)]);
        }
    }

    /// Whether blocks were made of code in `range`.
    pub(super) fn covers(&self, range: Range<u64>) -> bool {
        let first = range.start / PAGE;
        let last = range.end.div_ceil(PAGE);
        if last.saturating_sub(first) > self.pages.len() as u64 {
            self.pages.iter().any(|page| (first..last).contains(page))
        } else {
            (first..last).any(|page| self.pages.contains(&page))
        }
    }

    /// In a child process: starts with empty code memory that is not the parent's.
    pub(super) fn begin_again(&mut self) -> std::io::Result<()> {
        self.memory.renew()?;
        self.tables.renew()?;
        self.returns = self.returns.take().and_then(ReturnTable::renew);
        self.wanted.clear();
        self.armed.clear();
        self.generation += 1;
        abandon(&mut self.links, Vec::new());
        abandon(&mut self.bodies, Places::with_room(EXPECTED));
        abandon(&mut self.looked, LookedBlocks::default());
        abandon(&mut self.jump_entries, Places::default());
        abandon(&mut self.return_entries, Places::with_room(EXPECTED));
        abandon(&mut self.call_sites, Places::with_room(EXPECTED));
        abandon(&mut self.careful_ends, FixedMap::default());
        abandon(&mut self.pages, FixedSet::default());
        self.last_page = None;
        abandon(&mut self.kept_before, KeptBefore::default());
        abandon(&mut self.faults, FaultMap::default());
        self.arena.forget();
        abandon(&mut self.persistent, None);
        self.begin_memory();
        Ok(())
    }

    /// Starts again with empty code memory. The caller guarantees that no thread executes
    /// translated code or still looks at an exit of it.
    pub(super) fn reclaim(&mut self) {
        self.flush();
        self.persistent = None;
        self.faults = FaultMap::default();
        self.arena.forget();
        self.begin_memory();
        self.reset_tables(|_| true);
    }

    /// What is at the start of empty code memory: the ways out of it.
    fn begin_memory(&mut self) {
        let code = self.memory.range();
        self.hot_next = code.start;
        self.hot_ready = code.start;
        self.cold_chunk = code.end;
        self.cold_next = code.end;
        self.cold_end = code.end;
        self.hot.reset(code.start);
        self.cold.reset(code.end);
        self.leave = self.gate(state::leave as *const ());
        self.fast_path_gate = self.gate(state::call_fast_path as *const ());
        self.machine_gate = self.gate(inline::call_machine as *const ());
        let known = match self.records() {
            true => inline::recorded_loads(),
            false => inline::replayed_loads(),
        };
        self.load_gates = known.map(|gate| self.gate(gate));
        self.poll_gates = inline::recorded_polls().map(|gate| self.gate(gate));
        self.own_gates = match self.records() {
            true => own::gates().map(|gates| gates.map(|gate| self.gate(gate))),
            false => [[self.machine_gate; 4]; 3],
        };
        for (which, variant) in uses() {
            let entry = self.hot.here();
            let kind = match which {
                Use::Jump => Kind::JumpMiss(variant),
                Use::Return => {
                    self.hot.reload(emit::RCX, emit::TARGET);
                    self.hot.store_rcx_on_stack(-8);
                    Kind::ReturnMiss(variant)
                }
            };
            self.leave_here(kind, 0, false);
            self.misses.insert((which as u8, variant), entry);
        }
        self.commit();
    }
}

/// Puts a new value in the place of one that a child process shares with its parent as long as neither
/// writes it: to clear or free it would copy its pages.
fn abandon<T>(place: &mut T, new: T) {
    std::mem::forget(replace(place, new));
}

/// The tables that are used. Returns of resumed code are those of observed code, and a single
/// step never returns.
fn uses() -> impl Iterator<Item = (Use, Variant)> {
    use Variant::{Observed, Opaque, Resumed, Step, StepLoad, StepMoved};
    let jumps = [Observed, Opaque, Resumed, Step, StepLoad, StepMoved];
    let returns = [Variant::Observed, Variant::Opaque];
    let jumps = jumps.into_iter().map(|variant| (Use::Jump, variant));
    jumps.chain(returns.into_iter().map(|variant| (Use::Return, variant)))
}
