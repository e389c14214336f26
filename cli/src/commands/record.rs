//! `refrain record`: runs a program and writes its trace.

use crate::args::{CpuLevel, Record, Recording};
use crate::failure::{self, Failure, Outcome};
use crate::output::Console;
use crate::program::{self, Program};
use crate::report::numbers::{bytes, counted, duration};
use anyhow::anyhow;
use clap::ValueEnum;
use refrain_session::sites::{self, Profile};
use refrain_session::trace_file::{Named, NewTrace};
use refrain_session::{calibration, recorder, runtimes};
use refrain_trace::{Ending, Order};
use refrain_vm::{Follow, Level, LostEnd, RecordOptions, RecordSummary};
use std::cell::OnceCell;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Records, and ends with the program's own status.
pub(crate) fn run(args: &Record) -> Outcome {
    let program = match &args.program {
        Some(path) => Program { path: path.clone(), argv: args.recording.command.clone() },
        None => program::find(&args.recording.command)?,
    };
    let path = args.output.clone().unwrap_or_else(|| program.default_trace());
    let (ending, _) = record(program, (&path, true), &args.recording, &Console::keep())?;
    if let Ending::Signaled(signal) | Ending::Stopped(signal) = ending {
        // Shells tell an end by a signal from one with a status.
        refrain_vm::end_like_the_program(signal);
    }
    Ok(status(ending))
}

/// Records a program to `path`, or another place if somebody is recording there, and says so. If
/// the trace does not stay, nobody is told where it is.
pub(crate) fn record(
    program: Program,
    (path, stays): (&Path, bool),
    recording: &Recording,
    console: &Console,
) -> Result<(Ending, PathBuf), Failure> {
    let new = NewTrace::create(path, recording.force).map_err(Failure::recording)?;
    let output = new.file().map_err(Failure::recording)?;
    let named: Rc<OnceCell<Named>> = Rc::default();
    let name = named.clone();
    let begun = move || {
        let _ = name.set(new.publish().map_err(io::Error::other)?);
        Ok(())
    };
    let (live, quiet) = (console.share(), recording.quiet);
    let warn = Arc::new(move |notice| {
        if !quiet {
            live.note(&notice)
        }
    });
    let level = recording.cpu.map(|level| match level {
        CpuLevel::V2 => Level::V2,
        CpuLevel::V3 => Level::V3,
    });
    let known = if recording.no_learn { Profile::default() } else { sites::known() };
    let follow = recording.follow.then(|| follow(path, recording)).transpose()?;
    let order = recording.order.unwrap_or_else(|| {
        let why = every_access(&program, &known);
        if let Some(why) = why.as_ref().filter(|_| !quiet) {
            console.note(&format!(
                "the order of every access is recorded, which takes several times as long as \
                 --order sync: {why}"
            ));
        }
        if why.is_some() { Order::Stride } else { Order::Sync }
    });
    let options = RecordOptions {
        command: recorder::command(program.path, program.argv),
        output,
        recorder: recorder::VERSION.to_owned(),
        machine: calibration::this_machine(),
        processor: recorder::processor(level).map_err(Failure::recording)?,
        forbid_generated_code: recording.no_jit,
        warn,
        learned: known.sites,
        order,
        begun: Box::new(begun),
        strict: recording.strict,
        follow,
    };
    report_panics(console.share());
    let result = recorder::record(options).map_err(Failure::of_recorder);
    drop(std::panic::take_hook());
    let summary = result.inspect_err(|failure| {
        // Standard error may be the program's by now.
        tracing::debug!("recording failed: {failure}");
    })?;
    let named = named.get().map_or(path, |named| &named.path);
    if named != path {
        let (wanted, shown) = (path.display(), named.display());
        console.note(&format!("another recording is being written to {wanted}; this is {shown}"));
    }
    if let Some(lost) = &summary.lost {
        console.say(&describe_loss(lost));
    }
    if !recording.quiet {
        console.say(&describe(&summary, stays.then_some(named)));
        summary.notices.iter().for_each(|notice| console.note(notice));
    }
    match summary.refused {
        None => Ok((summary.ending, named.to_owned())),
        Some(why) => Err(Failure::recording(anyhow!("the program was stopped: {why}"))),
    }
}

