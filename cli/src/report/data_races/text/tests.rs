//! What reports of races look like.

use super::super::{Suppressed, sarif, verdict};
use super::*;
use crate::report::example;
use insta::assert_snapshot;
use refrain_session::data_races::Creator;
use refrain_session::symbols::variables::Variable;
use refrain_trace::EventId;

fn stack(lines: &[(&str, u32)]) -> Vec<Place> {
    lines.iter().map(|&(function, line)| example::place(function, "/src/queue.c", line)).collect()
}

fn access(thread: u32, what: &str, lines: &[(&str, u32)]) -> Access {
    Access {
        thread: ThreadId(thread),
        event: EventId(7),
        access: what.into(),
        address: 0x1000_4080,
        size: 8,
        stack: stack(lines),
        site: 0,
        is_whole: true,
        locks: Vec::new(),
    }
}

fn race() -> DataRace {
    let lock = Lock { address: 0x1000_4100, writing: true, stack: stack(&[("push", 11)]) };
    let mut first = access(1, "write", &[("push", 14), ("produce", 30)]);
    first.locks.push(lock);
    DataRace {
        second: access(2, "free", &[("drop_all", 50), ("main", 60)]),
        first,
        word: Word::Heap {
            start: 0x1000_4078,
            size: 32,
            thread: ThreadId(0),
            stack: stack(&[("make", 5), ("main", 58)]),
        },
        count: 40,
        instructions: 2,
        in_library: false,
        after_free: false,
    }
}

fn report() -> Report {
    let creator = Creator { thread: ThreadId(0), stack: stack(&[("main", 59)]) };
    Report {
        command: "queue".into(),
        races: vec![race()],
        threads: vec![
            Thread { thread: ThreadId(1), creator: Some(creator) },
            Thread { thread: ThreadId(2), creator: None },
        ],
        recorded_threads: 3,
        recorded_events: 1234,
        ..Report::default()
    }
}

#[test]
fn both_sides() {
    assert_snapshot!(render(&report()));
}

#[test]
fn words() {
    let global = |name: Option<&str>| {
        Word::Global(Variable {
            name: name.map(str::to_owned),
            size: name.map(|_| 64),
            offset: 8,
            module: "/usr/bin/queue".into(),
            is_a_copy: false,
        })
    };
    let local = |function| Word::Local { thread: ThreadId(1), function };
    let [known, other] = [local(stack(&[("work", 9)]).pop()), local(None)];
    let words = [global(Some("table")), global(None), known, other, Word::Descriptor { number: 5 }];
    let mut text = String::new();
    for word in words.into_iter().chain([Word::Unknown]) {
        render_word(&DataRace { word, ..race() }, &mut text);
    }
    assert_snapshot!(text);
}

#[test]
fn a_use_after_free_is_called_so() {
    let race = DataRace { after_free: true, ..race() };
    let both = Report { races: vec![race.clone(), self::race()], ..report() };
    let one = Report { races: vec![race], ..report() };
    let text = render(&one);
    assert!(text.contains("WARNING: heap use after free\n"), "{text}");
    assert!(text.contains("SUMMARY: heap use after free in "), "{text}");
    assert!(text.ends_with("\n1 use after free (3 threads, 1,234 events)\n"), "{text}");
    assert!(render(&both).ends_with("\n1 data race, 1 use after free (3 threads, 1,234 events)\n"));
    assert_eq!(sarif(&one)["runs"][0]["results"][0]["ruleId"], "heap-use-after-free");
}

#[test]
fn nothing_to_show() {
    let clean = Report { races: Vec::new(), verdict: Some(verdict(false)), ..report() };
    let (why, partly) = (Some("why".into()), Some(verdict(true)));
    let folded = Report { folded: 3, incomplete: why, verdict: partly, ..clean.clone() };
    let rule = Suppressed { rule: "race:push".into(), races: 2 };
    let suppressed = Report { suppressed: vec![rule], ..clean.clone() };
    assert_snapshot!([clean, folded, suppressed].map(|report| render(&report)).join("---\n"));
}

#[test]
fn long_lines_lose_their_middle() {
    let long = format!("    #0 {} file.c:12", "name_".repeat(40));
    let shown = cut(&long);
    assert_eq!(shown.chars().count(), WIDTH);
    assert!(shown.starts_with("    #0 name_") && shown.ends_with(" file.c:12"), "{shown}");
    assert_eq!(cut("short"), "short");
}

#[test]
fn sarif_has_both_places_and_stacks() {
    let text = serde_json::to_string_pretty(&sarif(&report())).expect("is a document");
    assert_snapshot!(text.replace(env!("CARGO_PKG_VERSION"), "VERSION"));
}
