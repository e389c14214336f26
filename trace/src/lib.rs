//! The trace of a recorded program.
//!
//! A trace is what replay needs and cannot recompute: the initial image, the executed code, the
//! order of synchronization, the effects of system calls, nondeterministic instructions and
//! timestamps. This crate holds its vocabulary ([`Event`], [`Header`], …), its file form and its
//! text form, and a verifier. It knows nothing of CPUs, policies or what a path names.
//!
//! # Reading order
//! `ids`, `event` (what happened, and how tickets order it), `order`, `payload`, `linux`, `meta`,
//! `transformed` (what replaces the locks of a transformed trace); then
//! `container` (the `*.refrain` file), `owned` (a whole trace in memory), `text`, `verify`. `hex` and
//! `harmless` write for people what a trace says.
//!
//! # Invariants
//! - A trace is untrusted input: no bytes make this crate panic or allocate beyond a stated bound.
//! - Whatever was written before a crash is readable up to the last whole chunk.

#![forbid(unsafe_code)]

mod access;
#[doc(hidden)]
pub mod cases;
pub mod container;
mod error;
mod event;
pub mod fixed;
#[doc(hidden)]
pub mod fuzzing;
pub mod harmless;
pub mod hex;
mod ids;
pub mod linux;
mod meta;
#[doc(hidden)]
pub mod mutants;
pub mod order;
mod owned;
pub mod payload;
pub mod text;
mod transformed;
pub mod verify;

pub use access::Access;
pub use container::{Cursor, Trace, Writer};
pub use error::{ChunkAt, Error, Lack, Result};
pub use event::{
    Event, EventClass, EventKind, HAS_PAYLOAD, NO_TICKET, OWN_ORDER, UNFINISHED, accessed, common,
    delivery, own_store,
};
pub use ids::{AuxLock, BlobId, BlockId, EventId, ThreadId};
pub use meta::{
    CodeBlock, Ending, Entry, Executed, Footer, Header, Latencies, Locking, Machine, MappedFile,
    Mapping, Module, Order,
};
pub use owned::{OwnedEvent, OwnedTrace};
pub use transformed::{CausalEdge, FreedSection, Transformed};
