//! `refrain run`: records a program and ranks its locks.

use super::{after, record};
use crate::args::{AfterRecording, Ranking, Run};
use crate::failure::{Failure, Outcome};
use crate::output::Console;
use crate::program;
use anyhow::Context;
use std::path::{Path, PathBuf};

/// Records to the file given with `-o`, or to a temporary one. Ends with the program's status.
pub(crate) fn run(args: &Run) -> Outcome {
    let program = program::find(&args.recording.command)?;
    let place = Place::new(args.output.as_deref(), &program.default_trace());
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
        remove: place.temporary,
        status: Some(record::status(ending)),
    };
    Err(after::become_it(&rest, console))
}

/// Where the trace goes.
pub(crate) struct Place {
    /// An absolute path: the program may change the working directory.
    pub(crate) trace: PathBuf,
    /// The trace has a directory of its own, and both go away in the end.
    pub(crate) temporary: bool,
}

impl Place {
    /// The given one, or a temporary one.
    pub(crate) fn new(output: Option<&Path>, name: &Path) -> anyhow::Result<Place> {
        if let Some(path) = output {
            return Ok(Place { trace: std::path::absolute(path)?, temporary: false });
        }
        let directory = tempfile::Builder::new().prefix("refrain-").tempdir();
        let directory = directory.context("cannot create a temporary directory")?;
        // Not removed by this process, which is to be replaced.
        Ok(Place { trace: directory.keep().join(name), temporary: true })
    }

    /// Removes what is temporary; the system tidies up what cannot be removed.
    pub(crate) fn discard(&self) {
        if self.temporary {
            let _ = std::fs::remove_file(&self.trace);
            let _ = self.trace.parent().map(std::fs::remove_dir);
        }
    }
}

/// Sends what the program prints to standard error if standard output is to carry JSON.
pub(crate) fn divert_output(ranking: &Ranking) -> anyhow::Result<()> {
    if ranking.json {
        rustix::stdio::dup2_stdout(std::io::stderr()).context("cannot divert the output")?;
    }
    Ok(())
}
