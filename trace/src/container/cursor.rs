//! Reading the events of one thread.

use super::catalog::EventChunk;
use super::reader::Trace;
use crate::error::Result;
use crate::payload::{self, SyscallRecord};
use crate::{Event, EventId, ThreadId};

/// A position in the stream of a thread. Holds one decoded chunk (at most
/// [`super::MAX_EVENTS`] events and their payloads), so that the length of a trace does not
/// matter; reading an event is a bounds check and a copy.
#[derive(Debug)]
pub struct Cursor {
    trace: Trace,
    thread: ThreadId,
    /// The chunk that is loaded.
    chunk: Option<EventChunk>,
    /// Its events, from `base` on, and their payloads.
    events: Vec<Event>,
    payloads: Vec<u8>,
    base: u64,
    /// The next event, in `events`.
    at: usize,
    /// The next event's payload, in `payloads`.
    payload_at: usize,
    /// The payload of the event that was returned last, if it has one.
    payload_of_last: Option<usize>,
}

impl Trace {
    /// Reads a thread's events from the first on. A thread without events has an empty stream.
    pub fn cursor(&self, thread: ThreadId) -> Cursor {
        Cursor::new(self.clone(), thread, EventId(0))
    }

    /// Reads a thread's events from `event` on, without reading those before its chunk.
    pub fn cursor_at(&self, thread: ThreadId, event: EventId) -> Cursor {
        Cursor::new(self.clone(), thread, event)
    }
}

impl Cursor {
    pub(crate) fn new(trace: Trace, thread: ThreadId, start: EventId) -> Cursor {
        Cursor {
            trace,
            thread,
            chunk: None,
            events: Vec::new(),
            payloads: Vec::new(),
            base: start.0,
            at: 0,
            payload_at: 0,
            payload_of_last: None,
        }
    }

    /// The thread.
    pub fn thread(&self) -> ThreadId {
        self.thread
    }

    /// The id of the event that [`Cursor::next`] returns next.
    pub fn position(&self) -> EventId {
        EventId(self.base.saturating_add(self.at as u64))
    }

    /// The next event; `None` at the end of the stream. After an error the cursor stays where it
    /// is: the chunk that holds the next event cannot be read.
    #[expect(clippy::should_implement_trait, reason = "`?` on each event is what callers need")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Event>> {
        if self.at >= self.events.len() && !self.load()? {
            return Ok(None);
        }
        let event = self.events[self.at];
        self.at += 1;
        self.payload_of_last = None;
        if event.has_payload() {
            self.payload_of_last = Some(self.payload_at);
            self.payload_at += self.record_len();
        }
        Ok(Some(event))
    }

    /// The events that [`Cursor::next`] returns next without reading anything. There may be more.
    #[inline]
    pub fn loaded(&self) -> &[Event] {
        self.events.get(self.at..).unwrap_or_default()
    }

    /// The event that [`Cursor::next`] returns next.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<&Event>> {
        if self.at >= self.events.len() && !self.load()? {
            return Ok(None);
        }
        Ok(Some(&self.events[self.at]))
    }

    /// The payload of the event that [`Cursor::next`] returned last; `None` if it has none. To be
    /// asked for before [`Cursor::peek`], which may let go of the chunk.
    pub fn payload(&mut self) -> Result<Option<SyscallRecord>> {
        let (Some(at), Some(chunk)) = (self.payload_of_last, self.chunk) else { return Ok(None) };
        match payload::read(&self.payloads[at..]) {
            Some(record) => Ok(Some(record)),
            None => {
                let what = format!("the payload of e{} is not readable", self.position().0 - 1);
                Err(self.trace.corrupt(chunk, &what))
            }
        }
    }

    /// The payload of the event that [`Cursor::peek`] shows; `None` if it has none.
    pub fn peek_payload(&mut self) -> Result<Option<SyscallRecord>> {
        let Some(has_payload) = self.peek()?.map(Event::has_payload) else { return Ok(None) };
        let last = self.payload_of_last;
        self.payload_of_last = has_payload.then_some(self.payload_at);
        // `payload` names the event before the position in its message.
        self.at += 1;
        let result = self.payload();
        self.at -= 1;
        self.payload_of_last = last;
        result
    }

    fn record_len(&self) -> usize {
        payload::record_len(&self.payloads[self.payload_at..])
            .expect("loading a chunk checks that every payload is there")
    }

    /// Loads the chunk with the next event; false at the end of the stream. The payload of the
    /// last event stays readable until there is another chunk to read.
    fn load(&mut self) -> Result<bool> {
        let next = self.position();
        let Some(chunk) = self.trace.find_events(self.thread, next) else { return Ok(false) };
        self.payload_of_last = None;
        self.payload_at = 0;
        self.chunk = None;
        let loaded = self.trace.load(chunk, &mut self.events, &mut self.payloads);
        let first = match loaded {
            Ok(first) => first,
            Err(error) => {
                self.events.clear();
                (self.base, self.at) = (next.0, 0);
                return Err(error);
            }
        };
        self.chunk = Some(chunk);
        self.base = first.0;
        for n in 0..(next.0 - first.0) as usize {
            if self.events[n].has_payload() {
                self.payload_at += self.record_len();
            }
        }
        self.at = (next.0 - first.0) as usize;
        Ok(true)
    }
}
