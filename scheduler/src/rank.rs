//! From tickets to ranks.
//!
//! Tickets count events of a *slot*, which several objects may share, and count releases too. A
//! rank is the place among the competing operations of one object, so that no object waits for
//! another and no release is ever ordered. The pass lays all tickets out by slot (they are dense
//! there) and walks each slot once, so it is linear in the events.
//!
//! Per object the walk keeps how many competing operations and how many counting ones it has
//! met, a semaphore's level and the arrivals of a barrier. From these it derives
//! - the rank of a competing operation, and which thread has the next one;
//! - the count that a wait on a condition variable, a once routine or a load must see;
//! - the count that leaving a barrier must see: its size is the number of arrivals before its
//!   first departure, and a thread leaves when the round of its own arrival is complete;
//! - the least initial value of a semaphore that lets the recorded order happen.

use crate::Error;
use crate::precedence::Precedences;
use crate::recorded::Recorded;
use crate::skeleton::{Code, Object, Operation, RESET, Strand, TICKETED, UNKNOWN};
use refrain_trace::fixed::FixedMap;
use refrain_trace::{EventId, ThreadId, order};

/// The rank of an operation that the recorder gave no place.
pub(crate) const NONE: u32 = u32::MAX;

/// Operations whose ticket means a place in their object's order.
pub(crate) fn applies(code: Code) -> bool {
    use Code::*;
    match code {
        Lock | Spin | Read | CondRelock | CondTimeout | SemWait | SemPost => true,
        Count | Await | Ordered => true,
        Plain | Tried | Unlock | CondRelease | AwaitLoad | Join | Sleep | Woken | TimedOut
        | Kernel | Exit | Create => false,
    }
}

/// A lower bound in tickets that is to become a count: how many counting operations of `object`
/// have a ticket below `bound`?
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    pub(crate) object: u32,
    pub(crate) bound: u64,
    pub(crate) thread: ThreadId,
    pub(crate) position: u32,
    /// Where in the thread's side column the answer goes; `u32::MAX`: into the rank.
    pub(crate) side: u32,
}

/// What the walk knows of an object.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    competing: u32,
    /// The latest competing operation: thread and position.
    latest: (u32, u32),
    counting: u32,
    /// Level of a semaphore relative to its unknown start.
    level: i64,
    /// Count at which the present barrier's life began, and its size once it is known.
    base: u32,
    size: u32,
}

/// Replaces tickets by ranks, answers the queries and finds the semaphores' initial values.
pub(crate) fn rank(
    strands: &mut [Strand],
    objects: &mut [Object],
    queries: Vec<Query>,
    recorded: Option<&mut Recorded>,
    precedences: &mut Precedences,
) -> Result<(), Error> {
    let (slots, used) = number_slots(objects);
    let bases = Bases::new(strands, &slots, used)?;
    let cells = bases.lay_out(strands, &slots, objects)?;
    let mut queries: Vec<(u32, Query)> =
        queries.into_iter().map(|query| (slots[query.object as usize], query)).collect();
    // Queries of one thread stay in the order of its events, in which its precedences are looked up.
    let key = |(slot, query): &(u32, Query)| (*slot, query.bound, query.thread, query.position);
    queries.sort_unstable_by_key(key);
    let mut queries = queries.into_iter().peekable();
    let mut walker = Walker {
        walks: vec![Walk::default(); objects.len()],
        arrivals: FixedMap::default(),
        strands,
        objects,
        recorded,
        precedences,
    };
    for slot in 0..used as u32 {
        for (offset, &cell) in cells[bases.range(slot)].iter().enumerate() {
            if cell == EMPTY {
                continue;
            }
            let ticket = bases.first(slot) + offset as u64;
            while let Some((_, query)) = queries.next_if(|(s, q)| (*s, q.bound) <= (slot, ticket)) {
                walker.answer(&query);
            }
            walker.step((cell >> 32) as u32, cell as u32);
        }
        while let Some((_, query)) = queries.next_if(|(s, _)| *s <= slot) {
            walker.answer(&query);
        }
    }
    walker.await_the_first();
    Ok(())
}

