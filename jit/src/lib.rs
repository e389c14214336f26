//! The engines that execute guest code.
//!
//! - `copy` copies instructions; it records, near natively.
//! - `cranelift` lifts them to Cranelift's intermediate representation; it replays, with
//!   observers compiled in.
//! - `tiered` replays: copies at first, compiled code where threads come often.
//!
//! # Invariants
//! - Nothing here knows what is recorded, replayed or scheduled: the machine is met only through
//!   [`refrain_vm::Engine`], [`refrain_vm::Cpu`] and [`refrain_vm::Context`].
//!
//! Reading order: `memory`, `fault`, `refused`, `emulated`, `features`, `cost` and `accesses` (shared by
//! both), then the engines' own `mod.rs`; `unused`, `retries` and `constant_stores` are for who looks
//! for races.

mod accesses;
mod common;
mod constant_stores;
mod copy;
mod cost;
mod cranelift;
mod emulated;
mod fault;
mod features;
mod lanes;
mod memory;
mod moved;
mod refused;
mod retries;
mod tiered;
mod transfer;
mod unused;
mod values;

pub use constant_stores::{Constant, constant_stores};
pub use copy::{copy, logs_copies};
pub use cranelift::{CraneliftEngine, MIN_ACCESSES, Program};
pub use features::needs;
pub use retries::retried_loads;
pub use tiered::tiered;
pub use unused::{indirect_calls, plain_updates, unused_results, watched_loads};

/// Makes the tables that decoding needs, which the first instruction would wait for.
pub fn warm_up() {
    let no_op = [0x90];
    let instruction = iced_x86::Decoder::new(64, &no_op, 0).decode();
    debug_assert!(!instruction.is_invalid());
}
