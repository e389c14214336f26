//! Recording memory in common with other processes (see [`crate::common`]): what there is of it. The folder
//! has how it is accessed.

mod access;
mod calls;

use super::machine::Machine;
use super::notice::Notice;
use super::thread::GuestThread;
use crate::common::recorded::{Common, Looked, is_of_processes};
use crate::common::{self, Area};
use crate::elsewhere::alias;
use crate::host;
use crate::layout::PAGE;
use crate::memory::page_up;
use crate::syscall::MachineCall;
use refrain_trace::payload::{SyscallRecord, Write};
use refrain_trace::{Event, EventKind, NO_TICKET, common as numbers, order};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

impl Machine {
    fn common(&self) -> RwLockReadGuard<'_, Common> {
        self.common.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn common_to_change(&self) -> RwLockWriteGuard<'_, Common> {
        self.common.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// This is a child process: the guest accesses the memory itself.
    pub(crate) fn open_common(&self) {
        if self.has_common() {
            self.common_to_change().open(&(0..u64::MAX));
            self.set_common(false);
        }
    }

    /// The guest is over: what the kernel does at its end, to locks whose owners end, it does to the memory
    /// itself. (A thread that was in the middle of an access stays there.)
    pub(crate) fn open_common_at_end(&self) {
        if let Ok(mut common) = self.common.try_write() {
            common.open(&(0..u64::MAX));
        }
    }

    /// This is another program: there is no such memory.
    pub(crate) fn forget_common(&self) {
        if self.has_common() {
            self.common_to_change().forget();
            self.set_common(false);
        }
    }
}

/// What other threads do while the program forks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Others {
    /// There are none, or they have no such memory yet.
    None,
    /// They are out of guest code.
    StandStill,
    /// They may be accessing such memory.
    Run,
}

impl GuestThread {
    /// The program is about to fork. Its child has all that is mapped, too; one that only `executes` another
    /// program may map it again. Returns what the other threads do meanwhile.
    pub(crate) fn before_fork(&self, executes: bool) -> Others {
        let machine = &self.machine;
        let common = machine.common();
        let known = if executes { common.has_relatives() } else { common.has_forked() };
        drop(common);
        if machine.is_child() || !machine.shares_memory() || known {
            return Others::None;
        }
        self.keep_touched();
        self.hold_others()
    }

    fn hold_others(&self) -> Others {
        let machine = &self.machine;
        if machine.threads_alive() == 1 {
            Others::None
        } else if machine.standstill.begin(&machine.presences(self.id)) {
            Others::StandStill
        } else {
            Others::Run
        }
    }

    /// Lets the others go on. Each records that it stood still for this event of areas, if there is one.
    fn release_others(&mut self, others: Others, areas: Option<u64>) {
        if others == Others::StandStill {
            self.stood_at = areas.unwrap_or(self.stood_at);
            self.machine.standstill.end(areas);
        }
    }

    /// The program has forked, if it has a child to share memory with, and goes on.
    pub(crate) fn after_fork(&mut self, shares: bool, executes: bool, others: Others) {
        let is_new = !executes || !self.machine.common().has_relatives();
        let areas = (shares && is_new && !self.machine.is_child()).then(|| {
            self.machine.set_common(true);
            if !executes {
                self.machine.common_to_change().fork();
            }
            self.look_for_common(others, &(0..0))
        });
        self.release_others(others, areas);
    }

    /// A call has changed mappings, with this result. Whether such memory is mapped there now.
    pub(crate) fn common_may_differ(
        &mut self,
        what: MachineCall,
        args: [u64; 6],
        result: u64,
    ) -> bool {
        let machine = &self.machine;
        // What the program has started may map what it maps.
        let begins = machine.has_relatives.load(Ordering::SeqCst)
            && !machine.common().has_relatives()
            && machine.shares_memory();
        let of_socket = what == MachineCall::Mmap
            && args[3] as i32 & (libc::MAP_SHARED | libc::MAP_ANONYMOUS) == libc::MAP_SHARED
            && host::is_socket(args[4]);
        // What a child does nobody records.
        if machine.is_child() {
            return false;
        }
        if !(machine.has_common() || begins || of_socket) {
            self.say_unwatched(what, args);
            return false;
        }
        let is_shared = match what {
            MachineCall::Mmap => args[3] as i32 & libc::MAP_SHARED != 0,
            MachineCall::Shmat | MachineCall::Shmdt | MachineCall::Mremap => true,
            _ => false,
        };
        let range = if what == MachineCall::Mmap {
            result..result.saturating_add(page_up(args[1]))
        } else {
            args[0]..args[0].saturating_add(page_up(args[1]))
        };
        let others = if begins { self.hold_others() } else { Others::None };
        self.machine.set_common(true);
        let looks = begins || is_shared || self.machine.common().meets(&range);
        let areas = looks.then(|| self.look_for_common(others, &range));
        self.release_others(others, areas);
        alias(result).is_some()
    }

