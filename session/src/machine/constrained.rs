//! The constraints that a transformed trace puts on a replay in virtual time.

use crate::error::Error;
use refrain_scheduler::{Constraints, Edge, Locksets, Skeleton};
use refrain_trace::Transformed;

/// What a record constrains in a skeleton.
pub(super) fn constraints(
    skeleton: &Skeleton,
    record: &Transformed,
    locksets: Locksets,
) -> crate::Result<Constraints<'static>> {
    let section = |at: u32| {
        let section = record.sections.get(at as usize);
        section.ok_or_else(|| {
            let why = "the transformation names a critical section that it does not have";
            Error::Unusable(why.into())
        })
    };
    let mut edges = Vec::with_capacity(record.edges.len());
    for edge in &record.edges {
        let (source, target) = (section(edge.source)?, section(edge.target)?);
        edges.push(Edge {
            target_thread: target.thread(),
            target: target.acquire,
            source_thread: source.thread(),
            source: source.release,
        });
    }
    let sources = record.sources().into_iter().map(section);
    let sources = sources.map(|section| section.map(|it| (it.thread(), it.acquire)));
    let sources = sources.collect::<crate::Result<Vec<_>>>()?;
    let constraints = Constraints::new(skeleton, |address| record.frees(address), edges)?;
    Ok(constraints.with_locksets(locksets, sources))
}
