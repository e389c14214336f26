//! Diagnostics of refrain itself: `REFRAIN_LOG` chooses what `tracing` prints.

use refrain_session::Session;
use std::io::{IsTerminal, stderr};
use tracing_subscriber::EnvFilter;

/// The variable that holds the filter, in the syntax of `RUST_LOG`.
const VARIABLE: &str = "REFRAIN_LOG";

/// Starts logging to standard error, that of the session's child processes too. Nothing is logged
/// unless asked for: standard error belongs to the recorded program too.
pub(crate) fn start(session: Session) -> anyhow::Result<Session> {
    let Ok(text) = std::env::var(VARIABLE) else { return Ok(session) };
    let filter = EnvFilter::try_new(&text)
        .map_err(|error| anyhow::anyhow!("{VARIABLE}={text} is not a log filter: {error}"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal() && crate::output::colour_wanted())
        .init();
    Ok(session.diagnostics(|line| eprintln!("{line}")))
}
