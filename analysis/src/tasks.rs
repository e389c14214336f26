//! Tasks of OpenMP: what they wait for, whichever threads execute them.
//!
//! A task is a thread of its own to the detector, though some thread of the program executes it: it begins
//! with what its creator had done by then, and others acquire what it has done where they wait for it. What
//! the thread that executes it did before, or does afterwards, is not ordered with it.
//!
//! Clocks of tasks stand at [`crate::clock::FIRST_TASK`] and behind. A task takes the number of an earlier one
//! of the same thread that it is ordered behind; if there are too many that it is not, it takes any, and what
//! then races with the earlier one is not found.

use crate::clock::{FIRST_TASK, VectorClock};
use refrain_trace::ThreadId;
use refrain_trace::fixed::FixedMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tasks that are told apart by their clocks.
const MOST: usize = (u16::MAX - FIRST_TASK) as usize;

/// What a function of a library for OpenMP does with tasks. Arguments are numbered from zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Tasking {
    /// Makes a task of the function in its first argument, in a block that it allocates, or executes it
    /// at once. The list of what it depends on is at argument 7 (GCC).
    Creates,
    /// The same for several tasks, of which it waits for the end (GCC).
    CreatesAll,
    /// Answers with a new task: of the size in argument 3, with the size of more in argument 4 (LLVM).
    Allocates,
    /// Lets others execute the task in argument 2 (LLVM).
    Starts,
    /// The same, behind what it depends on: argument 3 is how many records say so, and argument 4 their
    /// address.
    StartsBehind,
    /// Makes more tasks of the one in argument 2, and waits for their end (LLVM).
    StartsAll,
    /// The thread begins to execute the task in argument 2, of which its creator waits for the end (LLVM).
    Begins,
    /// It has executed that.
    Ends,
    /// Waits for the tasks that the present one has created.
    Waits,
    /// Waits for those of them that are named in the list at the first argument (GCC).
    WaitsFor,
    /// The same: argument 2 is how many records there are, and argument 3 their address (LLVM).
    WaitsForRecords,
    /// Begins a group of tasks.
    Groups,
    /// Waits for all tasks of the group.
    EndsGroup,
    /// May execute other tasks.
    Yields,
    /// Waits for all threads of the team, and all tasks that they have created.
    Barrier,
    /// The same, unless it answers zero.
    BarrierUnlessZero,
    /// The same, but not all threads of a team call it as often (LLVM).
    AnyBarrier,
    /// Has a team of threads execute the function in its first argument, or in its third one.
    Team,
    /// Says that a task is done that ends when somebody says so, and not with its body.
    Fulfills,
    /// Says which thread this is: who asks relies on what that thread does one after another.
    Asks,
    /// Answers which section the thread is to execute next, or zero (GCC).
    Sections,
    /// The thread executes no more sections.
    EndsSections,
}

impl Tasking {
    /// Whether the function makes tasks, or shares out sections. Without them, there is nothing to take
    /// apart or to wait for.
    pub fn creates(self) -> bool {
        use Tasking::{Allocates, Creates, CreatesAll, Sections};
        matches!(self, Creates | CreatesAll | Allocates | Sections)
    }

    /// Whether what the function does inside orders nothing, and is no access of the program's.
    pub(crate) fn hides(self) -> bool {
        use Tasking::{AnyBarrier, Barrier, BarrierUnlessZero, Ends, Fulfills, Team};
        !matches!(self, Barrier | BarrierUnlessZero | AnyBarrier | Team | Ends | Fulfills)
    }
}

/// How a library calls what the program wants executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Calls {
    /// With the address of the data: of a task, it is in the block of the task (GCC).
    Data,
    /// Of a task, with the task as second argument (LLVM).
    Task,
}

/// What several tasks have done.
#[derive(Default, Debug)]
pub(crate) struct Join {
    clock: Mutex<VectorClock>,
}

