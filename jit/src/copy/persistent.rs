//! Translations that outlive their process: a persistent code cache.
//!
//! Most of the code that a short program executes is executed once, and translating it takes longer than
//! that. So a recording keeps what it has translated, and a later recording of the same program goes by
//! it.
//!
//! # What is kept
//! Translated code, descriptors and the map of faults are kept as they are ([`image`]): an engine of the
//! same build has them at the same addresses again. A [`Journal`] notes what the translator makes known
//! of them meanwhile: where blocks and entries are, which jumps may lead where, and what guest code
//! they were made from.
//!
//! # When it counts
//! The translations of a region of guest code, with the blocks that follow them in line, are a *unit*.
//! At first nothing of a unit is in code memory. When a thread comes to a page of it, the unit is brought
//! back, in whole segments: if all guest code that it was made from is what it was, byte by byte, and no hook has come
//! into it, its places are made known as if its blocks had been translated at that moment. Otherwise
//! they are translated. So what is kept may cost time, and is never wrong, whatever a program's
//! libraries are today.
//!
//! Which accesses are watched, once there are several threads, depends on more: on all modules and
//! locks, and on what was learned. With the order of every access, all accesses are counted, whatever modules
//! there are. Once there is code above 2 GiB, translated code checks its returns. All that is the *phase* of a
//! unit, which must be what it was then. (If it were wrong, others would be watched than should be, and the
//! trace would say so: it has what is watched from here, too.)
//!
//! # What is not kept
//! Hooked blocks hold addresses of the recorder's functions; code that the guest generates changes; code
//! above 2 GiB is seldom.

use super::desc::{Desc, Kind, Variant};
use super::image::{Contents, Image, Journal, LinkRow, Persistent, Row, State, What};
use super::tables::Use;
use super::translator::Translator;
use crate::memory::read_guest;
use refrain_trace::fixed::digest;
use refrain_vm::layout::PAGE;
use std::fs::File;
use std::ops::Range;

/// Translated code that is kept at most.
const MOST: u64 = 24 << 20;
/// Translated code for which it is worth the while.
const LEAST: u64 = 4 << 10;
/// What is new is kept if it is more than the rest divided by this.
const SHARE: u64 = 8;

impl Translator {
    /// Begins to note translations for later recordings, and goes by those that an earlier recording has
    /// kept in a file, if there is one. `build` tells this build of the engine from others.
    pub(super) fn keep_code(&mut self, build: u64, kept: Option<&File>) {
        let is_new = self.faults.lengths() == [0, 0] && self.persistent.is_none();
        if !is_new || !self.records() || self.several || self.returns.is_none() {
            return;
        }
        let key = digest(&(build, format!("{:?}", self.config)));
        let first = self.extent();
        let image = kept.and_then(|file| Image::read(file, key, self.code(), first));
        let has_room = |image: &Image| self.arena.has_room(image.descriptors() as u64);
        let image = image.filter(has_room);
        if let Some(image) = &image {
            self.take(image);
        }
        let journal = Journal::default();
        let begun = self.arena.len();
        self.persistent =
            Some(Box::new(Persistent { journal, image, key, first, begun, end: None }));
    }

    /// Leaves room for what an image has, and takes its map of faults.
    fn take(&mut self, image: &Image) {
        self.arena.leave_places(image.descriptors());
        self.faults.take(image.end().hot, image.faults());
        for (which, variant) in image.tables() {
            self.table(which, variant);
        }
        self.begin_behind(image.end());
    }

    /// Nothing that is translated from now on is kept, and nothing is brought back.
    pub(super) fn end_keeping(&mut self) {
        let extent = self.extent();
        if let Some(persistent) = &mut self.persistent {
            persistent.end.get_or_insert(extent);
        }
    }

    /// What is to be kept, if enough of it is new. Nothing, if the file that there is is damaged: a later
    /// recording begins anew.
    pub(super) fn kept_code(&self) -> Option<Vec<Vec<u8>>> {
        let persistent = self.persistent.as_ref()?;
        if persistent.image.as_ref().is_some_and(|image| image.is_damaged) {
            return Some(Vec::new());
        }
        let end = persistent.end.unwrap_or_else(|| self.extent());
        let had = persistent.image.as_ref().map_or(persistent.first, Image::end).hot;
        let (new, all) = (end.hot - had, end.hot - persistent.first.hot);
        if new < LEAST || new < all / SHARE || all > MOST {
            return None;
        }
        let tables = [Use::Jump, Use::Return].into_iter();
        let tables = tables.flat_map(|which| Variant::ALL.map(|variant| (which, variant)));
        let armed = tables.filter(|&(which, variant)| self.is_armed(which, variant));
        let had = persistent.image.as_ref().map_or(0, Image::descriptors);
        let new = persistent.first.descriptors + had..end.descriptors;
        let descriptors = self.arena.all()[new].iter().map(|desc| desc.row().unwrap_or_default());
        let contents = Contents {
            key: persistent.key,
            memory: self.code(),
            first: persistent.first,
            end,
            descriptors: descriptors.collect(),
            faults: self.faults.rows(end.faults),
            tables: armed.map(|(which, variant)| [which as u32, variant as u32]).collect(),
        };
        let memory = &self.memory;
        let image = persistent.image.as_ref();
        let encoded = contents.encode(image, &persistent.journal, |range| memory.read(range));
        encoded.or_else(|| image.map(|_| Vec::new()))
    }

