//! The guest's address space: where its mappings go, and the calls that change it.
//!
//! Recording chooses the address of every mapping in the guest's arenas ([`crate::layout`]) and
//! tells the kernel with MAP_FIXED; replay repeats the calls with the recorded addresses. Guest
//! code is never mapped executable: it runs only translated.

pub(crate) use crate::layout::guest_may_map;
use crate::layout::{self, ARENAS, LIBRARIES, PAGE};
use crate::syscall::MachineCall;
use rangemap::RangeSet;
use std::io;
use std::ops::Range;

/// The end of a program's address space.
const USER_END: u64 = 0x7fff_ffff_f000;

/// What the kernel answers where there is a hole, or no room.
pub(crate) const OUT_OF_MEMORY: i64 = -(libc::ENOMEM as i64);

pub(crate) const fn page_down(address: u64) -> u64 {
    address & !(PAGE - 1)
}

pub(crate) const fn page_up(address: u64) -> u64 {
    page_down(address.saturating_add(PAGE - 1))
}

/// What a guest may do with a segment that it attaches with these flags.
pub(crate) fn prot_of_segment(flags: u64) -> i32 {
    let has = |flag: i32| flags & flag as u64 != 0;
    let write = if has(libc::SHM_RDONLY) { 0 } else { libc::PROT_WRITE };
    libc::PROT_READ | write | if has(libc::SHM_EXEC) { libc::PROT_EXEC } else { 0 }
}

/// Whether the guest may write and execute memory with this protection.
pub(crate) fn may_generate(prot: i32) -> bool {
    prot & libc::PROT_WRITE != 0 && prot & libc::PROT_EXEC != 0
}

