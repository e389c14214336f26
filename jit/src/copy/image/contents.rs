//! Making an image, at the end of a recording.

use super::journal::{Journal, OPAQUE, What};
use super::{Extent, Image, MAGIC, NO_REGION, REGION, Section, check};
use crate::copy::desc::Variant;
use crate::copy::emit;
use crate::copy::rows::{WORD, bytes};
use refrain_vm::layout::PAGE;
use std::ops::Range;

/// What a recording has at its end, but for the journal.
pub(in crate::copy) struct Contents {
    pub(in crate::copy) key: u64,
    pub(in crate::copy) memory: Range<u64>,
    pub(in crate::copy) first: Extent,
    pub(in crate::copy) end: Extent,
    pub(in crate::copy) hot: Vec<u8>,
    pub(in crate::copy) cold: Vec<u8>,
    /// Those that are not in the image.
    pub(in crate::copy) descriptors: Vec<[u32; 4]>,
    /// Those of the map of faults that are not in the image.
    pub(in crate::copy) faults: (Vec<[u32; 5]>, Vec<[u32; 2]>),
    pub(in crate::copy) tables: Vec<[u32; 2]>,
}

impl Contents {
    /// All that is kept, as bytes, in parts: with what an image had of it before, and the journal since
    /// then.
    pub(in crate::copy) fn encode(
        mut self,
        image: Option<&Image>,
        journal: &Journal,
    ) -> Option<Vec<Vec<u8>>> {
        let index = Index::new(image, journal)?;
        for &[field, exit, _, body] in &index.links {
            let to = if body == 0 { exit } else { body };
            let (field, to) = (u64::from(field), u64::from(to));
            let (code, start) = match field < self.end.hot {
                true => (&mut self.hot, self.first.hot),
                false => (&mut self.cold, self.end.chunk),
            };
            let at = (field - start) as usize;
            let displacement = emit::displacement(field, to).to_le_bytes();
            code.get_mut(at..at + WORD)?.copy_from_slice(&displacement);
        }
        let had = |section| image.map_or(&[][..], |image| image.section(section));
        let (blocks, marks) = &self.faults;
        let mut sections: Vec<Vec<u8>> = vec![
            Vec::new(),
            self.hot,
            self.cold,
            bytes(had(Section::Descriptors), &self.descriptors),
            bytes(had(Section::Blocks), blocks),
            bytes(had(Section::Marks), marks),
            bytes(&[], &self.tables),
            bytes(&[], &index.units),
            bytes(&[], &index.owners),
            bytes(&[], &index.rows),
            bytes(&[], &index.links),
            bytes(&[], &index.needs),
            [had(Section::Code), &journal.code].concat(),
            bytes(&[], &index.commits),
        ];
        let mut head = MAGIC.to_vec();
        head.extend([self.key as u32, (self.key >> 32) as u32]);
        head.extend([self.memory.start as u32, self.memory.end as u32]);
        head.extend(self.first.words());
        head.extend(self.end.words());
        head.extend(sections[1..].iter().map(|section| section.len() as u32));
        let mut rest = crc32fast::Hasher::new();
        sections[3..].iter().for_each(|section| rest.update(section));
        head.extend([check(&sections[1]), check(&sections[2]), rest.finalize()]);
        let head: Vec<[u32; 1]> = head.into_iter().map(|word| [word]).collect();
        let head = bytes(&[], &head);
        sections[0] = [&head[..], &check(&head).to_le_bytes()].concat();
        Some(sections)
    }
}

/// Units, as their sections have them.
#[derive(Default)]
pub(super) struct Index {
    units: Vec<[u32; 4]>,
    owners: Vec<[u32; 2]>,
    rows: Vec<[u32; 4]>,
    links: Vec<[u32; 4]>,
    needs: Vec<[u32; 1]>,
    pub(super) commits: Vec<[u32; 2]>,
}

/// What units have, by their regions, in no order.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) rows: Vec<(u32, [u32; 4])>,
    pub(super) links: Vec<(u32, [u32; 4])>,
    pub(super) needs: Vec<(u32, u32)>,
}

