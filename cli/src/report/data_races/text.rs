//! Data races in words, laid out as sanitizers do it, in 80 columns.

use super::{DataRace, Report, Thread};
use crate::report::numbers::{count, counted};
use refrain_session::data_races::{Access, Lock, Word};
use refrain_session::symbols::Place;
use refrain_trace::ThreadId;
use refrain_trace::harmless::escape;
use std::collections::BTreeMap;
use std::fmt::Write;

const WIDTH: usize = 80;
const RULE: &str = "==================";

/// The report in words.
pub(crate) fn render(report: &Report) -> String {
    let mut text = String::new();
    for race in &report.races {
        let _ = writeln!(text, "{RULE}");
        render_race(race, &report.threads, &mut text);
    }
    if !report.races.is_empty() {
        let _ = writeln!(text, "{RULE}");
    }
    let (threads, events) = (report.recorded_threads, report.recorded_events);
    let covered = format!("{}, {}", counted(threads, "thread"), counted(events, "event"));
    let _ = match &report.verdict {
        Some(verdict) => writeln!(text, "{verdict} ({covered})"),
        None => writeln!(text, "{} ({covered})", found(&report.races)),
    };
    if report.folded > 0 {
        let races = counted(report.folded, "race");
        let _ = writeln!(text, "{races} within the system's libraries: --all shows them");
    }
    for suppressed in &report.suppressed {
        let (races, rule) = (counted(suppressed.races, "race"), escape(&suppressed.rule));
        let _ = writeln!(text, "{races} suppressed by `{rule}`");
    }
    if let Some(why) = &report.incomplete {
        let _ = writeln!(text, "incomplete: {}", escape(why));
    }
    text
}

/// How much was found.
fn found(races: &[DataRace]) -> String {
    let uses = races.iter().filter(|race| race.after_free).count() as u64;
    let races = races.len() as u64 - uses;
    let in_words = match uses {
        1 => "1 use after free".to_owned(),
        _ => format!("{} uses after free", count(uses)),
    };
    match (races, uses) {
        (_, 0) => counted(races, "data race"),
        (0, _) => in_words,
        _ => format!("{}, {in_words}", counted(races, "data race")),
    }
}

fn render_race(race: &DataRace, threads: &[Thread], text: &mut String) {
    let mutexes = Mutexes::of(race);
    let library = if race.in_library { " (within libraries)" } else { "" };
    let what = if race.after_free { "heap use after free" } else { "data race" };
    let _ = writeln!(text, "WARNING: {what}{library}");
    render_access(&race.second, "", &mutexes, text);
    let _ = writeln!(text);
    render_access(&race.first, "Previous ", &mutexes, text);
    let _ = writeln!(text);
    render_word(race, text);
    for (lock, number) in mutexes.in_order() {
        let _ = writeln!(text, "  Mutex M{number} ({:#x}) taken at:", lock.address);
        render_stack(&lock.stack, text);
        let _ = writeln!(text);
    }
    let involved = |thread: &&Thread| race.sides().iter().any(|it| it.thread == thread.thread);
    for thread in threads.iter().filter(involved) {
        if let Some(creator) = &thread.creator {
            let (id, by) = (thread.thread, name(creator.thread));
            let _ = writeln!(text, "  Thread {id}, created by {by} at:");
            render_stack(&creator.stack, text);
            let _ = writeln!(text);
        }
    }
    if race.count > 1 || race.instructions > 1 {
        let pairs = match race.instructions {
            1 => String::new(),
            more => format!(", {} pairs of instructions", count(more)),
        };
        let _ = writeln!(text, "  {} times{pairs}\n", count(race.count));
    }
    let place = race.second.place().map_or_else(String::new, Place::short);
    let _ = writeln!(text, "{}", cut(&format!("SUMMARY: {what} in {place}")));
}

fn render_access(access: &Access, previous: &str, mutexes: &Mutexes<'_>, text: &mut String) {
    let Access { access: what, size, address, thread, event, .. } = access;
    let what = match previous {
        "" => capitalized(what),
        _ => what.clone(),
    };
    let of = match what.to_lowercase().as_str() {
        "close" | "use of the descriptor" => String::new(),
        _ => format!(" of {} at {address:#x}", counted(*size, "byte")),
    };
    let by = name(*thread);
    let _ = writeln!(text, "  {previous}{what}{of} by {by} after {event}{}:", mutexes.held(access));
    render_stack(&access.stack, text);
    if !access.is_whole {
        let _ = writeln!(text, "    (its callers and locks are not known)");
    }
}

