//! What is kept, as bytes: numbers of 32 bits, in sections, with a checksum.
//!
//! The rows, links and needs of a unit each lie side by side. Translated code can be executed as it stands in
//! the file: a jump to a block of its own unit leads there, and every other one to its exit.

mod contents;
mod journal;

use super::desc::{Desc, Variant};
use super::emit::REACH;
use super::rows::{WORD, row, rows};
use super::tables::Use;
use crate::memory::{FilePart, MappedFile};
pub(super) use contents::Contents;
use contents::{Index, Parts};
pub(super) use journal::{Journal, What};
use journal::{LENGTH, VARIANT, code_of};
use refrain_trace::fixed::FixedMap;
use refrain_vm::layout::PAGE;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;

/// What a file begins with: changed with its form.
const MAGIC: [u32; 2] = [0x6672_6572, 3];
/// Sections of an image.
const SECTIONS: usize = 14;
/// Numbers before the sections: the magic, the key, where code memory is, four of each extent, how
/// long the sections are, and the checksums of the first two, of the others, and of all that.
const HEAD: usize = 2 + 2 + 2 + 2 * 4 + SECTIONS + 4;
/// The unit of code that is not kept.
const NO_UNIT: u32 = u32::MAX;
/// Guest code whose translations are brought back together.
const REGION: u32 = 64 << 10;
/// Regions that there may be.
const REGIONS: u32 = (REACH / REGION as u64) as u32;

/// The sections, in their order in the file. Before these come the two of translated code.
#[derive(Clone, Copy)]
enum Section {
    /// Four numbers each ([`Desc::row`]).
    Descriptors = 2,
    /// Five numbers each, and two ([`crate::copy::faults::FaultMap`]).
    Blocks,
    Marks,
    /// Which use, which variant.
    Tables,
    /// By unit, and one more: its number, and where its rows, links and needs begin.
    Units,
    /// Page and unit, ascending.
    Owners,
    /// Of a unit, by address: as in the journal, and where the code begins.
    Rows,
    /// Of a unit: as in the journal, and the block if it is the unit's, or 0.
    Links,
    /// Numbers of the units that another one's code leads to in line.
    Needs,
    /// The guest's, and what is watched in it.
    Code,
    /// Where the translations that came into code memory together begin, and their unit's number.
    Commits,
    /// Two numbers each.
    Phases,
}

/// The number of the unit of what is made for `pc` in a phase.
fn unit_of(pc: u32, phase: u32) -> u32 {
    phase * REGIONS + pc / REGION
}

/// The phase of a unit.
fn phase_of(unit: u32) -> u32 {
    unit / REGIONS
}

fn phase_words(phase: u64) -> [u32; 2] {
    [phase as u32, (phase >> 32) as u32]
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
    /// Descriptors that there were when the translation under way began.
    pub(super) begun: usize,
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
    /// Offsets of its accesses that are watched, two bytes each.
    pub(super) loads: &'a [u8],
}

/// A jump that may lead to a block, as it does within a unit, and where else.
pub(super) struct LinkRow {
    pub(super) field: u64,
    pub(super) exit: u64,
}

