//! From the guest's threads to the file: chunks of events, and the thread that writes them.
//!
//! Each guest thread fills a chunk of its own; a full one goes through a bounded channel to the
//! writer, and an empty one comes back. When the writer falls behind, guest threads wait for it:
//! the recorder's memory is bounded by the chunks in flight.

use super::files::Files;
use crate::barrier::Barrier;
use crate::engine::{Engine, OrderedKind};
use crate::order::LastMet;
use crate::{Error, Result};
use crossbeam::channel::{Receiver, Sender, bounded};
use refrain_trace::payload::{self, SyscallRecord};
use refrain_trace::{
    BlobId, Event, EventId, Footer, HAS_PAYLOAD, Header, Module, ThreadId, UNFINISHED, Writer,
};
use std::cell::UnsafeCell;
use std::fs::File;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

/// Events of a full chunk (a few hundred KiB).
const CHUNK_EVENTS: usize = 4096;
/// Payload bytes of a full chunk.
const CHUNK_PAYLOAD: usize = 1 << 20;
/// A chunk is sent after so many ticks (some 100 ms) even if it is not full: what a killed
/// recorder leaves should be most of what happened.
const CHUNK_TICKS: u64 = 250_000_000;
/// Chunks on their way to the writer.
const IN_FLIGHT: usize = 32;

/// What the writer is sent.
enum Message {
    Events(ThreadId, Chunk),
    Blob(BlobId, Vec<u8>),
    Module(Module),
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
    /// Whether the chunk is to be sent before an event of the time `now` is added.
    #[inline]
    fn is_due(&self, now: u64) -> bool {
        let old = |first: &Event| now.saturating_sub(first.end) > CHUNK_TICKS;
        self.events.len() >= CHUNK_EVENTS
            || self.payloads.len() >= CHUNK_PAYLOAD
            || self.events.first().is_some_and(old)
    }
}

/// The recording side of the trace: handed to every guest thread.
#[derive(Clone)]
pub(crate) struct Log {
    to_writer: Sender<Message>,
    empties: Receiver<Chunk>,
    blobs: Arc<AtomicU32>,
    /// Nothing is kept: this is a child process, without the writer.
    silent: Arc<AtomicBool>,
}

/// The writer's thread. Ends after [`Log::finish`] or at the first error.
pub(crate) type WriterThread = JoinHandle<Result<u64>>;

impl Log {
    /// Starts the writer on `file`. `failed` is called when it has to give up; its thread then
    /// returns why. The engine's blocks are written before the events that came after them.
    pub(crate) fn start(
        file: File,
        header: &Header,
        engine: Arc<dyn Engine>,
        files: Arc<Files>,
        failed: impl FnOnce() + Send + 'static,
    ) -> Result<(Log, WriterThread)> {
        let writer = Writer::new(file, header)?;
        let (to_writer, messages) = bounded(IN_FLIGHT);
        let (give_back, empties) = bounded(IN_FLIGHT);
        let thread = std::thread::Builder::new()
            .name("refrain-writer".into())
            .spawn(move || {
                crate::host::block_signals();
                let sources = Sources { engine: &*engine, files: &files };
                write_all(writer, sources, &messages, &give_back).inspect_err(|_| failed())
            })
            .map_err(Error::host("starting the writer"))?;
        let log = Log { to_writer, empties, blobs: Arc::default(), silent: Arc::default() };
        Ok((log, thread))
    }

