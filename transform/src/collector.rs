//! One thread's critical sections, collected while the thread is replayed.
//!
//! Collectors of different threads share nothing, so they run on as many host threads as the
//! replay does; [`crate::Sections::merge`] brings them together. Events and batches of accesses
//! come in program order, each event after the accesses before it.
//!
//! # What a critical section is
//! From a lock's acquisition to its release by the same thread, nested ones too: an access counts
//! for every section that is open; what an outer section touches outside of each inner one is kept
//! too ([`crate::guards`]). Inner acquisitions of a recursive mutex (or of a read lock
//! that is held) belong to the outer one. A lock that was tried and not had is no section. A wait
//! on a condition variable ends one section and begins another ([`Raw::before_wait`],
//! [`Raw::after_wait`]). Barriers are
//! no locks; semaphores and atomic words are locks if all that happened to them says so ([`crate::Made`]). A
//! section that is open when the stream ends ends with the stream, which is how a thread that is
//! cancelled or killed leaves it.
//!
//! # What an access is
//! Whatever touches the program's memory: accesses that the observer reports, ordered events
//! (atomic instructions, watched loads and stores, which are reported as events and not as
//! accesses), and what the kernel reads and writes for a system call. The library's functions that
//! are one event touch nothing but their objects.
//!
//! # Cost
//! An access costs a shadow touch, and inside a critical section a look into a small filter that
//! drops what the innermost open section has already seen, its touch included. The log of one
//! section is compacted when it is long, so memory is bounded by the distinct bytes of the open
//! sections.

use crate::calls::{Calls, Taken};
use crate::effects::{
    Bitwise, Deed, EffectTable, EffectsId, Operand, Update, Use, Uses, Varied, effects,
};
use crate::intervals::{Interval, normalise};
use crate::made::Role;
use crate::sets::{SetId, SetTable};
use crate::shadow::Shadow;
use refrain_trace::fixed::{FixedMap, FixedSet};
use refrain_trace::{Access, Event, EventId, EventKind, ThreadId};
use std::ops::Range;
use std::sync::Arc;

/// `EOWNERDEAD`: a robust mutex was granted, its last owner having died.
const OWNER_DEAD: i32 = 130;
/// Entries of the filter, at first and at most. Both are powers of two.
const FILTER: usize = 512;
const MOST_FILTER: usize = 1 << 15;
/// Of an outer section with more sections inside than this, none is looked at as the one that holds
/// all that matters ([`crate::guards`]).
const MOST_INNER: usize = 8;
/// Accesses logged before the log is compacted for the first time.
const LONG: usize = 1 << 14;
/// How far below its first stack pointer a thread's own region reaches, and how far above: the
/// default limit of a stack; thread-local storage and the thread's descriptor.
const STACK_BELOW: u64 = 8 << 20;
const STACK_ABOVE: u64 = 16 << 10;

/// A critical section before the threads are put together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw {
    pub(crate) lock: u64,
    pub(crate) ticket: u64,
    /// The release's ticket.
    pub(crate) until: u64,
    pub(crate) acquire: u32,
    pub(crate) release: u32,
    pub(crate) acquire_pc: u64,
    pub(crate) release_pc: u64,
    /// When the thread came to the lock, when it had it, and when it came to release it.
    pub(crate) begin: u64,
    pub(crate) had: u64,
    pub(crate) end: u64,
    pub(crate) reads: SetId,
    pub(crate) writes: SetId,
    pub(crate) effects: EffectsId,
    pub(crate) shared: bool,
    pub(crate) after_wait: bool,
    pub(crate) before_wait: bool,
    /// The stream ended before its release.
    pub(crate) unfinished: bool,
    /// The sections inside, as a range of [`Collector::inner`].
    pub(crate) inner: (u32, u32),
}

/// A section inside of another one, of a lock that was acquired later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inner {
    pub(crate) lock: u64,
    /// What the outer section touched outside of the inner one.
    pub(crate) outside: SetId,
}