impl Join {
    pub(crate) fn clock(&self) -> MutexGuard<'_, VectorClock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) type Joins = Vec<Arc<Join>>;

/// A task that has been created.
#[derive(Clone, Debug)]
pub(crate) struct Created {
    /// What its creator had done.
    pub(crate) clock: VectorClock,
    /// What it is behind.
    pub(crate) behind: Joins,
    /// What takes turns with it.
    pub(crate) turns: Joins,
    /// Who waits for its end: its creator, groups, the team, tasks that depend on it.
    pub(crate) ends: Joins,
    /// The group that it was created in.
    pub(crate) group: Option<Arc<Join>>,
    pub(crate) place: Place,
    /// Memory of the task's own.
    pub(crate) memory: Range<u64>,
    /// What is executed.
    pub(crate) function: u64,
}

/// Where tasks belong that wait at no group: a team of threads, between two of its barriers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Place {
    pub(crate) team: u64,
    pub(crate) round: u64,
}

/// All tasks.
#[derive(Default)]
pub(crate) struct Tasks {
    /// By the first bytes of their memory.
    created: Mutex<BTreeMap<u64, Created>>,
    /// The task that others have last been made of, by functions.
    models: Mutex<FixedMap<u64, Created>>,
    places: Mutex<FixedMap<Place, Arc<Join>>>,
    /// What was done before tasks were said to be done: of which, is not known, so all that wait for
    /// tasks have waited for it.
    pub(crate) fulfilled: Join,
    /// Threads by the clocks of their tasks.
    owners: Mutex<Vec<u16>>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tasks {
    pub(crate) fn join(&self) -> Arc<Join> {
        Arc::default()
    }

    /// A task is in this memory from now on.
    pub(crate) fn add(&self, task: Created) {
        let mut created = locked(&self.created);
        // The data of one that has none may be said to be behind its block.
        while let Some((&start, _)) = created.range(..=task.memory.end).next_back()
            && created[&start].memory.end >= task.memory.start
            && start >= task.memory.start
        {
            created.remove(&start);
        }
        created.insert(task.memory.start, task);
    }

    /// The task whose memory this is an address of.
    pub(crate) fn at(&self, address: u64) -> Option<Created> {
        let created = locked(&self.created);
        let (_, task) = created.range(..=address).next_back()?;
        (address <= task.memory.end).then(|| task.clone())
    }

    /// Changes the task at this address.
    pub(crate) fn change(&self, address: u64, change: impl FnOnce(&mut Created)) {
        if let Some(task) = locked(&self.created).get_mut(&address) {
            change(task);
        }
    }

    /// Memory is no task's any more; whether it was.
    pub(crate) fn remove(&self, start: u64) -> bool {
        locked(&self.created).remove(&start).is_some()
    }

    /// Tasks of this function may be made of this one.
    pub(crate) fn make_more(&self, function: u64, task: Created) {
        locked(&self.models).insert(function, task);
    }

    pub(crate) fn model(&self, function: u64) -> Option<Created> {
        locked(&self.models).get(&function).cloned()
    }

    /// What the tasks of a place have done.
    pub(crate) fn place(&self, place: Place) -> Arc<Join> {
        locked(&self.places).entry(place).or_insert_with(|| self.join()).clone()
    }

    /// The same, if there are any.
    pub(crate) fn done_at(&self, place: Place) -> Option<Arc<Join>> {
        locked(&self.places).get(&place).cloned()
    }

    /// A clock for tasks of a thread, if there is one left.
    pub(crate) fn new_clock(&self, thread: u16) -> Option<u16> {
        let mut owners = locked(&self.owners);
        if owners.len() == MOST {
            return None;
        }
        owners.push(thread);
        Some(FIRST_TASK + (owners.len() - 1) as u16)
    }

    /// The thread that a clock is of.
    pub(crate) fn owner(&self, clock: ThreadId) -> ThreadId {
        match clock.0.checked_sub(FIRST_TASK.into()) {
            Some(task) => ThreadId(locked(&self.owners)[task as usize].into()),
            None => clock,
        }
    }
}

/// How a task depends on an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depends {
    In,
    Out,
    /// Takes turns with others of this kind, in any order.
    Turns,
    /// With others of this kind at the same time.
    Set,
}

