//! From the guest's threads to the file: streams of events, and the thread that writes them.
//!
//! Each guest thread fills a chunk of its own; a full one goes through a bounded channel to the
//! writer, and an empty one comes back. When the writer falls behind, guest threads wait for it:
//! the recorder's memory is bounded by the chunks in flight.
//!
//! Several times a second the writer visits every stream and takes what is in it, whatever the
//! thread does meanwhile: a thread that waits for hours has all its events in the file, and the
//! system call that it waits in. So a recorder that is killed leaves all that happened before the
//! writer's last round.

mod at_work;
mod prepared;
mod writer;

use at_work::AtWork;
pub(crate) use prepared::Prepared;
use writer::LOOKS;
pub(crate) use writer::{Start, WriterThread, Written, start};

use crate::Zeroed;
use crate::barrier::Barrier;
use crate::engine::OrderedKind;
use crate::host;
use crate::order::{Filter, LastMet};
use crate::record::presence::Presence;
use crossbeam::channel::{Receiver, Sender, bounded};
use refrain_trace::payload::{self, SyscallRecord};
use refrain_trace::{
    BlobId, Event, EventKind, Footer, HAS_PAYLOAD, Module, Order, ThreadId, UNFINISHED,
};
use std::cell::UnsafeCell;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Events of a full chunk (a few hundred KiB).
const CHUNK_EVENTS: usize = 4096;
/// Payload bytes of a full chunk.
const CHUNK_PAYLOAD: usize = 1 << 20;

/// How many events ahead a thread asks for the line of memory in which it will write an event. The processor
/// that runs the writer has just read the memory of an empty chunk: to get a line back from there takes longer
/// than many a critical section, and the next locked instruction waits until the line is there.
const AHEAD: usize = 8;

/// How long a thread may be in the middle of an event before it is seen to that it can go on.
const PATIENCE: Duration = Duration::from_millis(50);

/// What the writer is sent.
enum Message {
    Events(ThreadId, Chunk),
    Blob(BlobId, Vec<u8>),
    Module(Module),
    Order(Order),
    /// Pages of files wait to be written.
    Pages,
    Finish(Footer),
}

#[derive(Default)]
struct Chunk {
    first: u64,
    events: Vec<Event>,
    payloads: Vec<u8>,
}

impl Chunk {
    /// Whether the chunk is to be sent before another event is added.
    #[inline]
    fn is_full(&self) -> bool {
        self.events.len() >= CHUNK_EVENTS || self.payloads.len() >= CHUNK_PAYLOAD
    }
}

/// The recording side of the trace: handed to every guest thread.
#[derive(Clone)]
pub(crate) struct Log {
    to_writer: Sender<Message>,
    empties: Receiver<Chunk>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The number of the next blob.
    blobs: AtomicU32,
    /// Nothing is kept: this is a child process, without the writer, or the writer has given up.
    silent: AtomicBool,
    barrier: Barrier,
    at_work: AtWork,
    /// The streams, in the order of the threads' ids. While a thread holds this lock, no other thread visits or
    /// closes streams, and none forks.
    streams: Mutex<Vec<Arc<ThreadLog>>>,
}

impl Log {
    /// The barrier of the process's threads.
    pub(crate) fn barrier(&self) -> Barrier {
        self.shared.barrier.clone()
    }

    /// The number of the next blob.
    pub(crate) fn blob_id(&self) -> BlobId {
        BlobId(self.shared.blobs.fetch_add(1, Ordering::Relaxed))
    }

    /// Has the writer write the pages of files that wait for it.
    pub(crate) fn pages(&self) {
        self.send(Message::Pages);
    }

    /// Keeps bytes once; the id may be used at once.
    pub(crate) fn blob(&self, bytes: Vec<u8>) -> BlobId {
        let id = self.blob_id();
        self.send(Message::Blob(id, bytes));
        id
    }

    pub(crate) fn module(&self, module: Module) {
        self.send(Message::Module(module));
    }

