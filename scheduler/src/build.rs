//! From events to a skeleton: one pass over the events, then one over the tickets ([`rank`]),
//! which also tells what waits under locks need ([`Precedences`]).

use crate::Error;
use crate::guarded;
use crate::latencies::{Patience, Samples, Waking};
use crate::places::Places;
use crate::precedence::Precedences;
use crate::rank::{self, Query};
use crate::recorded::{self, Recorded};
use crate::recording::Recorder;
use crate::sharing::Sharing;
use crate::skeleton::{Code, Object, Operation, Skeleton, Strand, set};
use crate::skeleton::{LOWERS, READS, RESET, TICKETED, TRY, UNKNOWN, WIDE_TIME, WIDE_WORK};
use crate::took::Took;
use crate::wakes::Wakes;
use refrain_trace::fixed::{FixedMap, FixedSet};
use refrain_trace::{Event, EventKind, Locking, OWN_ORDER, ThreadId, accessed, linux, order};

/// `EOWNERDEAD`: a robust mutex was granted, its last owner having died.
const OWNER_DEAD: i32 = 130;
/// `ETIMEDOUT`.
const TIMED_OUT: i32 = 110;

/// Builds a skeleton from the streams of a trace.
///
/// Events of one thread are pushed in their order; threads may come in any order or interleaved.
/// A trace that was cut off makes a skeleton too: what a missing event would have ordered is
/// then unordered.
#[derive(Debug)]
pub struct Builder {
    strands: Vec<Strand>,
    /// When the guest's first instruction ran.
    pub(crate) start: u64,
    /// Where each thread left its last event.
    previous: Vec<u64>,
    objects: Vec<Object>,
    /// Numbers of objects, by address and whether they have an order of their own.
    index: FixedMap<(u64, bool), u32>,
    queries: Vec<Query>,
    /// Events that may have created a thread: (ticket, thread, event).
    clones: Vec<(u64, ThreadId, u32)>,
    creates: FixedMap<u64, (ThreadId, u32)>,
    wakes: Wakes,
    ticks_per_second: u64,
    /// When events happened, if that is what the skeleton is to repeat.
    recorded: Option<Recorded>,
    /// When threads were under way, if they may have had to share cores.
    sharing: Option<Sharing>,
    /// What the recorder added to the work after each thread's last event.
    tails: Vec<u64>,
    /// What the recorder adds to the work, if that is to be taken out.
    recorder: Option<Recorder>,
    /// Work by the code that it is in, if the recorder's part of it is to be dropped.
    places: Places,
    keeps_overhead: bool,
    samples: Samples,
    /// Whether threads may take another path than the recorded one.
    predicts: bool,
    /// By thread: the lock that it tries and does not get, the first try and when that was.
    tries: Vec<Option<(u32, u32, u64)>>,
    /// Locks that threads tried until they had them.
    polled: FixedSet<u32>,
    /// How long operations took, if that is to be the thread's work.
    took: Took,
}

impl Builder {
    /// A builder for `threads` threads. `start` is the time of the guest's first instruction.
    pub fn new(threads: usize, ticks_per_second: u64, start: u64) -> Builder {
        Builder {
            strands: vec![Strand::default(); threads],
            start,
            previous: vec![start; threads],
            objects: Vec::new(),
            index: FixedMap::default(),
            queries: Vec::new(),
            clones: Vec::new(),
            creates: FixedMap::default(),
            wakes: Wakes::default(),
            ticks_per_second,
            recorded: None,
            sharing: None,
            tails: vec![0; threads],
            recorder: None,
            places: Places::default(),
            keeps_overhead: false,
            samples: Samples::default(),
            predicts: false,
            tries: vec![None; threads],
            polled: FixedSet::default(),
            took: Took::default(),
        }
    }

