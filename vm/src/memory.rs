//! The guest's address space: where its mappings go, and the calls that change it.
//!
//! Recording chooses the address of every mapping in the guest's arenas ([`crate::layout`]) and
//! tells the kernel with MAP_FIXED; replay repeats the calls with the recorded addresses. Guest
//! code is never mapped executable: it runs only translated.

use crate::layout::{self, PAGE};
use crate::syscall::MachineCall;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

pub(crate) const fn page_down(address: u64) -> u64 {
    address & !(PAGE - 1)
}

pub(crate) const fn page_up(address: u64) -> u64 {
    page_down(address.saturating_add(PAGE - 1))
}

/// What a request to map says about the mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapRequest {
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) prot: i32,
    pub(crate) flags: i32,
    pub(crate) fd: i32,
    pub(crate) offset: i64,
}

/// What a new mapping is for, which decides where it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// It may hold code: it goes where engines expect code, as long as there is room.
    Code,
    Data,
}

/// The guest's mappings.
pub(crate) struct AddressSpace {
    /// Mapped ranges by start (end), coalesced; only what the allocator must avoid.
    used: BTreeMap<u64, u64>,
    /// Ranges that the guest believes to be executable.
    executable: BTreeMap<u64, u64>,
    /// Ranges whose content is no private file's: what is executable there, the guest has made.
    own: BTreeMap<u64, u64>,
    /// The guest has mapped memory that others can see it write.
    shared: bool,
    brk: u64,
}

impl AddressSpace {
    pub(crate) fn new() -> AddressSpace {
        AddressSpace {
            used: BTreeMap::new(),
            executable: BTreeMap::new(),
            own: BTreeMap::new(),
            shared: false,
            brk: layout::HEAP.start,
        }
    }

    /// Maps where the guest asked for (MAP_FIXED) or where there is room; returns the address or
    /// a negative errno.
    pub(crate) fn map(&mut self, request: MapRequest, purpose: Purpose) -> i64 {
        let len = page_up(request.len);
        if request.len == 0 || len == 0 {
            return -i64::from(libc::EINVAL);
        }
        let fixed = request.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
        let address = if fixed {
            let range = request.address..request.address.saturating_add(len);
            if !guest_may_map(&range) {
                return -i64::from(libc::ENOMEM);
            }
            if request.flags & libc::MAP_FIXED_NOREPLACE != 0 && self.overlaps(&range) {
                return -i64::from(libc::EEXIST);
            }
            request.address
        } else {
            match self.place(len, purpose) {
                Some(address) => address,
                None => return -i64::from(libc::ENOMEM),
            }
        };
        match map_fixed(MapRequest { address, ..request }) {
            Ok(()) => {
                self.note(address..address + len, request.prot);
                self.note_content(address..address + len, request.flags);
                // MAP_SHARED_VALIDATE has this bit, too.
                let shared = request.flags & libc::MAP_SHARED != 0;
                self.shared |= shared && request.prot & libc::PROT_WRITE != 0;
                address as i64
            }
            Err(e) => -i64::from(e.raw_os_error().unwrap_or(libc::ENOMEM)),
        }
    }

    /// Unmaps; the kernel's result.
    pub(crate) fn unmap(&mut self, address: u64, len: u64) -> i64 {
        let range = address..address.saturating_add(page_up(len));
        if !address.is_multiple_of(PAGE) || len == 0 || !guest_may_map(&range) {
            return -i64::from(libc::EINVAL);
        }
        cut(&mut self.used, &range);
        cut(&mut self.executable, &range);
        cut(&mut self.own, &range);
        // SAFETY: the range lies in the guest's arenas, where the host keeps nothing.
        unsafe { kernel(libc::SYS_munmap, [address, page_up(len), 0, 0, 0, 0]) }
    }

    /// Changes protection; the kernel's result.
    pub(crate) fn protect(&mut self, address: u64, len: u64, prot: i32) -> i64 {
        let range = address..address.saturating_add(page_up(len));
        if !guest_may_map(&range) {
            return -i64::from(libc::ENOMEM);
        }
        // SAFETY: the range lies in the guest's arenas, where the host keeps nothing.
        let result = unsafe {
            let prot = without_exec(prot) as u64;
            kernel(libc::SYS_mprotect, [address, len, prot, 0, 0, 0])
        };
        if result == 0 {
            cut(&mut self.executable, &range);
            if prot & libc::PROT_EXEC != 0 {
                join(&mut self.executable, range);
            }
        }
        result
    }

