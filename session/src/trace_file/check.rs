//! Checking a trace and mending one that was damaged or cut off.

use super::{NewTrace, advise, is_being_recorded};
use crate::error::{Context, bail};
use refrain_trace::container::{self, CheckReport, IndexState, RepairReport};
use refrain_trace::verify::verify;
use refrain_trace::{Error, Trace};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What a check has found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Checked {
    /// Nothing is wrong, and the trace can be replayed as it is.
    pub sound: bool,
    /// Nothing is wrong or missing in the file; what it says may be.
    pub whole: bool,
    /// Why it cannot be replayed.
    pub unusable: Option<String>,
    /// Length of the file.
    pub bytes: u64,
    /// Chunks that are sound.
    pub chunks: u64,
    /// Threads.
    pub threads: u64,
    /// Events that can be read.
    pub events: u64,
    /// The end of the recording is missing.
    pub truncated: bool,
    /// A replay needs files that the trace refers to, and was not asked whether they are there.
    pub refers: bool,
    /// `sound`, `missing` or `broken`.
    pub index: &'static str,
    /// Everything that is wrong with the file.
    pub problems: Vec<String>,
    /// Everything that is wrong with what the file says.
    pub violations: Vec<String>,
    /// What was done about it.
    pub repair: Option<Repair>,
}

/// The result of a repair.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Repair {
    /// Where the trace as it was is kept, if anything of it was lost but half a chunk.
    pub original: Option<String>,
    /// Events kept.
    pub events: u64,
    /// Bytes dropped.
    pub lost_bytes: u64,
    /// Whether the end of the recording is still missing.
    pub truncated: bool,
}

impl Checked {
    /// From a check of the file and a verification of the content.
    fn new(check: &CheckReport, violations: Vec<String>, unusable: Option<String>) -> Checked {
        Checked {
            sound: check.is_sound() && violations.is_empty() && unusable.is_none(),
            whole: check.is_sound(),
            unusable,
            bytes: check.bytes,
            chunks: check.chunks,
            threads: check.threads,
            events: check.events,
            truncated: check.truncated,
            refers: check.refers,
            index: match check.index {
                IndexState::Sound => "sound",
                IndexState::Missing => "missing",
                IndexState::Broken => "broken",
            },
            problems: check.problems.iter().map(ToString::to_string).collect(),
            violations,
            repair: None,
        }
    }

    /// The same of a trace that has been repaired, and is what `after` says.
    fn repaired(self, repair: &RepairReport, original: Option<PathBuf>, after: Checked) -> Checked {
        let repair = Repair {
            original: original.map(|path| path.display().to_string()),
            events: repair.events,
            lost_bytes: repair.lost_bytes,
            truncated: repair.truncated,
        };
        Checked { repair: Some(repair), problems: self.problems, ..after }
    }
}

/// Says everything that is wrong with the trace at `path`, and, if it `mends`, mends it where the file
/// is not whole.
pub fn check(path: &Path, mends: bool) -> crate::Result<Checked> {
    drop(super::plain(path)?);
    let found = inspect(path)?;
    if !mends || found.whole {
        return Ok(found);
    }
    let (repair, original) = repair(path)?;
    Ok(found.repaired(&repair, original, inspect(path)?))
}

/// What is wrong with the file and with what it says.
fn inspect(path: &Path) -> crate::Result<Checked> {
    let check = container::check(path).map_err(|error| advise(path, error))?;
    let (violations, unusable) = match content(path) {
        Ok(found) => found,
        // The check of the file has found this already.
        Err(Error::Corrupt(..) | Error::Missing(_)) => (Vec::new(), None),
        Err(error) => return Err(advise(path, error)),
    };
    Ok(Checked::new(&check, violations, unusable))
}

/// What is wrong with the content, and why it cannot be replayed.
fn content(path: &Path) -> refrain_trace::Result<(Vec<String>, Option<String>)> {
    let trace = Trace::open(path)?;
    let unusable = refrain_vm::replayable(&trace).err();
    let violations = verify(&trace)?;
    let words = violations.iter().map(ToString::to_string).collect();
    Ok((words, unusable.map(|why| why.to_string())))
}

/// Mends a trace in its place where nothing is lost by that. Otherwise the damaged one is kept
/// under another name, which is returned.
fn repair(path: &Path) -> crate::Result<(RepairReport, Option<PathBuf>)> {
    let shown = path.display();
    if is_being_recorded(path) {
        bail!(
            Refused,
            "{shown} is being recorded; it can be repaired when the recording has ended"
        );
    }
    if let Some(report) = container::repair_in_place(path).map_err(|e| advise(path, e))? {
        return Ok((report, None));
    }
    let new = NewTrace::create(path, false)?;
    let file = new.file().with_context(|| format!("cannot write beside {shown}"))?;
    let report = container::repair_to(path, &file).map_err(|error| advise(path, error))?;
    file.sync_all().with_context(|| format!("cannot write beside {shown}"))?;
    let named = new.publish()?;
    Ok((report, named.old.clone()))
}
