//! Transforming a trace into one without its unnecessary lock contention.

use crate::error::{Context, bail};
use crate::machine::{Transformation, Worth};
use crate::protocol::Request;
use crate::session::Session;
use crate::trace_file::{self, NewTrace, advise};
use refrain_trace::verify::{self, ViolationKind};
use refrain_trace::{Trace, Transformed, container};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A transformed trace.
#[derive(Debug)]
pub struct TransformedTrace {
    /// Where it is.
    pub path: PathBuf,
    /// Where the trace is now that had this name before.
    pub old: Option<PathBuf>,
    /// What replaces the freed locks.
    pub record: Transformed,
    /// What the transformation is worth.
    pub worth: Worth,
}

impl Session {
    /// Writes the trace at `path` without its unnecessary lock contention to `output`. A trace that is
    /// there already is kept under another name, unless by `force`.
    pub fn transform(
        &self,
        path: &Path,
        (output, force): (&Path, bool),
    ) -> crate::Result<TransformedTrace> {
        let trace = trace_file::read(path)?;
        let (record, worth) = self.transformation((path, &trace))?;
        let (path, old) = write((path, &trace), &record, (output, force))?;
        Ok(TransformedTrace { path, old, record, worth })
    }

    /// What transforming the trace at `path` would be worth.
    pub fn worth(&self, path: &Path) -> crate::Result<Worth> {
        Ok(self.transformation((path, &trace_file::read(path)?))?.1)
    }

    fn transformation(
        &self,
        (path, trace): (&Path, &Trace),
    ) -> crate::Result<(Transformed, Worth)> {
        let shown = path.display();
        if trace.is_transformed() {
            bail!(Refused, "{shown} is transformed already: transform the recording");
        }
        if trace.footer().is_none() {
            bail!(Refused, "{shown} was cut off; try: refrain check --repair {shown}");
        }
        let answer = self.ask(self.open(path)?, &Request::Transform);
        match answer.with_context(|| format!("cannot transform {shown}"))? {
            Transformation::Done(record, worth) => Ok((*record, worth)),
            Transformation::Diverged(divergence) => Err(self.left(path, &divergence)?),
        }
    }
}

/// Writes the transformed trace, which gets its name once it has been verified. An older trace of
/// that name is kept under another one, which is returned too.
fn write(
    (path, trace): (&Path, &Trace),
    record: &Transformed,
    (output, force): (&Path, bool),
) -> crate::Result<(PathBuf, Option<PathBuf>)> {
    let new = NewTrace::create(output, force)?;
    let cannot = || format!("cannot write {}", output.display());
    let file = new.file().with_context(cannot)?;
    container::write_transformed(trace, record, &file).map_err(|error| advise(path, error))?;
    file.sync_all().with_context(cannot)?;
    // A pipe cannot be read back.
    if file.metadata().is_ok_and(|it| it.is_file()) {
        verify(&file)?;
    }
    let named = new.publish()?;
    Ok((named.path.clone(), named.old.clone()))
}

fn verify(file: &File) -> crate::Result<()> {
    let written = Trace::open(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))?;
    let violations = verify::transformed(&written)?;
    // What is too large to judge may be right all the same.
    match violations.iter().find(|it| it.kind != ViolationKind::NotJudged) {
        None => Ok(()),
        Some(violation) => bail!(Bug, "the transformation is wrong at {violation}"),
    }
}
