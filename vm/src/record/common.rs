//! Recording memory in common with other processes (see [`crate::common`]).
//!
//! To other processes an access is one step. The recorder copies the operands, executes the
//! instruction on the copies, and then exchanges each word that the instruction has changed: the memory
//! gets the new value if it still holds what was copied. If it does not, the access has not happened, and
//! the recorder begins it anew; so locked instructions exclude those of other processes, and of other
//! threads. (If one instruction changes several words, the words after the first are stored whatever others
//! have written there meanwhile.)

use super::machine::Machine;
use super::notice::Notice;
use super::thread::{Flow, GuestThread};
use crate::common::recorded::Common;
use crate::common::{self, Area, Copies, MOST, bytes_of};
use crate::elsewhere::{self, alias, is_any, word};
use crate::engine::Fault;
use crate::host::{self, Guest};
use crate::layout::PAGE;
use crate::memory::page_up;
use crate::order::Span;
use crate::syscall::{Action, Call, MachineCall, Nested};
use crate::{Error, Result};
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

/// An operand, or a part of it, that cannot be had: the fault that the guest would see.
enum Unreadable {
    Fault(Fault),
    /// The memory's file has become shorter, or there is no such memory; how many bytes were asked for.
    Gone(u64),
}

impl GuestThread {
    /// The program is about to fork: what it has mapped will be its child's, too. Whether other threads
    /// stand still meanwhile.
    pub(crate) fn before_fork(&self) -> Others {
        let machine = &self.machine;
        match machine.is_child() || !machine.shares_memory() || machine.common().has_forked() {
            true => Others::None,
            false => self.hold_others(),
        }
    }

    fn hold_others(&self) -> Others {
        let machine = &self.machine;
        match () {
            () if machine.threads_alive() == 1 => Others::None,
            () if machine.standstill.begin(&machine.presences(self.id)) => Others::StandStill,
            () => Others::Run,
        }
    }

    /// They go on; they note that event of areas, if there is one.
    fn release_others(&mut self, others: Others, areas: Option<u64>) {
        if others == Others::StandStill {
            self.stood_at = areas.unwrap_or(self.stood_at);
            self.machine.standstill.end(areas);
        }
    }

