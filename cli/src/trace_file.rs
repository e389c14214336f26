//! Trace files on disk: opening one to read, and creating one without losing another.

use anyhow::{Context, bail};
use refrain_trace::{Error, Trace};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Opens a trace for the replay child.
pub(crate) fn open(path: &Path) -> anyhow::Result<File> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    let metadata = file.metadata().with_context(|| format!("cannot open {shown}"))?;
    if !metadata.is_file() {
        bail!("cannot open {shown}: a trace must be a file");
    }
    Ok(file)
}

/// Opens a trace to read it here, and says what to do if it cannot be read.
pub(crate) fn read(path: &Path) -> anyhow::Result<Trace> {
    drop(open(path)?);
    Trace::open(path).map_err(|error| advise(path, error))
}

/// Names the file and what to do about it.
pub(crate) fn advise(path: &Path, error: Error) -> anyhow::Error {
    let shown = path.display();
    let advice = match &error {
        Error::Corrupt(..) => format!("; try: refrain check --repair {shown}"),
        Error::Version { .. } => "; use the refrain that made it, or record again".to_owned(),
        Error::Empty | Error::CutOff => "; record again".to_owned(),
        _ => String::new(),
    };
    anyhow::anyhow!("{shown}: {error}{advice}")
}

/// Creates the file that a trace is written to. As with `perf
/// record`, what is there already becomes FILE.old; unlike there, only if it is a trace, so that
/// a mistyped `-o` destroys nothing. `force` overwrites anything.
pub(crate) fn create(path: &Path, force: bool) -> anyhow::Result<File> {
    let shown = path.display();
    let there = std::fs::metadata(path).ok().filter(|there| there.is_file() && there.len() > 0);
    if there.is_some() && !force {
        if matches!(Trace::open(path), Err(Error::NotATrace | Error::Io { .. })) {
            bail!("{shown} exists and is not a trace; choose another name or use --force");
        }
        keep_old(path)?;
    }
    File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .with_context(|| format!("cannot write the trace to {shown} (-o chooses another place)"))
}

/// Renames FILE to FILE.old, replacing an older one.
fn keep_old(path: &Path) -> anyhow::Result<()> {
    let old = old_name(path);
    std::fs::rename(path, &old)
        .with_context(|| format!("cannot keep {} as {}", path.display(), old.display()))
}

/// `FILE.old`.
pub(crate) fn old_name(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".old");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_is_never_overwritten_by_mistake() {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let path = directory.path().join("notes.txt");
        std::fs::write(&path, "precious").expect("can be written");
        let error = create(&path, false).expect_err("is refused");
        assert!(error.to_string().contains("--force"), "{error}");
        assert_eq!(std::fs::read(&path).expect("is still there"), b"precious");
        create(&path, true).expect("is forced");
        assert_eq!(std::fs::read(&path).expect("is empty now"), b"");
        create(&path, false).expect("an empty file is nobody's work");
    }

    #[test]
    fn an_unwritable_place_is_named() {
        let error = create(Path::new("/proc/no/such.refrain"), false).expect_err("is refused");
        assert!(error.to_string().contains("/proc/no/such.refrain"), "{error}");
    }
}
