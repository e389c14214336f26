//! Replays and analyses: picks the engine (no other file picks one for a replay), runs the replay with
//! observers, and makes results of what they saw. All this executes code out of a trace: only the
//! sandboxed child does it, and callers of `unconfined`.

mod collect;
mod constrained;
mod freed;
mod ground;
mod made;
mod policy;
mod predictor;
mod races;
mod segments;
mod skeleton;
mod stacks;
mod text;
mod transformed;
mod uses;
mod words;

pub use policy::Policy;
pub(crate) use segments::segments;
pub use segments::{Amount, Segments};
pub use skeleton::Skeleton;
pub(crate) use stacks::{Held, Moment, Point, Seen, Snapshot};
pub use transformed::Worth;
pub(crate) use transformed::{Transformation, transform};

use crate::choices::{EngineKind, SchedulerKind};
use crate::error::{Error, bail};
use crate::replayed;
use collect::Collect;
use ground::Ground;
use made::OwnLocks;
use predictor::Predictor;
use races::Races;
use refrain_analysis::{Code, Race, Tapped};
use refrain_jit::{CraneliftEngine, Program};
use refrain_trace::{CodeBlock, EventId, EventKind, ThreadId, Trace, common};
use refrain_transform::{
    Collector, Irregularity, LockKind, Made, Make, Measurement, Options, Picture, Replayer,
    Sections, Unknown, measure, picture,
};
use refrain_vm::{
    Count, Engine, EngineConfig, EngineError, LeaveOut, Observer, Placement, Processor,
};
use serde::{Deserialize, Serialize};
use stacks::Stacks;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Makes the engine that replays a trace.
fn replaying_engine(
    kind: EngineKind,
    config: EngineConfig,
    trace: &Trace,
) -> crate::Result<Arc<dyn Engine>> {
    let blocks = trace.blocks()?;
    let Watched { sites, places, alone } = watched_places(trace, &blocks)?;
    let count = match config.count {
        count if places.is_empty() => count,
        Count::Cycles => bail!(
            Refused,
            "signals have interrupted computations of the recorded program; a replay finds these \
             places by counting instructions, and cannot estimate cycles beside: leave out \
             --cost instructions"
        ),
        _ => Count::Instructions,
    };
    let (watched, places) = (Some(Arc::new(sites)), Arc::new(places));
    let alone = Arc::new(alone);
    let processor = recorded_processor(trace, &blocks, Processor::host())?;
    let every_access = trace.header().order.is_of_every_access();
    let config = EngineConfig { watched, places, alone, count, processor, every_access, ..config };
    let hooks: Vec<u64> = hooks(trace).collect();
    // What copies cannot do is compiled into code: some observers, and the costs of instructions.
    let copies =
        config.count != Count::Cycles && (!config.accesses || refrain_jit::logs_copies(&config));
    // Code that the program has made itself is read in that order, which compiled code does not keep.
    let read_in_order =
        blocks.iter().map(|block| block.pc).find(|&pc| every_access && !is_of_file(trace, pc));
    Ok(match kind {
        EngineKind::Tiered if copies && config.accesses => {
            // Where every access is ordered, copies cannot log accesses of single lanes.
            let compiles = read_in_order.is_none()
                && (every_access || compiling_pays(trace, &blocks, config.leave_out));
            let compiled = compiles
                .then(|| CraneliftEngine::new(&config, Program { blocks: &blocks, hooks: &hooks }));
            match compiled {
                Some(Ok(engine)) => Arc::new(engine),
                // What it refuses, copies may log.
                _ => refrain_jit::copy(config)?,
            }
        }
        EngineKind::Tiered if copies && every_access => refrain_jit::copy(config)?,
        EngineKind::Copy => refrain_jit::copy(config)?,
        EngineKind::Tiered if copies => refrain_jit::tiered(config, blocks, hooks)?,
        EngineKind::Tiered | EngineKind::Cranelift => {
            if let Some(pc) = read_in_order {
                let why = format!(
                    "it has made the code at {pc:#x} itself, which is read in the order of all \
                     accesses; `replay --engine copy` can"
                );
                return Err(EngineError::Program { engine: "cranelift", why }.into());
            }
            let program = Program { blocks: &blocks, hooks: &hooks };
            Arc::new(CraneliftEngine::new(&config, program)?)
        }
    })
}

