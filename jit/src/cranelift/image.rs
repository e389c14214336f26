//! Code in memory: defined in a module of `cranelift-jit`, and found again when it faults.
//!
//! Each compiled region is a function of one [`JITModule`], as are the routines, the stubs and the
//! thunks for single steps. Regions jump into the middle of one another: a way in is a function and
//! an offset ([`ModuleRelocTarget::FunctionOffset`]). The module resolves such a target only in a
//! function that is defined; so a batch is defined whole, stubs for the ways that are missing
//! included, before it is finalized.

use super::arena::{Arena, Provider};
use super::compile::{RegionCode, Target};
use super::frame::leave;
use super::routines::{self, Routines};
use super::table::Table;
use super::thunk::{Batch, Operand};
use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::ir::Signature;
use cranelift_codegen::isa::{CallConv, OwnedTargetIsa};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Module, ModuleReloc, ModuleRelocTarget, default_libcall_names};
use refrain_vm::EngineError;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of code memory beyond what is compiled at first: for regions and thunks on demand.
const SPARE: u64 = 32 << 20;

/// Regions begin at cache lines' halves.
const ALIGNMENT: u64 = 32;

/// More than the code of a stub, with what aligns it.
const STUB: u64 = 96;

/// A place in translated code: a function of the module, and an offset in it.
type Way = (FuncId, u32);

/// All translated code of an engine.
pub(super) struct Image {
    module: JITModule,
    arena: Arc<Arena>,
    pub(super) routines: Routines,
    /// The function that holds the routines, and where they are in it.
    shared: (FuncId, Routines),
    /// Ways in by guest address, but for hooked ones.
    ways: BTreeMap<u64, Way>,
    /// Ways into the blocks at hooked addresses, past the hook.
    bodies: BTreeMap<u64, Way>,
    /// Jumps to guest addresses that no region has a way in for.
    stubs: BTreeMap<u64, FuncId>,
    /// Thunks for single steps, by where the memory operand is.
    steps: BTreeMap<(u64, Operand), u64>,
    /// Functions by their address: which instruction their code belongs to, by offset.
    places: BTreeMap<u64, Vec<(u32, u32)>>,
}

impl Image {
    /// An image with room for objects of `size` bytes in all, and for `stubs`.
    pub(super) fn new(isa: &OwnedTargetIsa, size: u64, stubs: usize) -> Result<Image, EngineError> {
        let (bytes, offsets) = routines::assemble();
        let size = size + STUB * stubs as u64 + bytes.len() as u64;
        let arena = Arena::new(size + SPARE)?;
        let mut builder = JITBuilder::with_isa(Arc::clone(isa), default_libcall_names());
        builder.memory_provider(Box::new(Provider(Arc::clone(&arena))));
        let mut module = JITModule::new(builder);
        let id = declare(&mut module);
        define(&mut module, id, &bytes, &[]);
        finalize(&mut module);
        let routines = offsets.at(arena.executed(module.get_finalized_function(id)));
        Ok(Image {
            module,
            arena,
            routines,
            shared: (id, offsets),
            ways: BTreeMap::new(),
            bodies: BTreeMap::new(),
            stubs: BTreeMap::new(),
            steps: BTreeMap::new(),
            places: BTreeMap::new(),
        })
    }

    /// Addresses of translated code.
    pub(super) fn range(&self) -> Range<u64> {
        self.arena.range()
    }

    /// Room that an object takes.
    pub(super) fn size(object: &RegionCode) -> u64 {
        object.bytes.len() as u64 + ALIGNMENT
    }

