//! The recorder's side: where such memory is, and where it is mapped again.
//!
//! At the guest's address an area is out of reach; its *alias* lies where the kernel has put it.

use super::{Area, writers};
use crate::elsewhere::{self, Aliases};
use crate::host;
use crate::layout::{PAGE, guest_may_map};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Larger mappings are not watched.
const LARGEST: u64 = 4 << 30;

/// What the recorder knows of such memory.
#[derive(Default)]
pub(crate) struct Common {
    /// By ascending addresses.
    mapped: Vec<Mapped>,
    /// What the guest goes on accessing by itself: nobody else writes there, or threads accessed it
    /// before they could be kept from it.
    open: Vec<Mapping>,
    /// The program has forked: what it maps is its children's, too.
    has_forked: bool,
    /// Memory in common with other processes has been looked for, not only that of sockets.
    has_relatives: bool,
    /// An event says that what other processes may have mapped is not watched.
    has_said_unwatched: bool,
    /// How many events there are of areas.
    events: u64,
}

/// What a look at the guest's mappings has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Looked {
    /// The areas are not those of before.
    pub(crate) differs: bool,
    /// There is memory in common that the guest goes on accessing by itself.
    pub(crate) left_out: bool,
}

/// An area.
struct Mapped {
    area: Area,
    shows: Shows,
    alias: u64,
    /// The page behind the alias is kept free: the kernel goes no further than the area.
    has_guard: bool,
    /// The alias is the only mapping; at the guest's address there is a placeholder.
    is_moved: bool,
}

/// What a mapping shows.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Shows {
    /// Device and inode, in the kernel's words.
    file: String,
    name: String,
    /// Memory that only processes give each other.
    is_of_processes: bool,
    /// It has no name by which a program that is executed could map it.
    is_inherited: bool,
    /// It may become shorter.
    may_shrink: bool,
    offset: u64,
}

/// A shared mapping of the guest's.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Mapping {
    area: Area,
    shows: Shows,
}

impl Mapped {
    /// Takes an area out of the guest's reach; `None` if there is no room for its alias, or the area is
    /// too large.
    fn new(mapping: Mapping) -> Option<Mapped> {
        let Mapping { area, shows } = mapping;
        let len = area.range.end - area.range.start;
        if len > LARGEST {
            return None;
        }
        assert!(guest_may_map(&area.range));
        let alias = reserve(len + PAGE)?;
        let is_moved = shows.is_of_socket();
        let mut mapped = Mapped { area, shows, alias, has_guard: true, is_moved };
        let old_size = if is_moved { len } else { 0 };
        // SAFETY: an old size of 0 leaves the old mapping alone; the new one takes the place of what was
        // reserved just now. What is moved has just been mapped for the guest, and nobody uses it yet.
        let moved = unsafe { move_mapping(mapped.area.range.start, old_size, len, alias) };
        if moved < 0 {
            mapped.unmap_alias(&mapped.area.range);
            return None;
        }
        mapped.protect_alias();
        match is_moved {
            true => mapped.shows = placeholder(&mapped.area.range)?,
            false => mapped.area.protect(libc::PROT_NONE),
        }
        Some(mapped)
    }

    /// Lets the guest access the area by itself.
    fn open(&self) {
        let Range { start, end } = self.area.range;
        if self.is_moved {
            // SAFETY: at the guest's address is a placeholder, and the alias is not used any more. A child
            // process may not have it.
            unsafe { move_mapping(self.alias, end - start, end - start, start) };
        }
        self.area.protect(self.area.prot);
        self.unmap_alias(&self.area.range);
    }

    /// Lets the recorder access the alias, as far as the file allows it.
    fn protect_alias(&self) {
        let len = self.area.range.end - self.area.range.start;
        for prot in [libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ] {
            // SAFETY: the alias is the recorder's own.
            let result = unsafe {
                host::syscall(libc::SYS_mprotect as u64, [self.alias, len, prot as u64, 0, 0, 0])
            };
            if result == 0 {
                break;
            }
        }
    }

    /// The part that is still mapped there, with what the guest may do with it.
    fn part(&self, mapping: &Mapping) -> Option<Mapped> {
        let (old, now) = (&self.area.range, &mapping.area.range);
        let range = old.start.max(now.start)..old.end.min(now.end);
        let offset = |start: u64, shows: &Shows| shows.offset.wrapping_add(range.start - start);
        let same = range.start < range.end
            && self.shows.file == mapping.shows.file
            && offset(old.start, &self.shows) == offset(now.start, &mapping.shows);
        if !same {
            return None;
        }
        // What is out of reach is so because of this side.
        let prot = if mapping.area.prot == 0 { self.area.prot } else { mapping.area.prot };
        let mut part = self.cut(range);
        part.area.prot = prot;
        Some(part)
    }

