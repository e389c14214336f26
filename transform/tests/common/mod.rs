//! Runs written by hand, with accesses, analysed as an observed replay would be.

#![allow(dead_code, unreachable_pub, missing_docs)]

use refrain_scheduler::{
    Builder, Config, Constraints, Edge, Elsc, Model, Outcome, Skeleton, simulate,
};
use refrain_trace::{Access, Event, EventId, EventKind, ThreadId, order};
use refrain_transform::{Collector, Cores, Plan, Replayer, Role, Sections, Uses};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::slice::from_ref;
use std::sync::Arc;

/// What a thread does next.
#[derive(Clone, Debug)]
pub enum Item {
    Access(Access),
    Kernel(Range<u64>, Range<u64>),
    Event(Event),
}

/// A recorded run in the making; items are given in the order in which they happened.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    pub threads: Vec<Vec<Item>>,
    tickets: BTreeMap<usize, u64>,
    pub clocks: Vec<u64>,
}

impl Recording {
    pub fn new(threads: usize) -> Recording {
        Recording {
            threads: vec![Vec::new(); threads],
            tickets: BTreeMap::new(),
            clocks: vec![0; threads],
        }
    }

    /// `thread` works for `work` ticks and then performs an event at `pc`.
    pub fn event(
        &mut self,
        thread: usize,
        work: u64,
        kind: EventKind,
        object: u64,
        pc: u64,
    ) -> &mut Event {
        let ticket = self.tickets.entry(order::slot(object)).or_default();
        let begin = self.clocks[thread] + work;
        self.clocks[thread] = begin;
        let (code, ticket_now) = (kind as u8, *ticket);
        *ticket += 1;
        let sp = 0x7000_0000_0000 + thread as u64 * (64 << 20);
        let event = Event {
            code,
            object,
            ticket: ticket_now,
            begin,
            end: begin,
            pc,
            sp,
            ..Event::default()
        };
        self.threads[thread].push(Item::Event(event));
        match self.threads[thread].last_mut() {
            Some(Item::Event(event)) => event,
            _ => unreachable!("just pushed"),
        }
    }

    pub fn lock(&mut self, thread: usize, work: u64, lock: u64, pc: u64) {
        self.event(thread, work, EventKind::MutexLock, lock, pc);
    }

    pub fn unlock(&mut self, thread: usize, work: u64, lock: u64, pc: u64) {
        self.event(thread, work, EventKind::MutexUnlock, lock, pc);
    }

    pub fn read(&mut self, thread: usize, address: u64, size: u16) {
        self.access(thread, address, size, Access::READ);
    }

    pub fn write(&mut self, thread: usize, address: u64, size: u16) {
        self.access(thread, address, size, Access::WRITE);
    }

    pub fn access(&mut self, thread: usize, address: u64, size: u16, kind: u16) {
        self.access_at(thread, Access { address, pc: 0, size, kind });
    }

    pub fn access_at(&mut self, thread: usize, access: Access) {
        self.threads[thread].push(Item::Access(access));
    }

    /// The kernel reads and writes for the thread.
    pub fn kernel(&mut self, thread: usize, reads: Range<u64>, writes: Range<u64>) {
        self.threads[thread].push(Item::Kernel(reads, writes));
    }

    /// Makes bytes shared: every thread reads them, outside of everything.
    pub fn share(&mut self, address: u64, size: u16) {
        for thread in 0..self.threads.len() {
            self.read(thread, address, size);
        }
    }

    pub fn sections(&self) -> Sections {
        Sections::merge(self.collectors(), &[], &[]).expect("a sound recording")
    }

    /// The same from a log without the accesses that collectors do not want.
    pub fn sections_without_repetitions(&self) -> Sections {
        let mut fewer = self.clone();
        for items in &mut fewer.threads {
            let mut collector = Collector::new(ThreadId(0), None);
            let mut seen = BTreeSet::new();
            items.retain(|item| match item {
                Item::Access(access) => {
                    let bytes = access.address..access.address + u64::from(access.size);
                    let fresh = bytes.filter(|byte| seen.insert(*byte)).count();
                    collector.wants_repeats() || fresh > 0
                }
                Item::Kernel(..) => true,
                Item::Event(event) => {
                    collector.event(EventId(0), event);
                    true
                }
            });
        }
        fewer.sections()
    }

    pub fn collectors(&self) -> Vec<Collector> {
        self.collectors_with(|_| Vec::new())
    }

    pub fn collectors_with(&self, roles: impl Fn(ThreadId) -> Vec<(u32, Role)>) -> Vec<Collector> {
        self.collectors_as(roles, &Arc::default())
    }

    pub fn collectors_knowing(&self, uses: &Arc<Uses>) -> Vec<Collector> {
        self.collectors_as(|_| Vec::new(), uses)
    }

    fn collectors_as(
        &self,
        roles: impl Fn(ThreadId) -> Vec<(u32, Role)>,
        uses: &Arc<Uses>,
    ) -> Vec<Collector> {
        let mut collectors = Vec::new();
        // In reverse, because the order of observation must not matter.
        for (thread, items) in self.threads.iter().enumerate().rev() {
            let id = ThreadId(thread as u32);
            let mut collector = Collector::new(id, None).knowing(roles(id), [].into());
            collector = collector.with_uses(uses.clone());
            let mut events = 0;
            for item in items {
                match item {
                    Item::Access(access) => collector.accesses(&[*access]),
                    Item::Kernel(reads, writes) => {
                        collector.kernel(from_ref(reads), from_ref(writes));
                    }
                    Item::Event(event) => {
                        collector.event(EventId(events), event);
                        events += 1;
                    }
                }
            }
            collector.finish();
            collectors.push(collector);
        }
        collectors
    }

    pub fn skeleton(&self) -> Skeleton {
        let mut builder = Builder::new(self.threads.len(), 1_000_000_000, 0);
        for (thread, items) in self.threads.iter().enumerate() {
            for item in items {
                if let Item::Event(event) = item {
                    builder.push(ThreadId(thread as u32), event).expect("a sound recording");
                }
            }
        }
        builder.finish().expect("a sound recording")
    }

    pub fn replayer(&self) -> Virtual {
        let cores = self.threads.len() as u32;
        Virtual { skeleton: self.skeleton(), config: Config::ideal(cores) }
    }
}

/// The adapter between the two crates, as the command has one.
pub struct Virtual {
    skeleton: Skeleton,
    config: Config,
}

impl Replayer for Virtual {
    fn replay(
        &mut self,
        plan: Option<&Plan>,
        _: Cores,
        visit: &mut dyn FnMut(ThreadId, EventId, u64, u64),
    ) -> Result<u64, String> {
        let constraints = match plan {
            None => Constraints::none(),
            Some(plan) => {
                let edges = plan.edges.iter().map(|edge| Edge {
                    target_thread: edge.target_thread,
                    target: edge.target,
                    source_thread: edge.source_thread,
                    source: edge.source,
                });
                Constraints::new(&self.skeleton, |address| plan.frees(address), edges)
                    .map_err(|error| error.to_string())?
            }
        };
        let mut visit = |thread, event, begin, end| visit(thread, event, begin, end);
        let model = Model::default();
        match simulate(&self.skeleton, &constraints, &self.config, &model, &mut Elsc, &mut visit) {
            Outcome::Completed(run) => Ok(run.duration),
            Outcome::Deadlocked(deadlock) => Err(deadlock.to_string()),
        }
    }

    fn nanoseconds(&self, ticks: u64) -> u64 {
        self.skeleton.nanoseconds(ticks)
    }
}
