//! The crate's one error type.

use crate::container::{ChunkKind, FORMAT_VERSION};
use std::fmt;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a trace could not be read or written. Each variant says whose fault it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine's: the operating system refused to read or write.
    #[error("cannot {action}: {answer}")]
    Io {
        /// What was tried, in the words of a user.
        action: String,
        /// What the operating system answered.
        answer: std::io::Error,
    },
    /// The user's, or the recorder's if it was killed at once: there is nothing in the file.
    #[error("empty file: nothing was recorded, or it was lost")]
    Empty,
    /// The user's: some other kind of file.
    #[error("not a refrain trace")]
    NotATrace,
    /// Nobody's: a trace of another format version.
    #[error(
        "made by {} refrain (format {found}, this one reads {})",
        if *found > FORMAT_VERSION { "a newer" } else { "an older" },
        FORMAT_VERSION
    )]
    Version {
        /// The version that the file states.
        found: u32,
    },
    /// Whoever ended the recorder: the file stops before its first chunk does.
    #[error("cut off before its header was complete: nothing in it can be replayed")]
    CutOff,
    /// The storage's, or an attacker's: bytes that no recorder wrote.
    #[error("{0} is damaged: {1}")]
    Corrupt(ChunkAt, String),
    /// The caller's: the trace has no such thing, or was cut off before it.
    #[error("the trace has no {0}")]
    Missing(String),
    /// The user's: a file that the trace refers to is not what it was in the recording.
    #[error("it has no copy of {path}, which it needs{lack}")]
    Referenced {
        /// The file.
        path: String,
        /// Why its pages are not there.
        lack: Lack,
    },
    /// The trace's or the recorded program's: more than this crate agrees to hold.
    #[error("{what}: {found} is over the limit of {limit}")]
    Limit {
        /// What is too large or too many.
        what: &'static str,
        /// How much there is.
        found: u64,
        /// How much there may be.
        limit: u64,
    },
    /// Our bug: whoever called the writer broke its contract.
    #[error("the recorder handed the trace writer something impossible: {0}")]
    Misuse(String),
    /// The author's of a text: it does not follow the grammar.
    #[error("line {line}: {message}")]
    Text {
        /// Counted from one.
        line: usize,
        /// What is wrong there.
        message: String,
    },
}

impl Error {
    /// An [`Error::Io`] for `map_err`.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let action = action.into();
        move |answer| Error::Io { action, answer }
    }
}

/// Why pages that a trace refers to are not there. Prints what helps.
#[derive(Debug)]
pub enum Lack {
    /// The trace was read as it is, without the files that it refers to.
    NotPacked,
    /// The file cannot be opened, or not be read.
    Unreadable(std::io::Error),
    /// The file has other contents than in the recording.
    Changed,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lack::NotPacked => f.write_str(": `refrain pack` puts it in"),
            Lack::Unreadable(answer) => write!(
                f,
                " and cannot read ({answer}): put the file back, or `refrain pack` the trace on a \
                 machine that has the file"
            ),
            Lack::Changed => f.write_str(
                "; the file has changed since the recording: put the recorded version back, and \
                 `refrain pack` the trace before the file changes again, or record anew without \
                 --reference",
            ),
        }
    }
}

/// Names a chunk in messages: its number, kind and place in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkAt {
    /// The chunk's position in the file, from 0.
    pub number: u64,
    /// Its kind, if its header can be read.
    pub kind: Option<ChunkKind>,
    /// Byte offset of its header.
    pub offset: u64,
}

impl ChunkAt {
    /// An [`Error::Corrupt`] about this chunk.
    pub(crate) fn corrupt(self, what: impl Into<String>) -> Error {
        Error::Corrupt(self, what.into())
    }
}

impl fmt::Display for ChunkAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {}", self.number)?;
        if let Some(kind) = self.kind {
            write!(f, " ({})", kind.name())?;
        }
        write!(f, " at byte {}", self.offset)
    }
}
