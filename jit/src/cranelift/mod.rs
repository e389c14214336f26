//! The engine `cranelift`: replays recorded code, lifted to Cranelift IR, with observers compiled
//! in.
//!
//! A replay knows all code beforehand, from the trace's table of executed blocks. So everything
//! is compiled when the engine is made, in parallel: the blocks become a control-flow graph
//! ([`graph`]), the graph is partitioned into regions ([`regions`]), each region becomes one
//! Cranelift function ([`body`], [`lift`]) and the functions are linked to each other by direct
//! jumps ([`image`], a module of `cranelift-jit` in memory of our own, [`arena`]). While threads run there is no dispatcher: direct branches are jumps, indirect
//! ones load their target from a flat table ([`table`]). Only an indirect jump to a block that
//! was thought to be reached from inside its region has code compiled at run time, once.
//!
//! # What is exact
//! At every exit but [`Exit::Fault`](refrain_vm::Exit::Fault) all registers are, and of the status
//! flags those that recorded code can still read. At a fault `rip` is the faulting instruction,
//! found by a map from translated code to guest code; but general registers may have older values,
//! and those that are passed in host registers ([`vars::HOT`]) those from when the thread last
//! entered translated code. Maps from translated code to the places of registers could be added
//! beside `RegionCode::places`. Exception flags in MXCSR may lack those of operations whose results
//! nobody reads.
//!
//! # Reading order
//! `frame`, `vars`, `graph`, `lanes`, `regions`, `flow`, `lift`, `thunk`, `body`, `compile`,
//! `table`, `routines`, `arena`, `image`, `cpu`, this file.

mod arena;
mod body;
mod compile;
mod cpu;
mod flow;
mod frame;
mod graph;
mod image;
mod lift;
mod noting;
mod regions;
mod routines;
mod table;
mod thunk;
mod vars;
mod wide;

use compile::{Compiler, RegionCode, Setting};
use cpu::CraneliftCpu;
use cranelift_codegen::isa::OwnedTargetIsa;
use graph::{Cuts, Graph};
use image::Image;
use lift::Watch;
use rayon::prelude::*;
use refrain_trace::CodeBlock;
use refrain_vm::{Cpu, Engine, EngineConfig, EngineError, LeaveOut};
use regions::{Limits, Region};
use routines::Routines;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use table::Table;

const NAME: &str = "cranelift";

/// Size of a region. Bigger ones compile faster per instruction, up to a point.
const LIMITS: Limits = Limits { blocks: 48, instructions: 400 };
/// The same for code that is compiled again from another entry.
const AGAIN: Limits = Limits { blocks: 8, instructions: 80 };
/// Where a region has outgrown the spill area.
const SMALL: Limits = Limits { blocks: 1, instructions: 1 };

/// Records that an access buffer must have room for, at least: a region that would need more is
/// not made, and a smaller buffer would be reported full for ever.
pub const MIN_ACCESSES: usize = 4096;

/// The code that a replay executes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Program<'a> {
    /// The trace's table of executed blocks.
    pub blocks: &'a [CodeBlock],
    /// Hooked addresses.
    pub hooks: &'a [u64],
}

/// The engine.
pub struct CraneliftEngine {
    shared: Arc<Shared>,
}

/// What all threads share.
struct Shared {
    graph: Graph,
    hooks: Vec<u64>,
    watch: Watch,
    table: Table,
    routines: Routines,
    isa: OwnedTargetIsa,
    /// The code of an indirect transfer.
    indirect: Vec<u8>,
    /// Not 0 once there are several threads. Compiled code refers to it.
    several: Box<AtomicU8>,
    image: Mutex<Image>,
    /// Threads come to code that is not compiled, and go on with it elsewhere.
    on_demand: bool,
}

/// Code memory of an engine that compiles on demand.
const ON_DEMAND: u64 = 32 << 20;

impl CraneliftEngine {
    /// Compiles a program. `config.keep_blocks` means nothing here.
    pub fn new(
        config: &EngineConfig,
        program: Program<'_>,
    ) -> Result<CraneliftEngine, EngineError> {
        CraneliftEngine::make(config, program, false)
    }

