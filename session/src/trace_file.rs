//! Trace files on disk: opening one to read, creating one without losing another, checking and mending
//! one.

mod check;
mod new;
mod packed;

pub use check::{Checked, Repair, check};
pub use new::{Named, NewTrace, is_being_recorded};
pub(crate) use packed::{PackedCopies, pack};

use crate::error::{Context, Error, bail};
use refrain_trace::{ThreadId, Trace};
use std::fs::File;
use std::path::Path;

/// Opens a trace as it is.
fn plain(path: &Path) -> crate::Result<File> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    let metadata = file.metadata().with_context(|| format!("cannot open {shown}"))?;
    if !metadata.is_file() {
        bail!(Refused, "cannot open {shown}: a trace must be a file");
    }
    Ok(file)
}

/// Opens a trace to read it here, and says what to do if it cannot be read.
pub fn read(path: &Path) -> crate::Result<Trace> {
    drop(plain(path)?);
    Trace::open(path).map_err(|error| advise(path, error))
}

/// Names the file and what to do about it.
pub fn advise(path: &Path, error: refrain_trace::Error) -> Error {
    Error::Unreadable { path: path.into(), error }
}

/// Refuses threads that a trace does not have.
pub fn must_have(trace: &Trace, threads: &[ThreadId]) -> crate::Result<()> {
    let there = trace.threads();
    match threads.iter().find(|thread| thread.0 >= there) {
        None => Ok(()),
        Some(missing) => bail!(
            Refused,
            "there is no {missing}: the trace has {there} threads, the first of them t0"
        ),
    }
}

/// Whether the file is a trace, of whatever version and however damaged.
fn is_trace(path: &Path) -> bool {
    !matches!(
        Trace::open(path),
        Err(refrain_trace::Error::NotATrace | refrain_trace::Error::Io { .. })
    )
}
