//! The detector and its watchers, one per thread.

mod ahead;
mod lives;
mod plain;
mod sections;
mod tasking;

use crate::barriers::Barriers;
use crate::block::CELLS;
use crate::cell::{ATOMIC, CALL, FREE, Fault, KERNEL, READ, STORE, Stamp, WRITE};
use crate::channels::Channels;
use crate::clock::{FIRST_TASK, VectorClock};
use crate::descriptors::Descriptors;
use crate::edges::{self, Code, Edges, Relation};
use crate::findings::{Findings, Local, Race, Whole};
use crate::heap::Heap;
use crate::objects::{Object, Objects};
use crate::paper::Op;
use crate::same_epoch::Filter;
use crate::shadow::{Blocks, CELL, Shadow, word_of};
use crate::tap::{Listener, Tap, Tapped};
use crate::tasks::Tasks;
use ahead::Scan;
use lives::Call;
use refrain_trace::fixed::{FixedMap, FixedSet};
use refrain_trace::linux::{self, writes_a_buffer};
use refrain_trace::payload::{Effect, SyscallRecord};
use refrain_trace::{Access, Event, EventId, EventKind, ThreadId, order};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tasking::Working;

/// As many ones as an access has bytes.
const MASKS: [u8; 9] = [0, 1, 3, 7, 15, 31, 63, 127, 255];

/// The cells of these bytes, each with a bit for each of its bytes that are among them.
#[inline]
fn cells(bytes: Range<u64>) -> impl Iterator<Item = (u64, u8)> {
    let Range { mut start, end } = bytes;
    std::iter::from_fn(move || {
        let (cell, within) = (start / CELL, start % CELL);
        let piece = (CELL - within).min(end.checked_sub(start)?);
        start += piece;
        (piece > 0).then(|| (cell, MASKS[piece as usize] << within))
    })
}

/// What the threads of a program have in common.
pub struct Detector {
    pub(crate) relation: Relation,
    stacks: Mutex<Stacks>,
    /// Words of once-objects that have run.
    onces: Mutex<FixedSet<u64>>,
    pub(crate) shadow: Shadow,
    objects: Objects,
    barriers: Barriers,
    channels: Channels,
    findings: Findings,
    pub(crate) heap: Heap,
    pub(crate) descriptors: Descriptors,
    pub(crate) tasks: Tasks,
    /// There is more than one thread.
    parallel: AtomicBool,
    /// There is a thread that is not watched: from then on, orders are missed.
    blind: AtomicBool,
    tap: Option<Tap>,
    /// Words of which one thread alone has events.
    of_one: FixedMap<u64, ThreadId>,
}

impl Detector {
    /// A detector for a program that synchronizes through `words`: the objects of all
    /// [`EventKind::Atomic`], [`EventKind::SyncStore`] and [`EventKind::OnceRun`] events, and those
    /// that loads poll. A plain store to one of these is a release, since to the processor a store
    /// that releases is none but a plain one.
    pub fn new(words: impl IntoIterator<Item = u64>, relation: Relation) -> Arc<Detector> {
        Detector::with(words, FixedMap::default(), relation, None)
    }

    /// The same, if of some of these words one thread alone has events, as `of_one` says: it releases nothing
    /// to others by its stores there.
    pub fn with_words_of_one(
        words: impl IntoIterator<Item = u64>,
        of_one: FixedMap<u64, ThreadId>,
        relation: Relation,
    ) -> Arc<Detector> {
        Detector::with(words, of_one, relation, None)
    }

    /// The same, which tells `listener` what the program does.
    pub fn tapped(
        words: impl IntoIterator<Item = u64>,
        relation: Relation,
        listener: Listener,
    ) -> Arc<Detector> {
        Detector::with(words, FixedMap::default(), relation, Some(Tap::new(listener)))
    }