    fn unmap_alias(&self, range: &Range<u64>) {
        let at = self.alias + (range.start - self.area.range.start);
        let guard = if self.has_guard && range.end == self.area.range.end { PAGE } else { 0 };
        let args = [at, range.end - range.start + guard, 0, 0, 0, 0];
        // SAFETY: the alias is the recorder's own, and is not used any more.
        unsafe { host::syscall(libc::SYS_munmap as u64, args) };
    }
}

impl Common {
    pub(crate) fn areas(&self) -> Vec<Area> {
        self.mapped.iter().map(|mapped| mapped.area.clone()).collect()
    }

    fn mapped_at(&self, address: u64) -> Option<&Mapped> {
        let behind = self.mapped.partition_point(|it| it.area.range.start <= address);
        let mapped = &self.mapped[behind.checked_sub(1)?];
        (address < mapped.area.range.end).then_some(mapped)
    }

    /// Whether the guest may do this with a byte.
    pub(crate) fn allows(&self, address: u64, prot: i32) -> bool {
        self.mapped_at(address).is_some_and(|it| it.area.prot & prot != 0)
    }

    /// Whether a byte may be none of its file's any more.
    pub(crate) fn may_be_gone(&self, address: u64) -> bool {
        self.mapped_at(address).is_none_or(|it| it.shows.may_shrink)
    }

    pub(crate) fn meets(&self, range: &Range<u64>) -> bool {
        self.mapped.iter().any(|it| it.area.meets(range))
    }

    /// Whether the guest writes to no shared memory by itself.
    pub(crate) fn watches_all(&self) -> bool {
        self.open.iter().all(|it| it.area.prot & libc::PROT_WRITE == 0)
    }

    /// The number of the last event of areas, which may be coming now.
    pub(crate) fn number(&mut self, comes: bool) -> u64 {
        self.events += u64::from(comes);
        self.events
    }

    pub(crate) fn has_forked(&self) -> bool {
        self.has_forked
    }

    pub(crate) fn has_relatives(&self) -> bool {
        self.has_relatives
    }

    /// What other processes may have mapped is not watched; whether no event says so yet.
    pub(crate) fn must_say_unwatched(&mut self) -> bool {
        !std::mem::replace(&mut self.has_said_unwatched, true)
    }

    /// The program has forked.
    pub(crate) fn fork(&mut self) {
        if !std::mem::replace(&mut self.has_forked, true) {
            self.open.clear();
        }
    }

    /// Looks which such memory there is: that of sockets, and if there are `relatives`, that in common with
    /// them. Two kinds of it are left out: what is not mapped `now`, if it `is_in_use` by other threads, and
    /// what shows a file of which a mapping holds code (`hold_code`), since code is executed where it is.
    pub(crate) fn look(
        &mut self,
        relatives: bool,
        is_in_use: bool,
        now: &Range<u64>,
        hold_code: impl Fn(&Range<u64>) -> bool,
    ) -> Looked {
        self.has_relatives |= relatives;
        let before = self.areas();
        let found = shared_mappings();
        let code: Vec<String> = found
            .iter()
            .filter(|it| hold_code(&it.area.range))
            .map(|it| it.shows.file.clone())
            .collect();
        let mut mapped = self.still_mapped(&found);
        let is_there = |open: &Mapping| {
            found
                .iter()
                .any(|it| it.shows.file == open.shows.file && it.area.meets(&open.area.range))
        };
        self.open.retain(is_there);
        let written: Vec<String> = found
            .iter()
            .map(|it| (it.area.prot, &it.shows))
            .chain(mapped.iter().map(|it| (it.area.prot, &it.shows)))
            .filter(|(prot, _)| prot & libc::PROT_WRITE != 0)
            .map(|(_, shows)| shows.file.clone())
            .collect();
        let mut left_out = false;
        for new in found {
            let known = mapped.iter().any(|it| it.area.meets(&new.area.range))
                || self.open.iter().any(|it| it.area.meets(&new.area.range));
            if known || new.area.prot == libc::PROT_NONE {
                continue;
            }
            let is_given =
                new.shows.is_of_processes && (self.has_forked || !new.shows.is_inherited);
            let of_socket = new.shows.is_of_socket();
            if !self.has_relatives && !of_socket {
                continue;
            }
            let is_common = match written.contains(&new.shows.file) {
                _ if of_socket => true,
                true => is_given || self.has_forked,
                false => is_given || new.shows.has_writer(),
            };
            let holds_code = code.contains(&new.shows.file);
            if !is_common || holds_code || is_in_use && !new.area.meets(now) {
                self.open.push(new);
                left_out |= is_common;
                continue;
            }
            match Mapped::new(new) {
                Some(new) => mapped.push(new),
                None => left_out = true,
            }
        }
        mapped.sort_by_key(|it| it.area.range.start);
        self.mapped = mapped;
        let differs = before != self.areas();
        if differs {
            self.publish();
        }
        Looked { differs, left_out }
    }

