//! The race detector's observer: it passes the accesses and events of every replayed thread on.

use super::RaceSearch;
use super::freed::Freed;
use super::text::Text;
use super::words::{Words, words};
use refrain_analysis::{
    Code, Detector, EpochNotes, Listener, OneStep, Race, Relation, Tasking, Watcher,
};
use refrain_jit::Constant;
use refrain_trace::fixed::FixedMap;
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
    /// The words that the program synchronizes through, in ascending order.
    words: Arc<[u64]>,
    /// Those of which one thread alone has events.
    of_one: FixedMap<u64, ThreadId>,
    /// Every access is wanted.
    is_tapped: bool,
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
        let mut of_one = FixedMap::default();
        let (relation, words, functions) = match search {
            RaceSearch::Divergence(..) | RaceSearch::Transformed => {
                let Words { all, .. } = words(trace, None)?;
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
                let loads = refrain_jit::watched_loads(&blocks);
                let text = Text::of(trace)?;
                let retried = refrain_jit::retried_loads(&blocks, |pc| text.at(pc));
                let code = Code { unused, updates, loads, retried, ..code };
                let Words { all, polled, plain, of_one: alone } = words(trace, Some(&code))?;
                // What a thread leaves to itself, one of its tasks may leave to another one.
                if code.tasking.is_empty() && tap.is_none() {
                    of_one = alone;
                }
                let answers = code.one_step.iter().map(|(&pc, &it)| (pc, answer(it)));
                let functions = answers.collect();
                (Relation::Program(Code { polled, plain, ..code }), all, functions)
            }
        };
        let is_program = relation != Relation::Kept;
        let is_tapped = tap.is_some();
        let detector = match tap {
            Some(listener) => Detector::tapped(words.clone(), relation, listener),
            None => Detector::with_words_of_one(words.clone(), of_one.clone(), relation),
        };
        // What races with nobody may use what was freed. (The other detectors know races alone.)
        if is_program && !is_tapped && trace.threads() == 1 {
            detector.look_at_the_first_thread();
        }
        Ok(Races {
            words: words.into(),
            of_one,
            is_tapped,
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
    code.one_step.retain(|pc, _| !code.tasking.contains_key(pc));
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
        match self.is_tapped {
            false => LeaveOut::SameEpoch,
            true => LeaveOut::Nothing,
        }
    }

    fn thread(&self, thread: ThreadId) -> Box<dyn ThreadObserver> {
        self.running.begin();
        let words = self.words.clone();
        // By a store that releases nothing no epoch begins.
        let releases = |word: &&u64| self.of_one.get(&(*word & !3)) != Some(&thread);
        let noted = || refrain_vm::SameEpoch::new(words.iter().filter(releases).copied());
        let notes = (!self.is_tapped).then(noted);
        let watcher = match notes.clone() {
            Some(notes) => self.detector.thread_in_epochs(thread, Box::new(Notes(notes))),
            None => self.detector.thread(thread),
        };
        let cursor = self.trace.cursor(thread);
        let freed = self.freed.clone();
        let running = self.running.clone();
        Box::new(OnThread { thread, watcher, words, notes, cursor, freed, running })
    }
}

/// What translated code notes of a thread's accesses.
struct Notes(Arc<refrain_vm::SameEpoch>);

impl EpochNotes for Notes {
    fn next_epoch(&mut self) {
        self.0.next_epoch();
    }

    fn forget(&mut self, range: Range<u64>) {
        self.0.forget(range);
    }
}

struct OnThread {
    thread: ThreadId,
    watcher: Option<Watcher>,
    words: Arc<[u64]>,
    /// What translated code notes, unless every access is wanted.
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

    fn own(&mut self, id: EventId, event: &Event) {
        let Some(watcher) = &mut self.watcher else { return };
        let (address, size) = (event.object, event.nr);
        let next = self.words.partition_point(|&word| word < address);
        if self.words.get(next).is_some_and(|word| word - address < size.into()) {
            return watcher.event(id, event, None);
        }
        // No other thread has come to the word in time for it to order anything.
        let kind = match event.kind() {
            EventKind::Atomic => Access::ATOMIC,
            _ => Access::WRITE,
        };
        watcher.accesses(&[Access { address, pc: event.pc as u32, size, kind }]);
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