    /// Gives the trace another order than its header has.
    pub(crate) fn order(&self, order: Order) {
        self.send(Message::Order(order));
    }

    pub(crate) fn finish(&self, footer: Footer) {
        self.send(Message::Finish(footer));
    }

    /// A log that nobody writes.
    pub(crate) fn unread() -> Log {
        let ((to_writer, _), (_, empties)) = (bounded(0), bounded(0));
        Log { to_writer, empties, shared: Arc::default() }
    }

    /// A stream with room for so many events, which is no stream of the recording.
    pub(crate) fn unlisted(
        &self,
        thread: ThreadId,
        presence: Presence,
        room: usize,
    ) -> Box<ThreadLog> {
        let mut stream = self.new_stream(thread, presence);
        stream.state.get_mut().chunk.events.reserve(room);
        Box::new(stream)
    }

    /// The stream of a new thread.
    pub(crate) fn stream(&self, thread: ThreadId, presence: Presence) -> Arc<ThreadLog> {
        let stream = Arc::new(self.new_stream(thread, presence));
        self.streams().push(stream.clone());
        stream
    }

    fn new_stream(&self, thread: ThreadId, presence: Presence) -> ThreadLog {
        ThreadLog {
            thread,
            presence,
            log: self.clone(),
            phase: AtomicU8::new(EMPTY),
            gate: AtomicU8::new(OPEN),
            unsettled: AtomicBool::new(false),
            state: UnsafeCell::new(State {
                chunk: Chunk::default(),
                met: Some(LastMet::new()),
                polling: None,
                accesses: None,
                counted: 0,
                last: 0,
                writer: 0,
                pending: None,
                told: false,
            }),
        }
    }

    /// Appends an event to the stream of another thread, behind as many of its accesses as `place` says. `place` is
    /// called while that thread does not append, and is given the number of its watched accesses without events.
    /// After those accesses, that thread sees what the caller has stored before.
    pub(crate) fn insert(
        &self,
        thread: ThreadId,
        place: impl Fn(u64) -> u64,
        make: impl Fn() -> Event,
    ) -> Result<u64, Closed> {
        // Who sleeps in a system call needs no interrupt: it orders its processor when it comes back.
        let may_run = |stream: &ThreadLog| stream.presence.is_inside();
        let place = |state: &State| Some(place(state.unrecorded()));
        let inserted = self.insert_at(thread, may_run, place, make)?;
        Ok(inserted.expect("there is a place"))
    }

    /// The same, behind all accesses of a thread; unless it has had no event yet.
    pub(crate) fn insert_if_begun(
        &self,
        thread: ThreadId,
        make: impl Fn() -> Event,
    ) -> Result<Option<u64>, Closed> {
        let has_begun = |state: &State| state.chunk.first > 0 || !state.chunk.events.is_empty();
        let place = |state: &State| has_begun(state).then(|| state.unrecorded());
        self.insert_at(thread, |_| true, place, make)
    }

    /// The same, for a thread that is alone, and that is not alone any more then.
    pub(crate) fn insert_behind_alone(
        &self,
        thread: ThreadId,
        make: impl Fn() -> Event,
    ) -> Result<u64, Closed> {
        let place = |state: &State| {
            state.met.iter().for_each(|met| met.end_alone(&self.shared.barrier));
            Some(state.unrecorded())
        };
        Ok(self.insert_at(thread, |_| true, place, make)?.expect("there is a place"))
    }

