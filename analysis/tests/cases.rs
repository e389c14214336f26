//! Case files for the race detector: the events of a trace, accesses between them, and what races.
//!
//! An access is a line `tN read ADDRESS SIZE` or `tN write ADDRESS SIZE`. The lines happen in the
//! order in which they are written. A line of the result has the numbers of the lines that race.

use refrain_analysis::{Detector, Relation, Watcher};
use refrain_trace::{Access, EventId, EventKind, OwnedTrace, ThreadId, cases};
use std::path::Path;

/// An access line: kind, address and size.
fn access(words: &[&str]) -> Option<(u16, u64, u16)> {
    let [_, kind @ ("read" | "write"), address, size] = words else { return None };
    let kind = if *kind == "read" { Access::READ } else { Access::WRITE };
    let address = u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
    Some((kind, address, size.parse().ok()?))
}

fn races(input: &str) -> String {
    let lines: Vec<Vec<&str>> = input.lines().map(|line| line.split(' ').collect()).collect();
    let is_event = |words: &&Vec<&str>| access(words).is_none();
    let events: Vec<String> = lines.iter().filter(is_event).map(|words| words.join(" ")).collect();
    let trace: OwnedTrace = events.join("\n").parse().expect("the rest of the case is a trace");
    let all = trace.threads.iter().flatten();
    let words = all.filter(|owned| owned.event.kind() == EventKind::Atomic);
    let detector = Detector::new(words.map(|owned| owned.event.object), Relation::Kept);
    let watcher = |id| detector.thread(ThreadId(id as u32)).expect("there are few threads");
    let mut threads: Vec<(Watcher, usize)> =
        (0..trace.threads.len()).map(|id| (watcher(id), 0)).collect();
    for (number, words) in (1..).zip(&lines) {
        let Some(thread) = words[0].strip_prefix('t').and_then(|id| id.parse::<usize>().ok())
        else {
            continue;
        };
        let (watcher, next) = &mut threads[thread];
        if let Some((kind, address, size)) = access(words) {
            watcher.accesses(&[Access { address, size, kind, pc: number }]);
            continue;
        }
        let owned = &trace.threads[thread][*next];
        let mut event = owned.event;
        event.pc = number.into();
        if event.kind() == EventKind::Syscall {
            watcher.enter(&event, owned.payload.as_ref());
        }
        watcher.event(EventId(*next as u64), &event, owned.payload.as_ref());
        *next += 1;
    }
    let mut found: Vec<_> =
        detector.races().iter().map(|race| (race.first.pc, race.second.pc)).collect();
    found.sort_unstable();
    found.iter().map(|(first, second)| format!("line {first} and line {second}\n")).collect()
}

#[test]
fn detector() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    cases::check(&directory, races);
}
