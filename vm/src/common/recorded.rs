//! The recorder's side: memory, views, and what is mapped where.
//!
//! Each area is mapped three times. The *memory* itself and the *view* lie where the kernel puts them;
//! at the guest's address there is the view, out of reach, and while a system call or a library
//! function runs, the memory.

use super::Area;
use crate::host::{self, Guest};
use crate::layout::{PAGE, guest_may_map};
use refrain_trace::payload::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Larger mappings are not watched.
const LARGEST: u64 = 4 << 30;
/// Equal bytes between two that differ that are kept with them.
const GAP: usize = 16;
pub(crate) const WORDS: usize = PAGE as usize / 8;

/// What the recorder knows of such memory.
#[derive(Default)]
pub(crate) struct Common {
    pub(crate) mapped: Vec<Mapped>,
    /// Mappings may have changed since they were looked at.
    pub(crate) stale: bool,
    /// The guest's addresses show the memory.
    pub(crate) revealed: bool,
}

/// An area.
pub(crate) struct Mapped {
    pub(crate) area: Area,
    /// What it shows, in the words of the kernel.
    pub(crate) content: String,
    pub(crate) memory: u64,
    pub(crate) view: u64,
}

/// A page of words.
pub(crate) type Words = [u64; WORDS];

impl Mapped {
    /// Of an area at which the memory is; `None` if there is no room, or the area is too large.
    pub(crate) fn new(area: Area, content: String) -> Option<Mapped> {
        let len = area.range.end - area.range.start;
        if len > LARGEST {
            return None;
        }
        let memory = again(area.range.start, len, None)?;
        Some(Mapped { memory, view: new_view(len)?, area, content })
    }

    fn len(&self) -> u64 {
        self.area.range.end - self.area.range.start
    }

    /// The words of a page, in the memory or in the view.
    pub(crate) fn words(&self, of: u64, page: u64) -> &[AtomicU64; WORDS] {
        assert!(self.area.range.contains(&page) && page.is_multiple_of(PAGE));
        let at = of + (page - self.area.range.start);
        // SAFETY: both mappings have the length of the area, and are there as long as this value;
        // others change the words at will, which atomic accesses allow for.
        unsafe { &*(at as *const [AtomicU64; WORDS]) }
    }

    pub(crate) fn load(&self, of: u64, page: u64) -> Box<Words> {
        let words = self.words(of, page);
        Box::new(std::array::from_fn(|at| words[at].load(Ordering::Acquire)))
    }

    pub(crate) fn set_view(&self, page: u64, words: &Words) {
        for (place, &word) in self.words(self.view, page).iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }

    /// Shows the memory at the guest's address.
    pub(crate) fn reveal(&self) {
        again(self.memory, self.len(), Some(self.area.range.start));
    }

    pub(crate) fn conceal(&self) {
        again(self.view, self.len(), Some(self.area.range.start));
        self.area.conceal();
    }

    pub(crate) fn unmap(&self) {
        for at in [self.memory, self.view] {
            // SAFETY: both are the recorder's own, and are not used any more.
            unsafe { host::syscall(libc::SYS_munmap as u64, [at, self.len(), 0, 0, 0, 0]) };
        }
    }
}

/// Maps what is shared at `old` again: at an address of the guest's, or anywhere.
pub(crate) fn again(old: u64, len: u64, at: Option<u64>) -> Option<u64> {
    assert!(at.is_none_or(|at| guest_may_map(&(at..at + len))));
    let flags = libc::MREMAP_MAYMOVE | if at.is_some() { libc::MREMAP_FIXED } else { 0 };
    let args = [old, 0, len, flags as u64, at.unwrap_or(0), 0];
    // SAFETY: an old size of 0 leaves the old mapping alone; the new one lies where the host keeps
    // nothing, or where the kernel has room.
    let result = unsafe { host::syscall(libc::SYS_mremap as u64, args) };
    assert!(at.is_none() || result > 0, "what could be mapped once can be mapped again");
    u64::try_from(result).ok()
}

/// Memory for a view, all zero.
fn new_view(len: u64) -> Option<u64> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let at = unsafe { host::syscall(libc::SYS_mmap as u64, [0, len, prot, flags, u64::MAX, 0]) };
    u64::try_from(at).ok()
}

/// The bytes of a page that changed.
pub(crate) fn changes(page: u64, before: &Words, after: &Words, writes: &mut Vec<Write>) {
    let bytes =
        |words: &Words| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    if before == after {
        return;
    }
    let (before, after) = (bytes(before), bytes(after));
    let mut from = None::<(usize, usize)>;
    for at in (0..PAGE as usize).filter(|&at| before[at] != after[at]) {
        match &mut from {
            Some((_, end)) if at - *end < GAP => *end = at + 1,
            open => {
                let done = open.replace((at, at + 1));
                writes.extend(done.map(|done| run(page, &after, done)));
            }
        }
    }
    writes.extend(from.map(|last| run(page, &after, last)));
}

fn run(page: u64, bytes: &[u8], (start, end): (usize, usize)) -> Write {
    Write { address: page + start as u64, bytes: bytes[start..end].to_vec() }
}

