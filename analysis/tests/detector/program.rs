//! Programs as lists of steps, and what the detector finds in them.

use refrain_analysis::{Code, Detector, EpochNotes, OneStep, Race, Relation, Watcher};
use refrain_trace::fixed::FixedMap;
use refrain_trace::payload::{Effect, SyscallRecord};
use refrain_trace::{
    Access, Event, EventId, EventKind, HAS_PAYLOAD, NO_TICKET, ThreadId, linux, order,
};
use std::ops::Range;
use std::sync::Arc;

/// The number of `clone`.
const CLONE: u16 = 56;

/// What a thread does. An instruction's address is 0x1000 and its number in the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Read(u64, u16),
    Write(u64, u16),
    /// One instruction that loads and stores.
    Update(u64, u16),
    /// Stores of four bytes each that are reported together.
    Writes([u64; 2]),
    /// Any event of the library's about an object; it returns zero.
    Sync(EventKind, u64),
    /// A barrier is initialized, for so many threads.
    Barrier(u64, u64),
    /// A wait for a condition ends: the mutex, the condition variable.
    WaitEnd(u64, u64),
    /// One that returns something else.
    Fails(EventKind, u64),
    /// A locked instruction of four bytes.
    Rmw(u64),
    /// A recorded store of four bytes.
    Store(u64),
    /// A recorded load of four bytes.
    Load(u64),
    Create(u32),
    /// The same, on a stack with this thread pointer.
    CreateOn(u32, u64),
    /// New memory: where, and how much.
    Map(u64, u64),
    /// The same in place of what is there.
    MapAt(u64, u64),
    /// A thread sleeps on a word until another one wakes it.
    Sleep(u64),
    Wake(u64),
    /// A signal to somebody.
    Kill,
    /// A handler of signals is named.
    Handle,
    /// A system call that writes to memory: `read`.
    Receive(u64, usize),
    /// One that reads memory: `write`.
    Send(u64, u64),
    /// The allocator is asked for so many bytes and answers with this address.
    Allocate(u64, u64),
    /// The allocator is called for this address, and to enlarge the block.
    Reallocate(u64, u64),
    Free(u64),
    /// The allocator is called and does something else meanwhile.
    Within(u64),
    /// A descriptor is closed, or `read` from: it answers this.
    Close(u32, i64),
    Use(u32, i64),
    /// `dup2`: the second number is the first one's descriptor.
    Copy(u32, u32),
    /// A pipe: the numbers of its ends.
    Pipe(u32, u32),
    /// Bytes are sent through a descriptor.
    Bytes(u32),
    Unmap(u64, u64),
}

/// Functions of the allocator.
pub(crate) const MALLOC: u32 = 0x801;
pub(crate) const REALLOC: u32 = 0x802;
pub(crate) const FREE: u32 = 0x803;

/// Code with these functions.
pub(crate) fn code() -> Code {
    let functions = [(MALLOC, OneStep::Size), (REALLOC, OneStep::Again), (FREE, OneStep::Free)];
    let one_step = functions.into_iter().map(|(pc, function)| (pc.into(), function)).collect();
    Code { one_step, ..Code::default() }
}

/// A thread does something.
pub(crate) type Program = Vec<(u32, Step)>;

/// Runs the detector over a program: one step after another, threads as numbered.
pub(crate) struct Run {
    detector: Arc<Detector>,
    watchers: Vec<(Watcher, u64)>,
    calls: u64,
}

/// Notes nothing.
struct Nothing;

impl EpochNotes for Nothing {
    fn next_epoch(&mut self) {}

    fn forget(&mut self, _: Range<u64>) {}
}

/// Words of which one thread alone has events.
fn words_of_one(program: &[(u32, Step)]) -> FixedMap<u64, ThreadId> {
    let users = program.iter().filter_map(|(thread, step)| match step {
        Step::Rmw(word) | Step::Load(word) => Some((*word & !3, ThreadId(*thread))),
        _ => None,
    });
    let users: Vec<_> = users.collect();
    let is_alone = |(word, thread): &(u64, ThreadId)| {
        users.iter().all(|(other, by)| other != word || by == thread)
    };
    users.iter().copied().filter(is_alone).collect()
}

