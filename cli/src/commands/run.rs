//! `refrain run`: records a program and ranks its locks, or finds its races.

use super::destination::Destination;
use super::{after, locks, record};
use crate::args::{AfterRecording, Ranking, Run};
use crate::failure::{Failure, Outcome};
use crate::output::Console;
use anyhow::Context;
use refrain_session::recorder;
use refrain_session::{Error, Lesson, Recording, Session};
use refrain_trace::{Ending, Order};
use rustix::fs::SeekFrom;

/// Records to the file given with `-o`, or to a temporary one. Ends with the program's status.
pub(crate) fn run(args: &Run, session: &Session) -> Outcome {
    let program = args.recording.asked(None, None).program().map_err(Failure::of_recorder)?;
    let place = Destination::new(args.output.as_deref(), &recorder::default_trace(&program));
    let place = place.map_err(Failure::recording)?;
    let recording = args.recording.asked(Some(&program), Some(&place.trace));
    let console = Console::keep();
    divert_output(&args.ranking).map_err(Failure::recording)?;
    if args.attempts > 1 {
        let outcome = record_until_exact(args, session, (recording, &place), &console);
        place.discard();
        return outcome;
    }
    let (ending, trace) = place.record(&recording, args.recording.quiet, &console)?;
    let rest = AfterRecording {
        trace,
        ranking: args.ranking.clone(),
        replay: false,
        races: args.races,
        remove: place.temporary,
        status: Some(record::status(ending)),
    };
    Err(after::become_it(&rest, session, console))
}

/// Records and ranks until the replay does not diverge, or teaches nothing, or as often as the user wants.
///
/// A recorded program may change what it shares with its recorder: limits, the user, the directory. So each
/// recorder is a process of its own here.
fn record_until_exact(
    args: &Run,
    session: &Session,
    (mut recording, place): (Recording, &Destination),
    console: &Console,
) -> Outcome {
    let stdin = rustix::stdio::stdin();
    // Pipes and terminals have no position.
    let input = rustix::fs::tell(stdin).ok();
    let mut attempt = 1;
    loop {
        let recorded = refrain_vm::outlive_interrupts(|| session.record(&recording));
        let recorded = recorded.map_err(Failure::of_recorder)?;
        let ending = record::say(&recorded, (!place.temporary, args.recording.quiet), console)?;
        let ranked = locks::rank(session, &recorded.trace, false);
        if let Err(error) = &ranked
            && attempt < args.attempts
            && let Some(lesson) = lesson(error, ending, recording.order)
        {
            console.say(&format!(
                "refrain: attempt {attempt} of {}: the replay diverged, because the program races; \
                 {lesson}: running the program again",
                args.attempts
            ));
            if let Some(at) = input {
                let rewound = rustix::fs::seek(stdin, SeekFrom::Start(at));
                rewound.context("cannot rewind the input").map_err(Failure::recording)?;
            }
            // In place of the last one.
            recording.trace = Some(recorded.trace);
            recording.force = true;
            attempt += 1;
            continue;
        }
        console.restore_stdout().map_err(Failure::recording)?;
        let report = ranked.map_err(Failure::recording)?;
        locks::print(report, &args.ranking).map_err(Failure::recording)?;
        return Ok(record::status(ending));
    }
}

/// What another recording does better, if there is to be one: the user has not ended the program, and has not
/// asked for an order that the lesson would change.
fn lesson(error: &anyhow::Error, ending: Ending, order: Option<Order>) -> Option<Lesson> {
    match (error.downcast_ref()?, ending, order) {
        (Error::Diverged { lesson: Some(Lesson::EveryAccess), .. }, _, Some(_)) => None,
        (Error::Diverged { lesson, .. }, Ending::Exited(_), _) => *lesson,
        _ => None,
    }
}

/// Sends what the program prints to standard error if standard output is to carry JSON.
pub(crate) fn divert_output(ranking: &Ranking) -> anyhow::Result<()> {
    if ranking.json {
        rustix::stdio::dup2_stdout(std::io::stderr()).context("cannot divert the output")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lesson_is_worth_another_run_if_it_can_help() {
        let diverged =
            |lesson| anyhow::Error::new(Error::Diverged { what: "diverged".into(), lesson });
        let sites = Some(Lesson::Sites(2));
        let exited = Ending::Exited(1);
        assert_eq!(lesson(&diverged(sites), exited, None), sites);
        assert_eq!(lesson(&diverged(sites), exited, Some(Order::Sync)), sites);
        assert_eq!(lesson(&diverged(sites), Ending::Signaled(2), None), None);
        assert_eq!(lesson(&diverged(sites), Ending::Stopped(2), None), None);
        assert_eq!(lesson(&diverged(None), exited, None), None);
        let every_access = Some(Lesson::EveryAccess);
        assert_eq!(lesson(&diverged(every_access), exited, None), every_access);
        assert_eq!(lesson(&diverged(every_access), exited, Some(Order::Sync)), None);
        let other = anyhow::Error::new(Error::Unusable("cut off".into()));
        assert_eq!(lesson(&other, exited, None), None);
    }
}
