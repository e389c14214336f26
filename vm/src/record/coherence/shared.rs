//! Which files the guest has mapped, and where.

use crate::file_maps::{FileMaps, Part};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What tells files apart: device and inode. Of a segment of System V, no device and its id.
pub(super) type Identity = (u64, u64);

/// The guest's shared mappings, and the numbers of their files.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) maps: FileMaps,
    pub(super) files: BTreeMap<Identity, u64>,
    /// The numbers of all files, whatever mappings they have.
    numbers: BTreeMap<Identity, u64>,
    /// Those of the files that are kept by pages, since the guest had no way to change them so far.
    pub(super) by_pages: BTreeSet<Identity>,
    /// Private mappings, which show what is changed in a page until the guest stores there.
    pub(super) private: Private,
}

/// The guest's private mappings of files.
#[derive(Default)]
pub(crate) struct Private {
    maps: FileMaps,
    files: BTreeMap<Identity, u64>,
}

impl Private {
    pub(super) fn has(&self, identity: Identity) -> bool {
        self.files.contains_key(&identity)
    }
}

impl Shared {
    /// The number of a file that is about to be mapped shared.
    pub(crate) fn number(&mut self, identity: Identity) -> u64 {
        let number = self.number_of(identity);
        self.files.insert(identity, number);
        number
    }

    fn number_of(&mut self, identity: Identity) -> u64 {
        let next = self.numbers.len() as u64 + 1;
        *self.numbers.entry(identity).or_insert(next)
    }

    /// A file is mapped privately; its number.
    pub(super) fn insert_private(
        &mut self,
        identity: Identity,
        range: Range<u64>,
        offset: u64,
    ) -> u64 {
        let file = self.number_of(identity);
        let Range { start, end } = range;
        self.private.files.insert(identity, file);
        self.private.maps.insert(Part { start, end, file, offset, writable: false });
        file
    }

    /// Something else is mapped there, or nothing.
    pub(super) fn cut(&mut self, range: &Range<u64>) {
        self.maps.cut(range);
        self.private.maps.cut(range);
    }

    /// What was mapped there has moved, or changed its length.
    pub(super) fn remap(&mut self, old: Range<u64>, new: Range<u64>, kept: bool) {
        self.maps.remap(old.clone(), new.clone(), kept);
        self.private.maps.remap(old, new, kept);
    }

    pub(super) fn is_mapped(&self, identity: Identity) -> bool {
        self.files.contains_key(&identity) || self.private.has(identity)
    }

    /// Whether a range shows a file.
    pub(super) fn shows_file(&self, range: &Range<u64>) -> bool {
        [&self.maps, &self.private.maps].iter().any(|maps| !maps.parts(range).is_empty())
    }

    /// Forgets all mappings, since the guest executes another program.
    pub(crate) fn begin_program(&mut self) {
        self.maps = FileMaps::default();
        self.private = Private::default();
    }

    /// The addresses that show a range of a file, in whatever mappings.
    pub(super) fn showing(&self, identity: Identity, range: &Range<u64>) -> Vec<Range<u64>> {
        let numbers = [&self.files, &self.private.files].map(|files| files.get(&identity));
        let tables = [&self.maps, &self.private.maps].into_iter().zip(numbers);
        tables
            .flat_map(|(maps, file)| file.map_or(Vec::new(), |&f| maps.showing(f, range)))
            .collect()
    }

    /// Where a file is shown by shared mappings.
    pub(super) fn shown(&self, identity: Identity) -> Vec<Range<u64>> {
        let file = self.files.get(&identity);
        file.map_or(Vec::new(), |&file| self.maps.showing(file, &(0..u64::MAX)))
    }
}
