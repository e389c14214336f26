//! The recorder: runs a program under an engine and writes what replay cannot recompute.
//!
//! The guest runs in the recorder's own process, its threads on host threads of their own. The
//! main host thread coordinates: it waits for the end (the guest's, or a signal's), closes every
//! thread's stream, and leaves it to the caller to end the process.

mod aio;
mod aio_calls;
mod body_stack;
mod calls;
mod cancel;
mod clone;
mod coherence;
mod common;
mod delivery;
mod descriptors;
mod endings;
mod execute;
pub(crate) mod fast_path;
mod faults;
pub(crate) mod files;
mod itself;
mod limits;
pub(crate) mod log;
pub(crate) mod machine;
mod memory;
mod notice;
mod outside;
pub(crate) mod presence;
mod process;
mod signal_calls;
mod signal_files;
mod signals;
mod standstill;
mod sync;
pub(crate) mod thread;
mod waits;

use crate::engine::RecordingEngine;
use crate::host::{self, Guest};
use crate::loader::{self, Command};
use crate::memory::AddressSpace;
use crate::order;
use crate::{Error, Hidden, Processor, Result, kick, reserve};
use files::Files;
pub use limits::raise_limit_of_space;
use log::Written;
use machine::{Machine, Stop};
pub use notice::Notice;
use refrain_trace::{BlobId, Ending, Footer, Header, Machine as MachineInfo, Mapping, Order};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Takes what the user should know while the guest runs. It must not open any descriptor among
/// those that the guest may have.
pub type Warn = Arc<dyn Fn(Notice) + Send + Sync>;

/// Makes the command that a child process executes instead of this one, so that the program is
/// recorded into a trace of its own.
pub type Follow = Box<dyn Fn(&Command) -> Command + Send + Sync>;

/// The order that a program needs, if that is one of every access.
pub type OrderOf = Box<dyn Fn(&Command) -> Option<Order> + Send + Sync>;

/// Whether a program gets watched what other processes may have mapped of its memory, whichever they are.
pub type WatchedOf = Box<dyn Fn(&Command) -> bool + Send + Sync>;

/// What to record and where to.
pub struct RecordOptions {
    /// The program.
    pub command: Command,
    /// The trace file, open for writing and empty.
    pub output: File,
    /// Version string of the recording tool.
    pub recorder: String,
    /// [`this_machine`], with its latencies if they have been measured.
    pub machine: MachineInfo,
    /// What the guest sees, no more than this machine has.
    pub processor: Processor,
    /// The guest is told that the system forbids it to generate code.
    pub forbid_generated_code: bool,
    /// Told at once of what cannot wait for the summary.
    pub warn: Warn,
    /// Sites that are watched beside the idioms.
    pub learned: LearnedSites,
    /// Which accesses are recorded; for [`Order::Stride`], the engine reports
    /// [every access](crate::EngineConfig::every_access).
    pub order: Order,
    /// The order that another program needs which the recorded one executes, if it is not this one. Asked
    /// as long as the recording may still be changed to it: until the guest has a second thread.
    pub order_of: Option<OrderOf>,
    /// Asked of the recorded program and of those that it executes. What `follow`s is watched anyway.
    pub watched_of: Option<WatchedOf>,
    /// Called once the file is a trace: the header and the initial memory are in it. The guest
    /// has not run.
    pub begun: Box<dyn FnOnce() -> io::Result<()>>,
    /// Whether the guest is stopped when the trace cannot be written any more. If not, it goes on
    /// unrecorded.
    pub strict: bool,
    /// Whether pages of files that can be found by their paths are left there, and the trace has checksums alone.
    pub reference: bool,
    /// How child processes are recorded, if they are.
    pub follow: Option<Follow>,
    /// What an earlier recording of the program has kept ([`RecordSummary::pages`]).
    pub pages: Option<File>,
}

/// Instructions that accesses were found to race at: by identity of the module, their addresses in
/// the module.
pub type LearnedSites = BTreeMap<String, BTreeSet<u64>>;

