//! Ending a trace whose file takes no more.
//!
//! The disk is full, the file has reached the limit of its size, or a write has failed. What was
//! written stays as it is: half a chunk at the end is cut away, and a footer and an index are
//! written behind the last whole chunk. Where there is no room for them, a few of the last chunks
//! make room, as if the file had been cut off before them. A file that takes nothing even then is
//! one that was cut off: it can be read all the same.

use super::catalog::Catalog;
use super::format::{CHUNK_HEADER, Chunk, ChunkHeader, ChunkKind, MAX_INDEX, PREAMBLE};
use super::writer::{Writer, footer_and_tail};
use crate::error::Result;
use crate::{Ending, Footer};
use std::fs::File;
use std::io::{self, Write};

/// How much room is made, again and again, beyond what the end takes: file systems give back whole
/// blocks, some of them large.
const ROOMS: [u64; 2] = [0, 16 << 10];

/// What can be cut off at the end, and written behind there again.
pub trait Truncate {
    /// Cuts off all but the first `len` bytes; what is written next comes behind them.
    fn truncate_to(&mut self, len: u64) -> io::Result<()>;
}

impl Truncate for File {
    fn truncate_to(&mut self, len: u64) -> io::Result<()> {
        use std::io::{Seek, SeekFrom};
        self.set_len(len)?;
        self.seek(SeekFrom::Start(len)).map(drop)
    }
}

impl Truncate for Vec<u8> {
    fn truncate_to(&mut self, len: u64) -> io::Result<()> {
        self.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(())
    }
}

/// What became of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Salvaged {
    /// Length of the file.
    pub bytes: u64,
    /// Events that it holds.
    pub events: u64,
    /// Whether it has a footer and an index; if not, it is a trace that was cut off.
    pub whole: bool,
}

impl<W: Write + Truncate> Writer<W> {
    /// Ends the trace after a failed write.
    pub fn salvage(mut self, tsc_end: u64) -> Result<(Salvaged, W)> {
        Ok((self.end_where_it_is(tsc_end)?, self.out))
    }

    fn end_where_it_is(&mut self, tsc_end: u64) -> Result<Salvaged> {
        let complete = self.index.len() <= MAX_INDEX;
        let mut headers = decode(&self.index);
        // A footer that was written is not the end if what belongs behind it could not be.
        while let Some(footer) = headers.pop_if(|chunk| chunk.header.kind == ChunkKind::Footer) {
            self.written -= footer.header.size();
        }
        // The header and the initial memory, without which nothing can be replayed, stay.
        let initial = headers.iter().take_while(|chunk| is_initial(chunk.header.kind)).count();
        let mut rooms = ROOMS.iter();
        loop {
            let catalog = Catalog::new(&headers, |_, error| Err(error))?;
            let threads = catalog.threads.last_key_value().map_or(0, |(&last, _)| last + 1);
            let of = |thread| catalog.threads.get(&thread).map_or(0, |stream| stream.events);
            let events: Vec<u64> = (0..threads).map(of).collect();
            let mut salvaged =
                Salvaged { bytes: self.written, events: events.iter().sum(), whole: false };
            // Behind half a chunk that cannot be cut away, nothing would be found.
            if self.out.truncate_to(self.written).is_err() || !complete {
                return Ok(salvaged);
            }
            let footer =
                Footer { ending: Ending::Lost, tsc_end, events, cpu_ns: 0, output_bytes: 0 };
            let tail = footer_and_tail(&mut self.packer, &footer, &headers, self.written)?;
            if self.out.write_all(&tail).and_then(|()| self.out.flush()).is_ok() {
                salvaged.bytes += tail.len() as u64;
                salvaged.whole = true;
                return Ok(salvaged);
            }
            let room = rooms.next().map(|room| tail.len() as u64 + room);
            if room.is_none_or(|room| !self.make_room(&mut headers, initial, room)) {
                let _ = self.out.truncate_to(self.written);
                return Ok(salvaged);
            }
        }
    }

    /// Gives up the last chunks until so many bytes are free; false if nothing can be given up.
    fn make_room(&mut self, headers: &mut Vec<Chunk>, initial: usize, room: u64) -> bool {
        let mut freed = 0;
        // No parts of a payload without its events.
        let ends_in_part =
            |all: &[Chunk]| all.last().is_some_and(|c| c.header.kind == ChunkKind::Payload);
        while headers.len() > initial && (freed < room || ends_in_part(headers)) {
            freed += headers.pop().map_or(0, |chunk| chunk.header.size());
        }
        self.written -= freed;
        freed > 0
    }
}

fn is_initial(kind: ChunkKind) -> bool {
    matches!(kind, ChunkKind::Header | ChunkKind::Blob | ChunkKind::File)
}

/// The chunks that the writer has written, in their places.
fn decode(index: &[u8]) -> Vec<Chunk> {
    let (headers, _) = index.as_chunks::<CHUNK_HEADER>();
    let mut offset = PREAMBLE as u64;
    let chunk = |(number, bytes): (u64, &[u8; CHUNK_HEADER])| {
        let header = ChunkHeader::decode(bytes).expect("the writer has encoded it");
        let chunk = Chunk { header, number, offset };
        offset = chunk.end();
        chunk
    };
    (0..).zip(headers).map(chunk).collect()
}
