//! Contents of files that the guest has mapped: the trace gets the pages that were touched.
//!
//! When somebody touches a page of a mapping, the kernel enters the page into the process's page table. The rule
//! here: *before an event is written, every page of a mapped file that the page table has is written*. It does not
//! matter who touched the page: translated code, the translator, or the kernel in a system call. The recorder looks
//! for touched pages when it writes events, when the guest takes a mapping away, and at the end; so a recorder that
//! is killed leaves the pages that its written events need. The loader maps the program and its interpreter in the
//! same way. The kernel is asked not to enter a page's neighbours, which nobody has touched ([`SinglePages`]), and to
//! use no large pages: it takes a large page out of the table again when the guest writes to it, and what was only
//! read there would be missing ([`no_large_pages`]).
//!
//! The bytes come from the file, since the guest may have changed its own copy of a page. The writer reads them when
//! it writes them. If the guest takes a mapping away or forks, the pages of the mapping are read then; a thread that
//! takes a file's last mapping away waits until the writer has read what it still needs of the file.
//!
//! So a file whose content may change is kept whole at once: one that somebody has just written, and one that
//! is mapped shared through a descriptor for writing. A shared mapping of another file is kept by pages until the
//! guest is about to change the file by a call or by such a mapping, or shares the mapping with a process that may
//! change it; then the rest of the file is kept. If a file changes nevertheless while it is mapped, the recording
//! says so ([`Notice::FileChanged`](super::Notice::FileChanged)).
//!
//! Pages of programs and libraries that an earlier recording has packed are copied from there ([`packed`]).
//!
//! If the trace is to refer to files ([`Files::new`]), the checksums of the pages are written in place of the
//! bytes: of files that can be found by their paths, unless the guest is about to change them.
//!
//! # Limits
//! - A clean page that memory pressure takes away between two looks is missing. A replay that
//!   comes to it faults there, and says so.
//! - Where looking takes long, because many gigabytes are mapped, it is done less often, and what a
//!   killed recorder leaves may end in events whose pages are missing. A replay ends before them.

mod packed;

use crate::file_maps::{FileMaps, Part, take_within};
use crate::host::{self, PageTable, SinglePages, TouchedPages, no_large_pages};
use crate::layout::PAGE;
use crate::loader::is_settled;
use crate::memory::page_up;
use crate::{Hidden, Result};
use packed::{Key, OfFile, Packed};
use refrain_trace::container::PageRun;
use refrain_trace::{BlobId, MappedFile, Writer};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// Bytes of pages that wait for the writer; beyond, it is to be woken.
const PENDING: usize = 16 << 20;
/// Files that are held open at once.
const MOST_FILES: usize = 512;
/// Processor time of a look after which there is a rest of ten times as long, if that is not longer
/// than [`REST`] and the look itself.
const LONG: Duration = Duration::from_millis(2);
const REST: Duration = Duration::from_millis(30);
/// Bytes between two mappings that are looked at in one go, at most.
const NEAR: u64 = 64 * PAGE;
/// All addresses.
pub(super) const ANYWHERE: Range<u64> = 0..u64::MAX;

/// Device and inode, size, and time of change: what tells contents apart.
type Identity = (u64, u64, u64, i64, i64);

/// Pages of one file that are on their way to the trace.
struct Pages {
    blob: BlobId,
    runs: Vec<PageRun>,
    bytes: Bytes,
    /// Their checksums alone are written.
    referenced: bool,
}

/// Where the bytes of pages are.
enum Bytes {
    /// Here: of a file that may change.
    Read(Vec<u8>),
    /// In the file still.
    InFile(Arc<Source>),
    /// In chunks that an earlier recording has kept, and in the file.
    Packed(Arc<Source>, BTreeSet<usize>),
}

/// A file that is open.
struct Source {
    file: Hidden,
    identity: Identity,
    /// What packed pages of it are kept by.
    key: Option<Key>,
}

/// A file.
struct Content {
    blob: BlobId,
    len: u64,
    /// Open as long as it is mapped.
    file: Option<Arc<Source>>,
    /// Pages that the trace has or will have: 64 in a word.
    kept: BTreeMap<u32, u64>,
    /// The trace may refer to it.
    referenced: bool,
    /// What an earlier recording has kept of it. If one page of a chunk is among the kept ones, all are, unless the
    /// trace refers to the file.
    packed: OfFile,
}

