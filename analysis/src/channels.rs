//! Through what bytes go from thread to thread: pipes and sockets, by the numbers of their descriptors.

use crate::objects::Object;
use refrain_trace::fixed::FixedMap;
use refrain_trace::payload::SyscallRecord;
use refrain_trace::{Event, linux};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All files that were opened are one channel: which of them are the same is not known.
const FILES: u64 = 0;
/// All sockets are one, but for pairs: which of them are connected is not known.
const SOCKETS: u64 = 1;

const F_DUPFD: u64 = 0;
const F_SETLK: u64 = 6;
const F_SETLKW: u64 = 7;
const F_DUPFD_CLOEXEC: u64 = 1030;

/// The channels that descriptors lead to.
pub(crate) struct Channels(Mutex<State>);

struct State {
    /// By the descriptors' numbers. Others came with the program, or from another process.
    of: FixedMap<u32, u64>,
    /// How many channels there are.
    count: u64,
    /// Descriptors may have been received: two numbers may stand for one channel.
    received: bool,
    /// Files are locked, which ends when they are closed.
    locked: bool,
}

impl Default for Channels {
    fn default() -> Channels {
        let (received, locked) = (false, false);
        Channels(Mutex::new(State {
            of: FixedMap::default(),
            count: SOCKETS + 1,
            received,
            locked,
        }))
    }
}

impl Channels {
    /// What a call releases when it is entered: its channel, and what those acquire who wait for several
    /// or for none that is known.
    pub(crate) fn released(&self, call: &Event, record: &SyscallRecord) -> [Option<Object>; 2] {
        let mut state = self.state();
        let [first, _, third, ..] = record.args;
        let channel = match call.nr {
            linux::MSGSND | linux::SEMOP | linux::SEMTIMEDOP => None,
            linux::CLOSE => state.close(first),
            linux::SPLICE => state.channel(third),
            _ => state.channel(first),
        };
        if call.nr == linux::CLOSE && channel == Some(FILES) && !state.locked {
            return [None, None];
        }
        [channel.map(Object::Channel), Some(Object::Channels)]
    }

    /// What a call that has received something acquires.
    pub(crate) fn acquired(&self, call: &Event, record: &SyscallRecord) -> Object {
        let state = self.state();
        let [first, second, ..] = record.args;
        let channel = match call.nr {
            linux::MSGRCV | linux::SEMOP | linux::SEMTIMEDOP => None,
            linux::SENDFILE => state.channel(second),
            nr if linux::polls(nr) => None,
            _ => state.channel(first),
        };
        channel.filter(|_| !state.received).map_or(Object::Channels, Object::Channel)
    }

    /// A call that has succeeded may have made descriptors.
    pub(crate) fn returned(&self, call: &Event, record: &SyscallRecord) {
        let mut state = self.state();
        let [first, command, ..] = record.args;
        match call.nr {
            linux::OPEN | linux::OPENAT | linux::OPENAT2 | linux::CREAT | linux::MEMFD_CREATE => {
                state.leads(call.value, Some(FILES));
            }
            linux::SOCKET | linux::ACCEPT | linux::ACCEPT4 => {
                state.leads(call.value, Some(SOCKETS));
            }
            linux::EVENTFD | linux::EVENTFD2 => {
                let fresh = state.fresh();
                state.leads(call.value, Some(fresh));
            }
            linux::PIPE | linux::PIPE2 | linux::SOCKETPAIR => {
                let fresh = state.fresh();
                let ends = record.writes.iter().flat_map(|write| write.bytes.chunks_exact(4));
                for end in ends.filter_map(|end| end.try_into().ok()).map(u32::from_le_bytes) {
                    state.leads(end.into(), Some(fresh));
                }
            }
            linux::DUP | linux::DUP2 | linux::DUP3 => {
                let channel = state.channel(first);
                state.leads(call.value, channel);
            }
            linux::FCNTL if matches!(command, F_DUPFD | F_DUPFD_CLOEXEC) => {
                let channel = state.channel(first);
                state.leads(call.value, channel);
            }
            linux::FCNTL if matches!(command, F_SETLK | F_SETLKW) => state.locked = true,
            linux::FLOCK => state.locked = true,
            linux::RECVMSG | linux::RECVMMSG | linux::PIDFD_GETFD => state.received = true,
            _ => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn channel(&self, descriptor: u64) -> Option<u64> {
        self.of.get(&u32::try_from(descriptor).ok()?).copied()
    }

    /// The number may stand for another descriptor from now on.
    fn close(&mut self, descriptor: u64) -> Option<u64> {
        self.of.remove(&u32::try_from(descriptor).ok()?)
    }

    fn leads(&mut self, descriptor: u64, channel: Option<u64>) {
        let Ok(descriptor) = u32::try_from(descriptor) else { return };
        match channel {
            Some(channel) => drop(self.of.insert(descriptor, channel)),
            None => drop(self.of.remove(&descriptor)),
        }
    }

    fn fresh(&mut self) -> u64 {
        self.count += 1;
        self.count - 1
    }
}
