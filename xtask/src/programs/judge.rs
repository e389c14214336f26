//! What becomes of a program: a native run, recordings that are held against it, and their replays.

use super::catalogue::Program;
use super::place::Place;
use super::replays::{self, Outcome, one_line};
use super::results::{Facts, Mode, Row, Verdict};
use super::supervise::Ended;
use super::{Options, install, service};
use crate::process::CommandLine;
use crate::root;
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Recordings after the first that a program gets to learn from.
const AGAIN: u32 = 3;
/// What recordings and replays may take beyond a multiple of the native time.
const BEYOND: Duration = Duration::from_secs(60);
/// The multiple, with the default order and with the order of every access.
const FACTOR: [u32; 2] = [20, 60];
/// Whatever the native time is, nothing takes longer.
const AT_MOST: Duration = Duration::from_secs(400);
/// The exit status with which refrain says that it cannot record.
const CANNOT_RECORD: i32 = 125;
/// Traces that are larger than this altogether are not kept.
const KEPT: u64 = 500 << 20;

/// Judges programs.
pub(super) struct Judge {
    refrain: PathBuf,
    orders: Vec<String>,
    replays: u32,
    limit: Duration,
    date: String,
    commit: String,
}

/// A run, and the files that are to be compared.
struct Seen {
    ended: Ended,
    written: Vec<Option<Vec<u8>>>,
}

/// A program that is being judged with one order of shared memory.
struct Case<'a> {
    judge: &'a Judge,
    program: &'a Program,
    place: &'a Place,
    order: &'a str,
    native: &'a Seen,
    line: CommandLine,
    limit: Duration,
}

impl Judge {
    /// With this build of refrain.
    pub(super) fn new(refrain: PathBuf, options: &Options) -> anyhow::Result<Judge> {
        Ok(Judge {
            commit: root::built_from(&refrain)?,
            refrain,
            orders: options.order.clone(),
            replays: options.replays,
            limit: Duration::from_secs(options.limit),
            date: said(Command::new("date").args(["--utc", "+%F"]))?,
        })
    }

    /// Runs, records and replays a program. Results with other orders are taken from `old`.
    pub(super) fn judge(&self, program: &Program, old: Option<Row>) -> anyhow::Result<Row> {
        let mut row = Row {
            name: program.name.clone(),
            date: self.date.clone(),
            commit: self.commit.clone(),
            native_ms: 0,
            broken: None,
            modes: old.map(|row| row.modes).unwrap_or_default(),
        };
        let missing = install::missing(&[program])?;
        if !missing.is_empty() {
            row.broken = Some(format!("not installed: {}", missing.join(" ")));
            return Ok(row);
        }
        // That a program cannot be prepared or does not work natively is a fault of the list.
        let native = Place::new(program).and_then(|place| {
            let line = place.words()?;
            let native = natively(program, &place, &line, self.limit)?;
            Ok((place, line, native))
        });
        let (place, line, native) = match native {
            Ok(native) => native,
            Err(error) => {
                row.broken = Some(one_line(&format!("{error:#}")));
                return Ok(row);
            }
        };
        row.native_ms = milliseconds(native.ended.wall);
        for order in &self.orders {
            let factor = FACTOR[usize::from(order != super::results::ORDERS[0])];
            let case = Case {
                judge: self,
                program,
                place: &place,
                order,
                native: &native,
                line: line.clone(),
                limit: (native.ended.wall * factor + BEYOND).min(AT_MOST),
            };
            row.modes.insert(order.clone(), case.judge()?);
        }
        let kept = row.modes.values().any(|mode| !mode.kept.is_empty());
        if kept {
            place.keep_traces()?
        } else {
            place.remove()?
        }
        Ok(row)
    }
}

/// Runs a program natively, and fails if that does not end as the list says.
fn natively(
    program: &Program,
    place: &Place,
    line: &CommandLine,
    limit: Duration,
) -> anyhow::Result<Seen> {
    place.restore()?;
    let around = place.surroundings("native", "native");
    let ended = service::run(line, &around, program, limit)?;
    if ended.status != Some(program.status) {
        let status = ended.status.map_or("after the limit".into(), |it| format!("with {it}"));
        bail!("the native run ended {status}: {}", last(&ended.errors));
    }
    let written = written(program, place);
    if let Some(at) = written.iter().position(Option::is_none) {
        bail!("the native run did not write {}", program.writes[at]);
    }
    Ok(Seen { ended, written })
}

