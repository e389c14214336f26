//! Library functions of a replayed guest: their events instead of their bodies.

use super::gate::Condition;
use super::grants::Asked;
use super::objects::{Operation, operation};
use super::thread::{GuestThread, Halt};
use super::unknown_hook;
use crate::context::reg::*;
use crate::creation::Creation;
use crate::hooks::{Hook, Model};
use crate::loader;
use refrain_trace::{Event, EventId, EventKind, ThreadId, order};
use std::sync::atomic::Ordering;

const ONCE_DONE: u64 = 2;

impl GuestThread {
    /// The guest is at the first instruction of a hooked function.
    pub(crate) fn hook(&mut self) -> Result<(), Halt> {
        let pc = self.context.rip;
        let Some(hook) = self.machine.hooks.at(pc) else {
            return Err(Halt::Failed(unknown_hook(pc)));
        };
        self.leave_creation();
        let (object, pages) = (self.context.gpr[RDI], &mut self.fast_path.pages);
        if hook.leaves(object, |at| pages.operand(at, 4)) {
            return Ok(());
        }
        match hook.model {
            Model::Create => self.begin_creation(),
            Model::Acquire | Model::Release => self.modelled(hook, false),
            Model::AcquireErrno | Model::ReleaseErrno => self.modelled(hook, true),
            Model::GetValue => self.get_value(hook),
            Model::CondWait => self.cond_wait(),
            Model::Barrier => self.barrier(),
            Model::Once => self.once(),
            Model::Join | Model::TryJoin | Model::TimedJoin(_) => self.join(),
            Model::Detach | Model::Rounds => self.note(hook),
            Model::Entry => {
                loader::hide_settings(self.machine.initial_sp.load(Ordering::Relaxed));
                Ok(())
            }
            Model::Cancel => {
                let event = self.expect(hook.kind, self.context.gpr[RDI])?;
                self.finish_call(&event)
            }
        }
    }

    /// The call as the guest makes it: site, stack pointer, object.
    /// From a trace that is not what a recorder wrote, it may come without a stack; no call-site
    /// is at 0.
    fn call(&mut self, kind: EventKind, object: u64) -> Event {
        let sp = self.context.gpr[RSP];
        let site = self.fast_path.pages.operand(sp, 8).unwrap_or(0);
        Event { pc: site, sp, object, ..self.here(kind) }
    }

    /// Takes the next event of a modelled function, compares it, and performs it: in its recorded
    /// turn, or when the scheduler grants it.
    fn operate(&mut self, kind: EventKind, object: u64) -> Result<Event, Halt> {
        let actual = self.call(kind, object);
        let event = self.next(kind)?;
        self.compare(&event, &actual)?;
        self.times(|times| times.last_timeout(&event));
        self.take_turn(&event)?;
        Ok(event)
    }

    /// Performs an event of a lock: in its recorded turn, or when the scheduler grants it.
    pub(crate) fn take_turn(&mut self, event: &Event) -> Result<(), Halt> {
        match operation(event) {
            _ if !self.machine.gate.is_live() => self.perform(event),
            Some(wanted) => self.ask_for(wanted, event, self.event_id()),
            None => Ok(()),
        }
    }

    /// Performs an operation of an event when the scheduler grants it. `id` is the event's, or that
    /// of an earlier one that has waited to be performed.
    pub(crate) fn ask_for(
        &mut self,
        operation: Operation,
        event: &Event,
        id: EventId,
    ) -> Result<(), Halt> {
        let gate = &self.machine.gate;
        gate.publish(self.id, self.context.retired);
        if gate.perform(self.id, Asked { operation, event: id, ticket: event.ticket }).is_ok() {
            return Ok(());
        }
        self.stuck(Condition::News { thread: self.id })
    }

    /// Takes the next event, compares it, and waits for its turn.
    fn expect(&mut self, kind: EventKind, object: u64) -> Result<Event, Halt> {
        let actual = self.call(kind, object);
        let event = self.next(kind)?;
        self.compare(&event, &actual)?;
        self.perform(&event)?;
        Ok(event)
    }

    /// The function returns what it returned in the recording.
    fn finish_call(&mut self, event: &Event) -> Result<(), Halt> {
        self.context.return_to(event.pc, u64::from(event.result as u32));
        self.finish_event(event)
    }

    fn modelled(&mut self, hook: &Hook, errno: bool) -> Result<(), Halt> {
        let event = self.operate(hook.kind, self.context.gpr[RDI])?;
        if errno && event.result == -1 {
            self.put(event.aux, &(event.value as u32).to_le_bytes())?;
        }
        self.tally.count_acquisition(event.code, event.result);
        self.finish_call(&event)
    }

