//! Writing a transformed trace: the chunks of the original as they are, and the record of the
//! transformation behind them.

use super::copied::Copied;
use super::format::ChunkKind;
use super::reader::Trace;
use super::writer::{transformed_parts, unserializable};
use crate::Transformed;
use crate::error::{Error, Result};
use std::io::Write;

/// Writes the trace with this transformation to `out`; one that it has already is left out.
/// Chunks are copied as they are. The trace must have a footer: its end is known.
pub fn write_transformed<W: Write>(trace: &Trace, transformed: &Transformed, out: W) -> Result<W> {
    let (source, chunks) = trace.parts();
    if trace.footer().is_none() {
        return Err(Error::Missing("end; `refrain check --repair` gives it one".into()));
    }
    let mut copied = Copied::begin(source, out, "write the transformed trace")?;
    let body = postcard::to_stdvec(transformed).map_err(unserializable)?;
    for chunk in chunks.iter().filter(|chunk| chunk.header.kind != ChunkKind::Transformed) {
        if chunk.header.kind == ChunkKind::Footer {
            for (label, part) in transformed_parts(&body)? {
                copied.add(label, part)?;
            }
        }
        copied.copy(chunk)?;
    }
    copied.finish()
}
