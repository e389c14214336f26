//! Rules for Rust sources: module docs, length, and where `unsafe` may be and what it must say.

use std::path::Path;

/// Longer files have a second subject.
const MAX_LINES: usize = 800;
/// A SAFETY comment may stand so many lines above its site: above attributes, and above the
/// statement that the site is part of.
const COMMENT_REACH: usize = 8;
/// Crates that may hold unsafe code; all others forbid it in their root.
const UNSAFE_CRATES: [&str; 2] = ["vm", "jit"];

/// A file of another crate that may. The crate denies it elsewhere.
const UNSAFE_FILE: &str = "analysis/src/prefetch.rs";

/// Programs that race on purpose, which safe code cannot.
const RACY: &str = "corpus/races";

/// Checks one file; `name` is relative to the root.
pub(super) fn check(name: &Path, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    let mut complain = |line: usize, what: &str| {
        violations.push(format!("{}:{}: {what}", name.display(), line + 1));
    };
    // Fuzz targets and build scripts begin with attributes as well.
    let first = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("#!["));
    if !first.is_some_and(|line| line.starts_with("//!")) {
        complain(0, "a file opens with `//!`, which says what it is for");
    }
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > MAX_LINES {
        complain(MAX_LINES, "more than 800 lines: look for the second subject");
    }
    let owner = name.iter().next().and_then(|part| part.to_str()).unwrap_or_default();
    let may_be_unsafe =
        UNSAFE_CRATES.contains(&owner) || name == Path::new(UNSAFE_FILE) || name.starts_with(RACY);
    for (index, line) in lines.iter().enumerate() {
        if !is_unsafe_site(line) || name.ends_with("tidy/sources.rs") {
            continue;
        }
        if !may_be_unsafe {
            complain(index, "unsafe code belongs to vm and jit");
        } else if !has_safety_comment(&lines, index) {
            complain(index, "unsafe without a SAFETY comment");
        }
    }
    let is_root = name.ends_with("src/lib.rs") || name.ends_with("src/main.rs");
    let denies = match Path::new(UNSAFE_FILE).starts_with(owner) {
        true => "#![deny(unsafe_code)]",
        false => "#![forbid(unsafe_code)]",
    };
    if is_root && !may_be_unsafe && !text.contains(denies) {
        complain(0, "a crate without unsafe code says #![forbid(unsafe_code)]");
    }
    violations
}

/// An unsafe block or impl. Declarations of unsafe functions state their contract in their docs,
/// which clippy checks.
fn is_unsafe_site(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    ["unsafe {", "unsafe impl"].iter().any(|word| {
        code.match_indices(word).any(|(at, _)| {
            !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '"')
        })
    })
}

fn has_safety_comment(lines: &[&str], site: usize) -> bool {
    let above = &lines[site.saturating_sub(COMMENT_REACH)..=site];
    // A longer comment reaches further: its first line says SAFETY.
    let mut first = site.saturating_sub(COMMENT_REACH);
    while first > 0 && lines[first].trim_start().starts_with("//") {
        first -= 1;
    }
    above.iter().chain(&lines[first..site]).any(|line| line.contains("SAFETY:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(name: &str, text: &str) -> usize {
        check(Path::new(name), text).len()
    }

    #[test]
    fn good_files_pass() {
        assert_eq!(complaints("vm/src/a.rs", "//! A.\n// SAFETY: ours.\nunsafe { x() }\n"), 0);
        assert_eq!(complaints("trace/src/lib.rs", "//! A.\n#![forbid(unsafe_code)]\n"), 0);
        assert_eq!(complaints("fuzz/x.rs", "#![no_main]\n//! A.\n"), 0);
        assert_eq!(complaints("cli/src/a.rs", "//! A.\n// not unsafe { here }\n"), 0);
    }

    #[test]
    fn bad_files_do_not() {
        assert_eq!(complaints("vm/src/a.rs", "fn main() {}\n"), 1);
        assert_eq!(complaints("vm/src/a.rs", "//! A.\nunsafe { x() }\n"), 1);
        assert_eq!(complaints("trace/src/lib.rs", "//! A.\n"), 1);
        assert_eq!(complaints("trace/src/a.rs", "//! A.\n// SAFETY: no.\nunsafe { x() }\n"), 1);
        assert_eq!(complaints("vm/src/a.rs", &("//! A.\n".to_owned() + &"\n".repeat(900))), 1);
    }
}