    fn with(
        words: impl IntoIterator<Item = u64>,
        of_one: FixedMap<u64, ThreadId>,
        relation: Relation,
        tap: Option<Tap>,
    ) -> Arc<Detector> {
        Arc::new(Detector {
            tap,
            of_one,
            relation,
            stacks: Mutex::default(),
            onces: Mutex::default(),
            shadow: Shadow::new(words),
            objects: Objects::new(),
            barriers: Barriers::default(),
            channels: Channels::default(),
            findings: Findings::default(),
            heap: Heap::default(),
            descriptors: Descriptors::default(),
            tasks: Tasks::default(),
            parallel: AtomicBool::new(false),
            blind: AtomicBool::new(false),
        })
    }

    /// The watcher of a thread. `None` if the thread's number is above 65,535: from its creation on
    /// no race is found.
    pub fn thread(self: &Arc<Detector>, thread: ThreadId) -> Option<Watcher> {
        self.watcher(thread, SameEpoch::Noted(Filter::default()))
    }

    /// The same, if [`Watcher::accesses`] is shown only what is new in an epoch, by these notes.
    pub fn thread_in_epochs(
        self: &Arc<Detector>,
        thread: ThreadId,
        notes: Box<dyn EpochNotes>,
    ) -> Option<Watcher> {
        self.watcher(thread, SameEpoch::Told(notes))
    }

    fn watcher(self: &Arc<Detector>, thread: ThreadId, same_epoch: SameEpoch) -> Option<Watcher> {
        let Some(id) = u16::try_from(thread.0).ok().filter(|&id| id < FIRST_TASK) else {
            self.blind.store(true, Ordering::SeqCst);
            return None;
        };
        if thread != ThreadId(0) {
            self.parallel.store(true, Ordering::SeqCst);
        }
        let mut clock = VectorClock::default();
        clock.set(id, 1);
        Some(Watcher {
            detector: self.clone(),
            thread: id,
            id,
            clock,
            event: 0,
            since: self.objects.now(),
            writing: BTreeSet::new(),
            held: BTreeMap::new(),
            round: None,
            in_one_step: None,
            working: Working::default(),
            allocated: 0,
            blocks: Blocks::new(),
            same_epoch,
            has_dropped: false,
            scan: Scan::default(),
            found: Local::default(),
        })
    }

    /// What stands for the stack of a thread.
    fn stack(&self, thread: u16) -> Option<Object> {
        self.stacks().pointers.get(&thread).copied().map(Object::Stack)
    }

    pub(crate) fn stacks(&self) -> MutexGuard<'_, Stacks> {
        self.stacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn onces(&self) -> MutexGuard<'_, FixedSet<u64>> {
        self.onces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the accesses of the first thread before there is another, too. They race with none, but
    /// may be to memory that was freed.
    pub fn look_at_the_first_thread(&self) {
        self.parallel.store(true, Ordering::SeqCst);
    }

    /// What the first thread does before there is another happens before all of that.
    pub(crate) fn may_race(&self) -> bool {
        self.parallel.load(Ordering::Relaxed) && !self.blind.load(Ordering::Relaxed)
    }

    /// Takes what is wrong with two accesses of a cell.
    #[cold]
    fn take_fault(
        &self,
        (earlier, now, fault): (Stamp, Stamp, Fault),
        cell: u64,
        whole: Whole,
        (clock, working): (&VectorClock, &Working),
        found: &mut Local,
    ) {
        if fault == Fault::Race && working.keeps(self, [earlier.thread, now.thread], cell * CELL) {
            return;
        }
        let address = cell * CELL + u64::from(now.mask.trailing_zeros());
        // What `realloc` has left where it was is no longer freed.
        if fault == Fault::AfterEnd && self.heap.freed_at(address).is_none() {
            return;
        }
        let block = self.heap.at(address);
        found.add((earlier, now, fault), cell, (whole, block), clock);
    }

    /// The races found so far, ordered by instructions and threads.
    pub fn races(&self) -> Vec<Race> {
        self.findings.races(&self.objects, &self.tasks)
    }
}

/// Where the stacks of threads are.
#[derive(Default)]
pub(crate) struct Stacks {
    /// Thread pointers of threads, as they were created. A thread pointer lies in the same mapping as the
    /// stack, in glibc and musl.
    pub(crate) pointers: FixedMap<u16, u64>,
    /// Where what is local to threads ends.
    pub(crate) local: FixedMap<u16, u64>,
    /// Mappings that the library made for stacks of threads that have not ended.
    made: FixedMap<u16, Range<u64>>,
    /// Ends of mappings by their starts, as they were made.
    mappings: BTreeMap<u64, u64>,
}

