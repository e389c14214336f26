//! The layout of the file: its first bytes, the chunk header, and the limits.
//!
//! ```text
//! file    = magic[8] version:u32  chunk*  trailer
//! chunk   = header[40] body[stored_len]
//! header  = sync[4] kind:u8 coding:u8 zero:u16 id:u32 count:u32 first:u64
//!           raw_len:u32 stored_len:u32 body_crc:u32 header_crc:u32
//! trailer = index_offset:u64 end_magic[8]
//! ```
//! Numbers are little-endian. `header_crc` covers the header before it, `body_crc` the body as
//! stored; since the one covers the other, a chunk whose two sums agree is as it was written.
//! Two sums instead of one let a reader step over a damaged body, and let it trust `stored_len`
//! without reading the body.
//!
//! What `id`, `count` and `first` mean by kind:
//!
//! | kind | id | count | first |
//! |---|---|---|---|
//! | header, order, module, footer | 0 | 1 | 0 |
//! | blob | blob | parts of the blob after this one | offset in the blob |
//! | file | blob | 1 | bytes of the file |
//! | pages, references | blob | runs of pages | 0 |
//! | payload | thread | number of the part | first event of the chunk that it belongs to |
//! | events | thread | events | id of the first event |
//! | entered | thread | 1 | id of the event |
//! | blocks | 0 | blocks | number of the first block |
//! | transformed | 0 | parts of the record after this one | offset in the record |
//! | index | 0 | chunks before it | 0 |

use crate::error::{ChunkAt, Error, Result};

/// Version of the file format that this crate writes, and the only one that it reads.
pub const FORMAT_VERSION: u32 = 16;

/// First bytes of a trace. Not text, so that a transfer in text mode shows.
pub(crate) const MAGIC: [u8; 8] = *b"\x89refrain";
/// Last bytes of a trace that was closed.
pub(crate) const END_MAGIC: [u8; 8] = *b"niarfer\x89";
/// Magic and version.
pub(crate) const PREAMBLE: usize = 12;
/// Bytes of a chunk header.
pub(crate) const CHUNK_HEADER: usize = 40;
/// Offset of the index and end magic.
pub(crate) const TRAILER: usize = 16;
/// First bytes of every chunk; what a scan of a damaged file looks for.
pub(crate) const SYNC: [u8; 4] = *b"\xc7rfc";

/// Events in a chunk, at most. Decoded they take 1.25 MiB, which a cursor holds.
pub const MAX_EVENTS: usize = 1 << 14;
/// Bytes of one part of a blob or of a payload, and of a run of blocks.
pub const MAX_PART: usize = 4 << 20;
/// Uncompressed bytes of any chunk but the index.
pub const MAX_RAW: usize = 8 << 20;
/// Uncompressed bytes of the index; a longer one is not written and the file is scanned instead.
pub(crate) const MAX_INDEX: usize = 64 << 20;
/// Uncompressed bytes of a module chunk.
pub(crate) const MAX_MODULE: usize = 64 << 10;
/// Modules of a trace.
pub const MAX_MODULES: usize = 1 << 12;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Pages of one chunk, with room for as many runs.
pub(super) const MAX_PAGES: usize = MAX_PART / (PAGE + 8);
/// Threads of a trace, over its whole run.
pub const MAX_THREADS: u32 = 1 << 20;
/// Payload bytes of one chunk. One system call moves at most 2 GiB.
pub const MAX_PAYLOAD: u64 = (2 << 30) + MAX_PART as u64;
/// Bytes of a blob that [`crate::Trace::blob`] puts together; read longer ones by parts.
pub const MAX_BLOB: u64 = 4 << 30;
/// Bytes of the record of a transformation ([`crate::Transformed`]).
pub const MAX_TRANSFORMED: u64 = 1 << 28;
/// Bytes of all code blocks that [`crate::Trace::blocks`] puts together.
pub const MAX_CODE: u64 = 1 << 30;

macro_rules! chunk_kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// What a chunk holds.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum ChunkKind { $($(#[$doc])* $name = $code,)* }

        impl ChunkKind {
            /// The kind with this code.
            pub(crate) fn from_code(code: u8) -> Option<ChunkKind> {
                match code { $($code => Some(ChunkKind::$name),)* _ => None }
            }

            /// The name in messages.
            pub fn name(self) -> &'static str {
                match self { $(ChunkKind::$name => $text,)* }
            }
        }
    };
}

chunk_kinds! {
    /// The [`crate::Header`]; the first chunk.
    Header = 1, "header";
    /// A part of a blob.
    Blob = 2, "blob";
    /// A part of payloads too long for their chunk of events, which follows.
    Payload = 3, "payload";
    /// Events of one thread, with their payloads.
    Events = 4, "events";
    /// A [`crate::Module`].
    Module = 5, "module";
    /// A run of [`crate::CodeBlock`]s.
    Blocks = 6, "blocks";
    /// The [`crate::Footer`].
    Footer = 7, "footer";
    /// The headers of all chunks; the last chunk.
    Index = 8, "index";
    /// A system call that a thread has entered, as the one event of a chunk: what is known of a
    /// thread that waits in a call. It is the thread's last event until a chunk of its events
    /// follows, which has the call with its result.
    Entered = 9, "entered";
    /// A [`crate::MappedFile`]: a blob of which the trace has only the pages that were touched.
    File = 10, "file";
    /// Pages of such a blob.
    Pages = 11, "pages";
    /// A part of a [`crate::Transformed`].
    Transformed = 12, "transformed";
    /// The [`crate::Order`] of the trace, if the header has another one.
    Order = 13, "order";
    /// Pages of a [`crate::MappedFile`] that are in the file alone, and their checksums.
    References = 14, "references";
}