struct Walker<'a> {
    walks: Vec<Walk>,
    /// Count of its object right after a thread's latest arrival.
    arrivals: FixedMap<(u32, u32), u32>,
    strands: &'a mut [Strand],
    objects: &'a mut [Object],
    recorded: Option<&'a mut Recorded>,
    precedences: &'a mut Precedences,
}

impl Walker<'_> {
    fn answer(&mut self, query: &Query) {
        let count = self.walks[query.object as usize].counting;
        self.precedences.follow(query.thread.0, query.position, query.object, count);
        let strand = &mut self.strands[query.thread.index()];
        if let Some(recorded) = &mut self.recorded {
            recorded.follows_count(query.thread.0, query.position, query.object, count);
        }
        match strand.side.get_mut(query.side as usize) {
            Some(side) => *side = u64::from(query.object) << 32 | u64::from(count),
            None => strand.operations[query.position as usize].rank = count,
        }
    }

    /// What waits without a place in the order (a once routine that is found done) waits for the
    /// first count, if the trace has one.
    fn await_the_first(&mut self) {
        for (thread, strand) in self.strands.iter_mut().enumerate() {
            for (position, operation) in strand.operations.iter_mut().enumerate() {
                if operation.code == Code::Await && operation.flags & TICKETED == 0 {
                    let object = operation.object;
                    operation.rank = self.walks[object as usize].counting.min(1);
                    self.precedences.follow(thread as u32, position as u32, object, operation.rank);
                }
            }
        }
    }

    fn step(&mut self, thread: u32, position: u32) {
        let operation = &mut self.strands[thread as usize].operations[position as usize];
        let object = operation.object;
        let walk = &mut self.walks[object as usize];
        if let Some(recorded) = &mut self.recorded {
            recorded.step(thread, position, operation);
        }
        match operation.code {
            Code::Unlock | Code::CondRelease => operation.rank = 0,
            Code::Count => {
                walk.counting += 1;
                self.precedences.count(object, thread, position);
                self.arrivals.insert((object, thread), walk.counting);
                if operation.flags & RESET != 0 {
                    (walk.base, walk.size) = (walk.counting, 0);
                }
            }
            Code::Await => {
                operation.rank = walk.leave(self.arrivals.get(&(object, thread)));
                self.precedences.follow(thread, position, object, operation.rank);
                if let Some(recorded) = &mut self.recorded {
                    recorded.follows_count(thread, position, object, operation.rank);
                }
            }
            Code::SemPost => {
                walk.level += 1;
                self.objects[object as usize].semaphore = true;
            }
            code => {
                operation.rank = walk.competing;
                if code == Code::Ordered {
                    walk.counting += 1;
                    self.precedences.count(object, thread, position);
                }
                if code == Code::SemWait {
                    walk.level -= 1;
                    let object = &mut self.objects[object as usize];
                    object.semaphore = true;
                    object.tokens = object.tokens.max((-walk.level).max(0) as u32);
                }
                self.succeed(object, thread, position);
            }
        }
    }

    /// The next competing operation of an object: the one before it tells who is next.
    fn succeed(&mut self, object: u32, thread: u32, position: u32) {
        let walk = &mut self.walks[object as usize];
        let before = match walk.competing {
            0 => &mut self.objects[object as usize].first,
            _ => {
                let (thread, position) = walk.latest;
                &mut self.strands[thread as usize].operations[position as usize].next
            }
        };
        *before = u16::try_from(thread).unwrap_or(UNKNOWN);
        walk.latest = (thread, position);
        walk.competing += 1;
    }
}

