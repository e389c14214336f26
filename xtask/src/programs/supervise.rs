//! Running a program within a time limit, so that nothing of it is left afterwards.
//!
//! Processes that lose their parent become children of this one (it is a *subreaper*), so that all
//! that a program has started can be found and ended when the program is over.

use crate::process::CommandLine;
use anyhow::Context;
use rustix::process::{self, Pid, Signal, WaitOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often a running program is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How long what a program has started may take to end by itself.
const GRACE: Duration = Duration::from_secs(2);

/// Where and how programs run.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    /// The working directory.
    pub(super) folder: PathBuf,
    /// The whole environment.
    pub(super) env: BTreeMap<String, String>,
    /// The standard input.
    pub(super) stdin: Option<PathBuf>,
    /// Where standard output and standard error go: files of these names and extensions of their own.
    pub(super) streams: PathBuf,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) wall: Duration,
    /// As a shell gives it; `None` if time was up.
    pub(super) status: Option<i32>,
    pub(super) output: Vec<u8>,
    pub(super) errors: String,
    /// Processes that the program left running.
    pub(super) left: usize,
}

/// A program that runs.
pub(super) struct Running {
    child: Child,
    started: Instant,
    streams: PathBuf,
}

impl Running {
    /// Starts a program in a process group of its own.
    pub(super) fn start(line: &CommandLine, around: &Surroundings) -> anyhow::Result<Running> {
        process::set_child_subreaper(Some(process::getpid()))?;
        let (program, arguments) = line.words.split_first().context("an empty command line")?;
        let stdin = match &around.stdin {
            Some(path) => File::open(path).with_context(|| path.display().to_string())?.into(),
            None => Stdio::null(),
        };
        let started = Instant::now();
        let child = Command::new(program)
            .args(arguments)
            .current_dir(&around.folder)
            .env_clear()
            .envs(&around.env)
            .stdin(stdin)
            .stdout(File::create(around.streams.with_extension("out"))?)
            .stderr(File::create(around.streams.with_extension("err"))?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {}", line.shown()))?;
        Ok(Running { child, started, streams: around.streams.clone() })
    }

    /// Sends a signal to the program alone.
    pub(super) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_child(&self.child);
        process::kill_process(pid, signal).context("cannot signal the program")
    }

    /// The status, if the program has ended.
    pub(super) fn status(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until the program ends, or kills it at this time.
    pub(super) fn end(mut self, limit: Duration) -> anyhow::Result<Ended> {
        let mut status = self.child.try_wait()?;
        while status.is_none() && self.started.elapsed() < limit {
            std::thread::sleep(LOOK);
            status = self.child.try_wait()?;
        }
        let wall = self.started.elapsed();
        if status.is_none() {
            kill_descendants()?;
            self.child.wait()?;
        }
        let left = clear(if status.is_some() { GRACE } else { Duration::ZERO })?;
        let read = |extension| std::fs::read(self.streams.with_extension(extension));
        Ok(Ended {
            wall,
            status: status.map(shell_status),
            output: read("out")?,
            errors: String::from_utf8_lossy(&read("err")?).into_owned(),
            left,
        })
    }
}

impl Drop for Running {
    /// An error on the way must not leave the program running either.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = clear(Duration::ZERO);
    }
}

/// Runs a program to its end.
pub(super) fn run(
    line: &CommandLine,
    around: &Surroundings,
    limit: Duration,
) -> anyhow::Result<Ended> {
    Running::start(line, around)?.end(limit)
}

fn shell_status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Ends what is left of a program that is over, and counts those that have not ended by themselves.
fn clear(grace: Duration) -> anyhow::Result<usize> {
    let until = Instant::now() + grace;
    // What is killed may take a while to end, and is then found again.
    let mut left = BTreeSet::new();
    loop {
        while let Ok(Some(_)) = process::wait(WaitOptions::NOHANG) {}
        if children(own_id())?.is_empty() {
            return Ok(left.len());
        }
        if Instant::now() >= until {
            left.extend(kill_descendants()?);
        }
        std::thread::sleep(LOOK);
    }
}

/// Kills everything that this process and its children have started, and says what that was.
fn kill_descendants() -> anyhow::Result<Vec<i32>> {
    let mut found = children(own_id())?;
    let mut at = 0;
    while at < found.len() {
        let next = children(found[at])?;
        found.extend(next);
        at += 1;
    }
    for pid in found.iter().filter_map(|&pid| Pid::from_raw(pid)) {
        // It may have ended meanwhile.
        let _ = process::kill_process(pid, Signal::KILL);
    }
    Ok(found)
}

fn own_id() -> i32 {
    process::getpid().as_raw_nonzero().get()
}

/// The children of a process. Those of each thread stand in a file of its own.
fn children(of: i32) -> anyhow::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(Path::new("/proc"))? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process that has just ended has no file any more.
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if parent(&stat) == Some(of) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The parent in a line of `/proc/PID/stat`. The name before it may contain anything.
fn parent(stat: &str) -> Option<i32> {
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_contain_parentheses() {
        assert_eq!(parent("17 (a) S 1 (b) 3) R 12 17 17 0"), Some(12));
        assert_eq!(parent(""), None);
    }
}
