//! Events that are written before they happen.

use super::{Busy, State};
use refrain_trace::Event;

/// An event that lies behind the last event of its stream's chunk, and is not part of the stream yet.
pub(crate) struct Prepared<'a>(pub(super) Busy<'a>);

impl Prepared<'_> {
    /// Appends the event, completed.
    #[inline]
    pub(crate) fn append(mut self, complete: impl FnOnce(&mut Event)) {
        let State { chunk, polling, counted, last, .. } = self.0.state();
        let length = chunk.events.len();
        // SAFETY: `Busy::prepare`, which alone makes a `Prepared`, has found room for the event there and
        // written it, and as long as the `Busy` lives, nobody else is at the chunk.
        unsafe { chunk.events.set_len(length + 1) };
        let event = &mut chunk.events[length];
        complete(event);
        *counted += event.unrecorded;
        *polling = None;
        *last = event.end;
    }
}