    /// Installs objects: defines them with the stubs that they need, links them, and publishes
    /// their ways in, unless `hidden` says that indirect transfers may not lead there. Returns
    /// false if the code memory is full.
    pub(super) fn install(
        &mut self,
        objects: &[RegionCode],
        table: &Table,
        hooks: &[u64],
        hidden: &dyn Fn(u64) -> bool,
    ) -> bool {
        let stubs: usize = objects.iter().map(|o| o.relocations.len()).sum();
        let size: u64 = objects.iter().map(Image::size).sum();
        if size + STUB * stubs as u64 > self.arena.room() {
            return false;
        }
        let ids: Vec<FuncId> = objects.iter().map(|_| declare(&mut self.module)).collect();
        for (object, &id) in objects.iter().zip(&ids) {
            for &(pc, offset) in &object.ways {
                let hooked = hooks.binary_search(&pc).is_ok();
                let ways = if hooked { &mut self.bodies } else { &mut self.ways };
                ways.insert(pc, (id, offset));
            }
        }
        for (object, &id) in objects.iter().zip(&ids) {
            let target = |&(at, target): &(u32, Target)| {
                relocation(at, self.resolve(id, target, table, hooks))
            };
            let relocations: Vec<ModuleReloc> = object.relocations.iter().map(target).collect();
            define(&mut self.module, id, &object.bytes, &relocations);
        }
        finalize(&mut self.module);
        for (object, &id) in objects.iter().zip(&ids) {
            self.places.insert(self.address((id, 0)), object.places.clone());
            for &(pc, offset) in &object.ways {
                if hooks.binary_search(&pc).is_err() && !hidden(pc) {
                    table.set(pc, self.address((id, offset)) as u32);
                }
            }
        }
        true
    }

    /// What a relocation of function `id` refers to; makes a stub for a guest address that has no
    /// way in.
    fn resolve(
        &mut self,
        id: FuncId,
        target: Target,
        table: &Table,
        hooks: &[u64],
    ) -> ModuleRelocTarget {
        let (function, offset) = match target {
            Target::Inside(offset) => (id, offset),
            Target::Leave => self.routine(|r| r.leave),
            Target::Settle => self.routine(|r| r.settle),
            Target::Note => self.routine(|r| r.note),
            Target::Chain(pc) => self.ways.get(&pc).copied().unwrap_or_else(|| {
                let why = if hooks.binary_search(&pc).is_ok() { leave::HOOK } else { leave::LINK };
                (self.stub(pc, why, table), 0)
            }),
        };
        ModuleRelocTarget::FunctionOffset(function, offset)
    }

    fn routine(&self, which: fn(&Routines) -> u64) -> Way {
        let (id, offsets) = &self.shared;
        (*id, which(offsets) as u32)
    }

    /// Makes the code that reports a hook, and has the table lead there.
    pub(super) fn hook(&mut self, pc: u64, table: &Table) {
        let stub = self.stub(pc, leave::HOOK, table);
        finalize(&mut self.module);
        if table.pcs().contains(&pc) {
            table.set(pc, self.address((stub, 0)) as u32);
        }
    }

    /// Code that goes on at a guest address which had no way in when it was made.
    fn stub(&mut self, pc: u64, why: u64, table: &Table) -> FuncId {
        if let Some(&stub) = self.stubs.get(&pc) {
            return stub;
        }
        let bytes = routines::stub(pc, why, table);
        let (function, offset) = self.routine(|r| r.leave);
        let leave = ModuleRelocTarget::FunctionOffset(function, offset);
        let id = declare(&mut self.module);
        define(&mut self.module, id, &bytes, &[relocation(bytes.len() as u32 - 4, leave)]);
        self.stubs.insert(pc, id);
        id
    }

    /// A thunk that executes one instruction with all flags.
    pub(super) fn step(&mut self, batch: &Batch) -> Option<u64> {
        let key = (batch.instructions()[0].ip(), batch.operand());
        if let Some(&at) = self.steps.get(&key) {
            return Some(at);
        }
        let object = RegionCode::step(batch)?;
        if Image::size(&object) > self.arena.room() {
            return None;
        }
        let id = declare(&mut self.module);
        define(&mut self.module, id, &object.bytes, &[]);
        finalize(&mut self.module);
        let at = self.address((id, 0));
        self.places.insert(at, object.places);
        self.steps.insert(key, at);
        Some(at)
    }

    /// The way in for a direct transfer to `pc`.
    pub(super) fn entry(&self, pc: u64) -> Option<u64> {
        self.ways.get(&pc).map(|&way| self.address(way))
    }

    /// Host address of the block at a hooked address.
    pub(super) fn body(&self, pc: u64) -> Option<u64> {
        self.bodies.get(&pc).map(|&way| self.address(way))
    }

    /// The guest instruction that translated code at `host` belongs to.
    pub(super) fn place(&self, host: u64) -> Option<u64> {
        let (start, places) = self.places.range(..=host).next_back()?;
        let offset = (host - start) as u32;
        let at = places.partition_point(|&(o, _)| o <= offset).checked_sub(1)?;
        Some(u64::from(places[at].1)).filter(|&pc| pc != 0)
    }