    /// The program has forked, if it has a child to share memory with, and goes on.
    pub(crate) fn after_fork(&mut self, shares: bool, others: Others) {
        let areas = (shares && !self.machine.is_child()).then(|| {
            self.machine.set_common(true);
            self.machine.common_to_change().fork();
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
        let begins = !self.machine.has_common();
        if begins {
            // What a child does nobody records.
            let has_relatives = self.machine.has_relatives.load(Ordering::Relaxed);
            if self.machine.is_child() || !has_relatives || !self.machine.shares_memory() {
                return false;
            }
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

    /// Looks which such memory there is, and says so if it is other than before, or that another thread
    /// has said so: the number of the event that does. Nobody can be accessing what is mapped `now`.
    fn look_for_common(&mut self, other_threads: Others, now: &Range<u64>) -> u64 {
        let machine = self.machine.clone();
        // No mapping changes until the event has its ticket.
        let space = machine.space.lock().unwrap_or_else(PoisonError::into_inner);
        let mut common = machine.common_to_change();
        let (others, left_out) = common.look(other_threads == Others::Run, now);
        let says = others || left_out || other_threads == Others::StandStill;
        let number = common.number(says);
        let areas = common.areas();
        let watches_all = common.watches_all();
        drop(common);
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
        let write = |area: &Area| Write { address: area.range.start, bytes: area.words() };
        let stood_still = u64::from(other_threads == Others::StandStill) * numbers::STOOD_STILL;
        let aux = u64::from(left_out) * numbers::LEFT_OUT + stood_still;
        let event =
            Event { nr: numbers::AREAS, object: number, aux, flags: 0, ..self.common_event() };
        let writes = areas.iter().map(write).collect();
        self.append_made(Some(&SyscallRecord { writes, ..SyscallRecord::default() }), || Event {
            ticket: machine.tickets.take(order::MEMORY_SLOT),
            end: host::ticks(),
            ..event
        });
        drop(space);
        number
    }

    /// Before `mprotect` or `mremap`: what remains to be done where the guest can reach the memory.
    pub(crate) fn outside_common(
        &mut self,
        is_mremap: bool,
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
        if is_mremap {
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

    /// Whether an access is of such memory.
    pub(crate) fn is_common(&self, span: Span) -> bool {
        self.machine.has_common() && Copies::words(span).any(|word| alias(word).is_some())
    }

    /// An access that is to be ordered against others' is of such memory, where it need not be.
    pub(crate) fn ordered_in_common(&mut self, span: Span) -> Result<Flow> {
        self.count_access();
        self.fault_in_common(Fault { signal: libc::SIGSEGV, address: span.start })
    }

    /// The guest has faulted, perhaps since it has accessed such memory.
    pub(crate) fn fault_in_common(&mut self, fault: Fault) -> Result<Flow> {
        match self.access_common(fault, true)? {
            None => Ok(Flow::Continue),
            Some(fault) => Ok(self.fault(fault)),
        }
    }

    /// Executes an access of such memory, if that is why the guest has faulted, as an event if it is
    /// `observed`; if not, the fault that it is.
    pub(crate) fn access_common(&mut self, fault: Fault, observed: bool) -> Result<Option<Fault>> {
        if fault.signal != libc::SIGSEGV || alias(fault.address).is_none() {
            return Ok(Some(fault));
        }
        // No area goes away meanwhile.
        let machine = self.machine.clone();
        let common = machine.common();
        let mut most = MOST;
        loop {
            let spans = self.cpu.operands(&self.context, most);
            let is_whole = spans.iter().enumerate().all(|(at, &span)| Copies::fits(at, span));
            if spans.is_empty() || !is_whole {
                let why =
                    "an instruction whose operands in memory that it shares with another process";
                return Err(Error::Unsupported(format!(
                    "{why} cannot be copied (at {:#x})",
                    self.context.rip
                )));
            }
            match self.execute_on_copies(&common.areas(), &spans, most, observed) {
                Ok(()) => return Ok(None),
                Err(Unreadable::Fault(fault)) => return Ok(Some(fault)),
                // Those before it come first.
                Err(Unreadable::Gone(_)) if most > 1 => most = 1,
                Err(Unreadable::Gone(address)) => {
                    let signal = match alias(address) {
                        Some(_) => libc::SIGBUS,
                        None => libc::SIGSEGV,
                    };
                    return Ok(Some(Fault { signal, address }));
                }
            }
        }
    }

    fn execute_on_copies(
        &mut self,
        areas: &[Area],
        spans: &[Span],
        most: u64,
        observed: bool,
    ) -> std::result::Result<(), Unreadable> {
        let before = self.context.clone();
        loop {
            let mut seen = Vec::new();
            let mut places = Vec::new();
            for (at, &span) in spans.iter().enumerate() {
                if !Copies::words(span).any(|word| alias(word).is_some()) {
                    seen.push(Vec::new());
                    places.push(span.start);
                    continue;
                }
                let words = read_words(areas, span)?;
                self.copies.set(at, span, &words);
                places.push(self.copies.place(at, span));
                seen.push(words);
            }
            let fault = self.cpu.step_moved(&mut self.context, most, &places);
            if let Some(fault) = fault {
                self.context = before;
                return Err(Unreadable::Fault(fault));
            }
            if self.store_copies(spans, &seen) {
                if observed {
                    let after = std::mem::replace(&mut self.context, before);
                    let shown = spans.iter().zip(&seen).filter(|(_, words)| !words.is_empty());
                    let write = |(span, words): (&Span, &Vec<u64>)| Write {
                        address: span.start,
                        bytes: bytes_of(*span, words),
                    };
                    self.append_common(numbers::ACCESS, most, shown.map(write).collect());
                    self.context = after;
                }
                return Ok(());
            }
            // As if it had not begun.
            self.context = before.clone();
        }
    }

    /// Stores what the guest has changed in the copies. False, and nothing is where the first word is not
    /// what was seen any more.
    fn store_copies(&self, spans: &[Span], seen: &[Vec<u64>]) -> bool {
        let mut stored = false;
        for (at, (&span, seen)) in spans.iter().zip(seen).enumerate().filter(|(_, (s, _))| s.write)
        {
            let now = if seen.is_empty() { Vec::new() } else { self.copies.get(at, span) };
            for ((address, &old), new) in Copies::words(span).zip(seen).zip(now) {
                if old == new {
                    continue;
                }
                if !exchange(address, old, new) {
                    if !stored {
                        return false;
                    }
                    store_beside(address, old, new);
                }
                stored = true;
            }
        }
        true
    }

    /// Before a system call: what it reads of such memory. The replay is told, and so is this thread,
    /// until [`Self::forget_shown`].
    pub(crate) fn show_common(&mut self, call: &Call) -> bool {
        if !is_any() || !matches!(call.action(), Action::Pass) {
            return false;
        }
        let ranges = [call.reads(&Guest), call.sent_at_most(&Guest)].concat();
        let in_common = |range: &Range<u64>| {
            let span = Span { start: range.start, len: range.end - range.start, write: false };
            Copies::words(span).step_by(PAGE as usize / 8).any(|word| alias(word).is_some())
                || range.end > range.start && alias(range.end - 1).is_some()
        };
        let shown: Vec<Write> = ranges
            .into_iter()
            .filter(in_common)
            .filter_map(|Range { start, end }| {
                let bytes = Guest.read(start, (end - start) as usize)?;
                Some(Write { address: start, bytes })
            })
            .collect();
        if shown.is_empty() {
            return false;
        }
        self.append_common(numbers::CALL, 0, shown.clone());
        elsewhere::show(shown);
        true
    }

    /// The arguments with which a call is issued, so that the kernel reads what the replay is told, and
    /// writes to the memory itself. What they point to is kept as long as the result.
    pub(crate) fn with_common(&self, call: &Call, args: &mut [u64; 6]) -> Vec<Box<[u64]>> {
        let mut kept = Vec::new();
        if !is_any() {
            return kept;
        }
        let mut elsewhere = |address: u64, kept: &mut Vec<Box<[u64]>>| {
            let Some(alias) = alias(address) else { return address };
            match elsewhere::shown(address, usize::MAX).filter(|_| call.sends()) {
                Some(bytes) => keep(kept, &bytes),
                None => alias,
            }
        };
        match call.nested(args) {
            Some(Nested::Vectors { at, count }) => {
                vectors_elsewhere(&mut args[at], count, &mut elsewhere, &mut kept);
            }
            Some(Nested::Message { at }) => {
                let Some([name, name_len, mut vectors, count, control, control_len, flags]) =
                    Guest.words::<7>(args[at])
                else {
                    return kept;
                };
                vectors_elsewhere(&mut vectors, count, &mut elsewhere, &mut kept);
                let name = elsewhere(name, &mut kept);
                let control = elsewhere(control, &mut kept);
                let message = [name, name_len, vectors, count, control, control_len, flags];
                kept.push(Box::new(message));
                args[at] = kept.last().map_or(0, |kept| kept.as_ptr().expose_provenance() as u64);
            }
            None => {}
        }
        for at in call.pointers() {
            args[at] = elsewhere(args[at], &mut kept);
        }
        kept
    }

    /// After a call that was issued so: what the kernel has written into a message that was the recorder's.
    pub(crate) fn message_back(&self, call: &Call, issued: &[u64; 6]) {
        let args = call.arguments();
        if let Some(Nested::Message { at }) = call.nested(args)
            && issued[at] != args[at]
            && let Some(words) = Guest.words::<7>(issued[at])
        {
            for word in [1, 5, 6] {
                Guest.write(args[at] + 8 * word as u64, &words[word].to_le_bytes());
            }
        }
    }
}

/// Keeps bytes; where.
fn keep(kept: &mut Vec<Box<[u64]>>, bytes: &[u8]) -> u64 {
    let span = Span { start: 0, len: bytes.len() as u64, write: false };
    let words = common::words_of(span, bytes).into_boxed_slice();
    let at = words.as_ptr().expose_provenance() as u64;
    kept.push(words);
    at
}

/// Has an argument point to vectors that point elsewhere.
fn vectors_elsewhere(
    argument: &mut u64,
    count: u64,
    elsewhere: &mut impl FnMut(u64, &mut Vec<Box<[u64]>>) -> u64,
    kept: &mut Vec<Box<[u64]>>,
) {
    let len = count.min(libc::UIO_MAXIOV as u64) as usize * 16;
    let Some(bytes) = Guest.read(*argument, len) else { return };
    let span = Span { start: 0, len: len as u64, write: false };
    let mut words = common::words_of(span, &bytes);
    for vector in words.chunks_exact_mut(2) {
        vector[0] = elsewhere(vector[0], kept);
    }
    let words = words.into_boxed_slice();
    *argument = words.as_ptr().expose_provenance() as u64;
    kept.push(words);
}

/// The words that an operand touches, as the guest may access it.
fn read_words(areas: &[Area], span: Span) -> std::result::Result<Vec<u64>, Unreadable> {
    let mut words = Vec::new();
    let mut page = None;
    for address in Copies::words(span) {
        let Some(at) = alias(address) else {
            let word = Guest.word(address).ok_or(Unreadable::Gone(address.max(span.start)))?;
            words.push(word);
            continue;
        };
        if page != Some(address / PAGE) {
            page = Some(address / PAGE);
            let area = areas.iter().find(|area| area.range.contains(&address));
            let wanted = if span.write { libc::PROT_WRITE } else { libc::PROT_READ };
            if area.is_none_or(|area| area.prot & wanted == 0) {
                let fault = Fault { signal: libc::SIGSEGV, address: address.max(span.start) };
                return Err(Unreadable::Fault(fault));
            }
            if !Guest.read_into(address, &mut [0; 1]) {
                return Err(Unreadable::Gone(address.max(span.start)));
            }
        }
        // SAFETY: the caller keeps the areas mapped; words are aligned.
        words.push(unsafe { word(at) }.load(Ordering::SeqCst));
    }
    Ok(words)
}

/// Stores a word if it is still what it was.
fn exchange(address: u64, old: u64, new: u64) -> bool {
    let Some(at) = alias(address) else { return Guest.write(address, &new.to_le_bytes()) };
    let order = Ordering::SeqCst;
    // SAFETY: the caller keeps the areas mapped; words are aligned.
    unsafe { word(at) }.compare_exchange(old, new, order, order).is_ok()
}

/// Stores the bytes that have changed, whatever there is beside them.
fn store_beside(address: u64, old: u64, new: u64) {
    let changed = (old ^ new).to_le_bytes().map(|byte| if byte == 0 { 0 } else { 0xff });
    let changed = u64::from_le_bytes(changed);
    let Some(at) = alias(address) else { return };
    let merged = |other: u64| Some(other & !changed | new & changed);
    // SAFETY: as in `exchange`.
    let _ = unsafe { word(at) }.fetch_update(Ordering::SeqCst, Ordering::SeqCst, merged);
}
