//! The thread that writes the trace.
//!
//! It writes what it is sent, and in rounds what it finds in the streams. When it cannot go on, it
//! ends the trace where it is and lets the guest run on, unrecorded, unless it is told that the
//! guest must not.

use super::super::files::Files;
use super::{Chunk, Log, Message, OPEN, Part, Shared, VISITED};
use crate::{Error, Result, host, reserve};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use refrain_trace::container::Truncate;
use refrain_trace::{
    BlobId, CodeBlock, EventId, Footer, HAS_PAYLOAD, Header, ThreadId, UNFINISHED, Writer,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Chunks on their way to the writer.
const IN_FLIGHT: usize = 32;
/// The longest pause between two rounds. With the time of a round and its writing, this stays below 100 ms.
const ROUND: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 50 });
/// The pause before the first round, and after each round that had many pages to write. Each further pause is
/// twice as long as the one before it, up to [`ROUND`]. So most of the trace of a short program is written while
/// the program runs.
const FIRST_ROUND: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 3 });
/// A round with so many bytes of pages had many to write.
const MUCH: u64 = 128 << 10;
/// The pause after a round in which a thread was busy.
const SOON: Duration = Duration::from_millis(5);
/// Looks at a stream whose thread is busy. It may be waiting for a mutex, which takes longer than
/// an event; one that waits for the writer itself leaves the stream only when that goes on.
pub(super) const LOOKS: u32 = 10_000;

/// What the writer has written of the trace.
#[derive(Debug)]
pub(crate) struct Written {
    /// Its length.
    pub(crate) bytes: u64,
    /// Why it ends before the program did, if the writer could not go on.
    pub(crate) lost: Option<Lost>,
}

/// The end of a trace is missing.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) why: Error,
    /// Where the recording ends, in ticks.
    pub(crate) ticks: u64,
    /// Events that the trace has.
    pub(crate) events: u64,
}

/// The writer's thread. Ends after [`Log::finish`] or at the first error.
pub(crate) type WriterThread = JoinHandle<Result<Written>>;

/// What a recording begins with, and how it goes on.
pub(crate) struct Start<F, B> {
    /// The file, empty.
    pub(crate) file: F,
    /// The initial memory.
    pub(crate) contents: Vec<(BlobId, Vec<u8>)>,
    /// Blobs that have numbers already.
    pub(crate) blobs: u32,
    /// The blocks that were executed since it was called the last time: they are written before
    /// the events that came after them.
    pub(crate) blocks: B,
    /// Files whose pages are written likewise.
    pub(crate) mapped: Arc<Files>,
    /// Called when the writer has given up, if the guest must not go on then.
    pub(crate) strict: Option<Box<dyn FnOnce() + Send>>,
}

/// Writes the header and the initial memory, of which pages follow with the events, and starts the writer.
pub(crate) fn start<F, B>(header: &Header, start: Start<F, B>) -> Result<(Log, WriterThread)>
where
    F: Write + Truncate + Send + 'static,
    B: Fn() -> Vec<CodeBlock> + Send + 'static,
{
    let Start { file, contents, blobs, blocks, mapped, strict } = start;
    let mut writer = Writer::new(file, header)?;
    let (to_writer, messages) = bounded(IN_FLIGHT);
    let (give_back, empties) = bounded(IN_FLIGHT);
    let log = Log { to_writer, empties, shared: Default::default() };
    for (id, bytes) in &contents {
        writer.blob(*id, bytes)?;
    }
    mapped.begin(&mut writer)?;
    log.shared.blobs.store(blobs, Ordering::Relaxed);
    let shared = log.shared.clone();
    let desk = Desk { writer, blocks, mapped, messages, give_back, shared, pages: 0 };
    let run = move || {
        host::block_signals();
        desk.run(strict)
    };
    let thread = reserve::spawn(Builder::new().name("refrain-writer".into()), run)
        .map_err(Error::host("cannot start the thread that writes"))?;
    Ok((log, thread))
}

/// The writer at work.
struct Desk<F: Write, B> {
    writer: Writer<F>,
    blocks: B,
    mapped: Arc<Files>,
    messages: Receiver<Message>,
    give_back: Sender<Chunk>,
    shared: Arc<Shared>,
    /// Bytes of pages that were written with events.
    pages: u64,
}