    fn get_value(&mut self, hook: &Hook) -> Result<(), Halt> {
        let event = self.operate(hook.kind, self.context.gpr[RDI])?;
        self.put(event.aux, &(event.value as u32).to_le_bytes())?;
        self.finish_call(&event)
    }

    fn cond_wait(&mut self) -> Result<(), Halt> {
        let mutex = self.context.gpr[RSI];
        let begun = self.operate(EventKind::CondWaitBegin, mutex)?;
        let begin = self.event_id();
        self.finish_event(&begun)?;
        let actual = self.call(EventKind::CondWaitEnd, mutex);
        let ended = self.next(EventKind::CondWaitEnd)?;
        self.compare(&ended, &actual)?;
        self.times(|times| times.last_timeout(&ended));
        if self.machine.gate.is_live() {
            let condition = (ended.result != libc::ETIMEDOUT).then_some(ended.value);
            self.ask_for(Operation::Wait { mutex, condition }, &begun, begin)?;
            self.ask_for(Operation::Relock { mutex }, &ended, self.event_id())?;
        } else {
            self.wait(Condition::Reached { slot: order::slot(ended.value), count: ended.aux })?;
            self.perform(&ended)?;
        }
        self.tally.acquisitions += 1;
        self.finish_call(&ended)
    }

    fn barrier(&mut self) -> Result<(), Halt> {
        let barrier = self.context.gpr[RDI];
        let arrived = self.operate(EventKind::BarrierArrive, barrier)?;
        self.finish_event(&arrived)?;
        let left = self.operate(EventKind::BarrierLeave, barrier)?;
        self.finish_call(&left)
    }

    fn once(&mut self) -> Result<(), Halt> {
        let object = self.context.gpr[RDI];
        let actual = self.call(EventKind::OnceRun, object);
        let event = self.next_of(&[EventKind::OnceRun, EventKind::OnceDone])?;
        self.compare(&event, &actual)?;
        self.perform(&event)?;
        if event.kind() == EventKind::OnceRun {
            return self.finish_event(&event);
        }
        self.wait(Condition::Bits { address: object, mask: ONCE_DONE })?;
        self.finish_call(&event)
    }

    /// No thread begins or ends until this one has created its child.
    fn begin_creation(&mut self) -> Result<(), Halt> {
        self.end_creation();
        let event = self.expect(EventKind::ThreadCreate, order::THREADS)?;
        self.creating = Some(Creation::new(event.ticket));
        self.note_event(&event)
    }

    /// The thread calls something that a creation does not call.
    pub(crate) fn leave_creation(&mut self) {
        if self.creating.is_some_and(|creation| creation.is_current()) {
            self.end_creation();
        }
    }

    pub(crate) fn end_creation(&mut self) {
        if let Some(creation) = self.creating.take() {
            self.machine.gate.advance(order::THREADS_SLOT, creation.ticket);
        }
    }

    /// The recording has no event for joining a thread that it did not know.
    fn join(&mut self) -> Result<(), Halt> {
        self.handlers_in_body()?;
        let actual = self.call(EventKind::ThreadJoin, 0);
        let comes_next = self.fast_path.left() <= 0;
        let recorded = self
            .cursor
            .peek()?
            .is_some_and(|e| comes_next && e.kind() == EventKind::ThreadJoin && e.pc == actual.pc);
        if !recorded {
            return Ok(());
        }
        let event = self.next(EventKind::ThreadJoin)?;
        let actual = Event { object: event.object, ..actual };
        self.compare(&event, &actual)?;
        self.times(|times| times.last_timeout(&event));
        let joined = event.object.checked_sub(1).and_then(|id| u32::try_from(id).ok());
        let joined = joined.filter(|&id| event.result == 0 && id < self.machine.trace.threads());
        match joined.map(ThreadId) {
            Some(thread) if self.machine.gate.is_live() => {
                self.ask_for(Operation::Join { thread }, &event, self.event_id())?;
                // From its exit to its end it may still have to clean up.
                self.wait(Condition::Ended { thread })?;
            }
            _ => self.perform(&event)?,
        }
        if event.result != 0 {
            return self.finish_call(&event);
        }
        self.finish_event(&event)
    }

    fn note(&mut self, hook: &Hook) -> Result<(), Halt> {
        let event = self.expect(hook.kind, self.context.gpr[RDI])?;
        self.finish_event(&event)
    }
}
