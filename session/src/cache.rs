//! The user's cache directory, where refrain keeps what it can make again.

use std::path::PathBuf;

/// Where refrain keeps things (XDG base directories); `None` for a user without a home.
pub fn directory() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.filter(|cache| cache.is_absolute()).map(|cache| cache.join("refrain"))
}
