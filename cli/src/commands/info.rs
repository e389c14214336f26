//! `refrain info`: what a trace holds.

use crate::args::Info as Args;
use crate::failure::Outcome;
use crate::output::{self, Style};
use crate::progress::Progress;
use crate::report::info::render;
use refrain_session::info::Info;
use refrain_session::{Purpose, Session};

/// Prints the description.
pub(crate) fn run(args: &Args, session: &Session) -> Outcome {
    session.confine(&Purpose::Read { trace: &args.trace, symbols: false })?;
    let progress = Progress::spin("reading");
    let info = Info::read(&args.trace)?;
    drop(progress);
    if args.json {
        output::print_json("info", &info)?;
    } else {
        output::print(&render(&info, Style::of_stdout()))?;
    }
    Ok(0)
}
