//! The replayer: runs a recorded program again from its trace alone.
//!
//! Guest memory is rebuilt from the trace; system calls, library synchronization and
//! nondeterministic instructions come from it; everything else is computed again, and every
//! recorded event is compared. A difference is a [`Divergence`], never a hang: see `gate`.
//!
//! The order is the recorded one unless a [`Policy`] says otherwise; then a scheduler grants the
//! library's locks (`grants`), and what depends on their order shows as a difference.

mod account;
mod arrivals;
mod calls;
mod circles;
mod common;
pub(crate) mod fast_path;
mod faults;
pub(crate) mod gate;
mod grants;
mod machine;
mod mapped_files;
mod objects;
pub(crate) mod outcome;
mod overwritten;
mod policy;
mod recorded_times;
mod sequence;
mod shared;
mod signals;
mod sync;
pub(crate) mod thread;

pub use machine::recorded_processor;
pub use outcome::{Divergence, DivergenceKind, Outcome};
pub use policy::{NewScheduler, Placement, Policy};

use crate::engine::Engine;
use crate::hooks::HookMap;
use crate::observer::Observer;
use crate::{Error, Result, hooks, loader, memory, order};
use account::{Account, Tally};
use circles::{Circles, Found};
use crossbeam::channel::RecvTimeoutError;
use machine::{Machine, Report};
use refrain_trace::payload::Window;
use refrain_trace::{EventId, Mapping, ThreadId, Trace, Transformed};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Takes what the guest sends out: a descriptor of the guest's, and bytes.
pub type Output = Arc<dyn Fn(i32, &[u8]) + Send + Sync>;

/// How to replay.
#[derive(Clone, Default)]
pub struct ReplayOptions {
    /// Whether the engine counts instructions.
    pub counted: bool,
    /// Gets what the guest sends out, once it has been compared.
    pub output: Option<Output>,
    /// Watches the replay.
    pub observer: Option<Arc<dyn Observer>>,
    /// Before this event of this thread, the thread stops. Others go on until they need it.
    pub until: Option<(ThreadId, EventId)>,
    /// Counts the events that are done, roughly.
    pub progress: Arc<AtomicU64>,
    /// Who decides which thread goes next.
    pub policy: Policy,
    /// What replaces the locks of a transformed trace, which are freed then. The policy must be
    /// [`Policy::Elsc`]: everything else keeps its recorded order.
    pub transformed: Option<Arc<Transformed>>,
    /// On which cores guest threads run.
    pub placement: Placement,
    /// Whether system calls take as long as they took in the recording: for replays whose time is
    /// measured.
    pub keeps_times: bool,
    /// So much processor time may pass without any event while guest code runs. A thread that
    /// takes more runs in circles, which is a divergence. `None` for no limit.
    pub patience: Option<Duration>,
}

impl ReplayOptions {
    /// Whether library functions may be replayed without leaving translated code.
    fn has_leaves(&self) -> bool {
        matches!(self.policy, Policy::Elsc) && self.observer.is_none() && self.until.is_none()
    }
}

/// Whether a trace that can be read can be replayed; if not, why.
pub fn replayable(trace: &Trace) -> Result<()> {
    for mapping in &trace.header().mappings {
        range(mapping)?;
        if let Some(blob) = mapping.content
            && trace.file(blob)?.is_none()
        {
            trace.blob_len(blob)?;
        }
    }
    for (pc, name) in trace.modules().iter().flat_map(|module| &module.hooks) {
        if hooks::by_name(name).is_none() {
            return Err(unknown_hook(*pc));
        }
    }
    if trace.events_of(ThreadId(0)) == 0 {
        return Err(refrain_trace::Error::Missing("event of the main thread".into()).into());
    }
    Ok(())
}

/// Replays a trace in this process, whose address space must hold no other guest. Threads that
/// cannot be stopped may still be running when this returns, so the caller should soon exit.
pub fn replay(trace: &Trace, engine: Arc<dyn Engine>, options: ReplayOptions) -> Result<Outcome> {
    replayable(trace)?;
    let (counted, partial) = (options.counted, options.until.is_some());
    let hooks = hook(trace, &*engine, &options);
    let (machine, reports) = Machine::new(trace.clone(), engine, options, hooks)?;
    let machine = Arc::new(machine);
    restore_all(&machine, &trace.header().mappings)?;
    thread::start_main(&machine)?;
    let mut account = Account::new(trace);
    let mut outcome = collect(trace, &machine, &reports, counted, &mut account)?;
    if outcome.divergence.is_none() && !partial {
        settle(trace, &account, &mut outcome)?;
    }
    Ok(Outcome { reordered: machine.gate.reordered(), ..outcome })
}

/// Every thread is done: whether all that was recorded has happened.
fn settle(trace: &Trace, account: &Account<'_>, outcome: &mut Outcome) -> Result<()> {
    let missing = account.missing()?;
    outcome.events = account.events();
    if let Some(missing) = &missing
        && !trace.is_truncated()
    {
        outcome.divergence = Some(missing.divergence());
        return Ok(());
    }
    let header = trace.header();
    let nanoseconds = |ticks: u64| {
        let since = u128::from(ticks.saturating_sub(header.tsc_start)) * 1_000_000_000;
        u64::try_from(since / u128::from(header.tsc_hz.max(1))).unwrap_or(u64::MAX)
    };
    let end = account.end()?;
    let reached = missing.map_or(end, |missing| missing.begin());
    outcome.reached = Some((nanoseconds(reached), nanoseconds(end)));
    Ok(())
}

