//! The child's side: a process that has given up its rights replays a trace, so that neither a
//! hostile trace nor a fault of guest code reaches the user's session.
//!
//! The parent passes the opened trace as the child's standard input; the child's standard output is a
//! socket, on which it is asked and answers (`protocol`).

use crate::error::{Error, bail};
use crate::machine::{self, Listener};
use crate::protocol::{self, Build, Message, Request};
use crate::sandbox::{self, Purpose, Stated};
use refrain_analysis::Tapped;
use refrain_trace::{ThreadId, Trace};
use std::fs::File;
use std::panic::PanicHookInfo;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Bytes of output in one frame.
const OUTPUT_PIECE: usize = 1 << 20;

/// Amounts in one frame.
const AMOUNTS_PIECE: usize = 1 << 16;

/// What the command with the hidden subcommand [`REPLAY_CHILD`](crate::REPLAY_CHILD) does: it gives up all
/// rights, replays the trace on its standard input as it is asked to on its standard output, and answers there.
/// `call` says who asks. If `tolerant`, it goes on where the kernel lacks what the sandbox is made of.
pub fn serve(call: &str, tolerant: bool) -> crate::Result<()> {
    Build::own().greet(&mut std::io::stdout())?;
    protocol::called(call)?;
    let trace = File::from(rustix::io::dup(std::io::stdin())?);
    let mut pipe = File::from(rustix::io::dup(std::io::stdout())?);
    // Whoever called has gone, and wants no answer.
    let Some(request) = protocol::read(&mut pipe)? else { return Ok(()) };
    let pipe = Arc::new(Pipe { file: Mutex::new(pipe), patience: OnceLock::new() });
    report_panics(pipe.clone());
    let answer = answer(trace, request, &pipe, tolerant);
    pipe.send(&answer.unwrap_or_else(|error| Message::Failed(error.chain())))
}

/// Gives up all rights, and does what is asked.
fn answer(
    trace: File,
    request: Request,
    pipe: &Arc<Pipe>,
    tolerant: bool,
) -> crate::Result<Message> {
    // A soft limit that is low is meant for recorded programs.
    refrain_vm::raise_limit_of_space();
    let around = sandbox::enter(&Purpose::Replay, tolerant)?;
    let trace = Trace::from_file(trace)?;
    let stated = Stated::of(&trace)?;
    let observed = request.is_observed();
    let need = stated.need(observed);
    pipe.send(&Message::Needs(need))?;
    let _ = pipe.patience.set(need.patience);
    stated.limit(&around, observed)?;
    let listener = pipe.clone();
    match request {
        Request::Replay(options) => Message::answer(&machine::replay(&trace, &options, listener)?),
        Request::Analyse(draws) => Message::answer(&machine::analyse(&trace, draws, listener)?),
        Request::Transform => Message::answer(&machine::transform(&trace, listener)?),
        Request::Races(search) => Message::answer(&machine::races(&trace, search, listener)?),
        Request::Stacks(points, code) => {
            Message::answer(&machine::stacks(&trace, points, code, listener)?)
        }
        Request::Steps(code) => Message::answer(&machine::steps(&trace, code, listener)?),
        Request::Segments(amount) => {
            let segments = machine::segments(&trace, amount, listener)?;
            for (thread, amounts) in (0..).map(ThreadId).zip(&segments) {
                for piece in amounts.chunks(AMOUNTS_PIECE) {
                    pipe.send(&Message::Amounts(thread, piece.to_vec()))?;
                }
            }
            Message::answer(&())
        }
        Request::Attempt(name, victim) => {
            // As the code of a trace would, not on the thread that set the sandbox up.
            let attempt = std::thread::spawn(move || refrain_vm::attempt(&name, victim));
            let result = attempt
                .join()
                .ok()
                .flatten()
                .ok_or_else(|| Error::Refused("there is no such attempt".into()))?;
            bail!(Child, "the kernel answered {result}")
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
    fn send(&self, message: &Message) -> crate::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        protocol::write(&mut *file, message)
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
