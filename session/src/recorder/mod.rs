//! Recording a program in this very process. This is what the command `refrain record` does; others
//! start it ([`Session::record`](crate::Session::record)).
//!
//! What is decided here is the same whoever asks: which file is executed, where the trace goes, which
//! accesses are ordered and which sites are watched, what the program sees of the processor, and how
//! the programs are recorded that its child processes execute.

mod program;
mod report;

pub(crate) use report::read as read_report;
pub use report::{REPORT_FLAG, ReportFile};

use crate::calibration;
use crate::error::Error;
use crate::findings::{self, FOUND};
use crate::program_cache::{Folder, Place};
use crate::runtimes;
use crate::sites::{self, Profile};
use crate::trace_file::{Named, NewTrace};
use program::find;
use refrain_trace::fixed::digest;
use refrain_trace::{Ending, Order};
use refrain_vm::{
    Command, EngineConfig, Follow, Level, Notice, OrderOf, Processor, RecordOptions, RecordSummary,
    WatchedOf,
};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Where translated code is kept.
const TRANSLATED: Folder = Folder { name: "translated", programs: 64, bytes: 512 << 20 };

/// Where packed pages of programs and libraries are kept.
const PAGES: Folder = Folder { name: "pages", programs: 64, bytes: 512 << 20 };

/// The version that traces name.
const VERSION: &str = concat!("refrain ", env!("CARGO_PKG_VERSION"));

/// What to record, where to, and how.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recording {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The file to execute, if the command does not name it.
    pub program: Option<PathBuf>,
    /// The trace; by default, the program's name with `.refrain` in the working directory. A trace that
    /// is there already is kept under another name; while another recording is being written there, this
    /// one gets the next name.
    pub trace: Option<PathBuf>,
    /// Overwrite what is there even if it is not a trace, and keep nothing of it.
    pub force: bool,
    /// Stop the program if the trace cannot be written to its end; otherwise the program goes on
    /// unrecorded.
    pub strict: bool,
    /// Whether the trace refers to files that the program maps, by their paths, and has no copy of what was used
    /// of them. It can be replayed as long as they are there and have not changed ([`pack`](crate::Session::pack)).
    pub reference: bool,
    /// Record the programs that child processes execute, too, into traces of their own.
    pub follow: bool,
    /// Do not watch the sites of races that replays have taught.
    pub no_learn: bool,
    /// The order of shared memory; by default what suits the program.
    pub order: Option<Order>,
    /// The processor that the program sees; by default this machine's, up to v3.
    pub level: Option<Level>,
    /// Tell the program that the system forbids it to generate code.
    pub no_jit: bool,
}

/// What was recorded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recorded {
    /// The trace, under the name that it got.
    #[serde(skip)]
    pub trace: PathBuf,
    /// How the program ended.
    pub ending: Ending,
    /// Its threads.
    pub threads: u32,
    /// Events recorded.
    pub events: u64,
    /// Bytes of the trace.
    pub bytes: u64,
    /// From the program's first instruction to its end.
    pub wall: Duration,
    /// If the recording ended before the program did: after which time, and why.
    pub lost: Option<(Duration, String)>,
    /// What the program was stopped for, if it did what cannot be recorded.
    pub refused: Option<String>,
    /// What the user should know.
    pub notes: Vec<String>,
    /// The path that was asked for, if somebody else is recording there.
    pub instead_of: Option<PathBuf>,
}

impl Recording {
    /// Of a program and its arguments, to this trace, with all defaults.
    pub fn of<S: Into<OsString>>(
        command: impl IntoIterator<Item = S>,
        trace: impl Into<PathBuf>,
    ) -> Recording {
        let command = command.into_iter().map(Into::into).collect();
        Recording { command, trace: Some(trace.into()), ..Recording::default() }
    }

    /// The file that is executed, as `execvp` finds it.
    pub fn program(&self) -> crate::Result<PathBuf> {
        self.program.clone().map_or_else(|| find(&self.command), Ok)
    }

