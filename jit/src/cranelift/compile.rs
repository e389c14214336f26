//! From a region to relocatable machine code.

use super::body;
use super::frame::SPILL;
use super::graph::Graph;
use super::lift::{Watch, symbol};
use super::regions::Region;
use super::thunk::Batch;
use cranelift_codegen::ir::ExternalName;
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{Context, FinalizedRelocTarget};
use cranelift_frontend::FunctionBuilderContext;

/// What regions are compiled from and for.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) isa: &'a OwnedTargetIsa,
    pub(super) graph: &'a Graph,
    pub(super) watch: Watch,
    /// The code of an indirect transfer ([`super::routines::indirect`]).
    pub(super) indirect: &'a [u8],
}

/// Machine code of a region, with its indirect transfers and thunks behind it; not yet at its
/// place.
pub(super) struct RegionCode {
    pub(super) bytes: Vec<u8>,
    /// 32-bit fields to fill in, each the end of a jump or a call: where, and where it goes.
    pub(super) relocations: Vec<(u32, Target)>,
    /// Ways in: guest pc and offset.
    pub(super) ways: Vec<(u64, u32)>,
    /// Which guest instruction code belongs to: offset and pc, sorted.
    pub(super) places: Vec<(u32, u32)>,
}

/// What a relocation refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// Guest address.
    Chain(u64),
    Leave,
    Settle,
    Note,
    /// Offset in the object itself.
    Inside(u32),
}

/// `int3`, between pieces of code.
const PADDING: u8 = 0xcc;

/// Compiles regions; one per thread.
pub(super) struct Compiler {
    context: Context,
    builder: FunctionBuilderContext,
}

/// The instruction set, as the host has it.
pub(super) fn host_isa() -> Result<OwnedTargetIsa, String> {
    let mut flags = settings::builder();
    let mut set = |name, value| flags.set(name, value).map_err(|e| e.to_string());
    // Anything above "none" merges and moves guest loads.
    set("opt_level", "none")?;
    set("regalloc_algorithm", "backtracking")?;
    set("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" })?;
    set("enable_probestack", "false")?;
    set("unwind_info", "false")?;
    set("preserve_frame_pointers", "true")?;
    set("is_pic", "false")?;
    let mut isa = isa::lookup_by_name("x86_64-unknown-linux-gnu").map_err(|e| e.to_string())?;
    let features = [
        ("has_sse3", std::is_x86_feature_detected!("sse3")),
        ("has_ssse3", std::is_x86_feature_detected!("ssse3")),
        ("has_sse41", std::is_x86_feature_detected!("sse4.1")),
        ("has_sse42", std::is_x86_feature_detected!("sse4.2")),
        ("has_popcnt", std::is_x86_feature_detected!("popcnt")),
        ("has_avx", std::is_x86_feature_detected!("avx")),
        ("has_avx2", std::is_x86_feature_detected!("avx2")),
        ("has_bmi1", std::is_x86_feature_detected!("bmi1")),
        ("has_bmi2", std::is_x86_feature_detected!("bmi2")),
        ("has_lzcnt", std::is_x86_feature_detected!("lzcnt")),
    ];
    for (name, present) in features {
        if present {
            isa.enable(name).map_err(|e| e.to_string())?;
        }
    }
    isa.finish(settings::Flags::new(flags)).map_err(|e| e.to_string())
}

impl Compiler {
    pub(super) fn new() -> Compiler {
        Compiler { context: Context::new(), builder: FunctionBuilderContext::new() }
    }

    /// Compiles a region. Returns `None` if its code is beyond a limit (of the spill area, say);
    /// a smaller region then may do.
    pub(super) fn compile(&mut self, setting: Setting<'_>, region: &Region) -> Option<RegionCode> {
        let Setting { isa, graph, watch, .. } = setting;
        self.context.clear();
        let thunks = body::translate(
            graph,
            region,
            watch,
            isa.frontend_config(),
            &mut self.context.func,
            &mut self.builder,
        );
        if let Err(e) = self.context.compile(&**isa, &mut Default::default()) {
            panic!("the lifter makes valid functions: {:?}\n{}", e.inner, e.func.display());
        }
        let code = self.context.compiled_code().expect("it was just compiled");
        let frame = code.buffer.frame_layout().expect("every function has a frame");
        assert!(
            frame.stackslots.values().all(|slot| slot.offset == 0),
            "the guest's frame is at the stack pointer"
        );
        let spill = frame.frame_to_fp_offset as usize;
        if spill > SPILL {
            return None;
        }
        let mut object = RegionCode {
            bytes: code.buffer.data().to_vec(),
            relocations: Vec::new(),
            ways: Vec::new(),
            places: code
                .buffer
                .get_srclocs_sorted()
                .iter()
                .filter(|s| !s.loc.is_default())
                .map(|s| (s.start, s.loc.bits()))
                .collect(),
        };
        object.places.push((object.bytes.len() as u32, 0));
        let thunks: Vec<u32> = thunks.iter().map(|thunk| object.append_thunk(thunk)).collect();
        for relocation in code.buffer.relocs() {
            let FinalizedRelocTarget::ExternalName(ExternalName::User(name)) = &relocation.target
            else {
                panic!("regions refer to symbols of ours only: {relocation:?}");
            };
            let name = &self.context.func.params.user_named_funcs()[*name];
            let at = relocation.offset;
            let (target, returns) = match name.namespace {
                symbol::CHAIN => (Target::Chain(name.index.into()), false),
                symbol::LEAVE => (Target::Leave, false),
                symbol::INDIRECT => (object.append_indirect(setting.indirect), false),
                symbol::SETTLE => (Target::Settle, true),
                symbol::NOTE => (Target::Note, true),
                symbol::THUNK => (Target::Inside(thunks[name.index as usize]), true),
                _ => {
                    let block = region.blocks[name.index as usize] as usize;
                    object.ways.push((graph.blocks[block].pc, at + 4));
                    continue;
                }
            };
            if !returns {
                let opcode = &mut object.bytes[at as usize - 1];
                assert_eq!(*opcode, 0xe8, "a symbol is referred to by a call");
                *opcode = 0xe9;
            }
            object.relocations.push((at, target));
        }
        Some(object)
    }
}

impl RegionCode {
    /// A thunk alone, to be entered by a call: one instruction with all flags.
    pub(super) fn step(batch: &Batch) -> Option<RegionCode> {
        let code = batch.encode(Batch::all_flags())?;
        let (relocations, ways) = (Vec::new(), Vec::new());
        Some(RegionCode { bytes: code.bytes, relocations, ways, places: code.map })
    }

    fn append_thunk(&mut self, thunk: &Batch) -> u32 {
        let code = thunk.encode(thunk.flag_use()).expect("it was encodable when it was made");
        let start = self.append(&code.bytes);
        self.places.extend(code.map.iter().map(|&(offset, pc)| (start + offset, pc)));
        start
    }

    /// Appends the code of an indirect transfer, which is no guest instruction's.
    fn append_indirect(&mut self, code: &[u8]) -> Target {
        let start = self.append(code);
        self.relocations.push((self.bytes.len() as u32 - 4, Target::Leave));
        Target::Inside(start)
    }

    /// Appends code and returns where it begins.
    fn append(&mut self, code: &[u8]) -> u32 {
        self.bytes.resize(self.bytes.len().next_multiple_of(16), PADDING);
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(code);
        start
    }
}
