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

/// Machine code of a region, not yet at its place.
pub(super) struct Object {
    pub(super) bytes: Vec<u8>,
    /// 32-bit fields to fill in: where, and what with.
    pub(super) relocations: Vec<(u32, Target)>,
    /// Ways in: guest pc and offset.
    pub(super) ways: Vec<(u64, u32)>,
    pub(super) thunks: Vec<Batch>,
    /// How many indirect transfers there are.
    pub(super) indirect: u32,
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
    /// The `n`th indirect transfer of the region.
    Indirect(u32),
    Thunk(u32),
}

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
    pub(super) fn compile(
        &mut self,
        isa: &OwnedTargetIsa,
        graph: &Graph,
        region: &Region,
        watch: Watch,
    ) -> Option<Object> {
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
        let mut bytes = code.buffer.data().to_vec();
        let mut object = Object {
            bytes: Vec::new(),
            relocations: Vec::new(),
            ways: Vec::new(),
            thunks,
            indirect: 0,
            places: Vec::new(),
        };
        for relocation in code.buffer.relocs() {
            let FinalizedRelocTarget::ExternalName(ExternalName::User(name)) = &relocation.target
            else {
                panic!("regions refer to symbols of ours only: {relocation:?}");
            };
            let name = &self.context.func.params.user_named_funcs()[*name];
            let at = relocation.offset;
            let target = match name.namespace {
                symbol::CHAIN => Target::Chain(name.index.into()),
                symbol::LEAVE => Target::Leave,
                symbol::INDIRECT => {
                    object.indirect += 1;
                    Target::Indirect(object.indirect - 1)
                }
                symbol::SETTLE => Target::Settle,
                symbol::THUNK => Target::Thunk(name.index),
                _ => {
                    let block = region.blocks[name.index as usize] as usize;
                    object.ways.push((graph.blocks[block].pc, at + 4));
                    continue;
                }
            };
            if !matches!(target, Target::Settle | Target::Thunk(_)) {
                let opcode = &mut bytes[at as usize - 1];
                assert_eq!(*opcode, 0xe8, "a symbol is referred to by a call");
                *opcode = 0xe9;
            }
            object.relocations.push((at, target));
        }
        object.places = code
            .buffer
            .get_srclocs_sorted()
            .iter()
            .filter(|s| !s.loc.is_default())
            .map(|s| (s.start, s.loc.bits()))
            .collect();
        object.bytes = bytes;
        Some(object)
    }
}
