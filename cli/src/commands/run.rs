//! `refrain run`: records a program and ranks its locks, or finds its races.

use super::destination::Destination;
use super::{after, record};
use crate::args::{AfterRecording, Ranking, Run};
use crate::failure::{Failure, Outcome};
use crate::output::Console;
use crate::program;
use anyhow::Context;
use refrain_session::Session;

/// Records to the file given with `-o`, or to a temporary one. Ends with the program's status.
pub(crate) fn run(args: &Run, session: &Session) -> Outcome {
    let program = program::find(&args.recording.command)?;
    let place = Destination::new(args.output.as_deref(), &program.default_trace());
    let place = place.map_err(Failure::recording)?;
    let console = Console::keep();
    divert_output(&args.ranking).map_err(Failure::recording)?;
    let recorded =
        record::record(program, (&place.trace, !place.temporary), &args.recording, &console);
    let (ending, trace) = recorded.inspect_err(|_| place.discard())?;
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