impl Stacks {
    /// The mapping of an address, if it is no larger than a stack.
    fn mapping(&self, address: u64) -> Option<Range<u64>> {
        const LARGEST: u64 = 64 << 20;
        let (&start, &end) = self.mappings.range(..=address).next_back()?;
        (address < end && end - start <= LARGEST).then_some(start..end)
    }
}

/// Watches one thread. Calls come in program order: the accesses before an event before it. An
/// event that lets other threads go on must come before they do, and one that waited for others
/// after the wait.
pub struct Watcher {
    pub(crate) detector: Arc<Detector>,
    pub(crate) thread: u16,
    /// Whose clock it has: the thread's, or a task's.
    pub(crate) id: u16,
    clock: VectorClock,
    /// The last event.
    event: u32,
    /// How many times words had been acquired when the accesses to come began.
    since: u64,
    /// Read-write locks that the thread holds for writing.
    writing: BTreeSet<u64>,
    /// Locks that it holds, and how many times; only for the tap.
    held: BTreeMap<u64, u32>,
    /// The round of the barrier that it waits at.
    round: Option<Object>,
    /// The call that is one step, which the thread is in.
    pub(crate) in_one_step: Option<Call>,
    working: Working,
    /// Blocks that it has allocated.
    pub(crate) allocated: u64,
    blocks: Blocks,
    /// What the thread has accessed in its present epoch. Accesses like those are dropped (the rules
    /// of the same epoch in FastTrack, Figure 5): they are most, and cost no look at what threads
    /// share.
    same_epoch: SameEpoch,
    /// Accesses were dropped that others take for noted.
    has_dropped: bool,
    scan: Scan,
    found: Local,
}

/// Who knows what a thread has accessed in its present epoch.
enum SameEpoch {
    /// The watcher.
    Noted(Filter),
    /// Who shows it accesses.
    Told(Box<dyn EpochNotes>),
}

/// What a thread has accessed in its present epoch, noted by whoever shows its accesses.
pub trait EpochNotes: Send {
    /// Nothing has been accessed in the epoch that begins.
    fn next_epoch(&mut self);

    /// Nothing of this memory has been accessed.
    fn forget(&mut self, range: Range<u64>);
}

/// An access that is to be checked.
#[derive(Clone, Copy)]
pub(crate) struct Checked {
    pub(crate) whole: Whole,
    pub(crate) pc: u32,
    pub(crate) kind: u8,
}

impl Watcher {
    /// Whether what the thread does is part of a call that is one step, or about tasks.
    fn is_one_step(&self) -> bool {
        self.in_one_step.is_some() || self.is_hidden()
    }

    fn is_hidden(&self) -> bool {
        self.working.is_hidden()
    }

    /// Takes the accesses since the last call.
    pub fn accesses(&mut self, batch: &[Access]) {
        let calls = self.detector.relation.code().is_some_and(Code::names_calls);
        let in_tasks = self.detector.relation.code().is_some_and(|code| !code.tasking.is_empty());
        if calls || self.detector.may_race() {
            // Where a call begins or ends, nothing is noted until the log has been taken.
            let mut is_noted = true;
            let mut at = 0;
            while let Some(access) = batch.get(at) {
                let plain = if in_tasks { 0 } else { self.plain_accesses(&batch[at..]) };
                if plain != 0 {
                    at += plain;
                    continue;
                }
                at += 1;
                let kind = access.kind as u8 & (READ | WRITE);
                if kind == 0 {
                    is_noted = false;
                    self.note_call(access);
                    continue;
                }
                // What is local to a task is so for as long as its epochs last.
                if in_tasks && self.working.passes(access.address) {
                    continue;
                }
                if self.is_one_step() {
                    self.has_dropped |= is_noted;
                    continue;
                }
                if self.detector.may_race()
                    && let Some(whole) = self.meant(access)
                {
                    self.check(Checked { whole, pc: access.pc, kind });
                }
            }
            self.take_found();
            if std::mem::take(&mut self.has_dropped) {
                self.next_epoch();
            }
        }
        self.since = self.detector.objects.now();
    }

