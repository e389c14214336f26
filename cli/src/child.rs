//! The replay child: replays run in a process of their own that has given up its rights, so that
//! neither a hostile trace nor a fault of guest code reaches the user's session.
//!
//! The parent opens the trace and passes it as the child's standard input; the child answers on
//! its standard output with frames, each a 32-bit little-endian length and a postcard message.
//! The child's answers are as untrusted as the trace: lengths are bounded, and a child that dies
//! or talks nonsense is an error of one line.

use crate::failure;
use crate::machine::{self, Amount, Analysis, Listener, ReplayOptions, Segments};
use crate::report::replay;
use anyhow::{Context, anyhow, bail};
use refrain_analysis::Race;
use refrain_trace::{EventId, ThreadId, Trace};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// The hidden subcommand that is the child.
pub(crate) const SUBCOMMAND: &str = "__replay-child";

/// No message is longer: output comes in pieces, and a ranking of a million groups fits.
const MAX_FRAME: usize = 256 << 20;

/// Bytes of output in one frame.
const OUTPUT_PIECE: usize = 1 << 20;

/// Amounts in one frame.
const AMOUNTS_PIECE: usize = 1 << 16;

/// No recording has more threads (or the child talks nonsense).
const MAX_THREADS: usize = 1 << 20;

/// What the child is asked to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Replay and compare.
    Replay(ReplayOptions),
    /// Replay with observers, and rank the locks.
    Analyse,
    /// Replay up to this event, or the whole trace, and find what races.
    Races(Option<(ThreadId, EventId)>),
    /// Replay and count between events.
    Segments(Amount),
}

/// What the child says.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
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
    Raced(Vec<Race>),
    /// The next amounts of a thread.
    Amounts(ThreadId, Vec<u64>),
    /// There are no more amounts.
    Counted,
    Failed(String),
}

/// Replays a trace in a child process.
pub(crate) fn replay(
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
pub(crate) fn analyse(trace: File, listener: &mut dyn ParentListener) -> anyhow::Result<Analysis> {
    ask(trace, &Request::Analyse, listener, |answer| match answer {
        Message::Analysed(analysis) => Some(*analysis),
        _ => None,
    })
}

/// Finds what races in a trace, up to an event of a thread, in a child process.
pub(crate) fn races(
    trace: File,
    until: Option<(ThreadId, EventId)>,
    listener: &mut dyn ParentListener,
) -> anyhow::Result<Vec<Race>> {
    ask(trace, &Request::Races(until), listener, |answer| match answer {
        Message::Raced(races) => Some(races),
        _ => None,
    })
}

/// Counts between the events of a trace, in a child process.
pub(crate) fn segments(
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
        let index = thread.index().min(MAX_THREADS);
        if self.segments.len() <= index {
            self.segments.resize(index + 1, Vec::new());
        }
        self.segments[index].extend_from_slice(amounts);
    }
}

/// What the parent does with news from the child.
pub(crate) trait ParentListener {
    /// So many of all events are done.
    fn progress(&mut self, done: u64, total: u64);
    /// The replayed program printed something.
    fn output(&mut self, descriptor: i32, bytes: &[u8]) -> anyhow::Result<()>;
    /// The next amounts of a thread, where they were asked for.
    fn amounts(&mut self, _thread: ThreadId, _amounts: &[u64]) {}
}

/// Starts the child, passes its news on and returns its last message.
fn converse(
    trace: File,
    request: &Request,
    listener: &mut dyn ParentListener,
) -> anyhow::Result<Message> {
    let mut child = Command::new("/proc/self/exe")
        .arg(SUBCOMMAND)
        .arg(serde_json::to_string(request)?)
        .stdin(trace)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the replay process")?;
    let answer = listen(&mut child, listener);
    if answer.is_err() {
        // It may still be replaying; an error here means that nobody waits for the result.
        let _ = child.kill();
    }
    let status = child.wait().context("cannot wait for the replay process")?;
    match answer? {
        Some(Message::Failed(why)) => Err(anyhow!(why)),
        Some(message) => Ok(message),
        None => match status.signal() {
            Some(signal) => bail!("the replay process was killed by signal {signal}"),
            None => bail!("the replay process ended without a result ({status})"),
        },
    }
}

fn listen(child: &mut Child, listener: &mut dyn ParentListener) -> anyhow::Result<Option<Message>> {
    let mut pipe = child.stdout.take().expect("the child's output is piped");
    loop {
        match read_message(&mut pipe).context("the replay process cannot be understood")? {
            Some(Message::Progress { done, total }) => listener.progress(done, total),
            Some(Message::Output { descriptor, bytes }) => listener.output(descriptor, &bytes)?,
            Some(Message::Amounts(thread, amounts)) => listener.amounts(thread, &amounts),
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
pub(crate) fn run(request: &str) -> anyhow::Result<()> {
    let request: Request = serde_json::from_str(request).with_context(|| {
        format!("{SUBCOMMAND} is internal to refrain; it cannot be used directly")
    })?;
    let trace = File::from(rustix::io::dup(std::io::stdin())?);
    let pipe = File::from(rustix::io::dup(std::io::stdout())?);
    let pipe = Arc::new(Pipe { file: Mutex::new(pipe) });
    report_panics(pipe.clone());
    crate::sandbox::enter()?;
    let trace = Trace::from_file(trace).map_err(anyhow::Error::from);
    let answer = trace.and_then(|trace| match request {
        Request::Replay(options) => {
            machine::replay(&trace, &options, pipe.clone()).map(Box::new).map(Message::Replayed)
        }
        Request::Analyse => {
            machine::analyse(&trace, pipe.clone()).map(Box::new).map(Message::Analysed)
        }
        Request::Races(until) => machine::races(&trace, until, pipe.clone()).map(Message::Raced),
        Request::Segments(amount) => {
            let segments = machine::segments(&trace, amount, pipe.clone())?;
            for (thread, amounts) in (0..).map(ThreadId).zip(&segments) {
                for piece in amounts.chunks(AMOUNTS_PIECE) {
                    pipe.send(&Message::Amounts(thread, piece.to_vec()))?;
                }
            }
            Ok(Message::Counted)
        }
    });
    pipe.send(&answer.unwrap_or_else(|error| Message::Failed(format!("{error:#}"))))
}

/// Makes a panic, on whatever thread, the answer: one line that can be reported, and no child that
/// waits for a thread which is gone.
fn report_panics(pipe: Arc<Pipe>) {
    std::panic::set_hook(Box::new(move |panic| {
        let bug = failure::bug(panic);
        let _ = pipe.send(&Message::Failed(bug));
        std::process::exit(1);
    }));
}

/// The child's end of the pipe, shared by its threads.
struct Pipe {
    file: Mutex<File>,
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
