//! An opened trace.

use super::body::Unpacker;
use super::catalog::{Catalog, EventChunk};
use super::columns::Decoder;
use super::format::{Chunk, ChunkKind, MAX_BLOB, MAX_CODE};
use super::pages;
use super::references;
use super::scan;
use super::source::Source;
use crate::error::{Error, Lack, Result};
use crate::{
    BlobId, CodeBlock, Ending, Event, EventId, Footer, Header, MappedFile, Module, ThreadId,
    Transformed, payload,
};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A trace that was opened. Cheap to clone; clones share the file, and any number of threads may
/// read at once.
///
/// # Memory
/// Opening takes memory in proportion to the number of chunks (at least 40 bytes of file each)
/// and to the modules. Beyond that a trace holds one chunk's worth of buffers
/// ([`super::MAX_RAW`]) for each thread that is reading at one moment. Records of the file's
/// making (header, modules, blocks) take at most 32 times their size in the chunk.
#[derive(Clone, Debug)]
pub struct Trace {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    source: Source,
    chunks: Vec<Chunk>,
    catalog: Catalog,
    indexed: bool,
    header: Header,
    footer: Option<Footer>,
    modules: Vec<Module>,
    /// Decoding buffers that nobody uses at the moment.
    scratch: Mutex<Vec<Scratch>>,
}

/// What decoding a chunk needs.
pub(crate) struct Scratch {
    pub(crate) unpacker: Unpacker,
    pub(crate) decoder: Decoder,
    pub(crate) body: Vec<u8>,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scratch")
    }
}

impl Scratch {
    pub(crate) fn new() -> Result<Scratch> {
        let (decoder, body) = (Decoder::default(), Vec::new());
        Ok(Scratch { unpacker: Unpacker::new()?, decoder, body })
    }

    /// Reads a chunk that holds one record.
    pub(crate) fn record<T: DeserializeOwned>(
        &mut self,
        source: &Source,
        chunk: &Chunk,
    ) -> Result<T> {
        self.unpacker.unpack(source, chunk, &mut self.body)?;
        match postcard::take_from_bytes(&self.body) {
            Ok((record, [])) => Ok(record),
            _ => Err(chunk.corrupt(format!("it holds no {}", chunk.header.kind.name()))),
        }
    }

    /// Reads a chunk of a mapped file.
    pub(crate) fn file(&mut self, source: &Source, chunk: &Chunk) -> Result<MappedFile> {
        let file: MappedFile = self.record(source, chunk)?;
        match file.len == chunk.header.first {
            true => Ok(file),
            false => Err(chunk.corrupt("it contradicts itself about the file's length")),
        }
    }

    /// Reads a chunk of blocks.
    pub(crate) fn blocks(&mut self, source: &Source, chunk: &Chunk) -> Result<Vec<CodeBlock>> {
        self.unpacker.unpack(source, chunk, &mut self.body)?;
        let mut blocks = Vec::new();
        let mut rest = &self.body[..];
        for _ in 0..chunk.header.count {
            let (block, tail) = postcard::take_from_bytes(rest)
                .map_err(|_| chunk.corrupt("it holds fewer blocks than it says"))?;
            blocks.push(block);
            rest = tail;
        }
        if !rest.is_empty() {
            return Err(chunk.corrupt("it holds more than its blocks"));
        }
        Ok(blocks)
    }

    /// Reads the record of a transformation, which has these parts.
    pub(crate) fn transformed(
        &mut self,
        source: &Source,
        chunks: &[Chunk],
        parts: &[usize],
    ) -> Result<Transformed> {
        let mut bytes = Vec::new();
        for &n in parts {
            self.unpacker.unpack(source, &chunks[n], &mut self.body)?;
            bytes.extend_from_slice(&self.body);
        }
        match postcard::take_from_bytes(&bytes) {
            Ok((record, [])) => Ok(record),
            _ => Err(chunks[parts[0]].corrupt("it begins no transformation")),
        }
    }

    /// Reads a chunk of events with its payload stream, whose `parts` come before it.
    pub(crate) fn events(
        &mut self,
        source: &Source,
        parts: &[Chunk],
        chunk: &Chunk,
        events: &mut Vec<Event>,
        payloads: &mut Vec<u8>,
    ) -> Result<()> {
        events.clear();
        payloads.clear();
        for part in parts {
            self.unpacker.unpack(source, part, &mut self.body)?;
            payloads.extend_from_slice(&self.body);
        }
        self.unpacker.unpack(source, chunk, &mut self.body)?;
        let count = chunk.header.count as usize;
        let inline =
            self.decoder.decode(&self.body, count, events).map_err(|what| chunk.corrupt(what))?;
        payloads.extend_from_slice(inline);
        let mut stream = &payloads[..];
        for _ in events.iter().filter(|e| e.has_payload()) {
            let len = payload::record_len(stream)
                .ok_or_else(|| chunk.corrupt("it holds fewer payloads than it says"))?;
            stream = &stream[len..];
        }
        if !stream.is_empty() {
            return Err(chunk.corrupt("it holds payloads that belong to no event"));
        }
        Ok(())
    }
}

