//! Making an image, at the end of a recording.

use super::journal::{Commit, Journal, VARIANT, What, code_of, target_of};
use super::segments::Segments;
use super::{CHUNK, Extent, Image, MAGIC, NO_UNIT, Section, check, phase_words, unit_of};
use crate::copy::emit;
use crate::copy::rows::{WORD, bytes};
use refrain_vm::layout::PAGE;
use std::ops::Range;
use std::thread;

/// What a recording has at its end, but for the journal.
pub(in crate::copy) struct Contents {
    pub(in crate::copy) key: u64,
    pub(in crate::copy) memory: Range<u64>,
    pub(in crate::copy) first: Extent,
    pub(in crate::copy) end: Extent,
    /// Those that are not in the image.
    pub(in crate::copy) descriptors: Vec<[u32; 4]>,
    /// Those of the map of faults that are not in the image.
    pub(in crate::copy) faults: (Vec<[u32; 5]>, Vec<[u32; 2]>),
    pub(in crate::copy) tables: Vec<[u32; 2]>,
}

impl Contents {
    /// All that is kept, as bytes, in parts: with what an image had of it before, and the journal since
    /// then. Another thread reads the translated code with `read` meanwhile.
    pub(in crate::copy) fn encode(
        self,
        image: Option<&Image>,
        journal: &Journal,
        read: impl Fn(Range<u64>) -> Vec<u8> + Send,
    ) -> Option<Vec<Vec<u8>>> {
        let code = [self.first.hot..self.end.hot, self.end.chunk..self.memory.end];
        let (bytes_of_code, index) = thread::scope(|scope| {
            let bytes_of_code = scope.spawn(|| self.code(image, read));
            let index = Index::new(image, journal, self.end);
            (bytes_of_code.join(), index)
        });
        let ([mut hot, mut cold], index) = (bytes_of_code.ok()??, index?);
        for &[field, exit, _, body] in &index.links {
            let to = if body == 0 { exit } else { body };
            let (field, to) = (u64::from(field), u64::from(to));
            let (bytes, start) = match field < self.end.hot {
                true => (&mut hot, code[0].start),
                false => (&mut cold, code[1].start),
            };
            let at = (field - start) as usize;
            let displacement = emit::displacement(field, to).to_le_bytes();
            bytes.get_mut(at..at + WORD)?.copy_from_slice(&displacement);
        }
        let (checks, mut sections) = thread::scope(|scope| {
            let checks = scope.spawn(|| self.checks([&hot, &cold]));
            (checks.join(), self.sections(image, journal, &index))
        });
        sections.push(bytes(&[], &checks.ok()?));
        let mut all = crc32fast::Hasher::new();
        sections.iter().for_each(|section| all.update(section));
        let mut head = MAGIC.to_vec();
        head.extend([self.key as u32, (self.key >> 32) as u32]);
        head.extend([self.memory.start as u32, self.memory.end as u32]);
        head.extend(self.first.words());
        head.extend(self.end.words());
        head.extend([&hot, &cold].into_iter().chain(&sections).map(|section| section.len() as u32));
        head.push(all.finalize());
        let head: Vec<[u32; 1]> = head.into_iter().map(|word| [word]).collect();
        let head = bytes(&[], &head);
        let head = [&head[..], &check(&head).to_le_bytes()].concat();
        Some([head, hot, cold].into_iter().chain(sections).collect())
    }

    /// Translated code, hot and rare: what an image had is as it stands there, since what has been loaded of
    /// it is patched by now.
    fn code(
        &self,
        image: Option<&Image>,
        read: impl Fn(Range<u64>) -> Vec<u8>,
    ) -> Option<[Vec<u8>; 2]> {
        let (first, end) = (self.first, self.end);
        let Some(image) = image else {
            return Some([read(first.hot..end.hot), read(end.chunk..self.memory.end)]);
        };
        let [hot, cold] = image.code()?;
        let had = image.end();
        // The rest of its lowest chunk may have been used since then.
        let rest = (had.chunk + CHUNK).min(self.memory.end);
        let at = |address: u64| (address - had.chunk) as usize;
        let new_cold = [
            &read(end.chunk..had.chunk)[..],
            cold.get(..at(had.cold))?,
            &read(had.cold..rest),
            cold.get(at(rest)..)?,
        ];
        Some([[hot, &read(had.hot..end.hot)].concat(), new_cold.concat()])
    }

