//! What packing a trace came to.

use super::numbers::bytes;
use refrain_trace::harmless::escape;
use serde::Serialize;

/// A packed trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Report {
    /// The packed trace.
    pub(crate) output: String,
    /// Where the trace is now that had this name before.
    pub(crate) old: Option<String>,
    /// Bytes of the trace that was packed.
    pub(crate) bytes_before: u64,
    /// Bytes of the packed trace.
    pub(crate) bytes: u64,
}

/// The report for people.
pub(crate) fn render(report: &Report) -> String {
    let (before, now) = (bytes(report.bytes_before), bytes(report.bytes));
    let mut lines =
        format!("{}: {now} (before: {before}), and refers to no file\n", escape(&report.output));
    if let Some(old) = &report.old {
        lines += &format!("the trace that was there is {} now\n", escape(old));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{Report, render};

    #[test]
    fn where_the_packed_trace_is() {
        let report = Report {
            output: "a.refrain".into(),
            old: Some("a.refrain.old".into()),
            bytes_before: 1 << 20,
            bytes: 8 << 20,
        };
        insta::assert_snapshot!(render(&report), @r"
        a.refrain: 8.0 MiB (before: 1.0 MiB), and refers to no file
        the trace that was there is a.refrain.old now
        ");
    }
}