impl Trace {
    /// Opens a trace file. A file that was cut off opens as far as it is whole.
    pub fn open(path: &Path) -> Result<Trace> {
        Trace::from_source(Source::open(path)?)
    }

    /// Reads a trace from an open file.
    pub fn from_file(file: File) -> Result<Trace> {
        Trace::from_source(Source::from_file(file, "read the trace".into())?)
    }

    /// Opens a trace in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Trace> {
        Trace::from_source(bytes.into())
    }

    fn from_source(source: Source) -> Result<Trace> {
        let layout = scan::find(&source)?;
        let first = layout.chunks.first().ok_or(Error::CutOff)?;
        let catalog = Catalog::new(&layout.chunks, |_, error| Err(error))?;
        let mut scratch = Scratch::new()?;
        let mut header: Header = scratch.record(&source, first)?;
        if let Some(n) = catalog.order {
            header.order = scratch.record(&source, &layout.chunks[n])?;
        }
        let mut modules = Vec::with_capacity(catalog.modules.len());
        for &n in &catalog.modules {
            modules.push(scratch.record(&source, &layout.chunks[n])?);
        }
        let footer = match catalog.footer {
            Some(n) => Some(scratch.record(&source, &layout.chunks[n])?),
            None => None,
        };
        let shared = Shared {
            source,
            chunks: layout.chunks,
            catalog,
            indexed: layout.indexed,
            header,
            footer,
            modules,
            scratch: Mutex::new(vec![scratch]),
        };
        Ok(Trace { shared: Arc::new(shared) })
    }

    /// What the recording was of.
    pub fn header(&self) -> &Header {
        &self.shared.header
    }

    /// How the recording ended; `None` if it was cut off.
    pub fn footer(&self) -> Option<&Footer> {
        self.shared.footer.as_ref()
    }

    /// Whether the end of the recording is missing, and with it, perhaps, events that those that
    /// are there wait for.
    pub fn is_truncated(&self) -> bool {
        self.footer().is_none_or(|footer| footer.ending == Ending::Lost)
    }

    /// Whether the trace ends before the program did: its end is missing, or recording was stopped.
    pub fn is_cut_off(&self) -> bool {
        let ending = self.footer().map(|footer| footer.ending);
        matches!(ending, None | Some(Ending::Stopped(_) | Ending::Lost))
    }

    /// Whether the file has a sound index (if not, opening it took a scan).
    pub fn is_indexed(&self) -> bool {
        self.shared.indexed
    }

    /// The modules, in the order in which they were mapped.
    pub fn modules(&self) -> &[Module] {
        &self.shared.modules
    }

    /// The number of threads: one more than the highest thread that has events.
    pub fn threads(&self) -> u32 {
        self.shared.catalog.threads.last_key_value().map_or(0, |(&last, _)| last + 1)
    }

    /// The number of a thread's events in the trace.
    pub fn events_of(&self, thread: ThreadId) -> u64 {
        self.shared.catalog.threads.get(&thread.0).map_or(0, |stream| stream.events)
    }

    /// The number of all events in the trace.
    pub fn events(&self) -> u64 {
        self.shared.catalog.threads.values().map(|stream| stream.events).sum()
    }

    /// The time-stamp counter when the guest began to run: at its first event, which is its first
    /// thread's start. That of the recorder's beginning in a trace without events.
    pub fn began(&self) -> Result<u64> {
        let mut first = self.cursor(ThreadId(0));
        let first = first.peek()?.map(|event| event.begin);
        Ok(first.unwrap_or(self.header().tsc_start))
    }

    /// The blobs of which the trace has pages alone, in ascending order.
    pub fn files(&self) -> impl Iterator<Item = BlobId> {
        self.shared.catalog.files.keys().map(|&id| BlobId(id))
    }

    /// The file that a blob is of, if the trace has pages of it alone.
    pub fn file(&self, id: BlobId) -> Result<Option<MappedFile>> {
        let Some((n, _)) = self.shared.catalog.files.get(&id.0) else { return Ok(None) };
        let chunk = &self.shared.chunks[*n];
        self.with_scratch(|scratch, source| scratch.file(source, chunk)).map(Some)
    }

    /// Of such a blob, how many bytes of pages the trace has, and how many it refers to.
    pub fn kept(&self, id: BlobId) -> Result<(u64, u64)> {
        let Some(file) = self.file(id)? else { return Err(Error::Missing(id.to_string())) };
        let (mut here, mut elsewhere) = (0, 0);
        let mut body = Vec::new();
        for &n in &self.shared.catalog.files[&id.0].1 {
            let chunk = &self.shared.chunks[n];
            self.body_of(chunk, &mut body)?;
            let (runs, sum) = match chunk.header.kind {
                ChunkKind::References => {
                    (references::runs(chunk, &body, file.len)?, &mut elsewhere)
                }
                _ => (pages::decode(chunk, &body, file.len)?, &mut here),
            };
            *sum += runs.iter().map(|(run, _)| run.len()).sum::<u64>();
        }
        Ok((here, elsewhere))
    }

    /// Shows the pages of such a blob that are there, as offsets and bytes, in the order in which
    /// they were touched.
    ///
    /// # Errors
    /// [`Error::Referenced`] if some are in the file alone.
    pub fn pages(&self, id: BlobId, mut visit: impl FnMut(u64, &[u8])) -> Result<()> {
        let Some(file) = self.file(id)? else { return Err(Error::Missing(id.to_string())) };
        for &n in &self.shared.catalog.files[&id.0].1 {
            let chunk = &self.shared.chunks[n];
            if chunk.header.kind == ChunkKind::References {
                return Err(Error::Referenced { path: file.path, lack: Lack::NotPacked });
            }
            let mut body = Vec::new();
            self.body_of(chunk, &mut body)?;
            for (run, bytes) in pages::decode(chunk, &body, file.len)? {
                visit(run.offset(), bytes);
            }
        }
        Ok(())
    }

    /// Unpacks the body of a chunk.
    pub(super) fn body_of(&self, chunk: &Chunk, body: &mut Vec<u8>) -> Result<()> {
        self.with_scratch(|scratch, source| scratch.unpacker.unpack(source, chunk, body))
    }

    /// The blobs that are there as a whole, in ascending order.
    pub fn blobs(&self) -> impl Iterator<Item = BlobId> {
        let blobs = self.shared.catalog.blobs.iter();
        blobs.filter(|(_, parts)| self.is_whole(parts)).map(|(&id, _)| BlobId(id))
    }

    fn is_whole(&self, parts: &[usize]) -> bool {
        parts.last().is_some_and(|&last| self.shared.chunks[last].header.count == 0)
    }

    fn blob_chunks(&self, id: BlobId) -> Result<&[usize]> {
        let parts = self.shared.catalog.blobs.get(&id.0);
        let whole = parts.filter(|parts| self.is_whole(parts));
        whole.map(Vec::as_slice).ok_or_else(|| Error::Missing(id.to_string()))
    }

    /// The length of a blob, without reading it.
    pub fn blob_len(&self, id: BlobId) -> Result<u64> {
        let parts = self.blob_chunks(id)?;
        Ok(parts.iter().map(|&n| u64::from(self.shared.chunks[n].header.raw_len)).sum())
    }

    /// The content of a blob, up to [`super::MAX_BLOB`].
    pub fn blob(&self, id: BlobId) -> Result<Vec<u8>> {
        let found = self.blob_len(id)?;
        if found > MAX_BLOB {
            return Err(Error::Limit { what: "blob", found, limit: MAX_BLOB });
        }
        let mut bytes = Vec::new();
        for part in self.blob_parts(id)? {
            let part = part?;
            if bytes.is_empty() {
                bytes = part;
            } else {
                bytes.extend_from_slice(&part);
            }
        }
        Ok(bytes)
    }

    /// What replaces the trace's freed locks, if it is a transformed trace.
    pub fn transformed(&self) -> Result<Option<Transformed>> {
        if !self.is_transformed() {
            return Ok(None);
        }
        let Shared { catalog, chunks, .. } = &*self.shared;
        self.with_scratch(|scratch, source| {
            scratch.transformed(source, chunks, &catalog.transformed).map(Some)
        })
    }

    /// Whether this is a transformed trace.
    pub fn is_transformed(&self) -> bool {
        self.shared.catalog.is_transformed(&self.shared.chunks)
    }

    /// The file, and its chunks in their order.
    pub(super) fn parts(&self) -> (&Source, &[Chunk]) {
        (&self.shared.source, &self.shared.chunks)
    }

    /// The content of a blob in parts of at most [`super::MAX_PART`].
    pub fn blob_parts(&self, id: BlobId) -> Result<impl Iterator<Item = Result<Vec<u8>>>> {
        let parts = self.blob_chunks(id)?;
        Ok(parts.iter().map(|&n| {
            self.with_scratch(|scratch, source| {
                let mut part = Vec::new();
                scratch.unpacker.unpack(source, &self.shared.chunks[n], &mut part)?;
                Ok(part)
            })
        }))
    }

    /// The block table, up to [`super::MAX_CODE`].
    pub fn blocks(&self) -> Result<Vec<CodeBlock>> {
        let chunks = self.shared.catalog.blocks.iter().map(|&n| &self.shared.chunks[n].header);
        let found = chunks.map(|header| u64::from(header.raw_len)).sum();
        if found > MAX_CODE {
            return Err(Error::Limit { what: "code", found, limit: MAX_CODE });
        }
        let mut blocks = Vec::new();
        for run in self.block_runs() {
            blocks.append(&mut run?);
        }
        Ok(blocks)
    }

    /// The block table, a chunk at a time.
    pub fn block_runs(&self) -> impl Iterator<Item = Result<Vec<CodeBlock>>> {
        self.shared.catalog.blocks.iter().map(|&n| {
            self.with_scratch(|scratch, source| scratch.blocks(source, &self.shared.chunks[n]))
        })
    }

    /// Unpacks events ahead, so that reading them takes less time later: the chunks from the start
    /// of the trace on that together take at most `limit` bytes, up to the first that is damaged
    /// (whoever reads it will be told). Clones of the trace profit too. Only the first call counts.
    pub fn hold_events(&self, limit: u64) {
        let mut chunks: Vec<usize> = self.event_chunks().collect();
        chunks.sort_unstable();
        let (mut bodies, mut size) = (BTreeMap::new(), 0);
        for chunk in chunks.into_iter().map(|n| &self.shared.chunks[n]) {
            size += u64::from(chunk.header.raw_len);
            if size > limit {
                break;
            }
            let mut body = Vec::new();
            let unpacked =
                self.with_scratch(|s, source| s.unpacker.unpack(source, chunk, &mut body));
            if unpacked.is_err() {
                break;
            }
            bodies.insert(chunk.offset, body);
        }
        self.shared.source.hold(bodies);
    }

    /// Bytes that the events of all threads take in the file, payloads included.
    pub fn event_bytes(&self) -> u64 {
        self.event_chunks().map(|n| u64::from(self.shared.chunks[n].header.stored_len)).sum()
    }

    fn event_chunks(&self) -> impl Iterator<Item = usize> + '_ {
        let streams = self.shared.catalog.threads.values();
        let of_events = |c: &EventChunk| c.chunk - c.parts..c.chunk + 1;
        streams.flat_map(|s| &s.chunks).flat_map(of_events)
    }

    /// The chunk of `thread` that holds `event`.
    pub(crate) fn find_events(&self, thread: ThreadId, event: EventId) -> Option<EventChunk> {
        let stream = self.shared.catalog.threads.get(&thread.0)?;
        let first = |c: &EventChunk| self.shared.chunks[c.chunk].header.first;
        let after = stream.chunks.partition_point(|c| first(c) <= event.0);
        if event.0 < stream.events {
            stream.chunks.get(after.checked_sub(1)?).copied()
        } else {
            None
        }
    }

    /// Decodes a chunk of events; returns the id of the first.
    pub(crate) fn load(
        &self,
        at: EventChunk,
        events: &mut Vec<Event>,
        payloads: &mut Vec<u8>,
    ) -> Result<EventId> {
        let chunk = &self.shared.chunks[at.chunk];
        let parts = &self.shared.chunks[at.chunk - at.parts..at.chunk];
        self.with_scratch(|scratch, source| {
            scratch.events(source, parts, chunk, events, payloads)?;
            Ok(EventId(chunk.header.first))
        })
    }

    /// An error about a chunk of events.
    pub(crate) fn corrupt(&self, at: EventChunk, what: &str) -> Error {
        self.shared.chunks[at.chunk].corrupt(what)
    }

    fn with_scratch<T>(&self, f: impl FnOnce(&mut Scratch, &Source) -> Result<T>) -> Result<T> {
        // A thread that panicked with the lock held left a list of buffers, each of them sound.
        let pool = || self.shared.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = pool().pop();
        let mut scratch = match taken {
            Some(scratch) => scratch,
            None => Scratch::new()?,
        };
        let result = f(&mut scratch, &self.shared.source);
        pool().push(scratch);
        result
    }
}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Trace>();
};
