//! `refrain run`: records a program and ranks its locks, or finds its races.

use super::destination::Destination;
use super::{after, record};
use crate::args::{AfterRecording, Ranking, Run};
use crate::failure::{Failure, Outcome};
use crate::output::Console;
use anyhow::Context;
use refrain_session::Session;
use refrain_session::recorder;

/// Records to the file given with `-o`, or to a temporary one. Ends with the program's status.
pub(crate) fn run(args: &Run, session: &Session) -> Outcome {
    let program = args.recording.asked(None, None).program().map_err(Failure::of_recorder)?;
    let place = Destination::new(args.output.as_deref(), &recorder::default_trace(&program));
    let place = place.map_err(Failure::recording)?;
    let recording = args.recording.asked(Some(&program), Some(&place.trace));
    let console = Console::keep();
    divert_output(&args.ranking).map_err(Failure::recording)?;
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

/// Sends what the program prints to standard error if standard output is to carry JSON.
pub(crate) fn divert_output(ranking: &Ranking) -> anyhow::Result<()> {
    if ranking.json {
        rustix::stdio::dup2_stdout(std::io::stderr()).context("cannot divert the output")?;
    }
    Ok(())
}
