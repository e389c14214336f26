//! Replays in this very process, for observers and schedulers of one's own.
//!
//! The code of the trace runs here, with all rights of this process: only for traces that are trusted
//! as a program is that one runs. A replay takes the guest's part of the address space, so that a
//! process replays once.

use crate::machine::with_observer;
use refrain_trace::Trace;
use refrain_vm::{Count, Observer, Outcome, Policy, ReplayOptions};
use std::sync::Arc;

/// Replays a trace under a policy, which may be a scheduler of one's own ([`Policy::Anew`]), with an
/// observer.
pub fn replay(
    trace: &Trace,
    observer: Arc<dyn Observer>,
    policy: Policy,
) -> crate::Result<Outcome> {
    // Schedulers may ask for logical clocks.
    let count = match policy {
        Policy::Anew(_) => Count::Instructions,
        Policy::Elsc | Policy::MemS => Count::Nothing,
    };
    let options =
        ReplayOptions { observer: Some(observer.clone()), policy, ..ReplayOptions::default() };
    with_observer(trace, count, &*observer, options)
}
