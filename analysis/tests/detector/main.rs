//! The detector, step by step: known answers, and an exact detector to compare with.

mod exact;
mod lives;
mod program;
mod relation;
mod tasks;
mod textbook;
