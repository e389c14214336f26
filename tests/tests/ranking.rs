//! The ranking: every planted group is reported with its kind and line, and nothing else is.

use refrain_corpus::{Answers, Benign, Contrast, Group, Kind, PAIRS, PROGRAMS, Program, Variant};
use refrain_tests::{Bench, Run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

fn bench() -> Bench {
    Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"))
}

/// A reported pair: both lines, the lower one first, and the kind without its sort.
type Found = BTreeSet<((u64, u64), String)>;

/// Runs `refrain run --json` and returns what it reports about lines of the program's source, or
/// why it reports nothing.
fn ranked(program: &Program, variant: Variant) -> Result<Found, String> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = refrain_corpus::compile(program, variant, cache).expect("can be compiled");
    let bench = bench();
    let mut command = bench.command(["run", "--json", "--top", "1000", "--"]);
    let run = Run::of(command.arg(path).args(program.small));
    if run.status != 0 {
        return Err(format!("{run:?}"));
    }
    let report: Value = serde_json::from_slice(&run.stdout).expect("is JSON");
    Ok(groups_in(&report, &program.debug_path()))
}

fn groups_in(report: &Value, file: &str) -> Found {
    let list = |name: &str| report[name].as_array().expect("a report has groups");
    let groups = list("groups").iter().chain(list("spurious"));
    let line = |place: &Value| {
        let frames = place["frames"].as_array()?;
        let ours = frames.iter().find(|f| f["file"].as_str().is_some_and(|f| f.ends_with(file)))?;
        ours["line"].as_u64()
    };
    let mut found = Found::new();
    for group in groups {
        let (Some(first), Some(second)) = (line(&group["first"]), line(&group["second"])) else {
            continue;
        };
        for (kind, name) in [
            ("null_lock", "null-lock"),
            // What waits on condition variables make touches nothing or only looks.
            ("after_wait", "null-lock"),
            ("after_wait", "read-read"),
            ("read_read", "read-read"),
            ("disjoint_write", "disjoint-write"),
            ("redundant_write", "benign/redundant-write"),
            ("disjoint_bits", "benign/disjoint-bits"),
            ("commutative_update", "benign/commutative-update"),
        ] {
            if group["kinds"][kind].as_u64().is_some_and(|pairs| pairs > 0) {
                found.insert(((first.min(second), first.max(second)), name.to_owned()));
            }
        }
    }
    found
}

fn expected(program: &Program, variant: Variant) -> (Found, Found) {
    let source = std::fs::read_to_string(program.path()).expect("the source is in the corpus");
    let answers = Answers::parse(&source).expect("the annotations are sound");
    let (mut must, mut must_not) = (Found::new(), Found::new());
    for pair in answers.pairs(variant) {
        let lines = (u64::from(pair.lines.0), u64::from(pair.lines.1));
        match pair.kind {
            Kind::Tlcp | Kind::Conflict => {
                for kind in ["null-lock", "read-read", "disjoint-write"] {
                    must_not.insert((lines, kind.to_owned()));
                }
                let benign = ["redundant-write", "disjoint-bits", "commutative-update"];
                for kind in benign.iter().filter(|_| pair.kind == Kind::Tlcp) {
                    must_not.insert((lines, format!("benign/{kind}")));
                }
            }
            // Order that a flag gives is not told from other conflicts.
            Kind::Benign(Benign::AdHocSync) => {}
            kind => drop(must.insert((lines, kind.to_string()))),
        }
    }
    (must, must_not)
}

/// Recordings of one program before its test gives up.
const ATTEMPTS: usize = 5;

