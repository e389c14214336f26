//! What is kept, as bytes: numbers of 32 bits, in sections, with a checksum.
//!
//! What belongs to a unit lies side by side, and code is as it is executed: the jumps within a unit lead
//! to its blocks, and all others to their exits.

mod contents;
mod journal;

use super::desc::{Desc, Variant};
use super::rows::{WORD, row, rows};
use super::tables::Use;
use crate::memory::{FilePart, MappedFile};
pub(super) use contents::Contents;
use contents::{Index, Parts};
pub(super) use journal::{Journal, What};
use refrain_trace::fixed::FixedMap;
use refrain_vm::layout::PAGE;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// What a file begins with: changed with its form.
const MAGIC: [u32; 2] = [0x6672_6572, 2];
/// Sections of an image.
const SECTIONS: usize = 13;
/// Numbers before the sections: the magic, the key, where code memory is, four of each extent, how
/// long the sections are, and the checksums of the first two, of the others, and of all that.
const HEAD: usize = 2 + 2 + 2 + 2 * 4 + SECTIONS + 4;
/// The region of code that is not kept.
const NO_REGION: u32 = u32::MAX;
/// Guest code whose translations are brought back together.
const REGION: u32 = 64 << 10;

/// Which section is which. The first two are the code.
#[derive(Clone, Copy)]
enum Section {
    /// Four numbers each ([`Desc::row`]).
    Descriptors = 2,
    /// Five numbers each, and two ([`crate::copy::faults::FaultMap`]).
    Blocks,
    Marks,
    /// Which use, which variant.
    Tables,
    /// By unit, and one more: its region, and where its rows, links and needs begin.
    Units,
    /// Page and unit, ascending.
    Owners,
    /// Of a unit, by address: as in the journal, and where the code begins.
    Rows,
    /// Of a unit: as in the journal, and the block if it is the unit's, or 0.
    Links,
    /// Regions of the units that another one's code leads to in line.
    Needs,
    /// The guest's.
    Code,
    /// Where the translations that came into code memory together begin, and their region.
    Commits,
}

/// What a recording keeps, and what it was given.
pub(super) struct Persistent {
    pub(super) journal: Journal,
    /// What an earlier recording has kept.
    pub(super) image: Option<Image>,
    /// Tells engines apart that do not make the same of the same code.
    pub(super) key: u64,
    /// Where translations begin: behind what each engine has.
    pub(super) first: Extent,
    /// Where those end that may be kept, if that is certain.
    pub(super) end: Option<Extent>,
}

/// How far translated code reaches, and all that belongs to it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Extent {
    /// Where the next block comes.
    pub(super) hot: u64,
    /// The lowest chunk of rare exits, and where the next one comes in it.
    pub(super) chunk: u64,
    pub(super) cold: u64,
    pub(super) descriptors: usize,
    /// Blocks and marks of the map of faults.
    pub(super) faults: [usize; 2],
}

impl Extent {
    /// In numbers, without the faults.
    fn words(self) -> [u32; 4] {
        [self.hot as u32, self.chunk as u32, self.cold as u32, self.descriptors as u32]
    }

    fn of_words(words: &[u32]) -> Option<Extent> {
        let &[hot, chunk, cold, descriptors] = words else { return None };
        let [hot, chunk, cold] = [hot, chunk, cold].map(u64::from);
        Some(Extent { hot, chunk, cold, descriptors: descriptors as usize, faults: [0, 0] })
    }
}

/// One thing to make known.
pub(super) struct Row<'a> {
    pub(super) what: What,
    pub(super) pc: u64,
    pub(super) variant: Variant,
    pub(super) place: u64,
    /// The guest's code, of a block.
    pub(super) code: &'a [u8],
}

/// A jump that may lead to a block, as it does within a unit, and where else.
pub(super) struct LinkRow {
    pub(super) field: u64,
    pub(super) exit: u64,
}

/// Reads as much of a file as there is room for, if it can.
pub(super) type Reader<'a> = &'a dyn Fn(&mut [u8]) -> bool;

/// What an earlier recording has kept.
pub(super) struct Image {
    file: Arc<MappedFile>,
    sections: [Range<usize>; SECTIONS],
    end: Extent,
    /// Of each page: where its owners are.
    owners: FixedMap<u32, Range<usize>>,
    states: Vec<State>,
}

