//! A run of a program: to its end, or, of a server, until its load is done and it is told to end.

use super::catalogue::{Program, Server};
use super::supervise::{self, Ended, Running, Surroundings};
use crate::process::CommandLine;
use anyhow::{Context, bail};
use rustix::process::Signal;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How often a server is asked whether it answers.
const ASK: Duration = Duration::from_millis(100);
/// What is added to the status of a server whose load failed: no status is as large.
const LOAD_FAILED: i32 = 1000;

/// Runs a program within the time that it may take. The output is that of the load, if it is a server.
pub(super) fn run(
    line: &CommandLine,
    around: &Surroundings,
    program: &Program,
    limit: Duration,
) -> anyhow::Result<Ended> {
    match &program.server {
        None => supervise::run(line, around, limit),
        Some(server) => serve(line, around, server, limit),
    }
}

fn serve(
    line: &CommandLine,
    around: &Surroundings,
    server: &Server,
    limit: Duration,
) -> anyhow::Result<Ended> {
    let begun = Instant::now();
    let mut running = Running::start(line, around)?;
    let mut load = None;
    while load.is_none() && running.status()?.is_none() && begun.elapsed() < limit {
        if client(&server.ready, around, limit)?.status.success() {
            let rest = limit.saturating_sub(begun.elapsed());
            load = Some(client(&server.load, around, rest)?);
        } else {
            std::thread::sleep(ASK);
        }
    }
    if let (Some(signal), Some(_), None) = (&server.signal, &load, running.status()?) {
        running.signal(named(signal)?)?;
    }
    // A server that never answered is killed at once.
    let ended = running.end(if load.is_some() { limit } else { Duration::ZERO })?;
    let Some(load) = load else {
        return Ok(Ended { errors: format!("it did not answer; {}", ended.errors), ..ended });
    };
    if !load.status.success() {
        let errors = String::from_utf8_lossy(&load.stderr);
        let errors = format!("the load ended with {}: {errors}; {}", load.status, ended.errors);
        let status = ended.status.map(|status| LOAD_FAILED + status);
        return Ok(Ended { status, errors, ..ended });
    }
    Ok(Ended { output: load.stdout, ..ended })
}

/// Runs a shell script beside the server. What it leaves running ends with the server.
fn client(script: &str, around: &Surroundings, limit: Duration) -> anyhow::Result<Output> {
    let limit = limit.as_secs().max(1).to_string();
    Command::new("timeout")
        .args(["--kill-after=2", &limit, "sh", "-eu", "-c", script])
        .current_dir(&around.folder)
        .env_clear()
        .envs(&around.env)
        .stdin(Stdio::null())
        .output()
        .context("cannot run a client")
}

fn named(signal: &str) -> anyhow::Result<Signal> {
    Ok(match signal {
        "TERM" => Signal::TERM,
        "INT" => Signal::INT,
        "QUIT" => Signal::QUIT,
        "HUP" => Signal::HUP,
        _ => bail!("server.signal: {signal} is not known"),
    })
}
