//! The replay child: replays run in a process of their own that has given up its rights, so that
//! neither a hostile trace nor a fault of guest code reaches the user's session.
//!
//! The parent opens the trace and passes it as the child's standard input; the child answers on
//! its standard output with frames, each a 32-bit little-endian length and a postcard message.
//! The child's answers are as untrusted as the trace: lengths are bounded, the child is watched,
//! and one that dies or talks nonsense is an error of one line.

use crate::machine::{
    self, Amount, Analysis, Listener, Point, RaceSearch, Raced, ReplayOptions, Seen, Segments,
    Transformation,
};
use crate::replay;
use crate::sandbox::{self, Need, Purpose, Stated, UNSANDBOXED_FLAG};
use crate::text::escape;
use crate::watchdog::Watchdog;
use anyhow::{Context, anyhow, bail};
use refrain_analysis::{Code, Tapped};
use refrain_trace::{ThreadId, Trace};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::PanicHookInfo;
use std::process::{ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The hidden subcommand that is a replay's process without rights.
pub const REPLAY_CHILD: &str = "__replay-child";

/// No message is longer: output comes in pieces, and a ranking of a million groups fits.
const MAX_FRAME: usize = 256 << 20;

/// Bytes of output in one frame.
const OUTPUT_PIECE: usize = 1 << 20;

/// Amounts in one frame.
const AMOUNTS_PIECE: usize = 1 << 16;

/// No recording has more threads (or the child talks nonsense).
const MAX_THREADS: usize = 1 << 20;

/// Bytes of amounts that are kept: half a billion events. A message of another kind is the last.
const MAX_KEPT: u64 = 4 << 30;

/// What the child is asked to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Replay and compare.
    Replay(ReplayOptions),
    /// Replay with observers, and rank the locks; with a picture of the threads over time, if asked.
    Analyse(bool),
    /// Replay with observers, and transform the trace.
    Transform,
    /// Replay and find what races.
    Races(RaceSearch),
    /// Replay and say where threads are at these points, in a program with this code.
    Stacks(Vec<Point>, Code),
    /// Replay and tell what threads do, in a program with this code.
    Steps(Code),
    /// Replay and count between events.
    Segments(Amount),
    /// Try a system call that the sandbox must refuse, aimed at this process: for tests.
    Attempt(String, u32),
}

impl Request {
    /// Whether observers are compiled into the code.
    fn is_observed(&self) -> bool {
        match self {
            Request::Replay(options) => options.observe,
            Request::Attempt(..) => false,
            Request::Analyse(_) | Request::Transform | Request::Races(_) => true,
            Request::Stacks(..) | Request::Steps(_) | Request::Segments(_) => true,
        }
    }
}

/// What the child says.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    /// What the trace needs, before it is replayed.
    Needs(Need),
    Progress {
        done: u64,
        total: u64,
    },
    Output {
        descriptor: i32,
        bytes: Vec<u8>,
    },
    Replayed(Box<replay::Report>),
    Analysed(Box<Analysis>),
    Transformed(Box<Transformation>),
    Raced(Raced),
    Seen(Seen),
    /// The next steps of threads.
    Steps(Vec<(u32, Tapped)>),
    /// There are no more steps; where the replay left the recording, if it did.
    Stepped(Option<Box<replay::Divergence>>),
    /// The next amounts of a thread.
    Amounts(ThreadId, Vec<u64>),
    /// There are no more amounts.
    Counted,
    Failed(String),
}

/// Replays a trace in a child process.
pub fn replay(
    trace: File,
    options: ReplayOptions,
    listener: &mut dyn ParentListener,
) -> anyhow::Result<replay::Report> {
    ask(trace, &Request::Replay(options), listener, |answer| match answer {
        Message::Replayed(report) => Some(*report),
        _ => None,
    })
}

/// Analyses the locks of a trace in a child process.
pub fn analyse(
    trace: File,
    draws: bool,
    listener: &mut dyn ParentListener,
) -> anyhow::Result<Analysis> {
    ask(trace, &Request::Analyse(draws), listener, |answer| match answer {
        Message::Analysed(analysis) => Some(*analysis),
        _ => None,
    })
}

/// Transforms a trace in a child process.
pub fn transform(trace: File, listener: &mut dyn ParentListener) -> anyhow::Result<Transformation> {
    ask(trace, &Request::Transform, listener, |answer| match answer {
        Message::Transformed(transformation) => Some(*transformation),
        _ => None,
    })
}