    /// What of the areas is still mapped, out of the guest's reach.
    fn still_mapped(&self, found: &[Mapping]) -> Vec<Mapped> {
        let mut mapped = Vec::new();
        for old in &self.mapped {
            let parts = found.iter().filter_map(|it| Some((old.part(it)?, it.area.prot)));
            let mut kept = Vec::new();
            for (part, prot) in parts {
                if prot != libc::PROT_NONE {
                    part.area.protect(libc::PROT_NONE);
                    part.protect_alias();
                }
                kept.push(part.area.clone());
                mapped.push(part);
            }
            for lost in super::outside(&kept, old.area.range.clone()) {
                old.unmap_alias(&lost);
            }
        }
        mapped
    }

    fn publish(&self) {
        let aliases: Aliases =
            self.mapped.iter().map(|it| (it.area.range.clone(), it.alias)).collect();
        elsewhere::publish(aliases);
    }

    /// The guest may do this with what it has in a range, as far as that is such memory.
    pub(crate) fn protect(&mut self, range: &Range<u64>, prot: i32) {
        for at in 0..self.mapped.len() {
            let old = self.mapped[at].area.range.clone();
            if !self.mapped[at].area.meets(range) || self.mapped[at].area.prot == prot {
                continue;
            }
            let inner = old.start.max(range.start)..old.end.min(range.end);
            for part in [old.start..inner.start, inner.end..old.end] {
                if part.start < part.end {
                    let part = self.mapped[at].cut(part);
                    self.mapped.push(part);
                }
            }
            let mut inner = self.mapped[at].cut(inner);
            inner.area.prot = prot;
            self.mapped[at] = inner;
        }
        self.mapped.sort_by_key(|it| it.area.range.start);
    }

    /// Lets the guest access what it has in a range.
    pub(crate) fn open(&mut self, range: &Range<u64>) {
        self.mapped.iter().filter(|it| it.area.meets(range)).for_each(Mapped::open);
        self.mapped.retain(|it| !it.area.meets(range));
        self.publish();
    }

    /// There is no such memory any more.
    pub(crate) fn forget(&mut self) {
        let others = Common { events: self.events, ..Common::default() };
        for mapped in std::mem::replace(self, others).mapped {
            mapped.unmap_alias(&mapped.area.range);
        }
        self.publish();
    }
}

impl Mapped {
    fn cut(&self, range: Range<u64>) -> Mapped {
        let ahead = range.start - self.area.range.start;
        let shows = Shows { offset: self.shows.offset + ahead, ..self.shows.clone() };
        let has_guard = self.has_guard && range.end == self.area.range.end;
        let area = Area { range, prot: self.area.prot };
        Mapped { area, shows, alias: self.alias + ahead, has_guard, ..*self }
    }
}

/// Address space that nobody can access.
fn reserve(len: u64) -> Option<u64> {
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    let args = [0, len, libc::PROT_NONE as u64, flags, u64::MAX, 0];
    // SAFETY: a new mapping at a place of the kernel's choice.
    u64::try_from(unsafe { host::syscall(libc::SYS_mmap as u64, args) }).ok()
}

/// Moves a mapping to another address, and replaces what is mapped there. With an old size of 0 the kernel keeps the
/// old mapping, and makes a second one at the new address.
///
/// # Safety
/// Nobody uses what is at the new address, or expects to find what is moved where it was.
unsafe fn move_mapping(from: u64, old_size: u64, size: u64, to: u64) -> i64 {
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    // SAFETY: the caller's.
    unsafe { host::syscall(libc::SYS_mremap as u64, [from, old_size, size, flags, to, 0]) }
}

/// Maps at the guest's address what nobody can access, and what is known again by its file; what it shows.
fn placeholder(range: &Range<u64>) -> Option<Shows> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let (len, none) = (range.end - range.start, libc::PROT_NONE as u64);
    let args = [range.start, len, none, flags as u64, u64::MAX, 0];
    // SAFETY: what was there has been moved away.
    unsafe { host::syscall(libc::SYS_mmap as u64, args) };
    let found = shared_mappings().into_iter().find(|it| it.area.range == *range)?;
    Some(Shows { may_shrink: true, ..found.shows })
}

impl Shows {
    /// Whether this is memory of a socket, into which the kernel writes the packets that the socket receives.
    fn is_of_socket(&self) -> bool {
        self.name.starts_with("socket:[")
    }

