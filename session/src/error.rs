//! The crate's one error type.

use crate::races::Lesson;
use refrain_vm::EngineError;
use std::error::Error as _;
use std::path::{Path, PathBuf};

/// What comes of work that may fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something cannot be done. Each variant says whose fault that is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's: what was asked for cannot be.
    #[error("{0}")]
    Refused(String),
    /// The caller's: the program to record was not found.
    #[error("{0}")]
    NotFound(String),
    /// The caller's: the program to record cannot be executed, or not recorded.
    #[error("{0}")]
    NotExecutable(String),
    /// Whoever's that damaged the file, or made it: it cannot be read as a trace.
    #[error("{}: {error}{}", path.display(), advice(path, error))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: refrain_trace::Error,
    },
    /// The trace's: something in it cannot be read.
    #[error(transparent)]
    Trace(#[from] refrain_trace::Error),
    /// The trace's: what it says cannot be, or is not enough.
    #[error("{0}")]
    Unusable(String),
    /// The recorded program's: it races, and the replay left the recording.
    #[error("{what}")]
    Diverged {
        /// What cannot be done, where the replay diverged, and what helps.
        what: String,
        /// What the replay has taught: another recording of the program may be exact.
        lesson: Option<Lesson>,
    },
    /// The recorded program's, or this machine's.
    #[error(transparent)]
    Machine(#[from] refrain_vm::Error),
    /// The trace's: it has no skeleton.
    #[error(transparent)]
    Skeleton(#[from] refrain_scheduler::Error),
    /// The trace's: its critical sections cannot be compared.
    #[error(transparent)]
    Analysis(#[from] refrain_transform::Error),
    /// Nobody's: as the scheduler decides, threads wait for each other.
    #[error("{0}")]
    Deadlock(String),
    /// The trace's, as long as nothing else disturbs the machine: the process that replays it fails,
    /// ends without an answer or talks nonsense.
    #[error("{0}")]
    Child(String),
    /// The installation's: the command that a session starts is of another build than the session.
    #[error("{0}")]
    OtherBuild(String),
    /// The system's: it refuses something.
    #[error(transparent)]
    System(Box<dyn std::error::Error + Send + Sync>),
    /// The listener's: it does not take what a program prints.
    #[error("cannot print")]
    Output(#[source] std::io::Error),
    /// Ours.
    #[error("this is a bug in refrain, please report it: {0}")]
    Bug(String),
    /// One of these, and what was tried.
    #[error("{what}")]
    While {
        /// What was tried.
        what: String,
        /// What stood in the way.
        source: Box<Error>,
    },
}

/// What to do about a file that cannot be read.
fn advice(path: &Path, error: &refrain_trace::Error) -> String {
    match error {
        refrain_trace::Error::Corrupt(..) => {
            format!("; try: refrain check --repair {}", path.display())
        }
        refrain_trace::Error::Version { .. } => {
            "; use the refrain that made it, or record again".to_owned()
        }
        refrain_trace::Error::Empty | refrain_trace::Error::CutOff => "; record again".to_owned(),
        _ => String::new(),
    }
}

impl Error {
    /// What was tried and what stood in the way, in one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text += &format!(": {error}");
            cause = error.source();
        }
        text
    }
}

/// Errors of the system, and of what stands between it and this crate.
macro_rules! of_system {
    ($($error:ty),* $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::System(error.into())
            }
        }
    )*};
}

of_system! {
    std::io::Error,
    rustix::io::Errno,
    serde_json::Error,
    tempfile::PersistError,
    landlock::PathFdError,
    landlock::RulesetError,
    seccompiler::BackendError,
    seccompiler::Error,
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Error {
        Error::Machine(error.into())
    }
}

/// What goes through the child's pipe is the child's fault.
impl From<postcard::Error> for Error {
    fn from(error: postcard::Error) -> Error {
        Error::Child(error.to_string())
    }
}

/// Says what was tried.
pub(crate) trait Context<T> {
    /// In these words.
    fn context(self, what: impl Into<String>) -> Result<T>;

    /// In words that are only made if they are needed.
    fn with_context<W: Into<String>>(self, what: impl FnOnce() -> W) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl Into<String>) -> Result<T> {
        self.with_context(|| what)
    }

    fn with_context<W: Into<String>>(self, what: impl FnOnce() -> W) -> Result<T> {
        self.map_err(|error| Error::While { what: what().into(), source: Box::new(error.into()) })
    }
}

/// Returns an error of a variant that holds a text.
macro_rules! bail {
    ($variant:ident, $($text:tt)*) => {
        return Err($crate::Error::$variant(format!($($text)*)))
    };
}

pub(crate) use bail;