/// Reads as much of a file as there is room for, if it can.
pub(super) type Reader<'a> = &'a (dyn Fn(&mut [u8]) -> bool + Sync);

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
    /// Its places have been forgotten.
    Forgotten,
    /// It cannot be brought back: its code, or that of a unit that it needs, is not what it was. It is not
    /// kept any longer.
    Other,
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
        let checks = thread::scope(|scope| {
            let of_rest = scope.spawn(|| check(&mapped.bytes()[rest_at as usize..]));
            let of_code = place(end, [hot, cold])?;
            Some((of_code, of_rest.join().ok()?))
        });
        if checks != Some(([hot_check, cold_check], rest_check)) {
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

    /// All of them.
    pub(super) fn all_descriptors(&self) -> impl Iterator<Item = Desc> {
        rows(self.section(Section::Descriptors)).map(Desc::of_row)
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

    /// A unit that may be brought back in a phase, with something of the page of `pc`.
    pub(super) fn next_of(&self, pc: u64, phase: u64) -> Option<usize> {
        let page = u32::try_from(pc / PAGE).ok()?;
        let phases = rows(self.section(Section::Phases));
        let phase = phases.into_iter().position(|words| words == phase_words(phase))? as u32;
        let owners = self.owners.get(&page)?.clone();
        let owners = owners.start * 2 * WORD..owners.end * 2 * WORD;
        let owners = rows(self.section(Section::Owners).get(owners)?);
        let mut units = owners.map(|[_, unit]| unit as usize);
        units.find(|&unit| {
            self.states.get(unit) == Some(&State::Kept)
                && self.unit(unit).is_some_and(|unit| phase_of(unit[0]) == phase)
        })
    }

    /// A unit and all that it needs and that is not known, if all is there.
    pub(super) fn with_needs(&self, unit: usize) -> Option<Vec<usize>> {
        let mut all = vec![unit];
        let mut next = 0;
        while let Some(&unit) = all.get(next) {
            for [number] in self.part::<1>(Section::Needs, unit, 3) {
                let needed = self.unit_numbered(number)?;
                match self.states.get(needed)? {
                    State::Kept if !all.contains(&needed) => all.push(needed),
                    State::Kept | State::Known => {}
                    State::Forgotten | State::Other => return None,
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
        known.for_each(|state| *state = State::Forgotten);
    }

    /// What is to be made known of a unit, by address.
    pub(super) fn rows(&self, unit: usize) -> impl Iterator<Item = Row<'_>> {
        let code = self.section(Section::Code);
        self.part::<4>(Section::Rows, unit, 1).filter_map(move |[pc, place, rest, start]| {
            let start = start as usize;
            let bytes = code.get(start..start + code_of(rest))?;
            let (code, loads) = bytes.split_at_checked(LENGTH.of(rest) as usize)?;
            Some(Row {
                what: What::of(rest),
                pc: pc.into(),
                variant: *Variant::ALL.get(VARIANT.of(rest) as usize)?,
                place: place.into(),
                code,
                loads,
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

    /// The unit with a number.
    fn unit_numbered(&self, number: u32) -> Option<usize> {
        let number_of = |unit: usize| self.unit(unit).map_or(NO_UNIT, |unit| unit[0]);
        let place = partition_point(self.states.len(), |unit| number_of(unit) < number);
        (number != NO_UNIT && number_of(place) == number).then_some(place)
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

    /// Whether each unit is kept on. What leads to code that is not, is not.
    fn stays(&self) -> Vec<bool> {
        let mut stays: Vec<bool> = self.states.iter().map(|state| *state != State::Other).collect();
        loop {
            let leads_nowhere = |&unit: &usize| {
                let needs = self.part::<1>(Section::Needs, unit, 3);
                let mut needed = needs.map(|[number]| self.unit_numbered(number));
                needed.any(|needed| needed.is_none_or(|needed| !stays[needed]))
            };
            let kept = (0..stays.len()).filter(|&unit| stays[unit]);
            let lost: Vec<usize> = kept.filter(leads_nowhere).collect();
            if lost.is_empty() {
                return stays;
            }
            lost.into_iter().for_each(|unit| stays[unit] = false);
        }
    }

    /// Hands on all units that are kept on.
    fn give(&self, index: &mut Index, parts: &mut Parts) {
        let stays = self.stays();
        let is_kept = |number| self.unit_numbered(number).is_some_and(|unit| stays[unit]);
        let commits = rows(self.section(Section::Commits));
        index.commits = commits
            .map(|[start, number]| [start, if is_kept(number) { number } else { NO_UNIT }])
            .collect();
        index.phases = rows(self.section(Section::Phases)).collect();
        let units = rows::<4>(self.section(Section::Units)).enumerate();
        for (unit, [number, ..]) in units.filter(|&(unit, _)| stays.get(unit) == Some(&true)) {
            parts.rows.extend(self.part(Section::Rows, unit, 1).map(|row| (number, row)));
            parts.links.extend(self.part(Section::Links, unit, 2).map(|link| (number, link)));
            let needs = self.part::<1>(Section::Needs, unit, 3);
            parts.needs.extend(needs.map(|[needed]| (number, needed)));
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