/// How it is with a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Nothing leads there so far.
    Kept,
    /// Its places are known.
    Known,
    /// It is no use: its code is not what it was, or its places have been forgotten.
    Gone,
}

impl Image {
    /// The image in a file, if it is sound, and made by an engine like this one. Its code is put where it
    /// belongs by `place`, which is given what to read it with.
    pub(super) fn read(
        file: &File,
        key: u64,
        memory: Range<u64>,
        first: Extent,
        place: impl FnOnce(Extent, [Reader; 2]) -> Option<[u32; 2]>,
    ) -> Option<Image> {
        let mut head = [0; HEAD * WORD];
        file.read_exact_at(&mut head, 0).ok()?;
        let (checked, head_check) = head.split_last_chunk()?;
        if check(checked).to_le_bytes() != *head_check {
            return None;
        }
        let head: Vec<u32> = rows::<1>(&head).map(|[word]| word).collect();
        let is_like_this = head[..2] == MAGIC
            && head[2..4] == [key as u32, (key >> 32) as u32]
            && head[4..6] == [memory.start as u32, memory.end as u32]
            && head[6..10] == first.words();
        let end = Extent::of_words(&head[10..14])?;
        let lengths: [u32; SECTIONS] = *head[14..].first_chunk()?;
        let lengths = lengths.map(|length| length as usize);
        let is_whole = lengths[0] as u64 == end.hot.checked_sub(first.hot)?
            && lengths[1] as u64 == memory.end.checked_sub(end.chunk)?
            && end.hot <= end.chunk
            && (end.chunk..=memory.end).contains(&end.cold);
        let mut at = HEAD * WORD;
        let sections = lengths.map(|length| {
            let start = at;
            at += length;
            start..at
        });
        let mapped = MappedFile::new(file).ok().filter(|_| is_like_this && is_whole)?;
        if mapped.bytes().len() != at {
            return None;
        }
        let [hot_at, cold_at, rest_at] =
            [0, 1, 2].map(|section: usize| sections[section].start as u64);
        let [.., hot_check, cold_check, rest_check, _] = head[..] else { return None };
        let hot = &|buffer: &mut [u8]| file.read_exact_at(buffer, hot_at).is_ok();
        let cold = &|buffer: &mut [u8]| file.read_exact_at(buffer, cold_at).is_ok();
        if place(end, [hot, cold]) != Some([hot_check, cold_check])
            || check(&mapped.bytes()[rest_at as usize..]) != rest_check
        {
            return None;
        }
        let file = Arc::new(mapped);
        let (owners, states) = (FixedMap::default(), Vec::new());
        let mut image = Image { file, sections, end, owners, states };
        let mut owners: FixedMap<u32, Range<usize>> = FixedMap::default();
        for (at, [page, _]) in rows::<2>(image.section(Section::Owners)).enumerate() {
            owners.entry(page).or_insert(at..at).end = at + 1;
        }
        image.owners = owners;
        let units = image.section(Section::Units).len() / UNIT;
        image.states = vec![State::Kept; units.saturating_sub(1)];
        Some(image)
    }

    fn section(&self, section: Section) -> &[u8] {
        &self.file.bytes()[self.sections[section as usize].clone()]
    }

    pub(super) fn end(&self) -> Extent {
        self.end
    }

    /// How many descriptors there are.
    pub(super) fn descriptors(&self) -> usize {
        rows::<4>(self.section(Section::Descriptors)).len()
    }

    pub(super) fn descriptor(&self, number: usize) -> Option<Desc> {
        row(self.section(Section::Descriptors), number).map(Desc::of_row)
    }

    /// The rows of the map of faults.
    pub(super) fn faults(&self) -> [FilePart; 2] {
        [Section::Blocks, Section::Marks].map(|section| FilePart {
            file: Arc::clone(&self.file),
            range: self.sections[section as usize].clone(),
        })
    }

    /// The tables that code refers to.
    pub(super) fn tables(&self) -> Vec<(Use, Variant)> {
        let tables = rows(self.section(Section::Tables)).filter_map(|[which, variant]| {
            let uses = [Use::Jump, Use::Return];
            Some((*uses.get(which as usize)?, *Variant::ALL.get(variant as usize)?))
        });
        tables.collect()
    }

