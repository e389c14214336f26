//! `refrain races --detector` and `--compare`: the detectors of the paper's tables over one trace.

use crate::args::Races;
use crate::failure::Outcome;
use crate::output::{self, Style};
use crate::report::detectors::render;
use anyhow::anyhow;
use refrain_session::Session;
use refrain_session::detectors::Detection;

/// Runs one detector, or all, and prints what they found, and what they cost.
pub(crate) fn run(args: &Races, session: &Session) -> Outcome {
    if args.report.sarif || args.report.suppressions.is_some() {
        return Err(anyhow!("--sarif and --suppressions are for refrain's own detector").into());
    }
    let found = session.detect(&Detection {
        trace: args.trace.clone(),
        compares: args.compare,
        which: args.detector,
        prefilter: args.prefilter,
        granularity: args.granularity,
        all: args.report.all,
        atomics: args.report.atomics,
    })?;
    if args.report.json {
        output::print_json("detectors", &found)?;
    } else {
        output::print(&render(&found, Style::of_stdout()))?;
    }
    let races = !args.compare && found.rows.iter().any(|row| row.places > 0);
    Ok(match (races, &found.incomplete) {
        (true, _) => args.report.error_exitcode,
        (false, Some(_)) => 1,
        (false, None) => 0,
    })
}
