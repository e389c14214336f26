//! Events as columns: what a chunk of events looks like before compression.
//!
//! A program repeats itself, and so does its stream of events. Each event is predicted from an
//! earlier one of the chunk, its *template*: the event that followed the last time the two events
//! before had the same call sites. A column of masks says which fields were predicted wrong, and
//! only those have a number in their own columns (the difference from the prediction). What is
//! left in a steady loop is one zero byte, the two times, and sometimes a ticket.
//!
//! Every field is coded exactly and in wrapping arithmetic: the predictions decide how long the
//! body is, never what it says. Encoder and decoder share [`Model`], so they cannot disagree.
//!
//! ```text
//! columns = length:varint * 13  bytes of each column
//! ```

use super::format::{MAX_EVENTS, MAX_PART, MAX_RAW};
use super::varint::{self, Column};
use crate::order::{self, SLOTS, SYSCALL_SLOT};
use crate::{Event, EventKind, NO_TICKET};

const COLUMNS: usize = 13;
const MASK: usize = 0;
const SHAPE: usize = 1;
const RESULT: usize = 2;
const PC: usize = 3;
const SP: usize = 4;
const OBJECT: usize = 5;
const TICKET: usize = 6;
const VALUE: usize = 7;
const AUX: usize = 8;
const BEGIN: usize = 9;
const SPAN: usize = 10;
const OVERHEAD: usize = 11;
const UNRECORDED: usize = 12;

// Bits of a mask, the ones that are set most often in the low seven.
const HAS_TICKET: u64 = 1 << 0;
const HAS_VALUE: u64 = 1 << 1;
const HAS_OVERHEAD: u64 = 1 << 2;
const OBJECT_SHIFT: u32 = 3;
const HAS_AUX: u64 = 1 << 5;
const HAS_RESULT: u64 = 1 << 6;
const HAS_SHAPE: u64 = 1 << 7;
const HAS_PC: u64 = 1 << 8;
const HAS_SP: u64 = 1 << 9;
const HAS_UNRECORDED: u64 = 1 << 10;
const MASK_END: u64 = 1 << 11;

// How an object is written.
const AS_TEMPLATE: u64 = 0;
const AS_STEP: u64 = 1;
const FROM_CACHE: u64 = 2;
const AS_DELTA: u64 = 3;

const CONTEXTS: usize = 1 << 12;
const CACHE: usize = 1 << 12;
/// Slots of a part: short programs use few.
const PART: usize = 1 << 9;
/// Events that are encoded together.
const BLOCK: usize = 64;

/// The most that the columns of a full chunk can take; the payloads must fit beside them.
const MAX_COLUMNS: usize = MAX_EVENTS * (2 + 4 + 12 * 10) + COLUMNS * 10;
const _: () = assert!(MAX_COLUMNS + MAX_PART <= MAX_RAW);

/// What encoder and decoder know from the events so far. Reused from chunk to chunk.
pub(crate) struct Model {
    /// By context: the number of the event that followed, plus one.
    followers: Box<[u32; CONTEXTS]>,
    /// By hash: objects seen.
    objects: Box<[u64; CACHE]>,
    /// By slot, in parts that are made when they are used: the ticket that comes next.
    tickets: [Option<Box<[u64; PART]>>; SLOTS / PART],
    /// Slots to clear for the next chunk.
    touched: Vec<u32>,
}

impl Default for Model {
    fn default() -> Self {
        Model {
            followers: Box::new([0; CONTEXTS]),
            objects: Box::new([0; CACHE]),
            tickets: [const { None }; SLOTS / PART],
            touched: Vec::new(),
        }
    }
}

/// What the first event of a chunk is predicted from.
static NOTHING: Event = Event {
    code: 0,
    flags: 0,
    nr: 0,
    result: 0,
    pc: 0,
    sp: 0,
    object: 0,
    ticket: 0,
    value: 0,
    aux: 0,
    begin: 0,
    end: 0,
    overhead: 0,
    busy: 0,
    unrecorded: 0,
};

/// What is expected of an event before anything of it is known.
struct Expected<'a> {
    events: &'a [Event],
    /// The event before the expected one.
    last: &'a Event,
    template: &'a Event,
    /// The template's number plus one, or 0 if the template is `last`.
    follower: usize,
    context: usize,
}

