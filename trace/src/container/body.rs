//! Chunk bodies: compression and checksums.

use super::format::{CHUNK_HEADER, CODING_RAW, CODING_ZSTD, Chunk, ChunkHeader, ChunkKind};
use super::source::Source;
use crate::error::{Error, Result};
use std::io::Cursor;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

/// Fast, and within a few percent of level 3 on event columns.
const LEVEL: i32 = 1;
/// Of pages of files and of code, which are most of a short program's trace.
const LEVEL_OF_CODE: i32 = -1;
/// With a table that stays in the processor's first cache, and without short matches, it takes two thirds of
/// that level's time, for a tenth more bytes.
const FOR_CODE: [CParameter; 2] = [CParameter::HashLog(12), CParameter::MinMatch(6)];

/// What a chunk is called: the part of its header that its maker chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub(crate) kind: ChunkKind,
    pub(crate) id: u32,
    pub(crate) count: u32,
    pub(crate) first: u64,
}

impl Label {
    /// A chunk of which there is one, or whose place is all that counts.
    pub(crate) fn single(kind: ChunkKind) -> Label {
        Label { kind, id: 0, count: 1, first: 0 }
    }
}

/// Turns bodies into chunks.
pub(crate) struct Packer {
    zstd: Compressor<'static>,
    of_code: Compressor<'static>,
}

impl Packer {
    pub(crate) fn new() -> Result<Packer> {
        let make = || {
            let zstd = Compressor::new(LEVEL)?;
            let mut of_code = Compressor::new(LEVEL_OF_CODE)?;
            FOR_CODE.into_iter().try_for_each(|it| of_code.set_parameter(it))?;
            Ok(Packer { zstd, of_code })
        };
        make().map_err(Error::io("set up compression"))
    }

    /// Compresses `body` to the end of `out`.
    fn compress(&mut self, kind: ChunkKind, body: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
        let zstd = match kind {
            ChunkKind::Pages | ChunkKind::Blocks => &mut self.of_code,
            _ => &mut self.zstd,
        };
        out.reserve(zstd::zstd_safe::compress_bound(body.len()));
        let end = out.len() as u64;
        let mut behind = Cursor::new(out);
        behind.set_position(end);
        zstd.compress_to_buffer(body, &mut behind).map(drop)
    }

    /// Writes the chunk to `out` (cleared first).
    pub(crate) fn pack(
        &mut self,
        label: Label,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<ChunkHeader> {
        let limit = label.kind.max_raw();
        if body.len() > limit {
            let (found, limit) = (body.len() as u64, limit as u64);
            return Err(Error::Limit { what: label.kind.name(), found, limit });
        }
        out.clear();
        out.resize(CHUNK_HEADER, 0);
        self.compress(label.kind, body, out).map_err(Error::io("compress a part of the trace"))?;
        let smaller = out.len() - CHUNK_HEADER < body.len();
        if !smaller {
            out.truncate(CHUNK_HEADER);
            out.extend_from_slice(body);
        }
        let (head, stored) = out.split_at_mut(CHUNK_HEADER);
        let Label { kind, id, count, first } = label;
        let header = ChunkHeader {
            kind,
            coding: if smaller { CODING_ZSTD } else { CODING_RAW },
            id,
            count,
            first,
            raw_len: body.len() as u32,
            stored_len: stored.len() as u32,
            body_crc: crc32fast::hash(stored),
        };
        head.copy_from_slice(&header.encode());
        Ok(header)
    }
}

/// Turns chunks into bodies.
pub(crate) struct Unpacker {
    zstd: Decompressor<'static>,
    stored: Vec<u8>,
}

impl Unpacker {
    pub(crate) fn new() -> Result<Unpacker> {
        let zstd = Decompressor::new().map_err(Error::io("set up decompression"))?;
        Ok(Unpacker { zstd, stored: Vec::new() })
    }

    /// Reads the body of `chunk` into `body` (cleared first), having checked that the file still
    /// says of the chunk what `chunk` says.
    pub(crate) fn unpack(
        &mut self,
        source: &Source,
        chunk: &Chunk,
        body: &mut Vec<u8>,
    ) -> Result<()> {
        let header = &chunk.header;
        body.clear();
        if let Some(held) = source.held(chunk) {
            body.extend_from_slice(held);
            return Ok(());
        }
        if header.raw_len as usize > header.kind.max_raw() {
            return Err(chunk.corrupt("its length is over the limit"));
        }
        if chunk.end() > source.len() {
            return Err(chunk.corrupt("it reaches beyond the end of the file"));
        }
        self.stored.resize(header.size() as usize, 0);
        source.read_at(chunk.offset, &mut self.stored)?;
        let (head, stored) = self.stored.split_at(CHUNK_HEADER);
        if head != header.encode() {
            return Err(chunk.corrupt("its header is not what the index says"));
        }
        if crc32fast::hash(stored) != header.body_crc {
            return Err(chunk.corrupt("the checksum of its body does not match"));
        }
        if header.coding == CODING_RAW {
            body.extend_from_slice(stored);
        } else {
            body.reserve(header.raw_len as usize);
            // zstd fills up to the capacity, which may be larger than what was asked for.
            self.zstd
                .decompress_to_buffer(stored, body)
                .map_err(|e| chunk.corrupt(format!("its body cannot be decompressed ({e})")))?;
        }
        if body.len() != header.raw_len as usize {
            return Err(chunk.corrupt("its body has another length than its header says"));
        }
        Ok(())
    }
}
