//! What a recorder tells whoever has started it: the result of the recording, in a file.
//!
//! The recorded program may close any descriptor and change directories, its root and its user. So the
//! recorder opens the file before the program runs, and hides the descriptor from it.

use super::Recorded;
use crate::error::{Context, bail};
use refrain_vm::Hidden;
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;

/// The option of `refrain record` that names the file.
pub const REPORT_FLAG: &str = "--report";

/// The trace and what else is known of it, or why nothing was recorded.
type Told = Result<(OsString, Recorded), String>;

/// The file, while the program is recorded.
#[derive(Debug)]
pub struct ReportFile(Hidden);

impl ReportFile {
    /// Opens the file.
    pub fn open(path: &Path) -> crate::Result<ReportFile> {
        let file = File::options().write(true).open(path);
        let file = file.and_then(|file| Hidden::copy(&file));
        let cannot = || format!("cannot report the recording to {}", path.display());
        Ok(ReportFile(file.with_context(cannot)?))
    }

    /// Writes what came of the recording.
    pub fn write(&self, recorded: &crate::Result<Recorded>) -> crate::Result<()> {
        let told: Told = match recorded {
            Ok(recorded) => Ok((recorded.trace.clone().into(), recorded.clone())),
            Err(error) => Err(error.chain()),
        };
        Ok(serde_json::to_writer(self.0.file(), &told)?)
    }
}

/// Reads the file once the recorder has ended.
pub(crate) fn read(path: &Path) -> crate::Result<Recorded> {
    match serde_json::from_slice(&std::fs::read(path)?)? {
        Told::Ok((trace, recorded)) => Ok(Recorded { trace: trace.into(), ..recorded }),
        Told::Err(why) => bail!(Refused, "{why}"),
    }
}
