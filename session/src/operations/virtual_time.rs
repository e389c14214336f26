//! Replaying a trace by the virtual clock. Exact replays count beforehand what a scheduler needs and the
//! trace does not hold.

use crate::again;
use crate::choices::{Cost, SchedulerKind};
use crate::error::Context;
use crate::machine::{Amount, Policy, Segments, Skeleton};
use crate::protocol::Request;
use crate::session::{Piece, Session, gather};
use crate::trace_file;
use refrain_scheduler::Run;
use std::path::Path;

impl Session {
    /// Replays the trace at `path` by the virtual clock, on so many cores or as many as recorded; the
    /// run, and the skeleton for others.
    pub fn simulate(
        &self,
        path: &Path,
        policy: Policy,
        (cores, cost): (Option<u32>, Cost),
    ) -> crate::Result<(Run, Skeleton)> {
        let trace = trace_file::read(path)?;
        let mut skeleton = Skeleton::of(&trace)?.on_cores(cores);
        self.materialize(path, &mut skeleton, (policy.scheduler, cost))?;
        let run = skeleton.run(policy).with_context(|| again::failed(path, policy, cores, cost))?;
        Ok((run, skeleton))
    }

    /// Counts what this scheduler decides by, and what costs are made of, unless the skeleton has it
    /// already.
    pub fn materialize(
        &self,
        path: &Path,
        skeleton: &mut Skeleton,
        (scheduler, cost): (SchedulerKind, Cost),
    ) -> crate::Result<()> {
        let of_scheduler = match scheduler {
            SchedulerKind::Kendo => Some(Amount::Instructions),
            SchedulerKind::MemS => Some(Amount::SharedAccesses),
            _ => None,
        };
        let of_cost = (cost == Cost::Instructions).then_some(Amount::Cycles);
        for amount in of_cost.into_iter().chain(of_scheduler) {
            if !skeleton.knows(amount) {
                let segments = self
                    .segments(path, amount)
                    .with_context(|| format!("cannot count the {}", amount.name()))?;
                skeleton.learn(amount, segments);
            }
        }
        Ok(())
    }

    /// Counts what threads do between the events of a trace.
    pub fn segments(&self, path: &Path, amount: Amount) -> crate::Result<Segments> {
        let mut segments = Segments::new();
        let (trace, request) = (self.open(path)?, Request::Segments(amount));
        let mut pieces = |piece: Piece<'_>| gather(&mut segments, &piece);
        self.ask_in_pieces::<()>(trace, &request, &mut pieces)?;
        Ok(segments)
    }
}
