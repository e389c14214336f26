//! Code in memory: placed, linked, and found again when it faults.

use super::compile::{Object, Target};
use super::frame::{self, Frame, leave};
use super::routines::{self, Routines};
use super::table::Table;
use super::thunk::Batch;
use crate::fault::ThreadArea;
use crate::memory::{CodeMemory, LowMemory, reserve_low};
use iced_x86::code_asm::{CodeAssembler, dword_ptr, eax, qword_ptr, r10, rax, rsp};
use rayon::prelude::*;
use refrain_vm::EngineError;
use std::collections::BTreeMap;

/// What GS points to while a thread is in translated code.
#[repr(C)]
pub(super) struct Gs {
    pub(super) area: ThreadArea,
    /// The thread's frame.
    pub(super) frame: *mut Frame,
}

/// Bytes of code memory beyond what is compiled at first: for regions and thunks on demand.
const SPARE: u64 = 32 << 20;

/// All translated code of an engine.
pub(super) struct Image {
    code: CodeMemory,
    pub(super) routines: Routines,
    /// First free byte.
    next: u64,
    /// Placed code by its address: which instruction it belongs to, by offset.
    places: BTreeMap<u64, Vec<(u32, u32)>>,
    /// Thunks for single steps, without and with the memory operand replaced.
    steps: BTreeMap<(u64, bool), u64>,
    /// Ways into the blocks at hooked addresses, past the hook.
    bodies: BTreeMap<u64, u64>,
    /// Ways into blocks that indirect transfers may not lead to.
    hidden: BTreeMap<u64, u64>,
    /// Jumps to guest addresses that no region has a way in for.
    stubs: BTreeMap<u64, u64>,
    /// Field last, since `code` lies in it.
    _memory: LowMemory,
}

/// Room for the code of an indirect transfer.
const INDIRECT: u64 = 80;

/// An object and where it goes.
struct Placed {
    object: Object,
    at: u64,
    /// Where each thunk goes.
    thunks: Vec<u64>,
    /// Where the code of the indirect transfers goes.
    indirect: u64,
    end: u64,
}

impl Image {
    /// Code memory for objects of `size` bytes in all.
    pub(super) fn new(size: u64) -> Result<Image, EngineError> {
        let memory = reserve_low(size + SPARE)?;
        let range = memory.range();
        let code = memory.code(range.clone())?;
        let (bytes, routines) = routines::assemble(range.start);
        code.write(range.start, &bytes);
        let next = range.start + routines::SIZE;
        let empty = BTreeMap::new;
        Ok(Image {
            code,
            routines,
            next,
            places: BTreeMap::new(),
            steps: BTreeMap::new(),
            bodies: empty(),
            hidden: empty(),
            stubs: empty(),
            _memory: memory,
        })
    }

    /// Addresses of translated code.
    pub(super) fn range(&self) -> std::ops::Range<u64> {
        self.code.range()
    }

    /// Room that an object takes.
    pub(super) fn size(object: &Object) -> u64 {
        let thunks: usize = object.thunks.iter().map(|t| thunk_size(t) + 16).sum();
        (object.bytes.len() + thunks + 64) as u64 + INDIRECT * u64::from(object.indirect)
    }

    /// Installs objects: places them, publishes their ways in, links and writes them. Returns
    /// false if the code memory is full.
    pub(super) fn install(
        &mut self,
        objects: Vec<Object>,
        table: &Table,
        hooks: &[u64],
        hidden: &dyn Fn(u64) -> bool,
    ) -> bool {
        let mut placed = Vec::with_capacity(objects.len());
        for object in objects {
            let at = self.next.next_multiple_of(32);
            let indirect = (at + object.bytes.len() as u64).next_multiple_of(16);
            let mut end = indirect + INDIRECT * u64::from(object.indirect);
            let mut thunks = Vec::with_capacity(object.thunks.len());
            for thunk in &object.thunks {
                end = end.next_multiple_of(16);
                thunks.push(end);
                end += thunk_size(thunk) as u64;
            }
            // Room for a stub per relocation, should all need one.
            let stubs = 64 * object.relocations.len() as u64;
            if end + stubs + 4096 > self.code.range().end {
                return false;
            }
            self.next = end;
            placed.push(Placed { object, at, thunks, indirect, end });
        }
        let ways: Vec<(u64, u64)> = placed
            .iter()
            .flat_map(|p| p.object.ways.iter().map(|&(pc, offset)| (pc, p.at + u64::from(offset))))
            .collect();
        for &(pc, host) in &ways {
            if hooks.binary_search(&pc).is_ok() {
                self.bodies.insert(pc, host);
            }
        }
        let found: BTreeMap<u64, u64> =
            ways.into_iter().filter(|(pc, _)| hooks.binary_search(pc).is_err()).collect();
        self.make_stubs(&placed, &found, table, hooks);
        let places: Vec<_> = placed.par_iter().map(|p| self.link(p, &found, table)).collect();
        self.places.extend(places);
        for (&pc, &host) in &found {
            if hidden(pc) {
                self.hidden.insert(pc, host);
            } else {
                table.set(pc, host as u32);
            }
        }
        true
    }

