//! Running programs: time, peak memory, output and exit status.

use anyhow::{Context, bail};
use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A command line.
#[derive(Clone, Debug)]
pub(crate) struct CommandLine {
    /// The program and its arguments.
    pub(crate) words: Vec<OsString>,
    /// The user's cache, if it is not the usual one.
    cache: Option<PathBuf>,
}

impl CommandLine {
    /// From words of any kind.
    pub(crate) fn new<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> CommandLine {
        let words = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        CommandLine { words, cache: None }
    }

    /// The same with another cache.
    pub(crate) fn with_cache(self, folder: PathBuf) -> CommandLine {
        CommandLine { cache: Some(folder), ..self }
    }

    /// The same command run by others: `prefix... -- words...` without the dashes.
    pub(crate) fn under<W: AsRef<OsStr>>(
        &self,
        prefix: impl IntoIterator<Item = W>,
    ) -> CommandLine {
        let mut line = CommandLine::new(prefix);
        line.words.extend(self.words.iter().cloned());
        line
    }

    /// The same command, recorded into a trace.
    pub(crate) fn recorded(&self, refrain: &Path, trace: &Path) -> CommandLine {
        self.recorded_in("sync", refrain, trace)
    }

    /// The same command, under valgrind without a tool.
    pub(crate) fn under_valgrind(&self, valgrind: &Path) -> CommandLine {
        self.under::<&OsStr>([valgrind.as_os_str(), "--tool=none".as_ref(), "-q".as_ref()])
    }

    /// As [`CommandLine::recorded`], with this order of shared memory.
    pub(crate) fn recorded_in(&self, order: &str, refrain: &Path, trace: &Path) -> CommandLine {
        self.recorded_with(&["--order", order], refrain, trace)
    }

    /// As [`CommandLine::recorded`], with the order that the program needs.
    pub(crate) fn recorded_by_default(&self, refrain: &Path, trace: &Path) -> CommandLine {
        self.recorded_with(&[], refrain, trace)
    }

    fn recorded_with(&self, options: &[&str], refrain: &Path, trace: &Path) -> CommandLine {
        let mut words = vec![refrain.as_os_str()];
        words.extend(["record", "--quiet", "--force"].iter().chain(options).map(OsStr::new));
        words.extend([OsStr::new("-o"), trace.as_os_str(), OsStr::new("--")]);
        self.under(words)
    }

    /// As it would be typed.
    pub(crate) fn shown(&self) -> String {
        let words = self.words.iter().map(|word| word.to_string_lossy());
        words.collect::<Vec<_>>().join(" ")
    }
}

/// What a run was like.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Wall-clock time.
    pub(crate) wall: Duration,
    /// Status as a shell gives it: 128 and the signal for a program that was killed.
    pub(crate) status: i32,
    /// What it wrote to standard output.
    pub(crate) output: Vec<u8>,
    /// What it wrote to standard error.
    pub(crate) errors: String,
    /// The most memory that was resident, in KiB, where it was asked for.
    pub(crate) peak_kib: u64,
}

/// Runs a command with its output in files, so that no pipe slows it down.
pub(crate) fn run(line: &CommandLine, scratch: &Path) -> anyhow::Result<Run> {
    run_with(line, scratch, false)
}

/// As [`run`], and watches the memory. The watching costs a little time.
pub(crate) fn run_watched(line: &CommandLine, scratch: &Path) -> anyhow::Result<Run> {
    run_with(line, scratch, true)
}

fn run_with(line: &CommandLine, scratch: &Path, watched: bool) -> anyhow::Result<Run> {
    let (program, arguments) = line.words.split_first().context("an empty command line")?;
    let (out, err) = (scratch.join("stdout"), scratch.join("stderr"));
    let started = Instant::now();
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .stderr(File::create(&err)?)
        .envs(line.cache.iter().map(|folder| ("XDG_CACHE_HOME", folder)))
        .spawn()
        .with_context(|| format!("cannot run {}", line.shown()))?;
    let peak_kib =
        if watched { watch(child.id(), &mut || Ok(child.try_wait()?.is_some()))? } else { 0 };
    let status = child.wait()?;
    let wall = started.elapsed();
    Ok(Run {
        wall,
        status: shell_status(status),
        output: std::fs::read(&out)?,
        errors: String::from_utf8_lossy(&std::fs::read(&err)?).into_owned(),
        peak_kib,
    })
}

/// Polls the high-water mark, which the kernel keeps, until the process is done.
fn watch(pid: u32, done: &mut dyn FnMut() -> anyhow::Result<bool>) -> anyhow::Result<u64> {
    let mut peak = 0;
    while !done()? {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mark = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let mark = mark.and_then(|text| text.split_whitespace().next()?.parse().ok());
        peak = peak.max(mark.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(peak)
}

fn shell_status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Fails unless two runs had the same output and status.
pub(crate) fn same(native: &Run, other: &Run, what: &str) -> anyhow::Result<()> {
    if native.status != other.status {
        let errors = other.errors.trim();
        bail!("{what}: status {} instead of {}: {errors}", other.status, native.status);
    }
    if native.output != other.output {
        let at = native.output.iter().zip(&other.output).position(|(a, b)| a != b);
        let at = at.unwrap_or(native.output.len().min(other.output.len()));
        bail!(
            "{what}: {} bytes of output instead of {}, different from byte {at} on",
            other.output.len(),
            native.output.len()
        );
    }
    Ok(())
}

/// The executable of a tool, if it is installed.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// The middle of the times.
pub(crate) fn median(times: &[Duration]) -> Duration {
    middle(times, Duration::cmp).expect("whoever measures measures something")
}

/// The middle of some values in this order; of an even number, the one above. `None` of none.
pub(crate) fn middle<T: Copy>(values: &[T], order: fn(&T, &T) -> Ordering) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(order);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_that_of_the_order() {
        assert_eq!(middle(&[3.0, -7.0, 5.0], f64::total_cmp), Some(3.0));
        assert_eq!(middle(&[4.0, 1.0, 2.0, 3.0], f64::total_cmp), Some(3.0));
        assert_eq!(middle(&[], f64::total_cmp), None);
    }
}
