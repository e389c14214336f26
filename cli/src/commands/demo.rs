//! `refrain demo`: records, replays and ranks the workload that is built into the command.

use super::{locks, record, replay};
use crate::args::{Demo, Order, Recording};
use crate::failure::Outcome;
use crate::machine::ReplayOptions;
use crate::output;
use crate::program;
use crate::report::replay::render;
use anyhow::Context;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Runs all three steps and shows what each found.
pub(crate) fn run(args: &Demo) -> Outcome {
    let temporary = tempfile::tempdir().context("cannot create a temporary directory")?;
    let path = args.output.clone().unwrap_or_else(|| temporary.path().join("demo.refrain"));
    let program = program::find(&[place_program(temporary.path())?.into_os_string()])?;
    let recording =
        Recording { force: false, quiet: false, order: Order::Sync, command: Vec::new() };
    record::record(program, &path, &recording)?;

    let options = ReplayOptions { engine: args.engine, echo: false, count: false };
    let report = replay::replay(&path, options, true)?;
    if !args.ranking.json {
        output::print(&(render(&report, None) + "\n"))?;
    }
    if report.divergence.is_some() {
        return Ok(1);
    }
    locks::print(&locks::rank(&path, args.engine, args.ranking.top)?, &args.ranking)?;
    Ok(0)
}

/// Writes the program where it can be run from and where a kept trace finds its symbols again:
/// the user's cache, or else the temporary directory.
fn place_program(temporary: &Path) -> anyhow::Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .filter(|cache| cache.is_absolute());
    if let Some(path) = cache.and_then(|cache| write_program(&cache.join("refrain")).ok()) {
        return Ok(path);
    }
    write_program(temporary).context("cannot write the demo's program")
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