/// What a thread logged inside critical sections: bytes and the kind of access.
#[derive(Clone, Copy)]
struct Logged {
    bytes: Interval,
    kind: u16,
    /// What it does, by its number in [`Collector::deeds`].
    deed: u32,
}

/// Whatever an access does that nothing is known of.
const ANYTHING: u32 = 0;

/// What lets go of a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Release {
    /// The library's function, which may leave the lock to an outer section.
    Unlock,
    /// A lock of the program's own is free again.
    Made,
    /// A wait on a condition variable, whatever the depth.
    Wait,
}

/// A lock is had.
struct Taking {
    lock: u64,
    ticket: u64,
    pc: u64,
    begin: u64,
    had: u64,
    shared: bool,
    after_wait: bool,
}

struct Open {
    raw: Raw,
    depth: u32,
    /// Where its accesses begin in the log.
    from: usize,
    /// How few calls deep the thread has been since.
    frames: usize,
    taken: Taken,
    /// Sections that began inside: lock, and where its accesses lie in the log (up to `OPEN` as
    /// long as it is on). `None` if there were too many.
    inner: Option<Vec<(u64, Range<usize>)>>,
}

/// The end of an inner section that is still on.
const OPEN: usize = usize::MAX;

/// Watches one thread of a replay.
pub struct Collector {
    pub(crate) thread: ThreadId,
    pub(crate) shadow: Shadow,
    pub(crate) sets: SetTable,
    pub(crate) sections: Vec<Raw>,
    /// Objects that synchronize, with their sizes: not data.
    pub(crate) objects: FixedMap<u64, u64>,
    /// Locks that the thread released without holding them, and the tickets.
    pub(crate) strays: Vec<(u64, u64)>,
    /// Sections inside of others.
    pub(crate) inner: Vec<Inner>,
    /// Pairs of locks of which the second was acquired while the first was held.
    pub(crate) orders: FixedSet<(u64, u64)>,
    /// What sections do to their bytes.
    pub(crate) effects: EffectTable,
    pub(crate) varied: Varied,
    /// What is known of instructions.
    uses: Arc<Uses>,
    /// Values of registers, by the instructions that they were logged before.
    values: FixedMap<u32, u64>,
    /// Loads that have begun an update: what they have loaded, and in which section they were.
    begun: FixedMap<u32, (Interval, u64)>,
    /// Deeds, the first of which stands for [`ANYTHING`], and their numbers.
    deeds: Vec<Deed>,
    deed_numbers: FixedMap<Deed, u32>,
    pub(crate) acquisitions: u64,
    pub(crate) events: u64,
    own: Option<Range<u64>>,
    calls: Calls,
    /// What events are for locks of the program's own, those to come.
    roles: std::iter::Peekable<std::vec::IntoIter<(u32, Role)>>,
    /// Events at which it is asked where the thread is, those to come, and where it was.
    asked: std::iter::Peekable<std::vec::IntoIter<u32>>,
    whereabouts: Vec<(u32, Vec<u64>)>,
    open: Vec<Open>,
    log: Vec<Logged>,
    /// Accesses logged, and sections begun or ended, so far.
    count: u64,
    /// What that was when the innermost section began, or the last one inside of it ended.
    innermost: u64,
    limit: usize,
    /// The log has been compacted since the outermost section began.
    long: bool,
    /// Of some accesses, what [`Self::count`] was when they were logged last.
    filter: Box<[(u64, u64, u64)]>,
    scratch: Vec<Interval>,
}

