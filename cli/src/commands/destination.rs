//! Where `run` and `demo` record to.

use super::record;
use crate::failure::Failure;
use crate::output::Console;
use anyhow::Context;
use refrain_session::Recording;
use refrain_trace::Ending;
use std::path::{Path, PathBuf};

/// Where the trace of a recorded program goes.
pub(crate) struct Destination {
    /// An absolute path: the program may change the working directory.
    pub(crate) trace: PathBuf,
    /// The trace has a directory of its own, and both go away in the end.
    pub(crate) temporary: bool,
}

impl Destination {
    /// The given one, or a temporary one.
    pub(crate) fn new(output: Option<&Path>, name: &Path) -> anyhow::Result<Destination> {
        if let Some(path) = output {
            return Ok(Destination { trace: std::path::absolute(path)?, temporary: false });
        }
        let directory = tempfile::Builder::new().prefix("refrain-").tempdir();
        let directory = directory.context("cannot create a temporary directory")?;
        // Not removed by this process, which is to be replaced.
        Ok(Destination { trace: directory.keep().join(name), temporary: true })
    }

    /// Records to it, and says what was recorded; nothing temporary stays if that fails.
    pub(crate) fn record(
        &self,
        recording: &Recording,
        quiet: bool,
        console: &Console,
    ) -> Result<(Ending, PathBuf), Failure> {
        let recorded = record::record(recording, quiet, console).map_err(Failure::of_recorder);
        let said = recorded.and_then(|recorded| {
            let ending = record::say(&recorded, (!self.temporary, quiet), console)?;
            Ok((ending, recorded.trace))
        });
        said.inspect_err(|_| self.discard())
    }

    /// Removes what is temporary; the system tidies up what cannot be removed.
    pub(crate) fn discard(&self) {
        if self.temporary {
            let _ = std::fs::remove_file(&self.trace);
            let _ = self.trace.parent().map(std::fs::remove_dir);
        }
    }
}