    fn insert_at(
        &self,
        thread: ThreadId,
        may_run: impl Fn(&ThreadLog) -> bool,
        place: impl Fn(&State) -> Option<u64>,
        make: impl Fn() -> Event,
    ) -> Result<Option<u64>, Closed> {
        loop {
            let streams = self.streams();
            let stream = &streams[thread.index()];
            if !stream.shut(OPEN, VISITED) {
                return Err(Closed);
            }
            fence(Ordering::SeqCst);
            if may_run(stream) {
                self.shared.barrier.heavy();
            }
            let inserted = stream.is_left(LOOKS).then(|| {
                // SAFETY: see `ThreadLog`.
                let state = unsafe { &mut *stream.state.get() };
                let made = place(state)?;
                let unrecorded = state.since_last(made);
                // The thread may be in the middle of something that began before.
                let (begin, end) = (state.last, state.last);
                let event = Event { unrecorded, begin, end, ..make() };
                state.end_pending(&event);
                state.chunk.events.push(event);
                Some(event.ticket)
            });
            if inserted.flatten().is_some() {
                stream.pass(EMPTY, HOLDS);
            }
            stream.gate.store(OPEN, Ordering::Release);
            if let Some(inserted) = inserted {
                return Ok(inserted);
            }
            drop(streams);
            host::let_others_go_on();
        }
    }

    /// Closes all streams; returns how many events each had. `free` is called for threads that stay
    /// in the middle of an event: they wait for a ticket that somebody keeps who is over.
    pub(crate) fn close(&self, free: impl Fn()) -> Vec<u64> {
        let streams = self.streams();
        for stream in streams.iter() {
            stream.gate.store(CLOSED, Ordering::SeqCst);
        }
        self.shared.barrier.heavy();
        streams.iter().map(|stream| stream.finish(&free)).collect()
    }

    /// Does something while nobody is in the middle of a stream but its own thread.
    pub(crate) fn unvisited<T>(&self, act: impl FnOnce() -> T) -> T {
        let _streams = self.streams();
        act()
    }

    /// This is a child process, without the writer: nothing is kept, and nothing is over.
    pub(crate) fn begin_child(&self) {
        self.silence();
        for stream in self.streams().iter() {
            stream.gate.store(OPEN, Ordering::Relaxed);
        }
    }

    /// From here on nothing is kept.
    fn silence(&self) {
        self.shared.silent.store(true, Ordering::Relaxed);
    }

    /// Whether nothing is kept.
    pub(crate) fn is_silent(&self) -> bool {
        self.shared.silent.load(Ordering::Relaxed)
    }

    /// A writer that has given up drops what it is sent.
    fn send(&self, message: Message) {
        if !self.is_silent() {
            let _ = self.to_writer.send(message);
        }
    }