impl Collector {
    /// A collector for one thread. `own` is the thread's stack with its thread-local storage;
    /// without it, 8 MiB below the stack pointer of the thread's first event are taken for it.
    pub fn new(thread: ThreadId, own: Option<Range<u64>>) -> Collector {
        Collector {
            thread,
            shadow: Shadow::new(),
            sets: SetTable::default(),
            sections: Vec::new(),
            objects: FixedMap::default(),
            strays: Vec::new(),
            inner: Vec::new(),
            orders: FixedSet::default(),
            effects: EffectTable::default(),
            varied: Varied::default(),
            uses: Arc::default(),
            values: FixedMap::default(),
            begun: FixedMap::default(),
            deeds: vec![Deed::Look(u64::MAX)],
            deed_numbers: FixedMap::default(),
            acquisitions: 0,
            events: 0,
            own,
            calls: Calls::default(),
            roles: Vec::new().into_iter().peekable(),
            asked: Vec::new().into_iter().peekable(),
            whereabouts: Vec::new(),
            open: Vec::new(),
            log: Vec::new(),
            count: 0,
            innermost: 0,
            limit: LONG,
            long: false,
            filter: empty_filter(FILTER),
            scratch: Vec::new(),
        }
    }

    /// Tells what the thread's events are for locks of the program's own, ascending, and where code
    /// lies that is nobody's to change: libraries of the system, ascending.
    pub fn knowing(mut self, roles: Vec<(u32, Role)>, foreign: Arc<[Range<u64>]>) -> Collector {
        self.roles = roles.into_iter().peekable();
        self.calls.foreign = foreign;
        self
    }

    /// Asks where the thread is at these events, ascending.
    pub fn asked_at(self, events: Vec<u32>) -> Collector {
        Collector { asked: events.into_iter().peekable(), ..self }
    }

    /// Where the thread was at each event that was asked about: instructions and the calls around them,
    /// from the inside out, without libraries of the system.
    pub fn whereabouts(&self) -> impl Iterator<Item = ((ThreadId, u32), Vec<u64>)> {
        self.whereabouts.iter().map(|(event, at)| ((self.thread, *event), at.clone()))
    }

    /// Tells what is known of what instructions do with what they access.
    pub fn with_uses(self, uses: Arc<Uses>) -> Collector {
        Collector { uses, ..self }
    }

    /// Takes the accesses since the last call, and the calls and returns among them.
    pub fn accesses(&mut self, batch: &[Access]) {
        for access in batch {
            match access.kind {
                Access::CALL => self.calls.enter(access.pc),
                Access::RETURN => {
                    let depth = self.calls.leave(access.address);
                    for open in &mut self.open {
                        open.frames = open.frames.min(depth);
                    }
                }
                Access::VALUE => {
                    if !self.open.is_empty() && !self.long {
                        self.values.insert(access.pc, access.address);
                    }
                }
                _ if self.open.is_empty() => self.shadow.touch(access.address, access.size),
                _ => self.log(access),
            }
        }
        if self.log.len() > self.limit {
            self.compact();
        }
    }

    #[inline]
    fn log(&mut self, access: &Access) {
        let kind = access.kind & (Access::READ | Access::WRITE);
        let unknown = self.long || self.uses.uses.is_empty();
        let deed = if unknown { ANYTHING } else { self.deed(access) };
        let shape = u64::from(deed) << 32 | u64::from(access.size) << 2 | u64::from(kind);
        let hash = (access.address ^ access.address >> 9 ^ u64::from(kind) << 4) as usize;
        let way = hash & (self.filter.len() - 1);
        let entry = &mut self.filter[way];
        if (entry.0, entry.1) == (access.address, shape) && entry.2 > self.innermost {
            return;
        }
        self.shadow.touch(access.address, access.size);
        self.count += 1;
        *entry = (access.address, shape, self.count);
        let bytes = Interval::new(access.address, u64::from(access.size));
        self.log.push(Logged { bytes, kind, deed });
    }

