//! `refrain pack`: puts into a trace the contents of the files that it refers to.

use crate::args::Pack;
use crate::failure::Outcome;
use crate::output;
use crate::report::pack::{Report, render};
use refrain_session::Session;

/// Packs a trace and says where it is.
pub(crate) fn run(args: &Pack, session: &Session) -> Outcome {
    let output = args.output.as_deref().map(|output| (output, args.force));
    let packed = session.pack(&args.trace, output)?;
    let report = Report {
        output: packed.path.display().to_string(),
        old: packed.old.map(|old| old.display().to_string()),
        bytes_before: packed.before,
        bytes: packed.bytes,
    };
    if args.json {
        output::print_json("pack", &report)?;
    } else {
        output::print(&render(&report))?;
    }
    Ok(0)
}