    fn empty_chunk(&self) -> Chunk {
        self.empties.try_recv().unwrap_or_default()
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Arc<ThreadLog>>> {
        self.shared.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Phases of a stream: nothing in it that is not written.
const EMPTY: u8 = 0;
/// Its thread is appending.
const BUSY: u8 = 1;
/// There may be something in it.
const HOLDS: u8 = 2;

/// Who may use a stream: its thread.
const OPEN: u8 = 0;
/// The writer; the thread waits for a moment.
const VISITED: u8 = 1;
/// Nobody any more: the recording is over.
const CLOSED: u8 = 2;

/// One guest thread's stream. The guest thread appends; the writer visits it, and the coordinator
/// closes it at the end.
///
/// Appending takes no lock: the thread says that it is busy, and a visitor, who comes rarely,
/// shuts the gate and looks whether it is.
///
/// Every event writes to it, so no other thread's data may lie in its cache lines, which
/// processors fetch in pairs.
#[repr(align(128))]
pub(crate) struct ThreadLog {
    thread: ThreadId,
    presence: Presence,
    log: Log,
    phase: AtomicU8,
    gate: AtomicU8,
    /// The last event, but for what others have [inserted](Log::insert), may still be amended. Its
    /// thread alone changes this.
    unsettled: AtomicBool,
    state: UnsafeCell<State>,
}

// SAFETY: `state` is accessed through `Busy` only (by the guest thread, between its store of `BUSY`
// and its next store to `phase`), and by who holds `Log::streams` and, having shut the gate and
// passed the heavy side of the barrier, has seen another phase than `BUSY`: until the gate is open
// again, every attempt of the guest thread sees that it is shut. (Who has seen that the thread is outside of
// guest code needs a fence alone: out there the thread's store of `BUSY` is one as well, and so is its store
// when it comes in.)
unsafe impl Sync for ThreadLog {}

struct State {
    chunk: Chunk,
    /// What the thread met last; none once it has ended.
    met: Option<Zeroed<LastMet>>,
    /// A word that the thread polls, and since when, if it has read nothing new there.
    polling: Option<(u64, u64)>,
    /// Where all of the thread's accesses are counted, if they are.
    accesses: Option<Filter>,
    /// How many accesses there were at the thread's last event.
    counted: u64,
    /// When the last event ended.
    last: u64,
    /// For how long the writer had been at work then.
    writer: u64,
    /// A system call that has its ticket, but has not returned.
    pending: Option<(Event, SyscallRecord)>,
    /// Whether the pending call has been written.
    told: bool,
}

/// Whether an event is one that its thread has appended, and nobody else.
fn is_own(event: &Event) -> bool {
    event.code != EventKind::Handover as u8
}

/// What a visitor takes from a stream.
struct Part {
    thread: ThreadId,
    chunk: Chunk,
    entered: Option<(Event, SyscallRecord)>,
}

/// The recording is over: the caller must not let its guest thread go on.
#[derive(Debug)]
pub(crate) struct Closed;

/// The right of the guest thread to its own stream, which others leave alone meanwhile.
pub(crate) struct Busy<'a>(&'a ThreadLog);

impl Drop for Busy<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.phase.store(HOLDS, Ordering::Release);
    }
}

impl<'a> Busy<'a> {
    #[inline]
    fn state(&mut self) -> &mut State {
        // SAFETY: see `ThreadLog`; there is one `Busy` at a time, because only the guest thread
        // makes one and no method of it runs code that would make another.
        unsafe { &mut *self.0.state.get() }
    }

    /// Whether so many events can be pushed without sending or growing a chunk.
    #[inline]
    pub(crate) fn has_room(&mut self, events: usize) -> bool {
        let chunk = &self.state().chunk;
        !chunk.is_full() && chunk.events.capacity() >= chunk.events.len() + events
    }

    /// What the thread met last.
    pub(crate) fn met(&mut self) -> &mut LastMet {
        self.state().met()
    }

    /// A watched load needs no event. If a loop polls it, the thread waits since the first time.
    pub(crate) fn known_load(&mut self, load: &Event, kind: OrderedKind) {
        let state = self.state();
        *state.met().unrecorded.get_mut() += 1;
        if kind == OrderedKind::Poll {
            state.polling.get_or_insert((load.object, load.begin));
        }
    }

    /// Since when the thread waits for what this load reads, and whether it has polled it before (1) or
    /// not. Compilers make several loads of one that a loop polls.
    pub(crate) fn waits_since(&mut self, load: &Event, kind: OrderedKind) -> (u64, u64) {
        match self.state().polling {
            Some((object, since)) if object == load.object && kind == OrderedKind::Poll => {
                (since, 1)
            }
            _ => (load.begin, 0),
        }
    }

    /// Appends an event without a payload.
    #[inline]
    pub(crate) fn push(&mut self, event: Event) {
        let event = self.0.without_writer(self.state(), event);
        self.state().push(event);
    }

    /// The same, for an event that [`ThreadLog::amend`] is to complete.
    #[inline]
    pub(crate) fn push_open(&mut self, event: Event) {
        self.0.unsettled.store(true, Ordering::Relaxed);
        self.push(event);
    }

    /// Writes an event into the room behind the chunk's last event, for a thread that will have to append it
    /// quickly. `None` if there [is no room](Self::has_room).
    #[inline]
    pub(crate) fn prepare(mut self, event: Event) -> Option<Prepared<'a>> {
        let log = self.0;
        let state = self.state();
        let event = log.without_writer(state, event);
        let unrecorded = state.made() - state.counted;
        let room = state.chunk.events.spare_capacity_mut();
        host::prefetch_to_write(room.as_ptr().wrapping_add(AHEAD));
        room.first_mut()?.write(Event { unrecorded, ..event });
        Some(Prepared(self))
    }
}