    /// The checksum of each segment of translated code.
    fn checks(&self, [hot, cold]: [&[u8]; 2]) -> Vec<[u32; 2]> {
        let Contents { first, end, .. } = *self;
        let segments = Segments { memory: self.memory.clone(), first, end };
        let check_of = |number| {
            let range = segments.range(number);
            let (bytes, start) =
                if range.start < end.chunk { (hot, first.hot) } else { (cold, end.chunk) };
            check(&bytes[(range.start - start) as usize..(range.end - start) as usize])
        };
        segments.all().into_iter().map(|number| [number, check_of(number)]).collect()
    }

    /// The sections behind those of translated code, but for the checksums.
    fn sections(&self, image: Option<&Image>, journal: &Journal, index: &Index) -> Vec<Vec<u8>> {
        let had = |section| image.map_or(&[][..], |image| image.section(section));
        let (blocks, marks) = &self.faults;
        vec![
            bytes(had(Section::Descriptors), &self.descriptors),
            bytes(had(Section::Blocks), blocks),
            bytes(had(Section::Marks), marks),
            bytes(&[], &self.tables),
            bytes(&[], &index.units),
            bytes(&[], &index.owners),
            bytes(&[], &index.rows),
            bytes(&[], &index.links),
            bytes(&[], &index.needs),
            bytes(&[], &index.places),
            [had(Section::Code), &journal.code].concat(),
            bytes(&[], &index.commits),
            bytes(&[], &index.phases),
        ]
    }
}

/// Units, as their sections have them.
#[derive(Default)]
pub(super) struct Index {
    units: Vec<[u32; 5]>,
    owners: Vec<[u32; 2]>,
    rows: Vec<[u32; 4]>,
    links: Vec<[u32; 4]>,
    needs: Vec<[u32; 1]>,
    places: Vec<[u32; 6]>,
    pub(super) commits: Vec<[u32; 2]>,
    pub(super) phases: Vec<[u32; 2]>,
}

/// What units have, by their numbers, in no order.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) rows: Vec<(u32, [u32; 4])>,
    pub(super) links: Vec<(u32, [u32; 4])>,
    pub(super) needs: Vec<(u32, u32)>,
    pub(super) places: Vec<(u32, [u32; 6])>,
}

impl Index {
    fn new(image: Option<&Image>, journal: &Journal, end: Extent) -> Option<Index> {
        let mut index = Index::default();
        let mut parts = Parts::default();
        if let Some(image) = image {
            image.give(&mut index, &mut parts);
        }
        index.add(
            journal,
            &mut parts,
            image.map_or(0, |image| image.section(Section::Code).len()),
            end,
        )?;
        // What is new comes behind what was there before, of one address too.
        parts.rows.sort_by_key(|&(unit, row)| (unit, row[0]));
        parts.links.sort_by_key(|&(unit, _)| unit);
        parts.places.sort_by_key(|&(unit, _)| unit);
        parts.needs.sort_unstable();
        parts.needs.dedup();
        index.owners.extend(parts.rows.iter().map(|&(unit, row)| [row[0] / PAGE as u32, unit]));
        index.owners.dedup();
        index.owners.sort_unstable();
        index.owners.dedup();
        let (mut rows, mut links, mut needs, mut places) =
            (&parts.rows[..], &parts.links[..], &parts.needs[..], &parts.places[..]);
        while let Some(&(unit, _)) = rows.first() {
            index.units.push(index.unit(unit));
            let of_unit = split(&mut rows, unit);
            index.rows.extend(of_unit.iter().map(|&(_, row)| row));
            let links = split(&mut links, unit).iter().map(|&(_, [field, exit, to, body])| {
                let body = if body == 0 { body_at(of_unit, to) } else { Some(body) };
                [field, exit, to, body.unwrap_or(0)]
            });
            index.links.extend(links);
            index.needs.extend(split(&mut needs, unit).iter().map(|&(_, needed)| [needed]));
            index.places.extend(split(&mut places, unit).iter().map(|&(_, place)| place));
        }
        index.units.push(index.unit(NO_UNIT));
        for owner in &mut index.owners {
            let units = &index.units;
            owner[1] = units.binary_search_by_key(&owner[1], |unit| unit[0]).ok()? as u32;
        }
        Some(index)
    }

    /// A unit, which begins here.
    fn unit(&self, unit: u32) -> [u32; 5] {
        let Index { rows, links, needs, places, .. } = self;
        let [rows, links, needs, places] =
            [rows.len(), links.len(), needs.len(), places.len()].map(|len| len as u32);
        [unit, rows, links, needs, places]
    }

