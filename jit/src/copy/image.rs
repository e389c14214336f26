//! What is kept, as bytes: numbers of 32 bits, in sections, with a checksum.
//!
//! The rows, links and needs of a unit each lie side by side. Translated code can be executed as it stands in
//! the file: a jump to a block of its own unit leads there, and every other one to its exit.

mod contents;
mod journal;
mod segments;

use super::desc::{Desc, Variant};
use super::emit::REACH;
use super::rows::{WORD, row, rows};
use super::tables::Use;
use crate::memory::{FilePart, MappedFile};
pub(super) use contents::Contents;
use contents::{Index, Parts};
pub(super) use journal::{Journal, What};
use journal::{LENGTH, VARIANT, code_of, target_of};
use refrain_trace::fixed::{FixedMap, FixedSet};
use refrain_vm::layout::PAGE;
use segments::Segments;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// What a file begins with: changed with its form.
const MAGIC: [u32; 2] = [0x6672_6572, 4];
/// Sections of an image.
const SECTIONS: usize = 16;
/// Numbers before the sections: the magic, the key, where code memory is, four of each extent, how
/// long the sections are, and the checksums of all but the first two, and of all that.
const HEAD: usize = 2 + 2 + 2 + 2 * 4 + SECTIONS + 2;
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
    /// By unit, and one more: its number, and where its rows, links, needs and places begin.
    Units,
    /// Page and unit, ascending.
    Owners,
    /// Of a unit, by address: as in the journal, and where the code begins.
    Rows,
    /// Of a unit: as in the journal, and the block if it is the unit's, or 0.
    Links,
    /// Numbers of the units that another one's code leads to in line.
    Needs,
    /// Where a unit's translations are: of hot code, of rare exits and of descriptors, from and to.
    Places,
    /// The guest's, and what is watched in it.
    Code,
    /// Where the translations that came into code memory together begin, and their unit's number.
    Commits,
    /// Two numbers each.
    Phases,
    /// Of each segment of translated code, ascending: its number and its checksum.
    Checks,
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

/// Rare exits are allocated in chunks of this size.
pub(super) const CHUNK: u64 = 64 << 10;

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

/// A jump that may lead to a block, and where else.
pub(super) struct LinkRow {
    pub(super) field: u64,
    pub(super) exit: u64,
    /// The block, if it is none of the unit's: there the jump leads already.
    pub(super) target: Option<(u64, Variant)>,
}

/// What an earlier recording has kept.
pub(super) struct Image {
    file: Arc<MappedFile>,
    sections: [Range<usize>; SECTIONS],
    segments: Segments,
    /// Segments whose code is in code memory.
    loaded: FixedSet<u32>,
    /// A segment is not what was kept.
    pub(super) is_damaged: bool,
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
    /// The image in a file, if it is sound, and made by an engine like this one.
    pub(super) fn read(file: &File, key: u64, memory: Range<u64>, first: Extent) -> Option<Image> {
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
        let &[.., rest_check, _] = &head[..] else { return None };
        if check(&mapped.bytes()[sections[2].start..]) != rest_check {
            return None;
        }
        let (owners, states, loaded) = Default::default();
        let segments = Segments { memory, first, end };
        let mut image = Image {
            file: Arc::new(mapped),
            sections,
            segments,
            loaded,
            is_damaged: false,
            owners,
            states,
        };
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
        self.segments.end
    }

    /// Translated code, hot and rare, if it is what was kept.
    fn code(&self) -> Option<[&[u8]; 2]> {
        let is_sound = self.segments.all().into_iter().all(|number| self.segment(number).is_some());
        is_sound.then(|| [0, 1].map(|section| &self.file.bytes()[self.sections[section].clone()]))
    }

    /// The code of a segment, if it is what was kept, and where it belongs.
    pub(super) fn segment(&self, number: u32) -> Option<(u64, &[u8])> {
        let range = self.segments.range(number);
        let Segments { first, end, .. } = &self.segments;
        let (section, start) = match range.start < end.chunk {
            true => (&self.sections[0], first.hot),
            false => (&self.sections[1], end.chunk),
        };
        let at = section.start + (range.start - start) as usize;
        let bytes = self.file.bytes().get(at..at + (range.end - range.start) as usize)?;
        let checks = self.section(Section::Checks);
        let known = |at: usize| row::<2>(checks, at).map_or(u32::MAX, |[number, _]| number);
        let place = partition_point(checks.len() / (2 * WORD), |at| known(at) < number);
        let [known, expected] = row(checks, place)?;
        (known == number && check(bytes) == expected).then_some((range.start, bytes))
    }

    /// The segments with code of a unit that are not in code memory.
    pub(super) fn not_loaded(&self, unit: usize) -> Vec<u32> {
        let ranges = self.places(unit).flat_map(|[hot, hot_end, cold, cold_end, ..]| {
            [hot..hot_end, cold..cold_end].map(|part| u64::from(part.start)..u64::from(part.end))
        });
        let segments = ranges.flat_map(|range| self.segments.within(range));
        let is_missing =
            |&it: &u32| !self.loaded.contains(&it) && !self.segments.range(it).is_empty();
        let mut missing: Vec<u32> = segments.filter(is_missing).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// The segment's code is in code memory.
    pub(super) fn set_loaded(&mut self, number: u32) {
        self.loaded.insert(number);
    }

    /// Descriptors of a unit, by their numbers among all that the engine has.
    pub(super) fn descriptors_of(&self, unit: usize) -> impl Iterator<Item = (usize, Desc)> {
        let first = self.segments.first.descriptors;
        self.places(unit).flat_map(move |[.., from, to]| {
            (from as usize..to as usize).filter_map(move |number| {
                Some((number, self.descriptor(number.checked_sub(first)?)?))
            })
        })
    }

    fn places(&self, unit: usize) -> impl Iterator<Item = [u32; 6]> {
        self.part(Section::Places, unit, 4)
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
        self.part::<4>(Section::Links, unit, 2).map(|[field, exit, to, body]| LinkRow {
            field: field.into(),
            exit: exit.into(),
            target: (body == 0).then(|| target_of(to)).flatten(),
        })
    }

    fn unit(&self, unit: usize) -> Option<[u32; 5]> {
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
        let units = rows::<5>(self.section(Section::Units)).enumerate();
        for (unit, [number, ..]) in units.filter(|&(unit, _)| stays.get(unit) == Some(&true)) {
            parts.rows.extend(self.part(Section::Rows, unit, 1).map(|row| (number, row)));
            parts.links.extend(self.part(Section::Links, unit, 2).map(|link| (number, link)));
            let needs = self.part::<1>(Section::Needs, unit, 3);
            parts.needs.extend(needs.map(|[needed]| (number, needed)));
            parts.places.extend(self.places(unit).map(|place| (number, place)));
        }
    }
}

/// Bytes of a unit.
const UNIT: usize = 5 * WORD;

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
