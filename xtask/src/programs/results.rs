//! What is kept of each program: one JSON file, and traces that show a failure.

use super::catalogue::Program;
use super::install;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The orders of shared memory, the default first.
pub(super) const ORDERS: [&str; 2] = ["sync", "stride"];

/// What became of a program.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    /// The day.
    pub(super) date: String,
    /// The commit that refrain was built from, with `-dirty` where the files differed from it.
    pub(super) commit: String,
    /// Wall-clock time of one native run.
    pub(super) native_ms: u64,
    /// Why there is nothing else.
    pub(super) broken: Option<String>,
    /// By the order of shared memory.
    pub(super) modes: BTreeMap<String, Mode>,
}

/// Recordings and replays with one order of shared memory.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Mode {
    pub(super) verdict: Verdict,
    /// Wall-clock time of the last recording.
    pub(super) record_ms: Option<u64>,
    /// Of the last recording.
    pub(super) facts: Facts,
    /// What each diverged recording's replay said.
    pub(super) divergences: Vec<Divergence>,
    /// Notes of the last recording.
    pub(super) notes: Vec<String>,
    /// The traces that show what went wrong.
    pub(super) kept: Vec<PathBuf>,
    /// What to type to see it again.
    pub(super) again: String,
}

/// What a trace says of itself.
#[derive(Serialize, Deserialize, Clone, Default, Debug)]
pub(super) struct Facts {
    pub(super) traces: usize,
    pub(super) threads: u64,
    pub(super) events: u64,
    pub(super) bytes: u64,
    /// It has the order of every access.
    pub(super) every_access: bool,
}

/// How a replay diverged.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Divergence {
    pub(super) engine: String,
    pub(super) text: String,
    /// It named what races.
    pub(super) race: Option<String>,
}

/// What became of the recordings of a program.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// Every replay equals the recording.
    Exact,
    /// Those of the recording after so many that diverged do.
    Learned(u32),
    /// After as many recordings as are allowed, replays still diverge.
    Diverged(String),
    /// refrain says that it cannot record or replay this.
    Refused(String),
    /// A recording or replay took longer than it may.
    TimedOut(String),
    /// The recorded program did something else than the native one.
    Differs(String),
    /// refrain failed.
    Failed(String),
}

impl Verdict {
    /// The verdict in a table.
    pub(super) fn short(&self) -> String {
        match self {
            Verdict::Exact => "exact".into(),
            Verdict::Learned(n) => format!("learned {n}"),
            Verdict::Diverged(_) => "diverged".into(),
            Verdict::Refused(_) => "refused".into(),
            Verdict::TimedOut(_) => "timed out".into(),
            Verdict::Differs(_) => "differs".into(),
            Verdict::Failed(_) => "failed".into(),
        }
    }

    /// What there is to say beside that.
    pub(super) fn why(&self) -> Option<&str> {
        match self {
            Verdict::Exact | Verdict::Learned(_) => None,
            Verdict::Diverged(why)
            | Verdict::Refused(why)
            | Verdict::TimedOut(why)
            | Verdict::Differs(why)
            | Verdict::Failed(why) => Some(why),
        }
    }
}

impl Mode {
    /// A divergence that names no race is a fault of refrain's, also where the next recording is exact.
    pub(super) fn has_unexplained(&self) -> bool {
        self.divergences.iter().any(|divergence| divergence.race.is_none())
    }
}

impl Row {
    /// Whether there is nothing to look at.
    pub(super) fn is_exact(&self) -> bool {
        self.broken.is_none() && self.modes.values().all(|mode| mode.verdict == Verdict::Exact)
    }

    /// The row on a terminal.
    pub(super) fn line(&self) -> String {
        let mut text = format!("{:<44} native {:>6} ms", self.name, self.native_ms);
        if let Some(broken) = &self.broken {
            return format!("{text}  BROKEN: {broken}");
        }
        for (order, mode) in self.modes.iter().rev() {
            let time = mode.record_ms.map_or_else(|| "-".into(), |ms| format!("{ms} ms"));
            text += &format!("  {order}: {} {time}", mode.verdict.short());
        }
        for (order, mode) in &self.modes {
            let reasons = mode.verdict.why().map(str::to_owned).into_iter();
            let diverged = mode.divergences.iter().map(|it| match &it.race {
                Some(race) => format!("race: {race}"),
                None => format!("NO RACE: {} ({})", it.text, it.engine),
            });
            for reason in reasons.chain(diverged) {
                text += &format!("\n    {order}: {reason}");
            }
            if mode.verdict != Verdict::Exact {
                let kept = mode.kept.iter().map(|path| path.display().to_string());
                let kept = kept.collect::<Vec<_>>().join(" ");
                text += &format!("\n    {order}: again: {}\n    {order}: kept: {kept}", mode.again);
            }
        }
        text
    }
}

/// The folder of results.
pub(super) struct Results {
    folder: PathBuf,
}

impl Results {
    /// Opens the folder, which may be empty.
    pub(super) fn open() -> anyhow::Result<Results> {
        let folder = install::folder().join("results");
        std::fs::create_dir_all(&folder)?;
        Ok(Results { folder })
    }

    /// The kept result of a program.
    pub(super) fn get(&self, program: &Program) -> anyhow::Result<Option<Row>> {
        let path = self.path(program);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(
                serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?,
            )),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    /// Keeps a result in place of an earlier one.
    pub(super) fn keep(&self, program: &Program, row: &Row) -> anyhow::Result<()> {
        std::fs::write(self.path(program), serde_json::to_string_pretty(row)?)?;
        Ok(())
    }

    fn path(&self, program: &Program) -> PathBuf {
        self.folder.join(format!("{}.json", program.slug()))
    }
}