    /// What a descriptor says that was kept.
    pub(super) fn kept_descriptor(&self, address: u64) -> Desc {
        let kept = self.persistent.as_ref().and_then(|persistent| {
            let number = self.arena.number(address).checked_sub(persistent.first.descriptors)?;
            persistent.image.as_ref()?.descriptor(number)
        });
        kept.expect("code of an image has descriptors of this image")
    }

    fn journal(&mut self) -> Option<&mut Journal> {
        let end = self.extent().hot;
        let persistent = self.persistent.as_mut().filter(|persistent| persistent.end.is_none())?;
        if end - persistent.first.hot > MOST {
            // It would not be kept.
            persistent.journal = Journal::default();
            return None;
        }
        Some(&mut persistent.journal)
    }

    /// What translations depend on at this moment, besides the code that they are made from; none if
    /// that is too much.
    fn phase(&self) -> Option<u64> {
        let checks_returns = self.returns.is_none();
        if !self.several {
            return Some(checks_returns.into());
        }
        if self.config.every_access {
            return Some(digest(&("every access", checks_returns)));
        }
        let watched = (self.functions.surroundings()?, self.learned.digest());
        Some(digest(&("some accesses", watched, checks_returns)))
    }

    /// A translation for `pc` begins: what was noted of one that failed does not count.
    pub(super) fn note_begin(&mut self, pc: u64) {
        if self.persistent.is_some() {
            let (phase, begun) = (self.phase(), self.extent());
            if let Some(journal) = self.journal() {
                journal.begin(pc, phase, begun);
            }
            self.persistent.iter_mut().for_each(|it| it.begun = begun.descriptors);
        }
    }

    /// The translation is in its place, from `start` on.
    pub(super) fn note_commit(&mut self, start: u64) {
        let Some(persistent) = &self.persistent else { return };
        if self.arena.all()[persistent.begun..].iter().any(|desc| desc.row().is_none()) {
            self.note_unkept();
        }
        if let Some(journal) = self.journal() {
            journal.commit(start);
        }
    }

    /// The translation that is under way is not to be kept.
    pub(super) fn note_unkept(&mut self) {
        if let Some(journal) = self.journal() {
            journal.leave_out();
        }
    }

    /// The block made from `code` is at `place`.
    pub(super) fn note_block(&mut self, pc: u64, variant: Variant, place: u64, code: &[u8]) {
        let loads = std::mem::take(&mut self.watched_loads);
        if let Some(journal) = self.journal() {
            journal.row(What::Body, pc, variant, place, code, &loads);
        }
        self.watched_loads = loads;
    }

    /// Another way to the code at `pc`.
    pub(super) fn note_entry(&mut self, what: What, pc: u64, variant: Variant, place: u64) {
        if let Some(journal) = self.journal() {
            journal.row(what, pc, variant, place, &[], &[]);
        }
    }

    /// The jump with this field may lead to the block at `pc`, and to `exit` otherwise.
    pub(super) fn note_link(&mut self, field: u64, exit: u64, pc: u64, variant: Variant) {
        if let Some(journal) = self.journal() {
            journal.link(field, exit, pc, variant);
        }
    }

    /// Code at `from` leads to code at `to`, always.
    pub(super) fn note_jump(&mut self, from: u64, to: u64) {
        if let Some(journal) = self.journal() {
            journal.jump(from, to);
        }
    }

    /// Every translation is forgotten. What was brought back does not come again: a program that takes
    /// code away again and again executes little of the rest in between.
    pub(super) fn forget_kept(&mut self) {
        if let Some(image) = self.persistent.as_mut().and_then(|it| it.image.as_mut()) {
            image.forget();
        }
    }

    /// Brings back what is kept of the page of `pc`.
    pub(super) fn bring_back(&mut self, pc: u64) {
        if self.persistent.is_none() {
            return;
        }
        let Some(phase) = self.phase() else { return };
        let Some(persistent) = &mut self.persistent else { return };
        let is_kept =
            |image: &Image| persistent.end.is_none() && image.next_of(pc, phase).is_some();
        if !persistent.image.as_ref().is_some_and(is_kept) {
            return;
        }
        let Some(mut image) = persistent.image.take() else { return };
        let mut read = Read::default();
        while let Some(unit) = image.next_of(pc, phase) {
            let is_as_it_was = |units: &Vec<usize>| {
                units.iter().all(|&unit| self.is_as_it_was(&image, unit, &mut read))
            };
            let units = image.with_needs(unit).filter(is_as_it_was);
            let is_loaded = |units: &Vec<usize>| units.iter().all(|&it| self.load(&mut image, it));
            let Some(units) = units.filter(is_loaded) else {
                image.set_state(unit, State::Other);
                continue;
            };
            for &unit in &units {
                self.make_known(&image, unit);
                image.set_state(unit, State::Known);
            }
            units.into_iter().for_each(|unit| self.link_unit(&image, unit));
        }
        if let Some(persistent) = &mut self.persistent {
            persistent.image = Some(image);
        }
    }

