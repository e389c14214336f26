//! What all guest threads of a replay share.

use super::ReplayOptions;
use super::account::Tally;
use super::gate::{Freed, Gate};
use super::mapped_files::MappedFiles;
use super::objects::takes_turns;
use super::outcome::Divergence;
use super::policy::{Cores, Policy};
use super::recorded_times::RecordedTimes;
use super::sequence::sequence;
use super::shared::SharedFiles;
use crate::common::replayed::Common;
use crate::engine::Engine;
use crate::hooks::HookMap;
use crate::memory::AddressSpace;
use crate::{Error, Processor, Result};
use crossbeam::channel::{Receiver, Sender, unbounded};
use refrain_trace::fixed::FixedSet;
use refrain_trace::{EventKind, Header, ThreadId, Trace};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// So many bytes of events are unpacked before a replay that is measured.
const HELD: u64 = 256 << 20;

/// What a thread tells the coordinator.
pub(crate) enum Report {
    /// The thread has performed all that it could, when the replay had taken so long.
    Done(ThreadId, Tally, Duration),
    Diverged(Divergence, Tally),
    Failed(Error),
}

/// The replayer's state beyond single threads.
pub(crate) struct Machine {
    pub(crate) trace: Trace,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) options: ReplayOptions,
    /// What the guest's processor was.
    pub(crate) processor: Processor,
    pub(crate) gate: Gate,
    /// The places of each thread's ordered events in one sequence, under MEM-S.
    pub(crate) sequence: Vec<Vec<u64>>,
    pub(crate) cores: Cores,
    /// Set if what is not the program's own work lasts as long as in the recording.
    pub(crate) recorded_times: Option<RecordedTimes>,
    /// When the first guest thread began to run.
    began: OnceLock<Instant>,
    pub(crate) hooks: HookMap,
    pub(crate) mapped_files: MappedFiles,
    /// Words that threads synchronize through, if a scheduler decides anew: loads of others have
    /// live values.
    pub(crate) synchronizing: FixedSet<u64>,
    /// Files that memory shows.
    pub(crate) shared: SharedFiles,
    /// Memory that other processes wrote.
    pub(crate) common: Common,
    /// Changes of the address space come one at a time, in the recorded order.
    pub(crate) space: Mutex<AddressSpace>,
    /// The stack pointer with which the program began.
    pub(crate) initial_sp: AtomicU64,
    threads: AtomicU32,
    /// Threads that have not reported yet.
    running: AtomicU32,
    reports: Sender<Report>,
}

impl Machine {
    pub(crate) fn new(
        trace: Trace,
        engine: Arc<dyn Engine>,
        options: ReplayOptions,
        hook_map: HookMap,
    ) -> Result<(Machine, Receiver<Report>)> {
        let header = trace.header();
        let ticks =
            trace.footer().map_or(0, |footer| footer.tsc_end.saturating_sub(header.tsc_start));
        let recorded = Duration::from_secs(ticks / header.tsc_hz.max(1));
        let (reports, receiver) = unbounded();
        let cores = Cores::new(options.placement, trace.threads())?;
        let gate = match &options.policy {
            Policy::Elsc | Policy::MemS => Gate::new(recorded, trace.threads(), cores.count()),
            Policy::Anew(scheduler) => {
                let scheduler = scheduler(turns(&trace)?);
                Gate::anew(recorded, scheduler, trace.threads(), cores.count())
            }
        };
        let gate = match &options.transformed {
            Some(record) if matches!(options.policy, Policy::Elsc) => {
                gate.freeing(Freed::of(&trace, record)?, trace.threads())
            }
            _ => gate,
        };
        let sequence = match options.policy {
            Policy::MemS => sequence(&trace)?,
            _ => Vec::new(),
        };
        let synchronizing =
            if gate.is_live() { synchronizing(&trace)? } else { FixedSet::default() };
        let mapped_files = MappedFiles::of(&trace)?;
        let mut space = AddressSpace::new();
        space.begin_heap(header.entry.brk);
        let initial_sp = AtomicU64::new(header.entry.rsp);
        if options.keeps_times {
            trace.hold_events(HELD);
        }
        let machine = Machine {
            cores,
            processor: recorded_processor(header)?,
            recorded_times: options.keeps_times.then(|| RecordedTimes::new(header.tsc_hz)),
            sequence,
            began: OnceLock::new(),
            trace,
            engine,
            options,
            gate,
            hooks: hook_map,
            mapped_files,
            synchronizing,
            shared: SharedFiles::default(),
            common: Common::default(),
            space: Mutex::new(space),
            initial_sp,
            threads: AtomicU32::new(0),
            running: AtomicU32::new(0),
            reports,
        };
        Ok((machine, receiver))
    }

    pub(crate) fn report(&self, report: Report) {
        // Nobody listens any more once the first divergence is known.
        let _ = self.reports.send(report);
    }

    /// Whether the end of the trace is missing: threads may wait for events that nobody has.
    pub(crate) fn is_truncated(&self) -> bool {
        self.trace.is_truncated()
    }

    /// A guest thread is about to execute its first instruction.
    pub(crate) fn begin(&self) {
        self.began.get_or_init(Instant::now);
    }

    /// How long guest threads have been running.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    pub(crate) fn count_thread(&self) {
        self.threads.fetch_add(1, Ordering::SeqCst);
        self.running.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread has done all that it had to do in guest memory.
    pub(crate) fn thread_done(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits for all other threads to be done, as they were in the recording at this point.
    pub(crate) fn await_others(&self) {
        while self.running.load(Ordering::SeqCst) > 1 {
            crate::host::yield_now();
        }
    }

    pub(crate) fn threads_started(&self) -> u32 {
        self.threads.load(Ordering::SeqCst)
    }
}

/// The words of locked instructions and watched stores, and those that loops poll.
fn synchronizing(trace: &Trace) -> Result<FixedSet<u64>> {
    let mut words = FixedSet::default();
    for thread in (0..trace.threads()).map(ThreadId) {
        let mut cursor = trace.cursor(thread);
        while let Some(event) = cursor.next()? {
            let kind = event.kind();
            if matches!(kind, EventKind::Atomic | EventKind::SyncStore)
                || kind == EventKind::SyncLoad && event.aux > 0
            {
                words.insert(event.object);
            }
        }
    }
    Ok(words)
}

/// Operations of a trace that take a turn where all do.
fn turns(trace: &Trace) -> Result<u64> {
    let mut count = 0;
    for thread in (0..trace.threads()).map(ThreadId) {
        let mut cursor = trace.cursor(thread);
        while let Some(event) = cursor.next()? {
            count += u64::from(takes_turns(&event));
        }
    }
    Ok(count)
}

/// The processor that a recorded guest saw.
///
/// # Errors
/// If it had a feature that this version does not know.
pub fn recorded_processor(header: &Header) -> Result<Processor> {
    Processor::from_names(&header.processor).map_err(|name| {
        let name = name.escape_debug();
        Error::Unsupported(format!(
            "a trace of a program that saw a processor with {name}, which this version does not \
             know; replay it by the version that recorded it"
        ))
    })
}
