//! A whole trace in memory: what the text form is parsed into, and tests are written with.

use crate::container::{PAGE, PageRun, Trace, Writer};
use crate::error::{Error, Result};
use crate::payload::{self, SyscallRecord};
use crate::{
    BlobId, CodeBlock, Event, EventId, Footer, HAS_PAYLOAD, Header, MappedFile, Module, ThreadId,
    Transformed, text,
};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;

/// A trace in memory. For small traces: one from a file takes as much memory as all its events.
///
/// `trace.to_string()` and `text.parse()` are the text form, see [`text`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnedTrace {
    /// What the recording was of.
    pub header: Header,
    /// Modules, in the order in which they were mapped.
    pub modules: Vec<Module>,
    /// Blobs.
    pub blobs: BTreeMap<BlobId, Vec<u8>>,
    /// Blobs of which only pages are there, by their offsets; zeros at a page's end may be left out.
    pub files: BTreeMap<BlobId, (MappedFile, BTreeMap<u64, Vec<u8>>)>,
    /// The block table.
    pub blocks: Vec<CodeBlock>,
    /// The events of each thread.
    pub threads: Vec<Vec<OwnedEvent>>,
    /// What replaces its freed locks, if it is a transformed trace.
    pub transformed: Option<Transformed>,
    /// How the recording ended; `None` if it was cut off.
    pub footer: Option<Footer>,
}

/// An event and its payload.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OwnedEvent {
    /// The event; [`HAS_PAYLOAD`] is set if `payload` is there.
    pub event: Event,
    /// Its payload.
    pub payload: Option<SyscallRecord>,
}

impl OwnedEvent {
    /// Puts the two together.
    pub fn new(mut event: Event, payload: Option<SyscallRecord>) -> OwnedEvent {
        event.flags &= !HAS_PAYLOAD;
        if payload.is_some() {
            event.flags |= HAS_PAYLOAD;
        }
        OwnedEvent { event, payload }
    }
}

impl From<Event> for OwnedEvent {
    fn from(event: Event) -> OwnedEvent {
        OwnedEvent::new(event, None)
    }
}

impl OwnedTrace {
    /// Reads all of `trace`.
    pub fn read(trace: &Trace) -> Result<OwnedTrace> {
        let mut blobs = BTreeMap::new();
        for id in trace.blobs() {
            blobs.insert(id, trace.blob(id)?);
        }
        let mut files = BTreeMap::new();
        for id in trace.files() {
            let file = trace.file(id)?.ok_or_else(|| Error::Missing(id.to_string()))?;
            let mut pages = BTreeMap::new();
            trace.pages(id, |offset, bytes| {
                let each = bytes.chunks(PAGE).enumerate();
                pages.extend(each.map(|(n, page)| (offset + (n * PAGE) as u64, page.to_vec())));
            })?;
            files.insert(id, (file, pages));
        }
        let mut threads = Vec::new();
        for t in 0..trace.threads() {
            let mut cursor = trace.cursor(ThreadId(t));
            let mut events = Vec::new();
            while let Some(event) = cursor.next()? {
                events.push(OwnedEvent { event, payload: cursor.payload()? });
            }
            threads.push(events);
        }
        Ok(OwnedTrace {
            header: trace.header().clone(),
            modules: trace.modules().to_vec(),
            blobs,
            files,
            blocks: trace.blocks()?,
            threads,
            transformed: trace.transformed()?,
            footer: trace.footer().cloned(),
        })
    }

    /// Writes the trace to a container.
    pub fn write<W: Write>(&self, out: W) -> Result<W> {
        let mut writer = Writer::new(out, &self.header)?;
        for module in &self.modules {
            writer.module(module)?;
        }
        for (&id, bytes) in &self.blobs {
            writer.blob(id, bytes)?;
        }
        for (&id, (file, pages)) in &self.files {
            writer.file(id, file)?;
            for (&offset, page) in pages {
                let run = PageRun { first: (offset / PAGE as u64) as u32, count: 1 };
                let mut page = page.clone();
                page.resize(page.len().max(PAGE), 0);
                writer.pages(id, &[run], &page)?;
            }
        }
        writer.blocks(&self.blocks)?;
        for (t, thread) in self.threads.iter().enumerate() {
            let (mut events, mut payloads) = (Vec::with_capacity(thread.len()), Vec::new());
            for owned in thread {
                let OwnedEvent { event, payload } =
                    OwnedEvent::new(owned.event, owned.payload.clone());
                events.push(event);
                payload.iter().for_each(|record| payload::push(&mut payloads, record));
            }
            writer.events(ThreadId(t as u32), EventId(0), &events, &payloads)?;
        }
        if let Some(transformed) = &self.transformed {
            writer.transformed(transformed)?;
        }
        match &self.footer {
            Some(footer) => writer.finish(footer),
            None => Ok(writer.abandon()),
        }
    }

    /// The container's bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.write(Vec::new())
    }

    /// The trace, as if opened from a file.
    pub fn to_trace(&self) -> Result<Trace> {
        Trace::from_bytes(self.to_bytes()?)
    }

    /// The events of `thread`; none if there is no such thread.
    pub fn events(&self, thread: ThreadId) -> &[OwnedEvent] {
        self.threads.get(thread.index()).map_or(&[], Vec::as_slice)
    }
}

impl fmt::Display for OwnedTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::print(self, f)
    }
}

impl std::str::FromStr for OwnedTrace {
    type Err = Error;

    fn from_str(text: &str) -> Result<OwnedTrace> {
        text::parse(text)
    }
}
