//! Pages of files: which, and their bytes.
//!
//! The body of such a chunk is the runs, each a first page and a number of pages as 32-bit
//! little-endian numbers, and then the bytes of all of them. The chunk's header has the number of
//! runs.

use super::format::{Chunk, MAX_PAGES, PAGE};
use crate::error::Result;

/// Bytes of a run in a chunk.
const RUN: usize = 8;
/// Pages of a chunk that is written; fewer than there may be.
pub(super) const PORTION: u32 = 64;
const _: () = assert!(PORTION as usize <= MAX_PAGES);

/// Neighbouring pages of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRun {
    /// The first one's number in the file.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

impl PageRun {
    /// Offset of the first one in the file.
    pub fn offset(self) -> u64 {
        u64::from(self.first) * PAGE as u64
    }

    /// Bytes of all of them.
    pub fn len(self) -> u64 {
        u64::from(self.count) * PAGE as u64
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// The page behind the last one.
    pub(crate) fn end(self) -> u64 {
        u64::from(self.first) + u64::from(self.count)
    }
}

/// Hands out runs in portions for one chunk each, which stay in the processor's cache while they are
/// read, compressed and written.
pub(super) fn portions(
    runs: &[PageRun],
    write: impl FnMut(&[PageRun]) -> Result<()>,
) -> Result<()> {
    portions_of(PORTION, runs, write)
}

/// The same, in portions of at most so many pages.
pub(super) fn portions_of(
    most: u32,
    runs: &[PageRun],
    mut write: impl FnMut(&[PageRun]) -> Result<()>,
) -> Result<()> {
    let (mut portion, mut room) = (Vec::new(), most);
    for &run in runs {
        let mut run = run;
        while run.count > 0 {
            let taken = PageRun { count: run.count.min(room), ..run };
            portion.push(taken);
            room -= taken.count;
            run = PageRun { first: run.first + taken.count, count: run.count - taken.count };
            if room == 0 {
                write(&portion)?;
                portion.clear();
                room = most;
            }
        }
    }
    if portion.is_empty() { Ok(()) } else { write(&portion) }
}

/// Makes `body` that of a chunk; `read` gives the bytes of each run.
pub(super) fn encode(
    runs: &[PageRun],
    body: &mut Vec<u8>,
    mut read: impl FnMut(PageRun, &mut [u8]),
) {
    body.clear();
    put_heads(runs, body);
    let mut at = body.len();
    let len: u64 = runs.iter().map(|run| run.len()).sum();
    body.resize(at + len as usize, 0);
    for &run in runs {
        let end = at + run.len() as usize;
        read(run, &mut body[at..end]);
        at = end;
    }
}

/// Appends what a chunk's body begins with.
pub(super) fn put_heads(runs: &[PageRun], body: &mut Vec<u8>) {
    for run in runs {
        body.extend_from_slice(&run.first.to_le_bytes());
        body.extend_from_slice(&run.count.to_le_bytes());
    }
}

/// The runs in a chunk's body, each with its bytes; the file has so many bytes.
pub(super) fn decode<'a>(
    chunk: &Chunk,
    body: &'a [u8],
    file: u64,
) -> Result<Vec<(PageRun, &'a [u8])>> {
    split(chunk, body, file, PAGE)
}

/// The runs in a chunk's body, each with what the body has of it: so many bytes of each page.
pub(super) fn split<'a>(
    chunk: &Chunk,
    body: &'a [u8],
    file: u64,
    of_page: usize,
) -> Result<Vec<(PageRun, &'a [u8])>> {
    let wrong = || chunk.corrupt("it holds other pages than it says");
    let heads = (chunk.header.count as usize).checked_mul(RUN).ok_or_else(wrong)?;
    let (heads, mut rest) = body.split_at_checked(heads).ok_or_else(wrong)?;
    let mut runs = Vec::new();
    for head in heads.chunks_exact(RUN) {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| head[at + i]));
        let run = PageRun { first: word(0), count: word(4) };
        if run.end() > file.div_ceil(PAGE as u64).min(1 << 32) {
            return Err(chunk.corrupt("it has pages beyond the end of the file"));
        }
        let len = (run.count as usize).checked_mul(of_page).ok_or_else(wrong)?;
        let (bytes, later) = rest.split_at_checked(len).ok_or_else(wrong)?;
        runs.push((run, bytes));
        rest = later;
    }
    if rest.is_empty() { Ok(runs) } else { Err(wrong()) }
}

/// Whether the body of a chunk is one of pages, of a file of this length if that is known.
pub(super) fn check(chunk: &Chunk, body: &[u8], file: Option<u64>) -> Result<()> {
    decode(chunk, body, file.unwrap_or(u64::MAX)).map(drop)
}
