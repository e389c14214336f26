//! Accesses of memory in common with other processes.
//!
//! To other processes an access is one step. The recorder copies the operands, executes the
//! instruction on the copies, and then exchanges each word that the instruction has changed: the memory
//! gets the new value if it still holds what was copied. If it does not, the access has not happened, and
//! the recorder begins it anew; so locked instructions exclude those of other processes, and of other
//! threads. (If one instruction changes several words, the words after the first are stored whatever others
//! have written there meanwhile.)

use crate::common::recorded::Common;
use crate::common::{Copies, How, MOST, bytes_of};
use crate::elsewhere::{alias, word};
use crate::engine::Fault;
use crate::host::{self, Guest};
use crate::layout::PAGE;
use crate::order::Span;
use crate::record::thread::{Flow, GuestThread};
use crate::{Error, Result};
use refrain_trace::payload::{SyscallRecord, Write};
use refrain_trace::{Event, EventKind, NO_TICKET, common as numbers, order};
use std::sync::atomic::Ordering;

/// An operand, or a part of it, that cannot be had: the fault that the guest would see.
enum Unreadable {
    Fault(Fault),
    /// This byte is not there: the memory's file has become shorter, or the operand reaches beyond it.
    Gone(u64),
}

impl GuestThread {
    /// Whether an access is of such memory.
    pub(crate) fn is_common(&self, span: Span) -> bool {
        self.machine.has_common() && Copies::words(span).any(|word| alias(word).is_some())
    }

    /// An access that is to be ordered against others' is of such memory, where it need not be.
    pub(crate) fn ordered_in_common(&mut self, span: Span) -> Result<Flow> {
        self.count_access();
        let how = match self.fast_path.accesses {
            Some(_) => How::Access,
            None => How::Order,
        };
        // It may begin before that memory does.
        let first = Copies::words(span).find(|&word| alias(word).is_some());
        let address = first.map_or(span.start, |word| word.max(span.start));
        self.fault_in_common(Fault::access(address), how)
    }

    /// The guest has faulted, perhaps since it has accessed such memory.
    pub(crate) fn fault_in_common(&mut self, fault: Fault, how: How) -> Result<Flow> {
        match self.access_common(fault, how)? {
            None => Ok(Flow::Continue),
            Some(fault) => Ok(self.fault(fault)),
        }
    }

    /// Executes an access of such memory, if that is why the guest has faulted; if not, the fault that it
    /// is.
    pub(crate) fn access_common(&mut self, fault: Fault, how: How) -> Result<Option<Fault>> {
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
            match self.execute_in_order(&common, &spans, most, how) {
                Ok(()) => return Ok(None),
                Err(Unreadable::Fault(fault)) => return Ok(Some(fault)),
                // Those before it come first.
                Err(Unreadable::Gone(_)) if most > 1 => most = 1,
                Err(Unreadable::Gone(address)) => {
                    let signal = match alias(address) {
                        Some(_) => libc::SIGBUS,
                        None => libc::SIGSEGV,
                    };
                    return Ok(Some(Fault::by_signal(signal, address)));
                }
            }
        }
    }

    /// Executes an instruction on copies. If it orders threads, it has a ticket of its word's slot, which
    /// nobody else has meanwhile.
    fn execute_in_order(
        &mut self,
        common: &Common,
        spans: &[Span],
        most: u64,
        how: How,
    ) -> std::result::Result<(), Unreadable> {
        if how == How::Body {
            return self.execute_on_copies(common, spans, most, None);
        }
        let object = spans.iter().find(|&&span| self.is_common(span)).map_or(0, |span| span.start);
        let event = self.event(EventKind::Common, host::ticks());
        let event = Event { nr: numbers::ACCESS, object, aux: most, ..event };
        if how == How::Access {
            let event = Event { flags: NO_TICKET, ..event };
            return self.execute_on_copies(common, spans, most, Some(event));
        }
        let (slot, machine) = (order::slot(object), self.machine.clone());
        let ticket = machine.tickets.hold(slot);
        let done = self.execute_on_copies(common, spans, most, Some(Event { ticket, ..event }));
        match done {
            Ok(()) => machine.tickets.release(slot, ticket),
            Err(_) => machine.tickets.give_back(slot, ticket),
        }
        done
    }

    fn execute_on_copies(
        &mut self,
        common: &Common,
        spans: &[Span],
        most: u64,
        event: Option<Event>,
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
                let words = read_words(common, span)?;
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
                if let Some(event) = event {
                    let shown = spans.iter().zip(&seen).filter(|(_, words)| !words.is_empty());
                    let write = |(span, words): (&Span, &Vec<u64>)| Write {
                        address: span.start,
                        bytes: bytes_of(*span, words),
                    };
                    let writes = shown.map(write).collect();
                    self.append(event, Some(&SyscallRecord { writes, ..SyscallRecord::default() }));
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
}

/// The words that an operand touches, as the guest may access it.
fn read_words(common: &Common, span: Span) -> std::result::Result<Vec<u64>, Unreadable> {
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
            let wanted = if span.write { libc::PROT_WRITE } else { libc::PROT_READ };
            if !common.allows(address, wanted) {
                let fault = Fault::access(address.max(span.start));
                return Err(Unreadable::Fault(fault));
            }
            if common.may_be_gone(address) && !Guest.read_into(address, &mut [0; 1]) {
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