    /// The thread enters a system call; other threads do not yet know.
    pub fn enter(&mut self, call: &Event, record: Option<&SyscallRecord>) {
        let mut released = match (&self.detector.relation, record) {
            (Relation::Kept, _) => {
                let is_ordered = order::slot_of(call, record) == Some(order::SYSCALL_SLOT);
                [is_ordered.then_some(Object::Calls), None]
            }
            (Relation::Program(_), None) => [None, None],
            (Relation::Program(_), Some(_)) if self.is_one_step() => [None, None],
            (Relation::Program(code), Some(record)) => {
                let handed = edges::handed_over(call, record, (&self.detector.channels, code));
                self.use_descriptors(call, record);
                handed
            }
        };
        if let Some(Effect::Clone { child }) = record.map(|record| &record.effect) {
            self.detector.parallel.store(true, Ordering::SeqCst);
            self.take_stack(*child, record);
            // The child finds what the kernel wrote for it.
            self.kernel_accesses(call, record);
            released[1] = Some(Object::At(order::thread_object(*child)));
        }
        self.release(released);
    }

    /// The thread creates a child, perhaps on the stack of one that has ended.
    fn take_stack(&mut self, child: ThreadId, record: Option<&SyscallRecord>) {
        let (Ok(id), Some(record)) = (u16::try_from(child.0), record) else { return };
        if self.detector.relation == Relation::Kept {
            return;
        }
        let [_, top, _, _, pointer, _] = record.args;
        let mut stacks = self.detector.stacks();
        let is_used_again = stacks.pointers.values().any(|&other| other == pointer);
        stacks.pointers.insert(id, pointer);
        stacks.local.insert(id, pointer);
        match stacks.mapping(pointer).filter(|it| it.contains(&top.wrapping_sub(1))) {
            Some(mapping) => {
                stacks.made.insert(id, mapping.clone());
                drop(stacks);
                // Memory that nobody has touched: what was there was another thread's, or is the
                // library's own.
                if is_used_again {
                    self.forget(mapping);
                }
            }
            None if is_used_again => {
                drop(stacks);
                self.acquire(Object::Stack(pointer));
            }
            None => {}
        }
    }

    /// The thread ends. Its stack is the library's, if that has made it: whoever creates the next thread
    /// clears it, under a lock that is the library's own.
    fn leave_stack(&mut self) {
        let made = self.detector.stacks().made.remove(&self.thread);
        if let Some(mapping) = made {
            self.forget(mapping);
        }
    }

    /// The thread performs an event; a system call returns. `record` is the event's payload.
    pub fn event(&mut self, id: EventId, event: &Event, record: Option<&SyscallRecord>) {
        self.event = u32::try_from(id.0).unwrap_or(u32::MAX);
        let slot = order::slot_of(event, record);
        let writing = self.writing.contains(&event.object);
        let mut edges = edges::of(event, slot, writing, &self.detector.relation);
        if event.kind() == EventKind::OnceRun {
            self.detector.onces().insert(event.object);
        }
        // The library tells through such a word that what runs once is done.
        let is_once = || self.detector.onces().contains(&event.object);
        let is_silent = self.detector.relation.silences(event) && !is_once();
        if is_silent || self.is_one_step() {
            edges = Edges::default();
        }
        if let Relation::Program(code) = &self.detector.relation {
            match (event.kind(), record) {
                (EventKind::BarrierInit, _) => {
                    self.detector.barriers.begin(event.object, event.value);
                }
                (EventKind::BarrierArrive, _) if edges.releases[0].is_some() => {
                    self.round = Some(self.detector.barriers.arrive(event.object));
                    edges.releases[0] = self.round;
                }
                (EventKind::BarrierLeave, _) if edges.acquires[0].is_some() => {
                    edges.acquires[0] = self.round.take();
                }
                (EventKind::ThreadExit, _) => {
                    edges.releases[1] = self.detector.stack(self.thread);
                    self.leave_stack();
                }
                (EventKind::Syscall, Some(record)) => {
                    if !self.is_one_step() {
                        let channels = &self.detector.channels;
                        edges.acquires[0] = edges::taken_over(event, record, (channels, code));
                        self.unmap(event, record);
                    }
                    if event.value as i64 >= 0 {
                        self.detector.channels.returned(event, record);
                    }
                    self.renew(event, record);
                    if let Some(local) = linux::sets_thread_pointer(event.nr, &record.args) {
                        self.detector.stacks().local.insert(self.thread, local);
                    }
                }
                _ => {}
            }
        }
        // Who asks for a lock uses it before anybody else's release of it has happened for him.
        if !self.is_one_step() && self.detector.may_race() {
            self.use_objects(event);
        }
        let lock = if is_silent { None } else { edges::holds(event) };
        if let Some((lock, Some(alone))) = lock {
            self.hold(lock, alone);
        }
        for object in edges.acquires.into_iter().flatten() {
            self.acquire(object);
        }
        match edges::holds_for_writing(event) {
            Some(true) => drop(self.writing.insert(event.object)),
            Some(false) => drop(self.writing.remove(&event.object)),
            None => {}
        }
        if !self.is_one_step() {
            self.own_accesses(event, record);
        }
        self.release(edges.releases);
        if let Some((lock, None)) = lock {
            self.let_go(lock);
        }
        self.since = self.detector.objects.now();
    }

