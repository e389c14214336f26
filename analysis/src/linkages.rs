//! Which store each watched load read: exact linkages from bounds and values (STRIDE, section IV).
//!
//! A watched load has, from the recording, its value and a bound: how many stores of its slot it
//! can have read at most. The stores of a word have an order, their tickets, and each tells the
//! value that it found, and so what the one before it wrote. Going back from the bound, the first
//! store that wrote the load's value is the linkage.
//!
//! # Why that is one that can have been
//! The bound was read after the load and before the thread's next event. If the load read a store
//! further back, the memory held the same value once more, or still, between the load and the
//! reading of the bound: had the thread read it then, nobody would have noticed. So all linkages
//! that are found hold in one execution that differs from the recorded one in nothing else.
//!
//! # Deviations from the paper
//! 1. What a store writes is not recorded. Of a word's last store, nobody found what it wrote: it is
//!    what a load has read that may have read it, and that no other store can have written; if there
//!    is none, what the load has read that began last, of those that may have read it.
//! 2. What the owner of a word stored there has no event. If a thread's first load of the word read what no
//!    store with an event wrote, the load read what the owner left there, as far as watched stores tell.
//! 3. A load is not linked back beyond what its thread has met of the word before (coherence).

use refrain_trace::fixed::{FixedMap, FixedSet};
use refrain_trace::{Event, EventId, EventKind, ThreadId, order, own_store};
use std::collections::hash_map::Entry;

/// Operands of at most so many bytes have values in the trace.
const LARGEST: u16 = 8;

/// What a load read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writer {
    /// What was there before any watched store of its word.
    Initial,
    /// What a watched store wrote, or a locked instruction.
    Store {
        /// Its thread.
        thread: ThreadId,
        /// Its event.
        event: EventId,
        /// Its instruction.
        pc: u64,
    },
    /// What the word's owner had stored there without an event, before the load's thread came to the word.
    Owner {
        /// The owner, unless it had ended.
        thread: Option<ThreadId>,
        /// The instruction by which the owner stored last.
        pc: u64,
    },
    /// What no watched store of its word wrote.
    Unwatched,
    /// The word is stored to in other pieces than it is loaded in, too; from which of them the value
    /// is, is not looked for.
    Mixed,
}

/// Where a load's value is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Linkage {
    /// Who wrote it.
    pub writer: Writer,
    /// How many values it was compared with.
    pub comparisons: u32,
}

struct Store {
    ticket: u64,
    thread: ThreadId,
    event: EventId,
    pc: u64,
    /// What it found.
    before: u64,
}

/// A place that is loaded or stored to in one piece.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Operand {
    address: u64,
    size: u16,
}

impl Operand {
    fn of(event: &Event) -> Operand {
        Operand { address: event.object, size: event.nr }
    }

    fn overlaps(self, other: Operand) -> bool {
        self.address < other.address.saturating_add(other.size.into())
            && other.address < self.address.saturating_add(self.size.into())
    }

    /// The words of eight bytes that it is part of.
    fn words(self) -> impl Iterator<Item = u64> {
        let last = self.address.saturating_add(u64::from(self.size).saturating_sub(1));
        self.address / 8..=last / 8
    }
}

#[derive(Default)]
struct Word {
    /// In the order of their tickets.
    stores: Vec<Store>,
    /// The values that they found.
    found: FixedSet<u64>,
    /// Stores to other pieces overlap it.
    mixed: bool,
    /// What tells what the last store wrote.
    last: Option<Last>,
}

/// A load that may have read the last store of its word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Last {
    /// No other store can have written that.
    certain: bool,
    began: u64,
    value: u64,
}

impl Word {
    /// What the memory held after so many stores.
    fn after(&self, stores: usize) -> Option<u64> {
        match self.stores.get(stores) {
            Some(next) => Some(next.before),
            None => self.last.map(|last| last.value),
        }
    }

    /// How many of the stores have a ticket below the bound.
    fn below(&self, bound: u64) -> usize {
        self.stores.partition_point(|store| store.ticket < bound)
    }
}

/// The stores of a trace.
#[derive(Default)]
pub struct Stores {
    words: Vec<Word>,
    at: FixedMap<Operand, usize>,
    /// By word of eight bytes, the operands in it.
    near: FixedMap<u64, Vec<Operand>>,
}

impl Stores {
    /// Takes an event, in any order.
    pub fn add(&mut self, thread: ThreadId, id: EventId, event: &Event) {
        if !matches!(event.kind(), EventKind::Atomic | EventKind::SyncStore) {
            return;
        }
        let operand = Operand::of(event);
        let at = match self.at.entry(operand) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.words.push(Word::default());
                for word in operand.words() {
                    self.near.entry(word).or_default().push(operand);
                }
                *new.insert(self.words.len() - 1)
            }
        };
        self.words[at].found.insert(event.value);
        self.words[at].stores.push(Store {
            ticket: event.ticket,
            thread,
            event: id,
            pc: event.pc,
            before: event.value,
        });
    }

    /// All stores are there.
    pub fn complete(mut self) -> Loads {
        for (operand, &at) in &self.at {
            let word = &mut self.words[at];
            word.stores.sort_unstable_by_key(|store| store.ticket);
            let others = operand.words().filter_map(|word| self.near.get(&word)).flatten();
            word.mixed = operand.size > LARGEST
                || others.into_iter().any(|other| other != operand && other.overlaps(*operand));
        }
        Loads { stores: self }
    }

    fn is_stored_in_pieces(&self, operand: Operand) -> bool {
        let mut near = operand.words().filter_map(|word| self.near.get(&word)).flatten();
        near.any(|other| other.overlaps(operand))
    }
}

