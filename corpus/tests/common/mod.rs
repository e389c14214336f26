//! What the test drivers share.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Where this crate's tests build programs.
pub(crate) fn scratch() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("corpus");
    std::fs::create_dir_all(&path).expect("cargo's directory is writable");
    path
}

pub(crate) fn run(exe: &Path, args: &[&str]) -> Output {
    Command::new(exe).args(args).output().unwrap_or_else(|e| panic!("{}: {e}", exe.display()))
}