/// Whether a call may give the guest the right to execute memory.
pub(crate) fn may_allow_execution(what: MachineCall, args: [u64; 6]) -> bool {
    match what {
        MachineCall::Mmap | MachineCall::Mprotect => args[2] & libc::PROT_EXEC as u64 != 0,
        MachineCall::Shmat => args[2] & libc::SHM_EXEC as u64 != 0,
        _ => false,
    }
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

/// Bytes of unmapped code whose place is not used again.
const MOST_SPENT: u64 = 64 << 20;

const MADV_DONTNEED_LOCKED: i32 = 24;

/// The guest's mappings.
pub(crate) struct AddressSpace {
    /// Mapped ranges; only what the allocator must avoid.
    used: RangeSet<u64>,
    /// Ranges that the guest believes to be executable.
    executable: RangeSet<u64>,
    /// Where files' code was that is unmapped. Other code is put there only when there is no room, or very
    /// much has been unmapped: whoever knows code by its address would have to take it for generated.
    spent: RangeSet<u64>,
    /// Ranges whose content is no private file's: what is executable there, the guest has made.
    own: RangeSet<u64>,
    /// Ranges that are shared, and show no file: the kernel keeps their content although the guest needs it
    /// no more (`MADV_DONTNEED`).
    kept: RangeSet<u64>,
    /// The guest has mapped memory that others can see it write.
    shared: bool,
    /// Where the program break may be.
    heap: Range<u64>,
    brk: u64,
    /// How many bytes the guest may map (`RLIMIT_AS`), and to what it may raise that.
    limit: [u64; 2],
    /// Bytes of `used` that were an earlier program's.
    left: u64,
}

impl AddressSpace {
    pub(crate) fn new() -> AddressSpace {
        AddressSpace {
            used: RangeSet::new(),
            executable: RangeSet::new(),
            spent: RangeSet::new(),
            own: RangeSet::new(),
            kept: RangeSet::new(),
            shared: false,
            heap: layout::HEAP,
            brk: layout::HEAP.start,
            limit: [u64::MAX; 2],
            left: 0,
        }
    }

    /// How many bytes the guest may map, and to what it may raise that.
    pub(crate) fn limit(&self) -> [u64; 2] {
        self.limit
    }

    pub(crate) fn set_limit(&mut self, limit: [u64; 2]) {
        self.limit = limit;
    }

    /// Whether so many more bytes, some of them in place of what is there, are too many. The main
    /// thread's stack counts nothing: natively it is as large as it has grown.
    fn exceeds(&self, more: u64, replaced: &Range<u64>) -> bool {
        let [most, _] = self.limit;
        if most == u64::MAX {
            return false;
        }
        let kept = |range: &Range<u64>| {
            let overlap =
                range.end.min(replaced.end).saturating_sub(range.start.max(replaced.start));
            range.end - range.start - overlap
        };
        let all = self.used.iter().filter(|range| !layout::STACK.contains(&range.start));
        let there = all.map(kept).sum::<u64>().saturating_sub(self.left);
        there.saturating_add(more) > most
    }

    /// Maps where the guest asked for (MAP_FIXED, or a hint that is free) or where there is room;
    /// returns the address or a negative errno.
    pub(crate) fn map(&mut self, request: MapRequest, purpose: Purpose) -> i64 {
        if request.len == 0 {
            return -i64::from(libc::EINVAL);
        }
        let len = page_up(request.len);
        if len < request.len {
            return -i64::from(libc::ENOMEM);
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
            match self.hinted(&request, len, purpose).or_else(|| self.room(&request, len, purpose))
            {
                Some(address) => address,
                None => return -i64::from(libc::ENOMEM),
            }
        };
        if self.exceeds(len, &(address..address.saturating_add(len))) {
            return OUT_OF_MEMORY;
        }
        match map_fixed(MapRequest { address, ..request }) {
            Ok(()) => {
                self.note(address..address + len, request.prot);
                self.note_content(address..address + len, request.flags);
                address as i64
            }
            Err(e) => -i64::from(e.raw_os_error().unwrap_or(libc::ENOMEM)),
        }
    }

    /// Where a request wants to be without insisting, if that is free: what the kernel does.
    fn hinted(&self, request: &MapRequest, len: u64, purpose: Purpose) -> Option<u64> {
        let start = page_down(request.address);
        let range = start..start.checked_add(len)?;
        let low = range.end <= layout::LIBRARIES.end;
        let must_be_low = purpose == Purpose::Code
            || request.prot & libc::PROT_EXEC != 0
            || request.flags & libc::MAP_32BIT != 0;
        let fits = guest_may_map(&range) && (low || !must_be_low) && !self.overlaps(&range);
        fits.then_some(start)
    }

    /// Room for a request that does not care.
    fn room(&self, request: &MapRequest, len: u64, purpose: Purpose) -> Option<u64> {
        if request.flags & libc::MAP_32BIT != 0 {
            return self.first_fit(layout::LIBRARIES, len, PAGE);
        }
        if request.flags & libc::MAP_HUGETLB == 0 {
            return self.place(len, purpose);
        }
        // The size's logarithm is among the flags; without one it is the usual 2 MiB.
        let size = match request.flags >> libc::MAP_HUGE_SHIFT & libc::MAP_HUGE_MASK {
            0 => 1 << 21,
            logarithm => 1_u64.checked_shl(logarithm as u32)?,
        };
        self.first_fit(layout::MAPPINGS, len.checked_next_multiple_of(size)?, size)
    }

    /// Unmaps what the guest has there; the kernel's result.
    pub(crate) fn unmap(&mut self, address: u64, len: u64) -> i64 {
        let Some(end) = address.checked_add(page_up(len)) else {
            return -i64::from(libc::EINVAL);
        };
        if !address.is_multiple_of(PAGE) || len == 0 || end > USER_END {
            return -i64::from(libc::EINVAL);
        }
        for arena in ARENAS {
            let range = address.max(arena.start)..end.min(arena.end);
            if range.is_empty() {
                continue;
            }
            self.spend(&range);
            cut(&mut self.used, &range);
            cut(&mut self.executable, &range);
            cut(&mut self.own, &range);
            let args = [range.start, range.end - range.start, 0, 0, 0, 0];
            // SAFETY: the range lies in the guest's arenas, where the host keeps nothing.
            let result = unsafe { kernel(libc::SYS_munmap, args) };
            if result != 0 {
                return result;
            }
        }
        0
    }

    /// [`Self::protect`] of several ranges, up to the first that fails.
    pub(crate) fn protect_parts(&mut self, parts: &[Range<u64>], prot: i32) -> i64 {
        let protect = |part: &Range<u64>| self.protect(part.start, part.end - part.start, prot);
        parts.iter().map(protect).find(|&result| result < 0).unwrap_or(0)
    }

    /// Changes protection; the kernel's result. Like the kernel, it has changed what lies before
    /// the first hole when it says `ENOMEM`.
    pub(crate) fn protect(&mut self, address: u64, len: u64, prot: i32) -> i64 {
        let whole = address..address.saturating_add(page_up(len));
        // The kernel lets this flag mean "from the start of the stack on".
        let grows_down = prot & libc::PROT_GROWSDOWN != 0 && layout::STACK.contains(&address);
        let (start, prot) = match grows_down {
            true => (layout::STACK.start, prot & !libc::PROT_GROWSDOWN),
            false => (address, prot),
        };
        let arena = ARENAS.iter().find(|arena| arena.contains(&start));
        let range = start..whole.end.min(arena.map_or(start, |arena| arena.end));
        if range.is_empty() && len != 0 {
            return -i64::from(libc::ENOMEM);
        }
        // SAFETY: the range lies in the guest's arenas, where the host keeps nothing.
        let result = unsafe {
            let prot = without_exec(prot) as u64;
            kernel(libc::SYS_mprotect, [start, range.end - range.start, prot, 0, 0, 0])
        };
        let changed = match result {
            0 => range.clone(),
            OUT_OF_MEMORY => start..self.first_hole(&range),
            _ => return result,
        };
        cut(&mut self.executable, &changed);
        if prot & libc::PROT_EXEC != 0 {
            join(&mut self.executable, changed);
        }
        if range.end < whole.end { OUT_OF_MEMORY } else { result }
    }

    /// The first address of a range where nothing is mapped; its end if there is none.
    fn first_hole(&self, range: &Range<u64>) -> u64 {
        let mut at = range.start;
        while let Some(mapped) = self.used.get(&at) {
            at = mapped.end;
        }
        at.min(range.end)
    }

    /// Grows or shrinks a mapping, moving it if it may; the new address or a negative errno.
    pub(crate) fn remap(&mut self, args: [u64; 6]) -> i64 {
        let [old, old_len, new_len, flags, new, _] = args;
        let (old_len, new_len) = (page_up(old_len), page_up(new_len));
        let old_range = old..old.saturating_add(old_len);
        if !guest_may_map(&(old..old_range.end.max(old.saturating_add(1)))) || new_len == 0 {
            return -i64::from(libc::EINVAL);
        }
        let has = |flag: i32| flags & flag as u64 != 0;
        let grown = old_range.end..old.saturating_add(new_len);
        let stays = !has(libc::MREMAP_DONTUNMAP) && old_len != 0;
        let in_place =
            stays && (new_len <= old_len || (!self.overlaps(&grown) && guest_may_map(&grown)));
        let target = if has(libc::MREMAP_FIXED) {
            new
        } else if in_place {
            old
        } else if has(libc::MREMAP_MAYMOVE) {
            match self.place(new_len, Purpose::Data) {
                Some(address) => address,
                None => return -i64::from(libc::ENOMEM),
            }
        } else if !stays {
            return -i64::from(libc::EINVAL);
        } else {
            return -i64::from(libc::ENOMEM);
        };
        let gone = if stays { old_range.clone() } else { old..old };
        if new_len > old_len && self.exceeds(new_len, &gone) {
            return OUT_OF_MEMORY;
        }
        let result = self.remap_to([old, old_len, new_len, flags], target);
        if result >= 0 {
            let target = target..target + new_len;
            let executable = self.holds_code(&old_range);
            if stays {
                cut(&mut self.used, &old_range);
                cut(&mut self.executable, &old_range);
            }
            cut(&mut self.executable, &target);
            if executable {
                join(&mut self.executable, target.clone());
            }
            join(&mut self.used, target);
        }
        result
    }

    /// `mremap` to a known address.
    pub(crate) fn remap_to(&self, [old, old_len, new_len, flags]: [u64; 4], target: u64) -> i64 {
        if !guest_may_map(&(target..target.saturating_add(new_len))) {
            return -i64::from(libc::EINVAL);
        }
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let flags = match target == old {
            true => flags & !known as u64,
            false => flags | (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64,
        };
        // SAFETY: both ranges lie in the guest's arenas, where the host keeps nothing.
        unsafe { kernel(libc::SYS_mremap, [old, old_len, new_len, flags, target, 0]) }
    }

    /// The program break.
    pub(crate) fn program_break(&self) -> u64 {
        self.brk
    }

    /// Moves the program break; the break as it is then.
    pub(crate) fn brk(&mut self, wanted: u64) -> i64 {
        if self.heap.contains(&wanted) {
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
        if len != 0 && !guest_may_map(&(address..address.saturating_add(page_up(len)))) {
            return OUT_OF_MEMORY;
        }
        // SAFETY: the range lies in the guest's arenas, where the host keeps nothing.
        let advise = |advice| unsafe { kernel(libc::SYS_madvise, [address, len, advice, 0, 0, 0]) };
        let result = advise(advice);
        if advice == libc::MADV_FREE as u64 && result == 0 {
            // The kernel would free the pages when it likes, and a replay could not tell when.
            return advise(libc::MADV_DONTNEED as u64);
        }
        result
    }

    /// [`Self::advise`] in a replay, where memory that is shared without a file is private.
    pub(crate) fn advise_again(&self, range: Range<u64>, advice: u64) {
        let advise = |range: Range<u64>, advice: i32| {
            self.advise(range.start, range.end - range.start, advice as u64);
        };
        match advice as i32 {
            libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED => {
                self.kept.gaps(&range).for_each(|part| advise(part, advice as i32));
            }
            libc::MADV_REMOVE => {
                let (kept, gaps) = (self.kept.overlapping(&range), self.kept.gaps(&range));
                kept.for_each(|part| {
                    let part = part.start.max(range.start)..part.end.min(range.end);
                    advise(part, libc::MADV_DONTNEED);
                });
                gaps.for_each(|part| advise(part, libc::MADV_REMOVE));
            }
            other => advise(range, other),
        }
    }

    /// Notes the files' code in a range that is unmapped.
    fn spend(&mut self, range: &Range<u64>) {
        let library = range.start.max(LIBRARIES.start)..range.end.min(LIBRARIES.end);
        let code = self.by_right_to_execute(library).into_iter().filter(|&(_, is_code)| is_code);
        let code: Vec<_> =
            code.flat_map(|(code, _)| self.own.gaps(&code).collect::<Vec<_>>()).collect();
        let mut left = MOST_SPENT - self.spent.iter().map(|it| it.end - it.start).sum::<u64>();
        for part in code {
            let size = part.end - part.start;
            if size <= left {
                left -= size;
                join(&mut self.spent, part);
            }
        }
    }

    /// What the guest may execute.
    pub(crate) fn executable(&self) -> &RangeSet<u64> {
        &self.executable
    }

    /// Whether any of the range holds code in the guest's eyes.
    pub(crate) fn holds_code(&self, range: &Range<u64>) -> bool {
        self.executable.overlaps(range)
    }

    /// Notes what a mapping with these flags shows.
    pub(crate) fn note_content(&mut self, range: Range<u64>, flags: i32) {
        // MAP_SHARED_VALIDATE has this bit, too.
        self.shared |= flags & libc::MAP_SHARED != 0;
        const SHARED_ALONE: i32 = libc::MAP_ANONYMOUS | libc::MAP_SHARED;
        match flags & SHARED_ALONE {
            SHARED_ALONE => join(&mut self.kept, range.clone()),
            _ => cut(&mut self.kept, &range),
        }
        match flags & SHARED_ALONE {
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
            && (prot & libc::PROT_WRITE != 0 || self.own.overlaps(&range));
        generates.then_some(range)
    }

    /// Where memory that can be read may be none after a call.
    pub(crate) fn taken_by(&self, what: MachineCall, args: [u64; 6]) -> Range<u64> {
        match what {
            MachineCall::Brk => args[0].max(self.heap.start)..page_up(self.brk),
            // The kernel looks for room that is free.
            MachineCall::Mmap if !replaces(args) => 0..0,
            MachineCall::Mmap
            | MachineCall::Munmap
            | MachineCall::Mprotect
            | MachineCall::Madvise => named(args),
            _ => 0..u64::MAX,
        }
    }

    /// The range of code that a call is about to take away or to replace.
    pub(crate) fn replaced_by(&self, what: MachineCall, args: [u64; 6]) -> Option<Range<u64>> {
        let changes = match what {
            MachineCall::Mmap => replaces(args),
            MachineCall::Munmap | MachineCall::Mprotect | MachineCall::Mremap => true,
            _ => false,
        };
        let range = named(args);
        (changes && self.holds_code(&range)).then_some(range)
    }

    /// Whether a process that is forked now has memory in common with the guest.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Takes all mappings away, for another program. Where code may have been, nothing is put any
    /// more unless the guest insists, as a program does that is linked to fixed addresses.
    pub(crate) fn begin_program(&mut self) {
        unmap_all();
        let libraries = layout::FIXED_PROGRAM.end..ARENAS[0].end;
        let stays = |range: &&Range<u64>| libraries.contains(&range.start);
        self.used = self.used.iter().filter(stays).cloned().collect();
        self.executable.clear();
        self.own.clear();
        self.kept.clear();
        self.left = self.used.iter().map(|range| range.end - range.start).sum();
        self.shared = false;
        self.begin_heap(layout::HEAP.start);
    }

    /// Puts the program break where a program's heap begins: behind the image of one that is linked to
    /// fixed addresses, or where all others have it. What is neither is a damaged trace's.
    pub(crate) fn begin_heap(&mut self, start: u64) {
        let behind = start..layout::FIXED_PROGRAM.end;
        let is_behind = layout::FIXED_PROGRAM.contains(&start);
        self.heap = if is_behind { behind } else { layout::HEAP };
        self.brk = self.heap.start;
    }

    /// Where the program break may be.
    pub(crate) fn heap(&self) -> &Range<u64> {
        &self.heap
    }

    /// Notes a mapping that was made elsewhere (the loader's).
    pub(crate) fn note(&mut self, range: Range<u64>, prot: i32) {
        cut(&mut self.executable, &range);
        if prot & libc::PROT_EXEC != 0 {
            join(&mut self.executable, range.clone());
        }
        join(&mut self.used, range);
    }

    /// A range in parts that the guest may execute or not.
    pub(crate) fn by_right_to_execute(&self, range: Range<u64>) -> Vec<(Range<u64>, bool)> {
        let within = |code: &Range<u64>| code.start.max(range.start)..code.end.min(range.end);
        let code = self.executable.overlapping(&range).map(|code| (within(code), true));
        let rest = self.executable.gaps(&range).map(|rest| (rest, false));
        let mut parts: Vec<_> = code.chain(rest).collect();
        parts.sort_by_key(|(part, _)| part.start);
        parts
    }

    /// Something was unmapped elsewhere.
    pub(crate) fn forget(&mut self, range: Range<u64>) {
        cut(&mut self.used, &range);
        cut(&mut self.executable, &range);
    }

    /// Whether nothing is mapped there.
    pub(crate) fn is_free(&self, range: &Range<u64>) -> bool {
        !self.overlaps(range)
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.used.overlaps(range)
    }

    /// Finds room: for code low, for everything else high.
    pub(crate) fn place(&self, len: u64, purpose: Purpose) -> Option<u64> {
        let low = match purpose {
            Purpose::Code => {
                let avoids =
                    self.used.overlapping(&LIBRARIES).chain(self.spent.overlapping(&LIBRARIES));
                let mut avoids: Vec<_> = avoids.collect();
                avoids.sort_by_key(|range| range.start);
                let unspent = fit(LIBRARIES, len, PAGE, avoids.into_iter());
                unspent.or_else(|| self.first_fit(LIBRARIES, len, PAGE))
            }
            Purpose::Data => None,
        };
        low.or_else(|| self.first_fit(layout::MAPPINGS, len, PAGE))
            .or_else(|| self.first_fit(layout::LARGE_MAPPINGS, len, PAGE))
    }

    /// Lowest gap of `len` bytes at a multiple of `align`, with a page of distance to its
    /// neighbours.
    pub(crate) fn first_fit(&self, arena: Range<u64>, len: u64, align: u64) -> Option<u64> {
        fit(arena.clone(), len, align, self.used.overlapping(&arena))
    }
}

/// The same, between ranges that are ascending.
fn fit<'a>(
    arena: Range<u64>,
    len: u64,
    align: u64,
    avoids: impl Iterator<Item = &'a Range<u64>>,
) -> Option<u64> {
    let mut at = arena.start.next_multiple_of(align);
    for avoided in avoids {
        if avoided.start >= at.checked_add(len)?.checked_add(PAGE)? {
            break;
        }
        at = at.max((avoided.end + PAGE).next_multiple_of(align));
    }
    (at.checked_add(len)? <= arena.end).then_some(at)
}

/// Takes away all that the guest has mapped.
pub(crate) fn unmap_all() {
    for arena in ARENAS {
        // SAFETY: the host keeps nothing in the guest's arenas.
        unsafe { kernel(libc::SYS_munmap, [arena.start, arena.end - arena.start, 0, 0, 0, 0]) };
    }
}

/// Maps at exactly `request.address`, replacing what was there.
pub(crate) fn map_fixed(request: MapRequest) -> io::Result<()> {
    // Those that would have the kernel choose another place are left out. (What it does not know
    // it ignores, unless it is told to validate.)
    let left_out = libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT;
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
                (request.flags & !left_out | libc::MAP_FIXED) as u64,
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

/// # Safety
/// As for [`crate::host::syscall`].
unsafe fn kernel(nr: libc::c_long, args: [u64; 6]) -> i64 {
    // SAFETY: the caller's.
    unsafe { crate::host::syscall(nr as u64, args) }
}

/// Removes a range, which may be empty, from a set of ranges.
fn cut(set: &mut RangeSet<u64>, range: &Range<u64>) {
    if !range.is_empty() {
        set.remove(range.clone());
    }
}

/// Adds a range, which may be empty, to a set of ranges.
pub(crate) fn join(set: &mut RangeSet<u64>, range: Range<u64>) {
    if !range.is_empty() {
        set.insert(range);
    }
}

/// The range that a call names which changes memory.
pub(crate) fn named(args: [u64; 6]) -> Range<u64> {
    args[0]..args[0].saturating_add(page_up(args[1]))
}

/// Whether an `mmap` takes the place of what is there.
pub(crate) fn replaces(args: [u64; 6]) -> bool {
    args[3] & libc::MAP_FIXED as u64 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn code_goes_where_none_has_been() {
        let mut space = AddressSpace::new();
        let file = std::fs::File::open("/proc/self/exe").expect("is there");
        let request = MapRequest {
            address: 0,
            len: 2 * PAGE,
            prot: libc::PROT_READ | libc::PROT_EXEC,
            flags: libc::MAP_PRIVATE,
            fd: std::os::fd::AsRawFd::as_raw_fd(&file),
            offset: 0,
        };
        let of_file = |space: &mut AddressSpace| space.map(request, Purpose::Code) as u64;
        let first = of_file(&mut space);
        assert_eq!(space.unmap(first, 2 * PAGE), 0);
        let second = of_file(&mut space);
        assert_eq!(second, first + 3 * PAGE, "a page behind the first one's place");
        assert_eq!(space.unmap(second, 2 * PAGE), 0);
        let data = MapRequest { prot: libc::PROT_READ, ..request };
        let place = |space: &mut AddressSpace| {
            let place = space.map(data, Purpose::Code) as u64;
            assert_eq!(space.unmap(place, 2 * PAGE), 0);
            place
        };
        assert_eq!(place(&mut space), place(&mut space), "was no code");
        let large = LIBRARIES.end - LIBRARIES.start;
        assert_eq!(space.place(large, Purpose::Code), Some(LIBRARIES.start), "no other room");
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
        let large = MapRequest { len: 8 << 40, prot: libc::PROT_NONE, ..request };
        let place = space.map(large, Purpose::Data);
        assert!(layout::LARGE_MAPPINGS.contains(&(place as u64)), "{place:#x}");
        assert_eq!(space.unmap(place as u64, 8 << 40), 0);
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