/// What is known of the files.
#[derive(Default)]
pub(super) struct State {
    contents: Vec<Content>,
    known: BTreeMap<Identity, usize>,
    /// Mappings; a file's number in it is its place among the contents.
    maps: FileMaps,
    /// What the writer has not written yet.
    files: Vec<(BlobId, MappedFile)>,
    pages: Vec<Pages>,
    /// A file has changed while it was mapped.
    changed: bool,
    /// Page faults of the process when it was looked last.
    faults: u64,
    /// Until when looking is put off.
    rest: Option<Instant>,
    touched: TouchedPages,
    /// The trace refers to files.
    refers: bool,
    packed: Arc<Packed>,
}

/// All files that are kept by pages.
#[derive(Default)]
pub(crate) struct Files {
    table: Option<PageTable>,
    single: Option<SinglePages>,
    state: Mutex<State>,
    /// Held while the writer reads files; taken by who has `state`.
    reading: Mutex<()>,
    packed: Arc<Packed>,
}

impl Files {
    /// If the trace `refers` to files, it has the bytes only of files that may change before the replay. `kept` is
    /// what an earlier recording has kept ([`Self::kept`]).
    pub(crate) fn new(refers: bool, kept: Option<&File>) -> Files {
        let packed = Arc::new(kept.map(Packed::read).unwrap_or_default());
        let touched = TouchedPages::new();
        let state = State { touched, refers, packed: packed.clone(), ..State::default() };
        Files {
            table: PageTable::open(),
            single: SinglePages::new(),
            state: Mutex::new(state),
            packed,
            ..Files::default()
        }
    }

    /// What later recordings of the program may go by, if that is more than there was.
    pub(crate) fn kept(&self) -> Option<Vec<Vec<u8>>> {
        if self.have_changed() { None } else { self.packed.kept() }
    }

    /// Notes that the guest sees `file` at `range`, from `offset` on. `None` if its content must
    /// be kept at once. `open` gives a descriptor of the recorder's own and the path, `id` numbers
    /// blobs.
    pub(crate) fn map(
        &self,
        range: Range<u64>,
        offset: u64,
        metadata: &Metadata,
        open: impl FnOnce() -> Option<(Hidden, String)>,
        id: impl FnOnce() -> BlobId,
    ) -> Option<BlobId> {
        if self.table.is_none() || !metadata.is_file() || !is_settled(metadata) {
            return None;
        }
        let identity = identity(metadata);
        let mut state = self.lock();
        let state = &mut *state;
        let known = state.known.get(&identity).copied();
        if known.is_none_or(|known| state.contents[known].file.is_none()) {
            let open_files = state.contents.iter().filter(|content| content.file.is_some());
            if open_files.count() + state.pages.len() >= MOST_FILES {
                return None;
            }
            let (file, path) = open()?;
            let key = packed::key(file.file(), metadata);
            let file = Arc::new(Source { file, identity, key });
            match known {
                Some(known) => state.contents[known].file = Some(file),
                None => state.begin(id(), file, path, metadata),
            }
        }
        let content = state.known[&identity];
        no_large_pages(&range);
        if let Some(single) = &self.single {
            single.register(&range);
        }
        state.touched.keep(&range);
        let Range { start, end } = range;
        state.maps.insert(Part { start, end, file: content as u64, offset, writable: false });
        self.close_unused(state);
        Some(state.contents[content].blob)
    }

    /// The guest is about to change or take away what it has mapped there. True if the writer
    /// should be woken.
    pub(crate) fn before(&self, range: &Range<u64>) -> bool {
        let mut state = self.lock();
        self.look(&mut state, range);
        state.read_pages();
        state.pages.iter().map(|pages| pages.bytes.in_memory()).sum::<usize>() > PENDING
    }

    /// The guest is about to change files that it has mapped shared in these places, and may change them
    /// again: the rest of what they show is kept now.
    pub(crate) fn keep_rest(&self, ranges: &[Range<u64>]) {
        let mut state = self.lock();
        let state = &mut *state;
        for range in ranges {
            for part in state.maps.parts(range) {
                let file = part.file as usize;
                let mut runs = Vec::new();
                state.unrefer(file);
                let content = &mut state.contents[file];
                let end = page_up(content.len).min(part.offset + (part.end - part.start));
                let pages = (part.offset / PAGE) as u32..(end / PAGE) as u32;
                pages.for_each(|page| content.keep(page, &mut runs));
                if !runs.is_empty() {
                    state.take(file, runs);
                }
            }
        }
        state.read_pages();
        for range in ranges {
            state.maps.cut(range);
        }
        self.close_unused(state);
    }

