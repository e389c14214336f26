//! Writing a transformed trace: the chunks of the original as they are, and the record of the
//! transformation behind them.

use super::body::Packer;
use super::format::{self, ChunkHeader, ChunkKind};
use super::reader::Trace;
use super::writer::{index_and_trailer, transformed_parts, unserializable};
use crate::Transformed;
use crate::error::{Error, Result};
use std::io::Write;

/// Writes the trace with this transformation to `out`; one that it has already is left out.
/// Chunks are copied as they are. The trace must have a footer: its end is known.
pub fn write_transformed<W: Write>(
    trace: &Trace,
    transformed: &Transformed,
    mut out: W,
) -> Result<W> {
    let (source, chunks) = trace.parts();
    if trace.footer().is_none() {
        return Err(Error::Missing("end; `refrain check --repair` gives it one".into()));
    }
    let failed = || Error::io("write the transformed trace");
    out.write_all(&format::preamble()).map_err(failed())?;
    let mut written = format::PREAMBLE as u64;
    let mut headers: Vec<ChunkHeader> = Vec::new();
    let mut packer = Packer::new()?;
    let mut bytes = Vec::new();
    let body = postcard::to_stdvec(transformed).map_err(unserializable)?;
    for chunk in chunks.iter().filter(|chunk| chunk.header.kind != ChunkKind::Transformed) {
        if chunk.header.kind == ChunkKind::Footer {
            for (label, part) in transformed_parts(&body)? {
                let header = packer.pack(label, part, &mut bytes)?;
                out.write_all(&bytes).map_err(failed())?;
                written += bytes.len() as u64;
                headers.push(header);
            }
        }
        bytes.resize(chunk.header.size() as usize, 0);
        source.read_at(chunk.offset, &mut bytes)?;
        out.write_all(&bytes).map_err(failed())?;
        written += bytes.len() as u64;
        headers.push(chunk.header);
    }
    let headers: Vec<u8> = headers.iter().flat_map(ChunkHeader::encode).collect();
    let tail = index_and_trailer(&mut packer, &headers, written)?;
    out.write_all(&tail).and_then(|()| out.flush()).map_err(failed())?;
    Ok(out)
}
