//! The annotations: they parse, they are complete, and they are true. Truth is
//! judged by the census (tests/census/census.c), which knows nothing of refrain.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::scratch;
use refrain_corpus::{Answers, Benign, Group, Kind, PROGRAMS, Program, Variant, compile_with};

fn cases() -> impl Iterator<Item = (&'static Program, Answers)> {
    PROGRAMS.iter().filter(|p| p.group == Group::Case).map(|program| {
        let source = fs::read_to_string(program.path()).expect("the source is there");
        let answers = Answers::parse(&source)
            .unwrap_or_else(|problems| panic!("{}: {problems:#?}", program.name));
        (program, answers)
    })
}

#[test]
fn every_case_plants_something_and_names_all_its_lock_calls() {
    let takes = ["_lock(&", "_rdlock(&", "_wrlock(&", "cond_wait(&", "cond_timedwait(&"];
    for (program, answers) in cases() {
        let planted = answers.pairs(Variant::Ulcp);
        assert!(planted.iter().any(|pair| pair.kind.is_ulcp()), "{} plants none", program.name);
        let fixed = answers.pairs(Variant::Fixed);
        assert!(fixed.iter().all(|pair| !pair.kind.is_ulcp()), "{}", program.name);
        let source = fs::read_to_string(program.path()).expect("the source is there");
        for (line, text) in (1..).zip(source.lines()) {
            let call = takes.iter().any(|t| text.contains(t)) && text.contains("pthread_");
            let named = answers.sites.iter().any(|site| site.line == line);
            assert_eq!(call, named, "{}:{line}: {text}", program.source);
        }
    }
}

#[test]
fn the_demo_plants_three_kinds_and_a_true_contention() {
    let answers = Answers::parse(refrain_corpus::demo::SOURCE).expect("parses");
    let kinds: BTreeSet<_> = answers.pairs(Variant::Ulcp).iter().map(|pair| pair.kind).collect();
    let wanted = [Kind::NullLock, Kind::ReadRead, Kind::DisjointWrite, Kind::Tlcp];
    assert_eq!(kinds, BTreeSet::from(wanted));
}

#[test]
fn a_claim_is_read_with_its_line_partners_and_variant() {
    let source = "\n\
        lock(&a); /* @site one: read-read with one, two; benign/ad-hoc-sync with two */\n\
        lock(&a); /* @site two in ulcp: tlcp with two */\n\
        lock(&b); /* @site three in fixed */\n";
    let answers = Answers::parse(source).expect("is correct");
    let labels: Vec<_> =
        answers.sites.iter().map(|s| (s.label.as_str(), s.line, s.variant)).collect();
    assert_eq!(
        labels,
        [("one", 2, None), ("two", 3, Some(Variant::Ulcp)), ("three", 4, Some(Variant::Fixed))]
    );
    assert_eq!(answers.plants[0].partners, ["one", "two"]);
    assert_eq!(answers.plants[1].kind, Kind::Benign(Benign::AdHocSync));
    let pairs: Vec<_> =
        answers.pairs(Variant::Ulcp).into_iter().map(|p| (p.lines, p.kind.to_string())).collect();
    let pair = |a, b, kind: &str| ((a, b), kind.to_owned());
    assert_eq!(
        pairs,
        [
            pair(2, 2, "read-read"),
            pair(2, 3, "read-read"),
            pair(2, 3, "benign/ad-hoc-sync"),
            pair(3, 3, "tlcp"),
        ]
    );
    assert_eq!(answers.pairs(Variant::Fixed), []);
}

#[test]
fn every_fault_is_reported() {
    let faults = |source: &str| {
        let problems = Answers::parse(source).expect_err(source);
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let cases = [
        ("// @site a", "line 1: expected `/* @site `"),
        ("/* @site a", "line 1: the comment does not end on its line"),
        ("/* @site a */ /* @site b */", "line 1: more than one annotation"),
        ("/* @site A */", "line 1: `A` is no label"),
        ("/* @site a in plain */", "line 1: expected `label [in ulcp|fixed]`, found `a in plain`"),
        ("/* @site a: */", "line 1: expected `kind with label`, found ``"),
        ("/* @site a: write with a */", "line 1: `write` is no kind"),
        ("/* @site a: tlcp with a, */", "line 1: `` is no label"),
        ("/* @site a: tlcp with b */", "line 1: no site `b`"),
        ("/* @site a in fixed: null-lock with a */", "line 1: null-lock in the fixed variant"),
        ("/* @site a: tlcp with a; tlcp with a */", "line 1: `a` with `a` again"),
        ("/* @site a: tlcp with a; null-lock with a */", "line 1: `a` with `a` is tlcp elsewhere"),
    ];
    for (source, expected) in cases {
        assert_eq!(faults(source), [expected], "{source}");
    }
    assert_eq!(faults("/* @site A */\n/* @site b: x */").len(), 2);
    assert_eq!(faults("/* @site a */\n/* @site a */"), ["line 2: a second site `a`"]);
}

/// `BLESS=1` writes the table anew.
#[test]
fn the_readme_states_the_answers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(&path).expect("the crate has a README");
    for program in PROGRAMS {
        assert!(readme.contains(&format!("`{}`", program.name)), "{} is missing", program.name);
    }
    let mut table = String::from("| program | pair of sites | kind |\n|---|---|---|\n");
    for (program, answers) in cases() {
        for pair in answers.pairs(Variant::Ulcp) {
            let (a, b) = &pair.labels;
            table.push_str(&format!("| {} | {a} – {b} | {} |\n", program.name, pair.kind));
        }
    }
    let (head, rest) = readme.split_once("<!-- answers -->\n").expect("has the first mark");
    let (found, tail) = rest.split_once("<!-- end -->").expect("has the second mark");
    if std::env::var_os("BLESS").is_some() {
        let blessed = format!("{head}<!-- answers -->\n{table}<!-- end -->{tail}");
        fs::write(&path, blessed).expect("the README is writable");
    } else {
        assert_eq!(found, table, "run with BLESS=1");
    }
}