    /// An engine without code: [`Self::compile`] makes some. A thread that comes to any other exits
    /// with [`Exit::UnknownTarget`](refrain_vm::Exit::UnknownTarget), its registers complete.
    pub(crate) fn on_demand(
        config: &EngineConfig,
        program: Program<'_>,
    ) -> Result<CraneliftEngine, EngineError> {
        CraneliftEngine::make(config, program, true)
    }

    /// Compiles the code at `pc` and what follows it; false if there is no room for more.
    pub(crate) fn compile(&self, pc: u64) -> bool {
        let known = self.shared.graph.at(pc).is_some();
        !known || self.has(pc) || self.shared.compile_at(pc, LIMITS).is_some()
    }

    /// Whether threads can run at `pc`, which is not hooked.
    pub(crate) fn has(&self, pc: u64) -> bool {
        self.shared.hooks.binary_search(&pc).is_err() && self.shared.table.get(pc) != 0
    }

    fn make(
        config: &EngineConfig,
        program: Program<'_>,
        on_demand: bool,
    ) -> Result<CraneliftEngine, EngineError> {
        let unavailable = |why: String| EngineError::Unavailable { engine: NAME, why };
        if !crate::fault::has_fsgsbase() {
            return Err(unavailable(
                "user code may not read the GS base; a kernel from 5.9 on allows it".into(),
            ));
        }
        crate::fault::install();
        let isa = compile::host_isa().map_err(unavailable)?;
        let mut hooks = program.hooks.to_vec();
        hooks.sort_unstable();
        hooks.dedup();
        let several = Box::new(AtomicU8::new(0));
        let pcs = addresses(program.blocks).map_err(|pc| {
            let why = format!(
                "it has made the code at {pc:#x} itself, or a library found no room below 2 GiB; \
                 `replay --engine copy` can"
            );
            EngineError::Program { engine: NAME, why }
        })?;
        let watch = Watch {
            accesses: config.accesses,
            leave_out: match config.accesses {
                true => config.leave_out,
                false => LeaveOut::Nothing,
            },
            calls: config.calls,
            functions: config.accesses && !config.functions.is_empty(),
            nested: config.accesses && !config.nested.is_empty(),
            count: config.count,
            tells: !config.live,
            every: config.every_access,
            several: several.as_ptr() as u64,
        };
        let cuts = Cuts {
            hooks: &hooks,
            places: &config.places,
            alone: &config.alone,
            functions: if config.accesses { &config.functions } else { &BTreeMap::new() },
            nested: if config.accesses { &config.nested } else { &BTreeMap::new() },
            values: if config.accesses { &config.values } else { &BTreeMap::new() },
            compared: if config.accesses { &config.compared } else { &BTreeSet::new() },
            watched: config.watched.as_deref(),
            order_atomics: config.order_atomics,
            every_access: config.every_access,
            processor: config.processor,
            pieces: config.accesses,
        };
        let graph = Graph::new(program.blocks, cuts).map_err(|pc| {
            let why = format!(
                "the code at {pc:#x} changed while it was recorded; `replay --engine copy` can"
            );
            EngineError::Program { engine: NAME, why }
        })?;
        let table = Table::new(pcs)
            .map_err(|e| unavailable(format!("no memory for the table of code: {e}")))?;
        let regions = match on_demand {
            true => Vec::new(),
            false => regions::partition(&graph, LIMITS, watch.accesses || watch.calls),
        };
        let indirect = routines::indirect(&table);
        let setting = Setting { isa: &isa, graph: &graph, watch, indirect: &indirect };
        let objects = compile_all(setting, &regions);
        let stubs = objects.iter().map(|o| o.relocations.len()).sum::<usize>() + hooks.len();
        let size: u64 = objects.iter().map(Image::size).sum();
        let mut image = Image::new(&isa, if on_demand { ON_DEMAND } else { size }, stubs)?;
        for &pc in &hooks {
            image.hook(pc, &table);
        }
        assert!(
            image.install(&objects, &table, &hooks, &|pc| graph.is_hidden(pc)),
            "the code memory was made as large as the code"
        );
        let routines = image.routines;
        let image = Mutex::new(image);
        let shared = Arc::new(Shared {
            graph,
            hooks,
            watch,
            table,
            routines,
            isa,
            indirect,
            several,
            image,
            on_demand,
        });
        Ok(CraneliftEngine { shared })
    }
}

