//! References to pages of files.
//!
//! The body of a chunk of references is the runs, as in a chunk of pages, and behind them the checksum of each
//! page, a 32-bit little-endian number. The rest of a file's last page is zero. A page that the trace both refers
//! to and has is as the trace has it: the recorded program was about to change the file.

use super::format::{Chunk, PAGE};
use super::pages::{self, PageRun};
use crate::error::Result;

/// Pages of a chunk that is written.
pub(super) const PORTION: u32 = 4096;
/// Bytes of a checksum.
pub(super) const SUM: usize = 4;

/// Makes `body` that of a chunk; `read` gives the bytes of each run.
pub(super) fn encode(
    runs: &[PageRun],
    body: &mut Vec<u8>,
    mut read: impl FnMut(PageRun, &mut [u8]),
) {
    body.clear();
    pages::put_heads(runs, body);
    let mut bytes = Vec::new();
    for &run in runs {
        bytes.clear();
        bytes.resize(run.len() as usize, 0);
        read(run, &mut bytes);
        body.extend(bytes.chunks(PAGE).flat_map(|page| crc32fast::hash(page).to_le_bytes()));
    }
}

/// Whether the body of a chunk is one of references, of a file of this length if that is known.
pub(super) fn check(chunk: &Chunk, body: &[u8], file: Option<u64>) -> Result<()> {
    runs(chunk, body, file.unwrap_or(u64::MAX)).map(drop)
}

/// The runs in a chunk's body, each with its checksums; the file has so many bytes.
pub(super) fn runs<'a>(
    chunk: &Chunk,
    body: &'a [u8],
    file: u64,
) -> Result<Vec<(PageRun, &'a [u8])>> {
    pages::split(chunk, body, file, SUM)
}
