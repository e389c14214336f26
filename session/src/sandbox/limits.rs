//! How much memory, time and how many threads the replay of a trace may take, by what the trace
//! says of itself.
//!
//! A trace may lie, so that everything here has a bound of its own: the machine's memory, and the
//! user's patience. But a small trace that says of itself that it is small is held to it.

use super::Purpose;
use crate::error::Context;
use refrain_trace::linux::{BRK, MMAP, MREMAP};
use refrain_trace::payload::{Effect, SyscallRecord};
use refrain_trace::{EventKind, ThreadId, Trace};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Descriptors: those that it was given, and memory files, one for each file that the guest maps and that may
/// change.
const DESCRIPTORS: u64 = 1024;
/// The largest memory file: translated code.
const LARGEST_FILE: u64 = 16 << 40;
/// Address space besides the guest's: the allocator reserves much that it never uses.
const OWN_SPACE: u64 = 64 * GIB;
/// With notes on guest memory, all of the address space is reserved.
const WITH_NOTES: u64 = 1 << 47;
/// Of each thread: stacks, and what the allocator reserves for it.
const SPACE_OF_THREAD: u64 = 160 * MIB;
/// Threads that other programs of the user may start meanwhile: the limit counts them all.
const OTHER_THREADS: u64 = 4096;

/// Memory of a replay besides the guest's: code, events and contents that are unpacked ahead.
const OWN_MEMORY: u64 = 704 * MIB;
/// Of each thread: stacks and buffers.
const MEMORY_OF_THREAD: u64 = MIB;
/// For each byte of code: what the compiler makes of it.
const MEMORY_OF_CODE: u64 = 512;
/// For each byte of guest memory, and for each event, what observers keep.
const OBSERVED_BYTE: u64 = 40;
const OBSERVED_EVENT: u64 = 4096;

/// Work without an event that is always allowed.
const PATIENCE: Duration = Duration::from_secs(20);
/// So much slower than the recording a replay may be anywhere, on a slower machine; and four times
/// as much with observers, compiled into code that does nothing but access memory.
const SLOWER: u32 = 100;
/// Processor time that is always allowed.
const WORK: Duration = Duration::from_secs(3600);

/// What a trace says of the run that it holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stated {
    threads: u64,
    events: u64,
    /// Bytes that the guest mapped altogether.
    mapped: u64,
    /// Bytes of executed code.
    code: u64,
    recorded: Duration,
    /// The longest time of a thread between two events.
    gap: Duration,
}

/// What the parent has to know of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Need {
    /// Memory in use at most, in bytes.
    pub memory: u64,
    /// Processor time that a thread may take from one event to the next.
    pub patience: Duration,
}

impl Stated {
    /// Reads it from the trace.
    pub(crate) fn of(trace: &Trace) -> crate::Result<Stated> {
        let header = trace.header();
        let mut stated = Stated {
            threads: trace.threads().into(),
            events: trace.events(),
            mapped: header.mappings.iter().fold(0, |sum: u64, map| sum.saturating_add(map.len)),
            ..Stated::default()
        };
        for run in trace.block_runs() {
            let bytes: usize = run?.iter().map(|block| block.code.len()).sum();
            stated.code = stated.code.saturating_add(bytes as u64);
        }
        let (began, mut ended, mut longest) = (trace.began()?, 0, 0);
        let mut last_break = header.entry.brk;
        for thread in (0..trace.threads()).map(ThreadId) {
            let mut cursor = trace.cursor(thread);
            let mut previous = began;
            while let Some(event) = cursor.next()? {
                longest = longest.max(event.end.saturating_sub(previous));
                previous = event.end;
                if event.kind() == EventKind::Syscall {
                    let result = event.value;
                    let grown = match event.nr {
                        BRK => result.saturating_sub(std::mem::replace(&mut last_break, result)),
                        MMAP | MREMAP => {
                            cursor.payload()?.map_or(0, |call| growth(event.nr, &call))
                        }
                        _ => 0,
                    };
                    stated.mapped = stated.mapped.saturating_add(grown);
                }
            }
            ended = ended.max(previous);
        }
        let hz = header.tsc_hz.max(1) as f64;
        let time = |ticks: u64| Duration::try_from_secs_f64(ticks as f64 / hz).unwrap_or_default();
        (stated.gap, stated.recorded) = (time(longest), time(ended.saturating_sub(began)));
        Ok(stated)
    }

