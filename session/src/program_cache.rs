//! What recordings of a program keep for later ones of the same program: a file for each program in a
//! folder of the user's cache, which nobody else may write. A file is replaced at once or not at all, and the
//! oldest ones are removed.

use crate::cache;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bits of a file's mode.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// One kind of files.
#[derive(Clone, Copy)]
pub(crate) struct Folder {
    /// Its name in the cache.
    pub(crate) name: &'static str,
    /// Programs that there are files of.
    pub(crate) programs: usize,
    /// Bytes of all files.
    pub(crate) bytes: u64,
}

/// Where the file of a program is. Determined before the program runs, which may go to another
/// directory, and even to another root.
#[derive(Clone)]
pub(crate) struct Place {
    folder: Folder,
    directory: Option<PathBuf>,
    program: PathBuf,
    root: Option<(u64, u64)>,
}

impl Place {
    pub(crate) fn of(folder: Folder, program: &Path) -> Place {
        let program = std::path::absolute(program).unwrap_or_else(|_| program.to_owned());
        let directory = cache::directory().map(|cache| cache.join(folder.name));
        Place { folder, directory, program, root: root() }
    }

    /// What was kept last, if anything, by this user: what others may have written is not taken.
    pub(crate) fn open(&self) -> Option<File> {
        let file = File::open(file(self.directory()?, &self.program)).ok()?;
        let owned = |metadata: &Metadata, user: u32| {
            metadata.uid() == user && metadata.mode() & WRITABLE_BY_OTHERS == 0
        };
        let user = std::fs::metadata("/proc/self").ok()?.uid();
        let folder = std::fs::metadata(self.directory()?).ok()?;
        let is_own = owned(&file.metadata().ok()?, user) && owned(&folder, user);
        is_own.then_some(file)
    }

    /// The same, read.
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open()?.read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Keeps a file of these parts. Where that is not possible, they are made again.
    pub(crate) fn keep(&self, parts: &[impl AsRef<[u8]>]) {
        if let Some(directory) = self.directory() {
            let _ = keep_in(self.folder, directory, &self.program, parts);
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

fn keep_in(
    folder: Folder,
    directory: &Path,
    program: &Path,
    parts: &[impl AsRef<[u8]>],
) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    cache::replace(&file(directory, program), parts)?;
    remove_oldest(folder, directory)
}

/// Two programs may have one file: then neither gets what the other has kept.
fn file(directory: &Path, program: &Path) -> PathBuf {
    let check = crc32fast::hash(program.as_os_str().as_bytes());
    let mut name: OsString = program.file_name().unwrap_or_default().to_owned();
    name.push(format!("-{check:08x}"));
    directory.join(name)
}

fn remove_oldest(folder: Folder, directory: &Path) -> std::io::Result<()> {
    let entries = std::fs::read_dir(directory)?.flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            let metadata = entry.metadata().ok()?;
            Some((metadata.modified().ok()?, entry.path(), metadata.len()))
        })
        .collect();
    files.sort();
    let mut bytes = 0;
    let stays = files.iter().rev().take(folder.programs).take_while(|(.., len)| {
        bytes += len;
        bytes <= folder.bytes
    });
    let surplus = files.len() - stays.count();
    files.iter().take(surplus).try_for_each(|(_, file, _)| std::fs::remove_file(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    const FOLDER: Folder = Folder { name: "some", programs: 5, bytes: 100 };

    #[test]
    fn old_files_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let program = |number: usize| PathBuf::from(format!("/bin/{number}"));
        let keep = |number, bytes: &[u8]| {
            keep_in(FOLDER, directory.path(), &program(number), &[bytes]).unwrap();
            std::fs::read_dir(directory.path()).unwrap().count()
        };
        let counts: Vec<_> = (0..8).map(|number| keep(number, b"ten bytes!")).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5, 5, 5, 5]);
        assert_eq!(keep(8, &[0; 75]), 3, "with 20 more bytes of the two before");
        let bytes = std::fs::read(file(directory.path(), &program(7))).unwrap();
        assert_eq!(bytes, b"ten bytes!");
    }

    #[test]
    fn what_others_may_write_is_not_taken() {
        let directory = tempfile::tempdir().unwrap();
        let (path, program) = (directory.path().to_owned(), PathBuf::from("/bin/true"));
        let place = Place { folder: FOLDER, directory: Some(path), program, root: root() };
        assert_eq!(place.read(), None);
        place.keep(&[&b"in two "[..], b"parts"]);
        assert_eq!(place.read().as_deref(), Some(&b"in two parts"[..]));
        let file = file(directory.path(), &place.program);
        for (path, mode, taken) in [
            (&file, 0o664, false),
            (&file, 0o602, false),
            (&file, 0o644, true),
            (&directory.path().to_owned(), 0o770, false),
            (&directory.path().to_owned(), 0o755, true),
        ] {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(place.read().is_some(), taken, "{} with {mode:o}", path.display());
        }
    }
}