/// How a recording went.
#[derive(Clone, Debug)]
pub struct RecordSummary {
    /// How the guest ended.
    pub ending: Ending,
    /// Guest threads.
    pub threads: u32,
    /// Events recorded.
    pub events: u64,
    /// Bytes of the trace.
    pub bytes: u64,
    /// From the guest's first instruction to its end.
    pub wall: Duration,
    /// Set when the recording ended before the guest did, which went on.
    pub lost: Option<LostEnd>,
    /// Set when the guest was stopped because it did something that cannot be recorded.
    pub refused: Option<String>,
    /// What the user should know.
    pub notices: Vec<Notice>,
    /// A file, in parts, to be kept for later recordings of the program: packed pages of programs and libraries.
    /// Nothing if what there is is good enough.
    pub pages: Option<Vec<Vec<u8>>>,
}

/// The trace could not be written any more.
#[derive(Clone, Debug)]
pub struct LostEnd {
    /// Why.
    pub why: String,
    /// When, from the guest's first instruction.
    pub after: Duration,
}

/// Records a program. Returns when the guest has ended; its other threads may still be running,
/// unrecorded and unable to act, so the caller is expected to exit soon.
pub fn record(
    mut options: RecordOptions,
    engine: Arc<dyn RecordingEngine>,
) -> Result<RecordSummary> {
    let (ignored, blocked) = outside::inherited();
    outside::block_signals();
    outside::expect_broken_pipes();
    kick::install();
    reserve::set_aside();
    let mut space = AddressSpace::new();
    let image = loader::load(&options.command, &mut space)?;
    space.set_limit(limits::raise());
    engine.executable(space.executable());
    image.generates().for_each(|range| engine.generated(range));
    let (stop, stopped) = crossbeam::channel::unbounded();

    let mapped = Arc::new(Files::new(options.reference, options.pages.take().as_ref()));
    let (mut contents, blobs) = (Vec::new(), Cell::new(0));
    let next = || BlobId(blobs.replace(blobs.get() + 1));
    let keep = |bytes| {
        let blob = next();
        contents.push((blob, bytes));
        blob
    };
    let mappings = initial_mappings(&image, &mapped, keep, next);
    let header = header(&options, &image, mappings);
    let file = limits::TraceFile(out_of_reach(options.output)?);
    let strict = options.strict.then(|| {
        let stop = stop.clone();
        let failed: Box<dyn FnOnce() + Send> = Box::new(move || drop(stop.send(Stop::CannotWrite)));
        failed
    });
    let translated = engine.clone();
    let blocks = move || translated.take_blocks();
    let (mapped_files, blobs) = (mapped.clone(), blobs.get());
    let begin = log::Start { file, contents, blobs, blocks, mapped: mapped_files, strict };
    let (log, writer) = log::start(&header, begin)?;
    (options.begun)().map_err(Error::host("naming the trace"))?;
    order::record::install(&*engine);
    let machine = Arc::new(Machine::new(
        engine,
        space,
        (log, mapped),
        (&header, options.processor, options.forbid_generated_code),
        image.linker(),
        (stop, options.warn, options.follow),
        (options.learned, options.order_of, options.watched_of),
    ));
    machine.watch_from_start(&options.command);
    if options.order.is_of_every_access() {
        machine.order_every_access(options.order)?;
    }
    *machine.loaded.lock().unwrap_or_else(PoisonError::into_inner) = itself::loaded(&image);
    host::show_arguments(&image.strings, image.entry.rsp);
    for file in &image.files {
        machine.register_module(&file.path, &file.elf, file.bias, file.file());
    }
    machine.signals.inherit(&ignored, blocked);
    outside::watch_signals(machine.clone()).map_err(Error::host("cannot start a thread"))?;
    let start = (Instant::now(), host::ticks());
    thread::start_main(&machine, &header.entry, &options.command.program)?;

    let reason = stopped.recv().map_err(|_| Error::Host {
        what: "recording".into(),
        answer: io::Error::other("every guest thread vanished without a word"),
    })?;
    finish(&machine, writer, reason, (start, header.tsc_hz))
}