/// Whether a replay that logs accesses takes less time if all recorded code is compiled before it
/// begins. Compiled code logs faster than copies do: by about the time that the program computed, on
/// an AMD EPYC, where compiling a byte of code takes some 6 µs; by twelve times that time and more where
/// most of what copies log turns out to be of no interest (compressors).
fn compiling_pays(trace: &Trace, blocks: &[CodeBlock], leave_out: LeaveOut) -> bool {
    /// Nanoseconds for a byte of code: compiled here, and translated by the recorder, whose time is a
    /// part of the program's.
    const COMPILING: u64 = 10_000;
    const RECORDING: u64 = 1_000;
    let faster_by = if leave_out == LeaveOut::SameEpoch { 12 } else { 1 };
    let code: u64 = blocks.iter().map(|block| block.code.len() as u64).sum();
    let used = trace.footer().map_or(0, |footer| footer.cpu_ns);
    let computed = used.saturating_sub(code.saturating_mul(RECORDING));
    computed.saturating_mul(faster_by) > code.saturating_mul(COMPILING)
}

/// Whether the code at an address is a file's.
fn is_of_file(trace: &Trace, pc: u64) -> bool {
    trace.modules().iter().any(|module| (module.start..module.end).contains(&pc))
}

/// Functions of libraries that were recorded as events.
fn hooks(trace: &Trace) -> impl Iterator<Item = u64> {
    trace.modules().iter().flat_map(|m| &m.hooks).map(|&(pc, _)| pc)
}

/// The processor that the recorded program saw, if this machine, a `host`, can execute its code.
fn recorded_processor(
    trace: &Trace,
    blocks: &[CodeBlock],
    host: Processor,
) -> crate::Result<Processor> {
    let processor = refrain_vm::recorded_processor(trace.header())?;
    // Code need not use all that its processor has.
    if processor.without(host) != Processor::V2 {
        let missing = refrain_jit::needs(blocks).and(processor).without(host);
        if missing != Processor::V2 {
            bail!(
                Refused,
                "the recorded program uses {missing}, which this machine's processor does not \
                 have: replay it on one that has, or record it with --cpu v2"
            );
        }
    }
    Ok(processor)
}

/// What an engine has to look out for in a replay.
struct Watched {
    /// The plain loads and stores that the recording watched; if it watched all accesses, those that
    /// had events.
    sites: BTreeSet<u64>,
    /// Where signals interrupted computations.
    places: BTreeSet<u64>,
    /// Instructions that have accessed memory in common with other processes, or have faulted while there
    /// were several threads.
    alone: BTreeSet<u64>,
}

/// The plain loads and stores that a recording with these blocks has watched.
pub(crate) fn watched_sites(blocks: &[CodeBlock]) -> BTreeSet<u64> {
    let sites = |block: &CodeBlock| {
        let pc = block.pc;
        block.loads.clone().into_iter().map(move |offset| pc.wrapping_add(u64::from(offset)))
    };
    blocks.iter().flat_map(sites).collect()
}

fn watched_places(trace: &Trace, blocks: &[CodeBlock]) -> crate::Result<Watched> {
    let mut sites = watched_sites(blocks);
    let (mut places, mut alone) = (BTreeSet::new(), BTreeSet::new());
    let every_access = trace.header().order.is_of_every_access();
    for thread in (0..trace.threads()).map(ThreadId) {
        let mut cursor = trace.cursor(thread);
        while let Some(event) = cursor.next()? {
            if event.interrupts() {
                places.insert(event.pc);
            }
            let is_alone = [common::ACCESS, common::FAULT].contains(&event.nr);
            if event.kind() == EventKind::Common && is_alone {
                alone.insert(event.pc);
            }
            if every_access && event.kind().is_of_access() && event.pc != 0 {
                sites.insert(event.pc);
            }
        }
    }
    Ok(Watched { sites, places, alone })
}

/// How to replay.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplayOptions {
    /// What executes the code.
    pub engine: EngineKind,
    /// If that one cannot replay the program, the copy engine does.
    pub or_copy: bool,
    /// Pass the program's output on.
    pub echo: bool,
    /// Count instructions.
    pub count: bool,
    /// Run with the observer of the ranking, for its cost.
    pub observe: bool,
    /// Who decides which thread goes next.
    pub policy: Policy,
    /// Run on so many cores at most.
    pub cores: Option<u32>,
    /// Give each thread a core of its own, if there are enough.
    pub pin: bool,
}

