//! The clocks of what synchronizes: locks, words, threads, the kernel.
//!
//! # Late orders
//! An event is seen when it happens, but a plain store is seen only when the accesses of its
//! thread are reported next. If the store releases a word (a spin lock is unlocked so), another
//! thread's atomic instruction may have read it, and be seen, before that. So each word remembers
//! who acquired it of late; the order is noted when the store is seen ([`Objects::stored`]), and
//! races are held against what was noted in the end ([`Objects::ordered_late`]).

use crate::clock::VectorClock;
use refrain_trace::fixed::FixedMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;
/// Acquisitions of a word that are remembered.
const RECENT: usize = 4096;
/// Late orders from one thread to another that are kept apart. Further ones make the last one
/// cover more than it should, which may hide races and never invents one.
const LATE: usize = 256;

/// What is released and acquired.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Object {
    /// A lock or another object of the library's, a thread (`refrain_trace::order`).
    At(u64),
    /// The rounds of a barrier, which are two objects in turns: nobody comes to a round before all have
    /// left the one before the last.
    Round(u64, bool),
    /// What readers of a read-write lock leave to its next writer.
    Readers(u64),
    /// An atomic word.
    Word(u64),
    /// The kernel: system calls are in an order.
    Calls,
    /// The address space.
    Memory,
    /// The stack of a thread, by what its thread pointer is.
    Stack(u64),
    /// A word that threads sleep on.
    Futex(u64),
    /// A pipe, a pair of sockets, or several of them that are not told apart: what is written into it
    /// may be read.
    Channel(u64),
    /// All of them, and messages between processes.
    Channels,
    /// All signals.
    Signals,
}

/// A thread and its clock.
pub(crate) type Epoch = (u16, u32);

/// `from` happens before the epoch of the thread, and what follows.
struct Late {
    from: VectorClock,
    to: Epoch,
}

#[derive(Default)]
struct State {
    clock: VectorClock,
    /// Which acquisition (in [`Objects::now`]) was by which epoch; the oldest first.
    recent: VecDeque<(u64, Epoch)>,
    /// Acquisitions before this one are not remembered.
    forgotten: u64,
}

/// All objects.
pub(crate) struct Objects {
    shards: Vec<Mutex<FixedMap<Object, State>>>,
    acquisitions: AtomicU64,
    /// By the two threads.
    late: Mutex<FixedMap<(u16, u16), Vec<Late>>>,
}

impl Objects {
    pub(crate) fn new() -> Objects {
        Objects {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            acquisitions: AtomicU64::new(0),
            late: Mutex::default(),
        }
    }

    /// What was released before now happens before what the thread does from now on.
    pub(crate) fn acquire(&self, object: Object, thread: u16, clock: &mut VectorClock) {
        let mut shard = self.shard(object);
        if !matches!(object, Object::Word(_)) {
            if let Some(state) = shard.get(&object) {
                clock.join(&state.clock);
            }
            return;
        }
        let state = shard.entry(object).or_default();
        clock.join(&state.clock);
        let now = self.acquisitions.fetch_add(1, Ordering::SeqCst);
        if state.recent.len() == RECENT {
            state.forgotten = state.recent.pop_front().map_or(0, |(number, _)| number + 1);
        }
        state.recent.push_back((now, (thread, clock.of(thread))));
    }

    /// What the thread has done happens before what follows the next acquisition.
    pub(crate) fn release(&self, object: Object, clock: &VectorClock) {
        self.shard(object).entry(object).or_default().clock.join(clock);
    }

    /// The thread stored to a word at some time since `since`, which releases it.
    pub(crate) fn stored(&self, object: Object, since: u64, thread: u16, clock: &VectorClock) {
        let mut shard = self.shard(object);
        let state = shard.entry(object).or_default();
        state.clock.join(clock);
        let forgetful = state.forgotten > since;
        let mut seen = Vec::new();
        // Numbers ascend; of each thread, the first acquisition that may have seen the store.
        for &(_, (to, epoch)) in state.recent.iter().rev().take_while(|(at, _)| *at >= since) {
            match seen.iter_mut().find(|(there, _)| *there == to) {
                _ if to == thread => {}
                Some((_, first)) => *first = epoch,
                None => seen.push((to, epoch)),
            }
        }
        for (to, epoch) in seen {
            self.add_late(thread, clock, (to, if forgetful { 0 } else { epoch }));
        }
    }

    fn add_late(&self, thread: u16, from: &VectorClock, to: Epoch) {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let late = late.entry((thread, to.0)).or_default();
        let full = late.len() == LATE;
        match late.last_mut().filter(|_| full) {
            Some(last) => {
                last.from.join(from);
                last.to.1 = last.to.1.min(to.1);
            }
            None => late.push(Late { from: from.clone(), to }),
        }
    }

    /// How many times words were acquired.
    pub(crate) fn now(&self) -> u64 {
        self.acquisitions.load(Ordering::SeqCst)
    }

    /// Whether late orders put `epoch` before what `clock` stands for.
    pub(crate) fn ordered_late(&self, epoch: Epoch, mut clock: VectorClock) -> bool {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left: Vec<&Late> = late.values().flatten().collect();
        loop {
            let before = left.len();
            left.retain(|late| {
                let applies = late.to.1 <= clock.of(late.to.0);
                if applies {
                    clock.join(&late.from);
                }
                !applies
            });
            if epoch.1 <= clock.of(epoch.0) {
                return true;
            }
            if left.len() == before {
                return false;
            }
        }
    }

    fn shard(&self, object: Object) -> MutexGuard<'_, FixedMap<Object, State>> {
        let address = match object {
            Object::At(address) | Object::Readers(address) | Object::Word(address) => address,
            Object::Stack(address) | Object::Futex(address) | Object::Round(address, _) => address,
            Object::Channel(number) => number << 2,
            Object::Calls => 0,
            Object::Memory => 4,
            Object::Channels => 8,
            Object::Signals => 12,
        };
        let shard = &self.shards[(address >> 2 ^ address >> 10) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
