//! `refrain record`: runs a program and writes its trace.

use crate::args::Record;
use crate::failure::{self, Failure, Outcome};
use crate::output::Console;
use crate::report::numbers::{bytes, counted, duration};
use anyhow::anyhow;
use refrain_session::recorder::{self, ReportFile};
use refrain_session::{Recorded, Recording};
use refrain_trace::Ending;
use std::path::Path;
use std::time::Duration;

/// Records, and ends with the program's own status.
pub(crate) fn run(args: &Record) -> Outcome {
    let report = args.report.as_deref().map(ReportFile::open).transpose();
    let report = report.map_err(Failure::recording)?;
    let recording = args.recording.asked(args.program.as_deref(), args.output.as_deref());
    let (console, quiet) = (Console::keep(), args.recording.quiet || report.is_some());
    let recorded = record(&recording, quiet, &console);
    if let Some(report) = report {
        report.write(&recorded).map_err(Failure::recording)?;
        // Whoever has started this process says the rest.
        return Ok(recorded
            .map_or_else(|error| Failure::of_recorder(error).status, |it| status(it.ending)));
    }
    let recorded = recorded.map_err(Failure::of_recorder)?;
    let ending = say(&recorded, (true, quiet), &console)?;
    if let Ending::Signaled(signal) | Ending::Stopped(signal) = ending {
        // Shells tell an end by a signal from one with a status.
        refrain_vm::end_like_the_program(signal);
    }
    Ok(status(ending))
}

/// Records a program, and says at once what cannot wait.
pub(crate) fn record(
    recording: &Recording,
    quiet: bool,
    console: &Console,
) -> refrain_session::Result<Recorded> {
    report_panics(console.share());
    let live = console.share();
    let recorded = recorder::record(recording, move |note| {
        if !quiet {
            live.note(&note);
        }
    });
    drop(std::panic::take_hook());
    recorded.inspect_err(|error| {
        // Standard error may be the program's by now.
        tracing::debug!("recording failed: {error}");
    })
}

/// Says what was recorded, and how the program ended. If the trace does not stay, nobody is told where
/// it is.
pub(crate) fn say(
    recorded: &Recorded,
    (stays, quiet): (bool, bool),
    console: &Console,
) -> Result<Ending, Failure> {
    if let Some(wanted) = &recorded.instead_of {
        let (wanted, shown) = (wanted.display(), recorded.trace.display());
        console.note(&format!("another recording is being written to {wanted}; this is {shown}"));
    }
    if let Some((after, why)) = &recorded.lost {
        console.say(&format!(
            "refrain: warning: the recording ends after {}, the program went on unrecorded: {why} \
             (--strict stops the program instead)",
            time(*after)
        ));
    }
    if !quiet {
        console.say(&describe(recorded, stays.then_some(&recorded.trace)));
        recorded.notes.iter().for_each(|note| console.note(note));
    }
    match &recorded.refused {
        None => Ok(recorded.ending),
        Some(why) => Err(Failure::recording(anyhow!("the program was stopped: {why}"))),
    }
}

/// Makes a panic, on whatever thread, the end of the recording: nobody would wait for the thread
/// that is gone, and the program might wait for it for ever.
fn report_panics(console: Console) {
    std::panic::set_hook(Box::new(move |panic| {
        console.say(&format!("refrain: error: {}", refrain_session::bug(panic)));
        std::process::exit(failure::CANNOT_RECORD.into());
    }));
}

fn describe(recorded: &Recorded, path: Option<&Path>) -> String {
    let how = match recorded.ending {
        Ending::Exited(_) => String::new(),
        Ending::Signaled(signal) => format!(", killed by signal {signal}"),
        Ending::Stopped(signal) => format!(", stopped by signal {signal}"),
        Ending::Lost => ", its end lost".to_owned(),
    };
    format!(
        "refrain: recorded {}, {} in {}{how}{} ({})",
        counted(recorded.threads.into(), "thread"),
        counted(recorded.events, "event"),
        time(recorded.wall),
        path.map_or_else(String::new, |path| format!(": {}", path.display())),
        bytes(recorded.bytes),
    )
}

fn time(time: Duration) -> String {
    duration(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
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