impl Run {
    /// `told`: as if only accesses that are new in an epoch were shown, and with the words of which one
    /// thread alone has events. Neither may make a difference.
    pub(crate) fn with(
        threads: u32,
        program: &[(u32, Step)],
        relation: Relation,
        told: bool,
    ) -> Run {
        let words = program.iter().filter_map(|(_, step)| match *step {
            Step::Rmw(address) | Step::Load(address) => Some(address),
            _ => None,
        });
        let detector = match told {
            true => Detector::with_words_of_one(words, words_of_one(program), relation),
            false => Detector::new(words, relation),
        };
        let watcher = |t| {
            let watcher = match told {
                true => detector.thread_in_epochs(ThreadId(t), Box::new(Nothing)),
                false => detector.thread(ThreadId(t)),
            };
            (watcher.expect("there are few threads"), 0)
        };
        Run { watchers: (0..threads).map(watcher).collect(), detector, calls: 0 }
    }

    pub(crate) fn races(&self) -> Vec<Race> {
        self.detector.races()
    }

    /// All threads have reported what they have done: nothing that they do is seen late.
    pub(crate) fn settle(&mut self) {
        for (watcher, _) in &mut self.watchers {
            watcher.accesses(&[]);
        }
    }

    pub(crate) fn step(&mut self, number: usize, (thread, step): (u32, Step)) {
        let pc = 0x1000 + number as u64;
        let event =
            |kind: EventKind, object| Event { code: kind as u8, object, pc, ..Event::default() };
        let access = |address, size, kind| Access { address, size, kind, pc: pc as u32 };
        let (watcher, _) = &mut self.watchers[thread as usize];
        match step {
            Step::Read(at, size) => watcher.accesses(&[access(at, size, Access::READ)]),
            Step::Write(at, size) => watcher.accesses(&[access(at, size, Access::WRITE)]),
            Step::Update(at, size) => {
                watcher.accesses(&[access(at, size, Access::READ | Access::WRITE)]);
            }
            Step::Writes(at) => {
                watcher.accesses(&at.map(|address| access(address, 4, Access::WRITE)));
            }
            Step::Sync(kind, object) => self.event(thread, event(kind, object), None),
            Step::Barrier(object, value) => {
                let begun = Event { value, ..event(EventKind::BarrierInit, object) };
                self.event(thread, begun, None);
            }
            Step::WaitEnd(mutex, condition) => {
                let end = Event { value: condition, ..event(EventKind::CondWaitEnd, mutex) };
                self.event(thread, end, None);
            }
            Step::Fails(kind, object) => {
                self.event(thread, Event { result: 16, ..event(kind, object) }, None);
            }
            Step::Rmw(at) => {
                self.event(thread, Event { nr: 4, ..event(EventKind::Atomic, at) }, None);
            }
            Step::Store(at) => {
                self.event(thread, Event { nr: 4, ..event(EventKind::SyncStore, at) }, None);
            }
            Step::Load(at) => {
                self.event(thread, Event { nr: 4, ..event(EventKind::SyncLoad, at) }, None);
            }
            Step::Create(child) => self.create(thread, (ThreadId(child), 0), pc),
            Step::CreateOn(child, pointer) => {
                self.create(thread, (ThreadId(child), pointer), pc);
            }
            Step::Map(at, len) | Step::MapAt(at, len) => {
                let args = match step {
                    Step::Map(..) => [0, len, 3, 0, 0, 0],
                    _ => [at, len, 3, 0x10, 0, 0],
                };
                let effect = Effect::Memory { content: None };
                let record = SyscallRecord { args, effect, ..SyscallRecord::default() };
                self.call(thread, (linux::MMAP, at), pc, record);
            }
            Step::Sleep(word) | Step::Wake(word) => {
                let args = [word, u64::from(matches!(step, Step::Wake(_))), 1, 0, 0, 0];
                let record = SyscallRecord { args, ..SyscallRecord::default() };
                self.call(thread, (linux::FUTEX, 0), pc, record);
            }
            Step::Kill => self.call(thread, (linux::KILL, 0), pc, SyscallRecord::default()),
            Step::Handle => {
                self.call(thread, (linux::RT_SIGACTION, 0), pc, SyscallRecord::default());
            }
            Step::Receive(address, len) => {
                let write = refrain_trace::payload::Write { address, bytes: vec![0; len] };
                let record = SyscallRecord { writes: vec![write], ..SyscallRecord::default() };
                self.call(thread, (0, 0), pc, record);
            }
            Step::Allocate(at, size) => self.allocator(thread, (MALLOC, pc), [size, 0], at),
            Step::Reallocate(at, size) => self.allocator(thread, (REALLOC, pc), [at, size], at),
            Step::Free(at) => self.allocator(thread, (FREE, pc), [at, 0], 0),
            Step::Within(word) => {
                let record = |kind| Access { address: 0, size: 0, kind, pc: MALLOC };
                watcher.accesses(&[record(Access::CALLED)]);
                self.step(number, (thread, Step::Rmw(word)));
                self.watchers[thread as usize].0.accesses(&[record(Access::ANSWERED)]);
            }
            Step::Close(descriptor, answer) => {
                let args = [descriptor.into(), 0, 0, 0, 0, 0];
                let record = SyscallRecord { args, ..SyscallRecord::default() };
                self.call(thread, (linux::CLOSE, answer as u64), pc, record);
            }
            Step::Copy(from, to) => {
                let args = [from.into(), to.into(), 0, 0, 0, 0];
                let record = SyscallRecord { args, ..SyscallRecord::default() };
                self.call(thread, (linux::DUP2, to.into()), pc, record);
            }
            Step::Use(descriptor, answer) => {
                let args = [descriptor.into(), 0, 0, 0, 0, 0];
                let record = SyscallRecord { args, ..SyscallRecord::default() };
                self.call(thread, (linux::READ, answer as u64), pc, record);
            }
            Step::Pipe(reader, writer) => {
                let bytes = [reader.to_le_bytes(), writer.to_le_bytes()].concat();
                let write = refrain_trace::payload::Write { address: 0x40_0000, bytes };
                let record = SyscallRecord { writes: vec![write], ..SyscallRecord::default() };
                self.call(thread, (linux::PIPE2, 0), pc, record);
            }
            Step::Bytes(descriptor) => {
                let args = [descriptor.into(), 0, 1, 0, 0, 0];
                let record = SyscallRecord { args, ..SyscallRecord::default() };
                self.call(thread, (linux::WRITE, 1), pc, record);
            }
            Step::Unmap(at, len) => {
                let args = [at, len, 0, 0, 0, 0];
                let effect = Effect::Memory { content: None };
                let record = SyscallRecord { args, effect, ..SyscallRecord::default() };
                self.call(thread, (linux::MUNMAP, 0), pc, record);
            }
            Step::Send(address, len) => {
                let effect = Effect::Output { fd: 1, len, crc: 0, raced: Vec::new() };
                let args = [1, address, len, 0, 0, 0];
                self.call(
                    thread,
                    (1, 0),
                    pc,
                    SyscallRecord { args, effect, ..SyscallRecord::default() },
                );
            }
        }
    }

