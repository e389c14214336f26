//! Finding the chunks of a file: by its index, or by walking from header to header.

use super::body::Unpacker;
use super::format::{
    self, CHUNK_HEADER, Chunk, ChunkHeader, ChunkKind, END_MAGIC, PREAMBLE, SYNC, TRAILER,
};
use super::source::Source;
use crate::error::{ChunkAt, Result};

/// The chunks of a file, the index itself left out.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) chunks: Vec<Chunk>,
    /// Whether the index was there and sound.
    pub(crate) indexed: bool,
}

impl Layout {
    /// Whether some pages are in their files alone.
    pub(crate) fn refers(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.header.kind == ChunkKind::References)
    }
}

/// Checks magic and version.
pub(crate) fn check_preamble(source: &Source) -> Result<()> {
    let mut bytes = [0; PREAMBLE];
    let known = source.len().min(PREAMBLE as u64) as usize;
    source.read_at(0, &mut bytes[..known])?;
    format::check_preamble(&bytes[..known])
}

/// Finds the chunks. A file that stops in the middle of a chunk, or in zeros (a machine that
/// lost power), is one that was cut off; anything else that is no chunk is damage.
pub(crate) fn find(source: &Source) -> Result<Layout> {
    check_preamble(source)?;
    if let Some(chunks) = by_index(source) {
        return Ok(Layout { chunks, indexed: true });
    }
    let walk = walk(source, PREAMBLE as u64, 0)?;
    match walk.stop {
        Stop::End | Stop::CutOff => Ok(Layout { chunks: walk.chunks, indexed: false }),
        Stop::Damage(at, what) => Err(at.corrupt(what)),
    }
}

/// Why a walk ended.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Behind a whole chunk.
    End,
    /// In the middle of a chunk.
    CutOff,
    /// At something that is no chunk.
    Damage(ChunkAt, &'static str),
}

/// What a walk found.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) stop: Stop,
    /// Where it ended: behind the last whole chunk.
    pub(crate) end: u64,
    /// Where the index begins; the end of the file if it has none.
    pub(crate) index_from: u64,
}

/// Walks over chunks from `offset`, where chunk `number` begins. Bodies are not read.
pub(crate) fn walk(source: &Source, offset: u64, number: u64) -> Result<Walk> {
    let mut walk =
        Walk { chunks: Vec::new(), stop: Stop::End, end: offset, index_from: source.len() };
    let mut number = number;
    while walk.end < source.len() {
        let offset = walk.end;
        let left = source.len() - offset;
        if left < CHUNK_HEADER as u64 {
            walk.stop = Stop::CutOff;
            break;
        }
        let mut bytes = [0; CHUNK_HEADER];
        source.read_at(offset, &mut bytes)?;
        let header = match ChunkHeader::decode(&bytes) {
            Ok(header) => header,
            Err(_) if zeros(source, offset)? => {
                walk.stop = Stop::CutOff;
                break;
            }
            Err(what) => {
                walk.stop = Stop::Damage(ChunkAt { number, kind: None, offset }, what);
                break;
            }
        };
        let chunk = Chunk { header, number, offset };
        if chunk.end() > source.len() {
            walk.stop = Stop::CutOff;
            break;
        }
        walk.end = chunk.end();
        number += 1;
        if header.kind == ChunkKind::Index {
            walk.index_from = offset;
            if source.len() - walk.end > TRAILER as u64 {
                let at = ChunkAt { number, kind: None, offset: walk.end };
                walk.stop = Stop::Damage(at, "it stands behind the index, which ends a trace");
            }
            break;
        }
        walk.chunks.push(chunk);
    }
    Ok(walk)
}

/// Whether nothing but zeros follows `offset`.
fn zeros(source: &Source, offset: u64) -> Result<bool> {
    let mut buffer = [0; 4096];
    let mut at = offset;
    while at < source.len() {
        let n = (source.len() - at).min(buffer.len() as u64) as usize;
        source.read_at(at, &mut buffer[..n])?;
        if buffer[..n].iter().any(|&b| b != 0) {
            return Ok(false);
        }
        at += n as u64;
    }
    Ok(true)
}

/// The first place from `offset` on where a sound chunk header stands.
pub(crate) fn resync(source: &Source, offset: u64) -> Result<Option<u64>> {
    const STEP: usize = 1 << 16;
    let mut buffer = vec![0; STEP + CHUNK_HEADER];
    let mut at = offset;
    while at + CHUNK_HEADER as u64 <= source.len() {
        let n = (source.len() - at).min(buffer.len() as u64) as usize;
        source.read_at(at, &mut buffer[..n])?;
        for (i, window) in buffer[..n].windows(CHUNK_HEADER).enumerate() {
            if window[..4] == SYNC
                && window.first_chunk().is_some_and(|w| ChunkHeader::decode(w).is_ok())
            {
                return Ok(Some(at + i as u64));
            }
        }
        at += (n - CHUNK_HEADER + 1) as u64;
    }
    Ok(None)
}

/// The chunks as the index has them; `None` if there is no sound index, for whatever reason.
///
/// The index is a copy of all headers, and chunks follow each other without gaps, so that the
/// headers alone give the offsets; if the sum is not the offset of the index, it is not sound.
fn by_index(source: &Source) -> Option<Vec<Chunk>> {
    let mut trailer = [0; TRAILER];
    let end = source.len().checked_sub(TRAILER as u64)?;
    source.read_at(end, &mut trailer).ok()?;
    let (offset, magic) = trailer.split_first_chunk()?;
    if magic != END_MAGIC {
        return None;
    }
    let offset = u64::from_le_bytes(*offset);
    let mut head = [0; CHUNK_HEADER];
    if offset.checked_add(CHUNK_HEADER as u64)? > end {
        return None;
    }
    source.read_at(offset, &mut head).ok()?;
    let header = ChunkHeader::decode(&head).ok()?;
    let index = Chunk { header, number: 0, offset };
    if header.kind != ChunkKind::Index || index.end() != end {
        return None;
    }
    let mut body = Vec::new();
    Unpacker::new().ok()?.unpack(source, &index, &mut body).ok()?;
    // A sound index cannot list more chunks than fit before it; checked before memory is taken.
    let (headers, []) = body.as_chunks::<CHUNK_HEADER>() else { return None };
    if headers.len() as u64 > offset / CHUNK_HEADER as u64 {
        return None;
    }
    let mut chunks = Vec::with_capacity(headers.len());
    let mut at = PREAMBLE as u64;
    for bytes in headers {
        let header = ChunkHeader::decode(bytes).ok()?;
        let chunk = Chunk { header, number: chunks.len() as u64, offset: at };
        at = chunk.end();
        chunks.push(chunk);
    }
    (at == offset).then_some(chunks)
}

/// Whether the file ends as a closed trace does.
pub(crate) fn has_trailer(source: &Source) -> bool {
    let mut magic = [0; 8];
    let at = source.len().checked_sub(magic.len() as u64);
    at.is_some_and(|at| source.read_at(at, &mut magic).is_ok()) && magic == END_MAGIC
}
