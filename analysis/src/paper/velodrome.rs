//! VELODROME (Flanagan, Freund and Yi, PLDI 2008): are blocks of code that should be atomic serializable?
//!
//! A graph has a node for each *transaction* (a block, or an access outside of all blocks) and an edge
//! from one to another if something in the first happens before something in the second. The run is
//! serializable if and only if there is no cycle. An edge is made by the later of two steps, so it
//! always ends in the transaction that is under way, and that one is blamed for the cycle.
//!
//! The blocks are critical sections, from the first lock that a thread takes to the last that it
//! releases: what a lock is around is meant to be atomic. It need not be, if a section takes an inner
//! lock twice, or touches data that others use without the lock.
//!
//! # Deviations
//! 1. Functions are no blocks: a trace has no events at their ends.
//! 2. A step outside of all blocks joins its thread's last transaction where that changes no path
//!    (section 4.3 there, [MERGE]): if it has no predecessors of its own.

use super::{Cost, Detector, Op, Step};
use refrain_trace::fixed::FixedMap;
use std::collections::{BTreeMap, BTreeSet};

/// A node that may have been forgotten since, and its place used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Name {
    place: u32,
    generation: u32,
}

#[derive(Default)]
struct Node {
    generation: u32,
    /// Its block has not ended yet.
    under_way: bool,
    predecessors: u32,
    successors: BTreeSet<u32>,
}

/// Transactions that a cycle may still go through.
#[derive(Default)]
struct Graph {
    nodes: Vec<Node>,
    free: Vec<u32>,
    cost: Cost,
}

impl Graph {
    fn add(&mut self, under_way: bool) -> Name {
        self.cost.clocks += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            self.nodes.len() as u32 - 1
        });
        let node = &mut self.nodes[place as usize];
        node.under_way = under_way;
        Name { place, generation: node.generation }
    }

    fn is_there(&self, name: Name) -> bool {
        self.nodes[name.place as usize].generation == name.generation
    }

    /// Orders two transactions, unless that would close a cycle: then it says so.
    fn order(&mut self, from: Name, to: Name) -> bool {
        if from == to || !self.is_there(from) {
            return false;
        }
        if self.nodes[from.place as usize].successors.contains(&to.place) {
            return false;
        }
        if self.reaches(to.place, from.place) {
            return true;
        }
        self.nodes[from.place as usize].successors.insert(to.place);
        self.nodes[to.place as usize].predecessors += 1;
        false
    }

    fn reaches(&mut self, from: u32, to: u32) -> bool {
        let (mut seen, mut left) = (BTreeSet::from([from]), vec![from]);
        while let Some(at) = left.pop() {
            self.cost.operations += 1;
            if at == to {
                return true;
            }
            let next = self.nodes[at as usize].successors.iter().copied();
            left.extend(next.filter(|next| seen.insert(*next)));
        }
        false
    }

    /// Its block has ended.
    fn end(&mut self, name: Name) {
        self.nodes[name.place as usize].under_way = false;
        self.forget(name.place);
    }

    /// Forgets transactions that have ended and have no predecessors: they never get any.
    fn forget(&mut self, place: u32) {
        let mut left = vec![place];
        while let Some(place) = left.pop() {
            let node = &mut self.nodes[place as usize];
            if node.under_way || node.predecessors > 0 {
                continue;
            }
            node.generation += 1;
            let successors = std::mem::take(&mut node.successors);
            self.free.push(place);
            for next in successors {
                let predecessors = &mut self.nodes[next as usize].predecessors;
                *predecessors -= 1;
                if *predecessors == 0 {
                    left.push(next);
                }
            }
        }
    }
}

#[derive(Default)]
struct Thread {
    /// Locks that it has.
    depth: u32,
    /// Its transaction, or the last one.
    last: Option<Name>,
}

/// The last transactions that used something, by thread.
#[derive(Default)]
struct Variable {
    written: Option<Name>,
    read: BTreeMap<u32, Name>,
}

#[derive(Default)]
pub(super) struct Velodrome {
    graph: Graph,
    threads: FixedMap<u32, Thread>,
    objects: FixedMap<u64, BTreeMap<u32, Name>>,
    variables: FixedMap<u64, Variable>,
}

impl Velodrome {
    fn hold(&mut self, id: u32) {
        let thread = self.threads.entry(id).or_default();
        thread.depth += 1;
        if thread.depth == 1 {
            let block = self.graph.add(true);
            if let Some(last) = thread.last.replace(block) {
                self.graph.order(last, block);
            }
        }
    }

    fn drop_lock(&mut self, id: u32) {
        let thread = self.threads.entry(id).or_default();
        if thread.depth == 1
            && let Some(block) = thread.last
        {
            self.graph.end(block);
        }
        thread.depth = thread.depth.saturating_sub(1);
    }

    /// The transaction of a thread's next step, which comes after these; whether that closes a cycle.
    /// There is none if no cycle can go through it.
    fn transaction(&mut self, id: u32, after: &[Name]) -> (Option<Name>, bool) {
        let Velodrome { graph, threads, .. } = self;
        let thread = threads.entry(id).or_default();
        let mut after: Vec<Name> = after.to_vec();
        after.retain(|name| graph.is_there(*name) && Some(*name) != thread.last);
        thread.last = thread.last.filter(|last| graph.is_there(*last));
        if thread.depth == 0 {
            if after.is_empty() {
                return (thread.last, false);
            }
            let alone = graph.add(true);
            after.extend(thread.last.replace(alone));
        }
        let to = thread.last.expect("a block has a transaction");
        let mut cycle = false;
        for from in after {
            cycle |= graph.order(from, to);
        }
        if thread.depth == 0 {
            graph.end(to);
        }
        (Some(to), cycle)
    }
}

impl Detector for Velodrome {
    fn access(&mut self, thread: u32, variable: u64, writes: bool) -> bool {
        let of = self.variables.entry(variable).or_default();
        let mut after: Vec<Name> = of.written.into_iter().collect();
        if writes {
            after.extend(of.read.values());
        }
        let (now, cycle) = self.transaction(thread, &after);
        let of = self.variables.entry(variable).or_default();
        if writes {
            (of.written, of.read) = (now, BTreeMap::new());
        } else if let Some(now) = now {
            of.read.insert(thread, now);
        } else {
            of.read.remove(&thread);
        }
        cycle
    }

    fn forget(&mut self, variable: u64) {
        self.variables.remove(&variable);
    }

    fn synchronize(&mut self, step: &Step) -> bool {
        let thread = step.thread;
        match step.op {
            Op::Hold { .. } => self.hold(thread),
            Op::Drop(_) => self.drop_lock(thread),
            Op::Acquire(object) => {
                let released = self.objects.get(&object);
                let after: Vec<Name> =
                    released.into_iter().flat_map(BTreeMap::values).copied().collect();
                return self.transaction(thread, &after).1;
            }
            Op::Release(object) => {
                let now = self.transaction(thread, &[]).0;
                let of = self.objects.entry(object).or_default();
                match now {
                    Some(now) => drop(of.insert(thread, now)),
                    None => drop(of.remove(&thread)),
                }
            }
            _ => {}
        }
        false
    }

    fn cost(&self) -> Cost {
        let bytes = |of: &Variable| {
            (size_of::<Variable>() + of.read.len() * size_of::<(u32, Name)>()) as u64
        };
        Cost { bytes: self.variables.values().map(bytes).sum(), ..self.graph.cost.clone() }
    }
}
