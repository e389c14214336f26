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
//! of an ELSC replay on the machine of the replay. ([`MemS::new`] takes one without latencies and
//! with a core for each thread: an order that is the same for all machines. On a machine with
//! latencies it may be *shorter* than ELSC's, because it keeps a thread from an operation until
//! others, who have to be woken first, have come as far, and then nobody waits long enough to fall
//! asleep. At barriers in quick succession that is half of the time.)
//!
//! Every operation on an object is an access here, releases and signals too ([`Scope::Total`]).
//! Other accesses have no place of their own in a skeleton. If the caller counts them, they are
//! made under the token, directly before the event that ends their segment.
//!
//! Invariant: operations on objects are performed in the order kept at the start, and no two of
//! different threads within a hand-over's time.
//!
//! # Deviations
//! 1. PinPlay enforces a reduced set of dependences that implies the order; here it is the order
//!    itself, as PerfPlay describes it.
//! 2. A skeleton keeps durations, not times of day, so accesses to different objects have the
//!    order of the ELSC replay, which may differ from the recorded moments by noise.
//! 3. A segment's counted accesses are one burst at its end. PinPlay lets them alternate with
//!    those of other threads, with a hand-over each time: MEM-S costs at least what is shown.

use crate::{
    Choice, Config, Constraints, Costs, Elsc, Moment, Recorder, Request, Scheduler, Scope,
    Skeleton, simulate,
};
use refrain_trace::ThreadId;

/// All accesses in the recorded order, one at a time.
#[derive(Clone, Debug)]
pub struct MemS {
    /// Thread and event.
    order: Vec<(ThreadId, u32)>,
    next: usize,
    /// What it takes to pass the token to another thread.
    handoff: u64,
    /// By thread and event: how long the counted accesses before it keep the token.
    bursts: Vec<Vec<u64>>,
    /// Who had the token last, and until when.
    last: Option<(ThreadId, u64)>,
}

impl MemS {
    /// The order of `skeleton` under `constraints`, with a token that takes `handoff` ticks from
    /// one thread to another.
    pub fn new(skeleton: &Skeleton, constraints: &Constraints, handoff: u64) -> MemS {
        let cores = u32::try_from(skeleton.threads()).unwrap_or(u32::MAX).max(1);
        let ideal = Config::ideal(cores);
        let costs = Costs { handoff, ..ideal.costs };
        MemS { handoff, ..MemS::on(skeleton, constraints, &Config { costs, ..ideal }) }
    }

    /// The order of an ELSC replay on `machine`, whose hand-over the token takes too.
    pub fn on(skeleton: &Skeleton, constraints: &Constraints, machine: &Config) -> MemS {
        let mut recorder = Recorder::new(Everything);
        // ELSC performs every event, unless the constraints contradict the recording.
        let _ = simulate(skeleton, constraints, machine, &mut recorder, &mut ());
        let grants = recorder.into_schedule().grants;
        let order = grants.iter().map(|grant| (grant.thread, grant.event.0 as u32)).collect();
        let handoff = machine.costs.handoff;
        MemS { order, next: 0, handoff, bursts: Vec::new(), last: None }
    }

    /// Adds shared accesses to the work before events: `bursts[thread][event]` is how many ticks
    /// they take. Missing threads and events have none.
    pub fn with_accesses(self, bursts: Vec<Vec<u64>>) -> MemS {
        MemS { bursts, ..self }
    }

    /// When `request`, which is next, is done with the accesses before it.
    fn ready(&self, request: &Request) -> u64 {
        let token = match self.last {
            Some((thread, until)) if thread == request.thread => until,
            Some((_, until)) => until.saturating_add(self.handoff),
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
        let Some(&next) = self.order.get(self.next) else { return Choice::Hold };
        let wanted = |request: &Request| (request.thread, request.event) == next;
        let Some(index) = requests.iter().position(wanted) else { return Choice::Hold };
        let ready = self.ready(&requests[index]);
        if moment.now < ready {
            return Choice::HoldUntil(ready);
        }
        self.next += 1;
        self.last = Some((requests[index].thread, moment.now));
        Choice::Grant(index)
    }

    fn awaits(&self, _: &Request) -> Option<ThreadId> {
        self.order.get(self.next).map(|next| next.0)
    }
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