    /// Where a jump to a guest address goes.
    fn resolve(&self, pc: u64, found: &BTreeMap<u64, u64>, table: &Table) -> u64 {
        let known = found.get(&pc).copied().or_else(|| self.entry(pc, table));
        known
            .or_else(|| self.stubs.get(&pc).copied())
            .expect("a stub was made for every other address")
    }

    /// The way in for a direct transfer to `pc`.
    pub(super) fn entry(&self, pc: u64, table: &Table) -> Option<u64> {
        let published = Some(u64::from(table.get(pc))).filter(|&host| host != 0);
        published.or_else(|| self.hidden.get(&pc).copied())
    }

    fn make_stubs(
        &mut self,
        placed: &[Placed],
        found: &BTreeMap<u64, u64>,
        table: &Table,
        hooks: &[u64],
    ) {
        for (_, target) in placed.iter().flat_map(|p| &p.object.relocations) {
            if let Target::Chain(pc) = *target
                && !found.contains_key(&pc)
                && self.entry(pc, table).is_none()
                && !self.stubs.contains_key(&pc)
            {
                let why = if hooks.binary_search(&pc).is_ok() { leave::HOOK } else { leave::LINK };
                let stub = self.stub(pc, why, table);
                self.stubs.insert(pc, stub);
            }
        }
    }

    /// Makes the code that reports a hook, and has the table lead there.
    pub(super) fn hook(&mut self, pc: u64, table: &Table) {
        let stub = self.stub(pc, leave::HOOK, table);
        self.stubs.insert(pc, stub);
        if table.pcs().contains(&pc) {
            table.set(pc, stub as u32);
        }
    }

    /// Code that goes on at a guest address which had no way in when it was made.
    fn stub(&mut self, pc: u64, why: u64, table: &Table) -> u64 {
        let at = self.next.next_multiple_of(16);
        let bytes = self.assemble_stub(at, pc, why, table).expect("stubs are fixed and encodable");
        self.code.write(at, &bytes);
        self.next = at + bytes.len() as u64;
        at
    }

    fn assemble_stub(
        &self,
        at: u64,
        pc: u64,
        why: u64,
        table: &Table,
    ) -> Result<Vec<u8>, iced_x86::IcedError> {
        let mut a = CodeAssembler::new(64)?;
        let mut missing = a.create_label();
        if why == leave::LINK && table.pcs().contains(&pc) {
            a.mov(rax, table.address() + 4 * (pc - table.pcs().start))?;
            a.mov(eax, dword_ptr(rax))?;
            a.test(rax, rax)?;
            a.jz(missing)?;
            a.jmp(rax)?;
        }
        a.set_label(&mut missing)?;
        a.mov(rax, pc)?;
        a.mov(qword_ptr(rsp + frame::OFF_RIP), rax)?;
        a.mov(qword_ptr(rsp + frame::OFF_LEAVE), why as i32)?;
        a.jmp(self.routines.leave)?;
        a.assemble(at)
    }

