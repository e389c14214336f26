//! Where the bytes of a trace are: a file, or memory.

use super::format::Chunk;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

/// Positioned, shareable reads.
#[derive(Debug)]
pub(crate) struct Source {
    place: Place,
    /// Bodies of chunks that were unpacked ahead, by the chunk's offset.
    held: OnceLock<BTreeMap<u64, Vec<u8>>>,
}

#[derive(Debug)]
enum Place {
    File { file: File, len: u64 },
    Bytes(Vec<u8>),
}

impl From<Place> for Source {
    fn from(place: Place) -> Source {
        Source { place, held: OnceLock::new() }
    }
}

impl From<Vec<u8>> for Source {
    fn from(bytes: Vec<u8>) -> Source {
        Place::Bytes(bytes).into()
    }
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Source> {
        let action = || format!("open {}", path.display());
        let file = File::open(path).map_err(Error::io(action()))?;
        let meta = file.metadata().map_err(Error::io(action()))?;
        // Pipes and devices have no length and no positioned reads; without this they would pass
        // for an empty trace.
        if !meta.is_file() {
            let answer = std::io::Error::from(if meta.is_dir() {
                std::io::ErrorKind::IsADirectory
            } else {
                std::io::ErrorKind::NotSeekable
            });
            return Err(Error::Io { action: action(), answer });
        }
        Source::from_file(file, action())
    }

    /// `action` is what was tried with the file, for messages. Asks for its length in a way that a
    /// sandbox may allow: where metadata are asked for, names may be, too.
    pub(crate) fn from_file(mut file: File, action: String) -> Result<Source> {
        let len = file.seek(SeekFrom::End(0)).map_err(Error::io(action))?;
        Ok(Place::File { file, len }.into())
    }

    pub(crate) fn len(&self) -> u64 {
        match &self.place {
            Place::File { len, .. } => *len,
            Place::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Keeps bodies for those who will want to unpack their chunks. Only the first call counts.
    pub(crate) fn hold(&self, bodies: BTreeMap<u64, Vec<u8>>) {
        let _ = self.held.set(bodies);
    }

    /// The body of a chunk, if it was unpacked ahead.
    pub(crate) fn held(&self, chunk: &Chunk) -> Option<&[u8]> {
        self.held.get()?.get(&chunk.offset).map(Vec::as_slice)
    }

    /// Fills `out` from `offset`.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match &self.place {
            Place::File { file, .. } => {
                file.read_exact_at(out, offset).map_err(Error::io("read the trace"))
            }
            Place::Bytes(bytes) => {
                let start = usize::try_from(offset).ok();
                let range = start.and_then(|s| Some(s..s.checked_add(out.len())?));
                let found = range.and_then(|r| bytes.get(r)).ok_or_else(|| {
                    Error::io("read the trace")(std::io::ErrorKind::UnexpectedEof.into())
                })?;
                out.copy_from_slice(found);
                Ok(())
            }
        }
    }
}
