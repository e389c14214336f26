//! Every program is what the catalogue says: it compiles without a warning,
//! prints the same on every run, ends as stated, and has no data race.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use common::scratch;
use refrain_corpus::{
    Exit, Group, Language, PROGRAMS, Program, RACES, Variant, compile, compile_with, demo, find,
    racy_lines,
};

const STRICT_C: &[&str] = &["-Wall", "-Wextra", "-Werror"];
const STRICT_RUST: &[&str] = &["-D", "warnings"];

fn run(exe: &Path, args: &[&str]) -> Output {
    Command::new(exe).args(args).output().unwrap_or_else(|e| panic!("{}: {e}", exe.display()))
}

fn ending(output: &Output) -> Exit {
    match (output.status.code(), output.status.signal()) {
        (Some(status), _) => Exit::Status(status),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => unreachable!("a process that ended has a status or a signal"),
    }
}

fn builds() -> impl Iterator<Item = (&'static Program, Variant)> {
    PROGRAMS.iter().flat_map(|p| p.variants.iter().map(move |&v| (p, v)))
}

#[test]
fn names_are_unique_and_every_source_is_listed() {
    let names: BTreeSet<_> = PROGRAMS.iter().map(|p| p.name).collect();
    assert_eq!(names.len(), PROGRAMS.len());
    let listed: BTreeSet<_> = PROGRAMS.iter().map(|p| p.source.to_owned()).collect();
    let mut found = BTreeSet::new();
    for folder in ["c", "cpp", "rs"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in fs::read_dir(path).expect("the folder is there") {
            let name = entry.expect("readable").file_name().into_string().expect("ASCII");
            if !name.ends_with(".h") {
                found.insert(format!("{folder}/{name}"));
            }
        }
    }
    assert_eq!(listed, found);
}

#[test]
fn every_program_runs_the_same_way_twice_and_ends_as_stated() {
    for (program, variant) in builds() {
        let strict = if program.language == Language::Rust { STRICT_RUST } else { STRICT_C };
        let exe = compile_with(program, variant, strict, &scratch())
            .unwrap_or_else(|error| panic!("{}: {error}", program.name));
        let first = run(&exe, program.args);
        let second = run(&exe, program.args);
        for output in [&first, &second] {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(ending(output), program.exit, "{} {variant:?}: {stderr}", program.name);
            assert_eq!(stderr, "", "{} {variant:?}", program.name);
        }
        assert!(!first.stdout.is_empty(), "{} prints nothing", program.name);
        if program.group != Group::Litmus {
            assert_eq!(first.stdout, second.stdout, "{} {variant:?}", program.name);
        }
    }
}

#[test]
fn a_fixed_variant_computes_the_same() {
    for program in PROGRAMS.iter().filter(|p| p.group == Group::Case) {
        let outputs = [Variant::Ulcp, Variant::Fixed].map(|variant| {
            let exe = compile(program, variant, &scratch()).expect("compiles");
            run(&exe, program.small).stdout
        });
        assert_eq!(outputs[0], outputs[1], "{}", program.name);
    }
}

#[test]
fn a_bad_argument_is_refused() {
    let exe = compile(find("fig03").expect("listed"), Variant::Ulcp, &scratch()).expect("compiles");
    for argument in ["", "0", "-", "12x"] {
        assert_eq!(run(&exe, &[argument]).status.code(), Some(2), "`{argument}`");
    }
}

#[test]
fn a_build_is_reused_and_a_missing_variant_refused() {
    let fig03 = find("fig03").expect("listed");
    // A folder of its own: two tests that miss a build at the same time both put it there.
    let folder = scratch().join("reused");
    fs::create_dir_all(&folder).expect("writable");
    let first = compile(fig03, Variant::Ulcp, &folder).expect("compiles");
    let modified = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).expect("is there");
    let time = modified(&first);
    let second = compile(fig03, Variant::Ulcp, &folder).expect("compiles");
    assert_eq!((&first, time), (&second, modified(&second)));
    let error = compile(fig03, Variant::Plain, &folder).expect_err("fig03 has two variants");
    assert_eq!(error.to_string(), "fig03 has no variant plain");
    assert!(find("no such program").is_none());
}

#[test]
fn debug_information_names_the_source_from_the_root() {
    let embedded = scratch().join("demo-embedded");
    fs::write(&embedded, demo::ELF).expect("writable");
    assert_eq!(main_file(&embedded), demo::PATH);
    let program = find("case01").expect("listed");
    let exe = compile(program, Variant::Ulcp, &scratch()).expect("compiles");
    assert_eq!(main_file(&exe), program.debug_path());
}

