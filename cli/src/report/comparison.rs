//! What became of the rows of an older ranking.

use super::numbers::{counted, percent};
use super::table::{self, Column};
use super::words::paragraph;
use crate::output::Style;
use refrain_session::symbols::Place;
use refrain_transform::UlcpKind;
use serde::Serialize;

/// What became of a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// It was not there, and has a gain that is sure.
    New,
    /// Its gain is surely greater than it was.
    Worse,
    /// Its gain is surely less.
    Better,
    /// It is not there any more.
    Gone,
    /// The ranges of its gain overlap, or one is not known; or it was not there and has no sure gain.
    Same,
}

impl Verdict {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verdict::New => "new",
            Verdict::Worse => "worse",
            Verdict::Better => "better",
            Verdict::Gone => "gone",
            Verdict::Same => "same",
        }
    }
}

/// A group then and now. Gains are parts of the run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Row {
    /// What became of it.
    pub(crate) verdict: Verdict,
    /// Its kind, now or then.
    pub(crate) kind: UlcpKind,
    /// Where the earlier critical section begins.
    pub(crate) first: Place,
    /// Where the later one begins.
    pub(crate) second: Place,
    /// The range of its gain in the baseline.
    pub(crate) before: Option<[f64; 2]>,
    /// The range of its gain now.
    pub(crate) now: Option<[f64; 2]>,
}

/// A ranking against a baseline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Comparison {
    /// The file with the baseline.
    pub(crate) file: String,
    /// What was recorded for it.
    pub(crate) command: String,
    /// Virtual time of the baseline's run.
    pub(crate) original_ns: u64,
    /// Groups that the baseline has beyond those in the file.
    pub(crate) left_out: usize,
    /// The worst first.
    pub(crate) rows: Vec<Row>,
}

impl Comparison {
    /// Whether something is new or worse.
    pub(crate) fn is_worse(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.verdict, Verdict::New | Verdict::Worse))
    }
}

/// The comparison for people.
pub(crate) fn render(comparison: &Comparison, style: Style) -> String {
    let Comparison { file, rows, left_out, .. } = comparison;
    let (changed, same): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.verdict != Verdict::Same);
    let as_before = counted(same.len() as u64, "row");
    if changed.is_empty() {
        return paragraph(&format!("As in {file}: {as_before}, none new, worse or better."), style);
    }
    let mut text = paragraph(
        &format!(
            "Against {file} ({as_before} as before), the range of each gain as a part of the run:"
        ),
        style,
    );
    text.push('\n');
    let range = |range: Option<[f64; 2]>| {
        range.map_or_else(
            || "-".to_owned(),
            |[least, most]| format!("{} to {}", percent(least), percent(most)),
        )
    };
    let cells = changed.iter().map(|row| {
        let (first, second) = (row.first.short(), row.second.short());
        let sites =
            if first == second { format!("{first} (both)") } else { format!("{first}\n{second}") };
        vec![row.verdict.name().to_owned(), range(row.before), range(row.now), sites]
    });
    let header = [
        ("", Column::Left),
        ("before", Column::Right),
        ("now", Column::Right),
        ("where", Column::Left),
    ];
    text += &table::render(&header, cells.collect(), style);
    if *left_out > 0 {
        let note = format!(
            "note: {file} lacks {} of its ranking, which may be what is new here; print it with a \
             greater --top",
            counted(*left_out as u64, "group")
        );
        text += &paragraph(&note, style);
    }
    text
}