    /// What an access does, as far as it is known.
    fn deed(&mut self, access: &Access) -> u32 {
        let uses = self.uses.clone();
        let Some(used) = uses.uses.get(&access.pc) else { return ANYTHING };
        let bytes = Interval::new(access.address, u64::from(access.size));
        let wide = access.size > 8;
        match used {
            Use::Load(looks) if wide && !matches!(looks, 0 | &u64::MAX) => ANYTHING,
            Use::Both(..) | Use::Value(_) if wide => ANYTHING,
            Use::Load(looks) => {
                self.begun.insert(access.pc, (bytes, self.innermost));
                if *looks == u64::MAX { ANYTHING } else { self.number(Deed::Look(*looks)) }
            }
            Use::Both(u64::MAX, _) => ANYTHING,
            Use::Both(looks, update) => {
                let deed = self.update(access, update);
                if *looks != 0 {
                    let (kind, deed) = (Access::READ, self.number(Deed::Look(*looks)));
                    self.log.push(Logged { bytes, kind, deed });
                }
                deed
            }
            Use::Store(loads) => {
                let mut updates = Vec::new();
                for (load, update) in loads {
                    match self.begun.remove(load) {
                        Some(begun) if begun == (bytes, self.innermost) => updates.push(update),
                        // What was loaded elsewhere has an effect here.
                        Some((bytes, _)) => {
                            let (kind, deed) = (Access::READ, ANYTHING);
                            self.log.push(Logged { bytes, kind, deed });
                        }
                        None => {}
                    }
                }
                match updates[..] {
                    [update] => self.update(access, update),
                    _ => ANYTHING,
                }
            }
            Use::Value(operand) => match self.value(operand) {
                Some(value) if !self.varied.is(access.pc) => {
                    let value = value & u64::MAX >> (64 - 8 * u32::from(access.size).max(1));
                    self.varied.note(access.pc, value);
                    self.number(Deed::Value(value, access.pc))
                }
                _ => ANYTHING,
            },
        }
    }

    fn update(&mut self, access: &Access, update: &Update) -> u32 {
        let pc = access.pc;
        let steps = match update {
            Update::Add if access.size <= 8 => {
                return self.number(Deed::Add(access.size as u8));
            }
            Update::AddEach(size) => return self.number(Deed::Add(*size)),
            Update::Bits(steps) if access.size <= 8 => steps,
            _ => return ANYTHING,
        };
        let (mut by, mut mask) = (None, 0);
        for (how, operand) in steps {
            let Some(operand) = self.value(operand) else { return ANYTHING };
            mask |= if *how == Bitwise::And { !operand } else { operand };
            by = match by {
                None => Some(*how),
                Some(same) if same == *how => Some(same),
                Some(_) => Some(Bitwise::Several),
            };
        }
        let Some(by) = by else { return ANYTHING };
        self.varied.note(pc, mask);
        let mask = if self.varied.is(pc) { u64::MAX } else { mask };
        self.number(Deed::Bits(by, mask, pc))
    }

    fn value(&self, operand: &Operand) -> Option<u64> {
        match operand {
            Operand::Constant(value) => Some(*value),
            Operand::Register(pc) => self.values.get(pc).copied(),
        }
    }

    fn number(&mut self, deed: Deed) -> u32 {
        let fresh = self.deeds.len() as u32;
        let number = *self.deed_numbers.entry(deed).or_insert(fresh);
        if number == fresh {
            self.deeds.push(deed);
        }
        number
    }

    /// Whether accesses are wanted until the next event that repeat what the thread has touched
    /// before. Outside of critical sections they change nothing.
    pub fn wants_repeats(&self) -> bool {
        !self.open.is_empty()
    }

    /// Takes what the kernel read and wrote in the program's memory for the system call whose event
    /// comes next.
    pub fn kernel(&mut self, reads: &[Range<u64>], writes: &[Range<u64>]) {
        let kinds = [(reads, Access::READ), (writes, Access::WRITE)];
        for (ranges, kind) in kinds {
            for range in ranges.iter().filter(|range| range.start < range.end) {
                self.shadow.touch_range(range.clone());
                if !self.open.is_empty() {
                    let bytes = Interval { start: range.start, end: range.end };
                    self.log.push(Logged { bytes, kind, deed: ANYTHING });
                }
            }
        }
    }

    /// Takes the access that is part of an event, or of an instruction that needed none.
    pub fn own_access(&mut self, event: &Event) {
        let kind = match event.kind() {
            EventKind::Atomic => Access::ATOMIC,
            EventKind::SyncLoad => Access::READ,
            EventKind::SyncStore => Access::WRITE,
            _ => return,
        };
        self.accesses(&[Access {
            address: event.object,
            size: event.nr,
            kind,
            pc: u32::try_from(event.pc).unwrap_or(0),
        }]);
    }

