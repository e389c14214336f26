//! Packed traces: what a trace refers to is in it.

use super::body::Label;
use super::copied::Copied;
use super::format::ChunkKind;
use super::pages::{self, PageRun};
use super::reader::Trace;
use super::references::{SUM, runs};
use super::scan;
use super::source::Source;
use crate::error::{Error, Lack, Result};
use crate::{BlobId, MappedFile};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;

/// Whether the trace in an open file refers to files ([`Writer::references`](super::Writer::references)). Reads
/// the trace's index alone, or the headers of its chunks if it has no index.
pub fn refers_to_files(trace: File) -> Result<bool> {
    let source = Source::from_file(trace, "read the trace".into())?;
    Ok(scan::find(&source)?.refers())
}

/// Writes a trace to `out` that has all pages which this one refers to. The other chunks are copied as they are.
/// `open` opens a file by its path; a file that is not what it was in the recording is refused by name.
///
/// # Errors
/// [`Error::Referenced`] names a file that is missing or has changed.
pub fn write_packed<W: Write>(
    trace: &Trace,
    mut open: impl FnMut(&MappedFile) -> std::io::Result<File>,
    out: W,
) -> Result<W> {
    let (source, chunks) = trace.parts();
    let mut copied = Copied::begin(source, out, "write the packed trace")?;
    let there = pages_there(trace)?;
    let mut files: BTreeMap<u32, File> = BTreeMap::new();
    let mut body = Vec::new();
    for chunk in chunks {
        if chunk.header.kind != ChunkKind::References {
            copied.copy(chunk)?;
            continue;
        }
        let id = chunk.header.id;
        let file = trace.file(BlobId(id))?.ok_or_else(|| Error::Missing(BlobId(id).to_string()))?;
        trace.body_of(chunk, &mut body)?;
        let (mut wanted, mut sums) = (Vec::new(), Vec::new());
        for (run, of_run) in runs(chunk, &body, file.len)? {
            for (page, sum) in numbers(run).zip(of_run.chunks_exact(SUM)) {
                if !there.contains(&(id, page)) {
                    wanted.push(PageRun { first: page, count: 1 });
                    sums.push(sum);
                }
            }
        }
        if wanted.is_empty() {
            continue;
        }
        let refuse = |lack| Error::Referenced { path: file.path.clone(), lack };
        let opened = match files.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                new.insert(open(&file).map_err(Lack::Unreadable).map_err(refuse)?)
            }
        };
        let mut sums = sums.into_iter();
        pages::portions(&wanted, |runs| {
            let mut packed = Vec::new();
            let mut answer = Ok(());
            pages::encode(runs, &mut packed, |run, page| {
                let read = read_page(opened, file.len, run, page, sums.next());
                answer = std::mem::replace(&mut answer, Ok(())).and(read);
            });
            answer.map_err(refuse)?;
            let count = runs.len() as u32;
            let label = Label { kind: ChunkKind::Pages, id, count, first: 0 };
            copied.add(label, &packed)
        })?;
    }
    match trace.footer() {
        Some(_) => copied.finish(),
        None => copied.stop(),
    }
}

/// The numbers of a run's pages.
fn numbers(run: PageRun) -> impl Iterator<Item = u32> {
    (u64::from(run.first)..run.end()).map(|page| page as u32)
}

/// The pages of files that the trace has: blob and number.
fn pages_there(trace: &Trace) -> Result<BTreeSet<(u32, u32)>> {
    let (_, chunks) = trace.parts();
    let mut there = BTreeSet::new();
    let mut body = Vec::new();
    for chunk in chunks.iter().filter(|chunk| chunk.header.kind == ChunkKind::Pages) {
        trace.body_of(chunk, &mut body)?;
        for (run, _) in pages::decode(chunk, &body, u64::MAX)? {
            there.extend(numbers(run).map(|page| (chunk.header.id, page)));
        }
    }
    Ok(there)
}

/// Reads a page of a file of so many bytes, which is to have this checksum.
fn read_page(
    file: &File,
    len: u64,
    run: PageRun,
    page: &mut [u8],
    sum: Option<&[u8]>,
) -> std::result::Result<(), Lack> {
    let there = len.saturating_sub(run.offset()).min(run.len()) as usize;
    match file.read_exact_at(&mut page[..there], run.offset()) {
        Ok(()) if sum == Some(&crc32fast::hash(page).to_le_bytes()) => Ok(()),
        Ok(()) => Err(Lack::Changed),
        // The file is shorter now.
        Err(answer) if answer.kind() == ErrorKind::UnexpectedEof => Err(Lack::Changed),
        Err(answer) => Err(Lack::Unreadable(answer)),
    }
}
