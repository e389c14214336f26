//! `refrain check`: verifies a trace and mends one that was damaged or cut off.

use crate::args::Check;
use crate::failure::Outcome;
use crate::output;
use crate::progress::Progress;
use crate::report::check::render;
use refrain_session::{Purpose, Session, trace_file};

/// Prints everything that is wrong. The status is 0 if the trace is sound, or is after its repair.
pub(crate) fn run(args: &Check, session: &Session) -> Outcome {
    let trace = args.trace.as_path();
    session.confine(&match args.repair {
        true => Purpose::Mend { trace },
        false => Purpose::Read { trace, symbols: false },
    })?;
    let progress = Progress::spin("checking");
    let checked = trace_file::check(trace, args.repair)?;
    drop(progress);
    if args.json {
        output::print_json("check", &checked)?;
    } else {
        output::print(&render(&checked, &trace.display().to_string()))?;
    }
    Ok(u8::from(!checked.sound))
}
