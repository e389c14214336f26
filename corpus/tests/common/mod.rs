//! What the test drivers share.

use std::path::{Path, PathBuf};

/// Where this crate's tests build programs.
pub(crate) fn scratch() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("corpus");
    std::fs::create_dir_all(&path).expect("cargo's directory is writable");
    path
}
