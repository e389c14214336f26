//! Predictions: the gains that `refrain locks` predicts, against the gains that fixes have
//! natively.

mod page;
mod rows;

use crate::root;

/// What to measure.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Native runs of each variant, the slow and the fixed one in turns
    #[arg(long, default_value_t = 11)]
    runs: usize,
    /// Recordings of the slow variant
    #[arg(long, default_value_t = 3)]
    recordings: usize,
    /// Only measure and record, which wants the machine for itself, and keep that for --kept
    #[arg(long, conflicts_with = "kept")]
    measure: bool,
    /// Predict from what was measured and recorded last
    #[arg(long)]
    kept: bool,
    /// Print the table, and leave docs/predictions.md as it is
    #[arg(long)]
    dry: bool,
    /// Only pairs whose names contain one of these (implies --dry)
    names: Vec<String>,
}

/// Measures and writes the table.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let refrain = root::release_refrain()?;
    if !options.kept {
        rows::measure(options, &refrain)?;
    }
    if options.measure {
        return Ok(());
    }
    let rows = rows::predict(options, &refrain)?;
    let page = page::page(&rows, options);
    println!("{page}");
    if !options.dry && options.names.is_empty() {
        std::fs::write(root::directory().join("docs/predictions.md"), page)?;
    }
    Ok(())
}
