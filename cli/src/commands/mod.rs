//! One file per subcommand, and what they share: the way in and the way out.

mod ab;
mod after;
mod calibrate;
mod check;
mod completions;
mod demo;
mod destination;
mod detectors;
mod disassembly;
mod dump;
mod export;
mod fidelity;
mod info;
mod linkages;
mod locks;
mod man;
mod materialize;
mod once;
mod races;
mod racing;
mod record;
mod repeat;
mod replay;
mod run;
mod simulate;
mod sites;
mod transform;

use crate::args::{Cli, Command};
use crate::failure::{self, Failure, Outcome};
use clap::Parser;
use std::process::ExitCode;

/// The `refrain` command: parses the command line, runs what it says and turns the outcome into
/// an exit status.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    refrain_session::sandbox::tolerate_weakness(cli.unsandboxed);
    refrain_session::sandbox::limit_memory(cli.max_memory);
    let command = cli.command;
    if matches!(command, Command::Record(_) | Command::Run(_) | Command::Demo(_)) {
        // The recorded program's main thread is to be the process's first.
        let error = refrain_vm::lend_first_thread(|| run_command(command), refrain_jit::warm_up);
        eprintln!("refrain: error: cannot start a thread: {error}");
        return ExitCode::from(failure::CANNOT_RECORD);
    }
    ExitCode::from(run_command(command))
}

fn run_command(command: Command) -> u8 {
    let outcome = crate::logging::start().map_err(Failure::from).and_then(|()| dispatch(command));
    match outcome {
        Ok(status) => status,
        Err(failure) if failure.is_broken_pipe() => 0,
        Err(failure) => {
            eprintln!("refrain: error: {failure}");
            failure.status
        }
    }
}

fn dispatch(command: Command) -> Outcome {
    match command {
        Command::Record(args) => record::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Locks(args) => locks::run(&args),
        Command::Transform(args) => transform::run(&args),
        Command::Races(args) => races::run(&args),
        Command::Linkages(args) => linkages::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Fidelity(args) => fidelity::run(&args),
        Command::Ab(args) => ab::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Sites(args) => sites::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::AfterRecording(args) => after::run(&args),
        Command::ReplayChild(args) => Ok(refrain_session::child::run(&args.request).map(|()| 0)?),
    }
}