    /// If other processes may have mapped what a call maps: an event says, once, that what they write there is
    /// not recorded. They need not be the program's children: a descriptor is sent over a socket, or a name is
    /// known to both.
    fn say_unwatched(&mut self, what: MachineCall, args: [u64; 6]) {
        let shares = match what {
            MachineCall::Mmap => {
                let flags = args[3] as i32 & (libc::MAP_SHARED | libc::MAP_ANONYMOUS);
                flags == libc::MAP_SHARED
                    && is_of_processes(&super::memory::path_of(args[4] as i32))
            }
            MachineCall::Shmat => true,
            _ => false,
        };
        let machine = self.machine.clone();
        if shares && machine.common_to_change().must_say_unwatched() {
            let space = machine.space.lock().unwrap_or_else(PoisonError::into_inner);
            let number = machine.common_to_change().number(true);
            self.append_areas(number, &[], numbers::UNWATCHED);
            drop(space);
        }
    }

    /// Looks which such memory there is. Appends an event with all of it if that differs from before, or else
    /// one that names the last such event, which may be another thread's; returns that event's number. No
    /// thread can be accessing what is mapped `now`.
    fn look_for_common(&mut self, other_threads: Others, now: &Range<u64>) -> u64 {
        let machine = self.machine.clone();
        // No mapping changes until the event has its ticket.
        let space = machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        let mut common = machine.common_to_change();
        let hold_code = |range: &Range<u64>| space.holds_code(range);
        let relatives = machine.has_relatives.load(Ordering::SeqCst);
        let Looked { differs, left_out } =
            common.look(relatives, other_threads == Others::Run, now, hold_code);
        let says = differs || left_out || other_threads == Others::StandStill;
        let number = common.number(says);
        let areas = common.areas();
        let watches_all = common.watches_all();
        drop(common);
        areas.iter().for_each(|area| self.keep_rest_shown(&area.range));
        if left_out {
            machine.notice(Notice::SharedMemory);
        }
        if watches_all && !areas.is_empty() {
            machine.retract(Notice::SharedFile);
        }
        if !says {
            drop(space);
            self.append_common(numbers::OTHERS, number, Vec::new());
            return number;
        }
        let stood_still = u64::from(other_threads == Others::StandStill) * numbers::STOOD_STILL;
        self.append_areas(number, &areas, u64::from(left_out) * numbers::LEFT_OUT + stood_still);
        drop(space);
        number
    }

    /// Appends an event of areas. The caller holds the address space: no mapping changes until the event has
    /// its ticket.
    fn append_areas(&mut self, number: u64, areas: &[Area], aux: u64) {
        let write = |area: &Area| Write { address: area.range.start, bytes: area.words() };
        let event =
            Event { nr: numbers::AREAS, object: number, aux, flags: 0, ..self.common_event() };
        let writes = areas.iter().map(write).collect();
        let machine = self.machine.clone();
        self.append_made(Some(&SyscallRecord { writes, ..SyscallRecord::default() }), || Event {
            ticket: machine.tickets.take(order::MEMORY_SLOT),
            end: host::ticks(),
            ..event
        });
    }

    /// Before `mprotect` or `mremap` of a range with such memory: the parts of it that the kernel is to
    /// protect, since the rest stays out of the guest's reach. `None` if the kernel is to do all of the call.
    pub(crate) fn parts_for_kernel(
        &mut self,
        what: MachineCall,
        args: [u64; 6],
    ) -> Option<Vec<Range<u64>>> {
        if !self.machine.has_common() || !args[0].is_multiple_of(PAGE) {
            return None;
        }
        let range = args[0]..args[0].checked_add(page_up(args[1]))?;
        let mut common = self.machine.common_to_change();
        let areas = common.areas();
        if !common::meet(&areas, &range) {
            return None;
        }
        if what == MachineCall::Mremap || args[2] as i32 & libc::PROT_EXEC != 0 {
            common.open(&range);
            return None;
        }
        common.protect(&range, args[2] as i32);
        Some(common::outside(&areas, range))
    }

    fn append_common(&mut self, nr: u16, object: u64, writes: Vec<Write>) {
        let event = Event { nr, object, ..self.common_event() };
        self.append(event, Some(&SyscallRecord { writes, ..SyscallRecord::default() }));
    }

    fn common_event(&mut self) -> Event {
        Event { flags: NO_TICKET, ..self.event(EventKind::Common, host::ticks()) }
    }
}
