//! `refrain export`: what a recorded program does, for other people's tools.

use crate::args::Export;
use crate::failure::Outcome;
use crate::output;
use anyhow::{Context, anyhow};
use refrain_analysis::Tapped;
use refrain_analysis::paper::{Granularity, Std, Step, Variables};
use refrain_session::{Atomics, Session, trace_file};

/// Steps of a trace that are written. The format has names for what comes later, so all are kept at
/// once.
const MOST: usize = 50_000_000;

/// Writes the trace in RAPID's format.
pub(crate) fn run(args: &Export, session: &Session) -> Outcome {
    let trace = trace_file::read(&args.trace)?;
    let mut variables = Variables::new(Granularity::Fine);
    let mut steps: Vec<Step> = Vec::new();
    let mut look = |more: &[(u32, Tapped)]| {
        for (thread, tapped) in more {
            if steps.len() < MOST {
                variables.steps(*thread, tapped, &mut |step| steps.push(step));
            }
        }
    };
    let incomplete = session.steps(&args.trace, (&trace, Atomics::default()), &mut look)?;
    if steps.len() >= MOST {
        let shown = args.trace.display();
        Err(anyhow!("{shown}: has more than {MOST} steps, which are too many for a text"))?;
    }
    let text = Std::write(&steps);
    match &args.output {
        Some(path) => std::fs::write(path, text)
            .with_context(|| format!("cannot write {}", path.display()))?,
        None => output::print(&text)?,
    }
    if let Some(why) = incomplete {
        Err(anyhow!("not all of the recording was written: {why}"))?;
    }
    Ok(0)
}
