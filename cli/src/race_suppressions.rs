//! Suppressions of races, in the format of sanitizers: a rule a line, `race:PATTERN`. (Those of locks,
//! which no other tool has, are in `suppressions`.)
//!
//! A pattern is looked for in the names of functions, files, modules and variables; `*` is any text,
//! `^` and `$` are the name's ends. `race:` looks at all of both stacks, and at what the race is
//! about; `race_top:` at the innermost functions; `called_from_lib:` at modules. What suppresses
//! other things than races is read over.

use anyhow::{Context, bail};
use refrain_session::data_races::{DataRace, Word};
use refrain_session::symbols::Place;
use std::path::Path;

/// The rules of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Suppressions {
    rules: Vec<Rule>,
}

/// A rule, as it is written, and what it is.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Rule {
    text: String,
    looks: Looks,
    pattern: String,
}

/// Where a rule looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Looks {
    Everywhere,
    AtTheTop,
    AtModules,
}

impl Suppressions {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Suppressions> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read suppressions from {}", path.display()))?;
        Suppressions::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> anyhow::Result<Suppressions> {
        let mut rules = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let looks = match line.split_once(':') {
                Some(("race", _)) => Looks::Everywhere,
                Some(("race_top", _)) => Looks::AtTheTop,
                Some(("called_from_lib", _)) => Looks::AtModules,
                Some(("thread" | "mutex" | "signal" | "deadlock", _)) => continue,
                _ => bail!("line {number}: a suppression is written like race:FUNCTION"),
            };
            let pattern = line.split_once(':').map(|(_, pattern)| pattern.to_owned());
            let pattern = pattern.filter(|pattern| !pattern.is_empty());
            let pattern = pattern.with_context(|| format!("line {number}: nothing is named"))?;
            rules.push(Rule { text: line.to_owned(), looks, pattern });
        }
        Ok(Suppressions { rules })
    }

    /// The first rule that a race falls under.
    pub(crate) fn of(&self, race: &DataRace) -> Option<&str> {
        let rule = self.rules.iter().find(|rule| rule.covers(race))?;
        Some(&rule.text)
    }
}

impl Rule {
    fn covers(&self, race: &DataRace) -> bool {
        let matches = |name: &str| is_like(name, &self.pattern);
        let place = |place: &Place| {
            let module = place.module.as_deref().is_some_and(matches);
            let in_frames = || {
                place.frames.iter().any(|frame| {
                    matches(&frame.function) || frame.file.as_deref().is_some_and(matches)
                })
            };
            module || self.looks != Looks::AtModules && in_frames()
        };
        let tops = || race.sides().into_iter().filter_map(|side| side.stack.first());
        match self.looks {
            Looks::AtTheTop => tops().any(place),
            Looks::AtModules => race.sides().iter().any(|side| side.stack.iter().any(place)),
            Looks::Everywhere => {
                let variable = match &race.word {
                    Word::Global(variable) => variable.name.as_deref().is_some_and(matches),
                    Word::Heap { stack, .. } => stack.iter().any(place),
                    _ => false,
                };
                variable || race.sides().iter().any(|side| side.stack.iter().any(place))
            }
        }
    }
}

/// Whether a name is like a pattern.
fn is_like(name: &str, pattern: &str) -> bool {
    let (from_start, pattern) =
        pattern.strip_prefix('^').map_or((false, pattern), |rest| (true, rest));
    let (to_end, pattern) = pattern.strip_suffix('$').map_or((false, pattern), |rest| (true, rest));
    let mut parts = pattern.split('*').peekable();
    let mut rest = name;
    let mut first = from_start;
    while let Some(part) = parts.next() {
        let last = to_end && parts.peek().is_none();
        let found = match (first, last) {
            (true, true) => return rest == part,
            (true, false) => rest.strip_prefix(part),
            (false, true) => return rest.ends_with(part),
            (false, false) => rest.find(part).map(|at| &rest[at + part.len()..]),
        };
        let Some(found) = found else { return false };
        (rest, first) = (found, false);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;
    use refrain_session::data_races::Access;
    use refrain_trace::{EventId, ThreadId};

    fn race(functions: [&str; 2]) -> DataRace {
        let side = |function: &str| Access {
            thread: ThreadId(1),
            event: EventId(0),
            access: "write".into(),
            address: 0x1000,
            size: 4,
            stack: vec![
                example::place(function, "/src/queue.c", 3),
                example::place("main", "/src/main.c", 9),
            ],
            site: 0,
            is_whole: true,
            locks: Vec::new(),
        };
        let [first, second] = functions.map(side);
        let word = Word::Unknown;
        DataRace {
            first,
            second,
            word,
            count: 1,
            instructions: 1,
            in_library: false,
            after_free: false,
        }
    }

    #[test]
    fn patterns() {
        for (pattern, like) in [
            ("push", true),
            ("queue_push", true),
            ("q*sh", true),
            ("^push", false),
            ("^queue*push$", true),
            ("^queue_push$", true),
            ("queue$", false),
            ("*", true),
            ("pop", false),
        ] {
            assert_eq!(is_like("queue_push", pattern), like, "{pattern}");
        }
        assert!(is_like("abab", "^ab*ab$") && !is_like("ab", "^ab*ab$"));
    }

    #[test]
    fn rules() {
        let text = "# ours\n\nrace:queue_push\nmutex:x\nrace_top:^main$\ncalled_from_lib:example\n";
        let rules = Suppressions::parse(text).expect("is well written");
        assert_eq!(rules.of(&race(["queue_push", "pop"])), Some("race:queue_push"));
        assert_eq!(rules.of(&race(["main", "pop"])), Some("race_top:^main$"));
        assert_eq!(rules.of(&race(["pop", "pop"])), Some("called_from_lib:example"));
        assert_eq!(Suppressions::default().of(&race(["pop", "pop"])), None);
    }

    #[test]
    fn nonsense_is_named_with_its_line() {
        for text in ["race", "rase:x", "race:x\nrace:"] {
            let error = Suppressions::parse(text).expect_err("is no rule").to_string();
            assert!(error.starts_with("line "), "{error}");
        }
    }
}
