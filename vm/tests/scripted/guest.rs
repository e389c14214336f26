//! Guests made of recordings: the script of a program that does what a recording says, and its
//! trace.

use super::{Script, Step};
use refrain_scheduler::testing::Recording;
use refrain_trace::payload::{Effect, SyscallRecord};
use refrain_trace::{
    Ending, Event, EventKind, Footer, Header, Mapping, Module, NO_TICKET, OwnedEvent, OwnedTrace,
    ThreadId, Trace, linux,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where guests lie, one after the other: a thread of an earlier one may still be there.
const FIRST: u64 = 0x3000_0000;
const ROOM: u64 = 0x10_0000;
static NEXT: AtomicU64 = AtomicU64::new(FIRST);

/// In a guest's room: functions, the code of each thread, data, stacks.
const FUNCTIONS: u64 = 0;
const CODE: u64 = 0x1_0000;
const DATA: u64 = 0x8_0000;
const STACKS: u64 = 0xa_0000;
const EACH: u64 = 0x1_0000;

/// What `pthread_create` asks of the kernel, but for what the kernel would write.
const CLONE: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM) as u64;

const NAMES: [(EventKind, &str); 11] = [
    (EventKind::MutexLock, "pthread_mutex_lock"),
    (EventKind::MutexTryLock, "pthread_mutex_trylock"),
    (EventKind::MutexUnlock, "pthread_mutex_unlock"),
    (EventKind::ReadLock, "pthread_rwlock_rdlock"),
    (EventKind::WriteLock, "pthread_rwlock_wrlock"),
    (EventKind::RwUnlock, "pthread_rwlock_unlock"),
    (EventKind::SemWait, "sem_wait"),
    (EventKind::SemTryWait, "sem_trywait"),
    (EventKind::SemPost, "sem_post"),
    (EventKind::BarrierArrive, "pthread_barrier_wait"),
    (EventKind::ThreadJoin, "pthread_join"),
];

/// A guest: what it does, what was recorded of it, and what the virtual clock replays.
pub(crate) struct Guest {
    /// Its code.
    pub(crate) script: Script,
    /// Its trace.
    pub(crate) trace: OwnedTrace,
    /// The recording, of objects at their addresses in the guest.
    pub(crate) recording: Recording,
    /// Where the room begins.
    base: u64,
}

impl Guest {
    /// A guest that does what a recording says. Objects of the recording lie below [`EACH`], and
    /// words of theirs begin with values.
    pub(crate) fn of(recording: &Recording, words: &[(u64, u32)]) -> Guest {
        let base = NEXT.fetch_add(ROOM, Ordering::SeqCst);
        let recording = moved(recording, base + DATA);
        let mut guest =
            Guest { script: Script::new(), trace: OwnedTrace::default(), recording, base };
        guest.write(words);
        guest
    }

    /// The trace as a replay reads it.
    pub(crate) fn trace(&self) -> Trace {
        self.trace.to_trace().expect("a trace in memory can be written and read")
    }

    /// The same guest, whose threads end in any order: a scheduler decides on that, too.
    pub(crate) fn ending_freely(mut self) -> Guest {
        for event in self.trace.threads.iter_mut().flatten() {
            if event.event.kind() == EventKind::ThreadExit {
                event.event.flags |= NO_TICKET;
            }
        }
        self
    }

    /// Address of an object of the recording that the guest was made of.
    fn address(&self, object: u64) -> u64 {
        self.base + DATA + object
    }

    /// What the words of atomic instructions held before each of these.
    fn values(&self) -> BTreeMap<(usize, usize), u64> {
        let mut words: BTreeMap<u64, u64> = BTreeMap::new();
        let atomic = |&&(thread, index): &&(usize, usize)| {
            self.recording.threads[thread][index].kind() == EventKind::Atomic
        };
        let sequence = self.recording.sequence.iter().filter(atomic);
        let before = sequence.map(|&(thread, index)| {
            let word = words.entry(self.recording.threads[thread][index].object).or_default();
            *word += 1;
            ((thread, index), *word - 1)
        });
        before.collect()
    }

    fn code(&self, thread: usize) -> u64 {
        self.base + CODE + EACH / 16 * thread as u64
    }

    /// The stack pointer of a thread between its calls.
    fn stack(&self, thread: usize) -> u64 {
        self.base + STACKS + EACH / 2 * (thread as u64 + 1) - 64
    }

    fn function(&self, kind: EventKind) -> u64 {
        let at = NAMES.iter().position(|(known, _)| *known == kind);
        self.base + FUNCTIONS + at.unwrap_or_else(|| panic!("no function is {kind:?}")) as u64
    }

