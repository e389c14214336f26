//! `refrain demo`: records, replays and ranks the workload that is built into the command.

use super::destination::Destination;
use super::{after, run};
use crate::args::{AfterRecording, Demo};
use crate::failure::Outcome;
use crate::output::Console;
use anyhow::Context;
use refrain_session::{Recording, Session, cache};
use refrain_trace::Order;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Runs all three steps and shows what each found.
pub(crate) fn run(args: &Demo, session: &Session) -> Outcome {
    let program = place_program()?;
    let place = Destination::new(args.output.as_deref(), Path::new("demo.refrain"))?;
    let recording = Recording {
        program: Some(program),
        no_learn: true,
        order: Some(Order::Sync),
        ..Recording::of(["demo"], &place.trace)
    };
    let console = Console::keep();
    run::divert_output(&args.ranking)?;
    let (_, trace) = place.record(&recording, false, &console)?;
    let rest = AfterRecording {
        trace,
        ranking: args.ranking.clone(),
        replay: true,
        races: false,
        remove: place.temporary,
        status: None,
    };
    Err(after::become_it(&rest, session, console))
}

/// Writes the program where it can be run from and where the trace finds its symbols again: the
/// user's cache, or else the directory for temporary files.
fn place_program() -> anyhow::Result<PathBuf> {
    if let Some(path) = cache::directory().and_then(|cache| write_program(&cache).ok()) {
        return Ok(path);
    }
    let directory = tempfile::Builder::new().prefix("refrain-demo-").tempdir()?.keep();
    write_program(&directory).context("cannot write the demo's program")
}

/// Writes the program under a temporary name first: another `refrain demo` may be running it.
fn write_program(directory: &Path) -> anyhow::Result<PathBuf> {
    const PROGRAM: &[u8] = refrain_corpus::demo::ELF;
    let path = directory.join("demo");
    if std::fs::read(&path).is_ok_and(|there| there == PROGRAM) {
        return Ok(path);
    }
    std::fs::create_dir_all(directory)?;
    let file = tempfile::NamedTempFile::new_in(directory)?;
    std::fs::write(file.path(), PROGRAM)?;
    file.as_file().set_permissions(Permissions::from_mode(0o755))?;
    file.persist(&path)?;
    Ok(path)
}
