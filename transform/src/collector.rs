//! One thread's critical sections, collected while the thread is replayed.
//!
//! Collectors of different threads share nothing, so they run on as many host threads as the
//! replay does; [`crate::Sections::merge`] brings them together. Events and batches of accesses
//! come in program order, each event after the accesses before it.
//!
//! # What a critical section is
//! From a lock's acquisition to its release by the same thread, nested ones too: an access counts
//! for every section that is open. Inner acquisitions of a recursive mutex (or of a read lock
//! that is held) belong to the outer one. A wait on a condition variable ends one section and
//! begins another ([`Raw::after_wait`]). Semaphores, barriers and atomic words are no locks: they
//! belong to no thread, so nothing is inside of them. A section that is open when the stream ends
//! ends with the stream.
//!
//! # Cost
//! An access costs a shadow touch, and inside a critical section a look into a small filter that
//! drops what the innermost open section has already seen, its touch included. The log of one
//! section is compacted when it is long, so memory is bounded by the distinct bytes of the open
//! sections.

use crate::intervals::{Interval, normalise};
use crate::sets::{SetId, SetTable};
use crate::shadow::Shadow;
use refrain_trace::fixed::FixedMap;
use refrain_trace::{Access, Event, EventId, EventKind, ThreadId};
use std::ops::Range;

/// `EOWNERDEAD`: a robust mutex was granted, its last owner having died.
const OWNER_DEAD: i32 = 130;
const FILTER: usize = 512;
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
    /// When the thread came to the lock, and when it came to release it.
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) reads: SetId,
    pub(crate) writes: SetId,
    pub(crate) shared: bool,
    pub(crate) after_wait: bool,
    /// The stream ended before its release.
    pub(crate) unfinished: bool,
}

/// What a thread logged inside critical sections: bytes and the kind of access.
#[derive(Clone, Copy)]
struct Logged {
    bytes: Interval,
    kind: u16,
}