/// Closes the streams and the file.
fn finish(
    machine: &Machine,
    writer: log::WriterThread,
    reason: Stop,
    ((start, first_tick), tick_rate): ((Instant, u64), u64),
) -> Result<RecordSummary> {
    let wall = start.elapsed();
    let (ending, refused) = match reason {
        Stop::Ended(ending) => (ending, None),
        Stop::Failed(Error::Unsupported(what)) => (Ending::Stopped(libc::SIGABRT), Some(what)),
        Stop::Failed(error) => return Err(error),
        Stop::CannotWrite => {
            let outcome = writer.join().expect("the writer's thread returns its errors");
            return Err(outcome.expect_err("the writer has said that it failed"));
        }
    };
    let tsc_end = host::ticks();
    let events = machine.close_logs();
    machine.log.finish(Footer {
        ending,
        tsc_end,
        events: events.clone(),
        cpu_ns: host::processor_time().as_nanos() as u64,
        output_bytes: machine.output_bytes(),
    });
    let Written { bytes, lost } = writer.join().expect("the writer's thread returns its errors")?;
    let kept = lost.as_ref().map_or_else(|| events.iter().sum(), |lost| lost.events);
    let lost = lost.map(|lost| {
        let ticks = u128::from(lost.ticks.saturating_sub(first_tick)) * 1_000_000_000;
        let after = Duration::from_nanos((ticks / u128::from(tick_rate.max(1))) as u64);
        LostEnd { why: lost.why.to_string(), after }
    });
    machine.open_common_at_end();
    limits::raise_at_end();
    if machine.mapped.have_changed() {
        machine.notice(Notice::FileChanged);
    }
    let pages = if lost.is_none() { machine.mapped.kept() } else { None };
    Ok(RecordSummary {
        ending,
        threads: events.len() as u32,
        events: kept,
        bytes,
        wall,
        lost,
        refused,
        notices: machine.notices(),
        pages,
    })
}

/// What is mapped before a program runs. `keep` makes blobs of the contents, but of those files of
/// which pages are enough: for these, `next` numbers blobs.
fn initial_mappings(
    image: &loader::Image,
    mapped: &Files,
    mut keep: impl FnMut(Vec<u8>) -> BlobId,
    next: impl Fn() -> BlobId,
) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    for loader::Area { range, prot, filled, shows } in &image.mappings {
        let by_pages = shows.and_then(|(file, offset)| {
            let loader::Loaded { path, file, .. } = &image.files[file];
            let file = file.as_ref()?;
            let open = || Some((Hidden::copy(file).ok()?, absolute(path)));
            let metadata = file.file().metadata().ok()?;
            Some((mapped.map(range.clone(), offset, &metadata, open, &next)?, offset))
        });
        let mut add = |range: Range<u64>, filled: bool| {
            let (address, len) = (range.start, range.end - range.start);
            let bytes = || Guest.read(address, len as usize).map(&mut keep);
            let (content, offset) = match by_pages {
                Some((blob, offset)) => (Some(blob), offset),
                None => (filled.then(bytes).flatten(), 0),
            };
            if !range.is_empty() {
                mappings.push(Mapping { address, len, prot: *prot as u32, content, offset });
            }
        };
        add(range.start..filled.start, false);
        add(filled.start..filled.end, !filled.is_empty());
        add(filled.end..range.end, false);
    }
    mappings
}

/// The path of a program or its interpreter, as traces name files.
pub(crate) fn absolute(path: &Path) -> String {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    path.to_string_lossy().into_owned()
}

fn header(options: &RecordOptions, image: &loader::Image, mappings: Vec<Mapping>) -> Header {
    let text = |s: &std::ffi::OsString| s.to_string_lossy().into_owned();
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let tsc_hz = host::ticks_per_second();
    let locking = fast_path::measured::measure(tsc_hz);
    let machine = MachineInfo { locking, ..options.machine.clone() };
    Header {
        argv: options.command.argv.iter().map(text).collect(),
        program: absolute(&image.files[0].path),
        cwd: std::env::current_dir().map(|d| d.to_string_lossy().into_owned()).unwrap_or_default(),
        recorder: options.recorder.clone(),
        machine,
        processor: options.processor.names(),
        tsc_hz,
        tsc_start: host::ticks(),
        started_unix_ns: started.as_nanos() as u64,
        entry: image.entry.clone(),
        mappings,
        order: options.order,
    }
}

/// The machine that recordings made here name. Its latencies are the caller's to know; what locks take is measured
/// by each recording.
pub fn this_machine() -> MachineInfo {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map(|(_, name)| name.trim().to_owned())
        .unwrap_or_default();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    MachineInfo {
        cpu,
        cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        kernel: kernel.trim().to_owned(),
        latencies: None,
        locking: None,
    }
}

/// Moves the trace's descriptor out of the way of the guest, which expects the lowest free
/// numbers and may close everything it finds.
fn out_of_reach(file: File) -> Result<File> {
    let hidden = Hidden::copy(&file).map_err(Error::host("keeping the trace out of reach"))?;
    Ok(hidden.unshared().into_file())
}