    /// The guest is about to change a file that it has mapped privately, or had mapped: the bytes of all pages
    /// that are wanted of this file are read now.
    pub(super) fn before_change(&self, file: (u64, u64)) {
        let mut state = self.lock();
        let state = &mut *state;
        self.look(state, &ANYWHERE);
        let is_it = |(known, _): &(&Identity, &usize)| (known.0, known.1) == file;
        let contents: Vec<usize> = state.known.iter().filter(is_it).map(|it| *it.1).collect();
        contents.into_iter().for_each(|content| state.unrefer(content));
        state.read_pages();
    }

    /// Whether what is shown at the beginning of a range is kept by pages.
    pub(crate) fn keeps(&self, range: &Range<u64>) -> bool {
        !self.lock().maps.parts(&(range.start..range.start + 1)).is_empty()
    }

    /// The guest advises the kernel about a range: while it does, nothing there is locked.
    pub(crate) fn advise<T>(&self, range: &Range<u64>, advise: impl FnOnce() -> T) -> T {
        let state = self.lock();
        let parts = || state.maps.parts(range).into_iter().map(|part| part.start..part.end);
        parts().for_each(|part| state.touched.let_go(&part));
        let result = advise();
        parts().for_each(|part| state.touched.keep(&part));
        result
    }

    /// The guest is about to lock memory itself, or to unlock some: nothing else is locked from now on.
    pub(crate) fn leave_locks_to_guest(&self) {
        let mut state = self.lock();
        if state.touched.locks() {
            for part in state.maps.parts(&ANYWHERE) {
                state.touched.let_go(&(part.start..part.end));
            }
            state.touched.stop();
        }
    }

    /// The guest has no file mapped there any more.
    pub(crate) fn unmap(&self, range: &Range<u64>) {
        let mut state = self.lock();
        if state.maps.cut(range) {
            self.close_unused(&mut state);
        }
    }

    /// The guest has moved, grown or shrunk what it had mapped.
    pub(crate) fn moved(&self, from: Range<u64>, to: Range<u64>) {
        let mut state = self.lock();
        state.maps.remap(from, to, false);
        self.close_unused(&mut state);
    }

    /// In a child process, of which nothing is kept: forgets what was mapped, and what a writer was
    /// about to read that this process does not have.
    pub(crate) fn begin_child(&self) {
        let mut state = self.lock();
        state.maps = FileMaps::default();
        state.contents.iter_mut().for_each(|content| content.file = None);
    }

    /// Writes which files there are so far.
    pub(crate) fn begin<W: Write>(&self, writer: &mut Writer<W>) -> Result<()> {
        let files = std::mem::take(&mut self.lock().files);
        Ok(files.iter().try_for_each(|(blob, file)| writer.file(*blob, file))?)
    }