impl Walk {
    /// The count that a departure must see. A thread without an arrival of its own (a once
    /// routine that another ran) waits for everything before it.
    fn leave(&mut self, arrival: Option<&u32>) -> u32 {
        let Some(&arrival) = arrival.filter(|&&arrival| arrival > self.base) else {
            return self.counting;
        };
        if self.size == 0 {
            self.size = self.counting - self.base;
        }
        let rounds = (arrival - self.base).div_ceil(self.size);
        // A cut-off or inconsistent trace may lack arrivals; what it has must be enough.
        (self.base + rounds * self.size).min(self.counting)
    }
}

const EMPTY: u64 = u64::MAX;

/// The slot of each object, numbered densely, and how many there are. Objects with an order of their own
/// have a slot of their own.
fn number_slots(objects: &[Object]) -> (Vec<u32>, usize) {
    let shared = objects.iter().filter(|object| !object.apart);
    let mut used: Vec<usize> = shared.map(|object| order::slot(object.address)).collect();
    used.sort_unstable();
    used.dedup();
    let mut dense = vec![0; order::SLOTS];
    for (number, &slot) in used.iter().enumerate() {
        dense[slot] = number as u32;
    }
    let mut count = used.len();
    let mut number = |object: &Object| {
        if !object.apart {
            return dense[order::slot(object.address)];
        }
        count += 1;
        count as u32 - 1
    };
    let numbers = objects.iter().map(&mut number).collect();
    (numbers, count)
}

/// Where each slot's tickets lie among the cells.
struct Bases {
    /// Per slot: first ticket, first cell.
    slots: Vec<(u64, usize)>,
}

impl Bases {
    fn new(strands: &[Strand], slots: &[u32], used: usize) -> Result<Bases, Error> {
        let mut spans = vec![(u64::MAX, 0); used];
        let mut events = 0u64;
        for operation in strands.iter().flat_map(|strand| ticketed(&strand.operations)) {
            let (first, end) = &mut spans[slots[operation.1.object as usize] as usize];
            *first = (*first).min(u64::from(operation.1.rank));
            *end = (*end).max(u64::from(operation.1.rank) + 1);
            events += 1;
        }
        let span = spans.iter().map(|(first, end): &(u64, u64)| end.saturating_sub(*first)).sum();
        if span > events.saturating_mul(8).saturating_add(1 << 24) {
            return Err(Error::SparseTickets { events, span });
        }
        let mut bases = Vec::with_capacity(used + 1);
        let mut cells = 0;
        for (first, end) in spans {
            bases.push((first, cells as usize));
            cells += end.saturating_sub(first);
        }
        bases.push((0, cells as usize));
        Ok(Bases { slots: bases })
    }

    /// The operations by slot and ticket, as thread and position in one word.
    fn lay_out(
        &self,
        strands: &[Strand],
        slots: &[u32],
        objects: &[Object],
    ) -> Result<Vec<u64>, Error> {
        let mut cells = vec![EMPTY; self.slots.last().map_or(0, |(_, end)| *end)];
        for (thread, strand) in strands.iter().enumerate() {
            for (position, operation) in ticketed(&strand.operations) {
                let (first, base) = self.slots[slots[operation.object as usize] as usize];
                let cell = &mut cells[base + (u64::from(operation.rank) - first) as usize];
                if *cell != EMPTY {
                    return Err(Error::DuplicateTicket {
                        thread: ThreadId(thread as u32),
                        event: EventId(position as u64),
                        object: objects[operation.object as usize].address,
                        ticket: u64::from(operation.rank),
                    });
                }
                *cell = (thread as u64) << 32 | position as u64;
            }
        }
        Ok(cells)
    }

    fn first(&self, slot: u32) -> u64 {
        self.slots[slot as usize].0
    }

    fn range(&self, slot: u32) -> std::ops::Range<usize> {
        self.slots[slot as usize].1..self.slots[slot as usize + 1].1
    }
}

fn ticketed(operations: &[Operation]) -> impl Iterator<Item = (usize, &Operation)> {
    operations.iter().enumerate().filter(|(_, operation)| operation.flags & TICKETED != 0)
}