    /// The number of the next blob.
    pub(crate) fn blob_id(&self) -> BlobId {
        BlobId(self.blobs.fetch_add(1, Ordering::Relaxed))
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

    pub(crate) fn finish(&self, footer: Footer) {
        self.send(Message::Finish(footer));
    }

    /// From here on nothing is kept.
    pub(crate) fn silence(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// A writer that has given up has said so through its own channel; what it cannot write any
    /// more is dropped here.
    fn send(&self, message: Message) {
        if self.is_silent() {
            return;
        }
        let _ = self.to_writer.send(message);
    }

    fn empty_chunk(&self) -> Chunk {
        self.empties.try_recv().unwrap_or_default()
    }
}

/// What is written before the events that need it.
#[derive(Clone, Copy)]
struct Sources<'a> {
    engine: &'a dyn Engine,
    files: &'a Files,
}

impl Sources<'_> {
    fn write(self, writer: &mut Writer<File>, last: bool) -> Result<()> {
        self.files.write(writer, last)?;
        Ok(writer.blocks(&self.engine.take_blocks())?)
    }
}

/// The writer's loop; returns the bytes written.
fn write_all(
    mut writer: Writer<File>,
    sources: Sources<'_>,
    messages: &Receiver<Message>,
    give_back: &Sender<Chunk>,
) -> Result<u64> {
    loop {
        // Between bursts, what is written becomes visible in the file.
        let message = match messages.try_recv() {
            Ok(message) => message,
            Err(_) => {
                writer.flush()?;
                match messages.recv() {
                    Ok(message) => message,
                    Err(_) => return Ok(writer.bytes_written()),
                }
            }
        };
        match message {
            Message::Events(thread, mut chunk) => {
                sources.write(&mut writer, false)?;
                writer.events(thread, EventId(chunk.first), &chunk.events, &chunk.payloads)?;
                chunk.events.clear();
                chunk.payloads.clear();
                let _ = give_back.try_send(chunk);
            }
            Message::Blob(id, bytes) => writer.blob(id, &bytes)?,
            Message::Module(module) => writer.module(&module)?,
            Message::Pages => sources.files.write(&mut writer, false)?,
            Message::Finish(footer) => {
                sources.write(&mut writer, true)?;
                let written = writer.bytes_written();
                writer.finish(&footer)?;
                return Ok(written);
            }
        }
    }
}

/// One guest thread's stream. The guest thread appends; the coordinator closes it at the end.
///
/// Appending takes no lock: the thread says that it is busy, and the coordinator, which comes
/// once, waits until it is not.
///
/// Every event writes to it, so no other thread's data may lie in its cache lines, which
/// processors fetch in pairs.
#[repr(align(128))]
pub(crate) struct ThreadLog {
    thread: ThreadId,
    log: Log,
    busy: AtomicBool,
    closed: AtomicBool,
    barrier: Arc<Barrier>,
    state: UnsafeCell<State>,
}

// SAFETY: `state` is accessed through `Busy` only (by the guest thread, between its store to
// `busy` and the next), and by `close` after it has seen `busy` unset behind the heavy side of the
// barrier: from then on every attempt of the guest thread sees `closed`.
unsafe impl Sync for ThreadLog {}

struct State {
    chunk: Chunk,
    met: Box<LastMet>,
    /// Instruction and word of a load that a loop polls since that time, with nothing new.
    polling: Option<(u64, u64, u64)>,
    /// A system call that has its ticket, but has not returned.
    pending: Option<(Event, SyscallRecord)>,
}

/// The recording is over: the caller must not let its guest thread go on.
#[derive(Debug)]
pub(crate) struct Closed;

/// The right of the guest thread to its own stream, which the coordinator leaves alone meanwhile.
pub(crate) struct Busy<'a>(&'a ThreadLog);