    /// Takes the next event. All accesses before it have been taken.
    pub fn event(&mut self, id: EventId, event: &Event) {
        use EventKind::*;
        self.events += 1;
        if self.own.is_none() && event.sp != 0 {
            let sp = event.sp & !4095;
            self.own = Some(sp.saturating_sub(STACK_BELOW)..sp.saturating_add(STACK_ABOVE));
        }
        let kind = event.kind();
        self.own_access(event);
        if is_call(kind) {
            // The function that is one event does not return by itself.
            self.calls.leave(event.pc);
        }
        let now = u32::try_from(id.0).unwrap_or(u32::MAX);
        while let Some(asked) = self.asked.next_if(|asked| *asked <= now) {
            self.whereabouts.push((asked, self.calls.outwards(event.pc)));
        }
        while let Some((_, role)) = self.roles.next_if(|(event, _)| *event <= now) {
            self.play(now, event, role);
        }
        self.note_object(kind, event);
        let granted = event.result == 0 || event.result == OWNER_DEAD;
        match kind {
            MutexLock | MutexTryLock | MutexTimedLock | SpinLock | SpinTryLock | WriteLock
            | WriteTryLock | WriteTimedLock
                if granted =>
            {
                self.acquire_by(id, event, false, false);
            }
            ReadLock | ReadTryLock | ReadTimedLock if granted => {
                self.acquire_by(id, event, true, false);
            }
            CondWaitEnd => self.acquire_by(id, event, false, true),
            MutexUnlock | SpinUnlock | RwUnlock if granted => {
                self.release_by(id, event, Release::Unlock);
            }
            CondWaitBegin => self.release_by(id, event, Release::Wait),
            _ => {}
        }
        // Not those that it has ended: the call may have been the last thing that their function
        // did, and in its place on the stack.
        for open in &mut self.open {
            open.frames = open.frames.min(self.calls.depth());
        }
    }

    /// The thread has no more events.
    pub fn finish(&mut self) {
        let last = u32::try_from(self.events.saturating_sub(1)).unwrap_or(u32::MAX);
        while let Some(open) = self.open.last() {
            let (pc, end) = (open.raw.acquire_pc, open.raw.begin);
            self.close(self.open.len() - 1, last, pc, end);
            if let Some(raw) = self.sections.last_mut() {
                raw.unfinished = true;
            }
        }
    }

    pub(crate) fn own(&self) -> Range<u64> {
        self.own.clone().unwrap_or(0..0)
    }

    fn note_object(&mut self, kind: EventKind, event: &Event) {
        use EventKind::*;
        let size = match kind {
            MutexLock | MutexTryLock | MutexTimedLock | MutexUnlock | CondWaitBegin => 40,
            ReadLock | ReadTryLock | WriteLock | WriteTryLock | RwUnlock => 56,
            ReadTimedLock | WriteTimedLock => 56,
            SpinLock | SpinTryLock | SpinUnlock | OnceRun | OnceDone => 4,
            CondSignal | CondBroadcast => 48,
            BarrierArrive | SemWait | SemTryWait | SemTimedWait | SemPost => 32,
            _ => return,
        };
        self.objects.insert(event.object, size);
        if kind == CondWaitBegin {
            self.objects.insert(event.value, 48);
        }
    }

    /// What an event is for a lock of the program's own.
    fn play(&mut self, now: u32, event: &Event, role: Role) {
        // Within the instruction, where other events have the address behind a call.
        let pc = if is_call(event.kind()) { event.pc } else { event.pc + 1 };
        match role {
            Role::Acquire { lock, order, shared, begin, .. } => {
                let had = event.end;
                let (ticket, after_wait) = (order, false);
                let taking = Taking { lock, ticket, pc, begin, had, shared, after_wait };
                self.acquire(now, taking);
            }
            Role::Release { lock, order, .. } => {
                self.release(now, (lock, order, pc, event.begin), Release::Made)
            }
            Role::Part(_) => {}
        }
    }

