//! The contents of files that the guest maps, unpacked before the guest runs.
//!
//! A recorded program maps its libraries from files that the kernel has in memory, so that a
//! mapping costs next to nothing, and a page costs something only when the program touches it. A replay
//! has the contents of these files in one file in memory, and maps them from there.
//!
//! Of most files the trace has only the pages that the recorded program touched. A replay keeps all
//! other pages out of reach, whatever protection the guest gives them, so that a replay which goes
//! another way faults instead of reading zeros.

use crate::file_maps::Part;
use crate::layout::PAGE;
use crate::memory::{self, MapRequest};
use crate::{Error, Result, host};
use rangemap::{RangeMap, RangeSet};
use refrain_trace::payload::Window;
use refrain_trace::{BlobId, Trace};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// So many bytes of whole contents are unpacked beforehand. Further ones are unpacked when they are mapped.
const MOST: u64 = 256 << 20;
/// The same for contents of which the trace has only pages; the missing pages count as well.
const MOST_BY_PAGES: u64 = 512 << 20;

pub(crate) struct MappedFiles {
    file: File,
    /// Where in the file each content begins (at a page), and its length.
    places: BTreeMap<BlobId, (u64, u64)>,
    /// For each content of which the trace has only pages: the ranges of the file that these pages cover.
    partial: BTreeMap<BlobId, RangeSet<u64>>,
    /// Memory that shows pages which the trace does not have; nobody may touch it.
    absent: Mutex<Absent>,
}

/// Ranges with the protection that the guest gave them.
type Absent = RangeMap<u64, i32>;

impl MappedFiles {
    /// Those of the files that the guest maps itself.
    pub(crate) fn of(trace: &Trace) -> Result<MappedFiles> {
        let file = host::memory_file().map_err(failed())?;
        let (places, partial, absent) = (BTreeMap::new(), BTreeMap::new(), Mutex::default());
        let mut files = MappedFiles { file, places, partial, absent };
        let mut end = files.unpack_pages(trace)?;
        let loaded: BTreeSet<_> =
            trace.header().mappings.iter().filter_map(|m| m.content).collect();
        let mut unpacked = 0;
        for blob in trace.blobs().filter(|blob| !loaded.contains(blob)) {
            let len = trace.blob_len(blob)?;
            if unpacked + len > MOST {
                continue;
            }
            // If this blob is damaged, the replay reports it when the guest maps it.
            let Ok(bytes) = trace.blob(blob) else { continue };
            write_at(&files.file, &bytes, end).map_err(failed())?;
            files.places.insert(blob, (end, len));
            unpacked += len;
            end = memory::page_up(end + len);
        }
        files.file.set_len(end).map_err(failed())?;
        Ok(files)
    }

    /// Unpacks the contents of which there are pages; returns where they end in the file.
    fn unpack_pages(&mut self, trace: &Trace) -> Result<u64> {
        let mut end: u64 = 0;
        for blob in trace.files() {
            let len = trace.file(blob)?.map_or(0, |file| file.len);
            let start = end;
            let Some(next) = start.checked_add(len).filter(|&end| end <= MOST_BY_PAGES) else {
                continue;
            };
            end = memory::page_up(next);
            let there = self.partial.entry(blob).or_default();
            let mut written = Ok(());
            trace.pages(blob, |offset, bytes| {
                let result = write_at(&self.file, bytes, start + offset);
                written = std::mem::replace(&mut written, Ok(())).and(result);
                memory::join(there, offset..offset + bytes.len() as u64);
            })?;
            written.map_err(failed())?;
            self.places.insert(blob, (start, len));
        }
        Ok(end)
    }

    /// Maps what the window shows at `address`, over memory that is there; false if that content
    /// was not unpacked.
    pub(crate) fn map(&self, address: u64, prot: i32, window: &Window) -> Result<bool> {
        let Some(&(start, whole)) = self.places.get(&window.blob) else { return Ok(false) };
        let len = whole.saturating_sub(window.offset).min(window.len);
        if len == 0 || !window.offset.is_multiple_of(PAGE) {
            return Ok(false);
        }
        let (flags, fd) = (libc::MAP_PRIVATE, self.file.as_raw_fd());
        let offset = (start + window.offset) as i64;
        memory::map_fixed(MapRequest { address, len, prot, flags, fd, offset })
            .map_err(Error::host("mapping the content of a file"))?;
        if let Some(there) = self.partial.get(&window.blob) {
            self.note_absent(address..address + memory::page_up(len), there, window.offset, prot);
        }
        Ok(true)
    }

    /// Stores the pages that the window shows in memory that is there. False if the trace has the whole content,
    /// not single pages of it.
    pub(crate) fn store(
        &self,
        trace: &Trace,
        address: u64,
        prot: i32,
        window: &Window,
    ) -> Result<bool> {
        let Some(file) = trace.file(window.blob)? else { return Ok(false) };
        let shown = window.offset..window.offset.saturating_add(window.len).min(file.len);
        let there = pages_in(trace, window.blob, &shown, |from, bytes| {
            store(address + (from - shown.start), bytes.len() as u64, bytes)
        })?;
        let end = address + memory::page_up(shown.end.saturating_sub(shown.start));
        self.note_absent(address..end, &there, window.offset, prot);
        Ok(true)
    }

