//! The program's locks, found in the events of a trace before it is replayed: the locks that the program
//! makes itself, and where it calls the library's.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
use refrain_trace::fixed::{FixedMap, FixedSet};
use refrain_trace::linux::{FUTEX, futex_waits, futex_wakes};
use refrain_trace::{CodeBlock, Event, EventKind, ThreadId, Trace};
use refrain_transform::{Change, Interval, Made, Maker};
use std::ops::Range;
use std::sync::Arc;

/// The system's libraries, by how their files' names begin: a lock is taken for whoever calls them.
const LIBRARIES: [&str; 12] = [
    "ld-linux",
    "libc.",
    "libc-",
    "libpthread",
    "libm.",
    "libstdc++",
    "libgcc_s",
    "libgomp",
    "libomp",
    "libatomic",
    "libc++",
    "linux-vdso",
];

/// Locks and atomic variables of a program.
pub(super) struct OwnLocks {
    pub(super) made: Made,
    /// Bytes that locked instructions touched.
    pub(super) atomic: Vec<Interval>,
    /// Where calls of the library's locks and condition variables return to.
    pub(super) calls: FixedSet<u64>,
    /// Where the code of the system's libraries lies, ascending.
    pub(super) foreign: Arc<[Range<u64>]>,
}

impl OwnLocks {
    /// Reads the events of a trace.
    pub(super) fn of(trace: &Trace) -> crate::Result<OwnLocks> {
        let changes = changes(&trace.blocks()?);
        let mut maker = Maker::new();
        let mut atomic: FixedMap<u64, u16> = FixedMap::default();
        let mut calls = FixedSet::default();
        for thread in (0..trace.threads()).map(ThreadId) {
            let mut cursor = trace.cursor(thread);
            let mut id = cursor.position();
            while let Some(event) = cursor.next()? {
                let change = changes.get(&event.pc).copied().unwrap_or(Change::Store);
                if event.kind() == EventKind::Atomic && change != Change::Store {
                    let size = atomic.entry(event.object).or_default();
                    *size = event.nr.max(*size);
                }
                if takes_one_argument(event.kind()) {
                    calls.insert(event.pc);
                }
                let mut slept_on = None;
                if is_futex(&event) {
                    let record = cursor.payload()?;
                    let args = record.map(|record| record.args);
                    slept_on = args.filter(|args| futex_waits(args[1])).map(|args| args[0]);
                    if let Some(args) = args.filter(|args| futex_wakes(args[1])) {
                        maker.wakes(thread, id, &event, args[0]);
                    }
                }
                maker.push(thread, id, &event, |_| change, slept_on);
                id = cursor.position();
            }
        }
        let atomic = atomic.into_iter().map(|(at, size)| Interval::new(at, size.into())).collect();
        Ok(OwnLocks { made: maker.finish(), atomic, calls, foreign: foreign(trace) })
    }

    /// What the locks are made of, which is no data of the program's.
    pub(super) fn words(&self) -> impl Iterator<Item = Interval> + '_ {
        self.made.locks.iter().flat_map(|lock| lock.words.iter().copied())
    }
}

/// Whether the event is a call of a function with one argument.
fn takes_one_argument(kind: EventKind) -> bool {
    use EventKind::*;
    matches!(
        kind,
        MutexLock
            | MutexTryLock
            | MutexUnlock
            | ReadLock
            | ReadTryLock
            | WriteLock
            | WriteTryLock
            | RwUnlock
            | SpinLock
            | SpinTryLock
            | SpinUnlock
            | SemWait
            | SemTryWait
            | SemPost
            | CondSignal
            | CondBroadcast
    )
}

fn is_futex(event: &Event) -> bool {
    event.kind() == EventKind::Syscall && event.nr == FUTEX && event.has_payload()
}

fn foreign(trace: &Trace) -> Arc<[Range<u64>]> {
    let of_system = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        LIBRARIES.iter().any(|library| name.starts_with(library))
    };
    let modules = trace.modules().iter().filter(|module| of_system(&module.path));
    let mut ranges: Vec<_> = modules.map(|module| module.start..module.end).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.into()
}

/// What the locked instructions of the executed code do, by address.
fn changes(blocks: &[CodeBlock]) -> FixedMap<u64, Change> {
    let mut changes = FixedMap::default();
    for block in blocks {
        let mut decoder = Decoder::with_ip(64, &block.code, block.pc, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if let Some(change) = change_of(&instruction) {
                changes.insert(instruction.ip(), change);
            }
        }
    }
    changes
}

fn change_of(i: &Instruction) -> Option<Change> {
    use Mnemonic::{Add, Bts, Cmpxchg, Cmpxchg8b, Cmpxchg16b, Dec, Inc, Or, Sub, Xadd, Xchg};
    let memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    let locked = i.has_lock_prefix() || (i.mnemonic() == Xchg && memory);
    if !locked || i.code() == Code::INVALID {
        return None;
    }
    Some(match i.mnemonic() {
        Cmpxchg | Cmpxchg8b | Cmpxchg16b => Change::CompareExchange,
        Xchg | Bts | Or => Change::Exchange,
        Xadd | Add | Sub | Inc | Dec => Change::Add,
        _ => Change::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_are_told_apart_from_others() {
        // lock cmpxchg [rdx], ecx; xchg eax, [rdi]; xchg eax, ecx; lock xadd [rsi], eax;
        // mov [rdi], eax; lock and [rdi], eax; lock bts [rdi], 3
        let code = [
            &[0xf0, 0x0f, 0xb1, 0x0a][..],
            &[0x87, 0x07],
            &[0x87, 0xc8],
            &[0xf0, 0x0f, 0xc1, 0x06],
            &[0x89, 0x07],
            &[0xf0, 0x21, 0x07],
            &[0xf0, 0x0f, 0xba, 0x2f, 0x03],
        ];
        let block = CodeBlock { pc: 0x1000, code: code.concat(), loads: Vec::new() };
        let mut found: Vec<_> = changes(&[block]).into_iter().collect();
        found.sort_unstable_by_key(|(pc, _)| *pc);
        let expected = [
            (0x1000, Change::CompareExchange),
            (0x1004, Change::Exchange),
            (0x1008, Change::Add),
            (0x100e, Change::Other),
            (0x1011, Change::Exchange),
        ];
        assert_eq!(found, expected);
    }
}
