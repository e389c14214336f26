//! The race detector's observer: it passes the accesses and events of every replayed thread on.

use super::RaceSearch;
use super::freed::Freed;
use refrain_analysis::{
    Code, Detector, Listener, OneStep, Race, Relation, SameEpoch, Tasking, Watcher,
};
use refrain_jit::Constant;
use refrain_trace::payload::SyscallRecord;
use refrain_trace::{
    Access, CodeBlock, Cursor, Event, EventId, EventKind, HAS_PAYLOAD, ThreadId, Trace,
};
use refrain_vm::{Answer, Interest, LeaveOut, List, Nested, Observer, ThreadObserver};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the threads that go on after the first one has stopped may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Gives each thread a watcher.
pub(super) struct Races {
    detector: Arc<Detector>,
    /// Those whose calls are one step.
    functions: Arc<BTreeMap<u64, Answer>>,
    /// Those that are about tasks.
    nested: Arc<BTreeMap<u64, Nested>>,
    /// Stores that are no writes where they change nothing.
    compared: Arc<BTreeSet<u64>>,
    trace: Trace,
    /// The words that the program synchronizes through, unless every access is wanted.
    words: Option<Vec<u64>>,
    /// Of a transformed trace.
    freed: Option<Arc<Freed>>,
    running: Arc<Running>,
}

impl Races {
    /// An observer of a replay of `trace`.
    pub(super) fn new(trace: &Trace, search: RaceSearch) -> crate::Result<Races> {
        Races::with(trace, search, None)
    }

    /// One that tells what it takes.
    pub(super) fn tapped(trace: &Trace, code: Code, listener: Listener) -> crate::Result<Races> {
        Races::with(trace, RaceSearch::Program(code), Some(listener))
    }

    fn with(trace: &Trace, search: RaceSearch, tap: Option<Listener>) -> crate::Result<Races> {
        let freed = match search {
            RaceSearch::Transformed => trace.transformed()?.map(|it| Arc::new(Freed::of(&it))),
            _ => None,
        };
        let mut nested = BTreeMap::new();
        let mut compared = BTreeSet::new();
        let (relation, words, functions) = match search {
            RaceSearch::Divergence(..) | RaceSearch::Transformed => {
                let Words { all, .. } = words(trace, &Code::default())?;
                (Relation::Kept, all, BTreeMap::new())
            }
            RaceSearch::Program(mut code) => {
                let blocks = trace.blocks()?;
                // Other detectors know threads alone.
                nested = tasks(&mut code, if tap.is_some() { &[] } else { &blocks });
                let is_table = |constant: &Constant| match constant {
                    Constant::Address(at) => code.is_table(*at),
                    Constant::Word(at) => code.table_words.contains(at),
                };
                let stores = refrain_jit::constant_stores(&blocks);
                let of_tables = stores.iter().filter(|(_, stored)| is_table(stored));
                compared = of_tables.map(|(&pc, _)| pc).collect();
                let unused = refrain_jit::unused_results(&blocks);
                let updates = refrain_jit::plain_updates(&blocks);
                let code = Code { unused, updates, ..code };
                let Words { all, polled } = words(trace, &code)?;
                let answers = code.one_step.iter().map(|(&pc, &it)| (pc, answer(it)));
                let functions = answers.collect();
                (Relation::Program(Code { polled, ..code }), all, functions)
            }
        };
        let is_program = relation != Relation::Kept;
        let is_tapped = tap.is_some();
        let detector = match tap {
            Some(listener) => Detector::tapped(words.clone(), relation, listener),
            None => Detector::new(words.clone(), relation),
        };
        // What races with nobody may use what was freed. (The other detectors know races alone.)
        if is_program && !is_tapped && trace.threads() == 1 {
            detector.look_at_the_first_thread();
        }
        Ok(Races {
            words: (!is_tapped).then_some(words),
            detector,
            functions: Arc::new(functions),
            nested: Arc::new(nested),
            compared: Arc::new(compared),
            trace: trace.clone(),
            freed,
            running: Arc::default(),
        })
    }

    /// What was found once the threads have stopped. A replay ends with the first thread that
    /// leaves the recording; the others go on until they need that one, or for so long.
    pub(super) fn wait(&self) -> Vec<Race> {
        self.running.wait();
        self.detector.races()
    }
}

/// The calls that are about tasks, if these blocks create tasks. If not, the code tells of none.
fn tasks(code: &mut Code, blocks: &[CodeBlock]) -> BTreeMap<u64, Nested> {
    let creates = |block: &CodeBlock| {
        let functions = code.tasking.range(block.pc..block.pc + block.code.len() as u64);
        functions.into_iter().any(|(_, what)| what.creates())
    };
    if !blocks.iter().any(creates) {
        code.tasking.clear();
        return BTreeMap::new();
    }
    let mut nested = BTreeMap::new();
    for site in refrain_jit::indirect_calls(blocks) {
        if let Some((range, calls)) = code.runtimes.iter().find(|it| it.0.contains(&site)) {
            code.bodies.insert(site, *calls);
            nested.insert(site, Nested::Site(range.clone()));
        }
    }
    let list = |what: Tasking| match what {
        Tasking::Creates => Some(List::Counted(7)),
        Tasking::WaitsFor => Some(List::Counted(0)),
        Tasking::StartsBehind => Some(List::Records(4, 3)),
        Tasking::WaitsForRecords => Some(List::Records(3, 2)),
        _ => None,
    };
    nested.extend(code.tasking.iter().map(|(&pc, &what)| (pc, Nested::Function(list(what)))));
    nested
}

