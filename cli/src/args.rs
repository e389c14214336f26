//! The command line.

mod choices;
mod events;
mod measure;

pub(crate) use measure::{Ab, Calibrate, Fidelity, Perfplay, Schedule};

use clap::{Args, Parser, Subcommand};
use events::{parse_range, parse_thread};
use refrain_analysis::paper::{Granularity, Prefilter, Which};
use refrain_session::{self as session, Atomics, EngineKind, REPLAY_CHILD};
use refrain_trace::{Order, ThreadId};
use refrain_vm::Level;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The hidden subcommand that `run` and `demo` become once the program has ended.
pub(crate) const AFTER_RECORDING: &str = "__after-recording";

/// Record a multithreaded program once; replay it exactly; see which waiting was unnecessary.
#[derive(Parser, Debug)]
#[command(name = "refrain", version = refrain_session::version(), max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Read and replay traces even where the kernel lacks Landlock or seccomp, with what is there
    ///
    /// Only for traces that you trust as you trust a program that you run.
    #[arg(long, global = true)]
    pub(crate) unsandboxed: bool,
    /// A replay may take so many MiB of memory, if its trace accounts for them
    /// [default: three quarters of the machine's]
    #[arg(long, global = true, value_name = "MIB")]
    pub(crate) max_memory: Option<u64>,
}

const AFTER_HELP: &str = "\
Start with `refrain demo`. Exit status: 0 for success, 1 for an error or a divergence, 2 for wrong
usage, 3 for a replay of a trace that was cut off; `record` and `run` end with the status of the recorded program, or 125 if refrain itself
failed, 126 if the program cannot be run, 127 if it was not found.

Environment: NO_COLOR turns colours off; REFRAIN_LOG=debug (or =refrain_vm=trace) logs to standard
error.";

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Record a program while it runs
    Record(Record),
    /// Replay a trace exactly and say what was checked
    Replay(Replay),
    /// Say what a trace holds
    Info(Info),
    /// Print the events of a trace, one per line
    Dump(Dump),
    /// Rank unnecessary lock contention by what it costs, by source line
    Locks(Locks),
    /// Write the trace without its unnecessary lock contention, to be checked, drawn and replayed
    Transform(Transform),
    /// Put the contents of files into a trace that refers to them (`record --reference`)
    Pack(Pack),
    /// Find data races: accesses that the program does not order
    Races(Races),
    /// Say which store each watched load read
    Linkages(Linkages),
    /// Write what a recorded program does for other people's tools
    Export(Export),
    /// Record a program and rank its locks, or find its races, in one go
    Run(Run),
    /// Compare how stable and how precise replays under different schedulers are
    Fidelity(Fidelity),
    /// Draw the tables and figures of PerfPlay's evaluation for some recordings
    Perfplay(Perfplay),
    /// Compare two traces, or two schedulers, by replaying them in turns
    Ab(Ab),
    /// Measure how long this machine takes to hand a lock over, for the virtual clock
    Calibrate(Calibrate),
    /// Verify a trace, and mend one that was cut off
    Check(Check),
    /// Show or change which racing instructions recordings watch, as replays have learned them
    Sites(Sites),
    /// Record, replay and rank the built-in workload
    Demo(Demo),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Print the manual page, or write one per command into a directory
    Man(Man),
    /// Show what was recorded; `run` and `demo` become this once the program has ended
    #[command(name = AFTER_RECORDING, hide = true)]
    AfterRecording(AfterRecording),
    /// Replay in this process, which gives up its rights first
    #[command(name = REPLAY_CHILD, hide = true)]
    ReplayChild(ReplayChild),
}

#[derive(Args, Debug)]
pub(crate) struct Record {
    /// Trace to write [default: <PROGRAM>.refrain in the working directory]
    ///
    /// A trace that is there already is kept as FILE.old, FILE.old.2 and so on. While another
    /// recording is being written to FILE, this one gets the next name (NAME.2.refrain).
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// The file to execute, if the command does not name it
    #[arg(long, value_name = "PATH", hide = true)]
    pub(crate) program: Option<PathBuf>,
    /// Write what was recorded to this file, and print nothing
    #[arg(long, value_name = "PATH", hide = true)]
    pub(crate) report: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) recording: Recording,
}

