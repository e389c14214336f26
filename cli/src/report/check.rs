//! What is wrong with a trace, and what a repair kept of it.

use super::numbers::{bytes, counted};
use refrain_session::trace_file::Checked;
use refrain_trace::harmless::escape;

/// The report for people; `name` is the file.
pub(crate) fn render(report: &Checked, name: &str) -> String {
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
    if report.refers {
        text += &format!("{name}: refers to files, which a replay needs as they were recorded\n");
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
fn verdict(report: &Checked) -> &'static str {
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
    use refrain_session::trace_file::Repair;

    #[test]
    fn a_damaged_trace_and_its_repair() {
        let report = Checked {
            sound: false,
            whole: false,
            unusable: None,
            bytes: 70_000,
            chunks: 12,
            threads: 3,
            events: 4_711,
            truncated: true,
            refers: true,
            index: "missing",
            problems: vec!["chunk 7 (events) at byte 812: its checksum is wrong".into()],
            violations: vec!["t1 e4: unlocks a mutex that it does not hold".into()],
            repair: None,
        };
        assert_snapshot!(render(&report, "a.refrain"));
        let repair = Repair {
            original: Some("a.refrain.old".to_owned()),
            events: 4_000,
            lost_bytes: 1_300,
            truncated: true,
        };
        let report =
            Checked { sound: true, whole: true, index: "sound", repair: Some(repair), ..report };
        assert_snapshot!("repaired", render(&report, "a.refrain"));
    }
}
