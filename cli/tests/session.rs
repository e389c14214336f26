//! The library with the command that it starts: what its documentation promises.

use refrain_scheduler::Model;
use refrain_session::compare::Measuring;
use refrain_session::trace_file::NewTrace;
use refrain_session::{
    Atomics, Cost, Listener, Policy, Recording, ReplayOptions, SchedulerKind, Session, Skeleton,
    trace_file,
};
use refrain_trace::Ending;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

fn record(session: &Session, directory: &Path) -> PathBuf {
    let program = refrain_corpus::find("ex_mutex").expect("the corpus has it");
    let path = refrain_corpus::compile(program, program.variants[0], directory);
    let path = path.expect("the corpus can be compiled");
    let mut command = vec![path.into_os_string()];
    command.extend(program.small.iter().map(Into::into));
    let trace = directory.join("a.refrain");
    let recording = Recording { no_learn: true, ..Recording::of(command, &trace) };
    let recorded = session.record(&recording).expect("can be recorded");
    assert_eq!((recorded.ending, &recorded.trace), (Ending::Exited(0), &trace));
    assert!(recorded.threads > 1 && recorded.events > 0 && recorded.bytes > 0, "{recorded:?}");
    trace
}

/// Keeps what begins and ends.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<&'static str>>>);

impl Listener for Log {
    fn begin(&self, what: &'static str) {
        self.0.lock().expect("nobody panics").push(what);
    }

    fn end(&self) {
        self.0.lock().expect("nobody panics").push("end");
    }
}

#[test]
fn a_run_is_recorded_reproduced_and_compared() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = Log::default();
    let session = Session::by(env!("CARGO_BIN_EXE_refrain")).listener(log.clone());
    let trace = record(&session, directory.path());

    let report = session.replay(&trace, &ReplayOptions::default()).expect("can be replayed");
    assert_eq!((report.divergence, report.events), (None, report.events_recorded));
    assert_eq!(*log.0.lock().expect("nobody panics"), ["replaying", "end"]);

    let free = directory.path().join("free.refrain");
    let free = session.transform(&trace, (&free, false)).expect("can be transformed");
    let sides = [&trace, &free.path].map(|trace| (trace.as_path(), SchedulerKind::Elsc));
    let how = Measuring { repeat: 2, ..Measuring::default() };
    let compared = session.compare(sides, &how).expect("can be compared");
    let exact = compared.virtual_time.expect("both clocks");
    assert_eq!(exact.a_ns as i64 + exact.difference_ns, exact.b_ns as i64);
    assert_eq!(compared.wall.expect("both clocks").a.runs, 2);

    let ranking = session.rank(&trace, false).expect("can be ranked");
    assert!(ranking.ranked.analysed.critical_sections > 0);
    let races = session.races(&trace, Atomics::default()).expect("can be searched");
    assert_eq!(races.incomplete, None);
}

#[test]
fn a_scheduler_of_one_s_own_is_asked_as_the_command_s_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let session = Session::by(env!("CARGO_BIN_EXE_refrain"));
    let path = record(&session, directory.path());
    let skeleton = Skeleton::of(&trace_file::read(&path).expect("a trace")).expect("a whole one");
    let own = skeleton.run_by(&mut refrain_scheduler::Elsc, &Model::default());
    let named = session.simulate(&path, Policy::default(), (None, Cost::Recorded));
    assert_eq!(own.expect("no deadlock"), named.expect("no deadlock").0);
}

#[test]
fn nobody_s_trace_is_overwritten() {
    let directory = tempfile::tempdir().expect("a directory");
    let wanted = directory.path().join("a.refrain");
    let other = NewTrace::create(&wanted, false).and_then(NewTrace::publish);
    let session = Session::by(env!("CARGO_BIN_EXE_refrain"));
    let recorded = session.record(&Recording::of(["true"], &wanted)).expect("can be recorded");
    assert_eq!(recorded.trace, directory.path().join("a.2.refrain"));
    assert_eq!(recorded.instead_of, Some(wanted));
    assert!(trace_file::read(&recorded.trace).expect("a trace").events() > 0);
    drop(other);
}

#[test]
fn what_cannot_be_recorded_is_an_error_and_no_old_trace() {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("a.refrain");
    std::fs::write(&trace, "").expect("can be written");
    let session = Session::by(env!("CARGO_BIN_EXE_refrain"));
    let error =
        session.record(&Recording::of(["/no/such/program"], &trace)).expect_err("is missing");
    assert_eq!(error.to_string(), "/no/such/program: no such program");
    let error = Session::by("/no/such/command").record(&Recording::of(["true"], &trace));
    assert!(error.expect_err("is missing").to_string().contains("cannot start the recorder"));
}

/// Writes a program that prints a line and ends. By another process: while this one has a file open to
/// write, a child that another test starts has it open too, and nobody can execute it.
fn write_command(path: &Path, line: &str) {
    let script = format!("printf '#!/bin/sh\\necho \"{line}\"\\n' > \"$0\"; chmod +x \"$0\"");
    let status = std::process::Command::new("sh").arg("-c").arg(script).arg(path).status();
    assert!(status.expect("there is a shell").success());
}

#[test]
fn a_command_of_another_build_is_named_with_what_to_do() {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = record(&Session::by(env!("CARGO_BIN_EXE_refrain")), directory.path());
    let own = format!("refrain {}, protocol ", refrain_session::version());
    for (line, said) in [
        ("refrain-replay 0 0.0.9 (abc)", "is refrain 0.0.9 (abc), protocol 0"),
        ("hello", "does not greet as a refrain does"),
    ] {
        let command = directory.path().join("other");
        write_command(&command, line);
        let error = Session::by(&command).replay(&trace, &ReplayOptions::default());
        let error = error.expect_err("is another build").chain();
        for words in [said, command.to_str().expect("is text"), &own, "from the same sources"] {
            assert!(error.contains(words), "{error} does not say {words}");
        }
    }
}
