//! What the end-to-end tests have in common: a place to work in and a command to run there.
//!
//! The tests know the command by its arguments, output and exit status alone, as users do.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fmt;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// An empty working directory for one test, and the command under test.
pub struct Bench {
    directory: tempfile::TempDir,
    refrain: PathBuf,
}

impl Bench {
    /// `refrain` is the executable: `env!("CARGO_BIN_EXE_refrain-under-test")`.
    ///
    /// # Panics
    /// If there is no room for temporary files.
    pub fn new(refrain: &str) -> Bench {
        let directory = tempfile::tempdir().expect("there is room for temporary files");
        Bench { directory, refrain: refrain.into() }
    }

    /// The working directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file and returns its path.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, content).expect("the working directory is writable");
        path
    }

    /// Writes an executable file and returns its path.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn program(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.file(name, content);
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("the file is ours");
        path
    }

    /// Compiles C with these further arguments, in the working directory.
    ///
    /// # Panics
    /// If the compiler is not there or does not like it.
    pub fn cc(&self, source: &str, arguments: &[&str]) {
        self.file("source.c", source.as_bytes());
        let mut command = Command::new("cc");
        Run::of(command.arg("source.c").args(arguments).current_dir(self.path())).succeeds();
    }

    /// `refrain` with these arguments, in the working directory and in a plain environment.
    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(&self.refrain);
        command
            .args(arguments)
            .current_dir(self.path())
            .env("XDG_CACHE_HOME", self.path().join("cache"))
            .env_remove("REFRAIN_LOG")
            .env_remove("NO_COLOR")
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null());
        command
    }

    /// Runs `refrain` with these arguments.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn refrain<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Run {
        Run::of(&mut self.command(arguments))
    }
}

/// How a command ran.
pub struct Run {
    /// Exit status, as a shell gives it.
    pub status: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { status, stderr, .. } = self;
        write!(f, "status {status}, stdout {:?}, stderr {stderr:?}", self.text())
    }
}

impl Run {
    /// Runs a command to its end.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn of(command: &mut Command) -> Run {
        use std::os::unix::process::ExitStatusExt;
        let Output { status, stdout, stderr } =
            command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Run {
            status: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            stdout,
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Asserts that the command failed with this status and exactly one line, which holds `words`.
    ///
    /// # Panics
    /// If not.
    #[track_caller]
    pub fn fails(&self, status: i32, words: &[&str]) {
        assert_eq!(self.status, status, "{self:?}");
        let stderr = &self.stderr;
        assert!(stderr.starts_with("refrain: error: "), "{self:?}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "one line: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        for word in words {
            assert!(stderr.contains(word), "{stderr:?} does not say {word:?}");
        }
    }

    /// Asserts that the command succeeded.
    ///
    /// # Panics
    /// If not.
    #[track_caller]
    pub fn succeeds(&self) -> &Run {
        assert_eq!(self.status, 0, "{}{}", self.stderr, self.text());
        self
    }
}