    /// Makes a skeleton of the recording as it was: the recorder's own work counts as the
    /// thread's, and operations take as long as they took, but for the waiting in them. Its ELSC
    /// replay with a core for each thread should end when the recorded run did; how far it is
    /// off says how far the virtual clock can be trusted. (A skeleton of the program's own time,
    /// which a builder makes otherwise, has no recorded duration to be held against.)
    ///
    /// The costs and latencies of a [`crate::Config`] then mean nothing: they are in what was
    /// recorded, and so is the time in which a thread had no core.
    pub fn as_recorded(self) -> Builder {
        Builder { recorded: Some(Recorded::new(self.strands.len())), ..self }
    }

    /// Says how many cores the recorded machine had. Where more threads than that were under way
    /// at once, each did less work than time passed; without this, all of it counts as work.
    /// Means nothing to a skeleton that is made [`Builder::as_recorded`].
    pub fn recorded_on(self, cores: u32) -> Builder {
        Builder { sharing: Some(Sharing::new(self.strands.len(), cores)), ..self }
    }

    /// Takes what the recorder added to the program's work out of it, where it is not noted in the
    /// trace, and time in which the thread had no core, as far as other times at the same code show it.
    /// `locking` says how long the recorder took for a lock on the recorded machine. Means nothing to a skeleton that is made
    /// [`Builder::as_recorded`].
    pub fn without_recording(self, locking: Option<Locking>) -> Builder {
        let recorder = Recorder::new(locking, self.ticks_per_second);
        Builder { recorder: Some(recorder), ..self }
    }

    /// Says that locks are to be had in another order than the recorded one: a load under the lock
    /// that protects its word waits for no store, and whoever tries a lock until it is free waits
    /// for it. Without this, all of that is kept as it was recorded.
    pub fn predicting(self) -> Builder {
        Builder { predicts: true, ..self }
    }

    /// Leaves the recorder's work in, as the thread's: an arrival model's time of such a skeleton
    /// can be held against the recorded duration.
    pub fn with_recording(self) -> Builder {
        Builder { keeps_overhead: true, ..self }
    }

    /// What the recorder adds, where its work is taken out that the trace does not note.
    fn takes_out(&self) -> Option<Recorder> {
        self.recorder.filter(|_| self.recorded.is_none())
    }

    /// Appends the next event of a thread.
    pub fn push(&mut self, thread: ThreadId, event: &Event) -> Result<(), Error> {
        let Some(strand) = self.strands.get(thread.index()) else {
            return Err(Error::UnknownThread(thread));
        };
        let position = u32::try_from(strand.operations.len())
            .map_err(|_| Error::TooMany("events of one thread"))?;
        let gone = event.begin.saturating_sub(self.previous[thread.index()]);
        let keeps_overhead = self.keeps_overhead || self.recorded.is_some();
        let overhead = if keeps_overhead { 0 } else { event.overhead };
        let recorder = self.takes_out();
        let tail = match event.is_from_another_thread() {
            true => self.tails[thread.index()],
            false => recorder.map_or(0, |recorder| recorder.tail(event)),
        };
        let tail = std::mem::replace(&mut self.tails[thread.index()], tail);
        let added = recorder.map_or(0, |recorder| tail + recorder.head(event));
        let work = gone.saturating_sub(overhead).saturating_sub(added);
        if recorder.is_some() {
            self.places.push(thread, event);
        }
        if let Some(recorded) = &mut self.recorded {
            recorded.push(thread, event);
        }
        let from = self.previous[thread.index()];
        self.previous[thread.index()] = event.end.max(event.begin);
        let mut operation = self.reduce(thread, position, event)?;
        if self.keeps_overhead {
            self.took.push(thread, event, operation.code.lasts());
        }
        self.samples.push(thread, event);
        self.wakes.push(thread, position, event);
        if let Some(sharing) = &mut self.sharing {
            let to = if operation.is_kernel() { event.end } else { event.begin };
            sharing.push(thread, from, to);
        }
        let took = match recorder {
            Some(recorder) => recorder.took(event),
            None => event.end.saturating_sub(event.begin),
        };
        let cond = match operation.code {
            Code::CondRelock => self.object(event.value, false)?,
            _ => 0,
        };
        let strand = &mut self.strands[thread.index()];
        let Operation { code, object, .. } = operation;
        let Operation { work: narrow, rank, flags, .. } = &mut operation;
        set(narrow, flags, &mut strand.side, work, WIDE_WORK);
        match code {
            code if code.lasts() => {
                set(rank, flags, &mut strand.side, took, WIDE_TIME);
            }
            Code::CondTimeout => strand.side.push(took),
            Code::CondRelock => {
                let side = strand.side.len() as u32;
                self.queries.push(Query { object: cond, bound: event.aux, thread, position, side });
                strand.side.push(0);
            }
            Code::AwaitLoad => {
                let (bound, side) = (event.ticket, u32::MAX);
                self.queries.push(Query { object, bound, thread, position, side });
            }
            _ => {}
        }
        strand.exits = event.kind() == EventKind::ThreadExit;
        strand.operations.push(operation);
        if self.predicts {
            self.tried(thread, position, event);
        }
        Ok(())
    }

