//! `refrain linkages`: which store each watched load read.

use crate::args::Linkages;
use crate::failure::Outcome;
use crate::output::{self, Style};
use crate::progress::Progress;
use crate::report::linkages::render;
use refrain_session::linkages::{Listing, linkages};
use refrain_session::{Purpose, Session};

/// Prints the counts, and the loads that are asked for.
pub(crate) fn run(args: &Linkages, session: &Session) -> Outcome {
    session.confine(&Purpose::Read { trace: &args.trace, symbols: true })?;
    let listing = Listing { threads: args.thread.clone(), site: args.site.clone(), top: args.top };
    let progress = Progress::spin("reading");
    let found = linkages(&args.trace, &listing)?;
    drop(progress);
    if args.json {
        output::print_json("linkages", &found)?;
    } else {
        output::print(&render(&found, Style::of_stdout()))?;
    }
    Ok(0)
}