    fn write(&mut self, words: &[(u64, u32)]) {
        let hooks: Vec<(u64, String)> =
            NAMES.iter().map(|&(kind, name)| (self.function(kind), name.to_owned())).collect();
        self.script.extend(hooks.iter().map(|(pc, _)| (*pc, Step::Return)));
        let (address, len) = (self.base + DATA, ROOM - DATA);
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as u32;
        self.trace.header = Header {
            tsc_hz: 1_000_000_000,
            mappings: vec![Mapping { address, len, prot, ..Mapping::default() }],
            ..Header::default()
        };
        (self.trace.header.entry.rip, self.trace.header.entry.rsp) = (self.code(0), self.stack(0));
        let (start, end) = (self.base, self.base + DATA);
        self.trace.modules = vec![Module { start, end, hooks, ..Module::default() }];
        let threads: Vec<Vec<Event>> = self.recording.threads.clone();
        let values = self.values();
        let mut children = 0;
        for (thread, events) in threads.iter().enumerate() {
            let mut pc = self.code(thread);
            let mut push = |script: &mut Script, step| {
                script.insert(pc, step);
                pc += 1;
                pc
            };
            if thread == 0 {
                for &(object, word) in words {
                    let address = self.address(object);
                    push(&mut self.script, Step::Store { address, word });
                }
            }
            let mut owned = Vec::new();
            let mut previous = Event::default();
            for (index, event) in events.iter().enumerate() {
                let work = event.begin - previous.end;
                let sp = self.stack(thread);
                let mut recorded = Event { sp, ..*event };
                let mut payload = None;
                match event.kind() {
                    EventKind::ThreadStart => recorded.pc = self.code(thread),
                    EventKind::ThreadExit => recorded.pc = previous.pc,
                    // The second half of a call.
                    EventKind::BarrierLeave => {
                        (recorded.pc, recorded.sp) = (previous.pc, previous.sp)
                    }
                    EventKind::Syscall => {
                        let number = u64::from(event.nr);
                        let mut arguments = [0; 6];
                        let mut effect = Effect::None;
                        let creates = linux::creates_threads(event.nr);
                        if creates {
                            (recorded.ticket, recorded.aux) =
                                (children as u64, children as u64 + 1);
                            children += 1;
                            (arguments[0], arguments[1]) = (CLONE, self.stack(children));
                            effect = Effect::Clone { child: ThreadId(children as u32) };
                        }
                        recorded.pc =
                            push(&mut self.script, Step::Syscall { work, number, arguments });
                        if creates {
                            let child = self.code(children);
                            push(&mut self.script, Step::Fork { child });
                        }
                        recorded.object = digest(&arguments);
                        recorded.flags = if creates { 0 } else { NO_TICKET };
                        payload = Some(SyscallRecord { args: arguments, writes: vec![], effect });
                    }
                    EventKind::Atomic => {
                        let address = event.object;
                        let step = Step::Increment { work, address };
                        recorded.pc = push(&mut self.script, step) - 1;
                        (recorded.nr, recorded.value) = (8, values[&(thread, index)]);
                    }
                    kind => {
                        let (function, arguments) = (self.function(kind), [event.object, 0]);
                        recorded.pc =
                            push(&mut self.script, Step::Call { work, function, arguments });
                        recorded.sp = sp - 8;
                    }
                }
                previous = recorded;
                owned.push(OwnedEvent::new(recorded, payload));
            }
            self.trace.threads.push(owned);
        }
        let all = threads.iter().flatten();
        self.trace.footer = Some(Footer {
            ending: Ending::Exited(0),
            tsc_end: all.map(|event| event.end).max().unwrap_or(0),
            events: threads.iter().map(|events| events.len() as u64).collect(),
            cpu_ns: 0,
            output_bytes: 0,
        });
    }
}

/// The recording, with its objects moved, and so with other tickets.
fn moved(recording: &Recording, by: u64) -> Recording {
    let mut moved = Recording::new(recording.threads.len());
    for &(thread, index) in &recording.sequence {
        let event = recording.threads[thread][index];
        let before = index.checked_sub(1).map_or(0, |last| recording.threads[thread][last].end);
        let of_thread = matches!(
            event.kind(),
            EventKind::ThreadStart | EventKind::ThreadExit | EventKind::ThreadJoin
        );
        let object = if of_thread { event.object } else { event.object + by };
        let work = event.begin - before;
        let new = moved.push(thread, work, event.kind(), object);
        *new = Event { ticket: new.ticket, begin: new.begin, end: new.end, object, ..event };
    }
    moved
}

/// What the replayer makes of a system call's arguments, none of which points to memory that the
/// kernel reads.
fn digest(arguments: &[u64; 6]) -> u64 {
    let bytes: Vec<u8> = arguments.iter().flat_map(|word| word.to_le_bytes()).collect();
    u64::from(crc32fast::hash(&bytes))
}
