//! Diagnostics of refrain itself: `REFRAIN_LOG` chooses what `tracing` prints.

use std::io::{IsTerminal, stderr};
use tracing_subscriber::EnvFilter;

/// The variable that holds the filter, in the syntax of `RUST_LOG`.
const VARIABLE: &str = "REFRAIN_LOG";

/// Whether the user has asked for diagnostics.
pub(crate) fn is_on() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Starts logging to standard error. Nothing is logged unless asked for: standard error belongs
/// to the recorded program too.
pub(crate) fn start() -> anyhow::Result<()> {
    let Ok(text) = std::env::var(VARIABLE) else { return Ok(()) };
    let filter = EnvFilter::try_new(&text)
        .map_err(|error| anyhow::anyhow!("{VARIABLE}={text} is not a log filter: {error}"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal() && crate::output::colour_wanted())
        .init();
    Ok(())
}