impl<F: Write + Truncate, B: Fn() -> Vec<CodeBlock>> Desk<F, B> {
    fn run(mut self, strict: Option<Box<dyn FnOnce() + Send>>) -> Result<Written> {
        match (self.write_all(), strict) {
            (Ok(()), _) => {
                let bytes = self.writer.bytes_written();
                Ok(Written { bytes, lost: None })
            }
            (Err(why), Some(stop)) => {
                stop();
                Err(why)
            }
            (Err(why), None) => {
                self.shared.silent.store(true, Ordering::Relaxed);
                let ticks = host::ticks();
                let (salvaged, _) = self.writer.salvage(ticks)?;
                let lost = Lost { why, ticks, events: salvaged.events };
                Ok(Written { bytes: salvaged.bytes, lost: Some(lost) })
            }
        }
    }

    /// Writes until all is said.
    fn write_all(&mut self) -> Result<()> {
        let mut pause = FIRST_ROUND;
        let mut next = Instant::now() + pause;
        self.shared.at_work.begin();
        loop {
            if reserve::is_given_up() {
                let answer = io::Error::from_raw_os_error(libc::ENOMEM);
                return Err(Error::host("the recorder has no memory left")(answer));
            }
            self.shared.at_work.end();
            let message = self.messages.recv_deadline(next);
            self.shared.at_work.begin();
            let message = match message {
                Ok(Message::Finish(footer)) => return self.finish(&footer),
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            // Without those of its creator, a thread's first events are of no use.
            let begins = matches!(&message, Some(Message::Events(_, chunk)) if chunk.first == 0);
            if begins || Instant::now() >= next {
                let before = self.pages;
                let (parts, all) = self.collect();
                if let Some(footer) = self.write_round(message, parts)? {
                    return self.finish(&footer);
                }
                pause =
                    if self.pages - before > MUCH { FIRST_ROUND } else { (2 * pause).min(ROUND) };
                next = Instant::now() + if all { pause } else { SOON };
            } else if let Some(message) = message {
                self.write(message)?;
            }
        }
    }

    fn write(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Events(thread, mut chunk) => {
                self.events(thread, &chunk)?;
                chunk.events.clear();
                chunk.payloads.clear();
                let _ = self.give_back.try_send(chunk);
            }
            Message::Blob(id, bytes) => self.writer.blob(id, &bytes)?,
            Message::Module(module) => self.writer.module(&module)?,
            Message::Order(order) => self.writer.order(order)?,
            Message::Pages => self.mapped.write(&mut self.writer, false)?,
            Message::Finish(_) => unreachable!("nothing is written after the end"),
        }
        Ok(())
    }

    fn events(&mut self, thread: ThreadId, chunk: &Chunk) -> Result<()> {
        self.needed(false)?;
        let first = EventId(chunk.first);
        Ok(self.writer.events(thread, first, &chunk.events, &chunk.payloads)?)
    }

    fn part(&mut self, part: &Part) -> Result<()> {
        let Part { thread, chunk, entered } = part;
        if !chunk.events.is_empty() {
            self.events(*thread, chunk)?;
        }
        if let Some((mut event, record)) = entered.clone() {
            self.needed(false)?;
            event.flags |= UNFINISHED | HAS_PAYLOAD;
            let id = EventId(chunk.first + chunk.events.len() as u64);
            self.writer.entered(*thread, id, &event, &record)?;
        }
        Ok(())
    }

    /// Takes what is in the streams, and says whether this is all of it.
    fn collect(&self) -> (BTreeMap<ThreadId, Part>, bool) {
        let mut parts = BTreeMap::new();
        // Somebody forks or closes the streams: another time.
        let Ok(streams) = self.shared.streams.try_lock() else { return (parts, false) };
        let filled = streams.iter().filter(|it| !it.is_empty() && it.shut(OPEN, VISITED));
        let filled: Vec<_> = filled.collect();
        if filled.is_empty() {
            return (parts, true);
        }
        self.shared.barrier.heavy();
        // Those who wait for the writer itself leave their streams only when it goes on.
        let looks = if self.messages.is_full() { 0 } else { LOOKS };
        for stream in &filled {
            if let Some(part) = stream.visit(looks) {
                parts.insert(part.thread, part);
            }
            stream.gate.store(OPEN, Ordering::Release);
        }
        let all = parts.len() == filled.len();
        (parts, all)
    }