/// Finds what races in a trace, in a child process.
pub fn races(
    trace: File,
    search: RaceSearch,
    listener: &mut dyn ParentListener,
) -> anyhow::Result<Raced> {
    ask(trace, &Request::Races(search), listener, |answer| match answer {
        Message::Raced(races) => Some(races),
        _ => None,
    })
}

/// Says where threads are at points of a trace, in a child process.
pub fn stacks(
    trace: File,
    (points, code): (Vec<Point>, Code),
    listener: &mut dyn ParentListener,
) -> anyhow::Result<Seen> {
    let count = points.len();
    let seen = ask(trace, &Request::Stacks(points, code), listener, |answer| match answer {
        Message::Seen(seen) => Some(seen),
        _ => None,
    })?;
    match seen.snapshots.len() == count {
        true => Ok(seen),
        false => bail!("the replay process gave more or fewer answers than it was asked for"),
    }
}

/// Tells `listener` what the threads of a trace do, in a child process; returns where the replay left
/// the recording, if it did.
pub fn steps(
    trace: File,
    code: Code,
    listener: &mut dyn ParentListener,
) -> anyhow::Result<Option<Box<replay::Divergence>>> {
    ask(trace, &Request::Steps(code), listener, |answer| match answer {
        Message::Stepped(divergence) => Some(divergence),
        _ => None,
    })
}

/// Counts between the events of a trace, in a child process.
pub fn segments(
    trace: File,
    amount: Amount,
    listener: &mut dyn ParentListener,
) -> anyhow::Result<Segments> {
    let mut gather = Gather { segments: Vec::new(), listener };
    ask(trace, &Request::Segments(amount), &mut gather, |answer| {
        matches!(answer, Message::Counted).then_some(())
    })?;
    Ok(gather.segments)
}

/// Has a child process answer a request; `expected` takes the answer out of its last message, if
/// it is one to this request.
fn ask<T>(
    trace: File,
    request: &Request,
    listener: &mut dyn ParentListener,
    expected: impl FnOnce(Message) -> Option<T>,
) -> anyhow::Result<T> {
    expected(converse(trace, request, listener)?)
        .context("the replay process gave another answer than it was asked for")
}

/// Puts amounts together.
struct Gather<'a> {
    segments: Segments,
    listener: &'a mut dyn ParentListener,
}

impl ParentListener for Gather<'_> {
    fn progress(&mut self, done: u64, total: u64) {
        self.listener.progress(done, total);
    }

    fn output(&mut self, descriptor: i32, bytes: &[u8]) -> anyhow::Result<()> {
        self.listener.output(descriptor, bytes)
    }

    fn amounts(&mut self, thread: ThreadId, amounts: &[u64]) {
        let index = thread.index();
        if self.segments.len() <= index {
            self.segments.resize(index + 1, Vec::new());
        }
        self.segments[index].extend_from_slice(amounts);
    }
}

/// What the parent does with news from the child.
pub trait ParentListener {
    /// So many of all events are done.
    fn progress(&mut self, done: u64, total: u64);
    /// The replayed program printed something.
    fn output(&mut self, descriptor: i32, bytes: &[u8]) -> anyhow::Result<()>;
    /// The next amounts of a thread, where they were asked for.
    fn amounts(&mut self, _thread: ThreadId, _amounts: &[u64]) {}
    /// The next steps of threads, where they were asked for.
    fn steps(&mut self, _steps: &[(u32, Tapped)]) {}
}