impl Drop for Busy<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Busy<'_> {
    #[inline]
    fn state(&mut self) -> &mut State {
        // SAFETY: see `ThreadLog`; there is one `Busy` at a time, because only the guest thread
        // makes one and no method of it runs code that would make another.
        unsafe { &mut *self.0.state.get() }
    }

    /// Whether an event of the time `now` can be pushed without sending or growing a chunk.
    #[inline]
    pub(crate) fn has_room(&mut self, now: u64) -> bool {
        let chunk = &self.state().chunk;
        !chunk.is_due(now) && chunk.events.capacity() > chunk.events.len()
    }

    /// What the thread met last.
    pub(crate) fn met(&mut self) -> &mut LastMet {
        &mut self.state().met
    }

    /// A watched load needs no event. If a loop polls it, the thread waits since the first time.
    pub(crate) fn known_load(&mut self, load: &Event, kind: OrderedKind) {
        let state = self.state();
        *state.met.unrecorded.get_mut() += 1;
        if kind == OrderedKind::Poll {
            state.polling.get_or_insert((load.pc, load.object, load.begin));
        }
    }

    /// Since when the thread waits for what this load reads, and whether a loop polls it (1) or
    /// not.
    pub(crate) fn waits_since(&mut self, load: &Event) -> (u64, u64) {
        match self.state().polling {
            Some((pc, object, since)) if (pc, object) == (load.pc, load.object) => (since, 1),
            _ => (load.begin, 0),
        }
    }

    /// Appends an event without a payload.
    #[inline]
    pub(crate) fn push(&mut self, mut event: Event) {
        let state = self.state();
        event.unrecorded = state.met.take_unrecorded();
        state.polling = None;
        state.chunk.events.push(event);
    }
}

impl ThreadLog {
    pub(crate) fn new(thread: ThreadId, log: Log, barrier: Arc<Barrier>) -> ThreadLog {
        ThreadLog {
            thread,
            log,
            busy: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            barrier,
            state: UnsafeCell::new(State {
                chunk: Chunk::default(),
                met: LastMet::new(),
                polling: None,
                pending: None,
            }),
        }
    }

    /// What the thread met last, for translated code.
    pub(crate) fn last_met(&self) -> *mut LastMet {
        // SAFETY: as in `Busy::state`: this is the guest thread, which is not appending.
        unsafe { &raw mut *(*self.state.get()).met }
    }

    /// Begins to append; only the guest thread itself may.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Busy<'_>, Closed> {
        self.busy.store(true, Ordering::Relaxed);
        self.barrier.light();
        let busy = Busy(self);
        if self.closed.load(Ordering::Acquire) { Err(Closed) } else { Ok(busy) }
    }

    /// Appends the event that `make` makes. A ticket is taken in `make`, and so never by a thread
    /// whose stream is closed: the trace has every ticket that was given out.
    pub(crate) fn append(
        &self,
        make: impl FnOnce() -> Event,
        record: Option<&SyscallRecord>,
    ) -> Result<(), Closed> {
        let mut busy = self.enter()?;
        let state = busy.state();
        if state.chunk.is_due(crate::host::ticks()) {
            self.send(state);
        }
        let mut event = make();
        event.unrecorded = state.met.take_unrecorded();
        state.polling = None;
        state.pending = None;
        if let Some(record) = record {
            event.flags |= HAS_PAYLOAD;
            payload::push(&mut state.chunk.payloads, record);
        }
        state.chunk.events.push(event);
        Ok(())
    }

    /// Corrects the result of the event appended last.
    pub(crate) fn amend(&self, amend: impl FnOnce(&mut Event)) {
        let Ok(mut busy) = self.enter() else { return };
        if let Some(last) = busy.state().chunk.events.last_mut() {
            amend(last);
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
        let unrecorded = state.met.unrecorded.load(Ordering::Relaxed);
        state.pending = Some((Event { unrecorded, ..event }, record));
        Ok(event)
    }

    /// The guest thread has ended: what it has said is sent, and its memory given back.
    pub(crate) fn retire(&self) {
        let Ok(mut busy) = self.enter() else { return };
        let state = busy.state();
        self.send(state);
        state.chunk.events = Vec::new();
        state.chunk.payloads = Vec::new();
    }

    /// Sends what there is and refuses further events; returns how many there were.
    pub(crate) fn close(&self) -> u64 {
        self.closed.store(true, Ordering::SeqCst);
        self.barrier.heavy();
        while self.busy.load(Ordering::Acquire) {
            crate::host::yield_now();
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
