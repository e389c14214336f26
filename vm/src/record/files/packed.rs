//! Packed pages of programs and libraries that outlive their recording: a later recording of the same program
//! copies them into its trace, and neither reads them from their files nor compresses them.
//!
//! A trace holds pages in chunks of several pages. A recording that touches one page of a kept chunk copies the
//! whole chunk into its trace. No page is in two chunks of a file.
//!
//! # When they count
//! The file's device, inode, size, and times of change, of its content and of its status, are what they were. They
//! had been for [`UNSETTLED`] when the pages were read. Whoever has written the file since then has changed the
//! second of these times, which nobody can set. A store through another process's shared mapping may change it
//! late, but nobody makes such stores to a program or a library that is in use: only pages of ELF files are kept.
//! Each chunk has a checksum.

use super::{Content, push};
use crate::Hidden;
use crate::loader::UNSETTLED;
use refrain_trace::container::{FORMAT_VERSION, PageRun};
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of chunks that are kept at most.
const MOST: usize = 24 << 20;
/// Bytes of new ones for which it is worth the while, at least, and in parts of the rest.
const LEAST: usize = 4 << 10;
const SHARE: usize = 8;
/// Bytes of an index that is read.
const MOST_INDEX: usize = 16 << 20;
const WORD: usize = 8;
/// What a file of chunks begins with; then come the words of the index, its checksum, and the chunks. The index is
/// of each chunk: the key of its file, where it begins behind the index and how long it is, how many runs it has,
/// and the runs.
const MAGIC: u64 = u64::from_le_bytes(*b"pages\0\0\0") | (FORMAT_VERSION as u64) << 48;

/// Device, inode, size, and times of change.
pub(super) type Key = [u64; 7];

/// One chunk.
struct Chunk {
    key: Key,
    runs: Vec<PageRun>,
    place: Range<u64>,
}

/// What earlier recordings have kept, and what this one may add.
#[derive(Default)]
pub(super) struct Packed {
    file: Option<Hidden>,
    chunks: Vec<Chunk>,
    /// Where the chunks begin in the file.
    begin: u64,
    /// A chunk is not what was kept.
    is_damaged: AtomicBool,
    new: Mutex<New>,
}

/// Chunks of this recording.
#[derive(Default)]
struct New {
    chunks: Vec<(Key, Vec<PageRun>, Vec<u8>)>,
    bytes: usize,
    /// Files that the guest has mapped.
    files: BTreeSet<Key>,
}

/// What is kept of one file: pages, and the number of their chunk, ascending.
pub(super) type OfFile = Vec<(PageRun, usize)>;

/// What a file is kept by, if it is an ELF file that nobody has changed lately.
pub(super) fn key(file: &File, metadata: &Metadata) -> Option<Key> {
    const ELF: [u8; 4] = *b"\x7fELF";
    let mut magic = [0; ELF.len()];
    file.read_exact_at(&mut magic, 0).ok()?;
    let [modified, changed] =
        [(metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec())]
            .map(|(seconds, nanoseconds)| [seconds as u64, nanoseconds as u64]);
    let since = UNIX_EPOCH.checked_add(Duration::new(changed[0], changed[1] as u32))?;
    let age = SystemTime::now().duration_since(since).ok()?;
    let [[a, b], [c, d]] = [modified, changed];
    let key = [metadata.dev(), metadata.ino(), metadata.len(), a, b, c, d];
    (magic == ELF && age > UNSETTLED).then_some(key)
}

impl Packed {
    /// Goes by what an earlier recording has kept in a file. Anything odd is as if there were none.
    pub(super) fn read(file: &File) -> Packed {
        read(file).unwrap_or_default()
    }

    /// What is kept of a file, which the guest maps.
    pub(super) fn of(&self, key: Key) -> OfFile {
        self.lock().files.insert(key);
        let chunks = (0..).zip(&self.chunks).filter(|(_, chunk)| chunk.key == key);
        let runs =
            chunks.flat_map(|(number, chunk)| chunk.runs.iter().map(move |&run| (run, number)));
        let mut all: OfFile = runs.collect();
        all.sort_unstable_by_key(|(run, _)| run.first);
        all
    }

    /// The pages of a chunk.
    pub(super) fn runs(&self, number: usize) -> &[PageRun] {
        &self.chunks[number].runs
    }

    /// A chunk, unless it cannot be read.
    pub(super) fn chunk(&self, number: usize) -> Vec<u8> {
        let Range { start, end } = self.chunks[number].place;
        let mut bytes = vec![0; (end - start) as usize];
        let file = self.file.as_ref().expect("chunks come from a file");
        match file.file().read_exact_at(&mut bytes, self.begin + start) {
            Ok(()) => bytes,
            Err(_) => Vec::new(),
        }
    }