impl Common {
    pub(crate) fn areas(&self) -> impl Iterator<Item = &Area> {
        self.mapped.iter().map(|mapped| &mapped.area)
    }

    pub(crate) fn at(&self, page: u64) -> &Mapped {
        let holds = |mapped: &&Mapped| mapped.area.range.contains(&page);
        self.mapped.iter().find(holds).expect("the page is in an area")
    }

    /// Brings a page of the view up to date: what it was, and what it is. `None` if the memory is
    /// not there: its file has become shorter.
    pub(crate) fn look(&self, page: u64) -> Option<(Box<Words>, Box<Words>)> {
        let mapped = self.at(page);
        let at = mapped.memory + (page - mapped.area.range.start);
        Guest.read_into(at, &mut [0; 1]).then(|| {
            let (before, now) = (mapped.load(mapped.view, page), mapped.load(mapped.memory, page));
            mapped.set_view(page, &now);
            (before, now)
        })
    }

    /// Stores what was changed in the view since it was `seen`. If it is `once`, nothing is where the
    /// first word is not what it was any more: false, then.
    pub(crate) fn store(&self, seen: &[(u64, Box<Words>)], once: bool) -> bool {
        let mut stored = !once;
        for (page, seen) in seen {
            let mapped = self.at(*page);
            let now = mapped.load(mapped.view, *page);
            let memory = mapped.words(mapped.memory, *page);
            for ((place, &old), &new) in memory.iter().zip(seen.iter()).zip(now.iter()) {
                if old == new {
                    continue;
                }
                let order = Ordering::SeqCst;
                if place.compare_exchange(old, new, order, order).is_err() {
                    if !stored {
                        return false;
                    }
                    let merged =
                        |other: u64| other & !different(old, new) | new & different(old, new);
                    let _ = place.fetch_update(order, order, |other| Some(merged(other)));
                }
                stored = true;
            }
        }
        true
    }
}

/// All bits of the bytes in which two words differ.
fn different(a: u64, b: u64) -> u64 {
    let differ = (a ^ b).to_le_bytes();
    u64::from_le_bytes(differ.map(|byte| if byte == 0 { 0 } else { 0xff }))
}

/// The guest's memory that others can write: shared mappings of what is mapped so that it may be
/// written, by ascending addresses, each with what it shows.
pub(crate) fn shared_mappings() -> Vec<(Area, String)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let all = || maps.lines().filter_map(parse);
    let written: Vec<&str> = all()
        .filter(|(area, ..)| area.prot & libc::PROT_WRITE != 0)
        .map(|(.., file)| file)
        .collect();
    all()
        .filter(|(area, _, file)| area.prot != libc::PROT_NONE && written.contains(file))
        .map(|(area, content, _)| (area, content.to_owned()))
        .collect()
}

/// A shared mapping of the guest's that holds no code; what it shows, and the file of that.
fn parse(line: &str) -> Option<(Area, &str, &str)> {
    // start-end rwxs offset device inode name
    let (range, rest) = line.split_once(' ')?;
    let (rights, content) = rest.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let range = number(start)?..number(end)?;
    let right = |at: usize, letter: u8| rights.as_bytes().get(at) == Some(&letter);
    if !right(3, b's') || right(2, b'x') || !guest_may_map(&range) {
        return None;
    }
    let prot = [(0, b'r', libc::PROT_READ), (1, b'w', libc::PROT_WRITE)];
    let prot = prot.iter().filter(|&&(at, letter, _)| right(at, letter)).map(|it| it.2).sum();
    let (_, file) = content.split_once(' ')?;
    Some((Area { range, prot }, content, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_parsed() {
        let line = "200000000000-200000004000 rw-s 00001000 00:01 2057 /dev/zero (deleted)";
        let (area, content, file) = parse(line).expect("it is shared");
        assert_eq!(area.range, 0x2000_0000_0000..0x2000_0000_4000);
        assert_eq!(area.prot, libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(content, "00001000 00:01 2057 /dev/zero (deleted)");
        assert_eq!(file, "00:01 2057 /dev/zero (deleted)");
        assert!(parse(&line.replace("rw-s", "rw-p")).is_none());
        assert!(parse(&line.replace("rw-s", "r-xs")).is_none(), "code is executed where it is");
        assert!(parse("7f0000000000-7f0000001000 rw-s 0 00:01 1 x").is_none(), "the recorder's");
        assert_eq!(Area::of(area.range.start, &area.words()), Some(area));
    }

    #[test]
    fn changes_are_runs_of_bytes() {
        let mut after = [0; WORDS];
        after[1] = 0x0100_0000_0000_0001;
        after[2] = 5;
        after[100] = 9;
        let mut writes = Vec::new();
        changes(0x1000, &[0; WORDS], &after, &mut writes);
        let places: Vec<_> = writes.iter().map(|it| (it.address, it.bytes.len())).collect();
        assert_eq!(places, [(0x1008, 9), (0x1000 + 800, 1)]);
        assert_eq!(different(0x11_0000_2200, 0x11_0033_2201), 0xff_00ff);
    }
}