fn written(program: &Program, place: &Place) -> Vec<Option<Vec<u8>>> {
    program.writes.iter().map(|name| std::fs::read(place.work().join(name)).ok()).collect()
}

impl Case<'_> {
    fn judge(&self) -> anyhow::Result<Mode> {
        let mut mode = Mode {
            verdict: Verdict::Exact,
            record_ms: None,
            facts: Facts::default(),
            divergences: Vec::new(),
            notes: Vec::new(),
            kept: Vec::new(),
            again: String::new(),
        };
        for attempt in 0..=AGAIN {
            let found = self.attempt(attempt, &mut mode)?;
            let unexplained = mode.divergences.last().is_some_and(|last| last.race.is_none());
            let bad = found.is_some() && (unexplained || !self.learns(&mode, &found, attempt));
            self.clear(attempt, bad, &mut mode)?;
            mode.verdict = match found {
                None if attempt == 0 => Verdict::Exact,
                None => Verdict::Learned(attempt),
                Some(found) if self.learns(&mode, &Some(found.clone()), attempt) => continue,
                Some(found) => found,
            };
            break;
        }
        Ok(mode)
    }

    /// Whether a further recording may be better.
    fn learns(&self, mode: &Mode, found: &Option<Verdict>, attempt: u32) -> bool {
        matches!(found, Some(Verdict::Diverged(_))) && !mode.facts.every_access && attempt < AGAIN
    }

    /// Records and replays once; `None` if all was exact.
    fn attempt(&self, attempt: u32, mode: &mut Mode) -> anyhow::Result<Option<Verdict>> {
        let trace = self.trace(attempt);
        let around = self.place.surroundings(self.order, self.order);
        let record = self.recording(&trace);
        mode.again = format!(
            "cd {} && XDG_CACHE_HOME={} {}",
            around.folder.display(),
            around.env["XDG_CACHE_HOME"],
            record.shown()
        );
        self.place.restore()?;
        let ended = service::run(&record, &around, self.program, self.limit)?;
        mode.record_ms = Some(milliseconds(ended.wall));
        mode.notes = notes(&ended.errors);
        if let Some(verdict) =
            self.compare(&Seen { written: written(self.program, self.place), ended })
        {
            return Ok(Some(verdict));
        }
        let traces = self.traces(attempt)?;
        mode.facts = Facts::default();
        for trace in &traces {
            mode.facts.add(replays::facts(&self.judge.refrain, trace, &around, self.limit)?);
        }
        for trace in &traces {
            let replays = (self.judge.replays, self.limit);
            let (outcome, engine) = replays::all(&self.judge.refrain, trace, replays, &around)?;
            let verdict = match outcome {
                Outcome::Exact => continue,
                Outcome::Diverged(divergence) => {
                    let text = divergence.text.clone();
                    mode.divergences.push(divergence);
                    Verdict::Diverged(text)
                }
                Outcome::Refused(why) => Verdict::Refused(format!("{engine}: {why}")),
                Outcome::TimedOut => {
                    Verdict::TimedOut(format!("replay, {engine}, after {} s", self.limit.as_secs()))
                }
                Outcome::Failed(why) => Verdict::Failed(format!("replay, {engine}: {why}")),
            };
            return Ok(Some(verdict));
        }
        Ok(None)
    }

    /// Holds a recorded run against the native one.
    fn compare(&self, recorded: &Seen) -> Option<Verdict> {
        let (native, ended) = (&self.native.ended, &recorded.ended);
        let own = said_by_refrain(&ended.errors);
        let Some(status) = ended.status else {
            let after = self.limit.as_secs();
            return Some(Verdict::TimedOut(format!(
                "recording, after {after} s; {}",
                last(&ended.errors)
            )));
        };
        if own.contains("this is a bug in refrain") {
            return Some(Verdict::Failed(own));
        }
        if own.contains("refrain: error: ") && [CANNOT_RECORD, 126, 127].contains(&status) {
            return Some(Verdict::Refused(own));
        }
        if own.contains("went on unrecorded") {
            return Some(Verdict::Refused(own));
        }
        if native.status != ended.status {
            return Some(Verdict::Differs(format!(
                "status {status} instead of {}: {}",
                self.program.status,
                last(&ended.errors)
            )));
        }
        if ended.left > native.left {
            let (left, natively) = (ended.left, native.left);
            return Some(Verdict::Differs(format!("left {left} processes instead of {natively}")));
        }
        if !self.program.varies && native.output != ended.output {
            let at = native.output.iter().zip(&ended.output).position(|(a, b)| a != b);
            let at = at.unwrap_or(native.output.len().min(ended.output.len()));
            return Some(Verdict::Differs(format!(
                "{} bytes of output instead of {}, different from byte {at} on",
                ended.output.len(),
                native.output.len()
            )));
        }
        let at = recorded.written.iter().zip(&self.native.written).position(|(a, b)| a != b)?;
        Some(Verdict::Differs(format!("{} differs", self.program.writes[at])))
    }

    fn recording(&self, trace: &Path) -> CommandLine {
        let mut line = CommandLine::new([self.judge.refrain.as_os_str(), "record".as_ref()]);
        // The default is the recorder's choice, which knows some runtimes.
        if self.order != super::results::ORDERS[0] {
            line.words.extend(["--order".into(), self.order.into()]);
        }
        line.words.extend(self.program.record.iter().map(Into::into));
        line.words.extend(["-o".into(), trace.into(), "--".into()]);
        line.words.extend(self.line.words.iter().cloned());
        line
    }

    /// Where the trace of this recording goes. Those of child processes lie beside it.
    fn trace(&self, attempt: u32) -> PathBuf {
        self.folder(attempt).join("program.refrain")
    }

    fn folder(&self, attempt: u32) -> PathBuf {
        let folder = self.place.traces().join(format!("{}-{attempt}", self.order));
        // Recorded programs that give up the rights of root have their children's traces here.
        let _ = std::fs::create_dir_all(&folder);
        folder
    }

    fn traces(&self, attempt: u32) -> anyhow::Result<Vec<PathBuf>> {
        let mut traces = Vec::new();
        for entry in std::fs::read_dir(self.folder(attempt))? {
            traces.push(entry?.path());
        }
        traces.retain(|path| path.extension().is_some_and(|extension| extension == "refrain"));
        traces.sort();
        if traces.is_empty() {
            bail!("the recording left no trace");
        }
        Ok(traces)
    }

    /// Keeps the traces that show a fault, if they are not too large, and no others.
    fn clear(&self, attempt: u32, bad: bool, mode: &mut Mode) -> anyhow::Result<()> {
        let folder = self.folder(attempt);
        let mut bytes = 0;
        for entry in std::fs::read_dir(&folder)? {
            bytes += entry?.metadata()?.len();
        }
        if bad && bytes <= KEPT {
            mode.kept.push(folder);
            return Ok(());
        }
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
    }
}