    /// Adds what a journal has noted until code memory reached so far; its code comes behind so many bytes.
    fn add(
        &mut self,
        journal: &Journal,
        parts: &mut Parts,
        code: usize,
        end: Extent,
    ) -> Option<()> {
        let mut code = code as u32;
        let phases: Vec<u32> = journal.phases.iter().map(|&phase| self.phase(phase)).collect();
        let [mut row, mut link, mut jump] = [0; 3];
        for (at, commit) in journal.commits.iter().enumerate() {
            let mut unit = match commit.owner {
                Some((pc, phase)) => unit_of(pc, *phases.get(phase as usize)?),
                None => NO_UNIT,
            };
            let rows = journal.rows.get(row..commit.rows)?;
            let links = journal.links.get(link..commit.links)?;
            let jumps = journal.jumps.get(jump..commit.jumps)?;
            (row, link, jump) = (commit.rows, commit.links, commit.jumps);
            for &[_, to] in jumps {
                // What leads to code that is not kept, is not. Code leads to what was there before it.
                let needed = match to < commit.start {
                    true => self.commits[commit_of(&self.commits, to)?][1],
                    false => unit,
                };
                if needed == NO_UNIT {
                    unit = NO_UNIT;
                } else if needed != unit && unit != NO_UNIT {
                    parts.needs.push((unit, needed));
                }
            }
            self.commits.push([commit.start, unit]);
            if unit != NO_UNIT {
                let end = match journal.commits.get(at + 1) {
                    Some(next) => Extent { hot: next.start.into(), ..next.begun },
                    None => end,
                };
                add_place(&mut parts.places, unit, place_of(commit, end));
            }
            for &[pc, place, rest] in rows {
                if unit != NO_UNIT {
                    parts.rows.push((unit, [pc, place, rest, code]));
                }
                code += code_of(rest) as u32;
            }
            if unit != NO_UNIT {
                parts
                    .links
                    .extend(links.iter().map(|&[field, exit, to]| (unit, [field, exit, to, 0])));
            }
        }
        Some(())
    }

    /// The place of a phase among all.
    fn phase(&mut self, phase: u64) -> u32 {
        let phase = phase_words(phase);
        let known = self.phases.iter().position(|&known| known == phase);
        let place = known.unwrap_or_else(|| {
            self.phases.push(phase);
            self.phases.len() - 1
        });
        place as u32
    }
}

/// Where a translation is that reaches up to `end`: hot code, rare exits, descriptors.
fn place_of(commit: &Commit, end: Extent) -> [u32; 6] {
    let begun = commit.begun;
    // Chunks lie side by side, the later below.
    let cold = match begun.chunk == end.chunk {
        true => begun.cold..end.cold,
        false => end.chunk..begun.chunk + CHUNK,
    };
    [
        commit.start,
        end.hot as u32,
        cold.start as u32,
        cold.end as u32,
        begun.descriptors as u32,
        end.descriptors as u32,
    ]
}

/// Adds a place of a unit; what goes on where the last one ends is one with it.
fn add_place(places: &mut Vec<(u32, [u32; 6])>, unit: u32, place: [u32; 6]) {
    let [hot, _, cold, _, descriptors, _] = place;
    if let Some((last_unit, last)) = places.last_mut()
        && *last_unit == unit
        && [last[1], last[3], last[5]] == [hot, cold, descriptors]
    {
        (last[1], last[3], last[5]) = (place[1], place[3], place[5]);
        return;
    }
    places.push((unit, place));
}

/// The first ones, which are of this unit.
fn split<'a, T>(all: &mut &'a [(u32, T)], unit: u32) -> &'a [(u32, T)] {
    let (first, rest) = all.split_at(all.iter().take_while(|&&(of, _)| of == unit).count());
    *all = rest;
    first
}

/// The last block among these rows, which are in order, that a link leads to.
fn body_at(rows: &[(u32, [u32; 4])], to: u32) -> Option<u32> {
    let (pc, variant) = target_of(to)?;
    let pc = pc as u32;
    let is_body = |row: u32| What::of(row) == What::Body && VARIANT.of(row) == variant as u32;
    let behind = rows.partition_point(|&(_, row)| row[0] <= pc);
    let of_pc = rows[..behind].iter().rev().take_while(|&&(_, row)| row[0] == pc);
    of_pc.map(|&(_, row)| row).find(|row| is_body(row[2])).map(|row| row[1])
}

/// The number of the translation that an address lies in, of translations in the order of their starts.
fn commit_of(commits: &[[u32; 2]], place: u32) -> Option<usize> {
    commits.partition_point(|&[start, _]| start <= place).checked_sub(1)
}
