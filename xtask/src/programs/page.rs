//! docs/programs.md, from the results that are kept.

use super::carried::Carried;
use super::catalogue::Program;
use super::columns::{HEADER, KINDS, escaped, path, verdicts};
use super::results::{Mode, ORDERS, Results, Row, Verdict};
use crate::{root, table};
use std::collections::BTreeMap;

/// What the page says whatever the results are.
const PROSE: &str = "about.md";
/// What the page says of a program.
struct Entry<'a> {
    program: &'a Program,
    cells: Vec<String>,
    reasons: Vec<String>,
}

/// Writes the page. Programs of which no result is kept have what the page said of them before.
pub(super) fn write(all: &[Program], kept: &Results) -> anyhow::Result<()> {
    let before = Carried::read();
    let mut entries = Vec::new();
    for program in all {
        entries.push(entry(program, kept.get(program)?.as_ref(), &before));
    }
    let prose = std::fs::read_to_string(super::lists().join(PROSE))?;
    std::fs::write(path(), page(&entries, &prose))?;
    eprintln!("written: {}", path().display());
    Ok(())
}

fn entry<'a>(program: &'a Program, row: Option<&Row>, before: &Carried) -> Entry<'a> {
    let ran = row.is_some_and(|row| !row.modes.is_empty());
    match before.cells(program).filter(|_| !ran) {
        Some(cells) => Entry { program, cells: cells.clone(), reasons: before.reasons(program) },
        None => Entry { program, cells: cells(program, row), reasons: reasons(program, row) },
    }
}

fn page(entries: &[Entry<'_>], prose: &str) -> String {
    let mut groups: Vec<&str> = entries.iter().map(|entry| entry.program.group.as_str()).collect();
    groups.dedup();
    let machine = root::machine();
    let (about, further) = prose.split_once("\n<!-- tables -->\n").unwrap_or((prose, ""));
    let mut text = format!(
        "<!-- written by `cargo xtask programs` -->\n\n{}\n\nMachine: {machine}.\n\n{}",
        about.trim(),
        counts(entries, &groups)
    );
    for group in groups {
        let of_group: Vec<&Entry<'_>> =
            entries.iter().filter(|entry| entry.program.group == group).collect();
        text += &section(group, &of_group);
    }
    text + "\n" + further.trim() + "\n"
}

/// How many programs of each group became what.
fn counts(entries: &[Entry<'_>], groups: &[&str]) -> String {
    let mut text = String::new();
    for (at, order) in ORDERS.into_iter().enumerate() {
        let mut rows = Vec::new();
        for group in groups.iter().copied().map(Some).chain([None]) {
            let of_group = entries
                .iter()
                .filter(|entry| group.is_none_or(|group| entry.program.group == group));
            rows.push(count(group.unwrap_or("all"), of_group.map(|it| verdicts(&it.cells)[at])));
        }
        let header: Vec<&str> =
            ["group", "programs"].into_iter().chain(KINDS).chain(["not run"]).collect();
        text += &format!("{}:\n\n{}\n", title(order), table::render(&header, &rows));
    }
    text
}

fn count<'a>(group: &str, verdicts: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for verdict in verdicts {
        *counts.entry(verdict).or_default() += 1;
    }
    let of = |kind: &str| counts.get(kind).copied().unwrap_or_default().to_string();
    let all: usize = counts.values().sum();
    [group.to_owned(), all.to_string()]
        .into_iter()
        .chain(KINDS.into_iter().chain([""]).map(of))
        .collect()
}

fn title(order: &str) -> &'static str {
    if order == ORDERS[0] { "Default order" } else { "Every access (`--order stride`)" }
}

