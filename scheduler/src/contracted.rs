//! The same run with fewer operations, for replays in which threads take objects as they come.
//!
//! Most events of a trace with watched words order nothing there: an atomic instruction never waits, and
//! a load waits only for what may not have been stored yet. Nor does anybody wait for a lock that one
//! thread alone takes. What never waits and is never waited for is work of its thread, with the time that
//! it costs; so one pass over the trace spares the hundred replays behind it most of their steps. A replay without noise takes as long as before, to the tick:
//! `tests/contracted.rs` holds the two against each other. (With noise, work that has become one piece is
//! drawn for once.)
//!
//! A thread *knows* a count of an object to have been reached if it waited for it, and one more for each
//! time that it counted since. A load that waits for no more than that never waits; and once a thread
//! knows the highest count that any operation waits for, nobody waits for what it counts.

use crate::skeleton::{AFTER, Code, Operation, Skeleton, Strand};
use crate::{Costs, Deadlock};
use refrain_trace::fixed::FixedMap;
use refrain_trace::{EventId, ThreadId};

/// A skeleton of fewer operations, and which of the events these are.
#[derive(Clone, Debug)]
pub struct Contracted {
    skeleton: Skeleton,
    /// By thread, ascending: the events whose operations are left.
    left: Vec<Vec<u32>>,
}

impl Contracted {
    /// What is left.
    pub fn skeleton(&self) -> &Skeleton {
        &self.skeleton
    }

    /// The place of an event's operation among those of its thread, if it is left.
    pub fn place(&self, thread: ThreadId, event: u32) -> Option<u32> {
        let place = self.left[thread.index()].binary_search(&event).ok()?;
        Some(place as u32)
    }

    /// The deadlock of a replay of what is left, with its events numbered as in the whole skeleton.
    pub fn explain(&self, mut deadlock: Deadlock) -> Deadlock {
        for wait in &mut deadlock.waits {
            // Copies of threads have no events of their own.
            let left = self.left.get(wait.thread.index());
            let event = left.and_then(|left| left.get(wait.event.index()));
            wait.event = event.map_or(wait.event, |&event| EventId(event.into()));
        }
        deadlock
    }
}

impl Skeleton {
    /// The run without operations that never wait and that nobody waits for, if no scheduler keeps
    /// an order of objects ([`crate::Orig`]). `costs` are the machine's.
    pub fn contracted(&self, costs: &Costs) -> Contracted {
        let named = self.named();
        let words = Words::of(self, &named);
        let left: Vec<Vec<u32>> = self
            .strands
            .iter()
            .zip(&named)
            .map(|(strand, named)| words.left(strand, named))
            .collect();
        let strands = self.strands.iter().zip(&left);
        let mut strands: Vec<Strand> =
            strands.map(|(strand, left)| strand.contracted(left, costs)).collect();
        let place = |thread: u32, event: &mut u32| {
            let left = &left[thread as usize];
            *event = left.partition_point(|left| left < event) as u32;
        };
        for (id, strand) in strands.iter_mut().enumerate() {
            if let Some((parent, event)) = &mut strand.creator {
                place(parent.0, event);
            }
            for before in &mut strand.after {
                place(id as u32, &mut before.event);
                place(before.thread, &mut before.source);
            }
            for woken in &mut strand.woken {
                place(id as u32, &mut woken.event);
                place(woken.thread, &mut woken.source);
            }
        }
        Contracted { skeleton: Skeleton { strands, objects: self.objects.clone(), ..*self }, left }
    }

    /// Events that others name, by thread, ascending.
    fn named(&self) -> Vec<Vec<u32>> {
        let mut named = vec![Vec::new(); self.strands.len()];
        for strand in &self.strands {
            let created = strand.creator.iter().map(|(parent, event)| (parent.0, *event));
            let preceded = strand.after.iter().map(|before| (before.thread, before.source));
            let woken = strand.woken.iter().map(|woken| (woken.thread, woken.source));
            for (thread, event) in created.chain(preceded).chain(woken) {
                named[thread as usize].push(event);
            }
        }
        named.iter_mut().for_each(|events| events.sort_unstable());
        named
    }
}

/// The events of a thread that stay whatever they do: those that others name, and the last one.
struct Named<'a> {
    names: std::iter::Peekable<std::iter::Copied<std::slice::Iter<'a, u32>>>,
    last: usize,
}

