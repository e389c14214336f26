//! Sections of OpenMP: which of them a thread executes depends on the run.
//!
//! A section is a thread of its own to the detector, as a task is: it begins with what its thread had done
//! before the construct, and what the thread does behind the construct is behind all of its sections. So two
//! sections race whether or not two threads executed them. What the thread has for itself is of no account:
//! its stack, from the body of the team on, what is local to it, and blocks that it has allocated in that
//! body. A thread that has asked for its number relies on what it does one after another, and its sections
//! are not taken apart.

use super::tasking::Working;
use super::{Detector, Watcher};
use crate::heap::Block;
use refrain_trace::ThreadId;

impl Working {
    /// Whether a thread that is in a section has this memory for itself: then two accesses of that thread,
    /// in this section and in another one, do not race. The clocks are those of the accesses: of threads, or
    /// of their sections.
    pub(super) fn keeps(&self, detector: &Detector, clocks: [u16; 2], address: u64) -> bool {
        let Some(body) = self.present_body().filter(|body| body.section.is_some()) else {
            return false;
        };
        let [earlier, now] = clocks.map(|clock| detector.tasks.owner(ThreadId(clock.into())));
        let is_own = |block: Block| block.thread == now && block.number >= body.allocated;
        earlier == now && detector.heap.at(address).is_some_and(is_own)
    }
}

impl Watcher {
    /// The thread is told to execute a section.
    pub(super) fn begin_section(&mut self) {
        let Some(body) = self.working.body().filter(|it| !it.has_asked) else { return };
        let start = body.start;
        let begins = self.clock.clone();
        let Some(own) = self.clock_after(&begins) else { return };
        // What the thread itself does next is not before who comes behind the section.
        self.next_epoch();
        let outer = self.take_apart(own, begins, start);
        if let Some(body) = self.working.body() {
            body.section = Some(outer);
        }
    }

    /// The section is over, if the thread is in one.
    pub(super) fn end_section(&mut self) {
        let clock = self.clock.clone();
        let Some(body) = self.working.body() else { return };
        let Some(outer) = body.section.take() else { return };
        body.done.join(&clock);
        self.put_together(outer);
    }

    /// There are no more sections for the thread.
    pub(super) fn leave_sections(&mut self) {
        self.end_section();
        let Some(body) = self.working.body() else { return };
        let done = std::mem::take(&mut body.done);
        self.clock.join(&done);
    }

    /// The thread asks for its number.
    pub(super) fn ask_in_team(&mut self) {
        self.leave_sections();
        if let Some(body) = self.working.body() {
            body.has_asked = true;
        }
    }
}
