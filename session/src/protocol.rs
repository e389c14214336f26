//! What a session and its child process say to each other: a request, an argument of the child as
//! JSON; and the child's messages, frames of a 32-bit little-endian length and a postcard message.

use crate::error::{Error, bail};
use crate::machine::{Amount, Point, RaceSearch, ReplayOptions};
use crate::sandbox::Need;
use refrain_analysis::{Code, Tapped};
use refrain_trace::ThreadId;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};

/// The hidden subcommand of `refrain` that is a replay's process without rights.
pub const REPLAY_CHILD: &str = "__replay-child";

/// No message is longer: output comes in pieces, and a ranking of a million groups fits.
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

pub(crate) fn read_message(pipe: &mut impl Read) -> crate::Result<Option<Message>> {
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

impl Message {
    /// An answer.
    pub(crate) fn answer(answer: &impl Serialize) -> crate::Result<Message> {
        Ok(Message::Answer(postcard::to_stdvec(answer)?))
    }
}

pub(crate) fn write_message(pipe: &mut impl Write, message: &Message) -> crate::Result<()> {
    let frame = postcard::to_stdvec(message)?;
    let length =
        u32::try_from(frame.len()).map_err(|_| Error::Refused("the result is too large".into()))?;
    pipe.write_all(&length.to_le_bytes())?;
    pipe.write_all(&frame)?;
    Ok(pipe.flush()?)
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