    /// Whoever tries a lock again and again until it is free waits for it awake: what is done
    /// between the tries is part of the wait, and would not be done without it.
    fn tried(&mut self, thread: ThreadId, position: u32, event: &Event) {
        let operations = &mut self.strands[thread.index()].operations;
        let last = operations[position as usize];
        let since = self.tries[thread.index()].take();
        let same = since.filter(|(object, ..)| *object == last.object);
        if last.code == Code::Tried {
            let first = (last.object, position, event.begin);
            self.tries[thread.index()] = Some(same.unwrap_or(first));
        } else if event.kind() == EventKind::Syscall && linux::yields(event.nr) {
            self.tries[thread.index()] = since;
        } else if let Some((_, first, begin)) = same
            && last.code == Code::Lock
            && last.flags & TRY != 0
        {
            let wait = &mut operations[first as usize..];
            if wait[1..].iter().any(|it| it.flags & (WIDE_WORK | WIDE_TIME) != 0) {
                return;
            }
            wait[1..].iter_mut().for_each(|it| it.work = 0);
            for it in &mut wait[..(position - first) as usize] {
                (it.code, it.rank) = (Code::Plain, 0);
            }
            operations[position as usize].code = Code::Spin;
            self.polled.insert(last.object);
            self.samples.awake(thread, event.object, begin, event.end);
        }
    }

    /// Says that the last event pushed for `parent` created `child`. Without it, children are
    /// matched to the successful clones in the order of their tickets.
    pub fn created(&mut self, parent: ThreadId, child: ThreadId) {
        let events = self.strands.get(parent.index()).map_or(0, |strand| strand.operations.len());
        let (Some(last), Some(strand)) =
            (events.checked_sub(1), self.strands.get_mut(child.index()))
        else {
            return;
        };
        strand.creator = Some((parent, last as u32));
    }

    /// How long threads that found a mutex taken were awake before they slept, in ticks, as far as the
    /// events pushed so far tell.
    pub fn patience(&self) -> Option<Patience> {
        self.samples.patience(self.ticks_per_second)
    }

    /// How many waits for locks were so long that the thread slept, and how long they were together.
    pub fn slept(&self) -> (u64, u64) {
        self.samples.slept(self.ticks_per_second)
    }

    /// What it took to release a lock and wake nobody, though somebody might have slept, as far as
    /// the events pushed so far tell.
    pub fn vain(&self) -> Option<u64> {
        self.samples.vain(self.ticks_per_second)
    }

    /// What it took until threads that waited awake went on, one sample for each time that the events
    /// pushed so far tell of.
    pub fn handoffs(&self) -> Vec<u64> {
        self.samples.handoffs(self.ticks_per_second)
    }

    /// Whether threads slept for locks that the program makes itself, as far as the events pushed so
    /// far tell.
    pub fn sleeps_for_made(&self) -> bool {
        self.samples.sleeps_for_made()
    }

    /// What waking took, one sample for each time that the events pushed so far tell of.
    pub fn waking(&mut self) -> Vec<Waking> {
        std::mem::take(&mut self.samples).finish(self.ticks_per_second)
    }

