//! The executor's part in the log of accesses ([`crate::copy`]'s `log`): it hands the log to the
//! machine, and logs what translated code cannot.

use super::{CopyCpu, Next};
use crate::accesses::{Part, logged_pc, records, spans_of};
use crate::copy::desc::{Operand, Variant};
use crate::copy::log::ALONE;
use crate::copy::state::{LOG_BYTES, MARGIN, RECORD};
use crate::memory::{read_guest, read_instruction, read_word};
use iced_x86::Instruction;
use refrain_trace::Access;
use refrain_vm::{Context, Count, Cpu, Exit, Fault, SameEpoch, Span, reg};
use std::sync::atomic::Ordering;

impl CopyCpu {
    /// Says how much translated code may log, and what it leaves out. The machine takes no more than
    /// its own buffer has room for.
    pub(super) fn open_log(&mut self, context: &Context) {
        if !self.state.logs() {
            return;
        }
        let usable = room(context).saturating_sub(MARGIN).min(LOG_BYTES) / RECORD * RECORD;
        self.taken = 0_u64.wrapping_sub(usable);
        self.state.log_room = self.taken;
        self.state.seen = context.seen.word;
        // A thread that logs repetitions has no use for notes. What it does not note now it logs once
        // more later.
        self.state.seen_add = if context.seen.repeats() { 0 } else { context.seen.add };
    }

    /// Hands to the machine what was logged since the last time.
    pub(super) fn take_log(&mut self, context: &mut Context) {
        if self.state.logs() {
            hand_over(self.state.logged(self.taken, self.state.log_room), context);
            self.taken = self.state.log_room;
        }
    }

    /// Moves the log to the machine's buffer. The thread goes on as long as its epoch's notes tell which
    /// accesses are new, and the buffer has room for another log.
    pub(super) fn log_full(&mut self, context: &mut Context, variant: Variant) -> Next {
        self.take_log(context);
        if !context.same_epoch.tell() || room(context) < LOG_BYTES + MARGIN {
            return Next::Stop(Exit::AccessesFull);
        }
        self.open_log(context);
        self.at(context, variant)
    }

    /// Executes and logs the instruction at `rip`, which says more than its operands tell.
    pub(super) fn log_alone(&mut self, context: &mut Context, variant: Variant) -> Next {
        self.take_log(context);
        let pc = context.rip;
        let Some(instruction) = read_instruction(pc) else {
            return Next::Stop(Exit::Fault(Fault::fetch(pc)));
        };
        loop {
            if room(context) < ALONE as u64 * RECORD {
                return Next::Stop(Exit::AccessesFull);
            }
            let part = spans_of(&instruction, context).1;
            self.part = part;
            let aside = |cpu: &mut CopyCpu, context: &mut Context| {
                cpu.aside(context, |cpu, context| cpu.step(context))
            };
            if let Some(fault) = self.step_logged(context, &instruction, part, aside) {
                return Next::Stop(Exit::Fault(fault));
            }
            if context.rip != pc || part.is_none() {
                break;
            }
            // A repeated instruction counts once.
            if self.shared.lock().config.count == Count::Instructions {
                self.state.retired -= 1;
            }
        }
        self.open_log(context);
        self.at(context, variant)
    }

    /// Executes an instruction, or a part of it, and logs what that accesses.
    pub(super) fn step_logged(
        &mut self,
        context: &mut Context,
        instruction: &Instruction,
        part: Option<Part>,
        step: impl FnOnce(&mut CopyCpu, &mut Context) -> Option<Fault>,
    ) -> Option<Fault> {
        let before = context.clone();
        let mut spans = spans_of(instruction, context).0;
        let is_compared = self.calls.compared.contains(&context.rip);
        let replaced = is_compared.then(|| words_at(&spans));
        let fault = step(self, context);
        if part.is_some() {
            // A string that is compared may end earlier, and any string may fault.
            let left = context.gpr[reg::RCX];
            let mut executed = before;
            executed.gpr[reg::RCX] -= left;
            spans = spans_of(instruction, &executed).0;
        } else if fault.is_some() {
            spans.clear();
        }
        let changes = replaced.map(|replaced| replaced != words_at(&spans));
        let mut records = records(instruction, spans);
        if let Some(changes) = changes {
            let kind = if changes { Access::WRITE } else { Access::READ };
            records.iter_mut().for_each(|record| record.kind = kind);
        }
        hand_over(&records, context);
        fault
    }