    fn acquire_by(&mut self, id: EventId, event: &Event, shared: bool, after_wait: bool) {
        let Event { object: lock, ticket, pc, begin, end: had, .. } = *event;
        let taking = Taking { lock, ticket, pc, begin, had, shared, after_wait };
        self.acquire(u32::try_from(id.0).unwrap_or(u32::MAX), taking);
    }

    fn release_by(&mut self, id: EventId, event: &Event, by: Release) {
        let giving = (event.object, event.ticket, event.pc, event.begin);
        self.release(u32::try_from(id.0).unwrap_or(u32::MAX), giving, by);
    }

    fn acquire(&mut self, now: u32, taking: Taking) {
        self.acquisitions += 1;
        if let Some(open) = self.open.iter_mut().find(|open| open.raw.lock == taking.lock) {
            open.depth += 1;
            return;
        }
        let from = self.log.len();
        self.begin_innermost();
        for outer in &mut self.open {
            self.orders.insert((outer.raw.lock, taking.lock));
            let inner = outer.inner.as_mut().filter(|inner| inner.len() < MOST_INNER);
            match inner {
                Some(inner) => inner.push((taking.lock, from..OPEN)),
                None => outer.inner = None,
            }
        }
        let Taking { lock, ticket, pc, begin, had, shared, after_wait } = taking;
        let raw = Raw {
            lock,
            ticket,
            until: u64::MAX,
            acquire: now,
            release: 0,
            acquire_pc: pc,
            release_pc: 0,
            begin,
            had,
            end: 0,
            reads: SetId::EMPTY,
            writes: SetId::EMPTY,
            effects: EffectsId::default(),
            shared,
            after_wait,
            before_wait: false,
            unfinished: false,
            inner: (0, 0),
        };
        let (frames, taken) = (self.calls.depth(), self.calls.remember());
        self.open.push(Open { raw, depth: 1, from, frames, taken, inner: Some(Vec::new()) });
    }

    fn release(&mut self, now: u32, (lock, ticket, pc, at): (u64, u64, u64, u64), by: Release) {
        let Some(index) = self.open.iter().position(|open| open.raw.lock == lock) else {
            self.strays.push((lock, ticket));
            return;
        };
        self.open[index].depth -= 1;
        if by != Release::Unlock || self.open[index].depth == 0 {
            self.open[index].raw.until = ticket;
            self.open[index].raw.before_wait = by == Release::Wait;
            self.close(index, now, pc, at);
        }
    }

    fn close(&mut self, index: usize, release: u32, pc: u64, end: u64) {
        let Open { mut raw, from, frames, taken, inner, .. } = self.open.remove(index);
        (raw.release, raw.end) = (release, end);
        (raw.acquire_pc, raw.release_pc) = self.calls.sites(&taken, frames, (raw.acquire_pc, pc));
        raw.reads = self.set(from, Access::READ);
        raw.writes = self.set(from, Access::WRITE);
        raw.effects = self.effects_from(from);
        let first = self.inner.len() as u32;
        for (lock, within) in inner.unwrap_or_default() {
            let outside = self.set_outside(from, &within);
            self.inner.push(Inner { lock, outside });
        }
        raw.inner = (first, self.inner.len() as u32);
        self.sections.push(raw);
        for outer in &mut self.open[..index] {
            let inner = outer.inner.iter_mut().flatten();
            for (_, within) in inner.filter(|(lock, to)| *lock == raw.lock && to.end == OPEN) {
                within.end = self.log.len();
            }
        }
        if self.open.is_empty() {
            self.log.clear();
            (self.limit, self.long) = (LONG, false);
            if self.filter.len() > FILTER {
                self.filter = empty_filter(FILTER);
            }
        }
        // What follows lies outside of this section, even if the section has seen it.
        self.begin_innermost();
    }

    /// What the filter has seen so far counts no more.
    fn begin_innermost(&mut self) {
        self.count += 1;
        self.innermost = self.count;
    }

