//! `refrain record`: runs a program and writes its trace.

use crate::args::{CpuLevel, Record, Recording};
use crate::failure::{self, Failure, Outcome};
use crate::machine::{self, RecordOptions, RecordSummary};
use crate::output::Console;
use crate::program::{self, Program};
use crate::report::numbers::{bytes, counted, duration};
use crate::sites;
use crate::trace_file;
use anyhow::anyhow;
use refrain_trace::Ending;
use refrain_vm::Level;
use std::path::Path;
use std::sync::Arc;

/// Records, and ends with the program's own status.
pub(crate) fn run(args: &Record) -> Outcome {
    let program = program::find(&args.recording.command)?;
    let path = args.output.clone().unwrap_or_else(|| program.default_trace());
    let ending = record(program, (&path, true), &args.recording, &Console::keep())?;
    Ok(status(ending))
}

/// Records a program to `path` and says so. If the trace does not stay, nobody is told where it is.
pub(crate) fn record(
    program: Program,
    (path, stays): (&Path, bool),
    recording: &Recording,
    console: &Console,
) -> Result<Ending, Failure> {
    let output = trace_file::create(path, recording.force).map_err(Failure::recording)?;
    let (live, quiet) = (console.share(), recording.quiet);
    let warn = Arc::new(move |notice| {
        if !quiet {
            live.note(&notice)
        }
    });
    refrain_vm::read_clocks();
    let level = recording.cpu.map(|level| match level {
        CpuLevel::V2 => Level::V2,
        CpuLevel::V3 => Level::V3,
    });
    let learned = if recording.no_learn { Default::default() } else { sites::known().sites };
    let no_jit = recording.no_jit;
    let options = RecordOptions { program, output, level, no_jit, warn, learned };
    report_panics(console.share());
    let result = machine::record(options);
    drop(std::panic::take_hook());
    let summary = result.inspect_err(|failure| {
        // Standard error may be the program's by now.
        tracing::debug!("recording failed: {failure}");
    })?;
    if !recording.quiet {
        console.say(&describe(&summary, stays.then_some(path)));
        summary.notices.iter().for_each(|notice| console.note(notice));
    }
    match summary.refused {
        None => Ok(summary.ending),
        Some(why) => Err(Failure::recording(anyhow!("the program was stopped: {why}"))),
    }
}

/// Makes a panic, on whatever thread, the end of the recording: nobody would wait for the thread
/// that is gone, and the program might wait for it for ever.
fn report_panics(console: Console) {
    std::panic::set_hook(Box::new(move |panic| {
        console.say(&format!("refrain: error: {}", failure::bug(panic)));
        std::process::exit(failure::CANNOT_RECORD.into());
    }));
}

fn describe(summary: &RecordSummary, path: Option<&Path>) -> String {
    let how = match summary.ending {
        Ending::Exited(_) => String::new(),
        Ending::Signaled(signal) => format!(", killed by signal {signal}"),
        Ending::Stopped(signal) => format!(", stopped by signal {signal}"),
    };
    format!(
        "refrain: recorded {}, {} in {}{how}{} ({})",
        counted(summary.threads, "thread"),
        counted(summary.events, "event"),
        duration(i64::try_from(summary.wall.as_nanos()).unwrap_or(i64::MAX)),
        path.map_or_else(String::new, |path| format!(": {}", path.display())),
        bytes(summary.bytes),
    )
}

/// The exit status that a shell gives a program that ended so.
pub(crate) fn status(ending: Ending) -> u8 {
    match ending {
        Ending::Exited(status) => (status & 0xff) as u8,
        Ending::Signaled(signal) | Ending::Stopped(signal) => 128u8.wrapping_add(signal as u8),
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
