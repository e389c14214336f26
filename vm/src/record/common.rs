//! Recording memory in common with other processes (see [`crate::common`]).
//!
//! To other processes an access is one step. The recorder copies what the memory holds into the view,
//! executes the instruction on the view, and then exchanges each word that the instruction has changed:
//! the memory gets the new value if it still holds what the view had. If it does not, the access has not
//! happened, and the recorder begins it anew; so locked instructions exclude those of other processes.
//! (If one instruction changes several words, the words after the first are stored whatever other
//! processes have written there.)

use super::machine::Machine;
use super::notice::Notice;
use super::thread::GuestThread;
use crate::common::recorded::{Common, Mapped, WORDS, Words, again, changes, shared_mappings};
use crate::common::{Area, OpenPages};
use crate::engine::Fault;
use crate::host::{self, Guest};
use crate::layout::PAGE;
use crate::memory::page_down;
use crate::syscall::{Action, Call};
use refrain_trace::payload::{SyscallRecord, Write};
use refrain_trace::{Event, EventKind, NO_TICKET, common};
use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};

impl GuestThread {
    fn common(&self) -> MutexGuard<'_, Common> {
        self.machine.common.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program has forked, and goes on with its child.
    pub(crate) fn begin_common(&mut self) {
        if self.machine.threads_alive() > 1 {
            return self.machine.notice(Notice::SharedMemory);
        }
        let mut common = self.common();
        (common.stale, common.revealed) = (true, true);
        drop(common);
        self.machine.set_common(true);
    }

    /// Mappings have changed.
    pub(crate) fn common_may_differ(&self) {
        if self.machine.has_common() {
            self.common().stale = true;
        }
    }

    /// What follows is for the memory itself.
    pub(crate) fn reveal_common(&mut self) {
        if !self.machine.has_common() {
            return;
        }
        let mut common = self.common();
        if !std::mem::replace(&mut common.revealed, true) {
            common.mapped.iter().for_each(Mapped::reveal);
        }
    }

