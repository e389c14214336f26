//! The user's cache directory: what can be made again, and need not be each time.

use std::path::PathBuf;

/// Where refrain keeps things (XDG base directories); `None` for a user without a home.
pub fn directory() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.filter(|cache| cache.is_absolute()).map(|cache| cache.join("refrain"))
}
