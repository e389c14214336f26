//! The guest machine, the recorder and the replayer.
//!
//! # Invariants
//! - Nothing here knows how guest code is executed: engines stand behind [`Engine`] and [`Cpu`],
//!   and only `cli` and tests pick one.

mod context;
mod engine;
pub mod layout;
mod observer;

pub use context::{Context, reg};
pub use engine::{Cpu, Emulate, Engine, EngineConfig, EngineError, Exit, Fault, Mode, OrderedKind};
pub use observer::{Interest, Observer, ThreadObserver};