    /// The guest goes on; whether the memory was revealed.
    pub(crate) fn conceal_common(&mut self) -> bool {
        if !self.machine.has_common() {
            return false;
        }
        let machine = self.machine.clone();
        let mut common = machine.common.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut common.revealed, false) {
            return false;
        }
        if std::mem::replace(&mut common.stale, false) {
            self.look_for_common(&mut common);
        }
        common.mapped.iter().for_each(Mapped::conceal);
        self.fast_path.pages.forget();
        true
    }

    /// Looks which mappings there are, and says so if these are others.
    fn look_for_common(&mut self, common: &mut Common) {
        let found = shared_mappings();
        let same = common.mapped.len() == found.len()
            && common
                .mapped
                .iter()
                .zip(&found)
                .all(|(old, (area, content))| (&old.area, &old.content) == (area, content));
        if same {
            return;
        }
        let mut old = std::mem::take(&mut common.mapped);
        for (area, content) in found {
            if let Some(at) = old.iter().position(|it| (&it.area, &it.content) == (&area, &content))
            {
                common.mapped.push(old.swap_remove(at));
                continue;
            }
            match Mapped::new(area, content) {
                Some(mapped) => common.mapped.push(mapped),
                None => self.machine.notice(Notice::SharedMemory),
            }
        }
        old.iter().for_each(Mapped::unmap);
        // A lock that begins before the first area may reach into it.
        let (first, last) = (common.areas().next(), common.areas().last());
        let bounds = first.zip(last).map(|(first, last)| (first.range.start, last.range.end));
        self.fast_path.common = bounds.map_or(0..0, |(start, end)| start - PAGE..end);
        let write = |area: &Area| Write { address: area.range.start, bytes: area.words() };
        let writes = common.areas().map(write).collect();
        self.append_common(common::AREAS, 0, writes);
    }

    fn append_common(&mut self, nr: u16, object: u64, writes: Vec<Write>) {
        let event = self.event(EventKind::Common, host::ticks());
        let event = Event { nr, object, flags: NO_TICKET, ..event };
        self.append(event, Some(&SyscallRecord { writes, ..SyscallRecord::default() }));
    }

    /// The guest has accessed such memory, if that is why it has faulted; if not, the fault that it
    /// is.
    pub(crate) fn access_common(&mut self, fault: Fault) -> Result<(), Fault> {
        if fault.signal != libc::SIGSEGV || !self.machine.has_common() {
            return Err(fault);
        }
        let machine = self.machine.clone();
        let common = machine.common.lock().unwrap_or_else(PoisonError::into_inner);
        if common.revealed || !common.areas().any(|area| area.range.contains(&fault.address)) {
            return Err(fault);
        }
        let place = self.context.clone();
        loop {
            let mut open = OpenPages::default();
            let (mut before, mut seen) = (Vec::new(), Vec::new());
            let mut next = Some(fault);
            while let Some(fault) = next.filter(|fault| fault.signal == libc::SIGSEGV) {
                let Some(page) = open.open(common.areas(), fault.address) else { break };
                let Some((was, is)) = common.look(page) else {
                    next = Some(Fault { signal: libc::SIGBUS, ..fault });
                    break;
                };
                before.push((page, was));
                seen.push((page, is));
                next = self.cpu.step(&mut self.context);
            }
            let stored = next.is_none() && common.store(&seen, true);
            if stored {
                drop(open);
                let mut writes = Vec::new();
                for ((page, was), (_, is)) in before.iter().zip(&seen) {
                    changes(*page, was, is, &mut writes);
                }
                let after = std::mem::replace(&mut self.context, place);
                self.append_common(common::ACCESS, fault.address, writes);
                self.context = after;
                return Ok(());
            }
            // As if it had not begun.
            self.context = place.clone();
            for (page, was) in &before {
                common.at(*page).set_view(*page, was);
            }
            if let Some(fault) = next {
                return Err(fault);
            }
        }
    }

    /// Before a system call: what it reads of such memory it reads in the view, and the replay does.
    /// The pages, and what they show.
    pub(crate) fn read_common(&mut self, call: &Call) -> Vec<(u64, Box<Words>)> {
        if !self.machine.has_common() || !matches!(call.action(), Action::Pass) {
            return Vec::new();
        }
        let machine = self.machine.clone();
        let common = machine.common.lock().unwrap_or_else(PoisonError::into_inner);
        let ranges = [call.reads(&Guest), call.sent_at_most(&Guest)].concat();
        let in_areas = |page: &u64| common.areas().any(|area| area.range.contains(page));
        let pages = |range: &Range<u64>| (page_down(range.start)..range.end).step_by(PAGE as usize);
        let mut pages: Vec<u64> = ranges.iter().flat_map(pages).filter(in_areas).collect();
        pages.sort_unstable();
        pages.dedup();
        if i64::from(call.number() as i32) == libc::SYS_futex {
            // Others look for sleepers at the memory itself.
            pages.retain(|&page| page != page_down(call.arguments()[0]));
        }
        let (mut writes, mut seen) = (Vec::new(), Vec::new());
        for page in pages {
            if let Some((was, is)) = common.look(page) {
                changes(page, &was, &is, &mut writes);
                let mapped = common.at(page);
                again(mapped.view + (page - mapped.area.range.start), PAGE, Some(page));
                seen.push((page, is));
            }
        }
        if let Some(&(first, _)) = seen.first() {
            self.append_common(common::CALL, first, writes);
        }
        seen
    }

    /// After it: what it has changed there goes to the memory.
    pub(crate) fn written_common(&mut self, pages: &[(u64, Box<Words>)]) {
        if pages.is_empty() {
            return;
        }
        let common = self.common();
        common.store(pages, false);
        for (page, seen) in pages {
            common.at(*page).set_view(*page, seen);
        }
    }

    /// The program gets a second thread. The memory is revealed. Whether there was any.
    pub(crate) fn end_common(&mut self) -> bool {
        if !self.machine.has_common() {
            return false;
        }
        let machine = self.machine.clone();
        let mut common = machine.common.lock().unwrap_or_else(PoisonError::into_inner);
        let mapped = std::mem::take(&mut *common).mapped;
        machine.set_common(false);
        self.fast_path.common = 0..0;
        if mapped.is_empty() {
            return false;
        }
        machine.notice(Notice::SharedMemory);
        let zero = [0; WORDS];
        let mut writes = Vec::new();
        for mapped in &mapped {
            for page in mapped.area.range.clone().step_by(PAGE as usize) {
                let at = mapped.memory + (page - mapped.area.range.start);
                if Guest.read_into(at, &mut [0; 1]) {
                    changes(page, &zero, &mapped.load(mapped.memory, page), &mut writes);
                }
            }
            mapped.unmap();
        }
        self.append_common(common::END, 0, writes);
        true
    }
}

impl Machine {
    /// This is a child process, or another program: there is no such memory.
    pub(crate) fn forget_common(&self) {
        if self.has_common() {
            let mut common = self.common.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *common).mapped.iter().for_each(Mapped::unmap);
            self.set_common(false);
        }
    }
}
