//! What a trace holds, by chunk headers alone: which chunks make up which thread and which blob.

use super::format::{
    Chunk, ChunkKind, MAX_EVENTS, MAX_MODULES, MAX_PAYLOAD, MAX_THREADS, MAX_TRANSFORMED,
};
use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// A chunk of events and the payload parts before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventChunk {
    /// Its position among all chunks.
    pub(crate) chunk: usize,
    /// So many chunks directly before it hold the first parts of its payloads.
    pub(crate) parts: usize,
}

/// Chunks by what they belong to.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    pub(crate) modules: Vec<usize>,
    pub(crate) blocks: Vec<usize>,
    pub(crate) footer: Option<usize>,
    /// The order, if it is not the header's.
    pub(crate) order: Option<usize>,
    /// The parts of the record of a transformation.
    pub(crate) transformed: Vec<usize>,
    pub(crate) blobs: BTreeMap<u32, Vec<usize>>,
    /// Blobs of which only pages are there: the file's chunk, and those of its pages.
    pub(crate) files: BTreeMap<u32, (usize, Vec<usize>)>,
    pub(crate) threads: BTreeMap<u32, Stream>,
    /// By thread: its last chunk of an entered call, and the event that it is.
    entered: BTreeMap<u32, (usize, u64)>,
    /// Where the next run of blocks begins.
    next_block: u64,
}

/// The chunks of a thread.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) chunks: Vec<EventChunk>,
    pub(crate) events: u64,
}

impl Catalog {
    /// Sorts the chunks; the first is the header. `refuse` is asked what to do about a chunk
    /// that does not fit where it stands: it is left out, or, on `Err`, the whole trace is.
    pub(crate) fn new(
        chunks: &[Chunk],
        mut refuse: impl FnMut(&Chunk, Error) -> Result<()>,
    ) -> Result<Catalog> {
        let mut catalog = Catalog::default();
        // So many payload parts stand directly before the chunk.
        let mut parts = 0;
        for (n, chunk) in chunks.iter().enumerate() {
            if parts > 0 && !follows(&chunks[n - 1], chunk) {
                refuse_parts(&chunks[n - parts..n], &mut refuse)?;
                parts = 0;
            }
            if chunk.header.kind == ChunkKind::Payload {
                match check_part(&chunks[n - parts..n], chunk) {
                    Ok(()) => parts += 1,
                    Err(error) => {
                        refuse_parts(&chunks[n - parts..n], &mut refuse)?;
                        refuse(chunk, error)?;
                        parts = 0;
                    }
                }
                continue;
            }
            if let Err(error) = catalog.add(chunks, n, parts) {
                refuse_parts(&chunks[n - parts..n], &mut refuse)?;
                refuse(chunk, error)?;
            }
            parts = 0;
        }
        catalog.conclude();
        Ok(catalog)
    }

    /// Calls that were entered, and of which nothing more is known, are events.
    fn conclude(&mut self) {
        for (&thread, &(chunk, event)) in &self.entered {
            let stream = self.threads.entry(thread).or_default();
            if stream.events == event {
                stream.chunks.push(EventChunk { chunk, parts: 0 });
                stream.events += 1;
            }
        }
    }

    fn add(&mut self, chunks: &[Chunk], n: usize, parts: usize) -> Result<()> {
        let chunk = &chunks[n];
        let header = &chunk.header;
        if (header.kind == ChunkKind::Header) != (chunk.number == 0) {
            return Err(chunk.corrupt("a trace has one header, at its start"));
        }
        if self.footer.is_some() {
            return Err(chunk.corrupt("it stands behind the footer"));
        }
        match header.kind {
            ChunkKind::Header => {}
            ChunkKind::Module if self.modules.len() == MAX_MODULES => {
                return Err(chunk.corrupt("the trace has too many modules"));
            }
            ChunkKind::Module => self.modules.push(n),
            ChunkKind::Blocks if header.first != self.next_block => {
                return Err(chunk.corrupt(format!("blocks from {} are missing", self.next_block)));
            }
            ChunkKind::Blocks => {
                self.blocks.push(n);
                self.next_block += u64::from(header.count);
            }
            ChunkKind::Blob => self.blob(chunks, n)?,
            ChunkKind::File => {
                let known = self.files.contains_key(&header.id);
                if known || self.blobs.contains_key(&header.id) {
                    return Err(chunk.corrupt(format!("blob{} is there already", header.id)));
                }
                self.files.insert(header.id, (n, Vec::new()));
            }
            ChunkKind::Pages | ChunkKind::References => match self.files.get_mut(&header.id) {
                Some((_, pages)) => pages.push(n),
                None => return Err(chunk.corrupt(format!("blob{} is no file", header.id))),
            },
            ChunkKind::Events => self.events(chunk, n, parts)?,
            ChunkKind::Entered => self.enter(chunk, n)?,
            ChunkKind::Footer if !self.transformed.is_empty() && !self.is_transformed(chunks) => {
                return Err(chunk.corrupt("the transformation before it is not whole"));
            }
            ChunkKind::Footer => self.footer = Some(n),
            ChunkKind::Order if self.order.is_some() => {
                return Err(chunk.corrupt("the trace has its order already"));
            }
            ChunkKind::Order => self.order = Some(n),
            ChunkKind::Transformed => self.transformed(chunks, n)?,
            ChunkKind::Payload | ChunkKind::Index => {
                return Err(chunk.corrupt("it does not belong there"));
            }
        }
        Ok(())
    }

