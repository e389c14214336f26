//! A trace that is being recorded: created without a name, named when it can be read.
//!
//! No recording takes a name from another. A file becomes visible in one step (`link`, or a
//! `rename` that replaces nothing), and only when its header and the initial memory are in it: a
//! recorder that is killed earlier leaves nothing. Until the recording ends the file is locked; a
//! name whose file is locked is somebody's who is recording, and the newcomer takes the next one.
//! What else is there under the name is moved to a free `FILE.old`, `FILE.old.2`, …

use super::is_trace;
use crate::error::{Context, bail};
use refrain_vm::Hidden;
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, linkat, open, renameat_with,
};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempPath;

/// Names that are tried for a trace, and for what is kept of an older one.
const NAMES: u32 = 100_000;
/// How long others may take to name their traces: so many looks, so far apart.
const LOOKS: u32 = 200;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// A file without its name, locked.
#[derive(Debug)]
pub struct NewTrace {
    file: File,
    /// The name that was asked for.
    wanted: PathBuf,
    force: bool,
    place: Naming,
}

#[derive(Debug)]
enum Naming {
    /// It has no name at all, and is gone when nobody has it open.
    Nameless,
    /// Where the file system wants one: a temporary name.
    Temporary(TempPath),
    /// A device or a pipe, which keeps its own.
    Special,
}

/// A trace that has its name, locked until this is dropped.
#[derive(Debug)]
pub struct Named {
    /// The name that it got.
    pub path: PathBuf,
    /// Where the trace is now that had the name before.
    pub old: Option<PathBuf>,
    lock: File,
}

impl Drop for Named {
    /// Unlocks the file for good: child processes of the program may have it open still.
    fn drop(&mut self) {
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

/// What stands in the way of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InTheWay {
    Nothing,
    /// A trace, whole or not, to be kept under another name.
    Trace,
    /// What may be overwritten: an empty file, or anything, by force.
    Replaceable,
    /// Somebody is recording to it.
    Recording,
}

impl NewTrace {
    /// Creates the file. `force` overwrites anything but what others are recording.
    pub fn create(wanted: &Path, force: bool) -> crate::Result<NewTrace> {
        let shown = wanted.display();
        let cannot = || format!("cannot write the trace to {shown} (-o chooses another place)");
        if std::fs::metadata(wanted).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
            let file = File::options().write(true).open(wanted).with_context(cannot)?;
            return Ok(NewTrace { file, wanted: wanted.into(), force, place: Naming::Special });
        }
        // Said now rather than when the program has been loaded.
        in_the_way(wanted, force)?;
        let (file, place) = unnamed(wanted).with_context(cannot)?;
        let file = out_of_reach(file);
        // A file system without locks cannot tell that others are recording; names stay exclusive.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(NewTrace { file, wanted: wanted.into(), force, place })
    }

    /// The file to write to.
    pub fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Gives the file the name that was asked for, or the next one that nobody is recording to.
    pub fn publish(self) -> crate::Result<Named> {
        let NewTrace { file, wanted, force, mut place } = self;
        if matches!(place, Naming::Special) {
            return Ok(Named { path: wanted, old: None, lock: file });
        }
        let mut old = None;
        let directory = Directory::lock(&wanted);
        for number in 1..NAMES {
            let name = numbered(&wanted, number);
            let way = in_the_way(&name, force && number == 1)?;
            match way {
                InTheWay::Nothing => {}
                InTheWay::Trace if number == 1 => old = Some(keep_old(&name)?),
                InTheWay::Replaceable if number == 1 && directory.is_locked() => {
                    let cannot = || format!("cannot replace {}", name.display());
                    std::fs::remove_file(&name).with_context(cannot)?;
                }
                _ => continue,
            }
            place = match place.link(&named_file(&file), &name) {
                Ok(()) => return Ok(Named { path: name, old, lock: file }),
                Err((error, place)) if error.kind() == io::ErrorKind::AlreadyExists => place,
                Err((error, _)) => {
                    let shown = name.display();
                    return Err(error).with_context(|| format!("cannot name the trace {shown}"));
                }
            };
        }
        bail!(Refused, "every name like {} is taken", wanted.display())
    }
}

impl Naming {
    /// Gives the file this name, if it is free; `AlreadyExists` if not.
    fn link(self, open: &Path, name: &Path) -> Result<(), (io::Error, Naming)> {
        match self {
            Naming::Temporary(path) => path
                .persist_noclobber(name)
                .map_err(|refused| (refused.error, Naming::Temporary(refused.path))),
            other => linkat(CWD, open, CWD, name, AtFlags::SYMLINK_FOLLOW)
                .map_err(|error| (error.into(), other)),
        }
    }
}

/// The name by which a file without one can be linked.
fn named_file(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// A file in the directory of `wanted` that nobody sees, or that nobody takes for a trace.
fn unnamed(wanted: &Path) -> io::Result<(File, Naming)> {
    let directory = directory_of(wanted);
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    if let Ok(fd) = open(directory, flags, Mode::from_raw_mode(0o666)) {
        let file = File::from(fd);
        if named_file(&file).symlink_metadata().is_ok() {
            return Ok((file, Naming::Nameless));
        }
    }
    let mut prefix = OsString::from(".");
    prefix.push(wanted.file_name().unwrap_or_default());
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    let temporary = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".recording")
        .permissions(all)
        .tempfile_in(directory)?;
    let (file, path) = temporary.into_parts();
    Ok((file, Naming::Temporary(path)))
}

/// The program expects the lowest free numbers, and may close everything that it finds.
fn out_of_reach(file: File) -> File {
    Hidden::copy(&file).map_or(file, |copy| copy.unshared().into_file())
}

