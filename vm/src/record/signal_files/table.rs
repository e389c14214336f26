//! The descriptors that tell of signals, and their pipes.

use crate::{Hidden, pipes};
use std::io::Write;

/// A descriptor that tells of signals, and its copies: they have one pipe.
#[derive(Debug)]
pub(crate) struct SignalFile {
    /// The pipe's inode.
    pub(super) inode: u64,
    pub(super) writer: Hidden,
    /// The signals that it tells of.
    pub(super) set: u64,
    /// There are bytes in the pipe.
    pub(super) told: bool,
}

/// All of them.
#[derive(Default, Debug)]
pub(crate) struct SignalFiles(Vec<SignalFile>);

impl SignalFiles {
    fn find(&mut self, inode: u64) -> Option<&mut SignalFile> {
        self.0.iter_mut().find(|file| file.inode == inode)
    }

    /// Which signals a file tells of.
    pub(crate) fn set_of(&mut self, inode: u64) -> Option<u64> {
        self.find(inode).map(|file| file.set)
    }

    /// Has a file tell of other signals; false if there is no such file.
    pub(crate) fn change(&mut self, inode: u64, set: u64) -> bool {
        self.find(inode).map(|file| file.set = set).is_some()
    }

    pub(crate) fn add(&mut self, file: SignalFile) {
        self.0.retain(SignalFile::has_readers);
        self.0.push(file);
    }

    /// Signals are pending: whoever waits for one of them by a file goes on.
    pub(crate) fn tell(&mut self, signals: u64) {
        for file in self.0.iter_mut().filter(|file| file.set & signals != 0) {
            // If the pipe is full there is enough in it; if nobody has it open, nobody listens.
            let _ = file.writer.file().write(&[0]);
            file.told = true;
        }
    }

    /// Only these signals are pending any more.
    pub(crate) fn take_back(&mut self, pending: u64) {
        for file in self.0.iter_mut().filter(|file| file.told && file.set & pending == 0) {
            pipes::drain_from_behind(file.writer.file());
            file.told = false;
        }
    }

    /// A reader has emptied a file's pipe.
    pub(crate) fn emptied(&mut self, inode: u64) {
        if let Some(file) = self.find(inode) {
            file.told = false;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl SignalFile {
    fn has_readers(&self) -> bool {
        !pipes::is_deserted(self.writer.file())
    }
}
