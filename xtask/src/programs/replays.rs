//! Replaying a trace, and what comes out.

use super::results::{Divergence, Facts};
use super::supervise::{self, Surroundings};
use crate::process::CommandLine;
use anyhow::Context;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// The engines, the default first.
pub(super) const ENGINES: [&str; 3] = ["tiered", "copy", "cranelift"];
/// What the engine says that needs all code before the replay starts, where it is generated later.
const GENERATED: &str = "the cranelift engine cannot run this program";

/// What a replay came to.
#[derive(Debug)]
pub(super) enum Outcome {
    Exact,
    Diverged(Divergence),
    /// refrain says that it cannot.
    Refused(String),
    TimedOut,
    /// Neither a result nor an error that refrain would give.
    Failed(String),
}

/// Replays a trace so many times on each engine that can, up to the first that is not exact.
pub(super) fn all(
    refrain: &Path,
    trace: &Path,
    (replays, limit): (u32, Duration),
    around: &Surroundings,
) -> anyhow::Result<(Outcome, &'static str)> {
    for engine in ENGINES {
        for _ in 0..replays {
            match once(refrain, trace, engine, limit, around)? {
                Outcome::Exact => {}
                Outcome::Refused(why) if why.contains(GENERATED) => break,
                other => return Ok((other, engine)),
            }
        }
    }
    Ok((Outcome::Exact, ENGINES[0]))
}

fn once(
    refrain: &Path,
    trace: &Path,
    engine: &str,
    limit: Duration,
    around: &Surroundings,
) -> anyhow::Result<Outcome> {
    let mut line = CommandLine::new([refrain.as_os_str(), "replay".as_ref(), "--json".as_ref()]);
    // The default engine has a fallback, which naming it would forbid.
    if engine != ENGINES[0] {
        line.words.extend(["--engine".into(), engine.into()]);
    }
    line.words.push(trace.into());
    let ended = supervise::run(&line, around, limit)?;
    let Some(status) = ended.status else { return Ok(Outcome::TimedOut) };
    let report: Option<Value> = serde_json::from_slice(&ended.output).ok();
    let errors = one_line(&ended.errors);
    Ok(match report {
        Some(report) if report["divergence"].is_object() => {
            Outcome::Diverged(divergence(&report, engine))
        }
        Some(report) if status == 0 && report["truncated"] == false => Outcome::Exact,
        Some(_) => Outcome::Failed(format!("status {status}: {errors}")),
        None if is_error(&errors) => Outcome::Refused(errors),
        None => Outcome::Failed(format!("status {status}: {errors}")),
    })
}

fn divergence(report: &Value, engine: &str) -> Divergence {
    let it = &report["divergence"];
    let text = |name: &str| it[name].as_str().unwrap_or_default().to_owned();
    let races = &report["races"];
    let named = races["pairs"].as_array().and_then(|pairs| pairs.first());
    let named = named.map(|pair| format!("{}, {}", side(&pair["first"]), side(&pair["second"])));
    let more = [
        ("every_access", "every access from now on"),
        ("watched", "memory of other processes, watched from now on"),
    ];
    let more = more.into_iter().find(|&(name, _)| races[name] == true);
    let more = more.map(|(_, text)| text.to_owned());
    let place = format!("{} {}", text("thread"), text("event"));
    let mut said =
        format!("{place}: {}: {}, not {}", text("kind"), text("actual"), text("expected"));
    if let Some(error) = races["error"].as_str() {
        said += &format!(" ({error})");
    }
    Divergence { engine: engine.to_owned(), text: one_line(&said), race: named.or(more) }
}

/// One side of a race: a function, or an address in a file.
fn side(side: &Value) -> String {
    let place = &side["place"];
    let module = place["module"].as_str().unwrap_or("no file");
    let module = module.rsplit('/').next().unwrap_or_default();
    let place = match place["frames"][0]["function"].as_str() {
        Some(function) => format!("{function} ({module})"),
        None => format!("{} of {module}", place["in_module"].as_str().unwrap_or("?")),
    };
    format!("{place} {}", side["access"].as_str().unwrap_or("?"))
}

/// What a trace says of itself.
pub(super) fn facts(
    refrain: &Path,
    trace: &Path,
    around: &Surroundings,
    limit: Duration,
) -> anyhow::Result<Facts> {
    let line = CommandLine::new([
        refrain.as_os_str(),
        "info".as_ref(),
        "--json".as_ref(),
        trace.as_os_str(),
    ]);
    let ended = supervise::run(&line, around, limit)?;
    let info: Value = serde_json::from_slice(&ended.output)
        .with_context(|| format!("refrain info: {}", one_line(&ended.errors)))?;
    Ok(Facts {
        traces: 1,
        threads: info["threads"].as_array().map_or(0, |threads| threads.len() as u64),
        events: info["events"].as_u64().unwrap_or_default(),
        bytes: info["size"].as_u64().unwrap_or_default(),
        every_access: info["order"] == "stride",
    })
}

/// Whether this is a failure that refrain reports, and no fault of refrain's.
fn is_error(errors: &str) -> bool {
    errors.contains("refrain: error: ") && !errors.contains("this is a bug in refrain")
}

/// Text on one line, and not too long for a table.
pub(super) fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
