//! What a skeleton needs beyond the trace's events, counted by exact replays.

use super::once::News;
use anyhow::Context;
use refrain_session::child;
use refrain_session::choices::{Cost, SchedulerKind};
use refrain_session::machine::{Amount, Skeleton};
use refrain_session::trace_file;
use std::path::Path;

/// Counts what this scheduler decides by, and what costs are made of, unless the skeleton has it
/// already.
pub(crate) fn materialize(
    path: &Path,
    skeleton: &mut Skeleton,
    scheduler: SchedulerKind,
    cost: Cost,
) -> anyhow::Result<()> {
    let of_scheduler = match scheduler {
        SchedulerKind::Kendo => Some(Amount::Instructions),
        SchedulerKind::MemS => Some(Amount::SharedAccesses),
        _ => None,
    };
    let of_cost = (cost == Cost::Instructions).then_some(Amount::Cycles);
    for amount in of_cost.into_iter().chain(of_scheduler) {
        if !skeleton.knows(amount) {
            let mut news = News::new(amount.activity(), true);
            let segments = child::segments(trace_file::open(path)?, amount, &mut news)
                .with_context(|| format!("cannot count the {}", amount.name()))?;
            skeleton.learn(amount, segments);
        }
    }
    Ok(())
}