    /// Puts the events in the order of their objects.
    pub fn finish(mut self) -> Result<Skeleton, Error> {
        let places = std::mem::take(&mut self.places);
        if self.keeps_overhead {
            std::mem::take(&mut self.took).add_to(&mut self.strands, self.ticks_per_second);
        }
        if self.takes_out().is_some() {
            quicken_creation(&mut self.strands);
        }
        self.match_children();
        let Builder {
            mut strands, mut objects, mut queries, ticks_per_second, wakes, polled, ..
        } = self;
        if self.predicts {
            // Who had such a lock at the first try would have tried again, too.
            let operations = strands.iter_mut().flat_map(|strand| &mut strand.operations);
            for operation in operations.filter(|it| it.code == Code::Lock && it.flags & TRY != 0) {
                if polled.contains(&operation.object) {
                    operation.code = Code::Spin;
                }
            }
            guarded::relieve(&mut strands, &mut queries);
        }
        wakes.finish(|thread, woken| {
            let strand = &mut strands[thread.index()];
            strand.operations[woken.event as usize].code = Code::Woken;
            strand.woken.push(woken);
        });
        let counts = queries.iter().map(|query| (query.thread.0, query.position, query.object));
        let mut precedences = Precedences::new(&strands, counts);
        rank::rank(&mut strands, &mut objects, queries, self.recorded.as_mut(), &mut precedences)?;
        precedences.finish(&mut strands);
        places.drop_from(&mut strands, ticks_per_second);
        if let Some(recorded) = self.recorded {
            recorded.finish(&mut strands);
            return Ok(Skeleton { strands, objects, ticks_per_second });
        }
        let skeleton = Skeleton { strands, objects, ticks_per_second };
        Ok(match self.sharing {
            Some(sharing) => sharing.apply(skeleton),
            None => skeleton,
        })
    }

    fn object(&mut self, address: u64, own_order: bool) -> Result<u32, Error> {
        if let Some(&index) = self.index.get(&(address, own_order)) {
            return Ok(index);
        }
        let index = u32::try_from(self.objects.len()).map_err(|_| Error::TooMany("objects"))?;
        self.objects.push(Object {
            address,
            tokens: 0,
            semaphore: false,
            first: UNKNOWN,
            own_order,
        });
        self.index.insert((address, own_order), index);
        Ok(index)
    }

    /// What an event is to time and order. Until [`rank`] has run, the rank of an operation with
    /// a place in an order is its ticket.
    fn reduce(
        &mut self,
        thread: ThreadId,
        position: u32,
        event: &Event,
    ) -> Result<Operation, Error> {
        let kind = event.kind();
        let (mut code, mut flags, mut rank) = (code(event), 0, 0);
        let mut object = self.object(event.object, event.flags & OWN_ORDER != 0)?;
        if code == Code::Join {
            match event.object.checked_sub(1).map(u32::try_from) {
                Some(Ok(joined)) if (joined as usize) < self.strands.len() => object = joined,
                _ => code = Code::Plain,
            }
        }
        flags |= try_flags(kind);
        if flags & TRY != 0 && code == Code::Plain {
            code = Code::Tried;
        }
        if kind == EventKind::BarrierDestroy {
            flags |= RESET;
        }
        if kind == EventKind::Syscall && creates(event) {
            self.clones.push((event.ticket, thread, position));
        }
        if kind == EventKind::ThreadCreate {
            self.creates.entry(event.object).or_insert((thread, position));
        }
        if rank::applies(code) || (self.recorded.is_some() && recorded::releases(code)) {
            rank = rank::NONE;
            if event.has_ticket() {
                flags |= TICKETED;
                rank = u32::try_from(event.ticket)
                    .map_err(|_| Error::TooMany("tickets of one object"))?;
            }
        }
        Ok(Operation { work: 0, object, rank, code, flags, next: UNKNOWN })
    }

