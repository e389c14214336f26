//! What all guest threads of a replay share.

use super::ReplayOptions;
use super::first::FirstValues;
use super::gate::Gate;
use super::outcome::Divergence;
use crate::engine::Engine;
use crate::hooks::{self, HookMap};
use crate::host::Guest;
use crate::memory::AddressSpace;
use crate::{Error, Result};
use crossbeam::channel::{Receiver, Sender, unbounded};
use refrain_trace::{Ending, Trace};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a thread tells the coordinator.
pub(crate) enum Report {
    /// It has performed all its events.
    Done(Tally),
    Diverged(Divergence, Tally),
    Failed(Error),
}

/// What a thread counted.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) events: u64,
    pub(crate) digests: u64,
    pub(crate) equal: u64,
    pub(crate) acquisitions: u64,
    pub(crate) output_bytes: u64,
    pub(crate) instructions: u64,
}

/// The replayer's state beyond single threads.
pub(crate) struct Machine {
    pub(crate) trace: Trace,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) options: ReplayOptions,
    pub(crate) gate: Gate,
    pub(crate) hooks: HookMap,
    pub(crate) first_values: FirstValues,
    /// Changes of the address space come one at a time, in the recorded order.
    pub(crate) space: Mutex<AddressSpace>,
    threads: AtomicU32,
    reports: Sender<Report>,
}

impl Machine {
    pub(crate) fn new(
        trace: Trace,
        engine: Arc<dyn Engine>,
        options: ReplayOptions,
    ) -> (Machine, Receiver<Report>) {
        let mut hook_map = HookMap::default();
        for (pc, name) in trace.modules().iter().flat_map(|module| &module.hooks) {
            if let Some(hook) = hooks::by_name(name) {
                hook_map.insert(*pc, hook);
                engine.hook(*pc);
            }
        }
        let header = trace.header();
        let ticks =
            trace.footer().map_or(0, |footer| footer.tsc_end.saturating_sub(header.tsc_start));
        let recorded = Duration::from_secs(ticks / header.tsc_hz.max(1));
        let (reports, receiver) = unbounded();
        let machine = Machine {
            gate: Gate::new(recorded, trace.threads()),
            trace,
            engine,
            options,
            hooks: hook_map,
            first_values: FirstValues::default(),
            space: Mutex::new(AddressSpace::new()),
            threads: AtomicU32::new(0),
            reports,
        };
        (machine, receiver)
    }

    pub(crate) fn report(&self, report: Report) {
        // Nobody listens any more once the first divergence is known.
        let _ = self.reports.send(report);
    }

    /// Whether the trace ends before the program did.
    pub(crate) fn is_cut_off(&self) -> bool {
        let ending = self.trace.footer().map(|footer| footer.ending);
        matches!(ending, None | Some(Ending::Stopped(_)))
    }

    pub(crate) fn count_thread(&self) {
        self.threads.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn threads_started(&self) -> u32 {
        self.threads.load(Ordering::SeqCst)
    }
}

/// Stores recorded content into a mapping of `len` bytes.
pub(crate) fn store(address: u64, len: u64, bytes: &[u8]) -> Result<()> {
    let bytes = &bytes[..bytes.len().min(len as usize)];
    if bytes.is_empty() || Guest.write(address, bytes) {
        return Ok(());
    }
    Err(Error::Unsupported(format!("a trace whose content at {address:#x} has no memory")))
}
