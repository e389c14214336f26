//! The user's cache directory, where refrain keeps what it can make again.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Where refrain keeps things (XDG base directories); `None` for a user without a home.
pub fn directory() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.filter(|cache| cache.is_absolute()).map(|cache| cache.join("refrain"))
}

/// Replaces a file by these parts, at once or not at all: another command may be reading it. Its
/// directory is there.
pub(crate) fn replace(path: &Path, parts: &[impl AsRef<[u8]>]) -> std::io::Result<()> {
    let directory = path.parent().expect("the path has a file name");
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    for part in parts {
        file.write_all(part.as_ref())?;
    }
    file.persist(path)?;
    Ok(())
}
