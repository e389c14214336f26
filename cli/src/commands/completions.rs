//! `refrain completions`: a completion script for a shell.

use crate::args::{Cli, Completions};
use crate::failure::Outcome;
use crate::output;
use clap::CommandFactory;

/// Prints the script.
pub(crate) fn run(args: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "refrain", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}
