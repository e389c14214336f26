//! Standard output: results, as text or as JSON, in as many columns as there are.

use anyhow::Context;
use serde::Serialize;
use std::fmt::Display;
use std::fs::File;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

/// Of every JSON document that refrain prints. Fields may be added within a version; it is
/// raised when one changes its meaning or goes away.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// Columns of a report that is not printed to a terminal.
const DEFAULT_WIDTH: u16 = 100;
/// Wider lines than this are hard to read however wide the terminal.
const MAX_WIDTH: u16 = 120;

/// Whether the user has not asked for plain text (<https://no-color.org>).
pub(crate) fn colour_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// How a report is to be laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Style {
    /// Columns to fill at most.
    pub(crate) width: u16,
    /// Whether escape sequences may be used.
    pub(crate) colour: bool,
}

impl Style {
    /// The style of standard output.
    pub(crate) fn of_stdout() -> Style {
        let terminal = stdout().is_terminal();
        let columns = rustix::termios::tcgetwinsize(stdout()).map_or(0, |size| size.ws_col);
        let width = match columns {
            0 => DEFAULT_WIDTH,
            columns => columns.clamp(60, MAX_WIDTH),
        };
        Style { width, colour: terminal && colour_wanted() }
    }
}

/// Prints a text result.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot print")
}

/// Prints a JSON document, which carries the schema's version and its own kind first.
pub(crate) fn print_json<T: Serialize>(kind: &'static str, report: &T) -> anyhow::Result<()> {
    print(&json(kind, report)?)
}

/// The document that [`print_json`] prints.
pub(crate) fn json<T: Serialize>(kind: &'static str, report: &T) -> anyhow::Result<String> {
    #[derive(Serialize)]
    struct Document<'a, T> {
        schema_version: u32,
        report: &'static str,
        #[serde(flatten)]
        body: &'a T,
    }
    let document = Document { schema_version: SCHEMA_VERSION, report: kind, body: report };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// Standard output and error as they were before a recording: the program shares this process's
/// descriptors and may close or replace them, as many do just before they exit.
pub(crate) struct Console {
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

/// Descriptors from here on are refrain's; the recorder keeps the program away from them.
const HOST_DESCRIPTORS: i32 = 900;

impl Console {
    /// Keeps both. A descriptor that is not open stays closed.
    pub(crate) fn keep() -> Console {
        Console { stdout: keep(stdout()), stderr: keep(stderr()) }
    }

    /// Prints a line to what was standard error. As with `eprintln!`, nobody may be listening.
    /// The program may be running: it gets to see no descriptor that it has not opened.
    pub(crate) fn say(&self, line: &str) {
        if let Some(copy) = self.stderr.as_ref().and_then(keep) {
            let _ = File::from(copy).write_all(format!("{line}\n").as_bytes());
        }
    }

    /// Prints what the user should know of a recording.
    pub(crate) fn note(&self, note: &impl Display) {
        self.say(&format!("refrain: note: {note}"));
    }

    /// The same console, for somebody who may outlive this one.
    pub(crate) fn share(&self) -> Console {
        let [stdout, stderr] = [&self.stdout, &self.stderr].map(|fd| fd.as_ref().and_then(keep));
        Console { stdout, stderr }
    }

    /// Gives both to a command.
    pub(crate) fn give_to(self, command: &mut Command) {
        let stdio = |fd: Option<OwnedFd>| fd.map_or_else(Stdio::null, Stdio::from);
        command.stdout(stdio(self.stdout)).stderr(stdio(self.stderr));
    }
}

fn keep(stream: impl AsFd) -> Option<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(&stream, HOST_DESCRIPTORS)
        .or_else(|_| rustix::io::fcntl_dupfd_cloexec(&stream, 3))
        .ok()
}
