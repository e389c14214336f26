//! The guest machine, the recorder and the replayer.
//!
//! # Reading order
//! `processor`, `context` and `engine` (the contract with the engines), `layout` and `memory` (where the guest
//! lives), `loader`; `hooks` and `syscall` (what is recorded, and how); then `record` and
//! `replay`, which mirror each other file by file.
//!
//! # Invariants
//! - Nothing here knows how guest code is executed: engines stand behind [`Engine`] and [`Cpu`],
//!   and only `session` and tests pick one.
//! - A system call without a row in the table is refused by name; nothing passes unrecorded.
//! - Host code never runs guest code, and maps nothing in the guest's arenas.

mod at_address;
mod attempts;
mod barrier;
mod common;
mod context;
mod cpuid;
mod creation;
mod digest;
mod elf;
mod elsewhere;
mod engine;
mod error;
mod file_maps;
mod first_thread;
mod frame;
mod hidden;
mod hooks;
mod host;
mod interrupt_return;
mod kick;
mod known_pages;
pub mod layout;
mod loader;
mod memory;
mod mutex;
mod observer;
mod order;
mod pipes;
mod processor;
mod record;
mod recovery;
mod replay;
mod reserve;
pub mod same_epoch;
mod seen;
mod slots;
mod state_area;
mod syscall;
mod xsave;
mod zeroed;

pub use attempts::{attempt, forbidden_calls};
pub use barrier::Barrier;
pub use context::{Context, SeenWords, Translating, Wide, reg};
pub use cpuid::is_recorded;
pub use digest::memory_digest;
pub use engine::{
    Answer, Cause, Count, Cpu, Emulate, Engine, EngineConfig, EngineError, Exit, FastPath, Fault,
    Finding, Interrupt, LeaveOut, List, LockRole, Mode, ModuleCode, ModuleFunctions, Nested,
    Operand, OrderedAccess, OrderedFastPath, OrderedKind, ReadAtomics, ReadCode, ReadFunctions,
    Recall, RecordingCpu, RecordingEngine, StateArea,
};
pub use error::{Error, Result};
pub use first_thread::lend_first_thread;
pub use hidden::Hidden;
pub use host::{close_on_exec, end_like_the_program, outlive_interrupts};
pub use loader::{Command, executed, identity};
pub use observer::{Interest, Observer, ThreadObserver};
pub use order::{
    ENTRIES as FILTER_ENTRIES, Filter, INDEX_MASK, LastMet, LineTable, Met, OwnWords, Span,
    can_order_every_access, line_index,
};
pub use processor::{Feature, Level, Processor};
pub use record::{
    Follow, LearnedSites, LostEnd, Notice, OrderOf, RecordOptions, RecordSummary, Warn, WatchedOf,
    raise_limit_of_space, record, this_machine,
};
pub use recovery::{recovery, recovery_is_asked};
pub use replay::{
    Divergence, DivergenceKind, NewScheduler, Outcome, Output, Placement, Policy, ReplayOptions,
    recorded_processor, replay, replayable,
};
pub use reserve::Allocator;
pub use same_epoch::{EpochWords, SameEpoch};
pub use seen::Seen;
pub use syscall::syscall_number;
pub use zeroed::{Pages, Zeroed};