    /// Writes what was touched since the last time, or what is there already if that would take
    /// long and is not the `last` chance.
    pub(crate) fn write<W: Write>(&self, writer: &mut Writer<W>, last: bool) -> Result<()> {
        let (files, pages, reading) = {
            let mut state = self.lock();
            let rests = state.rest.is_some_and(|rest| Instant::now() < rest);
            let faults = host::page_faults();
            // Without a page fault nobody has touched anything new.
            if last || !rests && faults != state.faults {
                state.faults = faults;
                let begin = host::thread_time();
                self.look(&mut state, &ANYWHERE);
                let took = host::thread_time().saturating_sub(begin);
                state.rest =
                    (took > LONG).then(|| Instant::now() + (10 * took).min(REST.max(took)));
            }
            if last {
                let mut mapped = state.contents.iter().filter_map(|content| content.file.as_ref());
                state.changed |= mapped.any(|file| file.has_changed());
            }
            let reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
            (std::mem::take(&mut state.files), std::mem::take(&mut state.pages), reading)
        };
        for (blob, file) in &files {
            writer.file(*blob, file)?;
        }
        let (mut unread, mut sources) = (Vec::new(), Vec::new());
        let (failed, mut is_damaged) = (AtomicBool::new(false), false);
        for Pages { blob, runs, bytes, referenced } in &pages {
            match bytes {
                Bytes::Read(bytes) if *referenced => {
                    let mut rest = &bytes[..];
                    writer.references(*blob, runs, |run, pages| {
                        let (now, later) = rest.split_at(run.len() as usize);
                        pages.copy_from_slice(now);
                        rest = later;
                    })?;
                }
                Bytes::Read(bytes) => writer.pages(*blob, runs, bytes)?,
                Bytes::InFile(source) if *referenced => {
                    writer.references(*blob, runs, |run, pages| {
                        failed.fetch_or(!source.read(run, pages), Ordering::Relaxed);
                    })?;
                }
                Bytes::InFile(source) => {
                    unread.push((*blob, &runs[..]));
                    sources.push(source);
                }
                Bytes::Packed(source, chunks) => {
                    for &chunk in chunks {
                        if !writer.packed_pages(*blob, &mut self.packed.chunk(chunk))? {
                            is_damaged = true;
                            unread.push((*blob, self.packed.runs(chunk)));
                            sources.push(source);
                        }
                    }
                }
            }
        }
        let read = |place: usize, run, bytes: &mut [u8]| {
            failed.fetch_or(!sources[place].read(run, bytes), Ordering::Relaxed);
        };
        let made = |place: usize, runs: &[PageRun], chunk: &[u8]| {
            if let Some(key) = sources[place].key {
                self.packed.add(key, runs, chunk);
            }
        };
        if last {
            // The guest needs no processor any more.
            writer.pages_of_all(&unread, read, made)?;
        } else {
            for (place, &(blob, runs)) in unread.iter().enumerate() {
                let read = |run, bytes: &mut [u8]| read(place, run, bytes);
                writer.pages_read(blob, runs, read, |runs, chunk| made(place, runs, chunk))?;
            }
        }
        let in_file =
            |it: &Pages| matches!(&it.bytes, Bytes::InFile(source) if source.has_changed());
        let changed = failed.into_inner()
            || pages.iter().any(in_file)
            || is_damaged && sources.iter().any(|source| source.has_changed());
        if is_damaged {
            self.packed.set_damaged();
        }
        drop((pages, reading));
        self.lock().changed |= changed;
        Ok(())
    }

    /// Whether a file has changed while it was mapped.
    pub(crate) fn have_changed(&self) -> bool {
        self.lock().changed
    }