fn render_word(race: &DataRace, text: &mut String) {
    let address = race.second.address.max(race.first.address);
    match &race.word {
        Word::Global(variable) => {
            let module = variable.module.rsplit('/').next().unwrap_or_default();
            let line = match (&variable.name, variable.size) {
                (Some(name), Some(size)) => {
                    let offset = match variable.offset {
                        0 => String::new(),
                        offset => format!("+{offset}"),
                    };
                    let size = counted(size, "byte");
                    format!("  Location is global '{name}{offset}' of {size} ({module})")
                }
                _ => format!("  Location is global memory at {module}+{:#x}", variable.offset),
            };
            let _ = writeln!(text, "{}\n", cut(&line));
        }
        Word::Heap { start, size, thread, stack } => {
            let (size, inside) = (counted(*size, "byte"), address.saturating_sub(*start));
            let _ = writeln!(
                text,
                "  Location is byte {inside} of a heap block of {size} at {start:#x}\n  \
                 allocated by {}{}",
                name(*thread),
                if stack.is_empty() { "" } else { " at:" },
            );
            render_stack(stack, text);
            let _ = writeln!(text);
        }
        Word::Local { thread, function } => {
            let of = name(*thread);
            let line = match function.as_ref().map(Place::function) {
                Some(function) => {
                    format!("  Location is local to {function}, on the stack of {of}")
                }
                None => format!("  Location is on the stack of {of}"),
            };
            let _ = writeln!(text, "{}\n", cut(&line));
        }
        Word::Descriptor { number } => {
            let _ = writeln!(text, "  Location is descriptor {number}\n");
        }
        Word::Unknown => {
            let _ = writeln!(text, "  Location is unknown memory at {address:#x}\n");
        }
    }
}

fn render_stack(stack: &[Place], text: &mut String) {
    let mut number = 0;
    for place in stack {
        for line in place.lines() {
            let _ = writeln!(text, "{}", cut(&format!("    #{number} {line}")));
            number += 1;
        }
    }
}

fn name(thread: ThreadId) -> String {
    match thread {
        ThreadId(0) => "main thread".to_owned(),
        thread => format!("thread {thread}"),
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// A line that is too long loses its middle: the name of the function is at its beginning, the place in
/// the source at its end.
fn cut(line: &str) -> String {
    let letters: Vec<char> = line.chars().collect();
    let Some(over) = letters.len().checked_sub(WIDTH).filter(|&over| over > 0) else {
        return line.to_owned();
    };
    let from = letters.len().saturating_sub(32 + over + 3);
    let (head, tail) = (&letters[..from], &letters[from + over + 3..]);
    head.iter().chain(&['.', '.', '.']).chain(tail).collect()
}

/// The locks of a race, numbered.
struct Mutexes<'a> {
    numbers: BTreeMap<u64, usize>,
    locks: Vec<&'a Lock>,
}

impl<'a> Mutexes<'a> {
    fn of(race: &'a DataRace) -> Mutexes<'a> {
        let mut mutexes = Mutexes { numbers: BTreeMap::new(), locks: Vec::new() };
        for lock in race.second.locks.iter().chain(&race.first.locks) {
            mutexes.numbers.entry(lock.address).or_insert_with(|| {
                mutexes.locks.push(lock);
                mutexes.locks.len()
            });
        }
        mutexes
    }

    fn in_order(&self) -> impl Iterator<Item = (&'a Lock, usize)> {
        self.locks.iter().copied().zip(1..)
    }

    /// What a side holds, in brackets.
    fn held(&self, access: &Access) -> String {
        let one = |lock: &Lock| {
            let how = if lock.writing { "write" } else { "read" };
            format!("{how} M{}", self.numbers[&lock.address])
        };
        let all: Vec<String> = access.locks.iter().map(one).collect();
        if all.is_empty() { String::new() } else { format!("\n  (mutexes: {})", all.join(", ")) }
    }
}

#[cfg(test)]
mod tests;
