//! Writing a trace.

use super::body::{Label, Packer};
use super::columns::Encoder;
use super::format::{
    self, Chunk, ChunkHeader, ChunkKind, END_MAGIC, MAX_EVENTS, MAX_INDEX, MAX_MODULES, MAX_PART,
    MAX_PAYLOAD, MAX_THREADS, MAX_TRANSFORMED,
};
use super::pages::{self, PageRun};
use super::parallel::in_parallel;
use super::references;
use crate::error::{Error, Result};
use crate::payload::{self, SyscallRecord};
use crate::{
    BlobId, CodeBlock, Event, EventId, Footer, HAS_PAYLOAD, Header, MappedFile, Module, Order,
    ThreadId, Transformed,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// Portions of pages that are packed before they are written: 16 MiB.
const AT_ONCE: usize = 64;

/// Writes a trace, chunk by chunk; owned by one background thread.
///
/// Each chunk goes to `W` in one `write_all`, so `W` needs no buffer of its own, and a recorder
/// that is killed leaves a file that is whole up to its last chunk. After an error the file ends
/// in half a chunk, and every later call fails too; [`Writer::salvage`] makes a whole trace of it.
pub struct Writer<W: Write> {
    pub(super) out: W,
    pub(super) written: u64,
    pub(super) packer: Packer,
    encoder: Encoder,
    body: Vec<u8>,
    chunk: Vec<u8>,
    /// The headers of all chunks: the body of the index.
    pub(super) index: Vec<u8>,
    chunks: u32,
    modules: usize,
    blocks: u64,
    /// By thread: the id of the event that comes next.
    next_event: BTreeMap<ThreadId, u64>,
    broken: bool,
}

impl<W: Write> Writer<W> {
    /// Starts a trace with its header.
    pub fn new(out: W, header: &Header) -> Result<Self> {
        let mut writer = Writer {
            out,
            written: 0,
            packer: Packer::new()?,
            encoder: Encoder::default(),
            body: Vec::new(),
            chunk: Vec::new(),
            index: Vec::new(),
            chunks: 0,
            modules: 0,
            blocks: 0,
            next_event: BTreeMap::new(),
            broken: false,
        };
        writer.write(&format::preamble())?;
        writer.record(ChunkKind::Header, header)?;
        Ok(writer)
    }

    /// Writes a blob. The caller numbers blobs from 0 and writes each once; a blob must be
    /// written before an event that names it, so that a cut-off trace names no lost ones.
    pub fn blob(&mut self, id: BlobId, bytes: &[u8]) -> Result<()> {
        let parts = bytes.len().div_ceil(MAX_PART).max(1);
        for n in 0..parts {
            let first = n * MAX_PART;
            let part = &bytes[first..bytes.len().min(first + MAX_PART)];
            let count = (parts - 1 - n) as u32;
            self.put(Label { kind: ChunkKind::Blob, id: id.0, count, first: first as u64 }, part)?;
        }
        Ok(())
    }

    /// Begins a blob of which only pages will be there. It takes a number like any other blob.
    pub fn file(&mut self, id: BlobId, file: &MappedFile) -> Result<()> {
        let body = postcard::to_stdvec(file).map_err(unserializable)?;
        self.put(Label { kind: ChunkKind::File, id: id.0, count: 1, first: file.len }, &body)
    }

    /// Writes pages of a blob begun with [`Writer::file`], each once: `bytes` are those of all
    /// runs. A page must be written before an event that depends on it.
    pub fn pages(&mut self, id: BlobId, runs: &[PageRun], bytes: &[u8]) -> Result<()> {
        if runs.iter().map(|run| run.len()).sum::<u64>() != bytes.len() as u64 {
            return Err(Error::Misuse("pages without their bytes".into()));
        }
        let mut rest = bytes;
        let read = |run: PageRun, page: &mut [u8]| {
            let (now, later) = rest.split_at(run.len() as usize);
            page.copy_from_slice(now);
            rest = later;
        };
        self.pages_read(id, runs, read, |_, _| {})
    }

    /// The same; `read` is called for all runs or parts of them, in their order, and fills in the
    /// bytes, which are zero. `packed` is handed each chunk that was written, with its pages, for
    /// [`Writer::packed_pages`].
    pub fn pages_read(
        &mut self,
        id: BlobId,
        runs: &[PageRun],
        mut read: impl FnMut(PageRun, &mut [u8]),
        mut packed: impl FnMut(&[PageRun], &[u8]),
    ) -> Result<()> {
        let encode = |runs: &[PageRun], body: &mut Vec<u8>| pages::encode(runs, body, &mut read);
        self.portions((ChunkKind::Pages, id), (pages::PORTION, runs), encode, &mut packed)
    }

    /// Writes pages as a writer has packed them before: of a file that was the same then. False, and nothing is
    /// written, if the chunk is not sound.
    pub fn packed_pages(&mut self, id: BlobId, chunk: &mut [u8]) -> Result<bool> {
        let Some((head, stored)) = chunk.split_first_chunk_mut() else { return Ok(false) };
        let is_sound = |header: &ChunkHeader| {
            header.kind == ChunkKind::Pages
                && header.stored_len as usize == stored.len()
                && header.body_crc == crc32fast::hash(stored)
        };
        let Some(header) = ChunkHeader::decode(head).ok().filter(is_sound) else {
            return Ok(false);
        };
        let header = ChunkHeader { id: id.0, ..header };
        *head = header.encode();
        self.write(chunk)?;
        self.note(&header);
        Ok(true)
    }

    /// Writes that pages of a blob begun with [`Writer::file`] are as they are in the file: their checksums alone.
    /// `read` as for [`Writer::pages_read`].
    pub fn references(
        &mut self,
        id: BlobId,
        runs: &[PageRun],
        mut read: impl FnMut(PageRun, &mut [u8]),
    ) -> Result<()> {
        let encode =
            |runs: &[PageRun], body: &mut Vec<u8>| references::encode(runs, body, &mut read);
        let kind = ChunkKind::References;
        self.portions((kind, id), (references::PORTION, runs), encode, &mut |_, _| {})
    }

    /// Writes runs of pages of a blob in chunks of such a kind, each of at most so many pages, whose bodies `encode`
    /// makes. `packed` is handed each chunk, with its pages.
    fn portions(
        &mut self,
        (kind, id): (ChunkKind, BlobId),
        (most, runs): (u32, &[PageRun]),
        mut encode: impl FnMut(&[PageRun], &mut Vec<u8>),
        packed: &mut impl FnMut(&[PageRun], &[u8]),
    ) -> Result<()> {
        let mut body = std::mem::take(&mut self.body);
        let written = pages::portions_of(most, runs, |runs| {
            encode(runs, &mut body);
            self.put(Label { kind, id: id.0, count: runs.len() as u32, first: 0 }, &body)?;
            packed(runs, &self.chunk);
            Ok(())
        });
        self.body = body;
        written
    }

    /// The same as [`Writer::pages_read`] for several blobs. All processors pack the pages, so this is for a
    /// time when nobody else needs a processor. `read` and `packed` are also given the place of the blob among
    /// `all`.
    pub fn pages_of_all(
        &mut self,
        all: &[(BlobId, &[PageRun])],
        read: impl Fn(usize, PageRun, &mut [u8]) + Sync,
        mut packed: impl FnMut(usize, &[PageRun], &[u8]),
    ) -> Result<()> {
        let mut portions = Vec::new();
        for (place, (id, runs)) in all.iter().enumerate() {
            pages::portions(runs, |runs| {
                portions.push((place, id.0, runs.to_vec()));
                Ok(())
            })?;
        }
        let pack = |packer: &mut Option<Packer>, (place, id, runs): &(usize, u32, Vec<PageRun>)| {
            let packer = match packer {
                Some(packer) => packer,
                None => packer.insert(Packer::new()?),
            };
            let (mut body, mut chunk) = (Vec::new(), Vec::new());
            pages::encode(runs, &mut body, |run, bytes| read(*place, run, bytes));
            let count = runs.len() as u32;
            let label = Label { kind: ChunkKind::Pages, id: *id, count, first: 0 };
            Ok((packer.pack(label, &body, &mut chunk)?, chunk))
        };
        for portions in portions.chunks(AT_ONCE) {
            for ((place, _, runs), made) in portions.iter().zip(in_parallel(portions, pack)) {
                let (header, chunk) = made?;
                self.write(&chunk)?;
                self.note(&header);
                packed(*place, runs, &chunk);
            }
        }
        Ok(())
    }

    /// Writes the next events of a thread, the first of which has the id `first`; `payloads` are
    /// theirs, made with [`payload::push`].
    pub fn events(
        &mut self,
        thread: ThreadId,
        first: EventId,
        events: &[Event],
        payloads: &[u8],
    ) -> Result<()> {
        let next = *self.next_event.get(&thread).unwrap_or(&0);
        if first.0 != next || thread.0 >= MAX_THREADS {
            let message = format!("{thread}: events from {first}, expected from {}", EventId(next));
            return Err(Error::Misuse(message));
        }
        let (mut events, mut payloads, mut first) = (events, payloads, first.0);
        while !events.is_empty() {
            let (count, len) = batch(thread, events, payloads)?;
            let (batch, later) = events.split_at(count);
            let (stream, rest) = payloads.split_at(len);
            self.event_chunk(thread, first, batch, stream)?;
            (events, payloads, first) = (later, rest, first + count as u64);
            self.next_event.insert(thread, first);
        }
        if !payloads.is_empty() {
            return Err(Error::Misuse(format!("{thread}: payloads that belong to no event")));
        }
        Ok(())
    }

    /// Writes that a thread has entered a system call, which is its next event. Holds until the
    /// thread's next events are written.
    pub fn entered(
        &mut self,
        thread: ThreadId,
        id: EventId,
        event: &Event,
        record: &SyscallRecord,
    ) -> Result<()> {
        let next = *self.next_event.get(&thread).unwrap_or(&0);
        if id.0 != next || next == 0 || !event.has_payload() {
            let message = format!("{thread}: a call that is {id}, expected {}", EventId(next));
            return Err(Error::Misuse(message));
        }
        let mut body = Vec::new();
        self.encoder
            .encode(std::slice::from_ref(event), &mut body)
            .map_err(|code| unknown_kind(thread, code))?;
        payload::push(&mut body, record);
        self.put(Label { kind: ChunkKind::Entered, id: thread.0, count: 1, first: id.0 }, &body)
    }

    fn event_chunk(
        &mut self,
        thread: ThreadId,
        first: u64,
        events: &[Event],
        payloads: &[u8],
    ) -> Result<()> {
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        let flags =
            self.encoder.encode(events, &mut body).map_err(|code| unknown_kind(thread, code))?;
        if flags & HAS_PAYLOAD != 0 && payloads.is_empty() {
            return Err(without_payload(thread));
        }
        let parts = (payloads.len().max(1) - 1) / MAX_PART;
        let (long, inline) = payloads.split_at(parts * MAX_PART);
        for (n, part) in long.chunks(MAX_PART).enumerate() {
            let kind = ChunkKind::Payload;
            self.put(Label { kind, id: thread.0, count: n as u32, first }, part)?;
        }
        body.extend_from_slice(inline);
        let kind = ChunkKind::Events;
        let label = Label { kind, id: thread.0, count: events.len() as u32, first };
        let result = self.put(label, &body);
        self.body = body;
        result
    }

    /// Writes a module.
    pub fn module(&mut self, module: &Module) -> Result<()> {
        self.modules += 1;
        if self.modules > MAX_MODULES {
            let (found, limit) = (self.modules as u64, MAX_MODULES as u64);
            return Err(Error::Limit { what: "modules", found, limit });
        }
        self.record(ChunkKind::Module, module)
    }

    /// Gives the trace another order than its header has. Once, and before the program has a second
    /// thread: until then, all orders are the same.
    pub fn order(&mut self, order: Order) -> Result<()> {
        self.record(ChunkKind::Order, &order)
    }

    /// Appends blocks to the trace's block table.
    pub fn blocks(&mut self, blocks: &[CodeBlock]) -> Result<()> {
        let mut rest = blocks;
        while !rest.is_empty() {
            let mut body = Vec::new();
            let mut count = 0;
            for block in rest {
                // At most 20 bytes stand before the code of a block.
                if count > 0 && body.len() + block.code.len() + 20 > MAX_PART {
                    break;
                }
                body = postcard::to_extend(block, body).map_err(unserializable)?;
                count += 1;
            }
            let kind = ChunkKind::Blocks;
            self.put(Label { kind, id: 0, count: count as u32, first: self.blocks }, &body)?;
            self.blocks += count as u64;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Writes what replaces the freed locks of a transformed trace, once, behind all events.
    pub fn transformed(&mut self, transformed: &Transformed) -> Result<()> {
        let body = postcard::to_stdvec(transformed).map_err(unserializable)?;
        transformed_parts(&body)?.try_for_each(|(label, part)| self.put(label, part))
    }

    /// Flushes `W`. Chunks are never held back, so there is nothing else to do.
    pub fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(Error::io("write the trace"))
    }

    /// Ends the trace with its footer and index.
    pub fn finish(mut self, footer: &Footer) -> Result<W> {
        self.conclude(footer)?;
        Ok(self.out)
    }

    /// The same, for a writer that is kept: nothing can be written any more.
    pub fn conclude(&mut self, footer: &Footer) -> Result<()> {
        self.record(ChunkKind::Footer, footer)?;
        let tail = index_and_trailer(&mut self.packer, &self.index, self.written)?;
        self.write(&tail)?;
        self.flush()
    }

    /// Gives up without a footer: the trace is one that was cut off.
    pub fn abandon(self) -> W {
        self.out
    }

    /// Bytes written so far.
    pub fn bytes_written(&self) -> u64 {
        self.written
    }

    fn record(&mut self, kind: ChunkKind, record: &impl Serialize) -> Result<()> {
        let body = postcard::to_stdvec(record).map_err(unserializable)?;
        self.put(Label::single(kind), &body)
    }

    fn put(&mut self, label: Label, body: &[u8]) -> Result<()> {
        let mut chunk = std::mem::take(&mut self.chunk);
        let header = self.packer.pack(label, body, &mut chunk)?;
        self.write(&chunk)?;
        self.chunk = chunk;
        self.note(&header);
        Ok(())
    }

    fn note(&mut self, header: &ChunkHeader) {
        self.chunks += 1;
        // One entry beyond the limit marks an index that is too long to be written.
        if self.index.len() <= MAX_INDEX {
            self.index.extend_from_slice(&header.encode());
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if self.broken {
            return Err(Error::Misuse("the trace is used after a failed write".into()));
        }
        self.broken = true;
        self.out.write_all(bytes).map_err(Error::io("write the trace"))?;
        self.broken = false;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// The parts of a record, and what their chunks are called.
pub(super) fn transformed_parts(body: &[u8]) -> Result<impl Iterator<Item = (Label, &[u8])>> {
    let found = body.len() as u64;
    if found > MAX_TRANSFORMED {
        return Err(Error::Limit { what: "transformation", found, limit: MAX_TRANSFORMED });
    }
    let count = body.len().div_ceil(MAX_PART);
    Ok(body.chunks(MAX_PART).enumerate().map(move |(n, part)| {
        let (count, first) = ((count - 1 - n) as u32, (n * MAX_PART) as u64);
        (Label { kind: ChunkKind::Transformed, id: 0, count, first }, part)
    }))
}

/// What stands behind the last chunk at `offset`: an index over `headers`, and the trailer.
pub(crate) fn index_and_trailer(
    packer: &mut Packer,
    headers: &[u8],
    offset: u64,
) -> Result<Vec<u8>> {
    let mut tail = Vec::new();
    if headers.len() <= MAX_INDEX {
        let count = (headers.len() / format::CHUNK_HEADER) as u32;
        let label = Label { kind: ChunkKind::Index, id: 0, count, first: 0 };
        packer.pack(label, headers, &mut tail)?;
        tail.extend_from_slice(&offset.to_le_bytes());
        tail.extend_from_slice(&END_MAGIC);
    }
    Ok(tail)
}

/// What ends a trace behind its last chunk at `offset`: a footer, and the index.
pub(super) fn footer_and_tail(
    packer: &mut Packer,
    footer: &Footer,
    chunks: &[Chunk],
    offset: u64,
) -> Result<Vec<u8>> {
    let body = postcard::to_stdvec(footer).map_err(unserializable)?;
    let mut bytes = Vec::new();
    let header = packer.pack(Label::single(ChunkKind::Footer), &body, &mut bytes)?;
    let headers = chunks.iter().map(|chunk| &chunk.header).chain([&header]);
    let headers: Vec<u8> = headers.flat_map(ChunkHeader::encode).collect();
    let offset = offset + bytes.len() as u64;
    bytes.extend(index_and_trailer(packer, &headers, offset)?);
    Ok(bytes)
}

/// How many of the events, and how many bytes of payload, go into the next chunk.
fn batch(thread: ThreadId, events: &[Event], payloads: &[u8]) -> Result<(usize, usize)> {
    let most = events.len().min(MAX_EVENTS);
    // Most events have no payload: then the encoder is the first that looks at them.
    if payloads.is_empty() {
        return Ok((most, 0));
    }
    let mut len = 0;
    for (n, _) in events[..most].iter().enumerate().filter(|(_, event)| event.has_payload()) {
        let size = payload::record_len(&payloads[len..]).ok_or_else(|| without_payload(thread))?;
        if size as u64 > MAX_PAYLOAD {
            return Err(Error::Limit { what: "payload", found: size as u64, limit: MAX_PAYLOAD });
        }
        if n > 0 && len + size > MAX_PART {
            return Ok((n, len));
        }
        len += size;
    }
    Ok((most, len))
}

fn unknown_kind(thread: ThreadId, code: u8) -> Error {
    Error::Misuse(format!("{thread}: event kind {code}"))
}

fn without_payload(thread: ThreadId) -> Error {
    Error::Misuse(format!("{thread}: an event without its payload"))
}

pub(super) fn unserializable(error: postcard::Error) -> Error {
    Error::Misuse(format!("a record that cannot be written ({error})"))
}