    /// Nobody else is in here as long as this is held: for who forks.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes files that are not mapped any more: whoever has mapped one may change it now.
    fn close_unused(&self, state: &mut State) {
        let used = state.maps.files();
        for (number, content) in (0..).zip(&mut state.contents) {
            let unused = if used.contains(&number) { None } else { content.file.take() };
            let Some(unused) = unused else { continue };
            state.changed |= unused.has_changed();
            if Arc::strong_count(&unused) > 1 {
                drop(self.reading.lock().unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Takes the pages that were touched in a range.
    fn look(&self, state: &mut State, range: &Range<u64>) {
        let Some(table) = &self.table else { return };
        let mut parts = state.maps.parts(range);
        for part in &mut parts {
            // What lies behind the file's last page has no content.
            let shown = page_up(state.contents[part.file as usize].len).saturating_sub(part.offset);
            part.end = part.end.min(part.start + shown);
        }
        let mut found: BTreeMap<usize, Vec<PageRun>> = BTreeMap::new();
        // Most mappings lie one behind the other, and to ask the kernel takes longer than it needs for
        // one of them.
        for near in parts.chunk_by(|part, next| next.start - part.end <= NEAR) {
            let mut shown = near;
            table.present(near[0].start..near[near.len() - 1].end, |pages| {
                take_within(&mut shown, &pages, |Part { start, end, file, offset, .. }| {
                    let content = &mut state.contents[file as usize];
                    let runs = found.entry(file as usize).or_default();
                    let first = (offset / PAGE) as u32;
                    let count = ((end - start) / PAGE) as u32;
                    (first..first + count).for_each(|page| content.keep(page, runs));
                });
            });
        }
        for (content, runs) in found.into_iter().filter(|(_, runs)| !runs.is_empty()) {
            state.take(content, runs);
        }
    }
}

impl Bytes {
    fn in_memory(&self) -> usize {
        match self {
            Bytes::Read(bytes) => bytes.len(),
            Bytes::InFile(_) | Bytes::Packed(..) => 0,
        }
    }
}

impl Source {
    /// Reads pages, the last of which may be the file's and not whole; false if that fails.
    fn read(&self, run: PageRun, bytes: &mut [u8]) -> bool {
        let (_, _, len, ..) = self.identity;
        let there = len.saturating_sub(run.offset()).min(run.len()) as usize;
        self.file.file().read_exact_at(&mut bytes[..there], run.offset()).is_ok()
    }

    /// Whether it is not what it was when it was opened.
    fn has_changed(&self) -> bool {
        self.file.file().metadata().map_or(true, |now| identity(&now) != self.identity)
    }
}

impl Content {
    /// Notes that a page is wanted, unless it was before.
    fn keep(&mut self, page: u32, runs: &mut Vec<PageRun>) {
        if self.set(page) {
            push(runs, page);
        }
    }

    /// The same; whether it was not.
    fn set(&mut self, page: u32) -> bool {
        let word = self.kept.entry(page / 64).or_default();
        let bit = 1 << (page % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

/// Appends a page to runs of pages.
fn push(runs: &mut Vec<PageRun>, page: u32) {
    match runs.last_mut() {
        Some(last) if last.first + last.count == page => last.count += 1,
        _ => runs.push(PageRun { first: page, count: 1 }),
    }
}

impl State {
    fn begin(&mut self, blob: BlobId, file: Arc<Source>, path: String, metadata: &Metadata) {
        let (len, identity) = (metadata.len(), file.identity);
        let modified = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let modified_ns = modified.unwrap_or_default().as_nanos() as u64;
        let is_it = |path| std::fs::metadata(path).is_ok_and(|it| self::identity(&it) == identity);
        let referenced = self.refers && is_it(&path);
        self.files.push((blob, MappedFile { path, len, modified_ns }));
        self.known.insert(identity, self.contents.len());
        let kept = BTreeMap::new();
        let packed = file.key.map(|key| self.packed.of(key)).unwrap_or_default();
        let content = Content { blob, len, file: Some(file), kept, referenced, packed };
        self.contents.push(content);
    }

    /// What the trace refers to of a file will not be there any more: the trace gets it.
    fn unrefer(&mut self, index: usize) {
        let content = &mut self.contents[index];
        if std::mem::take(&mut content.referenced) {
            let mut runs = Vec::new();
            let kept = std::mem::take(&mut content.kept);
            for (word, bits) in kept {
                let pages = (0..64).filter(|bit| bits >> bit & 1 != 0);
                pages.for_each(|bit| content.keep(word * 64 + bit, &mut runs));
            }
            if !runs.is_empty() {
                self.take(index, runs);
            }
        }
    }

    /// Notes that pages of a file are to be written.
    fn take(&mut self, index: usize, mut runs: Vec<PageRun>) {
        let content = &mut self.contents[index];
        let &mut Content { blob, ref file, referenced, .. } = content;
        let Some(source) = file.clone() else { return };
        if !referenced {
            let (rest, chunks) = content.take_packed(runs, &self.packed);
            runs = rest;
            if !chunks.is_empty() {
                let (runs, bytes) = (Vec::new(), Bytes::Packed(source.clone(), chunks));
                self.pages.push(Pages { blob, runs, bytes, referenced });
            }
        }
        if !runs.is_empty() {
            self.pages.push(Pages { blob, runs, bytes: Bytes::InFile(source), referenced });
        }
    }

    /// Reads what is to be written, as long as the files are what they were.
    fn read_pages(&mut self) {
        for Pages { runs, bytes, .. } in &mut self.pages {
            let Bytes::InFile(source) = bytes else { continue };
            let len: u64 = runs.iter().map(|run| run.len()).sum();
            let mut read = vec![0; len as usize];
            let mut rest = &mut read[..];
            for &run in runs.iter() {
                let (part, later) = rest.split_at_mut(run.len() as usize);
                rest = later;
                self.changed |= !source.read(run, part);
            }
            self.changed |= source.has_changed();
            *bytes = Bytes::Read(read);
        }
    }
}

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec())
}