/// What `record` and `run` have in common.
#[derive(Args, Debug)]
pub(crate) struct Recording {
    /// Overwrite FILE even if it is not a trace, and keep no FILE.old
    #[arg(long)]
    pub(crate) force: bool,
    /// Stop the program if the trace cannot be written to its end, as on a full disk; otherwise
    /// the program goes on unrecorded
    #[arg(long)]
    pub(crate) strict: bool,
    /// Leave the contents of programs and libraries in their files; the trace names them and has
    /// checksums
    ///
    /// Such a trace is smaller, and can be replayed as long as these files are there and have not
    /// changed. `refrain pack` puts them into it.
    #[arg(long)]
    pub(crate) reference: bool,
    /// Record the programs that child processes execute, too
    ///
    /// Each into a trace of its own next to FILE: of a.refrain, the child with the process id 7
    /// has a.7.refrain.
    #[arg(long)]
    pub(crate) follow: bool,
    /// Do not say on standard error what was recorded
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Do not watch the sites of races that replays have learned
    #[arg(long)]
    pub(crate) no_learn: bool,
    /// Order of shared memory to record
    ///
    /// `sync` records synchronization, atomics, and accesses that are known to race; `stride` every
    /// access, which takes several times as long, and whose replay is exact whatever races. `leap` and
    /// `global` exist to be compared with it: each access to what threads share has its place in an
    /// order of its line, or in one of all [default:
    /// sync; stride for a program whose replays have diverged, if watching what races did not help]
    #[arg(long, value_name = "ORDER", value_parser = parse_order)]
    pub(crate) order: Option<Order>,
    /// Processor that the program sees [default: this machine's, up to v3]
    ///
    /// `v2` has no AVX; `v3` is an x86-64-v3 (AVX2, FMA, BMI) with what this machine has of AES,
    /// SHA and the like. A replay needs what the recorded code uses.
    #[arg(long, value_parser = choices::level(), value_name = "LEVEL")]
    pub(crate) cpu: Option<Level>,
    /// Tell the program that the system forbids it to generate code; many then interpret
    #[arg(long)]
    pub(crate) no_jit: bool,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub(crate) command: Vec<OsString>,
}

impl Recording {
    /// The recording that is asked for, of this program to this trace where they are known.
    pub(crate) fn asked(&self, program: Option<&Path>, trace: Option<&Path>) -> session::Recording {
        let Recording { force, strict, reference, follow, no_learn, order, cpu, no_jit, .. } =
            *self;
        session::Recording {
            command: self.command.clone(),
            program: program.map(Into::into),
            trace: trace.map(Into::into),
            force,
            strict,
            reference,
            follow,
            no_learn,
            order,
            level: cpu,
            no_jit,
        }
    }
}

/// Orders that the design names and this version does not record are refused by name.
fn parse_order(text: &str) -> Result<Order, String> {
    Order::from_name(text).ok_or_else(|| {
        let names = Order::ALL.map(|order| format!("`{}`", order.name()));
        format!("no such order; there are {}", names.join(", "))
    })
}

