//! A session knows where the `refrain` command is and how much its replays may take. It is the parent's
//! side of every replay.
//!
//! The session opens the trace and passes it to a child process (`child`). The child's answers are as
//! untrusted as the trace: the session bounds their lengths, watches the child (`watchdog`), and makes
//! one line of an error of a child that dies, talks nonsense or is of another build (`protocol`).

use crate::error::{Context, Error, bail};
use crate::machine::{Analysis, Raced, Seen, Segments, Transformation};
use crate::protocol::{self, Build, Message, REPLAY_CHILD, Request};
use crate::replayed::{Divergence, Replayed};
use crate::sandbox::{self, Need, Purpose};
use crate::trace_file::PackedCopies;
use crate::watchdog::Watchdog;
use refrain_analysis::Tapped;
use refrain_trace::ThreadId;
use refrain_trace::harmless::escape;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// No recording has more threads (or the child talks nonsense).
const MAX_THREADS: usize = 1 << 20;

/// Bytes of amounts that are kept: half a billion events. A message of another kind is the last.
const MAX_KEPT: u64 = 4 << 30;

/// The argument of the command by which the user goes on where the kernel lacks what the sandbox is
/// made of.
pub const UNSANDBOXED_FLAG: &str = "--unsandboxed";

/// What is told while a session works.
pub trait Listener {
    /// A replay begins: `replaying`, `counting instructions`, …
    fn begin(&self, _what: &'static str) {}
    /// So many of its events are done.
    fn progress(&self, _done: u64, _total: u64) {}
    /// The replayed program printed something ([`ReplayOptions::echo`](crate::ReplayOptions::echo)).
    /// An error ends the replay.
    fn output(&self, _descriptor: i32, _bytes: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
    /// A line that the replay's process has written to its standard error.
    fn diagnostic(&self, _line: &str) {}
    /// The replay is over.
    fn end(&self) {}
}

impl Listener for () {}

/// The `refrain` command that does what needs a process of its own, and what its processes may take.
///
/// A recorder shares its process with the recorded program, and code out of a trace runs only in a
/// process without rights. Both are the `refrain` command: [`Session::new`] takes the one that PATH
/// finds, [`Session::by`] any other (the command itself takes `/proc/self/exe`). It must be built
/// from the same sources as this library, since what they say to each other changes between versions;
/// a command that is not is refused by name ([`Error::OtherBuild`]).
#[derive(Clone)]
pub struct Session {
    command: PathBuf,
    unsandboxed: bool,
    max_memory: Option<u64>,
    listener: Arc<dyn Listener + Send + Sync>,
    copies: Arc<PackedCopies>,
}

impl Default for Session {
    fn default() -> Session {
        Session::by("refrain")
    }
}

impl Session {
    /// With the `refrain` that PATH finds.
    pub fn new() -> Session {
        Session::default()
    }

    /// With the command at this path.
    pub fn by(command: impl Into<PathBuf>) -> Session {
        Session {
            command: command.into(),
            unsandboxed: false,
            max_memory: None,
            listener: Arc::new(()),
            copies: Arc::default(),
        }
    }

    /// Goes on where the kernel lacks Landlock or seccomp, with what is there: only for traces that
    /// are trusted as a program is that one runs.
    pub fn unsandboxed(self, tolerated: bool) -> Session {
        Session { unsandboxed: tolerated, ..self }
    }

    /// Lets a replay take so many bytes of memory at most, if its trace accounts for them. By default
    /// three quarters of the machine's.
    pub fn max_memory(self, bytes: Option<u64>) -> Session {
        Session { max_memory: bytes, ..self }
    }

    /// Tells somebody how its work goes on. By default nobody is told.
    pub fn listener(self, listener: impl Listener + Send + Sync + 'static) -> Session {
        Session { listener: Arc::new(listener), ..self }
    }

    /// Path of the command.
    pub fn command(&self) -> &Path {
        &self.command
    }

    /// Whether weaknesses of the sandbox are tolerated.
    pub fn is_unsandboxed(&self) -> bool {
        self.unsandboxed
    }

    /// The command's arguments that say the same.
    pub fn flags(&self) -> Vec<String> {
        let unsandboxed = self.unsandboxed.then(|| UNSANDBOXED_FLAG.to_owned());
        let memory = self.max_memory.map(|most| format!("--max-memory={}", most >> 20));
        unsandboxed.into_iter().chain(memory).collect()
    }

    /// Gives up this process's rights, for this thread and those that it will start (there must be no
    /// others), before it reads a trace.
    pub fn confine(&self, purpose: &Purpose<'_>) -> crate::Result<()> {
        sandbox::enter(purpose, self.unsandboxed).map(drop)
    }

    /// Opens a trace for a child process, with the contents of the files that it refers to.
    pub(crate) fn open(&self, path: &Path) -> crate::Result<File> {
        self.copies.open(path)
    }

    /// Has a child process answer a request.
    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        trace: File,
        request: &Request,
    ) -> crate::Result<T> {
        self.ask_in_pieces(trace, request, &mut |_| {})
    }

    /// The same, of a child process that is given so much processor time.
    pub(crate) fn ask_within<T: DeserializeOwned>(
        &self,
        time: Duration,
        trace: File,
        request: &Request,
    ) -> crate::Result<T> {
        self.answered(trace, request, Some(time), &mut |_| {})
    }

    /// The same, with what comes in pieces before the answer.
    pub(crate) fn ask_in_pieces<T: DeserializeOwned>(
        &self,
        trace: File,
        request: &Request,
        pieces: &mut dyn FnMut(Piece<'_>),
    ) -> crate::Result<T> {
        self.answered(trace, request, None, pieces)
    }

    fn answered<T: DeserializeOwned>(
        &self,
        trace: File,
        request: &Request,
        time: Option<Duration>,
        pieces: &mut dyn FnMut(Piece<'_>),
    ) -> crate::Result<T> {
        self.listener.begin(request.activity());
        let answer = self.converse(trace, request, time, pieces);
        self.listener.end();
        postcard::from_bytes(&answer?)
            .context("the replay process gave another answer than it was asked for")
    }

    /// Starts the child, passes its news on and returns its answer.
    fn converse(
        &self,
        trace: File,
        request: &Request,
        time: Option<Duration>,
        pieces: &mut dyn FnMut(Piece<'_>),
    ) -> crate::Result<Vec<u8>> {
        // Whoever started this process may have left descriptors open that are no business of a trace.
        refrain_vm::close_on_exec().context("cannot keep descriptors from the replay process")?;
        let (mut pipe, childs) = UnixStream::pair().context("cannot talk to the replay process")?;
        let mut command = Command::new(&self.command);
        command.arg(REPLAY_CHILD).arg(protocol::call(request)?);
        if self.unsandboxed {
            command.arg(UNSANDBOXED_FLAG);
        }
        let mut child = command
            // With this set, the compiler of thread bodies writes a file for `perf`: the sandbox refuses.
            .env_remove("PERF_BUILDID_DIR")
            .stdin(trace)
            .stdout(OwnedFd::from(childs))
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the replay process")?;
        // Its end of the socket is the child's alone, so that the socket ends with the child.
        drop(command);
        let complaints =
            child.stderr.take().map(|it| Complaints::gather(it, self.listener.clone()));
        let watchdog = Watchdog::watch(child.id(), self.max_memory, time);
        let build = Build::greeting(&mut pipe);
        let is_understood = build.as_ref().is_some_and(Build::is_understood);
        let answer = match is_understood {
            true => match protocol::write(&mut pipe, request) {
                Ok(()) => listen(&mut pipe, &watchdog, &*self.listener, pieces),
                // It has ended; how is said below.
                Err(_) => Ok(None),
            },
            false => Ok(None),
        };
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
            bail!(Child, "{verdict}; it was ended");
        }
        if !is_understood {
            return Err(protocol::other_build(&self.command, build, last_words));
        }
        match answer? {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(why)) => Err(Error::Child(why)),
            None => Err(died(status, last_words)),
        }
    }
}

/// What an answer comes in, if it is too long for one message.
pub(crate) enum Piece<'a> {
    /// The next amounts of a thread.
    Amounts(ThreadId, &'a [u64]),
    /// The next steps of threads.
    Steps(&'a [(u32, Tapped)]),
}

/// Puts amounts together.
pub(crate) fn gather(segments: &mut Segments, piece: &Piece<'_>) {
    if let Piece::Amounts(thread, amounts) = piece {
        let index = thread.index();
        if segments.len() <= index {
            segments.resize(index + 1, Vec::new());
        }
        segments[index].extend_from_slice(amounts);
    }
}

/// What to say of a child that ended without an answer.
fn died(status: ExitStatus, last_words: Option<String>) -> Error {
    let words = last_words.map_or_else(String::new, |words| format!(": {words}"));
    let why = match status.signal() {
        Some(SIGSYS) => {
            "the replay process tried what no replay does and was ended by the kernel; do not \
             trust this trace"
                .to_owned()
        }
        Some(SIGXCPU) => "the replay took more time than the recording justifies".to_owned(),
        Some(signal) => format!("the replay process was killed by signal {signal}{words}"),
        None => format!("the replay process ended without a result ({status}){words}"),
    };
    Error::Child(why)
}

const SIGSYS: i32 = 31;
const SIGXCPU: i32 = 24;

/// What a child writes to its standard error: diagnostics of refrain's own if the user has asked
/// for them, and else only what the runtime says when it gives up.
struct Complaints(JoinHandle<Option<String>>);

impl Complaints {
    /// So much is passed on of a child that does not stop complaining.
    const MOST: u64 = 16 << 20;

    fn gather(from: ChildStderr, listener: Arc<dyn Listener + Send + Sync>) -> Complaints {
        Complaints(std::thread::spawn(move || {
            let mut last = None;
            let mut lines = BufReader::new(from.take(Complaints::MOST));
            let mut line = Vec::new();
            while let Ok(1..) = lines.by_ref().take(1 << 16).read_until(b'\n', &mut line) {
                let text = escape(String::from_utf8_lossy(&line).trim_end());
                listener.diagnostic(&text);
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

/// What a child has said at last: its answer, or why there is none.
type LastWord = Result<Vec<u8>, String>;

/// Passes news on until the child has no more; its last word, if it was one.
fn listen(
    pipe: &mut impl Read,
    supervisor: &impl Supervisor,
    listener: &dyn Listener,
    pieces: &mut dyn FnMut(Piece<'_>),
) -> crate::Result<Option<LastWord>> {
    let mut left = MAX_KEPT;
    loop {
        match protocol::read::<Message>(pipe).context("the replay process cannot be understood")? {
            Some(Message::Needs(need)) => supervisor.needs(need),
            Some(Message::Progress { done, total }) => {
                supervisor.done(done);
                listener.progress(done, total);
            }
            Some(Message::Output { descriptor, bytes }) => {
                listener.output(descriptor, &bytes).map_err(Error::Output)?
            }
            Some(Message::Steps(steps)) => pieces(Piece::Steps(&steps)),
            Some(Message::Amounts(thread, amounts)) => {
                // These are kept, and so they are counted.
                let size = size_of_val(amounts.as_slice()) as u64;
                let rest = left.checked_sub(size).filter(|_| thread.index() < MAX_THREADS);
                let endless = || Error::Child("the replay process answers without end".into());
                left = rest.ok_or_else(endless)?;
                pieces(Piece::Amounts(thread, &amounts));
            }
            Some(Message::Answer(answer)) => return Ok(Some(Ok(answer))),
            Some(Message::Failed(why)) => return Ok(Some(Err(why))),
            None => return Ok(None),
        }
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

    let mut segments = Segments::new();
    let mut pieces = |piece: Piece<'_>| gather(&mut segments, &piece);
    // As they come, as the content of one frame, whose length is right, and as answers.
    let _ = Build::greeting(&mut { bytes });
    let _ = listen(&mut { bytes }, &Nobody, &(), &mut pieces);
    let _ = postcard::from_bytes::<Replayed>(bytes);
    let _ = postcard::from_bytes::<(Analysis, Transformation)>(bytes);
    let _ = postcard::from_bytes::<(Raced, Seen, Option<Divergence>)>(bytes);
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
    let framed = [&length, bytes].concat();
    let _ = listen(&mut framed.as_slice(), &Nobody, &(), &mut pieces);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::write;

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
            write(&mut pipe, message).expect("a vector takes it");
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
        write(&mut pipe, &far).expect("a vector takes it");
        listen_to(&pipe);
    }
}
