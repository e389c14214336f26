//! `refrain man`: the manual.

use crate::args::{Cli, Man};
use crate::failure::Outcome;
use crate::output;
use anyhow::Context;
use clap::CommandFactory;

/// Prints the page of the whole command, or writes a page per subcommand.
pub(crate) fn run(args: &Man) -> Outcome {
    match &args.directory {
        Some(directory) => {
            std::fs::create_dir_all(directory)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
                .with_context(|| format!("cannot write the manual to {}", directory.display()))?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            output::print(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(0)
}