    /// Writes what was sent before and what was taken from the streams, thread by thread: those who
    /// create come before those that they create, wherever the file ends.
    fn write_round(
        &mut self,
        at_hand: Option<Message>,
        mut parts: BTreeMap<ThreadId, Part>,
    ) -> Result<Option<Footer>> {
        let mut chunks: BTreeMap<ThreadId, Vec<Chunk>> = BTreeMap::new();
        let mut end = None;
        let sent: Vec<_> = self.messages.try_iter().take(self.messages.len()).collect();
        for message in at_hand.into_iter().chain(sent) {
            match message {
                Message::Events(thread, chunk) => chunks.entry(thread).or_default().push(chunk),
                Message::Finish(footer) => end = Some(footer),
                other => self.write(other)?,
            }
        }
        let threads: BTreeSet<_> = chunks.keys().chain(parts.keys()).copied().collect();
        for thread in threads {
            let mut part = parts.remove(&thread);
            for chunk in chunks.remove(&thread).into_iter().flatten() {
                // Sent by a thread after it was visited.
                if let Some(part) = part.take_if(|part| chunk.first >= part.chunk.first) {
                    self.part(&part)?;
                }
                self.write(Message::Events(thread, chunk))?;
            }
            part.iter().try_for_each(|part| self.part(part))?;
        }
        if end.is_none() {
            // What is written becomes visible in the file.
            self.writer.flush()?;
        }
        Ok(end)
    }

    /// Writes what the events that come next need.
    fn needed(&mut self, last: bool) -> Result<()> {
        let before = self.writer.bytes_written();
        self.mapped.write(&mut self.writer, last)?;
        self.pages += self.writer.bytes_written() - before;
        Ok(self.writer.blocks(&(self.blocks)())?)
    }

    fn finish(&mut self, footer: &Footer) -> Result<()> {
        self.needed(true)?;
        Ok(self.writer.conclude(footer)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::presence::Presence;
    use refrain_trace::{Event, EventKind, NO_TICKET, Trace};

    /// A thread's events lie behind those of the threads that were created before it, whichever are sent first.
    #[test]
    fn a_round_is_written_in_the_order_of_the_threads() {
        let (to_writer, messages) = bounded(IN_FLIGHT);
        let (give_back, empties) = bounded(IN_FLIGHT);
        let log = Log { to_writer, empties, shared: Default::default() };
        let writer = Writer::new(Vec::new(), &Header::default()).expect("memory takes all");
        let (shared, mapped) = (log.shared.clone(), Arc::default());
        let blocks = Vec::new;
        let mut desk = Desk { writer, blocks, mapped, messages, give_back, shared, pages: 0 };
        let event = |value| Event {
            code: EventKind::Rdtsc as u8,
            flags: NO_TICKET,
            value,
            ..Event::default()
        };
        let stream = |id| log.stream(ThreadId(id), Presence::default());
        let streams: Vec<_> = (0..3).map(stream).collect();
        streams[0].append(|| event(0), None).expect("is open");
        let chunk = |first| Chunk { first, events: vec![event(first)], payloads: Vec::new() };
        for message in [(2, 0), (0, 1), (2, 1)] {
            log.send(Message::Events(ThreadId(message.0), chunk(message.1)));
        }
        let (parts, all) = desk.collect();
        assert!(all && parts.len() == 1);
        let end = desk.write_round(Some(Message::Events(ThreadId(1), chunk(0))), parts);
        assert!(end.expect("memory takes all").is_none());
        let bytes = desk.writer.abandon();
        // Cut after each chunk: the threads are there one after the other.
        let mut seen = Vec::new();
        for len in 0..=bytes.len() {
            let Ok(trace) = Trace::from_bytes(bytes[..len].to_vec()) else { continue };
            let threads: Vec<_> =
                (0..trace.threads()).map(|id| trace.events_of(ThreadId(id))).collect();
            if seen.last() != Some(&threads) {
                seen.push(threads);
            }
        }
        let expected: [&[u64]; 6] = [&[], &[1], &[2], &[2, 1], &[2, 1, 1], &[2, 1, 2]];
        assert_eq!(seen, expected);
    }
}
