//! How a command fails: one line on standard error and an exit status.

use refrain_session::Error;
use std::fmt;

/// The command's result: the exit status, or what to print before exiting with another.
pub(crate) type Outcome = Result<u8, Failure>;

/// Something went wrong (status 1) unless said otherwise.
const ERROR: u8 = 1;

/// `refrain` itself could not record. 125 to 127 are as in `env`, `timeout` and `nohup`.
pub(crate) const CANNOT_RECORD: u8 = 125;
/// The program to record exists and cannot be run.
const CANNOT_EXECUTE: u8 = 126;
/// The program to record was not found.
const NOT_FOUND: u8 = 127;

/// An error with the exit status that goes with it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    error: anyhow::Error,
}

impl Failure {
    /// An error of a recording that is refrain's own, not the program's.
    pub(crate) fn recording(error: impl Into<anyhow::Error>) -> Failure {
        Failure { status: CANNOT_RECORD, error: error.into() }
    }

    /// An error of a recording, whoever's it is.
    pub(crate) fn of_recorder(error: Error) -> Failure {
        match &error {
            Error::NotFound(_) | Error::Machine(refrain_vm::Error::NotFound(_)) => {
                Failure { status: NOT_FOUND, error: error.into() }
            }
            Error::NotExecutable(_) | Error::Machine(refrain_vm::Error::NotExecutable { .. }) => {
                Failure { status: CANNOT_EXECUTE, error: error.into() }
            }
            _ => Failure::recording(error),
        }
    }

    /// Whether the cause is a reader of standard output that went away, as `head` does.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.error.chain().any(|cause| {
            cause
                .downcast_ref::<std::io::Error>()
                .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
        })
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure { status: ERROR, error: error.into() }
    }
}

/// The chain of causes on one line. Names out of traces and argument lists may hold anything, so
/// control characters are escaped.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = format!("{:#}", self.error);
        let lines: Vec<String> = lines.split('\n').map(refrain_trace::harmless::escape).collect();
        f.write_str(&lines.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_failure_is_one_clean_line() {
        let error = anyhow!("no\x1b[31m\nsuch file").context("cannot open a.refrain");
        assert_eq!(
            Failure::from(error).to_string(),
            "cannot open a.refrain: no\\u{1b}[31m; such file"
        );
    }

    #[test]
    fn a_broken_pipe_is_found_below_its_context() {
        let pipe = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(Failure::from(anyhow::Error::new(pipe).context("cannot print")).is_broken_pipe());
        assert!(!Failure::from(anyhow!("else")).is_broken_pipe());
    }
}