/// (kind, lower line, higher line) to the number of pairs seen.
type Census = BTreeMap<(String, u32, u32), u64>;

#[test]
fn the_census_confirms_every_answer() {
    let Some(runtime) = census_runtime() else {
        eprintln!("SKIPPED: this compiler cannot link the census in place of ThreadSanitizer");
        return;
    };
    for (program, answers) in cases() {
        for variant in [Variant::Ulcp, Variant::Fixed] {
            let seen = census(program, variant, &runtime);
            confirm(program, variant, &answers, &seen);
        }
    }
}

fn confirm(program: &Program, variant: Variant, answers: &Answers, seen: &Census) {
    let pairs = answers.pairs(variant);
    let place = format!("{} {}", program.source, variant.name());
    for pair in &pairs {
        // The census does not replay: it takes every conflict for one.
        let kind = match pair.kind {
            Kind::Benign(_) | Kind::Tlcp => Kind::Conflict,
            kind => kind,
        };
        let key = (kind.to_string(), pair.lines.0, pair.lines.1);
        let compiled = variant == Variant::Ulcp || kind != Kind::Conflict;
        assert!(!compiled || seen.contains_key(&key), "{place}: no such pair: {pair:?}\n{seen:#?}");
    }
    for (kind, first, second) in seen.keys() {
        for line in [first, second] {
            let known = answers.sites.iter().any(|site| site.line == *line);
            assert!(known, "{place}:{line}: takes a lock without a name");
        }
        let claimed = pairs.iter().any(|p| {
            p.lines == (*first, *second) && p.kind.is_ulcp() && p.kind.to_string() == *kind
        });
        assert!(
            claimed || kind == "conflict",
            "{place}: lines {first} and {second} are an unclaimed {kind}"
        );
    }
}

/// The functions that the census wants to see.
const WRAPPED: [&str; 9] = [
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
    "pthread_spin_lock",
    "pthread_spin_unlock",
    "pthread_rwlock_rdlock",
    "pthread_rwlock_wrlock",
    "pthread_rwlock_unlock",
    "pthread_cond_wait",
    "pthread_cond_timedwait",
];

/// Compiles the census, without the instrumentation that it implements.
fn census_runtime() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/census/census.c");
    let object = scratch().join(format!("census-{}.o", std::process::id()));
    let cc = std::env::var("CC").unwrap_or("cc".into());
    let mut command = Command::new(cc);
    command.args(["-c", "-O2", "-g", "-Wall", "-Wextra", "-o"]).arg(&object).arg(source);
    command.status().ok()?.success().then_some(object)
}

fn census(program: &Program, variant: Variant, runtime: &Path) -> Census {
    let runtime = runtime.to_str().expect("cargo's directory has a plain name");
    let wrap: Vec<String> = WRAPPED.iter().map(|name| format!("-Wl,--wrap={name}")).collect();
    let mut flags = vec!["-fsanitize=thread", "-no-pie", "-nodefaultlibs", runtime];
    flags.extend(wrap.iter().map(String::as_str));
    flags.extend(["-lc", "-lgcc"]);
    let exe = compile_with(program, variant, &flags, &scratch()).expect("builds with the census");
    let report = exe.with_extension("census");
    let mut command = Command::new(&exe);
    let status = command.args(program.small).env("CENSUS_OUT", &report).status();
    assert!(status.expect("was just built").success(), "{}", program.name);

    let mut seen = Census::new();
    for line in fs::read_to_string(&report).expect("the census has written it").lines() {
        let [kind, a, b, pairs, _] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("unexpected report: {line}");
        };
        let (a, b) = (line_of(&exe, a), line_of(&exe, b));
        *seen.entry((kind.to_owned(), a.min(b), a.max(b))).or_default() +=
            pairs.parse::<u64>().expect("a number");
    }
    seen
}

/// The source line of the call that returns to this address.
fn line_of(exe: &Path, address: &str) -> u32 {
    let digits = address.strip_prefix("0x").expect("%p prints 0x");
    let call = u64::from_str_radix(digits, 16).expect("hexadecimal") - 1;
    let output = Command::new("addr2line").arg("-e").arg(exe).arg(format!("{call:x}")).output();
    let output = String::from_utf8(output.expect("binutils come with the compiler").stdout);
    let place = output.expect("ASCII");
    // `file:line` or `file:line (discriminator n)`
    let (_, line) = place.trim().rsplit_once(':').expect("addr2line prints file:line");
    line.split(' ').next().and_then(|l| l.parse().ok()).unwrap_or_else(|| panic!("{place}"))
}