/// The source file of `main`, as addr2line prints it.
fn main_file(exe: &Path) -> String {
    let symbols = Command::new("nm").arg(exe).output().expect("binutils come with the compiler");
    let symbols = String::from_utf8(symbols.stdout).expect("ASCII");
    let line = symbols.lines().find(|l| l.ends_with(" T main")).expect("has a main");
    let address = line.split(' ').next().expect("nm prints the address first");
    let place = Command::new("addr2line").arg("-e").arg(exe).arg(address).output().expect("runs");
    let place = String::from_utf8(place.stdout).expect("ASCII");
    place.split(':').next().expect("split yields one part at least").to_owned()
}

#[test]
fn thread_sanitizer_finds_races_in_the_racy_programs_only() {
    let flags = ["-fsanitize=thread"];
    let sanitized = |program, variant| {
        let exe = compile_with(program, variant, &flags, &scratch()).ok()?;
        let output = Command::new(exe)
            .args(program.small)
            .env("TSAN_OPTIONS", "report_mutex_bugs=0")
            .output()
            .expect("was just built");
        Some((String::from_utf8_lossy(&output.stderr).into_owned(), output))
    };
    // A trivial program shows whether the sanitizer works on this machine.
    let trivial = sanitized(find("fib").expect("listed"), Variant::Plain);
    if !trivial.is_some_and(|(_, output)| output.status.success()) {
        eprintln!("SKIPPED: ThreadSanitizer does not work on this machine");
        return;
    }
    // The sanitizer puts signals off, for ever if a call waits to be interrupted by one, does not
    // know what libgomp orders, and does not see what generated code reads.
    let beyond_it =
        ["ex_signal", "ex_alarm", "ex_jumps", "ex_patch", "ex_process", "ex_avx", "openmp"];
    let watched = |p: &Program| p.language != Language::Rust && !beyond_it.contains(&p.name);
    for (program, variant) in builds().filter(|(program, _)| watched(program)) {
        let (stderr, output) = sanitized(program, variant)
            .unwrap_or_else(|| panic!("{} does not build with TSan", program.name));
        let racy = stderr.contains("ThreadSanitizer: data race");
        let races = matches!(program.group, Group::Racy | Group::Litmus);
        assert_eq!(racy, races, "{} {variant:?}:\n{stderr}", program.name);
        // Where the program dies or races, the sanitizer ends it its own way.
        if !racy && !matches!(program.exit, Exit::Signal(_)) {
            assert_eq!(ending(&output), program.exit, "{}:\n{stderr}", program.name);
        }
    }
}

#[test]
fn races_are_listed_and_annotated_and_both_variants_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("races");
    let names = fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("ASCII"));
    let found: BTreeSet<_> =
        names.filter(|name| !name.ends_with(".h")).map(|name| format!("races/{name}")).collect();
    assert_eq!(found, RACES.iter().map(|program| program.source.to_owned()).collect());
    for program in RACES {
        let source = fs::read_to_string(program.path()).expect("the source is there");
        assert!(!racy_lines(&source).is_empty(), "{}", program.name);
        let strict = if program.language == Language::Rust { STRICT_RUST } else { STRICT_C };
        for &variant in program.variants {
            let exe = compile_with(program, variant, strict, &scratch())
                .unwrap_or_else(|error| panic!("{}: {error}", program.name));
            assert_eq!(ending(&run(&exe, &[])), Exit::Status(0), "{}", program.name);
        }
    }
}

/// That a twin has no race is judged by a tool that knows nothing of refrain.
#[test]
fn thread_sanitizer_finds_nothing_in_the_twins_of_races() {
    let flags = ["-fsanitize=thread"];
    let trivial = find("fib").expect("listed");
    let works = compile_with(trivial, Variant::Plain, &flags, &scratch());
    if !works.is_ok_and(|exe| run(&exe, &["5"]).status.success()) {
        eprintln!("SKIPPED: ThreadSanitizer does not work on this machine");
        return;
    }
    // It does not know what OpenMP's library does, nor Rust's.
    let known = |program: &&Program| {
        program.language != Language::Rust && !program.flags.contains(&"-fopenmp")
    };
    for program in RACES.iter().filter(known) {
        let exe = compile_with(program, Variant::Fixed, &flags, &scratch())
            .unwrap_or_else(|error| panic!("{}: {error}", program.name));
        let output = run(&exe, &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", program.name);
    }
}
