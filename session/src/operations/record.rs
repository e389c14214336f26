//! Recording a program, in a process of the command.

use crate::error::{Context, bail};
use crate::session::Session;
use crate::trace_file::{self, is_being_recorded};
use refrain_trace::Order;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// What to record, and where to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recording {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The trace. One that is there already is kept under another name.
    pub trace: PathBuf,
    /// The order of shared memory; by default what suits the program.
    pub order: Option<Order>,
    /// Do not watch the sites of races that replays have taught.
    pub no_learn: bool,
}

impl Recording {
    /// Of a program and its arguments, to this trace, with all defaults.
    pub fn of<S: Into<OsString>>(
        command: impl IntoIterator<Item = S>,
        trace: impl Into<PathBuf>,
    ) -> Recording {
        let command = command.into_iter().map(Into::into).collect();
        Recording { command, trace: trace.into(), order: None, no_learn: false }
    }
}

/// What was recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// The trace.
    pub trace: PathBuf,
    /// How the recorder ended: as the program did.
    pub status: ExitStatus,
}

impl Session {
    /// Records a program to its end, with this process's standard streams. The recorder is a process of
    /// the command: it shares its process with the program.
    pub fn record(&self, recording: &Recording) -> crate::Result<Recorded> {
        let path = &recording.trace;
        let shown = path.display();
        if is_being_recorded(path) {
            bail!(Refused, "{shown} is being recorded by somebody else");
        }
        let before = identity(path);
        let mut command = Command::new(self.command());
        command.args(["record", "--quiet", "--output"]).arg(path);
        if let Some(order) = recording.order {
            command.args(["--order", order.name()]);
        }
        if recording.no_learn {
            command.arg("--no-learn");
        }
        let status = command.arg("--").args(&recording.command).status();
        let status = status.context("cannot start the recorder")?;
        // The recorder ends with the program's status, so that only the file says whether there is a
        // trace.
        if identity(path) == before {
            bail!(Refused, "nothing was recorded to {shown}; the recorder has said why ({status})");
        }
        trace_file::read(path)?;
        Ok(Recorded { trace: path.clone(), status })
    }
}

/// Which file has a name, if any.
fn identity(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let of = |it: Metadata| (it.dev(), it.ino(), it.ctime(), it.ctime_nsec());
    std::fs::metadata(path).ok().map(of)
}
