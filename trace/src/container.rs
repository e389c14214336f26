//! The trace file, `*.refrain`.
//!
//! A preamble (magic and version) and self-delimiting chunks, each with checksums, compressed
//! with zstd; events are kept as columns. The last chunk is an index; a file without one is
//! scanned. See `format` for the layout, `columns` for the coding of events.
//!
//! # Invariants
//! - A chunk is written at once and never changed, so a file cut off anywhere is a trace up to
//!   its last whole chunk.
//! - No chunk refers to another but by counting: a chunk can be checked and decoded alone.
//! - No bytes make a reader panic. What it allocates is bounded by the constants below.

mod body;
mod catalog;
mod check;
mod columns;
mod copied;
mod cursor;
mod format;
mod packed;
mod pages;
mod parallel;
mod reader;
mod recipe;
mod references;
mod repair;
mod salvage;
mod scan;
mod source;
mod transform;
mod varint;
mod writer;

pub use check::{CheckReport, IndexState, Problem, check, check_bytes};
pub use cursor::Cursor;
pub use format::{
    ChunkKind, FORMAT_VERSION, MAX_BLOB, MAX_CODE, MAX_EVENTS, MAX_MODULES, MAX_PART, MAX_PAYLOAD,
    MAX_RAW, MAX_THREADS, MAX_TRANSFORMED, PAGE,
};
pub use packed::{refers_to_files, write_packed};
pub use pages::PageRun;
pub use reader::Trace;
#[doc(hidden)]
pub use recipe::chunks_from;
pub use repair::{RepairReport, repair_bytes, repair_in_place, repair_to};
pub use salvage::{Salvaged, Truncate};
pub use transform::write_transformed;
pub use writer::Writer;
