//! Memory that shows files which may change, in a replay: each file is one in memory, so that all its
//! mappings agree, as they did in the recording. Private ones, too: they show what is stored through shared
//! ones, until the guest stores there itself.
//!
//! The file in memory is as long as the recorded one was, up to a whole page. So the kernel sends the same
//! SIGBUS as in the recording to who accesses what lies behind its end. What has made a file longer may be
//! unrecorded (another process, a call through a descriptor of a file that was mapped later): so an access
//! that has not faulted in the recording makes the file longer, too ([`SharedFiles::lengthen`]).

use crate::file_maps::{FileMaps, Part};
use crate::host::{self, Guest};
use crate::memory::{self, MapRequest, page_up};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(crate) struct SharedFiles {
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    maps: FileMaps,
    files: BTreeMap<u64, File>,
}

impl SharedFiles {
    /// Maps a part of a file, which shows `content` from its beginning on, and so many bytes of the file
    /// (`shown`). What is stored there goes to the file if the part is writable.
    pub(crate) fn map(&self, part: Part, prot: i32, content: &[u8], shown: u64) -> Result<()> {
        self.any.store(true, Ordering::SeqCst);
        let mut state = self.lock();
        if let std::collections::btree_map::Entry::Vacant(vacant) = state.files.entry(part.file) {
            vacant.insert(host::memory_file().map_err(failed())?);
        }
        let len = part.end - part.start;
        if shown > 0 {
            state.grow(part.file, part.offset.saturating_add(shown.min(len))).map_err(failed())?;
        }
        state.store(part, content).map_err(failed())?;
        let fd = state.files[&part.file].as_raw_fd();
        let kind = if part.writable { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let flags = kind | libc::MAP_NORESERVE;
        let (address, offset) = (part.start, part.offset as i64);
        memory::map_fixed(MapRequest { address, len, prot, flags, fd, offset }).map_err(failed())?;
        state.maps.insert(part);
        Ok(())
    }

    /// Stores bytes in a file at an offset, whether a mapping shows them or not.
    pub(crate) fn fill(&self, file: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let (start, end) = (0, bytes.len() as u64);
        let part = Part { start, end, file, offset, writable: true };
        state.store(part, bytes).map_err(failed())
    }

    /// Something else is mapped there, or nothing.
    pub(crate) fn cut(&self, range: &Range<u64>) {
        if self.any() {
            let mut state = self.lock();
            if state.maps.cut(range) {
                state.close();
            }
        }
    }

    /// The mapping that begins there, if it shows a file.
    pub(crate) fn at(&self, start: u64) -> Option<Part> {
        self.lock().maps.at(start)
    }

    /// Whether a file is shown there.
    pub(crate) fn shows(&self, address: u64) -> bool {
        self.any() && !self.lock().maps.parts(&(address..address.saturating_add(1))).is_empty()
    }

    /// Makes the file longer that is shown there, if it ends before; whether it is longer now.
    pub(crate) fn lengthen(&self, address: u64) -> bool {
        if !self.any() {
            return false;
        }
        let mut state = self.lock();
        let part = state.maps.parts(&(address..address.saturating_add(1))).first().copied();
        part.is_some_and(|part| state.grow(part.file, part.offset + 1).is_ok_and(|grown| grown))
    }

    /// A mapping has moved or changed its length.
    pub(crate) fn remap(&self, old: Range<u64>, new: Range<u64>, kept: bool) {
        if self.any() {
            let mut state = self.lock();
            state.maps.remap(old, new, kept);
            state.close();
        }
    }

    /// Stores what a system call has written; false if there is no memory.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> bool {
        self.write_parts(address, bytes, |state, part, bytes| match part.writable {
            true => state.store(part, bytes).is_ok(),
            false => Guest.store(part.start, bytes),
        })
    }

    /// Has memory show what a system call has made of a file, or that the file ends there; false if there is
    /// no memory.
    pub(crate) fn change(&self, address: u64, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return !self.any() || self.lock().shorten(address).is_ok();
        }
        self.write_parts(address, bytes, State::change)
    }

    /// Stores bytes: what shows files by `store`, which is handed a part, and what is to be there.
    fn write_parts(
        &self,
        address: u64,
        bytes: &[u8],
        store: impl Fn(&mut State, Part, &[u8]) -> bool,
    ) -> bool {
        if !self.any() {
            return Guest.store(address, bytes);
        }
        let mut state = self.lock();
        let end = address.saturating_add(bytes.len() as u64);
        let parts = state.maps.parts(&(address..end));
        let slice = |range: Range<u64>| {
            &bytes[(range.start - address) as usize..(range.end - address) as usize]
        };
        let mut at = address;
        let mut done = true;
        for part in parts {
            done &= at == part.start || Guest.store(at, slice(at..part.start));
            done &= store(&mut state, part, slice(part.start..part.end));
            at = part.end;
        }
        done && (at == end || Guest.store(at, slice(at..end)))
    }

    fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Closes files that are shown nowhere: whoever maps one of them again brings its content.
    fn close(&mut self) {
        let shown = self.maps.files();
        self.files.retain(|file, _| shown.contains(file));
    }

    /// Makes a file so long, if it is shorter; whether it was.
    fn grow(&mut self, file: u64, len: u64) -> io::Result<bool> {
        let Some(mut file) = self.files.get(&file) else { return Ok(false) };
        let len = page_up(len);
        // A replay may not ask for a file's metadata.
        let is_shorter = file.seek(SeekFrom::End(0))? < len;
        if is_shorter {
            file.set_len(len)?;
        }
        Ok(is_shorter)
    }

    /// The file that is shown there ends there, or before.
    fn shorten(&mut self, address: u64) -> io::Result<()> {
        let part = self.maps.parts(&(address..address.saturating_add(1))).first().copied();
        let Some(part) = part else { return Ok(()) };
        let Some(mut file) = self.files.get(&part.file) else { return Ok(()) };
        if file.seek(SeekFrom::End(0))? > part.offset { file.set_len(part.offset) } else { Ok(()) }
    }

    /// A part shows these bytes of its file from now on. A page that the guest has stored to privately shows
    /// what it has shown, which is what is recorded.
    fn change(&mut self, part: Part, bytes: &[u8]) -> bool {
        let shows = || Guest.read(part.start, bytes.len()).is_some_and(|now| now == bytes);
        if part.writable {
            return self.store(part, bytes).is_ok();
        }
        if shows() {
            return true;
        }
        let stored = self.store(part, bytes).is_ok();
        if !shows() {
            Guest.store(part.start, bytes);
        }
        stored
    }

    /// Stores bytes where they differ: other threads may be writing where they do not.
    fn store(&mut self, part: Part, bytes: &[u8]) -> io::Result<()> {
        const PIECE: usize = 256;
        if bytes.is_empty() {
            return Ok(());
        }
        self.grow(part.file, part.offset.saturating_add(bytes.len() as u64))?;
        let Some(mut file) = self.files.get(&part.file) else { return Ok(()) };
        let mut held = vec![0; bytes.len()];
        file.seek(SeekFrom::Start(part.offset))?;
        file.read_exact(&mut held)?;
        let pieces = bytes.chunks(PIECE).zip(held.chunks(PIECE)).enumerate();
        for (at, (new, _)) in pieces.filter(|(_, (new, old))| new != old) {
            file.seek(SeekFrom::Start(part.offset + (at * PIECE) as u64))?;
            file.write_all(new)?;
        }
        Ok(())
    }
}

fn failed() -> impl FnOnce(io::Error) -> Error {
    Error::host("mapping a file that is shared")
}