    /// Grows or shrinks a mapping, moving it if it may; the new address or a negative errno.
    pub(crate) fn remap(&mut self, args: [u64; 6]) -> i64 {
        let [old, old_len, new_len, flags, new, _] = args;
        let (old_len, new_len) = (page_up(old_len), page_up(new_len));
        let old_range = old..old.saturating_add(old_len);
        if !guest_may_map(&old_range) || new_len == 0 {
            return -i64::from(libc::EINVAL);
        }
        let fixed = flags & libc::MREMAP_FIXED as u64 != 0;
        let grown = old_range.end..old.saturating_add(new_len);
        let in_place = new_len <= old_len || (!self.overlaps(&grown) && guest_may_map(&grown));
        let target = if fixed {
            new
        } else if in_place {
            old
        } else if flags & libc::MREMAP_MAYMOVE as u64 != 0 {
            match self.place(new_len, Purpose::Data) {
                Some(address) => address,
                None => return -i64::from(libc::ENOMEM),
            }
        } else {
            return -i64::from(libc::ENOMEM);
        };
        let result = self.remap_to(old, old_len, new_len, target);
        if result >= 0 {
            cut(&mut self.used, &old_range);
            join(&mut self.used, target..target + new_len);
        }
        result
    }

    /// `mremap` to a known address.
    pub(crate) fn remap_to(&self, old: u64, old_len: u64, new_len: u64, target: u64) -> i64 {
        if !guest_may_map(&(target..target.saturating_add(new_len))) {
            return -i64::from(libc::EINVAL);
        }
        let flags = if target == old { 0 } else { libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED };
        // SAFETY: both ranges lie in the guest's arenas, where the host keeps nothing.
        unsafe { kernel(libc::SYS_mremap, [old, old_len, new_len, flags as u64, target, 0]) }
    }

    /// Moves the program break; the break as it is then.
    pub(crate) fn brk(&mut self, wanted: u64) -> i64 {
        if (layout::HEAP.start..layout::HEAP.end).contains(&wanted) {
            let (old, new) = (page_up(self.brk), page_up(wanted));
            let done = if new > old {
                let grown = MapRequest {
                    address: old,
                    len: new - old,
                    prot: libc::PROT_READ | libc::PROT_WRITE,
                    flags: libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                    fd: -1,
                    offset: 0,
                };
                self.map(grown, Purpose::Data) >= 0
            } else {
                new == old || self.unmap(new, old - new) == 0
            };
            if done {
                self.brk = wanted;
            }
        }
        self.brk as i64
    }

    /// `madvise`: passed on within the guest's arenas.
    pub(crate) fn advise(&self, address: u64, len: u64, advice: u64) -> i64 {
        if !guest_may_map(&(address..address.saturating_add(page_up(len)))) {
            return -i64::from(libc::ENOMEM);
        }
        // SAFETY: the range lies in the guest's arenas, where the host keeps nothing.
        unsafe { kernel(libc::SYS_madvise, [address, len, advice, 0, 0, 0]) }
    }

    /// Whether any of the range holds code in the guest's eyes.
    pub(crate) fn holds_code(&self, range: &Range<u64>) -> bool {
        intersects(&self.executable, range)
    }

    /// Notes what a mapping with these flags shows.
    pub(crate) fn note_content(&mut self, range: Range<u64>, flags: i32) {
        // MAP_SHARED_VALIDATE has this bit, too.
        match flags & (libc::MAP_ANONYMOUS | libc::MAP_SHARED) {
            0 => cut(&mut self.own, &range),
            _ => join(&mut self.own, range),
        }
    }

