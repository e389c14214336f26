//! What can go wrong in an analysis.

use refrain_trace::ThreadId;

/// The trace's fault, but for [`Error::Replay`], which is the replayer's to explain.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// Two observers of one thread were merged.
    #[error("{0} was observed twice")]
    ObservedTwice(ThreadId),
    /// More than this crate's compact form can number.
    #[error("more than 4294967295 {0}")]
    TooMany(&'static str),
    /// A replay did not come to its end.
    #[error("the replay of the {what} skeleton did not end: {why}")]
    Replay {
        /// Which replay.
        what: &'static str,
        /// What the replayer says.
        why: String,
    },
}