impl Index {
    fn new(image: Option<&Image>, journal: &Journal) -> Option<Index> {
        let mut index = Index::default();
        let mut parts = Parts::default();
        if let Some(image) = image {
            image.give(&mut index, &mut parts);
        }
        index.add(
            journal,
            &mut parts,
            image.map_or(0, |image| image.section(Section::Code).len()),
        )?;
        // What is new comes behind what was there before, of one address too.
        parts.rows.sort_by_key(|&(region, row)| (region, row[0]));
        parts.links.sort_by_key(|&(region, _)| region);
        parts.needs.sort_unstable();
        parts.needs.dedup();
        index.owners.extend(parts.rows.iter().map(|&(region, row)| [row[0] / PAGE as u32, region]));
        index.owners.dedup();
        index.owners.sort_unstable();
        index.owners.dedup();
        let (mut rows, mut links, mut needs) =
            (&parts.rows[..], &parts.links[..], &parts.needs[..]);
        while let Some(&(region, _)) = rows.first() {
            index.units.push(index.unit(region));
            let of_unit = split(&mut rows, region);
            index.rows.extend(of_unit.iter().map(|&(_, row)| row));
            let links = split(&mut links, region).iter().map(|&(_, [field, exit, to, body])| {
                let body = if body == 0 { body_at(of_unit, to) } else { Some(body) };
                [field, exit, to, body.unwrap_or(0)]
            });
            index.links.extend(links);
            index.needs.extend(split(&mut needs, region).iter().map(|&(_, needed)| [needed]));
        }
        index.units.push(index.unit(NO_REGION));
        for owner in &mut index.owners {
            let units = &index.units;
            owner[1] = units.binary_search_by_key(&owner[1], |unit| unit[0]).ok()? as u32;
        }
        Some(index)
    }

    /// The unit of a region, which begins here.
    fn unit(&self, region: u32) -> [u32; 4] {
        [region, self.rows.len() as u32, self.links.len() as u32, self.needs.len() as u32]
    }

    /// Adds what a journal has noted; its code comes behind so many bytes.
    fn add(&mut self, journal: &Journal, parts: &mut Parts, code: usize) -> Option<()> {
        let mut code = code as u32;
        let [mut row, mut link, mut jump] = [0; 3];
        for &[start, owner, rows, links, jumps, _] in &journal.commits {
            self.commits.push([start, if owner == 0 { NO_REGION } else { owner / REGION }]);
            let last = self.commits.len() - 1;
            let rows = journal.rows.get(row..rows as usize)?;
            let links = journal.links.get(link..links as usize)?;
            let jumps = journal.jumps.get(jump..jumps as usize)?;
            (row, link, jump) = (row + rows.len(), link + links.len(), jump + jumps.len());
            for &[_, to] in jumps {
                // What leads to code that is not kept, is not. Code leads to what was there before it.
                let needed = self.commits[commit_of(&self.commits, to)?][1];
                let region = self.commits[last][1];
                if needed == NO_REGION {
                    self.commits[last][1] = NO_REGION;
                } else if needed != region && region != NO_REGION {
                    parts.needs.push((region, needed));
                }
            }
            let region = self.commits[last][1];
            for &[pc, place, rest] in rows {
                if region != NO_REGION {
                    parts.rows.push((region, [pc, place, rest, code]));
                }
                code += rest >> 16;
            }
            if region != NO_REGION {
                parts
                    .links
                    .extend(links.iter().map(|&[field, exit, to]| (region, [field, exit, to, 0])));
            }
        }
        Some(())
    }
}

/// The first ones, which are of this region.
fn split<'a, T>(all: &mut &'a [(u32, T)], region: u32) -> &'a [(u32, T)] {
    let (first, rest) = all.split_at(all.iter().take_while(|&&(of, _)| of == region).count());
    *all = rest;
    first
}

/// The last block among these rows, which are in order, that a link leads to.
fn body_at(rows: &[(u32, [u32; 4])], to: u32) -> Option<u32> {
    let (pc, opaque) = (to & !OPAQUE, to & OPAQUE != 0);
    let variant = if opaque { Variant::Opaque } else { Variant::Observed };
    let kind = What::Body as u32 | (variant as u32) << 8;
    let behind = rows.partition_point(|&(_, row)| row[0] <= pc);
    let of_pc = rows[..behind].iter().rev().take_while(|&&(_, row)| row[0] == pc);
    of_pc.map(|&(_, row)| row).find(|row| row[2] & 0xffff == kind).map(|row| row[1])
}

/// The number of the translation that an address lies in, of translations in the order of their starts.
fn commit_of(commits: &[[u32; 2]], place: u32) -> Option<usize> {
    commits.partition_point(|&[start, _]| start <= place).checked_sub(1)
}