/// The stores of a trace, whose loads are looked at once before they are linked.
pub struct Loads {
    stores: Stores,
}

impl Loads {
    /// Takes an event, in any order.
    pub fn look(&mut self, event: &Event) {
        if event.kind() != EventKind::SyncLoad {
            return;
        }
        let Some(&at) = self.stores.at.get(&Operand::of(event)) else { return };
        let word = &mut self.stores.words[at];
        if word.below(event.ticket) == word.stores.len() {
            let certain = !word.found.contains(&event.value);
            let last = Last { certain, began: event.begin, value: event.value };
            word.last = word.last.max(Some(last));
        }
    }

    /// All loads have been looked at.
    pub fn complete(self) -> Linker {
        Linker { stores: self.stores }
    }

    /// How many words are stored to, and how often.
    pub fn counts(&self) -> (u64, u64) {
        let stores = self.stores.words.iter().map(|word| word.stores.len() as u64).sum();
        (self.stores.words.len() as u64, stores)
    }
}

/// Links the loads of threads.
pub struct Linker {
    stores: Stores,
}

impl Linker {
    /// The loads of one thread.
    pub fn thread(&self, thread: ThreadId) -> ThreadLinker<'_> {
        ThreadLinker {
            stores: &self.stores,
            thread,
            met: FixedMap::default(),
            taken_over: None,
            left: FixedMap::default(),
        }
    }
}

/// Links the loads of one thread, whose events come in their order.
pub struct ThreadLinker<'a> {
    stores: &'a Stores,
    thread: ThreadId,
    /// By word: of how many stores the thread has seen the effect.
    met: FixedMap<usize, usize>,
    /// What the owner left in the word that the thread has just taken over.
    taken_over: Option<Writer>,
    /// By operand, what its owner left there before all stores with events.
    left: FixedMap<Operand, Writer>,
}

impl ThreadLinker<'_> {
    /// Takes the thread's next event; what it read, if it is a load.
    pub fn event(&mut self, id: EventId, event: &Event) -> Option<Linkage> {
        let operand = Operand::of(event);
        let at = self.stores.at.get(&operand).copied();
        let taken_over = self.taken_over.take();
        match event.kind() {
            EventKind::Takeover => {
                let thread = order::thread_of_accesses(event.object);
                self.taken_over =
                    own_store::decode(event.value).map(|(pc, _)| Writer::Owner { thread, pc });
                None
            }
            EventKind::Atomic | EventKind::SyncStore => {
                if let Some(at) = at {
                    let stores = self.stores.words[at].below(event.ticket);
                    debug_assert_eq!(self.stores.words[at].stores[stores].event, id);
                    debug_assert_eq!(self.stores.words[at].stores[stores].thread, self.thread);
                    self.met.insert(at, stores + 1);
                }
                None
            }
            EventKind::SyncLoad => {
                let mut linkage = match at {
                    Some(at) => self.link(at, event),
                    None => {
                        let mixed = self.stores.is_stored_in_pieces(operand);
                        let writer = if mixed { Writer::Mixed } else { Writer::Unwatched };
                        Linkage { writer, comparisons: 0 }
                    }
                };
                if let Some(owner) = taken_over
                    && matches!(linkage.writer, Writer::Initial | Writer::Unwatched)
                {
                    self.left.insert(operand, owner);
                    linkage.writer = owner;
                }
                if linkage.writer == Writer::Initial
                    && let Some(&owner) = self.left.get(&operand)
                {
                    linkage.writer = owner;
                }
                Some(linkage)
            }
            _ => None,
        }
    }

    fn link(&mut self, at: usize, load: &Event) -> Linkage {
        let word = &self.stores.words[at];
        if word.mixed {
            return Linkage { writer: Writer::Mixed, comparisons: 0 };
        }
        let met = self.met.entry(at).or_default();
        let mut comparisons = 0;
        for stores in (*met..=word.below(load.ticket)).rev() {
            comparisons += 1;
            if word.after(stores) == Some(load.value) {
                *met = stores;
                let writer = match stores.checked_sub(1).map(|last| &word.stores[last]) {
                    Some(&Store { thread, event, pc, .. }) => Writer::Store { thread, event, pc },
                    None => Writer::Initial,
                };
                return Linkage { writer, comparisons };
            }
        }
        Linkage { writer: Writer::Unwatched, comparisons }
    }
}