/// Ranks every case in one variant and asserts that nothing is wrong with any.
///
/// A recording in which threads raced outside of what is ordered has no ranking, and one on a busy
/// machine may not hold a planted hand-over at all: either is recorded anew. What is reported
/// wrongly counts at once.
#[track_caller]
fn all_cases(group: Group, variant: Variant, wrong_with: fn(&Program, &Found) -> Vec<String>) {
    let mut wrong = Vec::new();
    for program in PROGRAMS.iter().filter(|program| program.group == group) {
        let mut complaints = Vec::new();
        for _ in 0..ATTEMPTS {
            complaints = match ranked(program, variant) {
                Ok(found) => wrong_with(program, &found),
                Err(why) => vec![format!("{}: {why}", program.name)],
            };
            let chance = |what: &String| what.contains(DIVERGED) || what.contains(MISSES);
            if !complaints.iter().all(chance) || complaints.is_empty() {
                break;
            }
        }
        wrong.extend(complaints);
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

const DIVERGED: &str = "the replay diverged";
const MISSES: &str = ": misses ";

fn say(program: &Program, what: &str, pairs: &[&((u64, u64), String)]) -> Option<String> {
    (!pairs.is_empty()).then(|| format!("{}: {what} {pairs:?}", program.name))
}

#[test]
fn planted_contention_is_found_and_true_contention_is_not_reported() {
    all_cases(Group::Case, Variant::Ulcp, against_answers);
}

#[test]
fn locks_of_all_makes_are_ranked_and_needed_ones_are_not() {
    all_cases(Group::Locks, Variant::Ulcp, against_answers);
}

/// Words that are locks are so from the first event about them on, whoever had them before: of every
/// such program, at least half of the sections are found. (As long as a word has one owner, its
/// sections are in no event.)
#[test]
fn sections_of_locks_of_the_programs_own_are_found() {
    const OWN: [&str; 6] = [
        "own-spin-200ns",
        "slots-1us",
        "critical-1us",
        "ticket-word-1us",
        "mcs-1us",
        "parked-10us-x4",
    ];
    let mut wrong = Vec::new();
    for pair in PAIRS.iter().filter(|pair| OWN.contains(&pair.name)) {
        let threads: u64 = pair.args[1].parse().expect("a number");
        // A recording in which threads raced outside of what is ordered has no ranking.
        let found = (0..ATTEMPTS).map(|_| sections(pair)).find(Result::is_ok);
        if !matches!(found, Some(Ok(found)) if found >= ROUNDS * threads / 2) {
            wrong.push(format!("{}: {found:?} sections", pair.name));
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

/// Rounds of each thread: long enough that one is not over before the other begins on a busy machine.
const ROUNDS: u64 = 50_000;

fn sections(pair: &Contrast) -> Result<u64, String> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = &pair.program;
    let path = refrain_corpus::compile(program, Variant::Ulcp, cache).expect("can be compiled");
    let bench = bench();
    let [_, threads, ..] = pair.args;
    let mut command = bench.command(["record", "-q", "-o", "a.refrain", "--"]);
    Run::of(command.arg(path).args([&ROUNDS.to_string(), threads, "200", "200"])).succeeds();
    // Measuring what each costs is other tests' work, and three quarters of the time.
    let run = bench.refrain(["transform", "--json", "-o", "b.refrain", "a.refrain"]);
    if run.status != 0 {
        return Err(format!("{run:?}"));
    }
    let report: Value = serde_json::from_slice(&run.stdout).expect("is JSON");
    if !report["error"].is_null() {
        return Err(format!("{run:?}"));
    }
    Ok(report["critical_sections"].as_u64().expect("a number"))
}

fn against_answers(program: &Program, found: &Found) -> Vec<String> {
    let (must, must_not) = expected(program, Variant::Ulcp);
    let missing: Vec<_> = must.difference(found).collect();
    let wrong: Vec<_> = must_not.intersection(found).collect();
    let missing = say(program, "misses", &missing);
    missing.into_iter().chain(say(program, "wrongly reports", &wrong)).collect()
}

#[test]
fn fixed_programs_have_none_of_it() {
    all_cases(Group::Case, Variant::Fixed, |program, found| {
        let (planted, _) = expected(program, Variant::Ulcp);
        let left: Vec<_> = planted.intersection(found).collect();
        say(program, "still reports", &left).into_iter().collect()
    });
}

#[test]
fn the_demo_names_every_planted_group_by_its_line() {
    let bench = bench();
    let program = refrain_corpus::find("demo").expect("the demo is in the corpus");
    let (must, must_not) = expected(program, Variant::Ulcp);
    // A busy machine may hold back a planted hand-over, but not every time.
    let names_all = (0..ATTEMPTS).any(|_| {
        let run = bench.refrain(["demo", "--json"]);
        let report: Value = serde_json::from_slice(&run.succeeds().stdout).expect("is JSON");
        let found = groups_in(&report, refrain_corpus::demo::PATH);
        assert!(must_not.is_disjoint(&found), "{found:?}");
        must.is_subset(&found)
    });
    assert!(names_all, "{must:?} are not all found");
    let kinds: BTreeSet<_> = must.iter().map(|(_, kind)| kind).collect();
    assert!(kinds.len() >= 3, "the demo plants three kinds");

    // What a busy machine lets nobody wait for is among the details alone.
    let text = bench.refrain(["demo", "--details"]).succeeds().text();
    assert!(text.contains("replayed ") && text.contains("demo.c:"), "{text}");
}