    /// Whether a translation of the unit's code would be what is kept.
    fn is_as_it_was(&self, image: &Image, unit: usize, read: &mut Read) -> bool {
        image.rows(unit).filter(|row| row.what == What::Body).all(
            |Row { pc, variant, code, .. }| {
                let hooked = match variant {
                    Variant::Observed => self.hooks.any(pc..pc + code.len() as u64),
                    Variant::Opaque => false,
                    _ => self.hooks.any(pc + 1..pc + code.len() as u64),
                };
                let bytes = pc..pc + code.len() as u64;
                !hooked
                    && read.may_run(bytes, self)
                    && !self.is_generated(pc)
                    && read.is_same(pc, code)
            },
        )
    }

    /// Puts the code of a unit in its place, and the descriptors that the machine's gates read by themselves.
    /// False if it is not what was kept.
    fn load(&mut self, image: &mut Image, unit: usize) -> bool {
        for number in image.not_loaded(unit) {
            let Some((address, code)) = image.segment(number) else {
                image.is_damaged = true;
                return false;
            };
            let end = address + code.len() as u64;
            self.memory.prepare(address - address % PAGE..end.next_multiple_of(PAGE));
            // SAFETY: the segment is none that was loaded before, so no translated code leads to it (`take` has
            // left room for it); it is code that was made for this place.
            unsafe { self.memory.write(address, code) };
            image.set_loaded(number);
        }
        for (number, desc) in image.descriptors_of(unit) {
            if matches!(desc.kind, Kind::Ordered(_) | Kind::Strings(_) | Kind::Performed { .. }) {
                self.arena.put(number, desc);
            }
        }
        true
    }

    /// Makes the blocks and entries of a unit known, as a translation does at its end.
    fn make_known(&mut self, image: &Image, unit: usize) {
        for Row { what, pc, variant, place, code, loads } in image.rows(unit) {
            match what {
                What::Body => {
                    self.bodies.insert(pc, variant, place);
                    if self.config.keep_blocks && variant.is_kept_in_traces() {
                        let loads = loads.as_chunks().0.iter();
                        self.watched_loads.clear();
                        self.watched_loads.extend(loads.map(|load| u16::from_le_bytes(*load)));
                        self.keep(pc, code);
                    }
                    self.add_pages(pc, pc + code.len() as u64);
                }
                What::Jump => self.jump_entries.insert(pc, variant, place),
                What::Return => {
                    self.return_entries.insert(pc, variant, place);
                    self.set_return(pc, variant, place);
                }
                What::Call => self.call_sites.insert(pc, variant, place),
            }
        }
    }

    /// Makes the jumps of a unit known, which nobody executes yet, and lets them lead to what is known of other
    /// units: otherwise the first thread that comes there would leave translated code for it.
    fn link_unit(&mut self, image: &Image, unit: usize) {
        for LinkRow { field, exit, target } in image.links(unit) {
            self.links.push((field as u32, exit as u32));
            if !self.may_link() {
                self.patch(field, exit);
            } else if let Some((pc, variant)) = target
                && let Some(body) = self.bodies.get(pc, variant)
            {
                self.patch(field, body);
            }
        }
    }
}

/// Guest code that was read, a page at a time.
struct Read {
    page: Option<u64>,
    bytes: Vec<u8>,
    /// Memory that the guest may execute, around what was asked for last.
    executable: Range<u64>,
}

impl Default for Read {
    fn default() -> Read {
        Read { page: None, bytes: vec![0; PAGE as usize], executable: 0..0 }
    }
}

impl Read {
    /// Whether the guest may execute this code.
    fn may_run(&mut self, code: Range<u64>, translator: &Translator) -> bool {
        if !self.executable.contains(&code.start) {
            self.executable = translator.executable_around(code.start);
        }
        code.end <= self.executable.end
    }

    /// Whether the guest has this code at `pc`.
    fn is_same(&mut self, pc: u64, code: &[u8]) -> bool {
        let (page, inside) = (pc - pc % PAGE, (pc % PAGE) as usize);
        let (here, behind) = code.split_at(code.len().min(PAGE as usize - inside));
        if self.page != Some(page) {
            self.bytes.resize(PAGE as usize, 0);
            let readable = read_guest(page, &mut self.bytes);
            self.bytes.truncate(readable);
            self.page = Some(page);
        }
        self.bytes.get(inside..inside + here.len()) == Some(here)
            && (behind.is_empty() || self.is_same(page + PAGE, behind))
    }
}