    /// A chunk that was read is not sound.
    pub(super) fn set_damaged(&self) {
        self.is_damaged.store(true, Ordering::Relaxed);
    }

    /// The recorder has packed pages of a file.
    pub(super) fn add(&self, key: Key, runs: &[PageRun], chunk: &[u8]) {
        let mut new = self.lock();
        if new.bytes + chunk.len() <= MOST {
            new.bytes += chunk.len();
            new.chunks.push((key, runs.to_vec(), chunk.to_vec()));
        }
    }

    /// What is to be kept, if enough of it is new. Nothing, if what there was is damaged. What has changed since it
    /// was kept is left out, and what this recording has not mapped if there is too much.
    pub(super) fn kept(&self) -> Option<Vec<Vec<u8>>> {
        if self.is_damaged.load(Ordering::Relaxed) {
            return Some(Vec::new());
        }
        let New { chunks: new, bytes, files } = &mut *self.lock();
        let size = |chunk: &Chunk| (chunk.place.end - chunk.place.start) as usize;
        let old: usize = self.chunks.iter().map(size).sum();
        if *bytes < LEAST.max(old / SHARE) {
            return None;
        }
        let has_changed = |key: &Key| files.iter().any(|it| it[..2] == key[..2] && it != key);
        let mut all = std::mem::take(new);
        let mut room = MOST - *bytes;
        for is_mapped in [true, false] {
            for (number, chunk) in self.chunks.iter().enumerate() {
                let stays = files.contains(&chunk.key) == is_mapped && !has_changed(&chunk.key);
                if stays && size(chunk) <= room {
                    room -= size(chunk);
                    all.push((chunk.key, chunk.runs.clone(), self.chunk(number)));
                }
            }
        }
        Some(encode(all))
    }

    fn lock(&self) -> MutexGuard<'_, New> {
        self.new.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    /// Takes those pages out of runs that are packed, and notes that all pages of their chunks are wanted. Returns
    /// the others, and the chunks.
    pub(super) fn take_packed(
        &mut self,
        runs: Vec<PageRun>,
        packed: &Packed,
    ) -> (Vec<PageRun>, BTreeSet<usize>) {
        let (mut rest, mut chunks) = (Vec::new(), BTreeSet::new());
        if self.packed.is_empty() {
            return (runs, chunks);
        }
        for page in runs.iter().flat_map(|run| run.first..run.first + run.count) {
            let behind = self.packed.partition_point(|(run, _)| run.first <= page);
            match behind.checked_sub(1).map(|at| self.packed[at]) {
                Some((run, chunk)) if page - run.first < run.count => drop(chunks.insert(chunk)),
                _ => push(&mut rest, page),
            }
        }
        for run in chunks.iter().flat_map(|&chunk| packed.runs(chunk)) {
            for page in run.first..run.first + run.count {
                self.set(page);
            }
        }
        (rest, chunks)
    }
}

fn read(file: &File) -> Option<Packed> {
    let mut head = [0; 2 * WORD];
    file.read_exact_at(&mut head, 0).ok()?;
    let mut head_words = words(&head);
    let (magic, len) = (head_words.next()?, head_words.next()?);
    let len = usize::try_from(len).ok().filter(|&len| len <= MOST_INDEX)?;
    let mut index = vec![0; len + WORD];
    file.read_exact_at(&mut index, head.len() as u64).ok()?;
    let (index, check) = index.split_at(len);
    if magic != MAGIC || check != u64::from(crc32fast::hash(index)).to_le_bytes() {
        return None;
    }
    let mut words = words(index);
    let mut chunks = Vec::new();
    while words.len() > 0 {
        let mut next = || words.next();
        let mut key = Key::default();
        for word in &mut key {
            *word = next()?;
        }
        let (start, len, count) = (next()?, next()?, next()?);
        let mut run = || {
            let word = next()?;
            let run = PageRun { first: word as u32, count: (word >> 32) as u32 };
            run.first.checked_add(run.count).map(|_| run)
        };
        let runs: Option<Vec<PageRun>> = (0..count).map(|_| run()).collect();
        let place = start..start.checked_add(len).filter(|&end| end <= MOST as u64)?;
        chunks.push(Chunk { key, runs: runs?, place });
    }
    let begin = (head.len() + len + WORD) as u64;
    let file = Some(Hidden::copy(file).ok()?);
    Some(Packed { file, chunks, begin, ..Packed::default() })
}

