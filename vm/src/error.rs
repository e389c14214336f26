//! Everything that can stop a recording or a replay from starting or going on.

use crate::EngineError;
use std::io;
use std::path::PathBuf;

/// Why the machine cannot do what it was asked. A divergence or a fault of the guest is a result
/// of a replay, not an error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The user named a program that does not exist.
    #[error("{0}: no such program")]
    NotFound(PathBuf),
    /// The user named a file that is no x86-64 Linux program, or may not be executed.
    #[error("{path}: {why}")]
    NotExecutable {
        /// The program or its interpreter.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The guest did something that this version does not record; nothing was lost, the trace
    /// ends before it.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The engine cannot work on this machine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The trace cannot be written or read.
    #[error(transparent)]
    Trace(#[from] refrain_trace::Error),
    /// The operating system refused something that the machine needs.
    #[error("{what}: {answer}")]
    Host {
        /// What was tried.
        what: String,
        /// The system's answer.
        answer: io::Error,
    },
}

impl Error {
    pub(crate) fn host(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        move |answer| Error::Host { what: what.into(), answer }
    }
}

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
