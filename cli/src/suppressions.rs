//! Suppressions: unnecessary contention that is known, and is not to be ranked.
//!
//! A rule a line; `#` begins a comment. A rule is one condition or several, separated by spaces:
//! `function:GLOB`, `file:GLOB`, `module:GLOB`, `kind:GLOB`. It holds of a group if one of the group's
//! two sites meets all its conditions; functions and files are those of the site and of what it is
//! inlined into. In a glob `*` stands for any characters and `?` for one. A glob without `/` is held
//! against the last part of a path.

use crate::report::locks::Group;
use anyhow::{Context, bail};
use glob::Pattern;
use refrain_session::symbols::Place;
use std::path::Path;

/// The rules of a file.
#[derive(Debug)]
pub(crate) struct Suppressions {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    line: usize,
    conditions: Vec<(What, Pattern)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Function,
    File,
    Module,
    Kind,
}

impl Suppressions {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Suppressions> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the suppressions in {shown}"))?;
        Suppressions::parse(&text).with_context(|| format!("{shown} is no list of suppressions"))
    }

    fn parse(text: &str) -> anyhow::Result<Suppressions> {
        let mut rules = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default();
            let conditions = text.split_whitespace().map(condition);
            let conditions = conditions
                .collect::<anyhow::Result<Vec<_>>>()
                .with_context(|| format!("line {line}"))?;
            if !conditions.is_empty() {
                rules.push(Rule { line, conditions });
            }
        }
        Ok(Suppressions { rules })
    }

    /// The line of the first rule that holds of a group.
    pub(crate) fn matching(&self, group: &Group) -> Option<usize> {
        self.rules.iter().find(|rule| rule.holds(group)).map(|rule| rule.line)
    }

    /// The lines of all rules.
    pub(crate) fn lines(&self) -> impl Iterator<Item = usize> {
        self.rules.iter().map(|rule| rule.line)
    }
}

fn condition(word: &str) -> anyhow::Result<(What, Pattern)> {
    let (what, pattern) = word.split_once(':').unwrap_or((word, ""));
    let what = match what {
        "function" => What::Function,
        "file" => What::File,
        "module" => What::Module,
        "kind" => What::Kind,
        _ => bail!("`{word}` is none of function:GLOB, file:GLOB, module:GLOB and kind:GLOB"),
    };
    let pattern = Pattern::new(pattern).with_context(|| format!("`{word}` has no glob"))?;
    Ok((what, pattern))
}

impl Rule {
    fn holds(&self, group: &Group) -> bool {
        let of = |place: &Place| {
            self.conditions.iter().all(|(what, pattern)| match what {
                What::Function => place.frames.iter().any(|frame| pattern.matches(&frame.function)),
                What::File => {
                    let mut files = place.frames.iter().filter_map(|frame| frame.file.as_ref());
                    files.any(|file| matches_path(pattern, file))
                }
                What::Module => {
                    place.module.as_ref().is_some_and(|path| matches_path(pattern, path))
                }
                What::Kind => pattern.matches(group.ranked.kind.name()),
            })
        };
        of(&group.ranked.first) || of(&group.ranked.second)
    }
}

fn matches_path(pattern: &Pattern, path: &str) -> bool {
    match pattern.as_str().contains('/') {
        true => pattern.matches(path),
        false => pattern.matches(path.rsplit('/').next().unwrap_or(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::locks::tests::example;

    fn matching(rules: &str) -> Vec<Option<usize>> {
        let rules = Suppressions::parse(rules).expect("rules");
        example().groups.iter().map(|group| rules.matching(group)).collect()
    }

    #[test]
    fn rules_hold_of_either_site() {
        // Ranks 1 to 3: cache_lookup twice; count_served and an inlined lock; no symbols.
        assert_eq!(matching("function:cache_*"), [Some(1), None, None]);
        assert_eq!(matching("# known\nfunction:log_if_slow"), [None, Some(2), None]);
        assert_eq!(matching("file:demo.c"), [Some(1), Some(1), None]);
        assert_eq!(matching("file:/src/*/demo.c kind:read-read"), [Some(1), None, None]);
        assert_eq!(matching("module:example"), [Some(1); 3]);
        assert_eq!(matching("function:count_served file:mutex.h"), [None; 3]);
        assert_eq!(matching("\n  # nothing\n"), [None; 3]);
    }

    #[test]
    fn what_is_no_rule_is_said_with_its_line() {
        let error = Suppressions::parse("function:a\nobject:b").expect_err("is no rule");
        let text = format!("{error:#}");
        assert!(text.contains("line 2") && text.contains("object:b"), "{text}");
    }
}