/// Who depends on one address.
#[derive(Default, Debug)]
struct Address {
    /// Those that the next reader is behind, and how.
    writers: Joins,
    kind: Option<Depends>,
    /// What these are behind.
    before: Joins,
    readers: Joins,
    turns: Option<Arc<Join>>,
}

/// What the tasks that one task has created depend on.
#[derive(Default, Debug)]
pub(crate) struct Dependences {
    addresses: FixedMap<u64, Address>,
    /// The ends of all that depend on anything.
    all: Joins,
    /// Those of tasks of which it is not known what they depend on: all later ones are behind them.
    unknown: Joins,
}

impl Dependences {
    /// A task depends on this, if that is known: what it is behind, and what it takes turns with. `end` is its own end, if
    /// others may depend on it.
    pub(crate) fn add(
        &mut self,
        tasks: &Tasks,
        list: Option<&[(u64, Depends)]>,
        end: Option<&Arc<Join>>,
    ) -> (Joins, Joins) {
        let Some(list) = list else {
            let behind = self.all.clone();
            self.unknown.extend(end.cloned());
            self.all.extend(end.cloned());
            return (behind, Joins::new());
        };
        let (mut behind, mut turns) = (self.unknown.clone(), Joins::new());
        for &(address, kind) in list {
            let at = self.addresses.entry(address).or_default();
            match kind {
                Depends::In => {
                    behind.extend(at.writers.iter().cloned());
                    at.readers.extend(end.cloned());
                    continue;
                }
                Depends::Turns | Depends::Set if at.kind == Some(kind) && at.readers.is_empty() => {
                    behind.extend(at.before.iter().cloned());
                }
                _ => {
                    let all = at.writers.iter().chain(&at.readers).cloned().collect::<Joins>();
                    behind.extend(all.iter().cloned());
                    if end.is_some() {
                        (at.before, at.kind) = (all, Some(kind));
                        at.writers.clear();
                        at.readers.clear();
                    }
                }
            }
            if kind == Depends::Turns {
                turns.push(at.turns.get_or_insert_with(|| tasks.join()).clone());
            }
            at.writers.extend(end.cloned());
        }
        self.all.extend(end.cloned());
        (behind, turns)
    }
}

/// What a list of GCC's says; none if not all of it is known.
pub(crate) fn counted(words: &[u64]) -> Option<Vec<(u64, Depends)>> {
    let (&[first, second], rest) = words.split_first_chunk::<2>()?;
    let (all, out, turns, addresses) = match first {
        0 => {
            let (&[out, turns, inputs], addresses) = rest.split_first_chunk::<3>()?;
            // Others are objects that hold what they are.
            let known = out.checked_add(turns)?.checked_add(inputs)?;
            (Some(second).filter(|&all| all == known)?, out, turns, addresses)
        }
        all => (all, second, 0, rest),
    };
    let kind = |at: u64| match at {
        at if at < out => Depends::Out,
        at if at < out + turns => Depends::Turns,
        _ => Depends::In,
    };
    let kinds = addresses.iter().zip(0..).map(|(&address, at)| (address, kind(at)));
    (addresses.len() as u64 == all).then(|| kinds.collect())
}

/// What a list of LLVM's says, which has so many records; none if not all of it is known.
pub(crate) fn records(words: &[u64], count: u64) -> Option<Vec<(u64, Depends)>> {
    let (records, _) = words.as_chunks::<3>();
    let kind = |flags: u64| match flags & 0xf {
        1 => Depends::In,
        4 => Depends::Turns,
        8 => Depends::Set,
        _ => Depends::Out,
    };
    let is_whole = records.len() as u64 == u64::from(count as u32);
    is_whole.then(|| records.iter().map(|&[address, _, flags]| (address, kind(flags))).collect())
}