/// Where a function of an allocator says what it has allocated.
pub(super) fn answer(function: OneStep) -> Answer {
    match function {
        OneStep::ThirdSize => Answer::Memory,
        _ => Answer::Register,
    }
}

/// The words that the program synchronizes through, and those of them that it polls.
struct Words {
    all: Vec<u64>,
    polled: BTreeSet<u64>,
}

/// The words that the program synchronizes through: those of locked instructions and watched
/// stores, and those that it polls. That a load is watched does not say that its word is one, but in
/// `trusted` code; nor that it is polled while the thread has a mutex, which others need to change
/// what is waited for (`while (!ready) pthread_cond_wait(...)`).
///
/// A watched store that is an update without a lock prefix says nothing of its word, but in `trusted`
/// code. What `silent` code looks at is its own business, and so is what other code looks at once on its
/// own stack: there, other functions have had variables, or will have.
fn words(trace: &Trace, code: &Code) -> crate::Result<Words> {
    use EventKind::{Atomic, OnceDone, OnceRun, SyncLoad, SyncStore};
    let mut words = Vec::new();
    let mut polled = BTreeSet::new();
    for thread in (0..trace.threads()).map(ThreadId) {
        let mut cursor = trace.cursor(thread);
        let mut mutexes: u32 = 0;
        while let Some(event) = cursor.next()? {
            let synchronizes = match event.kind() {
                Atomic | OnceRun | OnceDone => true,
                SyncStore => {
                    let is_trusted = || is_in(&code.trusted, event.pc);
                    !code.updates.contains(&event.pc) || is_trusted()
                }
                SyncLoad if is_in(&code.silent, event.pc) => false,
                SyncLoad => {
                    let is_trusted = || is_in(&code.trusted, event.pc) && !is_on_own_stack(&event);
                    let is_polled = (event.aux > 0 || event.result > 0) && mutexes == 0;
                    if is_polled {
                        polled.insert(event.object & !3);
                    }
                    is_polled || is_trusted()
                }
                _ => false,
            };
            mutexes = mutexes.saturating_add_signed(mutexes_taken(&event));
            if synchronizes && words.last() != Some(&event.object) {
                words.push(event.object);
            }
        }
        words.sort_unstable();
        words.dedup();
    }
    Ok(Words { all: words, polled })
}

fn is_in(code: &[Range<u64>], pc: u64) -> bool {
    code.iter().any(|code| code.contains(&pc))
}

/// Whether an event is about a word of a function that the thread is in, most likely.
fn is_on_own_stack(event: &Event) -> bool {
    const NEAR: u64 = 4096;
    event.object.checked_sub(event.sp).is_some_and(|above| above < NEAR)
}

/// How many mutexes more the thread has after an event.
fn mutexes_taken(event: &Event) -> i32 {
    use EventKind::{
        CondWaitBegin, CondWaitEnd, MutexLock, MutexTimedLock, MutexTryLock, MutexUnlock,
    };
    match event.kind() {
        MutexLock | MutexTryLock | MutexTimedLock if event.result == 0 => 1,
        MutexUnlock if event.result == 0 => -1,
        CondWaitBegin => -1,
        CondWaitEnd => 1,
        _ => 0,
    }
}

impl Observer for Races {
    fn interest(&self) -> Interest {
        Interest { accesses: true, calls: false }
    }

    fn functions(&self) -> Arc<BTreeMap<u64, Answer>> {
        self.functions.clone()
    }

    fn nested(&self) -> Arc<BTreeMap<u64, Nested>> {
        self.nested.clone()
    }

    fn compared(&self) -> Arc<BTreeSet<u64>> {
        self.compared.clone()
    }

    fn leaves_out(&self) -> LeaveOut {
        match self.words {
            Some(_) => LeaveOut::SameEpoch,
            None => LeaveOut::Nothing,
        }
    }

    fn thread(&self, thread: ThreadId) -> Box<dyn ThreadObserver> {
        self.running.begin();
        let words = |words: &Vec<u64>| refrain_vm::SameEpoch::new(words.iter().copied());
        let notes = self.words.as_ref().map(words);
        let watcher = match notes.clone() {
            Some(notes) => self.detector.thread_noting(thread, Box::new(Notes(notes))),
            None => self.detector.thread(thread),
        };
        let cursor = self.trace.cursor(thread);
        let freed = self.freed.clone();
        let running = self.running.clone();
        Box::new(OnThread { thread, watcher, notes, cursor, freed, running })
    }
}

