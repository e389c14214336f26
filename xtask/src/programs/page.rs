//! docs/programs.md, from the results that are kept.

use super::catalogue::Program;
use super::results::{Mode, ORDERS, Results, Row, Verdict};
use crate::{root, table};
use std::collections::BTreeMap;

/// What the page says whatever the results are.
const PROSE: &str = "about.md";
/// Verdicts in the order of their columns.
const KINDS: [&str; 7] =
    ["exact", "learned", "diverged", "refused", "differs", "failed", "timed out"];

/// A program with what is kept of it.
type Entry<'a> = (&'a Program, Option<Row>);

/// Writes the page.
pub(super) fn write(all: &[Program], kept: &Results) -> anyhow::Result<()> {
    let mut entries = Vec::new();
    for program in all {
        entries.push((program, kept.get(program)?));
    }
    let prose = std::fs::read_to_string(super::lists().join(PROSE))?;
    let path = root::directory().join("docs/programs.md");
    std::fs::write(&path, page(&entries, &prose))?;
    eprintln!("written: {}", path.display());
    Ok(())
}

fn page(entries: &[Entry<'_>], prose: &str) -> String {
    let mut groups: Vec<&str> = entries.iter().map(|(program, _)| program.group.as_str()).collect();
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
            entries.iter().filter(|(program, _)| program.group == group).collect();
        text += &section(group, &of_group);
    }
    text + "\n" + further.trim() + "\n"
}

/// How many programs of each group became what.
fn counts(entries: &[Entry<'_>], groups: &[&str]) -> String {
    let mut text = String::new();
    for order in ORDERS {
        let mut rows = Vec::new();
        for group in groups.iter().copied().map(Some).chain([None]) {
            let of_group: Vec<&Entry<'_>> = entries
                .iter()
                .filter(|(program, _)| group.is_none_or(|group| program.group == group))
                .collect();
            rows.push(count(group.unwrap_or("all"), &of_group, order));
        }
        let header: Vec<&str> =
            ["group", "programs"].into_iter().chain(KINDS).chain(["not run"]).collect();
        text += &format!("{}:\n\n{}\n", title(order), table::render(&header, &rows));
    }
    text
}

fn count(group: &str, entries: &[&Entry<'_>], order: &str) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, row) in entries {
        let mode = row.as_ref().and_then(|row| row.modes.get(order));
        *counts.entry(mode.map_or("", |mode| kind(&mode.verdict))).or_default() += 1;
    }
    let mut cells = vec![group.to_owned(), entries.len().to_string()];
    let of = |kind: &str| counts.get(kind).copied().unwrap_or_default().to_string();
    cells.extend(KINDS.into_iter().chain([""]).map(of));
    cells
}

fn title(order: &str) -> &'static str {
    if order == ORDERS[0] { "Default order" } else { "Every access (`--order stride`)" }
}

fn kind(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Exact => KINDS[0],
        Verdict::Learned(_) => KINDS[1],
        Verdict::Diverged(_) => KINDS[2],
        Verdict::Refused(_) => KINDS[3],
        Verdict::Differs(_) => KINDS[4],
        Verdict::Failed(_) => KINDS[5],
        Verdict::TimedOut(_) => KINDS[6],
    }
}

fn section(group: &str, entries: &[&Entry<'_>]) -> String {
    let header = [
        "program",
        "threads",
        "native",
        "record",
        "default order",
        "record",
        "every access",
        "run",
    ];
    let rows: Vec<Vec<String>> = entries.iter().map(|(program, row)| cells(program, row)).collect();
    let mut text = format!("\n## {}\n\n{}", capitalized(group), table::render(&header, &rows));
    let reasons: Vec<String> =
        entries.iter().flat_map(|(program, row)| reasons(program, row.as_ref())).collect();
    if !reasons.is_empty() {
        text += &format!("\n{}\n", reasons.join("\n"));
    }
    text
}

fn cells(program: &Program, row: &Option<Row>) -> Vec<String> {
    let Some(row) = row else {
        return vec![escaped(&program.name), String::new(), String::new(), "not run".into()];
    };
    let mode = |order: &str| row.modes.get(order);
    let time = |ms: u64| format!("{}.{:02} s", ms / 1000, ms % 1000 / 10);
    let record =
        |order: &str| mode(order).and_then(|mode| mode.record_ms).map_or_else(String::new, time);
    let default = mode(ORDERS[0]).map_or_else(|| "not run".to_owned(), verdict);
    let every = mode(ORDERS[1]).map_or_else(|| "not run".into(), |mode| mode.verdict.short());
    let threads = mode(ORDERS[0]).map(|mode| mode.facts.threads).filter(|&threads| threads > 0);
    vec![
        escaped(&program.name),
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

/// Text that is no markup, and names no folder of this machine.
fn escaped(text: &str) -> String {
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
        let entries = [(&learned, Some(row(Verdict::Learned(2)))), (&new, None)];
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
        let entries = [(&diverged, Some(row(Verdict::Diverged("t1 e2: other".into()))))];
        let page = page(&entries, "");
        assert!(page.contains("- a: default order, diverged: t1 e2: other\n"), "{page}");
        assert!(page.contains("- a: default order, noted: memory is shared\n"), "{page}");
    }
}
