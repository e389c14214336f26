//! Putting into a trace what it refers to.

use crate::error::Context;
use crate::session::Session;
use crate::trace_file::{self, NewTrace};
use std::path::{Path, PathBuf};

/// A trace that refers to no files any more.
#[derive(Debug)]
pub struct PackedTrace {
    /// Where it is.
    pub path: PathBuf,
    /// Where the trace is now that had this name before.
    pub old: Option<PathBuf>,
    /// Bytes of the trace before.
    pub before: u64,
    /// And now.
    pub bytes: u64,
}

impl Session {
    /// Writes the trace at `path`, with the pages of files that it [refers to](crate::Recording::reference), to
    /// `output`, or else in its place. A trace that is at `output` already is kept under another name, unless by
    /// `force`.
    ///
    /// # Errors
    /// [`Error::Unreadable`](crate::Error::Unreadable) names a file that is not what it was in the recording.
    pub fn pack(&self, path: &Path, output: Option<(&Path, bool)>) -> crate::Result<PackedTrace> {
        let trace = trace_file::read(path)?;
        let (output, force) = output.unwrap_or((path, true));
        let cannot = || format!("cannot write {}", output.display());
        let length = |path: &Path| std::fs::metadata(path).map(|it| it.len());
        let before = length(path).with_context(cannot)?;
        let new = NewTrace::create(output, force)?;
        let file = trace_file::pack(path, &trace, new.file().with_context(cannot)?)?;
        file.sync_all().with_context(cannot)?;
        let named = new.publish()?;
        let (path, old) = (named.path.clone(), named.old.clone());
        let bytes = length(&path).with_context(cannot)?;
        Ok(PackedTrace { path, old, before, bytes })
    }
}