    fn address(&self, (function, offset): Way) -> u64 {
        let target = ModuleRelocTarget::FunctionOffset(function, offset);
        self.arena.executed(self.module.get_address(&target))
    }
}

/// Regions take what they get in registers of our choice, so that no signature says it.
fn declare(module: &mut JITModule) -> FuncId {
    let signature = Signature::new(CallConv::SystemV);
    module.declare_anonymous_function(&signature).expect("there are fewer than 2^32 functions")
}

fn define(module: &mut JITModule, id: FuncId, bytes: &[u8], relocations: &[ModuleReloc]) {
    module
        .define_function_bytes(id, ALIGNMENT, bytes, relocations)
        .expect("the function was just declared, and there is room for it");
}

fn finalize(module: &mut JITModule) {
    module.finalize_definitions().expect("our memory needs nothing done to it");
}

/// The last four bytes of a jump or a call.
fn relocation(at: u32, name: ModuleRelocTarget) -> ModuleReloc {
    ModuleReloc { offset: at, kind: Reloc::X86CallPCRel4, name, addend: -4 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cranelift::compile::host_isa;
    use crate::memory::read_guest;

    const A: u64 = 0x1000;
    const B: u64 = 0x1010;
    const NOWHERE: u64 = 0x1020;

    fn image() -> (Image, Table) {
        let isa = host_isa().expect("the host is an x86-64");
        let image = Image::new(&isa, 0, 0).expect("there is low memory");
        (image, Table::new(A..NOWHERE + 1).expect("there is memory"))
    }

    /// Eight bytes and more, of which the first four lead to `target`; the way in is behind them.
    fn object(pc: u64, target: Target, more: usize) -> RegionCode {
        let (relocations, ways) = (vec![(0, target)], vec![(pc, 4)]);
        RegionCode { bytes: vec![0xcc; 8 + more], relocations, ways, places: Vec::new() }
    }

    /// Where the field before a way in leads.
    fn leads_to(way: u64) -> u64 {
        let mut field = [0; 4];
        assert_eq!(read_guest(way - 4, &mut field), 4);
        way.wrapping_add_signed(i32::from_le_bytes(field).into())
    }

    #[test]
    fn objects_of_a_batch_lead_to_each_other_and_to_older_ones() {
        let (mut image, table) = image();
        let batch = [object(A, Target::Chain(B), 0), object(B, Target::Inside(6), 0)];
        assert!(image.install(&batch, &table, &[], &|pc| pc == B));
        let [a, b] = [A, B].map(|pc| image.entry(pc).expect("it was installed"));
        assert_eq!((leads_to(a), leads_to(b)), (b, b + 2));
        assert_eq!([A, B].map(|pc| u64::from(table.get(pc))), [a, 0], "B is hidden");
        assert!(image.install(&[object(B, Target::Chain(A), 0)], &table, &[], &|_| false));
        let newer = image.entry(B).expect("it was installed");
        assert!(newer != b && leads_to(newer) == a && u64::from(table.get(B)) == newer);
    }

    #[test]
    fn ways_that_are_missing_lead_to_one_stub() {
        let (mut image, table) = image();
        let batch = [A, B].map(|pc| object(pc, Target::Chain(NOWHERE), 0));
        assert!(image.install(&batch, &table, &[], &|_| false));
        let [a, b] = [A, B].map(|pc| leads_to(image.entry(pc).expect("it was installed")));
        assert!(a == b && image.range().contains(&a));
        assert_eq!((image.entry(NOWHERE), table.get(NOWHERE)), (None, 0));
    }

    #[test]
    fn a_batch_without_room_changes_nothing() {
        let (mut image, table) = image();
        let large = object(A, Target::Chain(B), image.arena.room() as usize);
        assert!(!image.install(&[large], &table, &[], &|_| false));
        assert_eq!((image.entry(A), table.get(A)), (None, 0));
        assert!(image.install(&[object(A, Target::Leave, 0)], &table, &[], &|_| false));
        assert_eq!(image.entry(A).map(leads_to), Some(image.routines.leave));
    }
}