struct Open {
    raw: Raw,
    depth: u32,
    /// Where its accesses begin in the log.
    from: usize,
}

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
    pub(crate) acquisitions: u64,
    pub(crate) events: u64,
    own: Option<Range<u64>>,
    open: Vec<Open>,
    log: Vec<Logged>,
    /// Position of `log[0]` in the sequence of all accesses ever logged.
    base: u64,
    /// First position of the innermost section.
    innermost: u64,
    limit: usize,
    filter: Box<[(u64, u32, u64)]>,
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
            acquisitions: 0,
            events: 0,
            own,
            open: Vec::new(),
            log: Vec::new(),
            base: 0,
            innermost: 0,
            limit: LONG,
            filter: vec![(0, 0, 0); FILTER].into_boxed_slice(),
            scratch: Vec::new(),
        }
    }

    /// Takes the accesses since the last call.
    pub fn accesses(&mut self, batch: &[Access]) {
        if self.open.is_empty() {
            for access in batch {
                self.shadow.touch(access.address, access.size);
            }
            return;
        }
        for access in batch {
            self.log(access);
        }
        if self.log.len() > self.limit {
            self.compact();
        }
    }

    #[inline]
    fn log(&mut self, access: &Access) {
        let kind = access.kind & (Access::READ | Access::WRITE);
        let shape = u32::from(access.size) << 2 | u32::from(kind);
        let way = (access.address ^ access.address >> 9 ^ u64::from(kind) << 4) as usize % FILTER;
        let entry = &mut self.filter[way];
        // Positions are counted from one, so that an empty entry never counts as seen.
        if (entry.0, entry.1) == (access.address, shape) && entry.2 > self.innermost {
            return;
        }
        self.shadow.touch(access.address, access.size);
        *entry = (access.address, shape, self.base + self.log.len() as u64 + 1);
        let bytes = Interval::new(access.address, u64::from(access.size));
        self.log.push(Logged { bytes, kind });
    }

    /// Whether accesses are wanted until the next event that repeat what the thread has touched
    /// before. Outside of critical sections they change nothing.
    pub fn wants_repeats(&self) -> bool {
        !self.open.is_empty()
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
        self.note_object(kind, event);
        let granted = event.result == 0 || event.result == OWNER_DEAD;
        match kind {
            MutexLock | MutexTryLock | MutexTimedLock | SpinLock | SpinTryLock | WriteLock
            | WriteTryLock | WriteTimedLock
                if granted =>
            {
                self.acquire(id, event, false, false);
            }
            ReadLock | ReadTryLock | ReadTimedLock if granted => {
                self.acquire(id, event, true, false);
            }
            CondWaitEnd => self.acquire(id, event, false, true),
            MutexUnlock | SpinUnlock | RwUnlock if granted => self.release(id, event, false),
            CondWaitBegin => self.release(id, event, true),
            _ => {}
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

    fn acquire(&mut self, id: EventId, event: &Event, shared: bool, after_wait: bool) {
        self.acquisitions += 1;
        if let Some(open) = self.open.iter_mut().find(|open| open.raw.lock == event.object) {
            open.depth += 1;
            return;
        }
        let from = self.log.len();
        self.innermost = self.base + from as u64;
        let raw = Raw {
            lock: event.object,
            ticket: event.ticket,
            until: u64::MAX,
            acquire: u32::try_from(id.0).unwrap_or(u32::MAX),
            release: 0,
            acquire_pc: event.pc,
            release_pc: 0,
            begin: event.begin,
            end: 0,
            reads: SetId::EMPTY,
            writes: SetId::EMPTY,
            shared,
            after_wait,
            unfinished: false,
        };
        self.open.push(Open { raw, depth: 1, from });
    }

    /// `wholly`: a wait on a condition variable releases whatever the depth.
    fn release(&mut self, id: EventId, event: &Event, wholly: bool) {
        let Some(index) = self.open.iter().position(|open| open.raw.lock == event.object) else {
            self.strays.push((event.object, event.ticket));
            return;
        };
        self.open[index].depth -= 1;
        if wholly || self.open[index].depth == 0 {
            let release = u32::try_from(id.0).unwrap_or(u32::MAX);
            self.open[index].raw.until = event.ticket;
            self.close(index, release, event.pc, event.begin);
        }
    }

    fn close(&mut self, index: usize, release: u32, pc: u64, end: u64) {
        let Open { mut raw, from, .. } = self.open.remove(index);
        (raw.release, raw.release_pc, raw.end) = (release, pc, end);
        raw.reads = self.set(from, Access::READ);
        raw.writes = self.set(from, Access::WRITE);
        self.sections.push(raw);
        match self.open.last() {
            Some(open) => self.innermost = self.base + open.from as u64,
            None => {
                self.base += self.log.len() as u64;
                self.innermost = self.base;
                self.log.clear();
                self.limit = LONG;
            }
        }
    }

    fn set(&mut self, from: usize, kind: u16) -> SetId {
        self.scratch.clear();
        let logged = self.log[from..].iter().filter(|logged| logged.kind & kind != 0);
        self.scratch.extend(logged.map(|logged| logged.bytes));
        normalise(&mut self.scratch);
        self.sets.intern(&self.scratch)
    }

    /// Drops repetitions from the log, between the beginnings of open sections.
    fn compact(&mut self) {
        let old = std::mem::take(&mut self.log);
        let mut start = 0;
        for index in 0..self.open.len() {
            let end = self.open.get(index + 1).map_or(old.len(), |next| next.from);
            // What no open section covers is not needed any more.
            start = start.max(self.open[index].from);
            self.open[index].from = self.log.len();
            for kind in [Access::READ, Access::WRITE] {
                self.scratch.clear();
                let logged = old[start..end].iter().filter(|logged| logged.kind & kind != 0);
                self.scratch.extend(logged.map(|logged| logged.bytes));
                normalise(&mut self.scratch);
                self.log.extend(self.scratch.iter().map(|&bytes| Logged { bytes, kind }));
            }
            start = end;
        }
        self.base += old.len() as u64;
        self.innermost = self.base + self.open.last().map_or(0, |open| open.from) as u64;
        self.limit = self.limit.max(2 * self.log.len());
    }
}