impl State {
    /// What the thread, which has not ended, met last.
    #[inline]
    fn met(&mut self) -> &mut LastMet {
        self.met.as_mut().expect("the thread has not retired")
    }

    /// Appends an event of its thread's, with the number of accesses that needed none since the
    /// last one.
    #[inline]
    fn push(&mut self, event: Event) {
        let unrecorded = self.since_last(self.made());
        self.polling = None;
        self.last = event.end;
        let next = self.chunk.events.as_ptr().wrapping_add(self.chunk.events.len() + AHEAD);
        host::prefetch_to_write(next);
        self.chunk.events.push(Event { unrecorded, ..event });
    }

    /// An event is about to be appended: a system call that waited for its own has it now.
    fn end_pending(&mut self, event: &Event) {
        if !EventKind::from_code(event.code).is_some_and(EventKind::is_of_access) {
            self.pending = None;
        } else if let Some((pending, _)) = &mut self.pending {
            pending.unrecorded = 0;
            self.told = false;
        }
    }

    /// How many accesses the thread, which is the calling one, has made: all of them, or the watched
    /// ones without events.
    fn made(&self) -> u64 {
        match self.accesses {
            // SAFETY: it is there as long as the thread's executor (`ThreadLog::count_accesses`).
            Some(filter) => unsafe { &*filter.count }.load(Ordering::Relaxed),
            None => self.unrecorded(),
        }
    }

    /// How many watched accesses without events the thread has made.
    fn unrecorded(&self) -> u64 {
        self.met.as_ref().map_or(self.counted, |met| met.unrecorded.load(Ordering::Relaxed))
    }

    /// How many accesses have been made since the last event, if `made` is their number until now.
    fn since_last(&mut self, made: u64) -> u64 {
        made - mem::replace(&mut self.counted, made)
    }

    /// How many events come before the last one that is the thread's own.
    fn before_last(&self) -> usize {
        self.chunk.events.iter().rposition(is_own).unwrap_or(self.chunk.events.len())
    }
}

impl ThreadLog {
    /// When the events in the stream began that are not written yet. Nobody is appending.
    pub(crate) fn times(mut self: Box<Self>) -> Vec<u64> {
        self.state.get_mut().chunk.events.iter().map(|event| event.begin).collect()
    }

    /// What the thread met last, for its own use while it is not appending. Visitors leave it alone.
    pub(crate) fn last_met(&self) -> *mut LastMet {
        // SAFETY: only this field is borrowed, and only for reading. Nobody but the calling thread
        // changes it (`Self::retire`).
        let met = unsafe { &(*self.state.get()).met };
        met.as_ref().expect("the thread has not retired").as_ptr()
    }

    /// From here on all accesses of the calling thread are counted there, which is there as long as
    /// it runs guest code.
    pub(crate) fn count_accesses(&self, filter: Filter) {
        if let Ok(mut busy) = self.enter() {
            busy.state().accesses = Some(filter);
        }
    }

    /// Counts the time in which the writer was at work as the recorder's, if the work before this event took long:
    /// the writer may have had the thread's core.
    #[inline]
    fn without_writer(&self, state: &mut State, mut event: Event) -> Event {
        // Nobody knows when a thread's first work began.
        let from = if state.last == 0 { event.begin } else { state.last };
        let (from, to) = (from.saturating_add(event.overhead), event.begin);
        event.overhead += self.log.shared.at_work.during(from, to, &mut state.writer);
        event
    }

