//! From a trace to a builder.

use crate::{Builder, Error};
use refrain_trace::linux::creates_threads;
use refrain_trace::{Cursor, Event, EventId, EventKind, ThreadId, Trace};

impl Builder {
    /// Pushes all events of a trace, and returns how long the recorded run took: from the start
    /// that the builder was made with to the end of the last event. Fails if the trace cannot be
    /// read, or as [`Builder::push`] does.
    pub fn read<E>(&mut self, trace: &Trace) -> Result<u64, E>
    where
        E: From<Error> + From<refrain_trace::Error>,
    {
        self.read_as(trace, |_, _, event| *event)
    }

    /// The same with each event as `view` has it. (Locks that the program makes itself can be seen
    /// as the library's.)
    pub fn read_as<E>(
        &mut self,
        trace: &Trace,
        mut view: impl FnMut(ThreadId, EventId, &Event) -> Event,
    ) -> Result<u64, E>
    where
        E: From<Error> + From<refrain_trace::Error>,
    {
        let mut end = self.start;
        for thread in (0..trace.threads()).map(ThreadId) {
            let mut cursor = trace.cursor(thread);
            let mut id = cursor.position();
            while let Some(event) = cursor.next()? {
                self.push(thread, &view(thread, id, &event))?;
                id = cursor.position();
                if let Some(child) = child(&event, &mut cursor)? {
                    self.created(thread, child);
                }
                end = end.max(event.end);
            }
        }
        Ok(end - self.start)
    }
}

/// The thread that the event just read has created.
fn child(event: &Event, cursor: &mut Cursor) -> Result<Option<ThreadId>, refrain_trace::Error> {
    // Other payloads may be large.
    let clones = event.kind() == EventKind::Syscall && creates_threads(event.nr);
    let record = if clones { cursor.payload()? } else { None };
    Ok(record.and_then(|record| record.effect.child()))
}