impl Default for ReplayOptions {
    /// An exact replay that begins at once, on any engine that can replay the program.
    fn default() -> ReplayOptions {
        ReplayOptions { or_copy: true, ..ReplayOptions::exact(EngineKind::Tiered) }
    }
}

impl ReplayOptions {
    /// An exact replay, and nothing else.
    pub fn exact(engine: EngineKind) -> ReplayOptions {
        ReplayOptions {
            engine,
            or_copy: false,
            echo: false,
            count: false,
            observe: false,
            policy: Policy::default(),
            cores: None,
            pin: false,
        }
    }
}

/// What a running replay tells the outside.
pub(crate) trait Listener: Send + Sync {
    /// So many of all events are done.
    fn progress(&self, done: u64, total: u64);
    /// The program printed something (only with [`ReplayOptions::echo`]).
    fn output(&self, descriptor: i32, bytes: &[u8]);
    /// What threads did next (only of [`steps`]).
    fn steps(&self, _steps: Vec<(u32, Tapped)>) {}
    /// How long a thread may compute without an event, if there is a limit.
    fn patience(&self) -> Option<Duration>;
}

/// Replays a trace to its end or to the first divergence.
pub(crate) fn replay(
    trace: &Trace,
    options: &ReplayOptions,
    listener: Arc<dyn Listener>,
) -> crate::Result<replayed::Replayed> {
    let started = Instant::now();
    let collect = options.observe.then(|| Collect::new(Vec::new()));
    // Logical clocks count instructions.
    let counts = options.count || options.policy.scheduler == SchedulerKind::Kendo;
    let config = EngineConfig {
        order_atomics: true,
        count: if counts { Count::Instructions } else { Count::Nothing },
        accesses: collect.is_some(),
        leave_out: collect.as_ref().map(Observer::leaves_out).unwrap_or_default(),
        live: options.policy.full().is_live(),
        ..EngineConfig::default()
    };
    let (engine, name) = match replaying_engine(options.engine, config.clone(), trace) {
        Err(error) if options.or_copy && !config.accesses && is_programs(&error) => {
            (replaying_engine(EngineKind::Copy, config, trace)?, EngineKind::Copy.name())
        }
        engine => {
            let engine = engine?;
            let name = engine.name();
            (engine, name)
        }
    };
    let echo = options.echo.then(|| {
        let listener = listener.clone();
        Arc::new(move |fd: i32, bytes: &[u8]| listener.output(fd, bytes)) as refrain_vm::Output
    });
    let transformed = trace.transformed()?.map(Arc::new);
    if transformed.is_some() && options.policy.scheduler != SchedulerKind::Elsc {
        bail!(
            Refused,
            "a transformed trace is replayed by the wall clock under elsc alone: its causal edges \
             are those of the recorded order; --clock virtual takes any scheduler"
        );
    }
    let vm_options = refrain_vm::ReplayOptions {
        transformed: transformed.clone(),
        counted: options.count,
        output: echo,
        observer: collect.map(|collect| Arc::new(collect) as Arc<dyn Observer>),
        patience: listener.patience(),
        progress: watched(trace.events(), listener),
        until: None,
        policy: options.policy.full(),
        placement: Placement { cores: options.cores, pinned: options.pin },
        keeps_times: options.pin,
    };
    let mut outcome = refrain_vm::replay(trace, engine, vm_options)?;
    if let Some(record) = &transformed {
        transformed::compare_state(trace, record, &mut outcome);
    }
    let prepared = started.elapsed().saturating_sub(outcome.elapsed);
    let report = replayed::Replayed::new(outcome, name, options.policy.scheduler, prepared);
    let locks_freed = transformed.map_or(0, |record| record.locks.len() as u64);
    Ok(replayed::Replayed { locks_freed, ..report })
}

/// Whether it is what the program has that an engine cannot run.
fn is_programs(error: &Error) -> bool {
    matches!(error, Error::Machine(refrain_vm::Error::Engine(EngineError::Program { .. })))
}

/// How long a recording took, and how much of it was replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Extent {
    /// Events that happened.
    pub events: u64,
    /// Events that are there.
    pub recorded: u64,
    /// From the guest's first instruction to its last event, as recorded.
    pub recorded_ns: u64,
}