    /// The range where the guest generates code, if this call, which has succeeded with this
    /// result, lets it: by code that may be written, or by code that is no file's.
    pub(crate) fn generated_by(
        &self,
        what: MachineCall,
        args: [u64; 6],
        result: i64,
    ) -> Option<Range<u64>> {
        let [address, len, prot, ..] = args;
        let start = match what {
            MachineCall::Mmap => result as u64,
            MachineCall::Mprotect => address,
            _ => return None,
        };
        let range = start..start.saturating_add(page_up(len));
        let prot = prot as i32;
        let generates = prot & libc::PROT_EXEC != 0
            && (prot & libc::PROT_WRITE != 0 || intersects(&self.own, &range));
        generates.then_some(range)
    }

    /// The range of code that a call is about to take away or to replace.
    pub(crate) fn replaced_by(&self, what: MachineCall, args: [u64; 6]) -> Option<Range<u64>> {
        let fixed = libc::MAP_FIXED as u64;
        let changes = match what {
            MachineCall::Mmap => args[3] & fixed != 0,
            MachineCall::Munmap | MachineCall::Mprotect | MachineCall::Mremap => true,
            _ => false,
        };
        let range = args[0]..args[0].saturating_add(page_up(args[1]));
        (changes && self.holds_code(&range)).then_some(range)
    }

    /// Whether a process that is forked now has memory in common with the guest.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Notes a mapping that was made elsewhere (the loader's).
    pub(crate) fn note(&mut self, range: Range<u64>, prot: i32) {
        cut(&mut self.executable, &range);
        if prot & libc::PROT_EXEC != 0 {
            join(&mut self.executable, range.clone());
        }
        join(&mut self.used, range);
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        intersects(&self.used, range)
    }

    /// Finds room: for code low, for everything else high.
    fn place(&self, len: u64, purpose: Purpose) -> Option<u64> {
        let low = match purpose {
            Purpose::Code => self.first_fit(layout::LIBRARIES, len),
            Purpose::Data => None,
        };
        low.or_else(|| self.first_fit(layout::MAPPINGS, len))
    }

    /// Lowest gap of `len` bytes, with a page of distance to its neighbours.
    fn first_fit(&self, arena: Range<u64>, len: u64) -> Option<u64> {
        let mut at = arena.start;
        for (&start, &end) in self.used.range(arena.start..arena.end) {
            if start >= at.checked_add(len)?.checked_add(PAGE)? {
                break;
            }
            at = at.max(end + PAGE);
        }
        (at.checked_add(len)? <= arena.end).then_some(at)
    }
}

/// Maps at exactly `request.address`, replacing what was there.
pub(crate) fn map_fixed(request: MapRequest) -> io::Result<()> {
    let keep = libc::MAP_SHARED
        | libc::MAP_PRIVATE
        | libc::MAP_ANONYMOUS
        | libc::MAP_NORESERVE
        | libc::MAP_POPULATE
        | libc::MAP_STACK;
    assert!(
        guest_may_map(&(request.address..request.address.saturating_add(request.len))),
        "callers check that a guest mapping lies in the guest's arenas"
    );
    // SAFETY: the range lies in the guest's arenas, where the host keeps nothing, so replacing
    // what is mapped there can only affect the guest.
    let result = unsafe {
        kernel(
            libc::SYS_mmap,
            [
                request.address,
                page_up(request.len),
                without_exec(request.prot) as u64,
                (request.flags & keep | libc::MAP_FIXED) as u64,
                request.fd as u64,
                request.offset as u64,
            ],
        )
    };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result as i32));
    }
    Ok(())
}

/// Guest code is read by the engines and executed only as they translate it.
fn without_exec(prot: i32) -> i32 {
    if prot & libc::PROT_EXEC != 0 { prot & !libc::PROT_EXEC | libc::PROT_READ } else { prot }
}

/// Whether the whole range lies in one arena of the guest.
pub(crate) fn guest_may_map(range: &Range<u64>) -> bool {
    let low = layout::FIXED_PROGRAM.start..layout::LIBRARIES.end;
    [low, layout::HEAP, layout::STACK, layout::MAPPINGS].iter().any(|arena| {
        range.start >= arena.start && range.end <= arena.end && range.start < range.end
    })
}

/// # Safety
/// As for [`crate::host::syscall`].
unsafe fn kernel(nr: libc::c_long, args: [u64; 6]) -> i64 {
    // SAFETY: the caller's.
    unsafe { crate::host::syscall(nr as u64, args) }
}

