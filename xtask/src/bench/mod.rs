//! Speed: alternating runs of the same program natively, under `refrain record` and under
//! `valgrind --tool=none`, which is the peer that also runs every instruction itself; then
//! replays, the size of traces and the recorder's memory; and short programs from start to end.

mod report;
mod rows;
mod start;

use crate::root;

/// How to measure.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Runs of each kind; the median counts
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Leave valgrind out
    #[arg(long)]
    without_valgrind: bool,
    /// Print the table, and leave docs/benchmarks.md as it is
    #[arg(long)]
    dry: bool,
    /// Only rows whose names contain one of these (implies --dry)
    names: Vec<String>,
}

/// Measures and writes the table.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let refrain = root::release_refrain()?;
    let results = rows::measure(options, &refrain)?;
    let page = report::page(&results, options.runs);
    println!("{page}");
    if !options.dry && options.names.is_empty() {
        std::fs::write(root::directory().join("docs/benchmarks.md"), page)?;
    }
    Ok(())
}