    /// Parts of a blob come in order, each telling how many are still to come.
    fn blob(&mut self, chunks: &[Chunk], n: usize) -> Result<()> {
        let chunk = &chunks[n];
        let header = &chunk.header;
        if self.files.contains_key(&header.id) {
            return Err(chunk.corrupt(format!("blob{} is there already", header.id)));
        }
        let parts = self.blobs.entry(header.id).or_default();
        let fits = match parts.last().map(|&last| &chunks[last].header) {
            None => header.first == 0,
            Some(last) => {
                last.count.checked_sub(1) == Some(header.count)
                    && last.first + u64::from(last.raw_len) == header.first
            }
        };
        if !fits {
            return Err(chunk.corrupt(format!("it is not the next part of blob{}", header.id)));
        }
        parts.push(n);
        Ok(())
    }

    /// Whether a transformation is there as a whole.
    pub(crate) fn is_transformed(&self, chunks: &[Chunk]) -> bool {
        self.transformed.last().is_some_and(|&last| chunks[last].header.count == 0)
    }

    /// The parts of the one record come in order, as those of a blob do.
    fn transformed(&mut self, chunks: &[Chunk], n: usize) -> Result<()> {
        let (chunk, header) = (&chunks[n], &chunks[n].header);
        let fits = match self.transformed.last().map(|&last| &chunks[last].header) {
            None => header.first == 0,
            Some(last) => {
                last.count.checked_sub(1) == Some(header.count)
                    && last.first + u64::from(last.raw_len) == header.first
            }
        };
        if !fits || header.first + u64::from(header.raw_len) > MAX_TRANSFORMED {
            return Err(chunk.corrupt("it is not the next part of the transformation"));
        }
        self.transformed.push(n);
        Ok(())
    }

    fn events(&mut self, chunk: &Chunk, n: usize, parts: usize) -> Result<()> {
        let header = &chunk.header;
        if header.id >= MAX_THREADS {
            return Err(chunk.corrupt("the number of its thread is over the limit"));
        }
        // Without this a thread without events would differ from no thread.
        if header.count == 0 || header.count as usize > MAX_EVENTS {
            return Err(chunk.corrupt("the number of its events is out of bounds"));
        }
        let stream = self.threads.entry(header.id).or_default();
        if header.first != stream.events {
            return Err(chunk.corrupt(format!(
                "it holds events of t{} from e{}, but those from e{} are missing",
                header.id, header.first, stream.events
            )));
        }
        stream.chunks.push(EventChunk { chunk: n, parts });
        stream.events += u64::from(header.count);
        Ok(())
    }

    /// A thread begins before it enters a call.
    fn enter(&mut self, chunk: &Chunk, n: usize) -> Result<()> {
        let header = &chunk.header;
        let so_far = self.threads.get(&header.id).map_or(0, |stream| stream.events);
        if header.count != 1 || header.first != so_far || so_far == 0 {
            return Err(chunk.corrupt("it is not the next event of its thread"));
        }
        self.entered.insert(header.id, (n, header.first));
        Ok(())
    }
}

/// Whether `chunk` goes on where the payload part `part` stops. That they are neighbours in the
/// file is part of it: leaving out a chunk between two must not join them.
fn follows(part: &Chunk, chunk: &Chunk) -> bool {
    let (before, header) = (&part.header, &chunk.header);
    matches!(header.kind, ChunkKind::Events | ChunkKind::Payload)
        && (header.id, header.first) == (before.id, before.first)
        && part.end() == chunk.offset
}

/// Checks a payload part that stands behind the parts `before`.
fn check_part(before: &[Chunk], chunk: &Chunk) -> Result<()> {
    if chunk.header.count as usize != before.len() {
        return Err(chunk.corrupt("it is not the next part of a payload"));
    }
    let sum: u64 = before.iter().chain([chunk]).map(|c| u64::from(c.header.raw_len)).sum();
    if sum > MAX_PAYLOAD {
        return Err(chunk.corrupt("the payload that it is part of is over the limit"));
    }
    Ok(())
}

fn refuse_parts(
    parts: &[Chunk],
    refuse: &mut impl FnMut(&Chunk, Error) -> Result<()>,
) -> Result<()> {
    let lost = "the events that it belongs to are lost";
    parts.iter().try_for_each(|part| refuse(part, part.corrupt(lost)))
}