    /// Whether another process may write to the file.
    fn has_writer(&self) -> bool {
        let Ok(file) = File::open(&self.name) else { return false };
        let Ok(known) = file.metadata() else { return false };
        let same = self.file.ends_with(&format!(" {}", known.ino()));
        // Nobody may have a lease on what somebody has open for writing.
        // SAFETY: both calls take a descriptor and an integer.
        let lease = |what: i32| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, what) };
        if !same || lease(libc::F_RDLCK) == 0 {
            lease(libc::F_UNLCK);
            return false;
        }
        std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
            && (!writers::writes("self", &known) || writers::others_write(&known))
    }
}

/// The guest's shared mappings, by ascending addresses.
fn shared_mappings() -> Vec<Mapping> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(parse).collect()
}

/// Whether a file of this name is memory that processes give each other.
pub(crate) fn is_of_processes(name: &str) -> bool {
    name.starts_with("/memfd:") || name.starts_with("/dev/shm/")
}

fn parse(line: &str) -> Option<Mapping> {
    // start-end rwxs offset device inode name
    let (range, rest) = line.split_once(' ')?;
    let (rights, rest) = rest.split_once(' ')?;
    let (offset, file) = rest.split_once(' ')?;
    let mut parts = file.splitn(3, ' ');
    let (device, inode, name) = (parts.next()?, parts.next()?, parts.next().unwrap_or_default());
    let name = name.trim_start().to_owned();
    let (start, end) = range.split_once('-')?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let range = number(start)?..number(end)?;
    let right = |at: usize, letter: u8| rights.as_bytes().get(at) == Some(&letter);
    if !right(3, b's') || !guest_may_map(&range) {
        return None;
    }
    let prot = [(0, b'r', libc::PROT_READ), (1, b'w', libc::PROT_WRITE)];
    let prot = prot.iter().filter(|&&(at, letter, _)| right(at, letter)).map(|it| it.2).sum();
    let may_shrink = !["/dev/zero", "/SYSV"].iter().any(|start| name.starts_with(start));
    let is_of_processes = !may_shrink || is_of_processes(&name);
    // A file's name may be taken away.
    let file = format!("{device} {inode}");
    let is_inherited = name.starts_with("/dev/zero");
    let offset = number(offset)?;
    let shows = Shows { file, name, is_of_processes, is_inherited, may_shrink, offset };
    Some(Mapping { area: Area { range, prot }, shows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_parsed() {
        let line = "200000000000-200000004000 rw-s 00001000 00:01 2057 /dev/zero (deleted)";
        let Mapping { area, shows } = parse(line).expect("it is shared");
        assert_eq!(area.range, 0x2000_0000_0000..0x2000_0000_4000);
        assert_eq!(area.prot, libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!((shows.file.as_str(), shows.offset), ("00:01 2057", 0x1000));
        assert!(shows.is_of_processes && !shows.may_shrink);
        let file =
            parse(&line.replace("/dev/zero (deleted)", "     /usr/share/x")).expect("shared");
        assert!(!file.shows.is_of_processes);
        assert!(parse(&line.replace("rw-s", "rw-p")).is_none());
        assert!(parse("7f0000000000-7f0000001000 rw-s 0 00:01 1 x").is_none(), "the recorder's");
        assert_eq!(Area::of(area.range.start, &area.words()), Some(area));
    }

    #[test]
    fn what_is_still_mapped_of_an_area() {
        let mapping = |range, prot, offset| Mapping {
            area: Area { range, prot },
            shows: Shows {
                file: "f".into(),
                name: "n".into(),
                is_of_processes: true,
                is_inherited: true,
                may_shrink: true,
                offset,
            },
        };
        let Mapping { area, shows } = mapping(0x10_0000..0x18_0000, 3, 0x5_0000);
        let (alias, has_guard, is_moved) = (0x7000_0000_0000, true, false);
        let old = Mapped { area, shows, alias, has_guard, is_moved };
        // The kernel has put it together with what lies before it.
        let part = old.part(&mapping(0xf_0000..0x12_0000, 0, 0x4_0000)).expect("it is there");
        assert!(!part.has_guard);
        assert_eq!((part.area.range, part.area.prot), (0x10_0000..0x12_0000, 3));
        let part = old.part(&mapping(0x14_0000..0x18_0000, 1, 0x9_0000)).expect("it is there");
        assert_eq!((part.area.prot, part.alias), (1, 0x7000_0004_0000));
        assert!(
            old.part(&mapping(0x14_0000..0x18_0000, 3, 0x5_0000)).is_none(),
            "it shows other bytes"
        );
        assert!(old.part(&mapping(0x18_0000..0x19_0000, 3, 0xd_0000)).is_none(), "it lies behind");
    }
}
