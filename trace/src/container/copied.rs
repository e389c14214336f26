//! A trace that is written from the chunks of another one.

use super::body::{Label, Packer};
use super::format::{self, Chunk, ChunkHeader};
use super::source::Source;
use super::writer::index_and_trailer;
use crate::error::{Error, Result};
use std::io::Write;

/// What is written so far.
pub(super) struct Copied<'a, W> {
    source: &'a Source,
    out: W,
    /// What is tried with `out`, for messages.
    action: &'static str,
    packer: Packer,
    written: u64,
    /// The headers of all chunks: the body of the index.
    headers: Vec<u8>,
    bytes: Vec<u8>,
}

impl<'a, W: Write> Copied<'a, W> {
    pub(super) fn begin(source: &'a Source, out: W, action: &'static str) -> Result<Self> {
        let (packer, headers, bytes) = (Packer::new()?, Vec::new(), format::preamble().to_vec());
        let mut copied = Copied { source, out, action, packer, written: 0, headers, bytes };
        copied.write()?;
        Ok(copied)
    }

    /// Writes a chunk of the other trace as it is.
    pub(super) fn copy(&mut self, chunk: &Chunk) -> Result<()> {
        self.bytes.resize(chunk.header.size() as usize, 0);
        self.source.read_at(chunk.offset, &mut self.bytes)?;
        self.put(&chunk.header)
    }

    /// Writes a new chunk.
    pub(super) fn add(&mut self, label: Label, body: &[u8]) -> Result<()> {
        let header = self.packer.pack(label, body, &mut self.bytes)?;
        self.put(&header)
    }

    fn put(&mut self, header: &ChunkHeader) -> Result<()> {
        self.headers.extend(header.encode());
        self.write()
    }

    fn write(&mut self) -> Result<()> {
        self.out.write_all(&self.bytes).map_err(Error::io(self.action))?;
        self.written += self.bytes.len() as u64;
        Ok(())
    }

    /// Ends a trace that has a footer with its index.
    pub(super) fn finish(mut self) -> Result<W> {
        self.bytes = index_and_trailer(&mut self.packer, &self.headers, self.written)?;
        self.write()?;
        self.stop()
    }

    /// Leaves a trace that was cut off as it is.
    pub(super) fn stop(mut self) -> Result<W> {
        self.out.flush().map_err(Error::io(self.action))?;
        Ok(self.out)
    }
}