/// Gathers the threads' reports until every one is done or one has diverged.
fn collect(
    trace: &Trace,
    machine: &Machine,
    reports: &crossbeam::channel::Receiver<Report>,
    counted: bool,
    account: &mut Account<'_>,
) -> Result<Outcome> {
    let ending = trace.footer().map(|footer| footer.ending);
    let mut outcome = Outcome {
        threads: 0,
        events: 0,
        recorded: trace.events(),
        truncated: trace.is_truncated(),
        reached: None,
        digests: 0,
        equal: 0,
        acquisitions: 0,
        instructions: counted.then_some(0),
        output_bytes: 0,
        ending,
        cut_off: trace.is_cut_off(),
        divergence: None,
        elapsed: Duration::ZERO,
        reordered: Vec::new(),
    };
    let mut circles = Circles::new(machine.options.patience);
    loop {
        let report = match reports.recv_timeout(circles::LOOK) {
            Ok(report) => report,
            Err(RecvTimeoutError::Timeout) => match circles.look(machine)? {
                Some(Found::Endless(divergence)) => Report::Diverged(divergence, Tally::default()),
                Some(Found::Over) => {
                    outcome.elapsed = machine.elapsed();
                    outcome.threads = machine.threads_started();
                    return Ok(outcome);
                }
                None => continue,
            },
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Host {
                    what: "replaying".into(),
                    answer: std::io::Error::other("every guest thread vanished without a word"),
                });
            }
        };
        match report {
            Report::Done(thread, tally, elapsed) => {
                account.add(thread, tally.events);
                outcome.elapsed = outcome.elapsed.max(elapsed);
                outcome.threads += 1;
                tally.add_to(&mut outcome);
                if outcome.threads == machine.threads_started() {
                    return Ok(outcome);
                }
            }
            Report::Diverged(divergence, tally) => {
                // The other threads' counts are theirs until they are done, which some never are.
                tally.add_to(&mut outcome);
                outcome.elapsed = machine.elapsed();
                outcome.threads = machine.threads_started();
                outcome.divergence = Some(divergence);
                return Ok(outcome);
            }
            Report::Failed(error) => return Err(error),
        }
    }
}

/// Has the engine tell of the library functions that were recorded as events, or replay them itself.
fn hook(trace: &Trace, engine: &dyn Engine, options: &ReplayOptions) -> HookMap {
    let mut hook_map = HookMap::default();
    if options.has_leaves() {
        order::replay::install(engine);
    }
    for (pc, name) in trace.modules().iter().flat_map(|module| &module.hooks) {
        if let Some(hook) = hooks::by_name(name) {
            hook_map.insert(*pc, hook);
            engine.hook(*pc);
            if options.has_leaves() {
                fast_path::install(engine, *pc, hook.kind);
            }
        }
    }
    hook_map
}

/// A call of a function that the recorder hooked, and this version does not know.
fn unknown_hook(pc: u64) -> Error {
    Error::Unsupported(format!(
        "a trace in which the library function at {pc:#x} is an event that this version does not know"
    ))
}

fn range(mapping: &Mapping) -> Result<Range<u64>> {
    let range = mapping.address..mapping.address.saturating_add(mapping.len);
    if memory::guest_may_map(&range) {
        return Ok(range);
    }
    Err(Error::Unsupported(format!(
        "a trace that maps {range:#x?}, outside the guest's address space"
    )))
}

/// Maps what was mapped before the guest, or another program that it executes, ran.
fn restore_all(machine: &Machine, mappings: &[Mapping]) -> Result<()> {
    mappings.iter().try_for_each(|mapping| restore(machine, mapping))?;
    let mut space = machine.space.lock().unwrap_or_else(PoisonError::into_inner);
    for mapping in mappings {
        let (range, prot) = (range(mapping)?, mapping.prot as i32);
        space.note(range.clone(), prot);
        if memory::may_generate(prot) {
            machine.engine.generated(range);
        }
    }
    machine.engine.executable(space.executable());
    Ok(())
}

fn restore(machine: &Machine, mapping: &Mapping) -> Result<()> {
    let Machine { trace, mapped_files: files, .. } = machine;
    let (range, prot) = (range(mapping)?, mapping.prot as i32);
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    loader::anonymous(&range, writable, libc::MAP_NORESERVE)?;
    if let Some(blob) = mapping.content {
        let &Mapping { address, len, offset, .. } = mapping;
        let window = Window { blob, offset, len };
        let is_there = trace.file(blob)?.is_some()
            && (files.map(address, prot, &window)?
                || files.store(trace, address, prot, &window)?);
        if !is_there {
            let bytes = trace.blob(blob)?;
            mapped_files::store(address, len, bytes.get(offset as usize..).unwrap_or_default())?;
        }
    }
    let protected = memory::AddressSpace::new().protect(range.start, mapping.len, prot);
    files.hide(&range, prot);
    match protected {
        0 => Ok(()),
        e => Err(Error::host("protecting guest memory")(std::io::Error::from_raw_os_error(
            -e as i32,
        ))),
    }
}
