//! The columns of the page's tables, for who writes rows and who reads them again.

use crate::root;
use std::path::PathBuf;

/// Verdicts in the order of their columns.
pub(super) const KINDS: [&str; 7] =
    ["exact", "learned", "diverged", "refused", "differs", "failed", "timed out"];

/// The columns of each group's table.
pub(super) const HEADER: [&str; 8] =
    ["program", "threads", "native", "record", "default order", "record", "every access", "run"];
/// The column of the verdict with the default order.
pub(super) const DEFAULT: usize = 4;
/// The column of the verdict with the order of every access.
pub(super) const EVERY: usize = 6;

/// Where the page is.
pub(super) fn path() -> PathBuf {
    root::directory().join("docs/programs.md")
}

/// The kinds of verdicts in a row, one for each order; nothing if the program was not run.
pub(super) fn verdicts(cells: &[String]) -> [&str; 2] {
    [DEFAULT, EVERY].map(|column| {
        let text = cells.get(column).map_or("", String::as_str);
        KINDS.into_iter().find(|kind| text.starts_with(kind)).unwrap_or("")
    })
}

/// Text that is no markup, and names no folder of this machine.
pub(super) fn escaped(text: &str) -> String {
    let scratch = std::env::temp_dir().join("refrain-programs");
    let text = text.replace(&scratch.display().to_string(), "…");
    let text = text.replace(&root::directory().display().to_string(), "…");
    text.chars().fold(String::new(), |mut text, c| {
        if matches!(c, '|' | '<' | '*' | '_' | '`' | '[') {
            text.push('\\');
        }
        text.push(c);
        text
    })
}