    /// What was touched from `from` on, but for what was touched `within`.
    fn set_outside(&mut self, from: usize, within: &Range<usize>) -> SetId {
        self.scratch.clear();
        let end = within.end.min(self.log.len());
        let outside = self.log[from..within.start].iter().chain(&self.log[end..]);
        self.scratch.extend(outside.map(|logged| logged.bytes));
        normalise(&mut self.scratch);
        self.sets.intern(&self.scratch)
    }

    fn effects_from(&mut self, from: usize) -> EffectsId {
        let log = &self.log[from..];
        let is_known = |logged: &&Logged| logged.deed != ANYTHING;
        let known: Vec<(Interval, Deed)> = log
            .iter()
            .filter(is_known)
            .map(|logged| (logged.bytes, self.deeds[logged.deed as usize]))
            .collect();
        if known.is_empty() {
            return EffectsId::default();
        }
        let others = log.iter().filter(|logged| logged.deed == ANYTHING);
        let list = effects(&known, others.map(|logged| logged.bytes));
        self.effects.intern(list)
    }

    fn set(&mut self, from: usize, kind: u16) -> SetId {
        self.scratch.clear();
        let logged = self.log[from..].iter().filter(|logged| logged.kind & kind != 0);
        self.scratch.extend(logged.map(|logged| logged.bytes));
        normalise(&mut self.scratch);
        self.sets.intern(&self.scratch)
    }

    /// Drops repetitions from the log, between the beginnings and ends of sections. A section that
    /// touches so much does more than update a few words: what it does to them is not kept.
    fn compact(&mut self) {
        self.long = true;
        let old = std::mem::take(&mut self.log);
        let inner = |open: &Open| open.inner.iter().flatten().cloned().collect::<Vec<_>>();
        let ends =
            |open| inner(open).into_iter().flat_map(|(_, within)| [within.start, within.end]);
        // What no open section covers is not needed any more.
        let mut cuts: Vec<usize> =
            self.open.iter().flat_map(|open| ends(open).chain([open.from])).collect();
        cuts.retain(|cut| *cut != OPEN);
        cuts.sort_unstable();
        cuts.dedup();
        let mut moved = Vec::with_capacity(cuts.len());
        for (index, &start) in cuts.iter().enumerate() {
            let end = cuts.get(index + 1).copied().unwrap_or(old.len());
            moved.push(self.log.len());
            for kind in [Access::READ, Access::WRITE] {
                self.scratch.clear();
                let logged = old[start..end].iter().filter(|logged| logged.kind & kind != 0);
                self.scratch.extend(logged.map(|logged| logged.bytes));
                normalise(&mut self.scratch);
                let bytes = self.scratch.iter();
                self.log.extend(bytes.map(|&bytes| Logged { bytes, kind, deed: ANYTHING }));
            }
        }
        let at = |cut: usize| cuts.binary_search(&cut).map_or(cut, |index| moved[index]);
        for open in &mut self.open {
            open.from = at(open.from);
            for (_, within) in open.inner.iter_mut().flatten() {
                *within = at(within.start)..at(within.end);
            }
        }
        self.limit = self.limit.max(2 * self.log.len());
        // What the filter has seen is still in the log; it saw too little if most was there before.
        if 2 * self.log.len() < old.len() && self.filter.len() < MOST_FILTER {
            self.filter = empty_filter(4 * self.filter.len());
        }
    }
}

/// A filter that has seen nothing: sections begin at counts above zero.
fn empty_filter(entries: usize) -> Box<[(u64, u64, u64)]> {
    vec![(0, 0, 0); entries].into_boxed_slice()
}

/// Whether the event is a call of a library's function, which the replay does not execute: its
/// place is where that returns to.
fn is_call(kind: EventKind) -> bool {
    use EventKind::*;
    !matches!(
        kind,
        Atomic
            | SyncLoad
            | SyncStore
            | Handover
            | Takeover
            | Contended
            | Syscall
            | Rdtsc
            | Rdrand
            | Killed
            | Signal
            | ThreadStart
    )
}
