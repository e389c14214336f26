//! Traces that refer to files, with what they refer to.

use super::{advise, read};
use crate::error::Context;
use refrain_trace::container::{refers_to_files, write_packed};
use refrain_trace::{MappedFile, Trace};
use rustix::fs::{Mode, OFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Copies that are kept at a time: a command compares a few traces in turns, and each copy takes the room of
/// its trace and of the files' pages.
const KEPT: usize = 4;

/// Packed copies of the traces that a session has replayed and that refer to files. A command may replay a trace
/// many times; it is packed once. The copies are files without names, and go away with the session.
#[derive(Debug, Default)]
pub(crate) struct PackedCopies(Mutex<VecDeque<(Version, File)>>);

/// What a file was when it was read: device, inode, length, and when it was last changed.
type Version = [u64; 5];

impl PackedCopies {
    /// Opens the trace at `path` for a replay process: the trace itself, or, if it refers to files, a copy that
    /// has what it refers to.
    pub(crate) fn open(&self, path: &Path) -> crate::Result<File> {
        let file = super::plain(path)?;
        // If a trace cannot be read, the replay process says why.
        let refers = file.try_clone().is_ok_and(|file| refers_to_files(file).unwrap_or(false));
        if !refers {
            return Ok(file);
        }
        let version = version(&file).with_context(|| format!("cannot open {}", path.display()))?;
        let mut copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = match copies.iter().find(|(known, _)| *known == version) {
            Some((_, copy)) => reopened(copy),
            None => {
                let copy = packed_copy(path)?;
                copies.truncate(KEPT - 1);
                copies.push_front((version, copy));
                reopened(&copies[0].1)
            }
        };
        copy.context("cannot open the packed copy of the trace")
    }
}

fn version(file: &File) -> io::Result<Version> {
    let it = file.metadata()?;
    Ok([it.dev(), it.ino(), it.size(), it.ctime() as u64, it.ctime_nsec() as u64])
}

/// Packs the trace at `path` into a file without a name, in the trace's directory if that can be written.
fn packed_copy(path: &Path) -> crate::Result<File> {
    let trace = read(path)?;
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
    let beside = tempfile::tempfile_in(directory.unwrap_or(Path::new(".")));
    let copy = beside.or_else(|_| tempfile::tempfile());
    pack(path, &trace, copy.context("cannot create a temporary file")?)
}

/// Opens a file that has no name once more, only to be read: no replay process gets to change what the next one
/// reads.
fn reopened(file: &File) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Writes the trace at `path` with what it refers to.
pub(crate) fn pack(path: &Path, trace: &Trace, out: File) -> crate::Result<File> {
    write_packed(trace, open_referenced, out).map_err(|error| advise(path, error))
}

/// Opens a file that a trace refers to. What else has its name now, a device for one, is not touched.
fn open_referenced(file: &MappedFile) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match std::fs::metadata(&file.path)?.is_file() {
        true => Ok(rustix::fs::open(&file.path, flags, Mode::empty())?.into()),
        false => Err(io::Error::other("it is no file any more")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_trace::container::{PAGE, PageRun, Writer};
    use refrain_trace::{BlobId, Ending, Footer, Header};
    use std::io::Write;

    /// A trace of a file with one page, which the trace has or refers to.
    fn trace(path: &Path, file: &Path, refers: bool) {
        let mut writer = Writer::new(Vec::new(), &Header::default()).expect("is in memory");
        let path_of_file = file.to_str().expect("is UTF-8").to_owned();
        let mapped = MappedFile { path: path_of_file, len: PAGE as u64, modified_ns: 0 };
        writer.file(BlobId(0), &mapped).expect("is in memory");
        let runs = [PageRun { first: 0, count: 1 }];
        let written = match refers {
            true => writer.references(BlobId(0), &runs, |_, page| page.fill(7)),
            false => writer.pages(BlobId(0), &runs, &[7; PAGE]),
        };
        written.expect("is in memory");
        let ending = Ending::Exited(0);
        let footer = Footer { ending, tsc_end: 0, events: Vec::new(), cpu_ns: 0, output_bytes: 0 };
        let bytes = writer.finish(&footer).expect("is in memory");
        std::fs::write(path, bytes).expect("there is room");
    }

    #[test]
    fn a_trace_is_packed_once() {
        let directory = tempfile::tempdir().expect("there is room");
        let [path, file] = ["a.refrain", "data"].map(|name| directory.path().join(name));
        std::fs::write(&file, [7; PAGE]).expect("there is room");
        let copies = PackedCopies::default();
        let opened = || copies.open(&path).expect("can be read");
        let inode = |file: &File| file.metadata().expect("is open").ino();

        trace(&path, &file, true);
        let (first, second) = (opened(), opened());
        assert!(!refers_to_files(first.try_clone().expect("is open")).expect("is a trace"));
        assert_eq!(inode(&first), inode(&second));
        assert!((&second).write(&[0]).is_err(), "a replay cannot change the copy");

        // Another trace of that name.
        std::fs::remove_file(&path).expect("is ours");
        trace(&path, &file, true);
        assert_ne!(inode(&opened()), inode(&first));

        trace(&path, &file, false);
        assert_eq!(inode(&opened()), std::fs::metadata(&path).expect("is there").ino());
    }
}