/// Notes that translated code reads.
struct Notes(Arc<refrain_vm::SameEpoch>);

impl SameEpoch for Notes {
    fn knows(&self, cell: u64, bytes: u8, writes: bool) -> bool {
        self.0.knows(cell, bytes, writes)
    }

    fn note(&mut self, cell: u64, bytes: u8, writes: bool) {
        self.0.note(cell, bytes, writes);
    }

    fn next_epoch(&mut self) {
        self.0.next_epoch();
    }
}

struct OnThread {
    thread: ThreadId,
    watcher: Option<Watcher>,
    /// Those of the watcher, unless every access is wanted.
    notes: Option<Arc<refrain_vm::SameEpoch>>,
    /// Follows the thread, for the payloads of its events.
    cursor: Cursor,
    freed: Option<Arc<Freed>>,
    running: Arc<Running>,
}

impl OnThread {
    /// The payload of an event. One that cannot be read stops the replay, which says so.
    fn record(&mut self, id: EventId, event: &Event) -> Option<SyscallRecord> {
        if event.flags & HAS_PAYLOAD == 0 {
            return None;
        }
        while self.cursor.position() <= id {
            self.cursor.next().ok()??;
        }
        self.cursor.payload().ok()?
    }
}

impl ThreadObserver for OnThread {
    fn accesses(&mut self, batch: &[Access]) {
        if let Some(watcher) = &mut self.watcher {
            watcher.accesses(batch);
        }
    }

    fn enter(&mut self, id: EventId, call: &Event) {
        let record = self.record(id, call);
        if let Some(watcher) = &mut self.watcher {
            watcher.enter(call, record.as_ref());
        }
    }

    fn event(&mut self, id: EventId, event: &Event, _: u64) {
        let record = self.record(id, event);
        let Some(watcher) = &mut self.watcher else { return };
        let Some(freed) = &self.freed else { return watcher.event(id, event, record.as_ref()) };
        for seen in freed.view(self.thread, id, event) {
            let record = record.as_ref().filter(|_| seen.kind() == event.kind());
            watcher.event(id, &seen, record);
        }
    }

    fn same_epoch(&self) -> Option<&refrain_vm::SameEpoch> {
        self.notes.as_deref()
    }

    fn finish(&mut self) {
        self.running.end();
    }
}

/// Counts the threads that have not stopped.
#[derive(Default)]
pub(super) struct Running {
    threads: Mutex<usize>,
    ended: Condvar,
}

impl Running {
    pub(super) fn begin(&self) {
        *self.lock() += 1;
    }

    pub(super) fn end(&self) {
        *self.lock() -= 1;
        self.ended.notify_all();
    }

    pub(super) fn wait(&self) {
        let running = self.lock();
        // The result says the same whether they have stopped or not.
        drop(self.ended.wait_timeout_while(running, PATIENCE, |running| *running > 0));
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_trace::{OwnedEvent, OwnedTrace};

    /// Each event is at its own instruction, on a stack that is used down to 0x9000.
    fn words_of(events: &[(EventKind, u64, u64, u64)]) -> Vec<u64> {
        let event = |&(kind, object, pc, aux): &(EventKind, u64, u64, u64)| {
            let event = Event { code: kind as u8, object, pc, aux, sp: 0x9000, ..Event::default() };
            OwnedEvent::new(event, None)
        };
        let threads = vec![events.iter().map(event).collect()];
        let trace = OwnedTrace { threads, ..OwnedTrace::default() };
        let one = |range: Range<u64>| std::iter::once(range).collect();
        let (silent, trusted) = (one(0x100..0x200), one(0x100..0x300));
        let code = Code { silent, trusted, ..Code::default() };
        words(&trace.to_trace().expect("can be written"), &code).expect("can be read").all
    }

    #[test]
    fn a_library_that_looks_at_its_own_stack_makes_no_word() {
        use EventKind::{Atomic, SyncLoad, SyncStore};
        const NONE: [u64; 0] = [];
        let own = 0x9010;
        assert_eq!(words_of(&[(SyncLoad, own, 0x110, 0), (SyncLoad, own, 0x120, 1)]), NONE);
        assert_eq!(words_of(&[(SyncLoad, 0x5000, 0x110, 1)]), NONE, "the C library's business");
        assert_eq!(words_of(&[(SyncLoad, own, 0x210, 0)]), NONE);
        assert_eq!(words_of(&[(SyncLoad, own, 0x210, 1)]), [own], "another thread has its address");
        assert_eq!(words_of(&[(SyncLoad, 0x5000, 0x210, 0)]), [0x5000]);
        assert_eq!(words_of(&[(SyncLoad, 0x5000, 0x310, 0)]), NONE, "the program's");
        assert_eq!(
            words_of(&[(Atomic, own, 0x310, 0), (SyncStore, own + 8, 0x310, 0)]),
            [own, own + 8]
        );
    }
}