/// Starts the child, passes its news on and returns its last message.
fn converse(
    trace: File,
    request: &Request,
    listener: &mut dyn ParentListener,
) -> anyhow::Result<Message> {
    // Whoever started this process may have left descriptors open that are no business of a trace.
    refrain_vm::close_on_exec().context("cannot keep descriptors from the replay process")?;
    let mut command = Command::new("/proc/self/exe");
    command.arg(REPLAY_CHILD).arg(serde_json::to_string(request)?);
    if sandbox::is_weakness_tolerated() {
        command.arg(UNSANDBOXED_FLAG);
    }
    let mut child = command
        // With this set, the compiler of thread bodies writes a file for `perf`: the sandbox refuses.
        .env_remove("PERF_BUILDID_DIR")
        .stdin(trace)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start the replay process")?;
    let complaints = child.stderr.take().map(Complaints::gather);
    let watchdog = Watchdog::watch(child.id());
    let mut pipe = child.stdout.take().expect("the child's output is piped");
    let answer = listen(&mut pipe, &watchdog, listener);
    // A child that goes on talking has nobody who listens.
    drop(pipe);
    if answer.is_err() {
        // It may still be replaying; an error here means that nobody waits for the result.
        let _ = child.kill();
    }
    let verdict = watchdog.call_off();
    let status = child.wait().context("cannot wait for the replay process")?;
    let last_words = complaints.and_then(Complaints::last);
    if let Some(verdict) = verdict {
        bail!("{verdict}; it was ended");
    }
    match answer? {
        Some(Message::Failed(why)) => Err(anyhow!(why)),
        Some(message) => Ok(message),
        None => Err(died(status, last_words)),
    }
}

/// What to say of a child that ended without an answer.
fn died(status: ExitStatus, last_words: Option<String>) -> anyhow::Error {
    let words = last_words.map_or_else(String::new, |words| format!(": {words}"));
    match status.signal() {
        Some(SIGSYS) => anyhow!(
            "the replay process tried what no replay does and was ended by the kernel; do not \
             trust this trace"
        ),
        Some(SIGXCPU) => anyhow!("the replay took more time than the recording justifies"),
        Some(signal) => anyhow!("the replay process was killed by signal {signal}{words}"),
        None => anyhow!("the replay process ended without a result ({status}){words}"),
    }
}

const SIGSYS: i32 = 31;
const SIGXCPU: i32 = 24;

/// What a child writes to its standard error: diagnostics of refrain's own if the user has asked
/// for them, and else only what the runtime says when it gives up.
struct Complaints(JoinHandle<Option<String>>);

impl Complaints {
    /// So much is passed on of a child that does not stop complaining.
    const MOST: u64 = 16 << 20;

    fn gather(from: ChildStderr) -> Complaints {
        let shown = tracing::dispatcher::has_been_set();
        Complaints(std::thread::spawn(move || {
            let mut last = None;
            let mut lines = BufReader::new(from.take(Complaints::MOST));
            let mut line = Vec::new();
            while let Ok(1..) = lines.by_ref().take(1 << 16).read_until(b'\n', &mut line) {
                let text = escape(String::from_utf8_lossy(&line).trim_end());
                if shown {
                    eprintln!("{text}");
                }
                last = Some(text).filter(|text| !text.is_empty()).or(last);
                line.clear();
            }
            // Closing the pipe would end an honest child that has much to say.
            let _ = std::io::copy(&mut lines.into_inner().into_inner(), &mut std::io::sink());
            last
        }))
    }

    /// The last line, once the child has ended.
    fn last(self) -> Option<String> {
        self.0.join().ok().flatten()
    }
}

/// What is known of the child while it is listened to.
trait Supervisor {
    fn needs(&self, need: Need);
    fn done(&self, done: u64);
}

impl Supervisor for Watchdog {
    fn needs(&self, need: Need) {
        Watchdog::needs(self, need);
    }

    fn done(&self, done: u64) {
        Watchdog::done(self, done);
    }
}

/// Passes news on until the child has no more; its last message.
fn listen(
    pipe: &mut impl Read,
    supervisor: &impl Supervisor,
    listener: &mut dyn ParentListener,
) -> anyhow::Result<Option<Message>> {
    let mut left = MAX_KEPT;
    loop {
        match read_message(pipe).context("the replay process cannot be understood")? {
            Some(Message::Needs(need)) => supervisor.needs(need),
            Some(Message::Progress { done, total }) => {
                supervisor.done(done);
                listener.progress(done, total);
            }
            Some(Message::Output { descriptor, bytes }) => listener.output(descriptor, &bytes)?,
            Some(Message::Steps(steps)) => listener.steps(&steps),
            Some(Message::Amounts(thread, amounts)) => {
                // These are kept, and so they are counted.
                let size = size_of_val(amounts.as_slice()) as u64;
                let rest = left.checked_sub(size).filter(|_| thread.index() < MAX_THREADS);
                left = rest.context("the replay process answers without end")?;
                listener.amounts(thread, &amounts);
            }
            last => return Ok(last),
        }
    }
}