fn section(group: &str, entries: &[&Entry<'_>]) -> String {
    let rows: Vec<Vec<String>> = entries.iter().map(|entry| entry.cells.clone()).collect();
    let mut text = format!("\n## {}\n\n{}", capitalized(group), table::render(&HEADER, &rows));
    let reasons: Vec<&str> =
        entries.iter().flat_map(|entry| &entry.reasons).map(String::as_str).collect();
    if !reasons.is_empty() {
        text += &format!("\n{}\n", reasons.join("\n"));
    }
    text
}

fn cells(program: &Program, row: Option<&Row>) -> Vec<String> {
    let name = escaped(&program.name);
    let Some(row) = row else {
        return vec![name, String::new(), String::new(), "not run".into()];
    };
    let mode = |order: &str| row.modes.get(order);
    let time = |ms: u64| format!("{}.{:02} s", ms / 1000, ms % 1000 / 10);
    let record =
        |order: &str| mode(order).and_then(|mode| mode.record_ms).map_or_else(String::new, time);
    let default = mode(ORDERS[0]).map_or_else(|| "not run".to_owned(), verdict);
    let every = mode(ORDERS[1]).map_or_else(|| "not run".into(), |mode| mode.verdict.short());
    let threads = mode(ORDERS[0]).map(|mode| mode.facts.threads).filter(|&threads| threads > 0);
    vec![
        name,
        threads.map_or_else(String::new, |threads| threads.to_string()),
        time(row.native_ms),
        record(ORDERS[0]),
        default,
        record(ORDERS[1]),
        every,
        format!("{} {}", row.date, row.commit),
    ]
}

/// The verdict, and whether it is that of a recording with the order of every access: of some runtimes,
/// and of programs that learned so.
fn verdict(mode: &Mode) -> String {
    let every = if mode.facts.every_access { " (every access)" } else { "" };
    mode.verdict.short() + every
}

/// What there is to say of a row that does not fit into it.
fn reasons(program: &Program, row: Option<&Row>) -> Vec<String> {
    let mut lines = Vec::new();
    if !program.remark.is_empty() {
        lines.push(program.remark.clone());
    }
    for (order, mode) in row.iter().flat_map(|row| &row.modes) {
        let order = title(order).to_lowercase();
        if let Some(why) = mode.verdict.why() {
            lines.push(format!("{order}, {}: {why}", mode.verdict.short()));
        }
        let unexplained = matches!(mode.verdict, Verdict::Learned(_)) && mode.has_unexplained();
        if unexplained {
            lines.push(format!("{order}: a diverged replay named no race"));
        }
        if matches!(mode.verdict, Verdict::Diverged(_)) {
            let mut races =
                mode.divergences.iter().filter_map(|divergence| divergence.race.as_ref());
            lines.extend(races.next_back().map(|race| format!("{order}, the race: {race}")));
            lines.extend(mode.notes.iter().map(|note| format!("{order}, noted: {note}")));
        }
    }
    if let Some(broken) = row.and_then(|row| row.broken.as_ref()) {
        lines.push(format!("did not run: {broken}"));
    }
    lines
        .into_iter()
        .map(|line| format!("- {}: {}", escaped(&program.name), escaped(&line)))
        .collect()
}

fn capitalized(group: &str) -> String {
    let mut letters = group.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::results::{Divergence, Facts};

    fn program(name: &str) -> Program {
        let text = format!("name = '{name}'\ncommand = 'a'\n");
        Program { group: "tools".into(), ..toml::from_str(&text).expect("a program") }
    }

    fn row(verdict: Verdict) -> Row {
        let divergence =
            Divergence { engine: "copy".into(), text: "t1 e2: other".into(), race: None };
        let mode = Mode {
            verdict,
            record_ms: Some(2070),
            facts: Facts { threads: 3, ..Facts::default() },
            divergences: vec![divergence],
            notes: vec!["memory is shared".into()],
            kept: Vec::new(),
            again: String::new(),
        };
        Row {
            name: "a".into(),
            date: "2026-01-02".into(),
            commit: "abc".into(),
            native_ms: 1005,
            broken: None,
            modes: [("sync".to_owned(), mode)].into(),
        }
    }

    #[test]
    fn rows_say_what_was_not_run() {
        let (learned, new) = (program("a -j|2"), program("b"));
        let none = Carried::default();
        let learned_row = row(Verdict::Learned(2));
        let entries = [entry(&learned, Some(&learned_row), &none), entry(&new, None, &none)];
        let page = page(&entries, "# Title\n<!-- tables -->\nMore.\n");
        assert!(
            page.contains("| a -j\\|2 |       3 | 1.00 s | 2.07 s  | learned 2     |"),
            "{page}"
        );
        assert!(page.contains("| b       |         |        | not run |"), "{page}");
        assert!(
            page.contains("- a -j\\|2: default order: a diverged replay named no race"),
            "{page}"
        );
        assert!(page.ends_with("\nMore.\n"));
    }

    #[test]
    fn what_diverges_has_its_reason() {
        let diverged = program("a");
        let row = row(Verdict::Diverged("t1 e2: other".into()));
        let entries = [entry(&diverged, Some(&row), &Carried::default())];
        let page = page(&entries, "");
        assert!(page.contains("- a: default order, diverged: t1 e2: other\n"), "{page}");
        assert!(page.contains("- a: default order, noted: memory is shared\n"), "{page}");
    }

    #[test]
    fn what_no_result_is_kept_of_stays_as_it_was() {
        let (old, new) = (program("a"), program("b"));
        let diverged = row(Verdict::Diverged("t1 e2: other".into()));
        let first = page(
            &[entry(&old, Some(&diverged), &Carried::default())],
            "# Title\n<!-- tables -->\n",
        );
        let before = Carried::parse(&first);
        let exact = row(Verdict::Exact);
        let second = page(&[entry(&old, None, &before), entry(&new, Some(&exact), &before)], "");
        assert!(second.contains("| a       |       3 | 1.00 s | 2.07 s | diverged "), "{second}");
        assert!(second.contains("- a: default order, diverged: t1 e2: other\n"), "{second}");
        assert!(second.contains("| all   |        2 |     1 |       0 |        1 |"), "{second}");
        let third = page(&[entry(&old, Some(&exact), &before)], "");
        assert!(!third.contains("diverged:"), "{third}");
    }
}
