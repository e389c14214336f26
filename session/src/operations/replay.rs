//! Replaying a trace by the wall clock.

use crate::again;
use crate::error::Context;
use crate::machine::ReplayOptions;
use crate::protocol::Request;
use crate::replayed::{Divergence, Replayed};
use crate::session::Session;
use crate::trace_file;
use std::path::Path;

impl Session {
    /// Replays the trace at `path` to its end or to the first divergence.
    pub fn replay(&self, path: &Path, options: &ReplayOptions) -> crate::Result<Replayed> {
        // Read here as well, so that a file which is no trace is refused in the same words everywhere.
        drop(trace_file::read(path)?);
        let trace = self.open(path)?;
        self.ask(trace, &Request::Replay(options.clone()))
            .with_context(|| format!("cannot replay {}", path.display()))
    }

    /// What one replay by the wall clock gave: its time, or why it did not come to its end.
    pub(crate) fn wall_time(
        &self,
        path: &Path,
        options: &ReplayOptions,
    ) -> crate::Result<Result<u64, String>> {
        let report = self.replay(path, options)?;
        let Some(divergence) = &report.divergence else {
            return Ok(Ok(report.run_ns));
        };
        let order = match report.reordered.as_slice() {
            [] => String::new(),
            objects => format!("; its outcome depends on the order of {}", objects.join(", ")),
        };
        let Divergence { kind, thread, event, .. } = divergence;
        let again = again::by_wall_clock(path, options);
        Ok(Err(format!("{kind} at {thread} {event}{order} (`{again}` repeats it)")))
    }
}