impl Expected<'_> {
    /// The template's object, moved as far as the objects before the two are apart.
    fn step(&self) -> u64 {
        let at = if self.follower == 0 { self.events.len() } else { self.follower };
        let leader = event_before(self.events, at.saturating_sub(1));
        self.template.object.wrapping_add(self.last.object.wrapping_sub(leader.object))
    }
}

/// The event before number `n`.
#[inline(always)]
fn event_before(events: &[Event], n: usize) -> &Event {
    n.checked_sub(1).map_or(&NOTHING, |n| &events[n])
}

impl Model {
    fn reset(&mut self) {
        self.followers.fill(0);
        self.objects.fill(0);
        for slot in self.touched.drain(..) {
            *Self::of_slot(&mut self.tickets, slot as usize) = 0;
        }
    }

    /// What comes after the events `done`.
    #[inline(always)]
    fn expect<'a>(&self, done: &'a [Event]) -> Expected<'a> {
        let last = event_before(done, done.len());
        let before = event_before(done, done.len().saturating_sub(1));
        let key = last.pc.rotate_left(u32::from(last.code)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ before.pc.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        let context = (key >> 52) as usize % CONTEXTS;
        let follower = self.followers[context] as usize;
        let template = if follower == 0 { last } else { &done[follower - 1] };
        Expected { events: done, last, template, follower, context }
    }

    /// The slot that the event's ticket is predicted from. A prediction only: it may differ from
    /// the event's real slot.
    #[inline]
    fn slot(event: &Event) -> Option<usize> {
        const SYSCALL: u8 = EventKind::Syscall as u8;
        if event.flags & NO_TICKET != 0 || event.code > SYSCALL {
            None
        } else if event.code == SYSCALL {
            Some(SYSCALL_SLOT)
        } else {
            Some(order::slot(event.object))
        }
    }

    #[inline]
    fn ticket(&self, slot: Option<usize>) -> u64 {
        let ticket = |slot: usize| self.tickets[slot / PART].as_ref().map(|part| part[slot % PART]);
        slot.and_then(ticket).unwrap_or(0)
    }

    /// A system call's `aux` follows its ticket; elsewhere it is the template's.
    #[inline]
    fn aux(event: &Event, template: &Event) -> u64 {
        let offset = if event.code == EventKind::Syscall as u8 {
            event.ticket.wrapping_sub(template.ticket)
        } else {
            0
        };
        template.aux.wrapping_add(offset)
    }

    #[inline]
    fn cache_index(object: u64) -> usize {
        (object.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % CACHE
    }

    /// Learns the event that came, number `n` of the chunk.
    #[inline(always)]
    fn learn(&mut self, event: &Event, n: usize, context: usize) {
        self.followers[context] = n as u32 + 1;
        self.objects[Self::cache_index(event.object)] = event.object;
    }

    /// Learns its ticket.
    #[inline(always)]
    fn learn_ticket(&mut self, event: &Event, slot: Option<usize>) {
        if let Some(slot) = slot {
            let ticket = Self::of_slot(&mut self.tickets, slot);
            if *ticket == 0 {
                self.touched.push(slot as u32);
            }
            *ticket = event.ticket.wrapping_add(1);
        }
    }

    #[inline]
    fn of_slot(tickets: &mut [Option<Box<[u64; PART]>>], slot: usize) -> &mut u64 {
        &mut tickets[slot / PART].get_or_insert_with(|| Box::new([0; PART]))[slot % PART]
    }
}

/// Columns under construction, reused from chunk to chunk.
#[derive(Default)]
pub(crate) struct Encoder {
    model: Model,
    columns: [Vec<u8>; COLUMNS],
}

impl Encoder {
    /// Appends the columns of `events` to `out`, and returns the flags that any of the events has. `Err` is the
    /// code of an event that is no kind's: readers would refuse it.
    pub(crate) fn encode(&mut self, events: &[Event], out: &mut Vec<u8>) -> Result<u8, u8> {
        assert!(events.len() <= MAX_EVENTS, "the writer splits events into chunks");
        self.model.reset();
        self.columns.iter_mut().for_each(Vec::clear);
        let mut flags = 0;
        for first in (0..events.len()).step_by(BLOCK) {
            flags |= self.block(events, first)?;
        }
        for column in &self.columns {
            varint::put(out, column.len() as u64);
        }
        for column in &self.columns {
            out.extend_from_slice(column);
        }
        Ok(flags)
    }

