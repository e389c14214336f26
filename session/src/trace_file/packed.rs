//! Traces that refer to files, with what they refer to.

use super::advise;
use crate::error::Context;
use refrain_trace::container::write_packed;
use refrain_trace::{MappedFile, Trace};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::path::Path;

/// The trace in an open file, or, if it refers to files, a copy without a name that has what it refers to.
pub(super) fn with_contents(path: &Path, file: File) -> crate::Result<File> {
    // Of a trace that cannot be read, whoever reads it says why.
    let trace = file.try_clone().ok().and_then(|file| Trace::from_file(file).ok());
    let Some(trace) = trace.filter(Trace::has_references) else { return Ok(file) };
    let beside = path.parent().map(tempfile::tempfile_in);
    let packed = beside.and_then(Result::ok).map_or_else(tempfile::tempfile, Ok);
    pack(path, &trace, packed.context("cannot create a temporary file")?)
}

/// Writes the trace at `path` with what it refers to.
pub(crate) fn pack(path: &Path, trace: &Trace, out: File) -> crate::Result<File> {
    write_packed(trace, open, out).map_err(|error| advise(path, error))
}

/// Opens a file that a trace refers to. What else has its name now, a device for one, is not touched.
fn open(file: &MappedFile) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match std::fs::metadata(&file.path)?.is_file() {
        true => Ok(rustix::fs::open(&file.path, flags, Mode::empty())?.into()),
        false => Err(io::Error::other("it is no file any more")),
    }
}