/// What comes of an analysis.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Analysis {
    /// What each pair of critical sections costs, in so many of the recorded events; and what has no
    /// such pairs.
    Measured(Box<Measurement>, Beside, Extent),
    /// Nothing: the replay left the recording.
    Diverged(replayed::Divergence),
}

/// What an analysis finds beside pairs of critical sections.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Beside {
    /// How the locks are made that the program makes itself.
    pub made: Vec<Make>,
    /// Locks of which nothing can be said, with the address of a section that shows why, and how
    /// many sections there are.
    pub irregular: Vec<(u64, Irregularity, u64, u64)>,
    /// What was waited for and is no lock, as far as can be told; `ticks` are nanoseconds. And where the
    /// longest wait was, from the inside out, as far as that is known.
    pub unknown: Vec<(Unknown, Vec<u64>)>,
    /// The threads over time, if that was asked for, or why there is no picture.
    pub picture: Option<Result<Picture, String>>,
}

impl Beside {
    /// `whereabouts`: where threads were at the events that were asked about.
    fn new(
        sections: &Sections,
        made: &Made,
        whereabouts: &BTreeMap<(ThreadId, u32), Vec<u64>>,
        nanoseconds: impl Fn(u64) -> u64,
    ) -> Beside {
        let irregular = sections.locks().iter().filter_map(|lock| match lock.kind {
            LockKind::Irregular(why) => {
                let example = sections.all()[lock.example?.index()];
                let site = sections.regions()[example.region.index()].acquire;
                Some((lock.address, why, site, lock.sections.len() as u64))
            }
            LockKind::Regular => None,
        });
        // Those that the program has itself made and never used by two threads are none here.
        let used = |address: u64| sections.locks().iter().any(|lock| lock.address == address);
        let unknown = made.unknown.iter().map(|it| {
            let at = whereabouts.get(&(it.thread, it.event)).cloned();
            (Unknown { ticks: nanoseconds(it.ticks), ..*it }, at.unwrap_or_default())
        });
        Beside {
            made: made.locks.iter().filter(|it| used(it.address)).map(|it| it.make).collect(),
            irregular: irregular.collect(),
            unknown: unknown.collect(),
            picture: None,
        }
    }
}

/// Replays a trace with the observer of the ranking, and measures what each pair of critical
/// sections costs; if it `draws`, with a picture of the threads over time.
pub(crate) fn analyse(
    trace: &Trace,
    draws: bool,
    listener: Arc<dyn Listener>,
) -> crate::Result<Analysis> {
    let Ground { own, mut constant } = Ground::of(trace)?;
    let locks = OwnLocks::of(trace)?;
    let uses = uses::uses(&trace.blocks()?, hooks(trace), &locks);
    let collect = Arc::new(Collect::new(own).of_locks(locks).with_uses(uses));
    let outcome = observed(trace, Count::Nothing, collect.clone(), None, listener)?;
    if let Some(divergence) = outcome.divergence {
        return Ok(Analysis::Diverged(divergence.into()));
    }
    if outcome.events == 0 {
        bail!(Unusable, "nothing of the trace can be replayed: it was cut off too soon");
    }
    let locks = collect.locks().expect("it was made with them");
    constant.extend(locks.words());
    let collectors = collect.take();
    let whereabouts = collectors.iter().flat_map(Collector::whereabouts).collect();
    let sections = Sections::merge(collectors, &constant, &locks.atomic)?;
    let mut predictor = Predictor::new(trace, &locks.made)?;
    let recorded_ns = predictor.recorded_ns();
    let extent = Extent { events: outcome.events, recorded: outcome.recorded, recorded_ns };
    let mut beside =
        Beside::new(&sections, &locks.made, &whereabouts, |ticks| predictor.nanoseconds(ticks));
    if draws {
        beside.picture = Some(picture(&sections, &mut predictor));
    }
    let measured = measure(&sections, &mut predictor, &Options::default())?;
    Ok(Analysis::Measured(Box::new(measured), beside, extent))
}

/// Steps that are told together.
const STEPS_PIECE: usize = 4096;

/// What to look for when looking for races.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "a search has one")]
pub(crate) enum RaceSearch {
    /// What a transformed trace does not order, and the original does.
    Transformed,
    /// Why the replay diverges before this event of a thread.
    Divergence(ThreadId, EventId),
    /// What the program does not order, whatever the replay keeps.
    Program(Code),
}