    /// Hands all pages that the trace has of a file to `fill`. `part` is a shared mapping of the file: its
    /// pages that the trace does not have, nobody may touch.
    pub(crate) fn show_pages(
        &self,
        trace: &Trace,
        blob: BlobId,
        part: Part,
        prot: i32,
        fill: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let len = trace.file(blob)?.map_or(0, |file| file.len);
        let there = pages_in(trace, blob, &(0..len), fill)?;
        let shown = memory::page_up(len).saturating_sub(part.offset).min(part.end - part.start);
        let range = part.start..part.start + shown;
        self.note_absent(range.clone(), &there, part.offset, prot);
        self.hide(&range, prot);
        Ok(())
    }

    /// Notes what of a mapping nobody may touch: all but what is there of the content, which is
    /// shown from an offset on.
    fn note_absent(&self, range: Range<u64>, there: &RangeSet<u64>, offset: u64, prot: i32) {
        let mut absent = self.absent();
        let shown = offset..offset.saturating_add(range.end - range.start);
        for gap in there.gaps(&shown) {
            let at = |place: u64| range.start + (place - offset);
            add(&mut absent, at(gap.start)..at(gap.end), prot);
        }
    }

    /// The guest has other memory there now.
    pub(crate) fn replaced(&self, range: &Range<u64>) {
        take(&mut self.absent(), range);
    }

    /// Moves what the guest has mapped, as `remap` does it. Mappings are moved only in one piece,
    /// so what nobody may touch has the guest's protection meanwhile.
    pub(crate) fn moved(
        &self,
        from: Range<u64>,
        to: Range<u64>,
        remap: impl FnOnce() -> i64,
    ) -> i64 {
        let mut absent = self.absent();
        let parts = take(&mut absent, &from);
        parts.iter().for_each(|(part, prot)| protect(part, *prot));
        take(&mut absent, &to);
        let result = remap();
        for (part, prot) in parts {
            let moved = |at: u64| (to.start + (at - from.start)).min(to.end);
            let part = moved(part.start)..moved(part.end);
            protect(&part, libc::PROT_NONE);
            add(&mut absent, part, prot);
        }
        result
    }

    /// The guest has given a range this protection: what nobody may touch stays out of reach.
    pub(crate) fn hide(&self, range: &Range<u64>, prot: i32) {
        let mut absent = self.absent();
        for (part, _) in take(&mut absent, range) {
            protect(&part, libc::PROT_NONE);
            add(&mut absent, part, prot);
        }
    }

    /// Whether an address is in a page of a file that the trace does not have.
    pub(crate) fn is_absent(&self, address: u64) -> bool {
        self.absent().contains_key(&address)
    }

    fn absent(&self) -> MutexGuard<'_, Absent> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands what the trace has of a range of a file to `each`, with its offset; returns the pages in which that
/// lies.
fn pages_in(
    trace: &Trace,
    blob: BlobId,
    range: &Range<u64>,
    mut each: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<RangeSet<u64>> {
    let (mut there, mut done) = (RangeSet::new(), Ok(()));
    trace.pages(blob, |offset, bytes| {
        let (from, to) = (offset.max(range.start), (offset + bytes.len() as u64).min(range.end));
        if from < to && done.is_ok() {
            done = each(from, &bytes[(from - offset) as usize..(to - offset) as usize]);
            memory::join(&mut there, from..memory::page_up(to));
        }
    })?;
    done?;
    Ok(there)
}

/// Writes at an offset. A sandboxed process may do this in two steps only.
fn write_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

/// Adds a range, if there is anything in it.
fn add(absent: &mut Absent, range: Range<u64>, prot: i32) {
    if !range.is_empty() {
        absent.insert(range, prot);
    }
}

/// Takes a range out; what was there.
fn take(absent: &mut Absent, range: &Range<u64>) -> Vec<(Range<u64>, i32)> {
    if range.is_empty() {
        return Vec::new();
    }
    let within = |part: &Range<u64>| part.start.max(range.start)..part.end.min(range.end);
    let taken = absent.overlapping(range).map(|(part, prot)| (within(part), *prot)).collect();
    absent.remove(range.clone());
    taken
}

fn protect(range: &Range<u64>, prot: i32) {
    if range.start < range.end {
        memory::AddressSpace::new().protect(range.start, range.end - range.start, prot);
    }
}

fn failed() -> impl FnOnce(io::Error) -> Error {
    Error::host("keeping the contents of mapped files")
}

/// Stores recorded content into a mapping of `len` bytes.
pub(crate) fn store(address: u64, len: u64, bytes: &[u8]) -> Result<()> {
    let bytes = &bytes[..bytes.len().min(len as usize)];
    if bytes.is_empty() || host::Guest.store(address, bytes) {
        return Ok(());
    }
    Err(Error::Unsupported(format!("a trace whose content at {address:#x} has no memory")))
}

#[cfg(test)]
mod tests {
    use super::{Absent, add, take};

    #[test]
    fn ranges_keep_their_protection() {
        let mut absent = Absent::new();
        add(&mut absent, 10..20, 1);
        add(&mut absent, 30..40, 2);
        add(&mut absent, 50..50, 3);
        assert_eq!(take(&mut absent, &(20..30)), []);
        assert_eq!(take(&mut absent, &(15..35)), [(15..20, 1), (30..35, 2)]);
        assert_eq!(absent, Absent::from([(10..15, 1), (35..40, 2)]));
        assert_eq!(take(&mut absent, &(12..13)), [(12..13, 1)]);
        assert_eq!(absent, Absent::from([(10..12, 1), (13..15, 1), (35..40, 2)]));
        assert_eq!(take(&mut absent, &(0..100)).len(), 3);
        assert!(absent.is_empty());
    }
}