    /// What a call has mapped is new memory.
    fn renew(&mut self, call: &Event, record: &SyscallRecord) {
        let len = match call.nr {
            linux::MMAP => record.args[1],
            linux::MREMAP => record.args[2],
            _ => return,
        };
        // Errors are the highest addresses.
        if let (Effect::Memory { .. }, Some(end)) = (&record.effect, call.value.checked_add(len)) {
            self.forget(call.value..end);
            self.detector.stacks().mappings.insert(call.value, end);
        }
    }

    /// The accesses that are part of an event, which are not reported as accesses.
    fn own_accesses(&mut self, event: &Event, record: Option<&SyscallRecord>) {
        if !self.detector.may_race() {
            return;
        }
        let kind = match event.kind() {
            EventKind::Atomic => match self.detector.relation.code() {
                Some(code) if code.loads.contains(&event.pc) => READ | ATOMIC,
                _ => READ | WRITE | ATOMIC,
            },
            EventKind::SyncStore => match self.detector.relation.code() {
                Some(code) if code.is_update(event) => READ | WRITE,
                Some(code) if code.is_plain_store(event) => WRITE,
                _ => WRITE | ATOMIC,
            },
            EventKind::SyncLoad => READ | ATOMIC,
            EventKind::Syscall => {
                let created = record.is_some_and(|it| matches!(it.effect, Effect::Clone { .. }));
                if !created {
                    self.kernel_accesses(event, record);
                }
                return;
            }
            _ => return,
        };
        let whole = Whole { address: event.object, size: event.nr.into() };
        self.check(Checked { whole, pc: event.pc as u32, kind });
        self.take_found();
    }

    fn kernel_accesses(&mut self, event: &Event, record: Option<&SyscallRecord>) {
        let Some(record) = record else { return };
        let pc = event.pc as u32;
        if let Effect::Output { len, .. } = record.effect
            && writes_a_buffer(event.nr)
        {
            let whole = Whole { address: record.args[1], size: len };
            self.check_range(Checked { whole, pc, kind: READ | KERNEL });
        }
        for write in &record.writes {
            let whole = Whole { address: write.address, size: write.bytes.len() as u64 };
            self.check_range(Checked { whole, pc, kind: WRITE | KERNEL });
        }
        self.take_found();
    }

    /// Hands over what was found.
    pub(crate) fn take_found(&mut self) {
        self.detector.findings.take(&mut self.found);
    }

    /// What follows is told from what came before.
    pub(crate) fn next_epoch(&mut self) {
        let clock = self.clock.of(self.id);
        self.clock.set(self.id, clock.saturating_add(1));
        self.forget_accesses();
    }

    /// Nothing has been accessed in the epoch that begins.
    pub(crate) fn forget_accesses(&mut self) {
        match &mut self.same_epoch {
            SameEpoch::Noted(filter) => filter.next_epoch(),
            SameEpoch::Told(notes) => notes.next_epoch(),
        }
    }

