//! What is wrong with a trace, and what a repair kept of it.

use super::numbers::{bytes, counted};
use refrain_session::text::escape;
use refrain_trace::container::{CheckReport, IndexState, RepairReport};
use serde::Serialize;
use std::path::PathBuf;

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Report {
    /// Nothing is wrong, and the trace can be replayed as it is.
    pub(crate) sound: bool,
    /// Nothing is wrong or missing in the file; what it says may be.
    pub(crate) whole: bool,
    /// Why it cannot be replayed.
    pub(crate) unusable: Option<String>,
    /// Length of the file.
    pub(crate) bytes: u64,
    /// Chunks that are sound.
    pub(crate) chunks: u64,
    /// Threads.
    pub(crate) threads: u64,
    /// Events that can be read.
    pub(crate) events: u64,
    /// The end of the recording is missing.
    pub(crate) truncated: bool,
    /// `sound`, `missing` or `broken`.
    pub(crate) index: &'static str,
    /// Everything that is wrong with the file.
    pub(crate) problems: Vec<String>,
    /// Everything that is wrong with what the file says.
    pub(crate) violations: Vec<String>,
    /// What was done about it.
    pub(crate) repair: Option<Repair>,
}

/// The result of a repair.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Repair {
    /// Where the trace as it was is kept, if anything of it was lost but half a chunk.
    pub(crate) original: Option<String>,
    /// Events kept.
    pub(crate) events: u64,
    /// Bytes dropped.
    pub(crate) lost_bytes: u64,
    /// Whether the end of the recording is still missing.
    pub(crate) truncated: bool,
}

impl Report {
    /// From a check of the file and a verification of the content.
    pub(crate) fn new(
        check: &CheckReport,
        violations: Vec<String>,
        unusable: Option<String>,
    ) -> Report {
        Report {
            sound: check.is_sound() && violations.is_empty() && unusable.is_none(),
            whole: check.is_sound(),
            unusable,
            bytes: check.bytes,
            chunks: check.chunks,
            threads: check.threads,
            events: check.events,
            truncated: check.truncated,
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

    /// The report once the trace has been repaired, and is what `after` says.
    pub(crate) fn repaired(
        self,
        repair: &RepairReport,
        original: Option<PathBuf>,
        after: Report,
    ) -> Report {
        let repair = Repair {
            original: original.map(|path| path.display().to_string()),
            events: repair.events,
            lost_bytes: repair.lost_bytes,
            truncated: repair.truncated,
        };
        Report { repair: Some(repair), problems: self.problems, ..after }
    }
}

/// The report for people; `name` is the file.
pub(crate) fn render(report: &Report, name: &str) -> String {
    let mut text = String::new();
    for problem in report.problems.iter().chain(&report.violations) {
        text += &format!("{name}: {}\n", escape(problem));
    }
    if report.truncated {
        text += &format!("{name}: the end of the recording is missing\n");
    }
    if report.index != "sound" {
        text += &format!("{name}: the index is {}; the file is scanned instead\n", report.index);
    }
    if let Some(why) = &report.unusable {
        text += &format!("{name}: {why}\n");
    }
    let verdict = verdict(report);
    text += &format!(
        "{name}: {verdict}: {}, {} of {}, {}\n",
        counted(report.chunks, "chunk"),
        counted(report.events, "event"),
        counted(report.threads, "thread"),
        bytes(report.bytes),
    );
    if let Some(repair) = &report.repair {
        text += &format!(
            "{name}: repaired: {} kept, {} dropped",
            counted(repair.events, "event"),
            bytes(repair.lost_bytes),
        );
        text += &match &repair.original {
            Some(original) => format!("; the original is {original}\n"),
            None => "\n".to_owned(),
        };
    }
    text
}

/// What can be done with the trace.
fn verdict(report: &Report) -> &'static str {
    let damaged = !report.problems.is_empty() && report.repair.is_none();
    match () {
        () if damaged => "damaged; --repair keeps what is sound of it",
        () if report.unusable.is_some() => "of no use: it cannot be replayed; record again",
        () if !report.violations.is_empty() => "whole, but no recording is like that",
        () if report.truncated => "usable as far as it goes",
        () => "sound",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;

    #[test]
    fn a_damaged_trace_and_its_repair() {
        let report = Report {
            sound: false,
            whole: false,
            unusable: None,
            bytes: 70_000,
            chunks: 12,
            threads: 3,
            events: 4_711,
            truncated: true,
            index: "missing",
            problems: vec!["chunk 7 (events) at byte 812: its checksum is wrong".into()],
            violations: vec!["t1 e4: unlocks a mutex that it does not hold".into()],
            repair: None,
        };
        assert_snapshot!(render(&report, "a.refrain"));
        let repair = RepairReport {
            chunks: 11,
            events: 4_000,
            lost_bytes: 1_300,
            truncated: true,
            problems: Vec::new(),
        };
        let after = Report {
            sound: true,
            whole: true,
            problems: Vec::new(),
            index: "sound",
            ..report.clone()
        };
        let report = report.repaired(&repair, Some("a.refrain.old".into()), after);
        assert_snapshot!("repaired", render(&report, "a.refrain"));
    }
}