    /// The arguments of `refrain record` that ask for this.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["record".into(), "--quiet".into()];
        let flags = [
            (self.force, "--force"),
            (self.strict, "--strict"),
            (self.reference, "--reference"),
            (self.follow, "--follow"),
            (self.no_learn, "--no-learn"),
            (self.no_jit, "--no-jit"),
        ];
        arguments.extend(flags.into_iter().filter(|flag| flag.0).map(|flag| flag.1.into()));
        let order = self.order.map(|order| order.name());
        let level = self.level.map(Level::name);
        for (option, name) in [("--order", order), ("--cpu", level)] {
            arguments.extend(name.into_iter().flat_map(|name| [option.into(), name.into()]));
        }
        for (option, path) in [("--output", &self.trace), ("--program", &self.program)] {
            arguments.extend(path.iter().flat_map(|path| [option.into(), path.into()]));
        }
        arguments.push("--".into());
        arguments.extend(self.command.iter().cloned());
        arguments
    }
}

/// The name that a program's trace gets by default.
pub fn default_trace(program: &Path) -> PathBuf {
    let mut name = program.file_name().unwrap_or(OsStr::new("program")).to_owned();
    name.push(".refrain");
    name.into()
}

/// Records a program to its end, and tells at once what cannot wait until then. Its threads may still
/// exist afterwards, and it may have closed any descriptor: the caller says what it has to say and ends
/// the process.
pub fn record(
    recording: &Recording,
    tell: impl Fn(&str) + Send + Sync + 'static,
) -> crate::Result<Recorded> {
    // A soft limit that is low is meant for the program.
    refrain_vm::raise_limit_of_space();
    let program = recording.program()?;
    let wanted = recording.trace.clone().unwrap_or_else(|| default_trace(&program));
    let command = own_command(program, recording.command.clone());
    let new = NewTrace::create(&wanted, recording.force)?;
    let output = new.file()?;
    let named: Rc<OnceCell<Named>> = Rc::default();
    let name = named.clone();
    let begun = move || {
        let _ = name.set(new.publish().map_err(io::Error::other)?);
        Ok(())
    };
    let known = if recording.no_learn { Profile::default() } else { sites::known() };
    let tell = Arc::new(tell);
    let order_of = order_of(known.programs, tell.clone());
    let watched_of = watched_of(known.watched);
    let (order, order_of) = match recording.order {
        Some(order) => (order, None),
        None => (order_of(&command).unwrap_or_default(), Some(order_of)),
    };
    let follow = recording.follow.then(|| follow(&wanted, recording)).transpose()?;
    let processor = processor(recording.level)?;
    let config = EngineConfig {
        order_atomics: true,
        every_access: order.is_of_every_access(),
        keep_blocks: true,
        processor,
        ..EngineConfig::default()
    };
    let findings = Place::of(FOUND, &command.program);
    let recalled = findings.clone();
    let translated = Place::of(TRANSLATED, &command.program);
    let pages = Place::of(PAGES, &command.program);
    let engine = refrain_jit::copy(config)?;
    engine.recall(Box::new(move || {
        recalled.read().and_then(|bytes| findings::decode(&bytes)).unwrap_or_default()
    }));
    if let Some(build) = own_build(processor) {
        engine.keep_code(build, translated.open().as_ref());
    }
    let options = RecordOptions {
        command,
        output,
        recorder: VERSION.to_owned(),
        machine: calibration::this_machine(),
        processor,
        forbid_generated_code: recording.no_jit,
        warn: Arc::new(move |notice: Notice| tell(&notice.to_string())),
        learned: known.sites,
        order,
        order_of,
        watched_of: Some(watched_of),
        begun: Box::new(begun),
        strict: recording.strict,
        reference: recording.reference,
        follow,
        pages: pages.open(),
    };
    let mut summary = refrain_vm::record(options, engine.clone())?;
    if let Some(found) = engine.findings() {
        findings.keep(&[findings::encode(&found)]);
    }
    if let Some(code) = engine.kept_code() {
        translated.keep(&code);
    }
    if let Some(packed) = summary.pages.take() {
        pages.keep(&packed);
    }
    Ok(recorded(summary, &wanted, named.get()))
}

/// What tells translations of this build for this processor from others: the command's file, and when that
/// was changed.
fn own_build(processor: Processor) -> Option<u64> {
    let file = std::fs::metadata("/proc/self/exe").ok()?;
    let changed = (file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec());
    Some(digest(&(file.dev(), file.ino(), file.size(), changed, processor.names())))
}

fn recorded(summary: RecordSummary, wanted: &Path, named: Option<&Named>) -> Recorded {
    let trace = named.map_or(wanted, |named| &named.path);
    Recorded {
        trace: trace.to_owned(),
        ending: summary.ending,
        threads: summary.threads,
        events: summary.events,
        bytes: summary.bytes,
        wall: summary.wall,
        lost: summary.lost.map(|lost| (lost.after, lost.why)),
        refused: summary.refused,
        notes: summary.notices.iter().map(ToString::to_string).collect(),
        instead_of: (trace != wanted).then(|| wanted.to_owned()),
    }
}