    /// The records of a call of the allocator's, with what is done meanwhile.
    fn allocator(
        &mut self,
        thread: u32,
        (function, back): (u32, u64),
        given: [u64; 2],
        answer: u64,
    ) {
        let record = |address, kind| Access { address, size: 0, kind, pc: function };
        let [first, second] = given;
        let argument = |address| record(address, Access::ARGUMENT);
        let called = [record(first, Access::CALLED), argument(second), argument(0), argument(back)];
        let (watcher, _) = &mut self.watchers[thread as usize];
        watcher.accesses(&called);
        let inside = [Access { address: 0x40_0000, size: 8, kind: Access::WRITE, pc: function }];
        watcher.accesses(&inside);
        watcher.accesses(&[record(answer, Access::ANSWERED)]);
    }

    fn event(&mut self, thread: u32, event: Event, record: Option<&SyscallRecord>) {
        let (watcher, events) = &mut self.watchers[thread as usize];
        watcher.event(EventId(*events), &event, record);
        *events += 1;
    }

    fn create(&mut self, thread: u32, (child, pointer): (ThreadId, u64), pc: u64) {
        let effect = Effect::Clone { child };
        let args = [0, pointer, 0, 0, pointer, 0];
        let record = SyscallRecord { args, effect, ..SyscallRecord::default() };
        self.call(thread, (CLONE, 0), pc, record);
        let start = Event {
            code: EventKind::ThreadStart as u8,
            object: order::thread_object(child),
            ..Event::default()
        };
        self.event(child.0, start, None);
    }

    /// System calls of these programs return before the next is entered.
    fn call(&mut self, thread: u32, (nr, value): (u16, u64), pc: u64, record: SyscallRecord) {
        let local = if nr == CLONE { NO_TICKET } else { 0 };
        let (code, flags) = (EventKind::Syscall as u8, HAS_PAYLOAD | local);
        let event = Event { code, flags, nr, value, pc, ticket: self.calls, ..Event::default() };
        self.calls += 1;
        self.watchers[thread as usize].0.enter(&event, Some(&record));
        self.event(thread, event, Some(&record));
    }
}

/// Runs a whole program.
pub(crate) fn run(threads: u32, program: &Program) -> Vec<Race> {
    run_with(threads, program, Relation::Kept)
}

/// The same, with what is to count as ordered.
pub(crate) fn run_with(threads: u32, program: &Program, relation: Relation) -> Vec<Race> {
    let mut run = Run::with(threads, program, relation, false);
    for (number, &step) in program.iter().enumerate() {
        run.step(number, step);
    }
    run.races()
}
