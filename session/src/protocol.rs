//! What a session and its child process say to each other: a call, an argument of the child as JSON;
//! the child's greeting, a line of text; the request, which names addresses of a program's code and so
//! may be longer than the kernel lets an argument be; and the child's messages. Request and messages are
//! frames: the length of what follows, as a little-endian number of 32 bits; then the request or the
//! message, in postcard's encoding.
//!
//! Call and greeting say which protocol the rest follows. Their own form stays as it is in all
//! versions, so that each side can say of any other what it is.

use crate::error::{Context, Error, bail};
use crate::machine::{Amount, Point, RaceSearch, ReplayOptions};
use crate::sandbox::Need;
use crate::version::version;
use refrain_analysis::{Code, Tapped};
use refrain_trace::ThreadId;
use refrain_trace::harmless::escape;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

/// The hidden subcommand of `refrain` that is a replay's process without rights.
pub const REPLAY_CHILD: &str = "__replay-child";

/// What both sides must agree on. Raise it with every change of [`Request`], of [`Message`] or of an
/// answer: a test compares their formats with those that this number stands for.
const PROTOCOL: u32 = 13;

/// A greeting begins so.
const GREETING: &str = "refrain-replay ";

/// No greeting is longer.
const MAX_GREETING: usize = 256;

/// A build of refrain, as it shows itself to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Build {
    protocol: u32,
    version: String,
}

impl Build {
    /// This one.
    pub(crate) fn own() -> Build {
        Build { protocol: PROTOCOL, version: version().to_owned() }
    }

    /// Whether this build understands it.
    pub(crate) fn is_understood(&self) -> bool {
        self.protocol == PROTOCOL
    }

    /// The line with which a child begins.
    pub(crate) fn greet(&self, pipe: &mut impl Write) -> crate::Result<()> {
        writeln!(pipe, "{GREETING}{} {}", self.protocol, self.version)?;
        Ok(pipe.flush()?)
    }

    /// The build of a child, if it begins as one does.
    pub(crate) fn greeting(pipe: &mut impl Read) -> Option<Build> {
        let mut line = Vec::new();
        let mut byte = [0];
        // Byte by byte: what follows the line is not this function's.
        while line.len() < MAX_GREETING && pipe.read_exact(&mut byte).is_ok() && byte != *b"\n" {
            line.extend(byte);
        }
        let (protocol, version) =
            str::from_utf8(&line).ok()?.strip_prefix(GREETING)?.split_once(' ')?;
        Some(Build { protocol: protocol.parse().ok()?, version: escape(version) })
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refrain {}, protocol {}", self.version, self.protocol)
    }
}

/// What to say of a command whose child has greeted like this, or has not greeted.
pub(crate) fn other_build(
    command: &Path,
    build: Option<Build>,
    last_words: Option<String>,
) -> Error {
    let shown = command.display();
    let what = match (build, last_words) {
        (Some(build), _) => format!("{shown} is {build}"),
        (None, Some(words)) => {
            format!("{shown} does not greet as a refrain does (it says: {words})")
        }
        (None, None) => format!("{shown} does not greet as a refrain does"),
    };
    let own = Build::own();
    Error::OtherBuild(format!(
        "{what}, but what starts it is {own}: install both from the same sources, or give the \
         session another command"
    ))
}

/// What a child is given.
#[derive(Serialize, Deserialize)]
struct Call {
    build: Build,
    /// What will be asked, for whoever lists the processes.
    request: serde_json::Value,
}

/// The argument of a child that will be asked for this.
pub(crate) fn call(request: &Request) -> crate::Result<String> {
    let request = request.activity().into();
    Ok(serde_json::to_string(&Call { build: Build::own(), request })?)
}

/// Whether this argument is of a build that the child understands.
pub(crate) fn called(argument: &str) -> crate::Result<()> {
    let Call { build, .. } = serde_json::from_str(argument).with_context(|| {
        format!("{REPLAY_CHILD} is internal to refrain; it cannot be used directly")
    })?;
    if !build.is_understood() {
        let own = Build::own();
        bail!(OtherBuild, "asked to replay by {build}, but this is {own}");
    }
    Ok(())
}

/// No frame is longer: output comes in pieces, and a ranking of a million groups fits.
const MAX_FRAME: usize = 256 << 20;

/// What the child is asked to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
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
    pub(crate) fn is_observed(&self) -> bool {
        match self {
            Request::Replay(options) => options.observe,
            Request::Attempt(..) => false,
            Request::Analyse(_) | Request::Transform | Request::Races(_) => true,
            Request::Stacks(..) | Request::Steps(_) | Request::Segments(_) => true,
        }
    }

    /// What it is, as progress is shown.
    pub(crate) fn activity(&self) -> &'static str {
        match self {
            Request::Replay(_) | Request::Steps(_) | Request::Attempt(..) => "replaying",
            Request::Analyse(_) => "analysing",
            Request::Transform => "transforming",
            Request::Races(RaceSearch::Program(_)) | Request::Stacks(..) => "looking for races",
            Request::Races(_) => "looking for what raced",
            Request::Segments(amount) => amount.activity(),
        }
    }
}

/// What the child says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message {
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
    /// The next steps of threads.
    Steps(Vec<(u32, Tapped)>),
    /// The next amounts of a thread.
    Amounts(ThreadId, Vec<u64>),
    /// The answer to the request, as a message of its own. The last message, as a failure is.
    Answer(Vec<u8>),
    Failed(String),
}

