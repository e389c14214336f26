//! What `refrain info` reports of a trace: the recorded run, the machine, counts of events, modules.

use crate::error::Context;
use crate::replayed::describe;
use crate::trace_file;
use refrain_trace::{EventKind, Latencies, Locking, ThreadId, Trace};
use serde::Serialize;
use std::path::Path;

/// The description of a trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Info {
    /// Command line.
    pub argv: Vec<String>,
    /// Path of the program.
    pub program: String,
    /// Working directory.
    pub cwd: String,
    /// What recorded it.
    pub recorder: String,
    /// Nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// CPU model.
    pub cpu: String,
    /// What the program's processor had beyond x86-64-v2.
    pub processor: Vec<String>,
    /// Which order of shared memory was recorded: `sync` or `stride`.
    pub order: &'static str,
    /// Logical cores.
    pub cores: u32,
    /// Kernel release.
    pub kernel: String,
    /// What handing a lock over takes there, if it was measured.
    pub latencies: Option<Latencies>,
    /// What a lock took there, if it was measured.
    pub locking: Option<Locking>,
    /// From the first instruction to the end; `None` if the trace was cut off.
    pub wall_ns: Option<u64>,
    /// CPU time of all threads.
    pub cpu_ns: Option<u64>,
    /// How the run ended.
    pub ending: String,
    /// Bytes that the program sent out.
    pub output_bytes: Option<u64>,
    /// Bytes of the file.
    pub size: u64,
    /// Events of all threads.
    pub events: u64,
    /// Bytes of the file for each event, all that it holds included.
    pub bytes_per_event: f64,
    /// Bytes of the file that the events take.
    pub event_bytes: u64,
    /// Executed code.
    pub code_blocks: u64,
    /// Bytes of it.
    pub code_bytes: u64,
    /// Of a transformed trace, what replaces its freed locks.
    pub transformed: Option<Transformed>,
    /// Files that were mapped, of which the trace has the pages that were touched.
    pub mapped_files: Vec<MappedFile>,
    /// Threads.
    pub threads: Vec<Thread>,
    /// Kinds of events that occur, the most frequent first.
    pub kinds: Vec<Kind>,
    /// Modules, in the order in which they were mapped.
    pub modules: Vec<Mapped>,
}

/// What replaces freed locks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Transformed {
    /// Locks that are freed.
    pub locks: u64,
    /// Their critical sections.
    pub critical_sections: u64,
    /// Pairs of them that keep their order.
    pub causal_edges: u64,
}

/// A mapped file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MappedFile {
    /// Path.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// Bytes of its pages that the trace has.
    pub kept: u64,
    /// Bytes of its pages that the trace refers to.
    pub referenced: u64,
}

/// A thread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Thread {
    /// As in `t2`.
    pub thread: String,
    /// Its events.
    pub events: u64,
}

/// A kind of event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Kind {
    /// Name.
    pub kind: &'static str,
    /// How many there are.
    pub events: u64,
}

/// A module.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Mapped {
    /// Path.
    pub path: String,
    /// GNU build id.
    pub build_id: Option<String>,
    /// First guest address.
    #[serde(with = "refrain_trace::hex")]
    pub start: u64,
    /// End, exclusive.
    #[serde(with = "refrain_trace::hex")]
    pub end: u64,
    /// Library functions recorded as events.
    pub hooks: u64,
}

impl Info {
    /// Reads the whole trace at `path`.
    pub fn read(path: &Path) -> crate::Result<Info> {
        let trace = trace_file::read(path)?;
        let size = std::fs::metadata(path).context("cannot measure the trace")?.len();
        Info::of(&trace, size).map_err(|error| trace_file::advise(path, error))
    }

    /// Reads a whole trace, whose file has so many bytes.
    pub fn of(trace: &Trace, size: u64) -> refrain_trace::Result<Info> {
        let (header, footer) = (trace.header(), trace.footer());
        let (threads, kinds) = census(trace)?;
        let (mut code_blocks, mut code_bytes) = (0, 0);
        for run in trace.block_runs() {
            let run = run?;
            code_blocks += run.len() as u64;
            code_bytes += run.iter().map(|block| block.code.len() as u64).sum::<u64>();
        }
        let began = trace.began()?;
        let ticks = footer.map(|footer| footer.tsc_end.saturating_sub(began));
        let nanoseconds = |ticks: u64| {
            let per_second = u128::from(header.tsc_hz.max(1));
            u64::try_from(u128::from(ticks) * 1_000_000_000 / per_second).unwrap_or(u64::MAX)
        };
        let events = trace.events();
        Ok(Info {
            argv: header.argv.clone(),
            program: header.program.clone(),
            cwd: header.cwd.clone(),
            recorder: header.recorder.clone(),
            started_unix_ns: header.started_unix_ns,
            cpu: header.machine.cpu.clone(),
            processor: header.processor.clone(),
            order: header.order.name(),
            cores: header.machine.cores,
            kernel: header.machine.kernel.clone(),
            latencies: header.machine.latencies,
            locking: header.machine.locking,
            wall_ns: ticks.map(nanoseconds),
            cpu_ns: footer.map(|footer| footer.cpu_ns),
            ending: describe(footer.map(|footer| footer.ending)),
            output_bytes: footer.map(|footer| footer.output_bytes),
            size,
            events,
            bytes_per_event: size as f64 / events.max(1) as f64,
            event_bytes: trace.event_bytes(),
            code_blocks,
            code_bytes,
            transformed: trace.transformed()?.map(|record| Transformed {
                locks: record.locks.len() as u64,
                critical_sections: record.sections.len() as u64,
                causal_edges: record.edges.len() as u64,
            }),
            mapped_files: mapped_files(trace)?,
            threads,
            kinds,
            modules: modules(trace),
        })
    }
}

/// Counts the events by thread and by kind.
fn census(trace: &Trace) -> refrain_trace::Result<(Vec<Thread>, Vec<Kind>)> {
    let mut threads = Vec::new();
    let mut counts = [0u64; 256];
    for thread in (0..trace.threads()).map(ThreadId) {
        let mut cursor = trace.cursor(thread);
        while let Some(event) = cursor.next()? {
            counts[usize::from(event.code)] += 1;
        }
        threads.push(Thread { thread: thread.to_string(), events: trace.events_of(thread) });
    }
    let mut kinds: Vec<Kind> = EventKind::ALL
        .iter()
        .map(|&kind| Kind { kind: kind.name(), events: counts[kind as usize] })
        .filter(|kind| kind.events > 0)
        .collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.events));
    Ok((threads, kinds))
}

fn mapped_files(trace: &Trace) -> refrain_trace::Result<Vec<MappedFile>> {
    let mut files = Vec::new();
    for id in trace.files() {
        let Some(file) = trace.file(id)? else { continue };
        let (kept, referenced) = trace.kept(id)?;
        files.push(MappedFile { path: file.path, bytes: file.len, kept, referenced });
    }
    Ok(files)
}

fn modules(trace: &Trace) -> Vec<Mapped> {
    let modules = trace.modules().iter().map(|module| Mapped {
        path: module.path.clone(),
        build_id: module.build_id.clone(),
        start: module.start,
        end: module.end,
        hooks: module.hooks.len() as u64,
    });
    modules.collect()
}