    fn match_children(&mut self) {
        self.clones.sort_unstable();
        let mut clones = self.clones.iter().map(|&(_, thread, event)| (thread, event));
        for (id, strand) in self.strands.iter_mut().enumerate().skip(1) {
            let next = clones.next();
            let child = ThreadId(id as u32);
            let named = self.creates.get(&order::thread_object(child)).copied();
            strand.creator = strand.creator.or(named).or(next).filter(|by| by.0 != child);
            // A created thread starts when it is created, not so long after the run's start.
            if let (Some(_), Some(first)) = (strand.creator, strand.operations.first_mut()) {
                if first.flags & WIDE_WORK != 0 {
                    strand.side[0] = 0;
                }
                first.work = 0;
            }
        }
    }
}

/// Lets the creation of each thread take as long as the quickest one: what a first thread takes longer
/// is the recorder's, which prepares for several.
fn quicken_creation(strands: &mut [Strand]) {
    let created = |it: &&mut Operation| it.code == Code::Create && it.flags & WIDE_TIME == 0;
    let all = strands.iter_mut().flat_map(|strand| &mut strand.operations);
    let all: Vec<&mut Operation> = all.filter(created).collect();
    if let Some(quickest) = all.iter().map(|it| it.rank).min() {
        all.into_iter().for_each(|it| it.rank = quickest);
    }
}

/// Whether a system call has created a thread.
fn creates(event: &Event) -> bool {
    linux::creates_threads(event.nr) && (event.value as i64) > 0
}

fn try_flags(kind: EventKind) -> u8 {
    match kind {
        EventKind::MutexTryLock | EventKind::WriteTryLock | EventKind::SpinTryLock => TRY,
        EventKind::ReadTryLock => TRY | READS,
        EventKind::SemTryWait => TRY | LOWERS,
        _ => 0,
    }
}

fn code(event: &Event) -> Code {
    use EventKind::*;
    let granted = event.result == 0 || event.result == OWNER_DEAD;
    let acquired = |code| if granted { code } else { Code::Plain };
    let timed = |code| if granted { code } else { Code::TimedOut };
    match event.kind() {
        ThreadExit => Code::Exit,
        ThreadStart | ThreadCreate | ThreadDetach | ThreadCancel | BarrierInit => Code::Plain,
        MutexDestroy | MutexConsistent | RwDestroy | Rdtsc | Rdrand | Common | Killed | Signal
        | SemGetValue => Code::Plain,
        ThreadJoin => timed(Code::Join),
        MutexLock | MutexTryLock | WriteLock | WriteTryLock => acquired(Code::Lock),
        MutexTimedLock | WriteTimedLock => timed(Code::Lock),
        ReadLock | ReadTryLock => acquired(Code::Read),
        ReadTimedLock => timed(Code::Read),
        SpinLock | SpinTryLock => acquired(Code::Spin),
        MutexUnlock | RwUnlock | SpinUnlock => acquired(Code::Unlock),
        CondWaitBegin => Code::CondRelease,
        CondWaitEnd if event.result == TIMED_OUT => Code::CondTimeout,
        CondWaitEnd => Code::CondRelock,
        CondSignal | CondBroadcast | CondDestroy | BarrierArrive | OnceRun => Code::Count,
        BarrierDestroy => Code::Count,
        BarrierLeave | OnceDone => Code::Await,
        SemWait | SemTryWait => acquired(Code::SemWait),
        SemTimedWait => timed(Code::SemWait),
        SemPost => acquired(Code::SemPost),
        // Before a second thread came to it, a word was no matter of order; nor is who was alone.
        Handover | Takeover if accessed::OF_WORDS.contains(&event.nr) => Code::Plain,
        Atomic | SyncStore | Handover | Contended => Code::Ordered,
        SyncLoad | Takeover => Code::AwaitLoad,
        // Whoever wakes others does not wait, and wakes them when it comes, not when it is done.
        Syscall if linux::wakes(event).is_some() => Code::Kernel,
        Syscall if creates(event) => Code::Create,
        Syscall if linux::waits_off_core(event.nr) => Code::Sleep,
        Syscall => Code::Kernel,
    }
}