fn read_message(pipe: &mut impl Read) -> anyhow::Result<Option<Message>> {
    let mut length = [0; 4];
    match pipe.read_exact(&mut length) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        bail!("a message of {length} bytes");
    }
    let mut frame = Vec::new();
    pipe.take(length as u64).read_to_end(&mut frame)?;
    if frame.len() < length {
        return Ok(None);
    }
    Ok(Some(postcard::from_bytes(&frame)?))
}

fn write_message(pipe: &mut impl Write, message: &Message) -> anyhow::Result<()> {
    let frame = postcard::to_stdvec(message)?;
    let length = u32::try_from(frame.len()).context("the result is too large")?;
    pipe.write_all(&length.to_le_bytes())?;
    pipe.write_all(&frame)?;
    Ok(pipe.flush()?)
}

/// The child's side: gives up all rights, does what it is asked, and answers.
pub fn run(request: &str) -> anyhow::Result<()> {
    let request: Request = serde_json::from_str(request).with_context(|| {
        format!("{REPLAY_CHILD} is internal to refrain; it cannot be used directly")
    })?;
    let trace = File::from(rustix::io::dup(std::io::stdin())?);
    let pipe = File::from(rustix::io::dup(std::io::stdout())?);
    let pipe = Arc::new(Pipe { file: Mutex::new(pipe), patience: OnceLock::new() });
    report_panics(pipe.clone());
    let answer = answer(trace, request, &pipe);
    pipe.send(&answer.unwrap_or_else(|error| Message::Failed(format!("{error:#}"))))
}

/// Gives up all rights, and does what is asked.
fn answer(trace: File, request: Request, pipe: &Arc<Pipe>) -> anyhow::Result<Message> {
    let around = sandbox::enter(&Purpose::Replay)?;
    let trace = Trace::from_file(trace)?;
    let stated = Stated::of(&trace)?;
    let observed = request.is_observed();
    let need = stated.need(observed);
    pipe.send(&Message::Needs(need))?;
    let _ = pipe.patience.set(need.patience);
    stated.limit(&around, observed)?;
    match request {
        Request::Replay(options) => {
            machine::replay(&trace, &options, pipe.clone()).map(Box::new).map(Message::Replayed)
        }
        Request::Analyse(draws) => {
            machine::analyse(&trace, draws, pipe.clone()).map(Box::new).map(Message::Analysed)
        }
        Request::Transform => {
            machine::transform(&trace, pipe.clone()).map(Box::new).map(Message::Transformed)
        }
        Request::Races(search) => machine::races(&trace, search, pipe.clone()).map(Message::Raced),
        Request::Stacks(points, code) => {
            machine::stacks(&trace, points, code, pipe.clone()).map(Message::Seen)
        }
        Request::Steps(code) => {
            let divergence = machine::steps(&trace, code, pipe.clone())?;
            Ok(Message::Stepped(divergence.map(Box::new)))
        }
        Request::Segments(amount) => {
            let segments = machine::segments(&trace, amount, pipe.clone())?;
            for (thread, amounts) in (0..).map(ThreadId).zip(&segments) {
                for piece in amounts.chunks(AMOUNTS_PIECE) {
                    pipe.send(&Message::Amounts(thread, piece.to_vec()))?;
                }
            }
            Ok(Message::Counted)
        }
        Request::Attempt(name, victim) => {
            // As the code of a trace would, not on the thread that set the sandbox up.
            let attempt = std::thread::spawn(move || refrain_vm::attempt(&name, victim));
            let result = attempt.join().ok().flatten().context("there is no such attempt")?;
            bail!("the kernel answered {result}")
        }
    }
}

/// Makes a panic, on whatever thread, the answer: one line that can be reported, and no child that
/// waits for a thread which is gone.
fn report_panics(pipe: Arc<Pipe>) {
    std::panic::set_hook(Box::new(move |panic| {
        let bug = bug(panic);
        let _ = pipe.send(&Message::Failed(bug));
        std::process::exit(1);
    }));
}

/// What to say of a panic: it is a bug of refrain's, wherever it comes from.
pub fn bug(panic: &PanicHookInfo<'_>) -> String {
    let what = panic.payload_as_str().unwrap_or("no message");
    let place = panic.location().map_or_else(String::new, |place| format!(" at {place}"));
    format!("this is a bug in refrain, please report it: {what}{place}")
}

