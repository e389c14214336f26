//! Fidelity: how near replays under each scheduler come to the recorded run, over all workloads.
//! PerfPlay's Figure 13 as a table, and the limits that the project has set itself.

mod page;
mod rows;

use crate::root;

/// What to measure.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Replays under each scheduler by each clock
    #[arg(long, default_value_t = 5)]
    repeat: u32,
    /// Recordings and native runs of each program; the median counts
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Bytes of text for the compressors
    #[arg(long, default_value_t = 16 << 20)]
    bytes: u64,
    /// Print the table, and leave docs/fidelity.md as it is
    #[arg(long)]
    dry: bool,
    /// Only workloads whose names contain one of these (implies --dry)
    names: Vec<String>,
}

/// Measures and writes the table.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let refrain = root::release_refrain()?;
    let rows = rows::measure(options, &refrain)?;
    let page = page::page(&rows, options);
    println!("{page}");
    if !options.dry && options.names.is_empty() {
        std::fs::write(root::directory().join("docs/fidelity.md"), page)?;
    }
    Ok(())
}