    /// Code that goes on at the guest address in the frame. Each place has its own, so that the
    /// processor predicts them apart. Hot registers are in use; rax, r10 and r11 are not.
    fn assemble_indirect(&self, at: u64, table: &Table) -> Result<Vec<u8>, iced_x86::IcedError> {
        let mut a = CodeAssembler::new(64)?;
        let mut missing = a.create_label();
        let pcs = table.pcs();
        a.mov(rax, qword_ptr(rsp + frame::OFF_RIP))?;
        a.sub(rax, pcs.start as i32)?;
        a.cmp(rax, (pcs.end - pcs.start) as i32)?;
        a.jae(missing)?;
        a.mov(r10, table.address())?;
        a.mov(eax, dword_ptr(r10 + rax * 4))?;
        a.test(eax, eax)?;
        a.jz(missing)?;
        a.jmp(rax)?;
        a.set_label(&mut missing)?;
        a.mov(qword_ptr(rsp + frame::OFF_LEAVE), leave::LOOKUP as i32)?;
        a.jmp(self.routines.leave)?;
        a.assemble(at)
    }

    /// Fills in an object's relocations and writes it with its thunks.
    fn link(
        &self,
        placed: &Placed,
        found: &BTreeMap<u64, u64>,
        table: &Table,
    ) -> (u64, Vec<(u32, u32)>) {
        let object = &placed.object;
        let mut bytes = object.bytes.clone();
        for &(offset, target) in &object.relocations {
            let to = match target {
                Target::Leave => self.routines.leave,
                Target::Settle => self.routines.settle,
                Target::Indirect(index) => placed.indirect + INDIRECT * u64::from(index),
                Target::Thunk(index) => placed.thunks[index as usize],
                Target::Chain(pc) => self.resolve(pc, found, table),
            };
            let from = placed.at + u64::from(offset) + 4;
            let distance = (to as i64 - from as i64) as i32;
            bytes[offset as usize..][..4].copy_from_slice(&distance.to_le_bytes());
        }
        let mut places = object.places.clone();
        places.push((bytes.len() as u32, 0));
        bytes.resize((placed.end - placed.at) as usize, 0xcc);
        for index in 0..u64::from(object.indirect) {
            let at = placed.indirect + INDIRECT * index;
            let code = self.assemble_indirect(at, table).expect("the code is fixed and encodable");
            bytes[(at - placed.at) as usize..][..code.len()].copy_from_slice(&code);
        }
        for (thunk, &at) in object.thunks.iter().zip(&placed.thunks) {
            let code =
                thunk.encode(at, thunk.flag_use()).expect("it was encodable when it was made");
            let offset = (at - placed.at) as usize;
            bytes[offset..][..code.bytes.len()].copy_from_slice(&code.bytes);
            places.extend(code.map.iter().map(|&(o, pc)| (o + offset as u32, pc)));
        }
        self.code.write(placed.at, &bytes);
        (placed.at, places)
    }

    /// A thunk that executes one instruction with all flags.
    pub(super) fn step(&mut self, batch: &Batch) -> Option<u64> {
        let pc = batch.instructions()[0].ip();
        if let Some(&at) = self.steps.get(&(pc, batch.is_replaced())) {
            return Some(at);
        }
        let at = self.next.next_multiple_of(16);
        let code = batch.encode(at, Batch::all_flags())?;
        if at + code.bytes.len() as u64 > self.code.range().end {
            return None;
        }
        self.code.write(at, &code.bytes);
        self.next = at + code.bytes.len() as u64;
        self.places.insert(at, code.map);
        self.steps.insert((pc, batch.is_replaced()), at);
        Some(at)
    }

    /// Host address of the block at a hooked address.
    pub(super) fn body(&self, pc: u64) -> Option<u64> {
        self.bodies.get(&pc).copied()
    }

    /// The guest instruction that translated code at `host` belongs to.
    pub(super) fn place(&self, host: u64) -> Option<u64> {
        let (start, places) = self.places.range(..=host).next_back()?;
        let offset = (host - start) as u32;
        let at = places.partition_point(|&(o, _)| o <= offset).checked_sub(1)?;
        Some(u64::from(places[at].1)).filter(|&pc| pc != 0)
    }
}

fn thunk_size(batch: &Batch) -> usize {
    let nominal = refrain_vm::layout::CODE_CACHE.start;
    batch.encode(nominal, batch.flag_use()).expect("it was encodable when it was made").bytes.len()
}
