//! Memory in common with other processes, which are not recorded.
//!
//! A program that shares memory with processes that it has forked reads there what they write. So
//! each access of such memory is an event with what the memory shows (`record::common`,
//! `replay::common`). To catch each access, both sides keep the memory out of the guest's reach:
//! an access faults, and the machine executes the instruction by itself, on a *view* of the pages that
//! the instruction touches. The view is private memory, the same in the recording and in the replay. The
//! machine brings the view up to date before; a recording then brings what the instruction has changed
//! to the memory itself.
//!
//! Library functions and system calls go to the memory itself (in a replay, nothing does). All this
//! lasts as long as the program has one thread, and ends with the second one (`common::END`).

pub(crate) mod recorded;
pub(crate) mod replayed;

use crate::host;
use crate::layout::{PAGE, guest_may_map};
use crate::memory::page_down;
use std::ops::Range;

/// A stretch of pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Area {
    pub(crate) range: Range<u64>,
    /// What the guest may do with it.
    pub(crate) prot: i32,
}

impl Area {
    /// The area that an event names; `None` if it can be no guest's.
    pub(crate) fn of(address: u64, words: &[u8]) -> Option<Area> {
        let (len, prot) = words.split_first_chunk()?;
        let end = address.checked_add(u64::from_le_bytes(*len))?;
        let prot = u64::from_le_bytes(*prot.first_chunk()?) as i32;
        let range = address..end;
        let whole = address.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
        let known = prot & !(libc::PROT_READ | libc::PROT_WRITE) == 0;
        (whole && known && guest_may_map(&range)).then_some(Area { range, prot })
    }

    /// The words that name it in an event.
    pub(crate) fn words(&self) -> Vec<u8> {
        let len = self.range.end - self.range.start;
        [len.to_le_bytes(), (self.prot as u64).to_le_bytes()].concat()
    }

    /// Lets the guest access some of it, or, with `PROT_NONE`, not.
    pub(crate) fn protect(&self, range: Range<u64>, prot: i32) {
        assert!(self.range.start <= range.start && range.end <= self.range.end);
        let args = [range.start, range.end - range.start, prot as u64, 0, 0, 0];
        // SAFETY: an area lies in the guest's arenas, where the host keeps nothing.
        let result = unsafe { host::syscall(libc::SYS_mprotect as u64, args) };
        assert!(result == 0, "the pages of an area are mapped, and its view may be accessed");
    }

    /// As it is between two accesses.
    pub(crate) fn conceal(&self) {
        self.protect(self.range.clone(), libc::PROT_NONE);
    }
}

/// The pages that an instruction, which is executed by itself, may access.
#[derive(Default)]
pub(crate) struct OpenPages<'a> {
    pub(crate) pages: Vec<(&'a Area, u64)>,
}

impl<'a> OpenPages<'a> {
    /// Lets the guest access the page of an address, as it may natively. `None` if it is in no area, or
    /// open already.
    pub(crate) fn open(
        &mut self,
        areas: impl Iterator<Item = &'a Area>,
        address: u64,
    ) -> Option<u64> {
        let page = page_down(address);
        let mut areas = areas;
        let area = areas.find(|area| area.range.contains(&page))?;
        if self.pages.iter().any(|&(_, open)| open == page) {
            return None;
        }
        area.protect(page..page + PAGE, area.prot);
        self.pages.push((area, page));
        Some(page)
    }
}

impl Drop for OpenPages<'_> {
    fn drop(&mut self) {
        for (area, page) in self.pages.drain(..) {
            area.protect(page..page + PAGE, libc::PROT_NONE);
        }
    }
}
