//! Recording a program, in a process of the command.

use crate::error::{Context, Error};
use crate::recorder::{self, REPORT_FLAG, Recorded, Recording};
use crate::session::Session;
use crate::version::version;
use std::process::Command;

impl Session {
    /// Records a program to its end, with this process's standard streams, as `refrain record` does. The
    /// recorder is a process of the command: it shares its process with the program.
    pub fn record(&self, recording: &Recording) -> crate::Result<Recorded> {
        let report = tempfile::NamedTempFile::new()?;
        let mut arguments = recording.arguments();
        arguments.splice(1..1, [REPORT_FLAG.into(), report.path().into()]);
        let mut command = Command::new(self.command());
        let status = command.args(arguments).status().context("cannot start the recorder")?;
        recorder::read_report(report.path()).map_err(|error| match error {
            // It has nothing to report to: it was killed, or is another program.
            Error::System(_) => Error::Child(format!(
                "the recorder has not reported what it recorded ({status}); is {} of this build, \
                 refrain {}?",
                self.command().display(),
                version()
            )),
            error => error,
        })
    }
}
