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
    let path = place(args.output.as_deref(), &program.default_trace());
    let path = path.map_err(Failure::recording)?;
    let console = Console::keep();
    divert_output(&args.ranking).map_err(Failure::recording)?;
    let ending = record::record(program, &path, &args.recording, &console)?;
    let rest = AfterRecording {
        trace: path,
        engine: args.engine,
        ranking: args.ranking.clone(),
        replay: false,
        remove: args.output.is_none(),
        status: Some(record::status(ending)),
    };
    Err(after::become_it(&rest, console))
}

/// The trace's absolute path: the program may change the working directory.
pub(crate) fn place(output: Option<&Path>, name: &Path) -> anyhow::Result<PathBuf> {
    match output {
        Some(path) => Ok(std::path::absolute(path)?),
        None => {
            let directory = tempfile::Builder::new().prefix("refrain-").tempdir();
            let directory = directory.context("cannot create a temporary directory")?;
            Ok(directory.keep().join(name))
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
