//! MEM-S: one sequence of all shared memory accesses.
//!
//! PerfPlay (CGO 2015), section 6.1: MEM-S "enforces a deterministic execution sequence of all
//! shared memory accesses"; section 5.2: PinPlay (Patil et al., CGO 2010) and CoreDet (Bergan et
//! al., ASPLOS 2010) "enforce the same total order of all shared memory access points" and "only
//! relax the parallelism of private memory accesses".
//!
//! # Method
//! There is one token. Who has it may access shared memory; it goes from access to access in one
//! fixed order and takes a hand-over from one thread to another. The order is PinPlay's, the one
//! that was recorded, not CoreDet's, which a round-robin token makes without looking at a
//! recording: so it extends ELSC's order of each lock. It is worked out beforehand, as the order
//! of an ELSC replay on the same machine. (The order of another machine, one without latencies,
//! can make a replay *shorter* than ELSC's: it keeps a thread from an operation until others, who
//! have to be woken first, have come as far, and then nobody waits long enough to fall asleep. At
//! barriers in quick succession that is half of the time.)
//!
//! Every operation on an object is an access here, releases and signals too ([`Scope::Total`]).
//! Other accesses have no place of their own in a skeleton. The caller counts them, how often the
//! token travels for them is estimated (`travel`), and they are made under the token, directly
//! before the next operation of their thread.
//!
//! Invariant: operations on objects are performed in the order kept at the start, and no two of
//! different threads within the time that the token takes between them.
//!
//! # Deviations
//! 1. PinPlay enforces a reduced set of dependences that implies the order; here it is the order
//!    itself, as PerfPlay describes it.
//! 2. A skeleton keeps durations, not times of day, so accesses to different objects have the
//!    order of the ELSC replay, which may differ from the recorded moments by noise.
//! 3. A segment's counted accesses are one burst at its end, which lasts as long as they and the
//!    token's travels for them. Where in their segments the accesses are is not modelled.

use crate::travel::Travel;
use crate::{
    Choice, Config, Constraints, Costs, Elsc, Model, Moment, Recorder, Request, Scheduler, Scope,
    Skeleton, simulate,
};
use refrain_trace::{EventId, ThreadId};

/// All accesses in the recorded order, one at a time.
#[derive(Clone, Debug)]
pub struct MemS {
    /// Thread and event.
    order: Vec<(ThreadId, u32)>,
    next: usize,
    /// What the token takes from one thread to another.
    travel: u64,
    /// By thread and event: how long the accesses before it keep the token.
    bursts: Vec<Vec<u64>>,
    /// Who had the token last, and until when.
    last: Option<(ThreadId, u64)>,
}

impl MemS {
    /// The order of an ELSC replay on `machine`. The token takes as long as a hand-over there from
    /// one thread to another, and an access as long as an atomic instruction.
    ///
    /// `accesses[thread][event]` is how many shared accesses the thread makes before the event,
    /// since the one before; missing threads and events have none.
    pub fn new(
        skeleton: &Skeleton,
        constraints: &Constraints<'_>,
        machine: &Config,
        accesses: &[Vec<u64>],
    ) -> MemS {
        let model = Model::default();
        let mut recorder = Recorder::new(Everything, &model);
        let mut travel = Travel::new(accesses, skeleton.threads());
        let mut visit = |thread: ThreadId, event: EventId, begin: u64, end: u64| {
            travel.event(thread, event, begin, end);
        };
        // ELSC performs every event, unless the constraints contradict the recording.
        let _ = simulate(skeleton, constraints, machine, &model, &mut recorder, &mut visit);
        let grants = recorder.into_schedule().grants;
        let order = grants.iter().map(|grant| (grant.thread, grant.event.0 as u32)).collect();
        let bursts = bursts(skeleton, travel, machine.costs);
        MemS { order, next: 0, travel: machine.costs.handoff, bursts, last: None }
    }

    /// When `request`, which is next, is done with the accesses before it.
    fn ready(&self, request: &Request) -> u64 {
        let token = match self.last {
            Some((thread, until)) if thread == request.thread => until,
            Some((_, until)) => until.saturating_add(self.travel),
            None => 0,
        };
        let burst = self.bursts.get(request.thread.index());
        let burst = burst.and_then(|bursts| bursts.get(request.event as usize)).unwrap_or(&0);
        token.max(request.arrived).saturating_add(*burst)
    }
}

impl Scheduler for MemS {
    fn scope(&self) -> Scope {
        Scope::Total
    }

    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        // ELSC came to a deadlock here, and so does this.
        let Some(&next) = self.order.get(self.next) else { return Choice::Hold(None) };
        let wanted = |request: &Request| (request.thread, request.event) == next;
        let Some(index) = requests.iter().position(wanted) else {
            return Choice::Hold(Some(next.0));
        };
        let ready = self.ready(&requests[index]);
        if moment.now < ready {
            return Choice::HoldUntil(ready);
        }
        self.next += 1;
        self.last = Some((requests[index].thread, moment.now));
        Choice::Grant(index)
    }
}

/// How long the accesses before each operation on an object keep the token: those before other
/// events, which MEM-S does not decide on, are made at the next one that it does.
fn bursts(skeleton: &Skeleton, travel: Travel<'_>, costs: Costs) -> Vec<Vec<u64>> {
    let mut bursts = vec![Vec::new(); skeleton.threads()];
    // By thread: where the search for the next operation has come to.
    let mut reached = vec![0; skeleton.threads()];
    travel.finish(|thread, event, accesses, travels| {
        let operations = skeleton.operations(thread);
        let next = &mut reached[thread.index()];
        *next = (event as usize).max(*next);
        while operations.get(*next).is_some_and(|operation| !operation.acts()) {
            *next += 1;
        }
        let bursts: &mut Vec<u64> = &mut bursts[thread.index()];
        bursts.resize(operations.len(), 0);
        let Some(at) = bursts.get_mut(*next) else { return };
        let burst = accesses.saturating_mul(costs.other);
        let burst = burst.saturating_add(travels.saturating_mul(costs.handoff));
        *at = at.saturating_add(burst);
    });
    bursts
}

/// ELSC, asked about every operation on an object.
struct Everything;

impl Scheduler for Everything {
    fn scope(&self) -> Scope {
        Scope::Total
    }

    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        Elsc.choose(moment, requests)
    }
}