#[derive(Args, Debug)]
pub(crate) struct Replay {
    /// Trace to replay
    #[arg(value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// What executes the recorded code [default: tiered]
    #[arg(long, value_parser = choices::engine())]
    pub(crate) engine: Option<EngineKind>,
    #[command(flatten)]
    pub(crate) schedule: Schedule,
    /// Print what the program printed (it is compared in any case)
    #[arg(long)]
    pub(crate) echo: bool,
    /// Count instructions (costs a little time)
    #[arg(long)]
    pub(crate) count: bool,
    /// Replay once more and show what races, even if nothing diverges (`refrain races` says more)
    #[arg(long)]
    pub(crate) races: bool,
    /// Do not keep the sites of races for later recordings
    #[arg(long)]
    pub(crate) no_learn: bool,
    /// Collect the read and write sets of critical sections, and drop them: for benchmarks
    #[arg(long, hide = true)]
    pub(crate) observe: bool,
    /// Print the result as JSON; `--echo` then goes to standard error
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Sites {
    #[command(subcommand)]
    pub(crate) action: SitesAction,
}

/// What to do with learned sites.
#[derive(Subcommand, Debug)]
pub(crate) enum SitesAction {
    /// List them by build id of the program or library (or its layout, where it has none)
    List,
    /// Forget all
    Clear,
    /// Print them as JSON, for another machine
    Export,
    /// Add those of a file that `export` has printed
    Import {
        /// The file
        file: PathBuf,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Info {
    /// Trace to describe
    #[arg(value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Dump {
    /// Trace to print
    #[arg(value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Only this thread (t0 is the main thread); may be given more than once
    #[arg(long, value_name = "THREAD", value_parser = parse_thread)]
    pub(crate) thread: Vec<ThreadId>,
    /// Only these events of each thread, end exclusive: 100..200, 100.., ..200
    #[arg(long, value_name = "RANGE", value_parser = parse_range)]
    pub(crate) events: Option<std::ops::Range<u64>>,
    /// Print all bytes that system calls wrote
    #[arg(long)]
    pub(crate) full: bool,
    /// Print the source line of each event
    #[arg(long)]
    pub(crate) sites: bool,
    /// Print the executed code instead of the events
    #[arg(long, conflicts_with_all = ["thread", "events", "full", "sites"])]
    pub(crate) instructions: bool,
    /// Of a transformed trace, print what replaces its freed locks: sections, sets, causal edges
    #[arg(long, conflicts_with_all = ["thread", "events", "full", "sites", "instructions"])]
    pub(crate) topology: bool,
    /// Draw that: sections and causal edges as a graph for GraphViz
    #[arg(long, conflicts_with_all = ["thread", "events", "full", "instructions", "topology"])]
    pub(crate) dot: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Linkages {
    /// Trace to look at
    #[arg(value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// List the loads of this thread (t0 is the main thread); may be given more than once
    #[arg(long, value_name = "THREAD", value_parser = parse_thread)]
    pub(crate) thread: Vec<ThreadId>,
    /// List the loads at places that contain this text: a function, or FILE:LINE
    #[arg(long, value_name = "TEXT")]
    pub(crate) site: Option<String>,
    /// Show so many sites
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Pack {
    /// Trace to pack
    #[arg(value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Packed trace to write, in place of FILE itself; a trace that is there already is kept as OUT.old
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite OUT even if it is not a trace, and keep no OUT.old
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Transform {
    /// Trace to transform
    #[arg(value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Transformed trace to write; a trace that is there already is kept as FILE.old
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Overwrite FILE even if it is not a trace, and keep no FILE.old
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a ranking is shown.
#[derive(Args, Clone, Debug)]
pub(crate) struct Ranking {
    /// Print JSON; what a recorded program prints then goes to standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// Show the N most expensive groups
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,
    /// Show each group with the source at its sites, counts, and what usually helps
    #[arg(long)]
    pub(crate) details: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Locks {
    /// Traces to analyse: several recordings of one program say how sure its gains are
    #[arg(value_name = "FILE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) ranking: Ranking,
    /// Say what got better or worse since this ranking, which --json has printed
    #[arg(long, value_name = "JSON")]
    pub(crate) baseline: Option<PathBuf>,
    /// End with status N if a row's gain is surely above 0; with --baseline, if a row is new or worse
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) error_exitcode: u8,
    /// Leave rows out that a rule in FILE holds of
    ///
    /// A rule a line, of conditions with spaces between them: function:GLOB, file:GLOB, module:GLOB,
    /// kind:GLOB. It holds of a row if one of the row's sites meets all of them. `#` begins a comment.
    #[arg(long, value_name = "FILE")]
    pub(crate) suppressions: Option<PathBuf>,
    /// Write the report as a page of its own, with the threads over time, source, and more cores
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Races {
    /// Trace to search; one that ends in .std is in the format of RAPID
    #[arg(value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Use one of the detectors that the FastTrack paper compares, as it is printed there, or an analysis
    /// that it filters accesses for
    #[arg(long, value_parser = choices::detector(), value_name = "NAME")]
    pub(crate) detector: Option<Which>,
    /// With --detector: leave out accesses of variables with which this filter finds no fault
    #[arg(long, value_parser = choices::prefilter(), value_name = "FILTER", requires = "detector")]
    pub(crate) prefilter: Option<Prefilter>,
    /// With --detector: what one variable is
    #[arg(long, value_parser = choices::granularity(), value_name = "SIZE", requires = "detector")]
    pub(crate) granularity: Option<Granularity>,
    /// Run all these detectors and print the tables of the paper: times and warnings, vector clocks and
    /// operations on them, memory, frequencies of rules, slowdown with prefilters
    #[arg(long, conflicts_with = "detector")]
    pub(crate) compare: bool,
    #[command(flatten)]
    pub(crate) report: RaceReport,
}

#[derive(Args, Debug)]
pub(crate) struct Export {
    /// Trace to export
    #[arg(value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// In the STD format of RAPID: a line for each access and each synchronization
    #[arg(long, required = true)]
    pub(crate) std: bool,
    /// Write here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// How races are shown.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RaceReport {
    /// Show races within the system's libraries, too
    #[arg(long)]
    pub(crate) all: bool,
    /// What atomic variables order, of which a recording does not know the memory orders
    #[arg(long, value_parser = choices::atomics(), value_name = "ORDER", default_value = "acq-rel")]
    pub(crate) atomics: Atomics,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print SARIF 2.1.0, for editors and code hosts
    #[arg(long, conflicts_with = "json")]
    pub(crate) sarif: bool,
    /// Leave out races that this file names, in the format of ThreadSanitizer: `race:PATTERN` lines
    #[arg(long, value_name = "FILE")]
    pub(crate) suppressions: Option<PathBuf>,
    /// End with this status if a race is shown
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) error_exitcode: u8,
}

#[derive(Args, Debug)]
pub(crate) struct Run {
    /// Keep the trace here
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Find data races instead of ranking locks
    #[arg(long, conflicts_with_all = ["top", "details"])]
    pub(crate) races: bool,
    /// If the replay diverges and teaches the next recording more, run the program again: N runs at most
    ///
    /// A race that nobody watched can make the replay leave the recording. It then learns which
    /// instructions raced, and the next recording watches them. Each run does all that the program does:
    /// it writes its output and its files again, and reads on in its input where the last run stopped,
    /// unless the input is a file. The trace that stays is the last one. A run that a signal ended is the
    /// last.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["races", "no_learn", "follow"]
    )]
    pub(crate) attempts: u32,
    #[command(flatten)]
    pub(crate) ranking: Ranking,
    #[command(flatten)]
    pub(crate) recording: Recording,
}

#[derive(Args, Debug)]
pub(crate) struct Check {
    /// Trace to verify
    #[arg(value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Mend the trace: in its place if it was cut off; otherwise what is sound becomes FILE, and the
    /// damaged one is kept as FILE.old
    #[arg(long)]
    pub(crate) repair: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// Keep the trace here
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ranking: Ranking,
}

#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Directory to write refrain.1, refrain-record.1, … into
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct AfterRecording {
    /// The trace
    pub(crate) trace: PathBuf,
    #[command(flatten)]
    pub(crate) ranking: Ranking,
    /// Find data races instead
    #[arg(long)]
    pub(crate) races: bool,
    /// Replay before ranking, and say what was checked
    #[arg(long)]
    pub(crate) replay: bool,
    /// Remove the trace, and its directory, at the end
    #[arg(long)]
    pub(crate) remove: bool,
    /// End with this status, and with 125 for an error
    #[arg(long)]
    pub(crate) status: Option<u8>,
}

#[derive(Args, Debug)]
pub(crate) struct ReplayChild {
    /// What to do, as JSON
    pub(crate) request: String,
}