/// What a search for races has found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Raced {
    /// The races.
    pub races: Vec<Race>,
    /// Where the replay left the recording, if it did: nothing was searched behind that.
    pub divergence: Option<replayed::Divergence>,
}

/// Replays a trace, up to where it diverges, and returns what raced.
pub(crate) fn races(
    trace: &Trace,
    search: RaceSearch,
    listener: Arc<dyn Listener>,
) -> crate::Result<Raced> {
    let until = match search {
        RaceSearch::Divergence(thread, event) => Some((thread, event)),
        RaceSearch::Program(_) | RaceSearch::Transformed => None,
    };
    let races = Arc::new(Races::new(trace, search)?);
    let outcome = observed(trace, Count::Nothing, races.clone(), until, listener)?;
    Ok(Raced { races: races.wait(), divergence: outcome.divergence.map(Into::into) })
}

/// Replays a trace, up to where it diverges, and tells what its threads do, in one order.
pub(crate) fn steps(
    trace: &Trace,
    code: Code,
    listener: Arc<dyn Listener>,
) -> crate::Result<Option<replayed::Divergence>> {
    let batch = Arc::new(Mutex::new(Vec::new()));
    let (to, filled) = (listener.clone(), batch.clone());
    let tell = move |thread, what| {
        let mut batch = filled.lock().unwrap_or_else(PoisonError::into_inner);
        batch.push((thread, what));
        if batch.len() == STEPS_PIECE {
            to.steps(std::mem::take(&mut batch));
        }
    };
    let races = Arc::new(Races::tapped(trace, code, Box::new(tell))?);
    let outcome = observed(trace, Count::Nothing, races.clone(), None, listener.clone())?;
    races.wait();
    listener.steps(std::mem::take(&mut batch.lock().unwrap_or_else(PoisonError::into_inner)));
    Ok(outcome.divergence.map(Into::into))
}

/// Replays a trace, up to where it diverges, and says where its threads were at these points of it.
pub(crate) fn stacks(
    trace: &Trace,
    points: Vec<Point>,
    code: Code,
    listener: Arc<dyn Listener>,
) -> crate::Result<Seen> {
    let stacks = Arc::new(Stacks::new(points, code));
    observed(trace, Count::Nothing, stacks.clone(), None, listener)?;
    Ok(stacks.wait())
}

/// Replays a trace exactly, up to an event of a thread if one is given, with an observer.
fn observed(
    trace: &Trace,
    count: Count,
    observer: Arc<dyn Observer>,
    until: Option<(ThreadId, EventId)>,
    listener: Arc<dyn Listener>,
) -> crate::Result<refrain_vm::Outcome> {
    let options = refrain_vm::ReplayOptions {
        observer: Some(observer.clone()),
        patience: listener.patience(),
        progress: watched(trace.events(), listener),
        until,
        ..refrain_vm::ReplayOptions::default()
    };
    with_observer(trace, count, &*observer, options)
}

/// Replays a trace with an observer: copies log for it what they can, and it is compiled into the code
/// if it asks for more.
pub(crate) fn with_observer(
    trace: &Trace,
    count: Count,
    observer: &dyn Observer,
    options: refrain_vm::ReplayOptions,
) -> crate::Result<refrain_vm::Outcome> {
    let config = EngineConfig {
        order_atomics: true,
        count,
        accesses: observer.interest().accesses,
        calls: observer.interest().calls,
        functions: observer.functions(),
        nested: observer.nested(),
        values: observer.values(),
        compared: observer.compared(),
        leave_out: observer.leaves_out(),
        live: options.policy.is_live(),
        ..EngineConfig::default()
    };
    let engine = replaying_engine(EngineKind::Tiered, config, trace)?;
    Ok(refrain_vm::replay(trace, engine, options)?)
}

/// Between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// A count of events that are done, which is reported until the replay lets go of it.
fn watched(total: u64, listener: Arc<dyn Listener>) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    let watched = Arc::downgrade(&count);
    std::thread::spawn(move || {
        while let Some(count) = watched.upgrade() {
            listener.progress(count.load(Ordering::Relaxed), total);
            drop(count);
            std::thread::sleep(REPORT_EVERY);
        }
    });
    count
}
