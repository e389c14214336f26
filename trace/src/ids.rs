//! Ids that print the way the text form writes them: `t3`, `e1042`, `blk7`, `@L11`.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $repr);

        impl $name {
            /// The id as an index into a dense table.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// A guest thread, numbered in the order of creation; `t0` is the main thread.
    ThreadId(u32), "t"
);
id!(
    /// An event's position in the stream of its thread.
    EventId(u64), "e"
);
id!(
    /// A block of executed code, by its position in the trace's block table.
    BlockId(u32), "blk"
);
id!(
    /// A blob of the trace: bytes that are kept once however often they are used.
    BlobId(u32), "blob"
);
id!(
    /// An auxiliary lock of a transformed trace (PerfPlay, Rule 3).
    AuxLock(u32), "@L"
);
