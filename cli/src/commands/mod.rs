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
mod pack;
mod perfplay;
mod races;
mod record;
mod replay;
mod run;
mod simulate;
mod sites;
mod transform;

use crate::args::{Cli, Command};
use crate::failure::{self, Failure, Outcome};
use crate::news::News;
use clap::Parser;
use refrain_session::Session;
use std::process::ExitCode;

/// The `refrain` command: parses the command line, runs what it says and turns the outcome into
/// an exit status.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let max_memory = cli.max_memory.map(|most| most.saturating_mul(1 << 20));
    let echoes = matches!(&cli.command, Command::Replay(args) if !args.json);
    let session = Session::by("/proc/self/exe")
        .unsandboxed(cli.unsandboxed)
        .max_memory(max_memory)
        .listener(News::new(!echoes));
    let command = cli.command;
    if matches!(command, Command::Record(_) | Command::Run(_) | Command::Demo(_)) {
        // The recorded program's main thread is to be the process's first.
        let error =
            refrain_vm::lend_first_thread(|| run_command(command, session), refrain_jit::warm_up);
        eprintln!("refrain: error: cannot start a thread: {error}");
        return ExitCode::from(failure::CANNOT_RECORD);
    }
    ExitCode::from(run_command(command, session))
}

fn run_command(command: Command, session: Session) -> u8 {
    let outcome =
        crate::logging::start().map_err(Failure::from).and_then(|()| dispatch(command, &session));
    match outcome {
        Ok(status) => status,
        Err(failure) if failure.is_broken_pipe() => 0,
        Err(failure) => {
            eprintln!("refrain: error: {failure}");
            failure.status
        }
    }
}

fn dispatch(command: Command, session: &Session) -> Outcome {
    match command {
        Command::Record(args) => record::run(&args),
        Command::Replay(args) => replay::run(&args, session),
        Command::Info(args) => info::run(&args, session),
        Command::Dump(args) => dump::run(&args, session),
        Command::Locks(args) => locks::run(&args, session),
        Command::Transform(args) => transform::run(&args, session),
        Command::Pack(args) => pack::run(&args, session),
        Command::Races(args) => races::run(&args, session),
        Command::Linkages(args) => linkages::run(&args, session),
        Command::Export(args) => export::run(&args, session),
        Command::Run(args) => run::run(&args, session),
        Command::Fidelity(args) => fidelity::run(&args, session),
        Command::Perfplay(args) => perfplay::run(&args, session),
        Command::Ab(args) => ab::run(&args, session),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Check(args) => check::run(&args, session),
        Command::Sites(args) => sites::run(&args),
        Command::Demo(args) => demo::run(&args, session),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::AfterRecording(args) => after::run(&args, session),
        Command::ReplayChild(args) => {
            Ok(refrain_session::serve(&args.request, session.is_unsandboxed()).map(|()| 0)?)
        }
    }
}