    /// What a watched load reads that has no event: what the thread met last there. Unless accesses are
    /// logged, that is the affair of the machine's fast path.
    pub(super) fn told(&mut self, address: u64, operand: Operand) -> Option<u64> {
        if !self.tells || !operand.kind.is_load() {
            return None;
        }
        // SAFETY: it is there as long as the executor, and nobody else uses it meanwhile
        // (`set_last_met`), or it is the state's own.
        let met = unsafe { &mut *self.state.met };
        let left = met.unrecorded.load(Ordering::Relaxed).checked_sub(1)?;
        let value = if met.alone.load(Ordering::Relaxed) == 0 {
            met.at(address, operand.size)?.value
        } else {
            let mut bytes = [0; 8];
            let word = bytes.get_mut(..operand.size.into())?;
            let readable = read_guest(address, word);
            let memory = (readable == word.len()).then(|| u64::from_le_bytes(bytes))?;
            met.replay_alone((address, operand.size), memory)
        };
        met.unrecorded.store(left, Ordering::Relaxed);
        Some(value)
    }

    /// Executes and logs the load at `rip` with such a value.
    pub(super) fn load_told(
        &mut self,
        context: &mut Context,
        (address, size): (u64, u8),
        value: u64,
        variant: Variant,
    ) -> Next {
        self.take_log(context);
        let pc = context.rip;
        if let Some(fault) = self.aside(context, |cpu, context| cpu.step_load(context, value)) {
            return Next::Stop(Exit::Fault(fault));
        }
        let record = Access { address, pc: logged_pc(pc), size: size.into(), kind: Access::READ };
        hand_over(&[record], context);
        self.open_log(context);
        self.at(context, variant)
    }

    /// Steps in the middle of a run, which keeps the count of instructions in the state.
    fn aside(
        &mut self,
        context: &mut Context,
        step: impl FnOnce(&mut CopyCpu, &mut Context) -> Option<Fault>,
    ) -> Option<Fault> {
        context.retired = self.state.retired;
        let fault = step(self, context);
        self.state.retired = context.retired;
        fault
    }
}

/// The words that spans of eight bytes have.
fn words_at(spans: &[Span]) -> Vec<u64> {
    let words = spans.iter().filter(|span| span.len == 8);
    words.filter_map(|span| read_word(span.start).ok()).collect()
}

/// Bytes that are left in the machine's buffer.
pub(super) fn room(context: &Context) -> u64 {
    context.access_limit.saturating_sub(context.access_cursor)
}

/// Appends records to the machine's buffer, which has room for them, but for those of accesses that the
/// thread has made in its present epoch.
pub(super) fn hand_over(records: &[Access], context: &mut Context) {
    if context.same_epoch.notes == 0 {
        return append(records, context);
    }
    // SAFETY: the machine has put the address of the thread's own notes there, which its observer keeps
    // and does not use while the executor runs. The notes are atomic integers.
    let notes = unsafe { &*(context.same_epoch.notes as *const SameEpoch) };
    for record in records {
        let is_looked_up = record.kind & Access::ATOMIC != 0 && context.same_epoch.tell();
        if is_looked_up && notes.knows(record) {
            continue;
        }
        append(std::slice::from_ref(record), context);
        if is_looked_up && notes.note(record).is_none() {
            context.same_epoch.end();
        }
    }
}

/// Appends records to the machine's buffer, which has room for them.
fn append(records: &[Access], context: &mut Context) {
    let bytes = size_of_val(records) as u64;
    assert!(bytes <= room(context), "there is room");
    // SAFETY: the machine's buffer has room up to its limit, which was just checked; nobody else uses
    // it while the executor runs.
    unsafe {
        let to = context.access_cursor as *mut Access;
        std::ptr::copy_nonoverlapping(records.as_ptr(), to, records.len());
    }
    context.access_cursor += bytes;
}