    /// What a replay of it needs at most; with observers, or without.
    pub(crate) fn need(&self, observed: bool) -> Need {
        let guest = self.mapped.saturating_add(self.threads.saturating_mul(MEMORY_OF_THREAD));
        let observers = if observed {
            let memory = self.mapped.saturating_mul(OBSERVED_BYTE);
            memory.saturating_add(self.events.saturating_mul(OBSERVED_EVENT))
        } else {
            0
        };
        let memory = [guest, observers, self.code.saturating_mul(MEMORY_OF_CODE)]
            .into_iter()
            .fold(OWN_MEMORY, u64::saturating_add);
        let slower = if observed { 4 * SLOWER } else { SLOWER };
        let patience = PATIENCE.saturating_add(self.gap.saturating_mul(slower));
        Need { memory, patience }
    }

    /// Limits this process to it.
    pub(crate) fn limit(&self, around: &Surroundings, observed: bool) -> crate::Result<()> {
        let space = if observed { WITH_NOTES } else { OWN_SPACE };
        let threads = self.threads.saturating_mul(SPACE_OF_THREAD);
        lower(Resource::As, space.saturating_add(self.mapped).saturating_add(threads))?;
        let busy = self.recorded.as_secs().saturating_mul(self.threads.max(1));
        lower(Resource::Cpu, WORK.as_secs().saturating_add(busy.saturating_mul(SLOWER.into())))?;
        if let Some(there) = around.threads {
            let most = there.saturating_add(OTHER_THREADS).saturating_add(self.threads);
            lower(Resource::Nproc, most)?;
        }
        Ok(())
    }
}

/// By how much a call enlarges the guest's memory at most.
fn growth(number: u16, call: &SyscallRecord) -> u64 {
    let [_, second, third, ..] = call.args;
    match call.effect {
        Effect::Memory { .. } if number == MMAP => second,
        Effect::Memory { .. } => third.saturating_sub(second),
        _ => 0,
    }
}

/// What counts for a limit and cannot be seen from inside of the sandbox.
pub(crate) struct Surroundings {
    /// Threads that there are on this system.
    threads: Option<u64>,
}

/// Looks around, before the sandbox is entered.
pub(super) fn look_around() -> Surroundings {
    // The fourth word is threads that run, a slash, and all threads.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let all = load.split_whitespace().nth(3).and_then(|word| word.split_once('/'));
    Surroundings { threads: all.and_then(|(_, all)| all.parse().ok()) }
}

/// Limits that hold while a trace is read.
pub(super) fn before_reading(purpose: &Purpose<'_>) -> crate::Result<()> {
    lower(Resource::Core, 0)?;
    if matches!(purpose, Purpose::Replay) {
        lower(Resource::Nofile, DESCRIPTORS)?;
        lower(Resource::Fsize, LARGEST_FILE)?;
    }
    Ok(())
}

/// Lowers a limit, if it is not lower yet.
fn lower(resource: Resource, most: u64) -> crate::Result<()> {
    let Rlimit { current, maximum } = getrlimit(resource);
    let most = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    setrlimit(resource, Rlimit { current: most(current), maximum: most(maximum) })
        .with_context(|| format!("cannot limit {resource:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_trace::OwnedTrace;

    fn stated(text: &str) -> Stated {
        let owned: OwnedTrace = text.parse().expect("the text is a trace");
        let trace = Trace::from_bytes(owned.to_bytes().expect("can be written"));
        Stated::of(&trace.expect("can be read")).expect("can be read")
    }

    #[test]
    fn a_trace_is_held_to_what_it_says() {
        let stated = stated(
            "
            clock hz=1000 start=0 unix_ns=0
            map 0x10000 len=0x3000 prot=3
            blk0 0x10001000 0f0b
            t0 start at=+0
            t0 syscall nr=9 value=0x100000000000 args=0,0x5000 memory at=+10
            t0 syscall nr=9 value=0x100000000000 args=0,0x500000 at=+2000
            t0 exit at=+5
            end exited=0
            ",
        );
        assert_eq!((stated.threads, stated.events, stated.code), (1, 4, 2));
        assert_eq!(stated.mapped, 0x8000, "a call without effect on memory counts nothing");
        assert_eq!(stated.gap, Duration::from_secs(2));
        let need = stated.need(false);
        assert!(need.memory < GIB, "a small trace needs little: {need:?}");
        assert_eq!(need.patience, PATIENCE + 100 * Duration::from_secs(2));
        assert!(stated.need(true).memory > need.memory);
    }

    #[test]
    fn absurd_figures_are_no_panic() {
        let absurd = Stated {
            threads: u64::MAX,
            events: u64::MAX,
            mapped: u64::MAX,
            code: u64::MAX,
            recorded: Duration::MAX,
            gap: Duration::MAX,
        };
        assert_eq!(absurd.need(true).memory, u64::MAX);
    }
}