    /// What the thread has accessed of this memory is of the past.
    pub(crate) fn forget_own(&mut self, range: Range<u64>) {
        match &mut self.same_epoch {
            SameEpoch::Noted(filter) => filter.forget(range),
            SameEpoch::Told(notes) => notes.forget(range),
        }
    }

    fn acquire(&mut self, object: Object) {
        if let Some(tap) = &self.detector.tap {
            tap.order(self.id, object, Op::Acquire);
        }
        self.detector.objects.acquire(object, self.id, &mut self.clock);
    }

    /// Memory is new.
    pub(crate) fn forget(&mut self, range: Range<u64>) {
        self.forget_own(range.clone());
        self.detector.shadow.forget(range.clone());
        if let Some(tap) = &self.detector.tap {
            tap.tell(self.id, Tapped::Fresh(range));
        }
    }

    /// The thread has a lock once more.
    fn hold(&mut self, lock: u64, alone: bool) {
        let Some(tap) = &self.detector.tap else { return };
        let count = self.held.entry(lock).or_default();
        *count += 1;
        if *count == 1 {
            tap.order(self.id, Object::At(lock), |lock| Op::Hold { lock, alone });
        }
    }

    /// The thread has a lock once less.
    fn let_go(&mut self, lock: u64) {
        let Some(tap) = &self.detector.tap else { return };
        let Some(count) = self.held.get_mut(&lock) else { return };
        *count -= 1;
        if *count == 0 {
            self.held.remove(&lock);
            tap.order(self.id, Object::At(lock), Op::Drop);
        }
    }

    /// Whether nobody else acquires an object, as far as words go.
    fn is_alone_with(&self, object: Object) -> bool {
        let Object::Word(word) = object else { return false };
        self.detector.of_one.get(&word) == Some(&ThreadId(self.thread.into()))
    }

    fn release(&mut self, objects: [Option<Object>; 2]) {
        let objects = objects.map(|object| object.filter(|&object| !self.is_alone_with(object)));
        for object in objects.into_iter().flatten() {
            if let Some(tap) = &self.detector.tap {
                tap.order(self.id, object, Op::Release);
            }
            self.detector.objects.release(object, &self.clock);
        }
        if objects.iter().any(Option::is_some) {
            self.next_epoch();
        }
    }

    /// Checks an access, cell by cell.
    #[inline]
    pub(crate) fn check(&mut self, access: Checked) {
        let Whole { address, size } = access.whole;
        let (cell, within) = (address / CELL, address % CELL);
        if within + size <= CELL {
            return self.check_cell(cell, MASKS[size as usize] << within, access);
        }
        for (cell, mask) in cells(address..address.saturating_add(size)) {
            self.check_cell(cell, mask, access);
        }
    }

    /// The same for much memory, by the kernel or by a function of the library's: these access no words
    /// that synchronize, and there is no need to note what they have accessed.
    pub(crate) fn check_range(&mut self, access: Checked) {
        debug_assert!(access.kind & (KERNEL | CALL) != 0, "other accesses may be atomic");
        if self.detector.tap.is_some() {
            return self.check(access);
        }
        let clock = self.clock.of(self.id);
        let Watcher { detector, id, event, blocks, found, clock: all, working, .. } = self;
        let Checked { whole, pc, kind } = access;
        let (mut at, end) = (whole.address, whole.address.saturating_add(whole.size));
        while at < end {
            let block_end = (at / (CELL * CELLS) + 1) * CELL * CELLS;
            let block = blocks.of(at / CELL, &detector.shadow);
            let mut block = block.lock();
            for (cell, mask) in cells(at..end.min(block_end)) {
                let now = Stamp { clock, thread: *id, mask, kind, pc, event: *event };
                block.access(cell, now, all, &mut |earlier, fault| {
                    detector.take_fault((earlier, now, fault), cell, whole, (all, working), found);
                });
            }
            at = block_end;
        }
    }