    /// Encodes the events from `first` on, at most [`BLOCK`] of them. Few columns at a time: what
    /// a loop needs then stays in registers, and the events stay in the nearest cache.
    fn block(&mut self, events: &[Event], first: usize) -> Result<u8, u8> {
        let block = &events[first..events.len().min(first + BLOCK)];
        let mut masks = [0; BLOCK];
        let mut numbers = [0; BLOCK];
        let mut flags = 0;
        for (n, (event, mask)) in block.iter().zip(&mut masks).enumerate() {
            if EventKind::from_code(event.code).is_none() {
                return Err(event.code);
            }
            flags |= event.flags;
            let expected = self.model.expect(&events[..first + n]);
            // In the common case one branch serves all fields that repeat themselves.
            if differences(event, expected.template) != 0 {
                *mask = self.repeated(&expected, event);
            }
            self.model.learn(event, first + n, expected.context);
        }
        let mut surprises = 0;
        for (event, mask) in block.iter().zip(&mut masks) {
            let slot = Model::slot(event);
            let ticket = self.model.ticket(slot);
            numbers[surprises] = varint::zigzag(ticket, event.ticket);
            if event.ticket != ticket {
                *mask |= HAS_TICKET;
                surprises += 1;
            }
            self.model.learn_ticket(event, slot);
        }
        varint::put_all(&mut self.columns[TICKET], &numbers[..surprises]);
        let mut end = first.checked_sub(1).map_or(0, |last| events[last].end);
        for (event, number) in block.iter().zip(&mut numbers) {
            *number = event.begin.wrapping_sub(end);
            end = event.end;
        }
        varint::put_all(&mut self.columns[BEGIN], &numbers[..block.len()]);
        for (event, number) in block.iter().zip(&mut numbers) {
            *number = event.end.wrapping_sub(event.begin);
        }
        varint::put_all(&mut self.columns[SPAN], &numbers[..block.len()]);
        varint::put_all(&mut self.columns[MASK], &masks[..block.len()]);
        Ok(flags)
    }

    /// Writes those of the fields that mostly repeat themselves which do not.
    #[inline(never)]
    fn repeated(&mut self, expected: &Expected<'_>, event: &Event) -> u64 {
        let template = expected.template;
        let columns = &mut self.columns;
        let mut mask = 0;
        if shape(event) != shape(template) {
            mask |= HAS_SHAPE;
            columns[SHAPE].extend_from_slice(&shape(event).to_le_bytes());
        }
        let mut field = |column: usize, bit: u64, expected: u64, value: u64| {
            if value != expected {
                mask |= bit;
                varint::put_delta(&mut columns[column], expected, value);
            }
        };
        field(RESULT, HAS_RESULT, template.result as u64, event.result as u64);
        field(PC, HAS_PC, template.pc, event.pc);
        field(SP, HAS_SP, template.sp, event.sp);
        field(VALUE, HAS_VALUE, template.value, event.value);
        field(AUX, HAS_AUX, Model::aux(event, template), event.aux);
        field(UNRECORDED, HAS_UNRECORDED, template.unrecorded, event.unrecorded);
        if event.overhead | event.busy != 0 {
            mask |= HAS_OVERHEAD;
            varint::put(&mut columns[OVERHEAD], event.overhead);
            varint::put(&mut columns[OVERHEAD], event.busy);
        }
        mask | self.object(expected, event.object) << OBJECT_SHIFT
    }

    #[inline]
    fn object(&mut self, expected: &Expected<'_>, object: u64) -> u64 {
        let out = &mut self.columns[OBJECT];
        let index = Model::cache_index(object);
        if object == expected.template.object {
            AS_TEMPLATE
        } else if object == expected.step() {
            AS_STEP
        } else if self.model.objects[index] == object {
            varint::put(out, index as u64);
            FROM_CACHE
        } else {
            varint::put_delta(out, expected.template.object, object);
            AS_DELTA
        }
    }
}

/// The kind, the flags and the number of an event in one word, lowest byte first.
#[inline]
fn shape(event: &Event) -> u32 {
    u32::from(event.code) | u32::from(event.flags) << 8 | u32::from(event.nr) << 16
}