/// The next request or message, if there is one.
pub(crate) fn read<T: DeserializeOwned>(pipe: &mut impl Read) -> crate::Result<Option<T>> {
    let mut length = [0; 4];
    match pipe.read_exact(&mut length) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        bail!(Child, "a message of {length} bytes");
    }
    let mut frame = Vec::new();
    pipe.take(length as u64).read_to_end(&mut frame)?;
    if frame.len() < length {
        return Ok(None);
    }
    Ok(Some(postcard::from_bytes(&frame)?))
}

/// Says a request or a message.
pub(crate) fn write(pipe: &mut impl Write, what: &impl Serialize) -> crate::Result<()> {
    let frame = postcard::to_stdvec(what)?;
    let length =
        u32::try_from(frame.len()).map_err(|_| Error::Refused("the result is too large".into()))?;
    pipe.write_all(&length.to_le_bytes())?;
    pipe.write_all(&frame)?;
    Ok(pipe.flush()?)
}

impl Message {
    /// An answer.
    pub(crate) fn answer(answer: &impl Serialize) -> crate::Result<Message> {
        Ok(Message::Answer(postcard::to_stdvec(answer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choices::{EngineKind, SchedulerKind};
    use crate::machine::{Amount, Analysis, Moment, RaceSearch, Raced, Seen, Transformation};
    use crate::replayed::{Divergence, Replayed};
    use refrain_analysis::paper::Op;
    use refrain_analysis::{Act, Atomics, Calls, OneStep, Tasking};
    use refrain_transform::{Irregularity, Make, Picture};
    use serde_reflection::{Registry, Tracer, TracerConfig};

    #[test]
    fn messages_survive_the_pipe() {
        let mut pipe = Vec::new();
        write(&mut pipe, &Message::Progress { done: 3, total: 9 }).expect("a vector takes it");
        write(&mut pipe, &Message::Failed("why".into())).expect("a vector takes it");
        let mut pipe = pipe.as_slice();
        let first = read::<Message>(&mut pipe).expect("is whole");
        assert!(matches!(first, Some(Message::Progress { done: 3, total: 9 })));
        let second = read::<Message>(&mut pipe).expect("is whole");
        assert!(matches!(second, Some(Message::Failed(why)) if why == "why"));
        assert!(read::<Message>(&mut pipe).expect("is at its end").is_none());
    }

    #[test]
    fn builds_know_each_other_by_their_protocol() {
        let mut pipe = Vec::new();
        Build::own().greet(&mut pipe).expect("a vector takes it");
        write(&mut pipe, &Message::Failed("why".into())).expect("a vector takes it");
        let mut pipe = pipe.as_slice();
        assert_eq!(Build::greeting(&mut pipe), Some(Build::own()));
        assert!(read::<Message>(&mut pipe).expect("is whole").is_some(), "nothing is swallowed");
        for stranger in ["", "refrain-replay", "refrain-replay x 0.1.0\n", "hello\n"] {
            assert_eq!(Build::greeting(&mut stranger.as_bytes()), None, "{stranger:?}");
        }
        assert_eq!(Build::greeting(&mut [b'x'; 4096].as_slice()), None);
        let asked = call(&Request::Transform).expect("can be written");
        called(&asked).expect("is understood");
        let next = asked.replace("\"protocol\":", "\"protocol\":1");
        let error = called(&next).expect_err("is another protocol").chain();
        assert!(error.contains(&Build::own().to_string()), "{error}");
    }

    #[test]
    fn a_request_may_be_longer_than_an_argument() {
        let code = Code { updates: (0..1 << 20).collect(), ..Code::default() };
        let request = Request::Steps(code);
        assert!(call(&request).expect("can be written").len() < 1 << 10);
        let mut pipe = Vec::new();
        write(&mut pipe, &request).expect("a vector takes it");
        let asked = read(&mut pipe.as_slice()).expect("is whole");
        assert!(asked == Some(request));
    }

    /// What the other side must understand, by type. Where this differs, raise [`PROTOCOL`], and accept
    /// the new formats with it.
    #[test]
    fn a_protocol_has_its_formats() {
        // An enum inside of another type has to be traced before it.
        macro_rules! formats {
            ($($inner:ty),* => $outer:ty) => {{
                let mut tracer = Tracer::new(TracerConfig::default());
                $(tracer.trace_simple_type::<$inner>().expect("can be traced");)*
                tracer.trace_simple_type::<$outer>().expect("can be traced");
                tracer.registry().expect("is whole")
            }};
        }
        let formats: [Registry; _] = [
            formats!(
                Amount, Calls, OneStep, Tasking, Atomics, EngineKind, Moment, RaceSearch, SchedulerKind => Request
            ),
            formats!(Op, Tapped => Message),
            formats!(SchedulerKind => Replayed),
            formats!(Result<Picture, String>, Irregularity, Make => Analysis),
            formats!(Result<u64, String> => Transformation),
            formats!(Act => Raced),
            formats!(=> Seen),
            formats!(=> Divergence),
        ];
        let lines: Vec<String> =
            formats.iter().flatten().map(|(name, format)| format!("{name}: {format:?}")).collect();
        insta::assert_snapshot!(format!("protocol {PROTOCOL}\n{}", lines.join("\n")));
    }

    #[test]
    fn nonsense_from_the_child_is_an_error() {
        assert!(read::<Message>(&mut [0xff; 64].as_slice()).is_err());
        assert!(read::<Message>(&mut [1, 0, 0, 0, 99].as_slice()).is_err());
        assert!(read::<Message>(&mut [9, 0, 0, 0, 1].as_slice()).expect("cut off").is_none());
    }
}