/// The guest addresses of all blocks, or one that is out of bounds.
fn addresses(blocks: &[CodeBlock]) -> Result<Range<u64>, u64> {
    let outside = blocks.iter().find(|b| b.pc.saturating_add(b.code.len() as u64) > (1 << 31) - 2);
    if let Some(block) = outside {
        return Err(block.pc);
    }
    let first = blocks.iter().map(|b| b.pc).min().unwrap_or(0);
    let last = blocks.iter().map(|b| b.pc + b.code.len() as u64).max().unwrap_or(0);
    Ok(first..last + 1)
}

/// Compiles regions on all cores.
fn compile_all(setting: Setting<'_>, regions: &[Region]) -> Vec<RegionCode> {
    let compile = |compiler: &mut Compiler, region: &Region| {
        let object = compiler.compile(setting, region);
        object.map_or_else(
            || {
                // Block by block: what a region spills grows with its size.
                let pieces = region
                    .blocks
                    .iter()
                    .map(|&b| regions::single(setting.graph, b as usize, SMALL));
                pieces.filter_map(|piece| compiler.compile(setting, &piece)).collect()
            },
            |object| vec![object],
        )
    };
    regions.par_iter().map_init(Compiler::new, compile).flatten_iter().collect()
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Image> {
        self.image.lock().expect("no panic while the image is locked")
    }

    fn setting(&self) -> Setting<'_> {
        let Shared { isa, graph, watch, indirect, .. } = self;
        Setting { isa, graph, watch: *watch, indirect }
    }

    fn code_range(&self) -> Range<u64> {
        self.lock().range()
    }

    fn place(&self, host: u64) -> Option<u64> {
        self.lock().place(host)
    }

    /// The code at a hooked address, past the hook.
    fn body(&self, pc: u64) -> Option<u64> {
        self.hooks.binary_search(&pc).ok()?;
        self.lock().body(pc)
    }

    /// The way in for a direct transfer to `pc`, compiled now if the block was no entry so far.
    /// `None` if there is no such block, or no room for more code.
    fn compile_at(&self, pc: u64, limits: Limits) -> Option<u64> {
        let block = self.graph.at(pc)?;
        if let Some(host) = self.lock().entry(pc) {
            return Some(host);
        }
        let compile = |limits| {
            let region = regions::single(&self.graph, block, limits);
            Compiler::new().compile(self.setting(), &region)
        };
        let object = compile(limits).or_else(|| compile(SMALL))?;
        let mut image = self.lock();
        if let Some(host) = image.entry(pc) {
            return Some(host);
        }
        let hidden = |pc| self.graph.is_hidden(pc);
        image.install(&[object], &self.table, &self.hooks, &hidden);
        image.entry(pc)
    }
}

impl Engine for CraneliftEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn hook(&self, pc: u64) {
        assert!(
            self.shared.hooks.binary_search(&pc).is_ok()
                || self.shared.graph.instruction(pc).is_none(),
            "hooks in recorded code are given to `CraneliftEngine::new`: {pc:#x}"
        );
    }

    fn several_threads(&self) {
        self.shared.several.store(1, Ordering::SeqCst);
    }

    fn forget(&self, _range: Range<u64>) {
        // Code at an address is the same for the whole recording, or `new` refuses it.
    }

    fn attach(&self) -> Result<Box<dyn Cpu>, EngineError> {
        Ok(Box::new(CraneliftCpu::new(Arc::clone(&self.shared))?))
    }
}