/// Zero if the event has no field of its own but the ticket and the times.
#[inline]
fn differences(event: &Event, template: &Event) -> u64 {
    u64::from(shape(event) ^ shape(template))
        | u64::from((event.result ^ template.result).cast_unsigned())
        | (event.pc ^ template.pc)
        | (event.sp ^ template.sp)
        | (event.object ^ template.object)
        | (event.value ^ template.value)
        | (event.aux ^ Model::aux(event, template))
        | event.overhead
        | event.busy
        | (event.unrecorded ^ template.unrecorded)
}

/// Decodes chunks; reused from chunk to chunk.
#[derive(Default)]
pub(crate) struct Decoder {
    model: Model,
}

impl Decoder {
    /// Decodes `count` events from the front of `body` into `out` (cleared first) and returns
    /// what follows the columns, the payloads. `Err` is a phrase for a message.
    pub(crate) fn decode<'a>(
        &mut self,
        body: &'a [u8],
        count: usize,
        out: &mut Vec<Event>,
    ) -> Result<&'a [u8], &'static str> {
        const CUT: &str = "its columns are shorter than it says";
        out.clear();
        self.model.reset();
        let mut rest = Column::new(body);
        let mut lengths = [0; COLUMNS];
        for length in &mut lengths {
            *length = usize::try_from(rest.next().ok_or(CUT)?).map_err(|_| CUT)?;
        }
        let mut columns = [Column::default(); COLUMNS];
        for (column, length) in columns.iter_mut().zip(lengths) {
            *column = rest.split(length).ok_or(CUT)?;
        }
        // Every event has a byte of mask, so the count is checked before memory is taken for it.
        if count > MAX_EVENTS || count > lengths[MASK] {
            return Err("it counts more events than it holds");
        }
        out.reserve_exact(count);
        for _ in 0..count {
            let event = self.next(&mut columns, out).ok_or(CUT)?;
            if EventKind::from_code(event.code).is_none() {
                return Err("it holds an event of an unknown kind");
            }
            out.push(event);
        }
        if columns.iter().any(|c| !c.rest().is_empty()) {
            return Err("its columns are longer than it says");
        }
        Ok(rest.rest())
    }

    #[inline]
    fn next(&mut self, columns: &mut [Column<'_>; COLUMNS], done: &[Event]) -> Option<Event> {
        let expected = self.model.expect(done);
        let template = expected.template;
        let mask = columns[MASK].next().filter(|&m| m < MASK_END)?;
        let mut event = *template;
        if mask & HAS_SHAPE != 0 {
            let [code, flags, nr @ ..] = columns[SHAPE].next_word()?;
            (event.code, event.flags, event.nr) = (code, flags, u16::from_le_bytes(nr));
        }
        let mut field = |column: usize, bit: u64, expected: u64| {
            if mask & bit == 0 { Some(expected) } else { columns[column].next_delta(expected) }
        };
        event.result = field(RESULT, HAS_RESULT, template.result as u64)? as i32;
        event.pc = field(PC, HAS_PC, template.pc)?;
        event.sp = field(SP, HAS_SP, template.sp)?;
        event.value = field(VALUE, HAS_VALUE, template.value)?;
        event.unrecorded = field(UNRECORDED, HAS_UNRECORDED, template.unrecorded)?;
        (event.overhead, event.busy) = match mask & HAS_OVERHEAD {
            0 => (0, 0),
            _ => (columns[OVERHEAD].next()?, columns[OVERHEAD].next()?),
        };
        event.object = match mask >> OBJECT_SHIFT & 3 {
            AS_TEMPLATE => template.object,
            AS_STEP => expected.step(),
            FROM_CACHE => *self.model.objects.get(columns[OBJECT].next()? as usize)?,
            _ => columns[OBJECT].next_delta(template.object)?,
        };
        let slot = Model::slot(&event);
        let mut field = |column: usize, bit: u64, expected: u64| {
            if mask & bit == 0 { Some(expected) } else { columns[column].next_delta(expected) }
        };
        event.ticket = field(TICKET, HAS_TICKET, self.model.ticket(slot))?;
        event.aux = field(AUX, HAS_AUX, Model::aux(&event, template))?;
        event.begin = columns[BEGIN].next()?.wrapping_add(expected.last.end);
        event.end = columns[SPAN].next()?.wrapping_add(event.begin);
        self.model.learn(&event, done.len(), expected.context);
        self.model.learn_ticket(&event, slot);
        Some(event)
    }
}