impl<'a> Named<'a> {
    fn new(strand: &Strand, names: &'a [u32]) -> Named<'a> {
        let last = strand.operations.len().saturating_sub(1);
        Named { names: names.iter().copied().peekable(), last }
    }

    /// Whether an event is one of them. Asked of each event, in their order.
    fn has(&mut self, event: usize, operation: &Operation) -> bool {
        let mut is_named = event == self.last || operation.flags & AFTER != 0;
        while self.names.next_if(|&name| name as usize <= event).is_some() {
            is_named = true;
        }
        is_named
    }
}

/// What is known of an object.
#[derive(Clone, Copy)]
enum Word {
    /// Counted by atomic instructions and stores, and awaited by loads: the highest count that is.
    Awaited(u32),
    /// A lock that this thread alone takes and releases.
    Alone(u32),
    /// More than that: a lock of several threads, a semaphore, a barrier.
    Other,
}

struct Words(Vec<Word>);

/// The counts that a thread knows to have been reached.
#[derive(Default)]
struct Known(FixedMap<u32, u32>);

impl Known {
    /// Passes an operation; whether it never waits.
    fn pass(&mut self, operation: &Operation) -> bool {
        let known = self.0.entry(operation.object).or_default();
        match operation.code {
            Code::Ordered => *known += 1,
            _ if *known >= operation.rank => {}
            _ => {
                *known = operation.rank;
                return false;
            }
        }
        true
    }

    fn of(&self, object: u32) -> u32 {
        self.0.get(&object).copied().unwrap_or(0)
    }
}

fn is_of_word(operation: &Operation) -> bool {
    matches!(operation.code, Code::Ordered | Code::AwaitLoad)
}

/// Whether an operation takes or releases a lock, and nothing else.
fn is_of_lock(operation: &Operation) -> bool {
    matches!(operation.code, Code::Lock | Code::Spin | Code::Read | Code::Unlock)
}

impl Words {
    fn of(skeleton: &Skeleton, named: &[Vec<u32>]) -> Words {
        let mut words = vec![None; skeleton.objects.len()];
        for (thread, (strand, named)) in skeleton.strands.iter().zip(named).enumerate() {
            let mut known = Known::default();
            let mut named = Named::new(strand, named);
            for (event, (operation, _, more)) in strand.with_side().enumerate() {
                let is_named = named.has(event, &operation);
                if is_of_word(&operation) {
                    let waits_for = if known.pass(&operation) { 0 } else { operation.rank };
                    let word = &mut words[operation.object()];
                    *word = Some(match *word {
                        None => Word::Awaited(waits_for),
                        Some(Word::Awaited(highest)) => Word::Awaited(highest.max(waits_for)),
                        Some(_) => Word::Other,
                    });
                } else if is_of_lock(&operation) && !is_named {
                    let thread = thread as u32;
                    let word = &mut words[operation.object()];
                    *word = Some(match *word {
                        None => Word::Alone(thread),
                        Some(Word::Alone(other)) if other == thread => Word::Alone(thread),
                        Some(_) => Word::Other,
                    });
                } else if operation.acts() || operation.code == Code::Tried {
                    words[operation.object()] = Some(Word::Other);
                }
                if let (Code::CondRelock, Some(signals)) = (operation.code, more) {
                    words[(signals >> 32) as usize] = Some(Word::Other);
                }
            }
        }
        Words(words.into_iter().map(|word| word.unwrap_or(Word::Other)).collect())
    }

    /// The events of a thread whose operations are left: what others name, and the last one, among them.
    fn left(&self, strand: &Strand, named: &[u32]) -> Vec<u32> {
        let mut known = Known::default();
        let mut named = Named::new(strand, named);
        let mut left = Vec::new();
        for (event, operation) in strand.operations.iter().enumerate() {
            let is_named = named.has(event, operation);
            let waits = match self.0.get(operation.object()) {
                Some(&Word::Awaited(highest)) if is_of_word(operation) => {
                    let satisfied = known.of(operation.object) >= highest;
                    !known.pass(operation) || (operation.code == Code::Ordered && !satisfied)
                }
                Some(Word::Alone(_)) if is_of_lock(operation) => false,
                _ => operation.code != Code::Plain,
            };
            if is_named || waits {
                left.push(event as u32);
            }
        }
        left
    }
}

impl Strand {
    /// The strand with these operations alone: what the others take is work before the next one.
    fn contracted(&self, left: &[u32], costs: &Costs) -> Strand {
        let mut strand = self.emptied();
        strand.operations.reserve_exact(left.len());
        let mut left = left.iter().copied().peekable();
        let mut before = 0u64;
        for (event, (operation, work, more)) in self.with_side().enumerate() {
            let work = before.saturating_add(work);
            let own = self.costs.get(event).copied();
            if left.next_if_eq(&(event as u32)).is_some() {
                strand.push(operation, work, more);
                strand.costs.extend(own);
                before = 0;
            } else {
                let cost = own.map_or_else(|| costs.of(operation.code), u64::from);
                before = work.saturating_add(cost);
            }
        }
        strand
    }
}
