//! The corpus's programs with data races: each planted race is found in every replay of the recording,
//! with its lines and what it is about, and nothing else; and nothing in their twins.

use refrain_corpus::{Language, Program, RACES, RacyLine, Variant, racy_lines};
use refrain_tests::{Bench, Run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// What there is time for whenever tests run; `cargo xtask races` sets how many recordings of each of
/// all programs are wanted.
const SOME: [&str; 13] = [
    "use_after_free",
    "freed_before",
    "reuse",
    "copies",
    "pointed",
    "relaxed",
    "slots",
    "channel",
    "omp_critical",
    "omp_sections",
    "omp_tasks",
    "shared_object",
    "destructor",
];

#[test]
fn planted_races_are_found_and_nothing_else() {
    let wanted = std::env::var("REFRAIN_RACES").ok();
    let recordings: u32 = wanted.as_deref().map_or(1, |text| text.parse().expect("is a number"));
    let all = wanted.is_some();
    let mut wrong = Vec::new();
    for program in RACES.iter().filter(|it| all || SOME.contains(&it.name)) {
        for _ in 0..recordings {
            for &variant in program.variants {
                wrong.extend(check(program, variant).err());
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Records a program and searches the recording twice.
fn check(program: &Program, variant: Variant) -> Result<(), String> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let executable = match refrain_corpus::compile(program, variant, cache) {
        Ok(executable) => executable,
        // What is not C may lack its compiler here.
        Err(error) if program.language != Language::C => {
            eprintln!("SKIPPED: {error}");
            return Ok(());
        }
        Err(error) => panic!("{error}"),
    };
    let bench = Bench::new(env!("CARGO_BIN_EXE_refrain-under-test"));
    Run::of(bench.command(["record", "-o", "a.refrain", "--"]).arg(executable)).succeeds();
    let source = std::fs::read_to_string(program.path()).expect("the source is there");
    let planted = match variant {
        Variant::Fixed => Vec::new(),
        _ => racy_lines(&source),
    };
    let words: BTreeSet<&str> = planted.iter().map(|line| line.word.as_str()).collect();
    for _ in 0..2 {
        let run = bench.refrain(["races", "--json", "a.refrain"]);
        let report: Value =
            serde_json::from_slice(&run.stdout).map_err(|error| format!("{error}: {run:?}"))?;
        let fails = |why: String| format!("{} {}: {why}", program.name, variant.name());
        if !report["incomplete"].is_null() {
            return Err(fails(report["incomplete"].to_string()));
        }
        let races = report["races"].as_array().expect("there is a list");
        let found = races.iter().map(|race| word(race, program, &planted).map_err(fails));
        let found = found.collect::<Result<BTreeSet<_>, _>>()?;
        if found != words.iter().map(|word| (*word).to_owned()).collect() {
            return Err(fails(format!("{found:?} instead of {words:?}")));
        }
    }
    Ok(())
}

/// What a race is about, if its lines are planted and say the same.
fn word(race: &Value, program: &Program, planted: &[RacyLine]) -> Result<String, String> {
    let about = match race["word"]["kind"].as_str() {
        Some("global") => race["word"]["name"].as_str(),
        kind => kind,
    };
    let about = about.unwrap_or("?").to_owned();
    for side in ["first", "second"] {
        let place = &race[side]["stack"][race[side]["site"].as_u64().unwrap_or(0) as usize];
        let frames = place["frames"].as_array().into_iter().flatten();
        let own = |frame: &&Value| {
            frame["file"].as_str().is_some_and(|file| file.ends_with(program.source))
        };
        let line = frames.clone().find(own).and_then(|frame| frame["line"].as_u64());
        let is_planted = |it: &RacyLine| Some(it.line) == line && about.ends_with(it.word.as_str());
        if !planted.iter().any(is_planted) {
            return Err(format!("line {line:?} races on {about}: {race}"));
        }
    }
    // Names in Rust have their crates before them.
    Ok(about.rsplit("::").next().unwrap_or(&about).to_owned())
}