fn encode(chunks: Vec<(Key, Vec<PageRun>, Vec<u8>)>) -> Vec<Vec<u8>> {
    let mut index: Vec<u64> = Vec::new();
    let mut parts = vec![Vec::new()];
    let mut at = 0;
    for (key, runs, bytes) in chunks {
        index.extend(key);
        index.extend([at, bytes.len() as u64, runs.len() as u64]);
        index.extend(runs.iter().map(|run| u64::from(run.first) | u64::from(run.count) << 32));
        at += bytes.len() as u64;
        parts.push(bytes);
    }
    let index: Vec<u8> = index.into_iter().flat_map(u64::to_le_bytes).collect();
    let head = [MAGIC, index.len() as u64].into_iter().flat_map(u64::to_le_bytes);
    let check = u64::from(crc32fast::hash(&index)).to_le_bytes();
    parts[0] = head.chain(index).chain(check).collect();
    parts
}

fn words(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn run(first: u32, count: u32) -> PageRun {
        PageRun { first, count }
    }

    fn file(parts: &[Vec<u8>]) -> File {
        let file = rustix::fs::memfd_create(c"kept", rustix::fs::MemfdFlags::CLOEXEC);
        let mut file = File::from(file.expect("there is memory"));
        parts.iter().for_each(|part| file.write_all(part).expect("there is memory"));
        file
    }

    fn content(packed: OfFile) -> Content {
        let (kept, file) = Default::default();
        Content { blob: refrain_trace::BlobId(0), len: 0, file, kept, referenced: false, packed }
    }

    #[test]
    fn what_was_added_is_kept_as_long_as_its_file_has_not_changed() {
        let [a, b, changed] = [[1, 2, 3, 4, 5, 6, 7], [1, 3, 3, 4, 5, 6, 7], [1, 3, 3, 4, 5, 8, 9]];
        let first = Packed::default();
        assert!(first.of(a).is_empty());
        first.add(a, &[run(9, 2), run(20, 1)], &[1; LEAST]);
        first.add(a, &[run(1, 8)], &[2; 10]);
        first.add(b, &[run(5, 5)], &[3; 10]);
        let kept = first.kept().expect("is enough");
        let second = Packed::read(&file(&kept));
        let expected = [(run(1, 8), 1), (run(9, 2), 0), (run(20, 1), 0)];
        assert_eq!(second.of(a), expected);
        assert_eq!(second.chunk(0), [1; LEAST]);
        assert!(second.of(changed).is_empty());
        assert_eq!(second.kept(), None, "nothing is new");
        second.add(changed, &[run(3, 4)], &[4; LEAST]);
        let third = Packed::read(&file(&second.kept().expect("is enough")));
        assert_eq!(third.of(a).len(), expected.len());
        assert_eq!(third.of(changed).iter().map(|it| it.0).collect::<Vec<_>>(), [run(3, 4)]);
        assert!(third.of(b).is_empty());
    }

    #[test]
    fn what_is_odd_is_as_if_it_were_not_there() {
        let packed = Packed::default();
        packed.add(Key::default(), &[run(1, 2)], &[1; LEAST]);
        let kept = packed.kept().expect("is enough").concat();
        let index = kept.len() - LEAST;
        for len in 0..index {
            assert!(Packed::read(&file(&[kept[..len].to_vec()])).chunks.is_empty(), "{len} bytes");
        }
        for at in 0..index {
            let mut damaged = kept.clone();
            damaged[at] ^= 4;
            assert!(Packed::read(&file(&[damaged])).chunks.is_empty(), "byte {at}");
        }
        let cut_off = Packed::read(&file(&[kept[..index + 7].to_vec()]));
        assert!(cut_off.chunk(0).is_empty());
        cut_off.set_damaged();
        assert_eq!(cut_off.kept(), Some(Vec::new()));
    }

    #[test]
    fn a_chunk_is_taken_whole_or_not_at_all() {
        let packed = Packed::default();
        packed.add(Key::default(), &[run(2, 3), run(70, 2)], &[0; LEAST]);
        packed.add(Key::default(), &[run(5, 1)], &[0; LEAST]);
        let packed = Packed::read(&file(&packed.kept().expect("is enough")));
        let mut content = content(packed.of(Key::default()));
        let mut touch = |pages: &[u32]| {
            let mut runs = Vec::new();
            pages.iter().for_each(|&page| content.keep(page, &mut runs));
            content.take_packed(runs, &packed)
        };
        assert_eq!(touch(&[0, 1, 71, 72]), (vec![run(0, 2), run(72, 1)], BTreeSet::from([0])));
        assert_eq!(touch(&[2, 3, 4, 6, 70]), (vec![run(6, 1)], BTreeSet::new()));
        assert_eq!(touch(&[5]), (vec![], BTreeSet::from([1])));
    }
}