/// Why a program's recordings order every access where the user has not said which they should, if they
/// do.
fn every_access(program: &Program, known: &Profile) -> Option<String> {
    let Program { path, argv } = program.clone();
    let identity =
        || refrain_vm::identity(&refrain_vm::Command { program: path, argv, env: vec![] });
    // The file is only read if that can make a difference.
    let learned =
        !known.programs.is_empty() && identity().is_some_and(|id| known.programs.contains(&id));
    let why = match learned {
        true => "replays of this program have diverged, and watching what races did not help \
                 (`refrain sites clear` forgets that)"
            .to_owned(),
        false => {
            let runtime = runtimes::of(&program.path)?;
            format!("threads of {runtime} synchronize through plain loads and stores")
        }
    };
    refrain_vm::can_order_every_access().then_some(why)
}

/// How child processes are recorded: each program that one executes into a trace next to the
/// parent's, with the process's id in its name, and otherwise as the parent is.
fn follow(path: &Path, recording: &Recording) -> Result<Follow, Failure> {
    let own = std::env::current_exe().map_err(Failure::recording)?;
    let path = std::path::absolute(path).map_err(Failure::recording)?;
    let mut options: Vec<OsString> =
        ["refrain", "record", "--quiet", "--follow"].map(Into::into).into();
    let Recording { force, strict, no_learn, no_jit, cpu, order, .. } = *recording;
    let flags =
        [(force, "--force"), (strict, "--strict"), (no_learn, "--no-learn"), (no_jit, "--no-jit")];
    options.extend(flags.into_iter().filter(|flag| flag.0).map(|flag| flag.1.into()));
    if let Some(order) = order {
        options.extend(["--order".into(), order.name().into()]);
    }
    if let Some(level) = cpu.and_then(|level| level.to_possible_value()) {
        options.extend(["--cpu".into(), level.get_name().into()]);
    }
    Ok(Box::new(move |command| {
        let trace = path.with_extension(format!("{}.refrain", std::process::id()));
        let mut argv = options.clone();
        argv.extend(["--output".into(), trace.into()]);
        argv.extend(["--program".into(), command.program.clone().into(), "--".into()]);
        argv.extend(command.argv.iter().cloned());
        refrain_vm::Command { program: own.clone(), argv, env: command.env.clone() }
    }))
}

/// Makes a panic, on whatever thread, the end of the recording: nobody would wait for the thread
/// that is gone, and the program might wait for it for ever.
fn report_panics(console: Console) {
    std::panic::set_hook(Box::new(move |panic| {
        console.say(&format!("refrain: error: {}", refrain_session::bug(panic)));
        std::process::exit(failure::CANNOT_RECORD.into());
    }));
}

fn describe(summary: &RecordSummary, path: Option<&Path>) -> String {
    let how = match summary.ending {
        Ending::Exited(_) => String::new(),
        Ending::Signaled(signal) => format!(", killed by signal {signal}"),
        Ending::Stopped(signal) => format!(", stopped by signal {signal}"),
        Ending::Lost => ", its end lost".to_owned(),
    };
    format!(
        "refrain: recorded {}, {} in {}{how}{} ({})",
        counted(summary.threads.into(), "thread"),
        counted(summary.events, "event"),
        duration(i64::try_from(summary.wall.as_nanos()).unwrap_or(i64::MAX)),
        path.map_or_else(String::new, |path| format!(": {}", path.display())),
        bytes(summary.bytes),
    )
}

fn describe_loss(lost: &LostEnd) -> String {
    let after = duration(i64::try_from(lost.after.as_nanos()).unwrap_or(i64::MAX));
    format!(
        "refrain: warning: the recording ends after {after}, the program went on unrecorded: {} \
         (--strict stops the program instead)",
        lost.why
    )
}

/// The exit status that a shell gives a program that ended so.
pub(crate) fn status(ending: Ending) -> u8 {
    match ending {
        Ending::Exited(status) => (status & 0xff) as u8,
        Ending::Signaled(signal) | Ending::Stopped(signal) => 128u8.wrapping_add(signal as u8),
        Ending::Lost => failure::CANNOT_RECORD,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_become_the_status_of_a_shell() {
        assert_eq!(status(Ending::Exited(3)), 3);
        assert_eq!(status(Ending::Exited(-1)), 255);
        assert_eq!(status(Ending::Signaled(11)), 139);
        assert_eq!(status(Ending::Stopped(2)), 130);
    }
}
