//! What recordings have found out about code, for later recordings of the same program: which accesses
//! of a function are watched is a function of code, and takes longer to find than the function to run.
//!
//! Each program has a file in the user's cache folder. What is odd in it is as if it were not there:
//! then all is found out again. A file is replaced at once or not at all, and the oldest ones are
//! removed.

use crate::cache;
use refrain_vm::Finding;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Programs whose findings are kept.
const PROGRAMS: usize = 64;
/// Bytes of a checksum.
const CHECK: usize = 4;

/// Where the findings of a program are. Determined before the program runs, which may go to another
/// directory, and even to another root.
#[derive(Clone)]
pub(crate) struct Place {
    program: PathBuf,
    directory: Option<PathBuf>,
    root: Option<(u64, u64)>,
}

impl Place {
    pub(crate) fn of(program: &Path) -> Place {
        let program = std::path::absolute(program).unwrap_or_else(|_| program.to_owned());
        let directory = cache::directory().map(|cache| cache.join("found"));
        Place { program, directory, root: root() }
    }

    /// What recordings of the program have found.
    pub(crate) fn recall(&self) -> Vec<Finding> {
        let read = || decode(&std::fs::read(file(self.directory()?, &self.program)).ok()?);
        read().unwrap_or_default()
    }

    /// Keeps what recordings of the program have found. Where that cannot be kept, it is found out again.
    pub(crate) fn keep(&self, findings: &[Finding]) {
        if let Some(directory) = self.directory() {
            let _ = keep_in(directory, &self.program, findings);
        }
    }

    /// The directory, if its path still means what it did.
    fn directory(&self) -> Option<&Path> {
        self.directory.as_deref().filter(|_| self.root.is_some() && self.root == root())
    }
}

fn root() -> Option<(u64, u64)> {
    let root = std::fs::metadata("/").ok()?;
    Some((root.dev(), root.ino()))
}

fn keep_in(directory: &Path, program: &Path, findings: &[Finding]) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    cache::replace(&file(directory, program), &encode(findings))?;
    remove_oldest(directory)
}

/// Two programs may have one file: then neither recalls what the other has found.
fn file(directory: &Path, program: &Path) -> PathBuf {
    let check = crc32fast::hash(program.as_os_str().as_bytes());
    let mut name: OsString = program.file_name().unwrap_or_default().to_owned();
    name.push(format!("-{check:08x}"));
    directory.join(name)
}

fn encode(findings: &[Finding]) -> Vec<u8> {
    let mut bytes = postcard::to_stdvec(findings).expect("findings have no maps of unknown length");
    let check = crc32fast::hash(&bytes);
    bytes.extend(check.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Vec<Finding>> {
    let (bytes, check) = bytes.split_at_checked(bytes.len().checked_sub(CHECK)?)?;
    if crc32fast::hash(bytes).to_le_bytes() != check {
        return None;
    }
    let (findings, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(findings)
}

fn remove_oldest(directory: &Path) -> std::io::Result<()> {
    let entries = std::fs::read_dir(directory)?.flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    let surplus = files.len().saturating_sub(PROGRAMS);
    files.iter().take(surplus).try_for_each(|(_, file)| std::fs::remove_file(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Vec<Finding> {
        let finding = |start| Finding {
            around: 1,
            start,
            code: 3,
            len: 7,
            polls: [4].into(),
            sites: [5, 6].into(),
            checks: [6].into(),
        };
        vec![finding(2), finding(3)]
    }

    #[test]
    fn what_is_odd_is_not_there() {
        let bytes = encode(&findings());
        assert_eq!(decode(&bytes), Some(findings()));
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None, "the first {len} bytes");
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(decode(&other), None, "with byte {at} changed");
        }
    }

    #[test]
    fn old_files_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let program = |number: usize| PathBuf::from(format!("/bin/{number}"));
        for number in 0..PROGRAMS + 3 {
            keep_in(directory.path(), &program(number), &findings()).unwrap();
        }
        let files = std::fs::read_dir(directory.path()).unwrap();
        assert_eq!(files.count(), PROGRAMS);
        let bytes = std::fs::read(file(directory.path(), &program(PROGRAMS + 2))).unwrap();
        assert_eq!(decode(&bytes), Some(findings()));
    }
}