    /// Begins to append, unless somebody else is at the stream; only the guest thread itself may, and only in
    /// guest code.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<Busy<'_>> {
        self.phase.store(BUSY, Ordering::Relaxed);
        self.log.shared.barrier.light();
        self.if_open()
    }

    /// The thread is busy, unless somebody else is at the stream.
    #[inline]
    fn if_open(&self) -> Option<Busy<'_>> {
        let busy = Busy(self);
        (self.gate.load(Ordering::Acquire) == OPEN).then_some(busy)
    }

    /// Begins to append, once the writer is gone.
    pub(crate) fn enter(&self) -> Result<Busy<'_>, Closed> {
        loop {
            // It may be outside of guest code, where no visitor orders its processor.
            self.phase.store(BUSY, Ordering::SeqCst);
            if let Some(busy) = self.if_open() {
                return Ok(busy);
            }
            if self.gate.load(Ordering::Acquire) == CLOSED {
                return Err(Closed);
            }
            host::let_others_go_on();
        }
    }

    /// The same; a chunk that is full is sent.
    fn enter_with_room(&self) -> Result<Busy<'_>, Closed> {
        let mut busy = self.enter()?;
        let state = busy.state();
        if state.chunk.is_full() {
            self.send(state);
        }
        Ok(busy)
    }

    /// Appends the event that `make` makes. A ticket is taken in `make`, and so never by a thread
    /// whose stream is closed: the trace has every ticket that was given out.
    pub(crate) fn append(
        &self,
        make: impl FnOnce() -> Event,
        record: Option<&SyscallRecord>,
    ) -> Result<(), Closed> {
        let mut busy = self.enter_with_room()?;
        let state = busy.state();
        let mut event = make();
        state.end_pending(&event);
        self.settle();
        if let Some(record) = record {
            event.flags |= HAS_PAYLOAD;
            payload::push(&mut state.chunk.payloads, record);
        }
        let event = self.without_writer(state, event);
        state.push(event);
        Ok(())
    }

    /// The same, for an event without a payload whose ticket somebody may hold for long, while it
    /// executes guest code: `make` gives up after a while, so that others can [insert](Log::insert)
    /// what that one waits for.
    pub(crate) fn append_patiently(
        &self,
        mut make: impl FnMut() -> Option<Event>,
    ) -> Result<(), Closed> {
        while !self.append_if(&mut make, false)? {}
        Ok(())
    }

    /// The same, once: false, after a yield, if `make` has given up. If the event is `open`, it stays in the
    /// stream until [`Self::amend`] has completed it.
    pub(crate) fn append_if(
        &self,
        make: impl FnOnce() -> Option<Event>,
        open: bool,
    ) -> Result<bool, Closed> {
        let mut busy = self.enter_with_room()?;
        let Some(event) = make() else {
            drop(busy);
            host::let_others_go_on();
            return Ok(false);
        };
        busy.state().end_pending(&event);
        if open {
            busy.push_open(event);
        } else {
            self.settle();
            busy.push(event);
        }
        Ok(true)
    }

    /// The same, for an event without a payload that [`Self::amend`] is to complete: until then it
    /// stays in the stream.
    pub(crate) fn append_open(&self, make: impl FnOnce() -> Event) -> Result<(), Closed> {
        self.append_if(|| Some(make()), true).map(|_| ())
    }

    /// Nobody is going to amend the last event.
    pub(crate) fn settle(&self) {
        self.unsettled.store(false, Ordering::Release);
    }

    /// Corrects the result of the event appended last.
    pub(crate) fn amend(&self, amend: impl FnOnce(&mut Event)) {
        let Ok(mut busy) = self.enter() else { return };
        self.settle();
        let state = busy.state();
        if let Some(at) = state.chunk.events.iter().rposition(is_own) {
            amend(&mut state.chunk.events[at]);
            state.last = state.chunk.events[at].end;
            for inserted in &mut state.chunk.events[at + 1..] {
                (inserted.begin, inserted.end) = (state.last, state.last);
            }
        }
    }

    /// Notes a system call that is about to be issued with a ticket of its own: should the
    /// recording end before it returns, the ticket must not be missing from the trace.
    pub(crate) fn pending(
        &self,
        make: impl FnOnce() -> Event,
        record: SyscallRecord,
    ) -> Result<Event, Closed> {
        let mut busy = self.enter()?;
        let event = make();
        let state = busy.state();
        let unrecorded = state.made() - state.counted;
        state.pending = Some((Event { unrecorded, ..event }, record));
        state.told = false;
        Ok(event)
    }

    /// The guest thread has ended: the writer takes what it has said, with its memory, on the next
    /// round. (Threads may be many and short: a message for each would be a round for each.)
    pub(crate) fn retire(&self) {
        let Ok(mut busy) = self.enter() else { return };
        busy.state().met = None;
    }

    /// Sends what there is, after the gate was closed; returns how many events there were. The
    /// caller holds the streams.
    fn finish(&self, free: impl Fn()) -> u64 {
        let since = Instant::now();
        while self.phase.load(Ordering::Acquire) == BUSY {
            host::let_others_go_on();
            if since.elapsed() > PATIENCE {
                free();
            }
        }
        // SAFETY: see `ThreadLog`.
        let state = unsafe { &mut *self.state.get() };
        if let Some((mut event, record)) = state.pending.take() {
            event.flags |= UNFINISHED | HAS_PAYLOAD;
            payload::push(&mut state.chunk.payloads, &record);
            state.chunk.events.push(event);
        }
        self.send(state);
        state.chunk.first
    }

    /// Whether there is nothing in it that is not written.
    fn is_empty(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == EMPTY
    }

    /// Sets the gate to `to` if it is `from`; says whether it was.
    fn shut(&self, from: u8, to: u8) -> bool {
        self.gate.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Takes what is in the stream, if its gate was shut and its thread leaves it within so many
    /// looks. The caller holds the streams.
    fn visit(&self, looks: u32) -> Option<Part> {
        if !self.is_left(looks) {
            return None;
        }
        // SAFETY: see `ThreadLog`.
        let state = unsafe { &mut *self.state.get() };
        let (first, thread) = (state.chunk.first, self.thread);
        let count = match self.unsettled.load(Ordering::Acquire) {
            true => state.before_last(),
            false => state.chunk.events.len(),
        };
        // The thread keeps its memory, in which it has room, until it has ended.
        let events: Vec<Event> = match state.met {
            None if count == state.chunk.events.len() => mem::take(&mut state.chunk.events),
            _ => state.chunk.events.drain(..count).collect(),
        };
        let payloads = mem::take(&mut state.chunk.payloads);
        state.chunk.first += count as u64;
        let entered = state.pending.clone().filter(|_| !mem::replace(&mut state.told, true));
        if state.chunk.events.is_empty() {
            self.pass(HOLDS, EMPTY);
        }
        Some(Part { thread, chunk: Chunk { first, events, payloads }, entered })
    }

    /// Changes the phase for a visitor. This may fail: the thread is about to look at the gate then, and is busy
    /// if it finds the gate open again.
    fn pass(&self, from: u8, to: u8) {
        let _ = self.phase.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether its thread, whose gate is shut, leaves the stream within so many looks.
    fn is_left(&self, looks: u32) -> bool {
        let mut looks = 0..looks;
        while self.phase.load(Ordering::Acquire) == BUSY {
            if looks.next().is_none() {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }

    fn send(&self, state: &mut State) {
        if state.chunk.events.is_empty() {
            return;
        }
        if self.log.is_silent() {
            state.chunk.events.clear();
            state.chunk.payloads.clear();
            return;
        }
        let next = state.chunk.first + state.chunk.events.len() as u64;
        let mut fresh = self.log.empty_chunk();
        fresh.first = next;
        let full = mem::replace(&mut state.chunk, fresh);
        self.log.send(Message::Events(self.thread, full));
    }
}

#[cfg(test)]
mod tests;