fn directory_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Held while a trace gets its name: what is in the way of one stays what it is.
struct Directory(Option<File>);

impl Directory {
    /// Waits for others, but not for ever. Without the lock nothing is lost; a name may be left
    /// out.
    fn lock(wanted: &Path) -> Directory {
        let Ok(directory) = File::open(directory_of(wanted)) else { return Directory(None) };
        for _ in 0..LOOKS {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Directory(Some(directory)),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(BETWEEN_LOOKS),
                Err(_) => break,
            }
        }
        Directory(None)
    }

    fn is_locked(&self) -> bool {
        self.0.is_some()
    }
}

fn in_the_way(path: &Path, force: bool) -> crate::Result<InTheWay> {
    let shown = path.display();
    let Ok(there) = path.symlink_metadata() else { return Ok(InTheWay::Nothing) };
    if there.is_dir() {
        bail!(Refused, "cannot write the trace to {shown}: it is a directory");
    }
    if is_being_recorded(path) {
        return Ok(InTheWay::Recording);
    }
    if force || there.is_file() && there.len() == 0 {
        return Ok(InTheWay::Replaceable);
    }
    if !is_trace(path) {
        bail!(Refused, "{shown} exists and is not a trace; choose another name or use --force");
    }
    Ok(InTheWay::Trace)
}

/// Whether somebody is recording to the file.
pub fn is_being_recorded(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}

/// `a.refrain`, `a.2.refrain`, `a.3.refrain`, …
fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 1 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Renames FILE to the first free one of FILE.old, FILE.old.2, …; says which.
fn keep_old(path: &Path) -> crate::Result<PathBuf> {
    let cannot = || format!("cannot keep {} under another name", path.display());
    for number in 1..NAMES {
        let mut old = OsString::from(path);
        old.push(".old");
        if number > 1 {
            old.push(format!(".{number}"));
        }
        let old = PathBuf::from(old);
        match rename_to_free(path, &old) {
            Ok(()) => return Ok(old),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(cannot),
        }
    }
    bail!(Refused, "{}: every name is taken", cannot())
}

/// `AlreadyExists` if the name is taken.
fn rename_to_free(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system cannot do that in one step.
        Err(Errno::INVAL | Errno::NOSYS) => match to.symlink_metadata() {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => std::fs::rename(from, to),
            Err(error) => Err(error),
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        },
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(path: &Path, force: bool) -> crate::Result<Named> {
        NewTrace::create(path, force)?.publish()
    }

    #[test]
    fn another_file_is_never_overwritten_by_mistake() {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let path = directory.path().join("notes.txt");
        std::fs::write(&path, "precious").expect("can be written");
        let error = create(&path, false).expect_err("is refused");
        assert!(error.to_string().contains("--force"), "{error}");
        assert_eq!(std::fs::read(&path).expect("is still there"), b"precious");
        drop(create(&path, true).expect("is forced"));
        assert_eq!(std::fs::read(&path).expect("is empty now"), b"");
        drop(create(&path, false).expect("an empty file is nobody's work"));
    }

    #[test]
    fn an_unwritable_place_is_named() {
        let error = create(Path::new("/proc/no/such.refrain"), false).expect_err("is refused");
        assert!(error.to_string().contains("/proc/no/such.refrain"), "{error}");
    }

    #[test]
    fn a_file_without_its_name_is_nowhere() {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let path = directory.path().join("a.refrain");
        let new = NewTrace::create(&path, false).expect("can be created");
        assert!(!path.exists());
        drop(new);
        let left = std::fs::read_dir(directory.path()).expect("can be read").count();
        assert_eq!(left, 0);
    }

    #[test]
    fn nobody_takes_the_name_of_a_recording() {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let path = directory.path().join("a.refrain");
        let first = create(&path, false).expect("can be created");
        let second = create(&path, true).expect("has another name");
        assert_eq!((&first.path, second.path.file_name()), (&path, Some("a.2.refrain".as_ref())));
        let third = create(&path, false).expect("has another name");
        assert_eq!(third.path.file_name(), Some("a.3.refrain".as_ref()));
    }

    #[test]
    fn every_older_trace_is_kept() {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let path = directory.path().join("a.refrain");
        for text in ["one", "two", "three"] {
            let version = refrain_trace::container::FORMAT_VERSION.to_le_bytes();
            let whole = [b"\x89refrain", &version[..], text.as_bytes()].concat();
            std::fs::write(&path, whole).expect("can be written");
            drop(create(&path, false).expect("the older one is moved"));
        }
        for (name, text) in [(".old", "one"), (".old.2", "two"), (".old.3", "three")] {
            let old = std::fs::read(format!("{}{name}", path.display())).expect("is kept");
            assert!(old.ends_with(text.as_bytes()), "{name}");
        }
    }

    #[test]
    fn where_nameless_files_are_unknown_a_temporary_name_does() {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let path = directory.path().join("a.refrain");
        let (file, place) = {
            let temporary =
                tempfile::NamedTempFile::new_in(directory.path()).expect("there is room");
            let (file, path) = temporary.into_parts();
            (file, Naming::Temporary(path))
        };
        std::fs::write(&path, "taken").expect("can be written");
        let (error, place) = place.link(&named_file(&file), &path).expect_err("the name is taken");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let free = directory.path().join("b.refrain");
        place.link(&named_file(&file), &free).expect("the name is free");
        let left = std::fs::read_dir(directory.path()).expect("can be read").count();
        assert_eq!(left, 2);
    }
}