fn intersects(map: &BTreeMap<u64, u64>, range: &Range<u64>) -> bool {
    map.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
}

/// Removes `range` from a set of disjoint ranges.
pub(crate) fn cut(map: &mut BTreeMap<u64, u64>, range: &Range<u64>) {
    let hit: Vec<(u64, u64)> = map
        .range(..range.end)
        .rev()
        .take_while(|&(_, &end)| end > range.start)
        .map(|(&start, &end)| (start, end))
        .collect();
    for (start, end) in hit {
        map.remove(&start);
        if start < range.start {
            map.insert(start, range.start);
        }
        if end > range.end {
            map.insert(range.end, end);
        }
    }
}

/// Adds `range`, merging it with what touches it.
pub(crate) fn join(map: &mut BTreeMap<u64, u64>, range: Range<u64>) {
    cut(map, &range);
    let mut merged = range;
    if let Some((&start, &end)) = map.range(..merged.start).next_back()
        && end == merged.start
    {
        map.remove(&start);
        merged.start = start;
    }
    if let Some(end) = map.remove(&merged.end) {
        merged.end = end;
    }
    map.insert(merged.start, merged.end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_cut() {
        let mut map = BTreeMap::new();
        join(&mut map, 0..10);
        join(&mut map, 20..30);
        join(&mut map, 10..20);
        assert_eq!(map, BTreeMap::from([(0, 30)]));
        cut(&mut map, &(5..7));
        assert_eq!(map, BTreeMap::from([(0, 5), (7, 30)]));
        assert!(intersects(&map, &(4..6)) && !intersects(&map, &(5..7)));
        cut(&mut map, &(0..100));
        assert!(map.is_empty());
    }

    #[test]
    fn code_that_is_no_files_is_generated() {
        let mut space = AddressSpace::new();
        let (read, write, exec) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
        let args = |prot: i32| [0x10000, PAGE, prot as u64, 0, 0, 0];
        let protects = |space: &AddressSpace, prot| {
            space.generated_by(MachineCall::Mprotect, args(prot), 0).is_some()
        };
        let page = 0x10000..0x10000 + PAGE;
        space.note_content(page.clone(), libc::MAP_PRIVATE);
        assert!(!protects(&space, read | exec) && protects(&space, read | write | exec));
        space.note_content(page.clone(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        assert!(protects(&space, read | exec) && !protects(&space, read | write));
        space.note_content(page, libc::MAP_PRIVATE);
        assert!(!protects(&space, read | exec));
    }

    #[test]
    fn code_goes_where_engines_expect_it() {
        let mut space = AddressSpace::new();
        let request = MapRequest {
            address: 0,
            len: PAGE,
            prot: libc::PROT_NONE,
            flags: libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            fd: -1,
            offset: 0,
        };
        let place = space.map(request, Purpose::Code);
        assert!(layout::LIBRARIES.contains(&(place as u64)), "{place:#x}");
        assert_eq!(space.unmap(place as u64, PAGE), 0);
    }

    #[test]
    fn mappings_get_distinct_addresses_in_the_arena() {
        let mut space = AddressSpace::new();
        let request = MapRequest {
            address: 0,
            len: 3 * PAGE - 1,
            prot: libc::PROT_READ | libc::PROT_WRITE,
            flags: libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            fd: -1,
            offset: 0,
        };
        let map = |space: &mut AddressSpace| space.map(request, Purpose::Data);
        let (a, b) = (map(&mut space), map(&mut space));
        assert_eq!((a as u64, b as u64), (layout::MAPPINGS.start, a as u64 + 4 * PAGE));
        assert_eq!(space.unmap(a as u64, 3 * PAGE), 0);
        assert_eq!(map(&mut space), a, "the gap is used again");
        assert_eq!(space.unmap(a as u64, 3 * PAGE), 0);
        assert_eq!(space.unmap(b as u64, 3 * PAGE), 0);
        let elsewhere = MapRequest {
            address: 0x5555_0000_0000,
            flags: request.flags | libc::MAP_FIXED,
            ..request
        };
        assert_eq!(space.map(elsewhere, Purpose::Data), -12);
    }
}
