//! `cargo xtask`: one command per habit of the project.
//!
//! # Reading order
//! - `tidy`: rules of the house that no other tool checks.
//! - `bench`: speed, against native and valgrind.
//! - `orders`: what the orders of shared memory cost.
//! - `perfplay`: the paper's tables and figures.
//! - `fidelity`: the times of replays, against the recorded run.
//! - `predict`: predicted gains, against native ones.
//! - `exact`: whether every replay equals its recording.
//! - `programs`: whether programs that people use can be recorded.
//! - `races`: whether every planted race is found, and nothing else.
//! - `soak`: random programs, recorded and replayed for as long as one likes.
//! - `fuzz`: readers of untrusted input, for as long as one likes.
//! - `miri`: undefined behaviour.
//! - `process`: how all of them run programs.

#![forbid(unsafe_code)]

mod bench;
mod ci;
mod exact;
mod faults;
mod fidelity;
mod fuzz;
mod kills;
mod miri;
mod mutants;
mod orders;
mod perfplay;
mod predict;
mod process;
mod programs;
mod races;
mod root;
mod soak;
mod table;
mod text_data;
mod tidy;
mod workload;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser, Debug)]
#[command(name = "cargo xtask", about = "One command per habit of the project")]
struct Cli {
    #[command(subcommand)]
    habit: Habit,
}

#[derive(Subcommand, Debug)]
enum Habit {
    /// Everything that must pass before a change is merged
    Ci,
    /// Run the tests and accept what has changed in their expected output
    Bless,
    /// Check the rules of the house: dependencies (also unused ones), circles of imports, numbers of system calls, docs, links, file sizes, unsafe code
    Tidy,
    /// Measure against native runs and valgrind, and write docs/benchmarks.md
    Bench(bench::Options),
    /// Record and replay real programs, and compare everything with native runs
    Exact(exact::Options),
    /// Compare replays under all schedulers with the recorded runs, and write docs/fidelity.md
    Fidelity(fidelity::Options),
    /// Compare predicted gains with those that fixes have natively, and write docs/predictions.md
    Predict(predict::Options),
    /// Compare what the orders of shared memory cost, and write docs/orders.md
    Orders(orders::Options),
    /// Draw the tables and figures of PerfPlay over our programs, and write docs/perfplay.md
    Perfplay(perfplay::Options),
    /// Record and replay programs that people have, and write docs/programs.md
    Programs(programs::Options),
    /// Record all programs with races, and their twins, and hold what is found against their lines
    Races {
        /// Recordings of each
        #[arg(default_value_t = 3)]
        recordings: u32,
    },
    /// Run tests of the crates without unsafe code under Miri (nightly, with its component `miri`)
    Miri,
    /// Run every fuzz target for so many seconds
    Fuzz {
        /// Seconds for each target
        seconds: u64,
    },
    /// Record and replay random corpus programs for so many seconds, or kill so many recorders
    Soak(soak::Options),
}

fn main() -> ExitCode {
    match run(Cli::parse().habit) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(habit: Habit) -> anyhow::Result<()> {
    match habit {
        Habit::Ci => ci::run(),
        Habit::Bless => ci::bless(),
        Habit::Tidy => tidy::run(),
        Habit::Bench(options) => bench::run(&options),
        Habit::Exact(options) => exact::run(&options),
        Habit::Fidelity(options) => fidelity::run(&options),
        Habit::Predict(options) => predict::run(&options),
        Habit::Orders(options) => orders::run(&options),
        Habit::Perfplay(options) => perfplay::run(&options),
        Habit::Programs(options) => programs::run(&options),
        Habit::Races { recordings } => races::run(recordings),
        Habit::Miri => miri::run(),
        Habit::Fuzz { seconds } => fuzz::run(seconds),
        Habit::Soak(options) => soak::run(&options),
    }
}
