//! Where the bytes of a trace are: a file, or memory.

use crate::error::{Error, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Positioned, shareable reads.
#[derive(Debug)]
pub(crate) enum Source {
    File { file: File, len: u64 },
    Bytes(Vec<u8>),
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Source> {
        let action = || format!("open {}", path.display());
        let file = File::open(path).map_err(Error::io(action()))?;
        Source::from_file(file, action())
    }

    /// `action` is what was tried with the file, for messages.
    pub(crate) fn from_file(file: File, action: String) -> Result<Source> {
        let meta = file.metadata().map_err(Error::io(action.clone()))?;
        // Pipes and devices have no length and no positioned reads; without this they would pass
        // for an empty trace.
        if !meta.is_file() {
            let source = std::io::Error::from(if meta.is_dir() {
                std::io::ErrorKind::IsADirectory
            } else {
                std::io::ErrorKind::NotSeekable
            });
            return Err(Error::Io { action, source });
        }
        Ok(Source::File { file, len: meta.len() })
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Source::File { len, .. } => *len,
            Source::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Fills `out` from `offset`.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self {
            Source::File { file, .. } => {
                file.read_exact_at(out, offset).map_err(Error::io("read the trace"))
            }
            Source::Bytes(bytes) => {
                let start = usize::try_from(offset).ok();
                let range = start.and_then(|s| Some(s..s.checked_add(out.len())?));
                let found = range.and_then(|r| bytes.get(r)).ok_or_else(|| {
                    let source = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
                    Error::Io { action: "read the trace".into(), source }
                })?;
                out.copy_from_slice(found);
                Ok(())
            }
        }
    }
}