/// The child's end of the pipe, shared by its threads.
struct Pipe {
    file: Mutex<File>,
    /// How long a thread may compute without an event, once it is known.
    patience: OnceLock<Duration>,
}

impl Pipe {
    fn send(&self, message: &Message) -> anyhow::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        write_message(&mut *file, message)
    }

    /// Sends news. If the parent is gone, nobody wants the rest either.
    fn tell(&self, message: &Message) {
        if self.send(message).is_err() {
            std::process::exit(1);
        }
    }
}

impl Listener for Pipe {
    fn progress(&self, done: u64, total: u64) {
        self.tell(&Message::Progress { done, total });
    }

    fn output(&self, descriptor: i32, bytes: &[u8]) {
        for piece in bytes.chunks(OUTPUT_PIECE) {
            self.tell(&Message::Output { descriptor, bytes: piece.to_vec() });
        }
    }

    fn steps(&self, steps: Vec<(u32, Tapped)>) {
        self.tell(&Message::Steps(steps));
    }

    fn patience(&self) -> Option<Duration> {
        self.patience.get().copied()
    }
}

/// Listens to bytes as to a child that may say anything. For fuzzing, and for tests.
#[doc(hidden)]
pub fn listen_to(bytes: &[u8]) {
    struct Nobody;

    impl Supervisor for Nobody {
        fn needs(&self, _: Need) {}
        fn done(&self, _: u64) {}
    }

    impl ParentListener for Nobody {
        fn progress(&mut self, _: u64, _: u64) {}
        fn output(&mut self, _: i32, _: &[u8]) -> anyhow::Result<()> {
            Ok(())
        }
    }

    let mut gather = Gather { segments: Vec::new(), listener: &mut Nobody };
    // As they come, and as the content of one frame, whose length is right.
    let _ = listen(&mut { bytes }, &Nobody, &mut gather);
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
    let framed = [&length, bytes].concat();
    let _ = listen(&mut framed.as_slice(), &Nobody, &mut gather);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bytes_of_a_child_make_the_parent_panic() {
        let mut pipe = Vec::new();
        let messages = [
            Message::Progress { done: u64::MAX, total: 1 },
            Message::Output { descriptor: -1, bytes: vec![0x1b; 9] },
            Message::Amounts(ThreadId(3), vec![1, 2, 3]),
            Message::Failed("why".into()),
        ];
        for message in &messages {
            write_message(&mut pipe, message).expect("a vector takes it");
        }
        listen_to(&pipe);
        // SplitMix64's increment: bits change everywhere.
        let mut random = 0_u64;
        for round in 0..5_000 {
            let mut bytes = pipe.clone();
            for _ in 0..=round % 4 {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x9e37_79b9);
                let at = (random >> 33) as usize % bytes.len();
                bytes[at] = (random >> 24) as u8;
            }
            listen_to(&bytes[round % 7..]);
        }
    }

    #[test]
    fn a_thread_that_no_recording_has_is_nonsense() {
        let mut pipe = Vec::new();
        let far = Message::Amounts(ThreadId(u32::MAX), vec![1]);
        write_message(&mut pipe, &far).expect("a vector takes it");
        listen_to(&pipe);
    }

    #[test]
    fn messages_survive_the_pipe() {
        let mut pipe = Vec::new();
        write_message(&mut pipe, &Message::Progress { done: 3, total: 9 })
            .expect("a vector takes it");
        write_message(&mut pipe, &Message::Failed("why".into())).expect("a vector takes it");
        let mut pipe = pipe.as_slice();
        let first = read_message(&mut pipe).expect("is whole");
        assert!(matches!(first, Some(Message::Progress { done: 3, total: 9 })));
        let second = read_message(&mut pipe).expect("is whole");
        assert!(matches!(second, Some(Message::Failed(why)) if why == "why"));
        assert!(read_message(&mut pipe).expect("is at its end").is_none());
    }

    #[test]
    fn nonsense_from_the_child_is_an_error() {
        assert!(read_message(&mut [0xff; 64].as_slice()).is_err());
        assert!(read_message(&mut [1, 0, 0, 0, 99].as_slice()).is_err());
        assert!(read_message(&mut [9, 0, 0, 0, 1].as_slice()).expect("cut off").is_none());
    }
}