    #[inline]
    fn check_cell(&mut self, cell: u64, mask: u8, access: Checked) {
        if self.detector.tap.is_some() {
            self.tell(cell, mask, access);
        }
        if let SameEpoch::Noted(filter) = &self.same_epoch
            && filter.knows(cell, mask, access.kind & WRITE != 0)
        {
            return;
        }
        self.check_slowly(cell, mask, access);
    }

    /// Hands on an access that synchronizes nothing, and ends nothing.
    #[cold]
    fn tell(&mut self, cell: u64, mask: u8, Checked { whole, pc, kind }: Checked) {
        let Watcher { detector, id, blocks, .. } = self;
        let Some(tap) = &detector.tap else { return };
        let is_allocator = |code: &Code| code.is_allocator(pc.into());
        if kind & (ATOMIC | CALL | FREE) != 0 || detector.relation.code().is_some_and(is_allocator)
        {
            return;
        }
        let block = blocks.of(cell, &detector.shadow).lock();
        let is_plain = |code: &Code| code.is_plain(pc.into(), whole.address);
        let is_update = kind == READ | WRITE && detector.relation.code().is_some_and(is_plain);
        if kind & KERNEL == 0 && !is_update && block.words(cell, mask) != 0 {
            return;
        }
        drop(block);
        let block = detector.heap.at(cell * CELL).map(|block| block.start);
        let cell = cell * CELL;
        if kind & READ != 0 {
            tap.tell(*id, Tapped::Access { cell, mask, writes: false, pc, block });
        }
        if kind & WRITE != 0 {
            tap.tell(*id, Tapped::Access { cell, mask, writes: true, pc, block });
        }
    }

    fn check_slowly(&mut self, cell: u64, mask: u8, access: Checked) {
        let clock = self.clock.of(self.id);
        let Watcher { detector, id, event, blocks, found, working, .. } = self;
        let Checked { whole, pc, mut kind } = access;
        let is_allocator = |code: &Code| code.is_allocator(pc.into());
        if kind & CALL == 0 && detector.relation.code().is_some_and(is_allocator) {
            self.has_dropped = true;
            return;
        }
        let mut block = blocks.of(cell, &detector.shadow).lock();
        // To the program, an instruction that reads and writes without a lock prefix is no atomic,
        // unless loops wait for what it writes, or a library has it.
        let is_plain = |code: &Code| code.is_plain(pc.into(), whole.address);
        let is_update = kind == READ | WRITE && detector.relation.code().is_some_and(is_plain);
        let may_be_atomic = kind & (ATOMIC | KERNEL | CALL) == 0 && !is_update;
        let words = if may_be_atomic { block.words(cell, mask) } else { 0 };
        let stored = if kind & WRITE != 0 { words } else { 0 };
        let is_kept = detector.relation == Relation::Kept;
        if stored != 0 {
            kind |= if is_kept { STORE } else { ATOMIC | STORE };
        } else if words != 0 && !is_kept {
            // To the processor, an atomic load is a plain one. What it acquires it has acquired by the
            // event before, if it needed none. (For a replay it makes a difference what is watched.)
            kind |= ATOMIC;
        }
        let now = Stamp { clock, thread: *id, mask, kind, pc, event: *event };
        block.access(cell, now, &self.clock, &mut |earlier, fault| {
            detector.take_fault((earlier, now, fault), cell, whole, (&self.clock, working), found);
        });
        drop(block);
        if let (SameEpoch::Noted(filter), 0) = (&mut self.same_epoch, kind & (ATOMIC | STORE)) {
            filter.note(cell, mask, kind & WRITE != 0);
        }
        if stored != 0 {
            self.release_words(cell, stored);
        }
    }

    /// A plain store to words that synchronize: the low bit stands for the lower one of the cell.
    fn release_words(&mut self, cell: u64, words: u8) {
        let mut releases = false;
        for half in (0..2).filter(|half| words >> half & 1 != 0) {
            let word = Object::Word(word_of(cell * CELL + half * CELL / 2));
            if self.is_alone_with(word) {
                continue;
            }
            releases = true;
            if let Some(tap) = &self.detector.tap {
                tap.order(self.id, word, Op::Release);
            }
            self.detector.objects.stored(word, self.since, self.id, &self.clock);
        }
        if releases {
            self.next_epoch();
        }
    }
}