impl Facts {
    fn add(&mut self, other: Facts) {
        self.traces += other.traces;
        self.threads = self.threads.max(other.threads);
        self.events += other.events;
        self.bytes += other.bytes;
        self.every_access |= other.every_access;
    }
}

/// What the recorder says of the recording, beside the first line.
fn notes(errors: &str) -> Vec<String> {
    let notes = errors.lines().filter_map(|line| line.strip_prefix("refrain: note: "));
    notes.map(str::to_owned).collect()
}

fn said_by_refrain(errors: &str) -> String {
    let own = ["refrain: error: ", "refrain: warning: "];
    let is_own = |line: &&str| own.iter().any(|begin| line.contains(begin));
    one_line(&errors.lines().filter(is_own).collect::<Vec<_>>().join(" "))
}

/// The end of what a program said, where the reason mostly is; what refrain said stands elsewhere.
fn last(errors: &str) -> String {
    let is_own =
        |line: &str| ["refrain: recorded", "refrain: note"].iter().any(|it| line.starts_with(it));
    let lines = errors.lines().filter(|line| !line.trim().is_empty() && !is_own(line));
    let lines: Vec<&str> = lines.collect();
    one_line(&lines[lines.len().saturating_sub(3)..].join("; "))
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The one line that a command prints.
fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests;