    /// A unit that may be brought back, with something of the page of `pc`.
    pub(super) fn next_of(&self, pc: u64) -> Option<usize> {
        let page = u32::try_from(pc / PAGE).ok()?;
        let owners = self.owners.get(&page)?.clone();
        let owners = owners.start * 2 * WORD..owners.end * 2 * WORD;
        let owners = rows(self.section(Section::Owners).get(owners)?);
        let mut units = owners.map(|[_, unit]| unit as usize);
        units.find(|&unit| self.states.get(unit) == Some(&State::Kept))
    }

    /// A unit and all that it needs and that is not known, if all is there.
    pub(super) fn with_needs(&self, unit: usize) -> Option<Vec<usize>> {
        let mut all = vec![unit];
        let mut next = 0;
        while let Some(&unit) = all.get(next) {
            for [region] in self.part::<1>(Section::Needs, unit, 3) {
                let region_of = |unit: usize| self.unit(unit).map_or(NO_REGION, |unit| unit[0]);
                let needed = partition_point(self.states.len(), |unit| region_of(unit) < region);
                if region_of(needed) != region {
                    return None;
                }
                match self.states.get(needed)? {
                    State::Kept if !all.contains(&needed) => all.push(needed),
                    State::Kept | State::Known => {}
                    State::Gone => return None,
                }
            }
            next += 1;
        }
        Some(all)
    }

    pub(super) fn set_state(&mut self, unit: usize, state: State) {
        self.states[unit] = state;
    }

    /// No translation is known any more.
    pub(super) fn forget(&mut self) {
        let known = self.states.iter_mut().filter(|state| **state == State::Known);
        known.for_each(|state| *state = State::Gone);
    }

    /// What is to be made known of a unit, by address.
    pub(super) fn rows(&self, unit: usize) -> impl Iterator<Item = Row<'_>> {
        let code = self.section(Section::Code);
        self.part::<4>(Section::Rows, unit, 1).filter_map(move |[pc, place, rest, start]| {
            let whats = [What::Body, What::Jump, What::Return, What::Call];
            let start = start as usize;
            Some(Row {
                what: *whats.get((rest & 0xff) as usize)?,
                pc: pc.into(),
                variant: *Variant::ALL.get((rest >> 8 & 0xff) as usize)?,
                place: place.into(),
                code: code.get(start..start + (rest >> 16) as usize)?,
            })
        })
    }

    /// The jumps of a unit.
    pub(super) fn links(&self, unit: usize) -> impl Iterator<Item = LinkRow> {
        self.part::<4>(Section::Links, unit, 2)
            .map(|[field, exit, ..]| LinkRow { field: field.into(), exit: exit.into() })
    }

    fn unit(&self, unit: usize) -> Option<[u32; 4]> {
        row(self.section(Section::Units), unit)
    }

    /// A unit's part of a section; `which` of its numbers says where it begins.
    fn part<const N: usize>(
        &self,
        section: Section,
        unit: usize,
        which: usize,
    ) -> impl Iterator<Item = [u32; N]> {
        let bounds = self.unit(unit).zip(self.unit(unit + 1));
        let part = bounds.and_then(|(start, end)| {
            let [start, end] = [start, end].map(|unit| unit[which] as usize * N * WORD);
            self.section(section).get(start..end)
        });
        rows(part.unwrap_or_default())
    }

    /// Hands on all units.
    fn give(&self, index: &mut Index, parts: &mut Parts) {
        index.commits = rows(self.section(Section::Commits)).collect();
        for (unit, [region, ..]) in rows::<4>(self.section(Section::Units)).enumerate() {
            parts.rows.extend(self.part(Section::Rows, unit, 1).map(|row| (region, row)));
            parts.links.extend(self.part(Section::Links, unit, 2).map(|link| (region, link)));
            let needs = self.part::<1>(Section::Needs, unit, 3);
            parts.needs.extend(needs.map(|[needed]| (region, needed)));
        }
    }
}

/// Bytes of a unit.
const UNIT: usize = 4 * WORD;

/// How many of the first numbers have a property that no later one has.
fn partition_point(end: usize, has: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low + (high - low) / 2;
        if has(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// A checksum.
pub(super) fn check(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}
