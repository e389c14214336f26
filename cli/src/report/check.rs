//! What is wrong with a trace, and what a repair kept of it.

use super::numbers::{bytes, counted};
use refrain_trace::container::{CheckReport, IndexState, RepairReport};
use serde::Serialize;

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Report {
    /// Nothing is wrong or missing.
    pub(crate) sound: bool,
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
    /// Where the trace as it was is kept.
    pub(crate) original: String,
    /// Events kept.
    pub(crate) events: u64,
    /// Bytes dropped.
    pub(crate) lost_bytes: u64,
    /// Whether the end of the recording is still missing.
    pub(crate) truncated: bool,
}

impl Report {
    /// From a check of the file and a verification of the content.
    pub(crate) fn new(check: &CheckReport, violations: Vec<String>) -> Report {
        Report {
            sound: check.is_sound() && violations.is_empty(),
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

    /// The report once the trace has been repaired.
    pub(crate) fn repaired(self, repair: &RepairReport, original: String) -> Report {
        let repair = Repair {
            original,
            events: repair.events,
            lost_bytes: repair.lost_bytes,
            truncated: repair.truncated,
        };
        Report { repair: Some(repair), ..self }
    }
}

/// The report for people; `name` is the file.
pub(crate) fn render(report: &Report, name: &str) -> String {
    let mut text = String::new();
    for problem in report.problems.iter().chain(&report.violations) {
        text += &format!("{name}: {problem}\n");
    }
    if report.truncated {
        text += &format!("{name}: the end of the recording is missing\n");
    }
    if report.index != "sound" {
        text += &format!("{name}: the index is {}; the file is scanned instead\n", report.index);
    }
    let verdict = if report.sound { "sound" } else { "usable as far as it is whole" };
    text += &format!(
        "{name}: {verdict}: {}, {} of {}, {}\n",
        counted(report.chunks, "chunk"),
        counted(report.events, "event"),
        counted(report.threads, "thread"),
        bytes(report.bytes),
    );
    if let Some(repair) = &report.repair {
        text += &format!(
            "{name}: repaired: {} kept, {} dropped; the original is {}\n",
            counted(repair.events, "event"),
            bytes(repair.lost_bytes),
            repair.original
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;

    #[test]
    fn a_damaged_trace_and_its_repair() {
        let report = Report {
            sound: false,
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
        let report = report.repaired(&repair, "a.refrain.old".into());
        assert_snapshot!("repaired", render(&report, "a.refrain"));
    }
}
