//! Which files the guest has mapped shared, and where.

use crate::file_maps::FileMaps;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What tells files apart: device and inode. Of a segment of System V, no device and its id.
pub(super) type Identity = (u64, u64);

/// The guest's shared mappings, and the numbers of their files.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) maps: FileMaps,
    pub(super) files: BTreeMap<Identity, u64>,
    /// Those of the files that are kept by pages, since the guest had no way to change them so far.
    pub(super) by_pages: BTreeSet<Identity>,
}

impl Shared {
    /// The number of a file that is about to be mapped.
    pub(crate) fn number(&mut self, identity: Identity) -> u64 {
        let next = self.files.len() as u64 + 1;
        *self.files.entry(identity).or_insert(next)
    }

    /// Where a file is shown.
    pub(super) fn shown(&self, identity: Identity) -> Vec<Range<u64>> {
        let file = self.files.get(&identity);
        file.map_or(Vec::new(), |&file| self.maps.showing(file, &(0..u64::MAX)))
    }
}