/// A program with the environment of this process.
fn own_command(program: PathBuf, argv: Vec<OsString>) -> Command {
    let joined = |(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        name
    };
    Command { program, argv, env: std::env::vars_os().map(joined).collect() }
}

/// Says of programs whether their recordings order every access, where the user has not said which they
/// should, and tells why. Asked of the program that is recorded, and of those that it executes itself:
/// most language runtimes are started by scripts.
fn order_of(
    learned: BTreeSet<String>,
    tell: Arc<impl Fn(&str) + Send + Sync + 'static>,
) -> OrderOf {
    Box::new(move |command| {
        let why = every_access(command, &learned)?;
        tell(&format!(
            "the order of every access is recorded, which takes several times as long as \
             --order sync: {why}"
        ));
        Some(Order::Stride)
    })
}

/// Says of programs whether their recordings watch the memory that other processes may write to.
fn watched_of(learned: BTreeSet<String>) -> WatchedOf {
    Box::new(move |command| is_learned(command, &learned))
}

/// Whether a program, as it is started, is one of these.
fn is_learned(command: &Command, learned: &BTreeSet<String>) -> bool {
    let started = |identity: String| {
        let argv: Vec<_> = command.argv.iter().map(|word| word.to_string_lossy()).collect();
        sites::started(&identity, &argv)
    };
    // The file is only read if that can make a difference.
    !learned.is_empty()
        && refrain_vm::identity(command)
            .is_some_and(|identity| sites::is_among(learned, &started(identity)))
}

/// Why a program's recordings order every access, if they do.
fn every_access(command: &Command, learned: &BTreeSet<String>) -> Option<String> {
    let why = match is_learned(command, learned) {
        true => "replays of this program have diverged, and watching what races did not help \
                 (`refrain sites clear` forgets that)"
            .to_owned(),
        false => {
            let runtime = runtimes::of(&refrain_vm::executed(command)?)?;
            format!("threads of {runtime} synchronize through plain loads and stores")
        }
    };
    refrain_vm::can_order_every_access().then_some(why)
}

/// How child processes are recorded: each program that one executes into a trace next to the
/// parent's, with the process's id in its name, and otherwise as the parent is. A child that may not make a
/// trace there any more, since it has become another user, executes its program unrecorded.
fn follow(trace: &Path, parent: &Recording) -> crate::Result<Follow> {
    let own = std::env::current_exe()?;
    let trace = std::path::absolute(trace)?;
    let parent = Recording { command: Vec::new(), ..parent.clone() };
    let folder = trace.parent().map(Path::to_owned).unwrap_or_default();
    Ok(Box::new(move |command| {
        if !may(&folder, Access::WRITE_OK | Access::EXEC_OK) || !may(&own, Access::EXEC_OK) {
            return command.clone();
        }
        let child = Recording {
            command: command.argv.clone(),
            program: Some(command.program.clone()),
            trace: Some(trace.with_extension(format!("{}.refrain", std::process::id()))),
            ..parent.clone()
        };
        let mut argv = vec!["refrain".into()];
        argv.extend(child.arguments());
        Command { program: own.clone(), argv, env: command.env.clone() }
    }))
}

/// Whether this process has these rights now, as the user that it is at present.
fn may(path: &Path, rights: Access) -> bool {
    accessat(CWD, path, rights, AtFlags::EACCESS).is_ok()
}

/// The processor that a recorded program sees: of this level, or as high as this machine's.
fn processor(level: Option<Level>) -> crate::Result<Processor> {
    Processor::guest(level, Processor::host()).map_err(|missing| {
        Error::Refused(format!(
            "this machine's processor lacks {missing}; leave --cpu out, or use --cpu host, which takes \
             what there is"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_say_all_of_a_recording() {
        let recording = Recording {
            force: true,
            follow: true,
            order: Some(Order::Stride),
            level: Some(Level::V2),
            program: Some("/bin/true".into()),
            ..Recording::of(["true", "-x"], "a.refrain")
        };
        let words = "record --quiet --force --follow --order stride --cpu v2 --output a.refrain \
                     --program /bin/true -- true -x";
        assert_eq!(recording.arguments(), words.split_whitespace().collect::<Vec<_>>());
    }
}
