//! Standard output: results, as text or as JSON, in as many columns as there are.
//!
//! What a trace holds, and what is found by names in it, may be made to deceive those who read it
//! on a terminal. [`refrain_trace::harmless::escape`] makes such text harmless where a report takes it up; and nothing is
//! printed here that could still do anything but stand there.

use anyhow::Context;
use refrain_trace::harmless::{escape_but, is_plain};
use refrain_vm::Hidden;
use serde::Serialize;
use std::fmt::{Display, Write as _};
use std::io::{IsTerminal, Write, stderr, stdout};
use std::os::fd::AsFd;
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

/// The escape sequences of our own tables: bold, and its end.
const OWN_SEQUENCES: [&str; 2] = ["\x1b[1m", "\x1b[0m"];

/// The whole of a report as it is printed: lines, and on terminals our own escape sequences.
fn harmless(text: &str, coloured: bool) -> String {
    let keep = |c| matches!(c, '\n' | '\t');
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\x1b').filter(|_| coloured) {
        shown += &escape_but(&rest[..at], keep);
        let own = OWN_SEQUENCES.iter().find(|own| rest[at..].starts_with(*own));
        let len = own.map_or(1, |own| own.len());
        match own {
            Some(own) => shown += own,
            None => shown += "\\u{1b}",
        }
        rest = &rest[at + len..];
    }
    shown + &escape_but(rest, keep)
}

/// Prints a text result.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    write(&harmless(text, stdout().is_terminal() && colour_wanted()))
}

fn write(text: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot print")
}

/// Prints a JSON document, which carries the schema's version and its own kind first.
pub(crate) fn print_json<T: Serialize>(kind: &'static str, report: &T) -> anyhow::Result<()> {
    write(&json(kind, report)?)
}

/// Prints a JSON document of a format that is not refrain's own.
pub(crate) fn print_document<T: Serialize>(document: &T) -> anyhow::Result<()> {
    write(&shown_json(document)?)
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
    shown_json(&Document { schema_version: SCHEMA_VERSION, report: kind, body: report })
}

fn shown_json<T: Serialize>(document: &T) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(document)?;
    let mut shown = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        // Such characters stand in strings only, where each may be written as its code.
        if is_plain(c) || c == '\n' {
            shown.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(shown, "\\u{unit:04x}")?;
            }
        }
    }
    shown.push('\n');
    Ok(shown)
}

/// Standard output and error as they were before a recording: the program shares this process's
/// descriptors and may close or replace them, as many do just before they exit.
pub(crate) struct Console {
    stdout: Option<Hidden>,
    stderr: Option<Hidden>,
}

impl Console {
    /// Keeps both. A descriptor that is not open stays closed.
    pub(crate) fn keep() -> Console {
        Console { stdout: keep(stdout()), stderr: keep(stderr()) }
    }

    /// Prints a line to what was standard error. As with `eprintln!`, nobody may be listening.
    /// The program may be running: it gets to see no descriptor that it has not opened.
    pub(crate) fn say(&self, line: &str) {
        if let Some(stderr) = &self.stderr {
            let _ = stderr.file().write_all(format!("{line}\n").as_bytes());
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

    /// Makes standard output what it was.
    pub(crate) fn restore_stdout(&self) -> std::io::Result<()> {
        match &self.stdout {
            Some(stdout) => Ok(rustix::stdio::dup2_stdout(stdout.file())?),
            None => Ok(()),
        }
    }

    /// Gives both to a command.
    pub(crate) fn give_to(self, command: &mut Command) {
        let stdio = |fd: Option<Hidden>| fd.map_or_else(Stdio::null, |fd| fd.into_file().into());
        command.stdout(stdio(self.stdout)).stderr(stdio(self.stderr));
    }
}

fn keep(stream: impl AsFd) -> Option<Hidden> {
    Hidden::copy(stream).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVIL: &str = "a\x1b]0;title\x07b\nc\u{9b}31m\u{202e}d\u{2028}\u{200b}\x7fé→";

    #[test]
    fn a_report_keeps_its_lines_and_its_own_sequences() {
        assert_eq!(harmless("a\n\x1b[1mb\x1b[0m", true), "a\n\x1b[1mb\x1b[0m");
        assert_eq!(harmless("a\n\x1b[1mb", false), "a\n\\u{1b}[1mb");
        assert_eq!(harmless("\x1b[8mhidden\x1b", true), "\\u{1b}[8mhidden\\u{1b}");
        assert!(harmless(EVIL, true).chars().all(|c| is_plain(c) || c == '\n'));
    }

    #[test]
    fn json_means_the_same_and_shows_nothing() {
        #[derive(Serialize)]
        struct Report {
            text: &'static str,
        }
        let text = format!("{EVIL}\u{e0041}");
        let report = Report { text: Box::leak(text.clone().into_boxed_str()) };
        let document = json("test", &report).expect("can be written");
        assert!(document.chars().all(|c| is_plain(c) || c == '\n'), "{document:?}");
        let back: serde_json::Value = serde_json::from_str(&document).expect("is JSON");
        assert_eq!(back["text"], text);
    }
}