impl ChunkKind {
    /// Uncompressed bytes that a chunk of this kind may have.
    pub(crate) fn max_raw(self) -> usize {
        match self {
            ChunkKind::Blob | ChunkKind::Payload | ChunkKind::Pages | ChunkKind::Transformed => {
                MAX_PART
            }
            ChunkKind::Module => MAX_MODULE,
            ChunkKind::Index => MAX_INDEX,
            _ => MAX_RAW,
        }
    }
}

/// The body is stored as it is.
pub(crate) const CODING_RAW: u8 = 0;
/// The body is a zstd frame.
pub(crate) const CODING_ZSTD: u8 = 1;

/// The header of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkHeader {
    pub(crate) kind: ChunkKind,
    pub(crate) coding: u8,
    pub(crate) id: u32,
    pub(crate) count: u32,
    pub(crate) first: u64,
    pub(crate) raw_len: u32,
    pub(crate) stored_len: u32,
    pub(crate) body_crc: u32,
}

impl ChunkHeader {
    /// The bytes in the file.
    pub(crate) fn encode(&self) -> [u8; CHUNK_HEADER] {
        let mut out = [0; CHUNK_HEADER];
        out[..4].copy_from_slice(&SYNC);
        out[4] = self.kind as u8;
        out[5] = self.coding;
        out[8..12].copy_from_slice(&self.id.to_le_bytes());
        out[12..16].copy_from_slice(&self.count.to_le_bytes());
        out[16..24].copy_from_slice(&self.first.to_le_bytes());
        out[24..28].copy_from_slice(&self.raw_len.to_le_bytes());
        out[28..32].copy_from_slice(&self.stored_len.to_le_bytes());
        out[32..36].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc32fast::hash(&out[..36]);
        out[36..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header and checks everything that can be checked without the body. `Err` is a
    /// phrase for a message.
    pub(crate) fn decode(bytes: &[u8; CHUNK_HEADER]) -> Result<ChunkHeader, &'static str> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        if bytes[..4] != SYNC {
            return Err("no chunk begins here");
        }
        if word(36) != crc32fast::hash(&bytes[..36]) {
            return Err("the checksum of its header does not match");
        }
        let kind = ChunkKind::from_code(bytes[4]).ok_or("its kind is unknown")?;
        let header = ChunkHeader {
            kind,
            coding: bytes[5],
            id: word(8),
            count: word(12),
            first: u64::from(word(16)) | u64::from(word(20)) << 32,
            raw_len: word(24),
            stored_len: word(28),
            body_crc: word(32),
        };
        if bytes[6..8] != [0, 0] || header.coding > CODING_ZSTD {
            return Err("it is coded in an unknown way");
        }
        if header.raw_len as usize > kind.max_raw() || header.stored_len > header.raw_len {
            return Err("its length is over the limit");
        }
        if header.coding == CODING_RAW && header.stored_len != header.raw_len {
            return Err("its two lengths contradict each other");
        }
        Ok(header)
    }

    /// Bytes of the chunk in the file.
    pub(crate) fn size(&self) -> u64 {
        CHUNK_HEADER as u64 + u64::from(self.stored_len)
    }
}

/// A chunk in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    pub(crate) header: ChunkHeader,
    pub(crate) number: u64,
    pub(crate) offset: u64,
}

impl Chunk {
    /// The chunk's name in messages.
    pub(crate) fn at(&self) -> ChunkAt {
        ChunkAt { number: self.number, kind: Some(self.header.kind), offset: self.offset }
    }

    /// First byte behind the chunk.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.header.size()
    }

    /// An [`Error::Corrupt`] about this chunk.
    pub(crate) fn corrupt(&self, what: impl Into<String>) -> Error {
        self.at().corrupt(what)
    }
}

/// The first bytes of the file.
pub(crate) fn preamble() -> [u8; PREAMBLE] {
    let mut out = [0; PREAMBLE];
    out[..8].copy_from_slice(&MAGIC);
    out[8..].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    out
}

/// Checks the first bytes of a file (fewer than [`PREAMBLE`] if the file is shorter).
pub(crate) fn check_preamble(bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        return Err(Error::NotATrace);
    }
    let Some(version) = bytes.get(8..PREAMBLE) else { return Err(Error::CutOff) };
    let found = u32::from_le_bytes([0, 1, 2, 3].map(|i| version[i]));
    if found != FORMAT_VERSION {
        return Err(Error::Version { found });
    }
    Ok(())
}
