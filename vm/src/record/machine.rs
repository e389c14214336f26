//! What all guest threads of a recording share.

use super::aio::Contexts;
use super::cancel::library::Cancellation;
use super::coherence::shared::Shared;
use super::endings::Endings;
use super::fast_path;
use super::files::Files;
use super::log::{Log, ThreadLog};
use super::notice::Notice;
use super::presence::{Presence, Standstill};
use super::process::parent::Waiting;
use super::signals::Signals;
use super::{Follow, LearnedSites, OrderOf, Warn, WatchedOf};
use crate::common::recorded::Common;
use crate::elf::{Elf, Extents};
use crate::engine::{ModuleCode, ModuleFunctions, ReadCode, ReadFunctions, RecordingEngine};
use crate::hooks::{self, Hook, HookMap};
use crate::kick::{self, Attention};
use crate::loader::Command;
use crate::memory::AddressSpace;
use crate::order::alone::Alone;
use crate::order::lines::Lines;
use crate::order::owners::Owners;
use crate::slots::Tickets;
use crate::{Error, Hidden, Processor, Result, hidden, host};
use crossbeam::channel::Sender;
use refrain_trace::{Ending, Header, Module, Order, ThreadId};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Instant;

/// Segments that the loader has mapped from a file: memory, offset in the file, the file.
pub(crate) type Loaded = Vec<(Range<u64>, u64, PathBuf)>;

/// Identity of a file's content: device, inode, size, time of change.
pub(crate) type FileKey = (u64, u64, u64, i64, i64);

/// Why the recording ends.
#[derive(Debug)]
pub(crate) enum Stop {
    Ended(Ending),
    Failed(Error),
    /// The writer has given up; its thread returns why.
    CannotWrite,
}

/// Code of a program that is looked at for whether it sends its threads signals while they compute: larger
/// ones are servers and runtimes, whose threads seldom compute for long without an event, and where counting
/// instructions takes its time (mariadbd 12 times as long).
const SMALL_PROGRAM: u64 = 1 << 20;

/// The recorder's state beyond single threads.
pub(crate) struct Machine {
    pub(crate) engine: Arc<dyn RecordingEngine>,
    pub(crate) tickets: Tickets,
    /// Who owns which slot.
    pub(crate) owners: Owners,
    /// Another process may send signals to single threads of this one, since it is the parent or a child and is
    /// recorded or was forked; or another process may write to memory that this one has mapped.
    pub(crate) has_relatives: AtomicBool,
    pub(crate) endings: Endings,
    /// Who may access which line, once every access is recorded.
    lines: OnceLock<Lines>,
    /// The orders that suit programs, if the user has not said which it is.
    order_of: Option<OrderOf>,
    /// Which programs are watched for what other processes write to their memory, from their beginning.
    watched_of: Option<WatchedOf>,
    pub(crate) log: Log,
    /// What the guest's processor is.
    pub(crate) processor: Processor,
    /// The guest is told that the system forbids it to generate code.
    pub(crate) forbids_generated_code: bool,
    /// The stack pointer with which the guest starts.
    pub(crate) initial_sp: AtomicU64,
    /// Absolute path of the guest's program.
    pub(super) program: Mutex<String>,
    /// Files that the guest has mapped shared.
    pub(crate) shared: Mutex<Shared>,
    has_shared: AtomicBool,
    /// Memory that other processes write.
    pub(crate) common: RwLock<Common>,
    pub(crate) standstill: Standstill,
    pub(crate) alone: Alone,
    has_common: AtomicBool,
    /// Contexts of asynchronous input and output.
    pub(crate) contexts: Mutex<Contexts>,
    /// What the loader has mapped from files.
    pub(crate) loaded: Mutex<Loaded>,
    /// Where the guest's dynamic linker lies; empty if the program does without.
    pub(crate) linker: Mutex<Range<u64>>,
    /// What child processes execute instead, so that they are recorded too.
    pub(crate) follow: Option<Follow>,
    /// Changing the address space and taking the ticket for it are one step.
    pub(crate) space: Mutex<AddressSpace>,
    pub(crate) signals: Signals,
    /// The kernel's id of the thread that takes the signals from outside.
    pub(crate) watcher: AtomicI32,
    /// `pthread_once` objects whose routine some thread is about to run.
    pub(crate) once: Mutex<BTreeSet<u64>>,
    /// Mapped files of which the trace has pages.
    pub(crate) mapped: Arc<Files>,
    /// Contents of mapped files that are in the trace already, whole.
    pub(crate) files: Mutex<BTreeMap<FileKey, refrain_trace::BlobId>>,
    /// Address of the guest's `__errno_location`, once a C library is mapped.
    pub(crate) errno_location: AtomicU64,
    hooks: RwLock<Arc<HookMap>>,
    /// Where files with code lie: memory, bias, the file.
    places: Mutex<Vec<(Range<u64>, u64, PathBuf)>>,
    /// How threads are cancelled, once one was.
    pub(super) cancellation: Mutex<Option<Cancellation>>,
    notices: Mutex<BTreeSet<Notice>>,
    threads: Mutex<Threads>,
    /// Counts threads that have ended.
    ends: AtomicU32,
    output_bytes: AtomicU64,
    stop: Sender<Stop>,
    warn: Warn,
    /// The guest has set a timer or sent a signal, or one from outside has waited for long.
    expects_signals: AtomicBool,
    /// Instructions are counted.
    counts: AtomicBool,
    /// The program calls `pthread_cancel`.
    cancels: AtomicBool,
    /// The program is small, and calls functions that send a signal to a thread, or have a timer do so.
    signals_threads: AtomicBool,
    /// How often the thread that receives signals from outside was asked to pass on those that have come.
    pub(super) asked_for_signals: AtomicU64,
    /// How often it has done so.
    pub(super) passed_signals: AtomicU64,
    /// This is a child process, which is not recorded.
    child: AtomicBool,
    /// The parent of this process waits until this process tells it how it goes on.
    waiting: Mutex<Option<Waiting>>,
    /// Sites that are watched beside the idioms.
    learned: LearnedSites,
    /// The addresses of these sites in memory. Some are system calls, which have sent bytes that other threads
    /// change.
    raced: RwLock<BTreeSet<u64>>,
}

#[derive(Default)]
struct Threads {
    all: Vec<Thread>,
    alive: usize,
}

struct Thread {
    /// The thread pointer, which is also its `pthread_t`.
    pointer: u64,
    kernel_id: i32,
    ended: bool,
    /// Nobody is to join it.
    detached: bool,
    presence: Presence,
    /// The event of areas at which all threads had stood still when it was created.
    stood_at: u64,
}

impl Threads {
    /// The index of the newest thread with this `pthread_t`.
    fn by_pointer(&self, pointer: u64) -> Option<usize> {
        self.all.iter().rposition(|thread| thread.pointer == pointer)
    }
}

impl Machine {
    pub(crate) fn new(
        engine: Arc<dyn RecordingEngine>,
        space: AddressSpace,
        (log, mapped): (Log, Arc<Files>),
        (header, processor, forbids_generated_code): (&Header, Processor, bool),
        linker: Range<u64>,
        (stop, warn, follow): (Sender<Stop>, Warn, Option<Follow>),
        (learned, order_of, watched_of): (LearnedSites, Option<OrderOf>, Option<WatchedOf>),
    ) -> Machine {
        Machine {
            engine,
            tickets: Tickets::new(),
            owners: Owners::new(),
            has_relatives: AtomicBool::new(follow.is_some()),
            endings: Endings::default(),
            lines: OnceLock::new(),
            order_of,
            watched_of,
            standstill: Standstill::default(),
            alone: Alone::new(log.barrier()),
            log,
            processor,
            forbids_generated_code,
            initial_sp: AtomicU64::new(header.entry.rsp),
            program: Mutex::new(header.program.clone()),
            shared: Mutex::default(),
            contexts: Mutex::default(),
            has_shared: AtomicBool::new(false),
            common: RwLock::default(),
            has_common: AtomicBool::new(false),
            loaded: Mutex::default(),
            linker: Mutex::new(linker),
            follow,
            space: Mutex::new(space),
            signals: Signals::default(),
            watcher: AtomicI32::new(0),
            once: Mutex::default(),
            files: Mutex::default(),
            mapped,
            errno_location: AtomicU64::new(0),
            hooks: RwLock::default(),
            places: Mutex::default(),
            cancellation: Mutex::default(),
            notices: Mutex::default(),
            threads: Mutex::default(),
            ends: AtomicU32::new(0),
            output_bytes: AtomicU64::new(0),
            stop,
            warn,
            expects_signals: AtomicBool::new(false),
            counts: AtomicBool::new(false),
            cancels: AtomicBool::new(false),
            signals_threads: AtomicBool::new(false),
            asked_for_signals: AtomicU64::new(0),
            passed_signals: AtomicU64::new(0),
            child: AtomicBool::new(false),
            waiting: Mutex::default(),
            learned,
            raced: RwLock::default(),
        }
    }

    /// Absolute path of the guest's program.
    pub(crate) fn program(&self) -> String {
        self.program.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the guest has ever mapped a file shared.
    pub(crate) fn has_shared(&self) -> bool {
        self.has_shared.load(Ordering::Relaxed)
    }

    pub(crate) fn set_shared(&self) {
        self.has_shared.store(true, Ordering::SeqCst);
    }

    /// Who may access which line, if every access is recorded.
    pub(crate) fn lines(&self) -> Option<&Lines> {
        self.lines.get()
    }

    /// A thread executes no more guest code, and has said so as far as others may ask for what it has done.
    pub(crate) fn end_accesses(&self, thread: ThreadId) {
        self.owners.leave(thread);
        if let Some(lines) = self.lines() {
            lines.leave(thread);
        }
    }

    /// From here on every access is recorded, in this order. The guest has had one thread so far.
    pub(crate) fn order_every_access(&self, order: Order) -> Result<()> {
        let lines = Lines::new(order)?;
        self.lines.get_or_init(|| lines);
        Ok(())
    }

    /// The order that a program needs, if it is another one than the recording has and that can be
    /// changed still: as long as the guest has had one thread, all orders are the same.
    pub(crate) fn better_order(&self, command: &Command) -> Option<Order> {
        let order_of = self.order_of.as_ref()?;
        let is_open = self.lines().is_none() && self.threads().all.len() == 1;
        is_open.then(|| order_of(command)).flatten()
    }

    /// A program begins: whether processes that it has not started are looked for that map what it maps.
    pub(crate) fn watch_from_start(&self, command: &Command) {
        if self.watched_of.as_ref().is_some_and(|watched_of| watched_of(command)) {
            self.begin_relatives();
        }
    }

    /// Whether what the system call there sends is known to race.
    pub(crate) fn sends_race_at(&self, pc: u64) -> bool {
        !self.learned.is_empty()
            && self.raced.read().unwrap_or_else(PoisonError::into_inner).contains(&pc)
    }

    /// How many threads the guest has now.
    pub(crate) fn threads_alive(&self) -> usize {
        self.threads().alive
    }

    /// Who is in guest code, but for this thread.
    pub(crate) fn presences(&self, but: ThreadId) -> Vec<(ThreadId, Presence)> {
        let threads = self.threads();
        let others = threads.all.iter().enumerate();
        let alive = others.filter(|&(at, thread)| at != but.index() && !thread.ended);
        alive.map(|(at, thread)| (ThreadId(at as u32), thread.presence.clone())).collect()
    }

    /// What a thread begins with.
    pub(crate) fn presence(&self, id: ThreadId) -> (Presence, u64) {
        let threads = self.threads();
        let thread = &threads.all[id.index()];
        (thread.presence.clone(), thread.stood_at)
    }

    /// Whether there is memory in common with other processes.
    pub(crate) fn has_common(&self) -> bool {
        self.has_common.load(Ordering::Relaxed)
    }

    pub(crate) fn set_common(&self, any: bool) {
        self.has_common.store(any, Ordering::Relaxed);
    }

    /// Whether this is a child process of the recorded one.
    pub(crate) fn is_child(&self) -> bool {
        self.child.load(Ordering::Relaxed)
    }

    /// Lets `fork` split the process at a moment when nobody else changes the machine.
    pub(crate) fn during_no_changes(&self, fork: &mut dyn FnMut() -> bool) {
        // Who takes lines over may wait for the writer, which needs what follows.
        let _lines = self.lines().map(Lines::still);
        let _slots = self.owners.still();
        let _space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        let _mapped = self.mapped.lock();
        let _files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let _once = self.once.lock().unwrap_or_else(PoisonError::into_inner);
        let _hooks = self.hooks.write().unwrap_or_else(PoisonError::into_inner);
        let _common = self.common.write().unwrap_or_else(PoisonError::into_inner);
        let _alone = self.alone.still();
        let _threads = self.threads();
        self.log.unvisited(|| self.signals.during(|| self.engine.fork(fork)));
    }

    /// From here on this is a child process, with one thread, whose events nobody keeps.
    pub(crate) fn begin_child(&self, only: ThreadId, waiting: Option<Waiting>) {
        self.child.store(true, Ordering::Relaxed);
        self.has_relatives.store(true, Ordering::SeqCst);
        self.open_common();
        self.standstill.end(None);
        self.alone.forget();
        self.mapped.begin_child();
        // The trace is unlocked when the recorder ends, whatever its children still do.
        hidden::close_unshared();
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = waiting;
        self.log.begin_child();
        self.tickets.release_all();
        self.endings.forget_others();
        if let Some(lines) = self.lines() {
            lines.keep_only(only);
        }
        let kernel_id = host::thread_id();
        self.signals.keep_only(only, kernel_id);
        let mut threads = self.threads();
        self.owners.keep_only(only, threads.all.len());
        threads.alive = 1;
        for (index, thread) in threads.all.iter_mut().enumerate() {
            thread.ended = index != only.index();
        }
        threads.all[only.index()].kernel_id = kernel_id;
    }

    /// A module was mapped, from this file if that is open: notes it in the trace and hooks the library
    /// functions it defines.
    pub(crate) fn register_module(&self, path: &Path, elf: &Elf, bias: u64, file: Option<&File>) {
        let mut found: Vec<(u64, &'static Hook)> = Vec::new();
        if defines_synchronization(path) || elf.interpreter.is_none() && is_static_program(elf) {
            elf.functions(|name, address| {
                let pc = bias.wrapping_add(address);
                if let Some(hook) = hooks::by_name(name) {
                    found.push((pc, hook));
                }
                if name == hooks::ERRNO_LOCATION {
                    self.errno_location.store(pc, Ordering::Relaxed);
                }
            });
        }
        // A program, and no library: what some library might do is not worth counting for.
        if elf.interpreter.is_some() || !elf.needs_libraries {
            self.cancels.fetch_or(elf.calls("pthread_cancel"), Ordering::SeqCst);
            let sends = ["pthread_kill", "pthread_sigqueue", "tgkill", "timer_create"];
            let signals =
                elf.code_len() <= SMALL_PROGRAM && sends.iter().any(|name| elf.calls(name));
            self.signals_threads.fetch_or(signals, Ordering::SeqCst);
        }
        if elf.interpreter.is_some() {
            found.extend(hooks::by_name(hooks::ENTRY).map(|hook| (bias + elf.entry, hook)));
        }
        found.sort_by_key(|&(pc, hook)| (pc, hook.name));
        found.dedup_by_key(|&mut (pc, _)| pc);
        let mut map = HookMap::clone(&self.hooks());
        for &(pc, hook) in &found {
            map.insert(pc, hook);
            self.engine.hook(pc);
            hook.role().into_iter().for_each(|role| self.engine.lock_role(pc, role));
            fast_path::install(&*self.engine, pc, hook, path);
        }
        *self.hooks.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);

        let at = move |address: u64| bias.wrapping_add(address);
        let range = |start, end| at(start)..at(end);
        let constant: Vec<Range<u64>> =
            elf.constant().into_iter().map(|(start, end)| range(start, end)).collect();
        let (start, end) = elf.code_span();
        let (code, trusted) = (range(start, end), defines_synchronization(path));
        let module = ModuleCode { code, constant: &constant, trusted, build: elf.build() };
        let copy = || match file {
            Some(file) => Hidden::copy(file),
            None => File::open(path).and_then(Hidden::copy),
        };
        self.engine.functions(&module, functions_of(elf, bias, copy().ok()));
        self.tell_atomics(elf, bias, copy);
        let (start, end) = elf.span();
        let place = range(start, end);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.push((place, bias, path.to_owned()));
        drop(places);
        let module = Module {
            path: path.to_string_lossy().into_owned(),
            build_id: elf.build_id.clone(),
            bias,
            start: at(start),
            end: at(end),
            hooks: found.iter().map(|&(pc, hook)| (pc, hook.name.to_owned())).collect(),
            constant: constant.iter().map(|range| (range.start, range.end)).collect(),
        };
        if let Some(sites) = self.learned.get(&module.identity()) {
            let sites: Vec<u64> = sites.iter().map(|&site| bias.wrapping_add(site)).collect();
            self.engine.watch(&sites);
            self.raced.write().unwrap_or_else(PoisonError::into_inner).extend(sites);
        }
        self.log.module(module);
    }

    /// Tells the engine of a module's atomic operations, if debug information or symbols name them.
    fn tell_atomics(&self, elf: &Elf, bias: u64, file: impl FnOnce() -> io::Result<Hidden>) {
        // Files of one build may have debug information or not, but not two kinds of it.
        let digest = elf.names_of_atomics();
        if digest == 0 {
            return;
        }
        // It may be looked for much later, or never.
        let Ok(file) = file() else { return };
        let (start, end) = elf.span();
        let at = move |address: u64| bias.wrapping_add(address);
        let read = move || {
            let found = Elf::of_library(file).map(|elf| elf.atomics()).unwrap_or_default();
            found.into_iter().map(|range| at(range.start)..at(range.end)).collect()
        };
        self.engine.atomics(at(start)..at(end), digest, Box::new(read));
    }

    /// The file that code belongs to, and its bias. If several files have been mapped there, it is the newest.
    pub(crate) fn file_at(&self, pc: u64) -> Option<(u64, PathBuf)> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, bias, path) = places.iter().rfind(|(range, ..)| range.contains(&pc))?;
        Some((*bias, path.clone()))
    }

    /// In words: the function, the file and the program that code belongs to.
    pub(crate) fn describe(&self, pc: u64) -> String {
        let program = self.program();
        let Some((bias, path)) = self.file_at(pc) else {
            return format!("at {pc:#x} of {program}, in no file");
        };
        let (at, file) = (pc.wrapping_sub(bias), path.display());
        let function = Elf::read(&path).ok().and_then(|elf| elf.function_at(at));
        match function {
            Some(name) => format!("in {name} ({file}+{at:#x}) of {program}"),
            None => format!("at {file}+{at:#x} of {program}"),
        }
    }

    /// The hooks as they are now. Threads keep the map until they meet a hook it does not have.
    pub(crate) fn hooks(&self) -> Arc<HookMap> {
        self.hooks.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Enters a new thread into the table.
    pub(crate) fn add_thread(&self, pointer: u64) -> (ThreadId, Arc<ThreadLog>) {
        let mut threads = self.threads();
        let id = ThreadId(threads.all.len() as u32);
        let presence = Presence::default();
        let log = self.log.stream(id, presence.clone());
        threads.alive += 1;
        threads.all.push(Thread {
            pointer,
            kernel_id: 0,
            ended: false,
            detached: false,
            presence,
            stood_at: self.standstill.areas(),
        });
        (id, log)
    }

    /// The thread pointer of the main thread is known only once it has set it.
    pub(crate) fn set_pointer(&self, id: ThreadId, pointer: u64) {
        self.threads().all[id.index()].pointer = pointer;
    }

    /// The newest thread with this `pthread_t`.
    pub(crate) fn thread_by_pointer(&self, pointer: u64) -> Option<ThreadId> {
        self.threads().by_pointer(pointer).map(|at| ThreadId(at as u32))
    }

    /// The same, if somebody may join it.
    pub(crate) fn thread_to_join(&self, pointer: u64) -> Option<ThreadId> {
        let threads = self.threads();
        let at = threads.by_pointer(pointer).filter(|&at| !threads.all[at].detached)?;
        Some(ThreadId(at as u32))
    }

    /// Nobody is to join that thread.
    pub(crate) fn detach(&self, pointer: u64) {
        let mut threads = self.threads();
        if let Some(at) = threads.by_pointer(pointer) {
            threads.all[at].detached = true;
        }
    }

    /// A thread has ended with this status. If it was the last one, the process ends with the same status.
    pub(crate) fn thread_ended(&self, id: ThreadId, status: u64) {
        self.signals.end_thread(id);
        let mut threads = self.threads();
        threads.all[id.index()].ended = true;
        threads.alive -= 1;
        if threads.alive == 0 {
            self.stop(Stop::Ended(Ending::Exited(status as i32 & 0xff)));
        }
        drop(threads);
        self.ends.fetch_add(1, Ordering::SeqCst);
        host::futex_wake_all(self.ends.as_ptr() as u64);
    }

    /// A thread has ended because another one executes a program. Nobody is told: a thread that would join this
    /// one ends, too.
    pub(crate) fn thread_left(&self, id: ThreadId) {
        self.signals.end_thread(id);
        let mut threads = self.threads();
        let thread = &mut threads.all[id.index()];
        (thread.pointer, thread.kernel_id) = (u64::MAX, 0);
        threads.alive -= 1;
    }

    pub(crate) fn has_ended(&self, id: ThreadId) -> bool {
        self.threads().all[id.index()].ended
    }

    /// Waits until the thread is gone, that moment has come, or something else wants the waiting
    /// thread's attention; whether it is gone.
    pub(crate) fn await_end(
        &self,
        id: ThreadId,
        attention: &Attention,
        until: Option<Instant>,
    ) -> bool {
        loop {
            let ends = self.ends.load(Ordering::SeqCst);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let ended = self.has_ended(id);
            if ended || attention.is_raised() || left.is_some_and(|left| left.is_zero()) {
                return ended;
            }
            kick::wait(&self.ends, ends, left, attention);
        }
    }

    /// The kernel's id of a thread is known once its host thread runs.
    pub(crate) fn set_kernel_id(&self, id: ThreadId, kernel_id: i32) {
        self.threads().all[id.index()].kernel_id = kernel_id;
    }

    /// Signals may come that cannot wait for events: the guest is about to set a timer or to send
    /// one itself, or one from outside has waited for long.
    pub(crate) fn expect_signals(&self) {
        self.expects_signals.store(true, Ordering::SeqCst);
        self.count_if_needed();
    }

    /// Has the instructions of all threads counted from now on, if signals may interrupt them
    /// anywhere: they have handlers, and something that sends them. Most programs that have
    /// handlers only clean up in them when they are told to end.
    pub(crate) fn count_if_needed(&self) {
        let sent = self.expects_signals.load(Ordering::SeqCst);
        let sent_to_threads = || self.threads().all.len() > 1 && self.are_threads_signalled();
        if !self.counts() && (sent && self.signals.some_come_at_any_time() || sent_to_threads()) {
            self.count_from_now_on();
        }
    }

    /// Has instructions counted from the program's second thread on if the program cancels threads, or sends
    /// them signals that it handles. A thread may be computing then and have no events: it looks from time to
    /// time whether it has been cancelled, or waits for its handler to change a word.
    pub(crate) fn count_if_threads_are_disturbed(&self) {
        let are_cancelled = self.cancels.load(Ordering::SeqCst);
        if !self.counts() && (are_cancelled || self.are_threads_signalled()) {
            self.count_from_now_on();
        }
    }

    fn are_threads_signalled(&self) -> bool {
        self.signals_threads.load(Ordering::SeqCst) && self.signals.some_come_from_threads()
    }

    fn count_from_now_on(&self) {
        self.engine.count_from_now_on();
        self.counts.store(true, Ordering::SeqCst);
    }

    /// Whether instructions that a thread executes from here on are counted.
    pub(crate) fn counts(&self) -> bool {
        self.counts.load(Ordering::SeqCst)
    }

    pub(crate) fn kernel_id(&self, id: ThreadId) -> i32 {
        self.threads().all[id.index()].kernel_id
    }

    /// The living thread with this kernel id.
    pub(crate) fn thread_by_kernel_id(&self, kernel_id: i32) -> Option<ThreadId> {
        let threads = self.threads();
        let at = threads.all.iter().position(|t| t.kernel_id == kernel_id && !t.ended)?;
        Some(ThreadId(at as u32))
    }

    /// Ends the recording; the caller must not return to the guest.
    pub(crate) fn stop(&self, reason: Stop) {
        if self.is_child() {
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(waiting) = waiting {
                waiting.tell();
            }
            end_process(&reason);
        }
        let _ = self.stop.send(reason);
    }

    /// Closes every thread's stream; events of each.
    pub(crate) fn close_logs(&self) -> Vec<u64> {
        self.log.close(|| self.tickets.end_all())
    }

    /// Adds something that the user is told at the end of the recording.
    pub(crate) fn notice(&self, notice: Notice) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).insert(notice);
    }

    /// Takes such a notice back, which has become wrong.
    pub(crate) fn retract(&self, notice: Notice) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).remove(&notice);
    }

    /// Tells the user something at once.
    pub(crate) fn warn(&self, notice: Notice) {
        (self.warn)(notice);
    }

    /// All that the user is to be told.
    pub(crate) fn notices(&self) -> Vec<Notice> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    pub(crate) fn count_output(&self, bytes: u64) {
        self.output_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn output_bytes(&self) -> u64 {
        self.output_bytes.load(Ordering::Relaxed)
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How to read where the functions of a module are: from the file, if that is open, when somebody asks for them,
/// which may be much later or never.
fn functions_of(elf: &Elf, bias: u64, file: Option<Hidden>) -> ReadFunctions {
    let at = move |address: u64| bias.wrapping_add(address);
    let placed = move |Extents { starts, followed }: Extents| ModuleFunctions {
        starts: starts.into_iter().map(at).collect(),
        followed: followed.into_iter().map(|it| at(it.start)..at(it.end)).collect(),
        code: None,
    };
    match file {
        Some(file) => Box::new(move || {
            let Ok(elf) = Elf::of_library(file) else { return ModuleFunctions::default() };
            let functions = placed(elf.extents());
            let code = elf.into_code().map(|code| -> ReadCode {
                Box::new(move |address, buffer| code.read(address.wrapping_sub(bias), buffer))
            });
            ModuleFunctions { code, ..functions }
        }),
        None => {
            let functions = placed(elf.extents());
            Box::new(|| functions)
        }
    }
}

/// Ends a child process as the guest wants it.
fn end_process(reason: &Stop) -> ! {
    const FAILED: i32 = 125;
    match reason {
        Stop::Ended(Ending::Exited(status)) => host::exit_process(*status),
        Stop::Ended(Ending::Signaled(signal) | Ending::Stopped(signal)) => {
            host::end_process_by(*signal)
        }
        Stop::Failed(error) => {
            eprintln!("refrain: a child process of the program was stopped: {error}");
            host::exit_process(FAILED)
        }
        Stop::Ended(Ending::Lost) | Stop::CannotWrite => host::exit_process(FAILED),
    }
}

/// Parks the calling guest thread for good: the recording is over.
pub(crate) fn park_forever() -> ! {
    loop {
        std::thread::park();
        host::yield_now();
    }
}

/// Whether the file is a C library that implements pthreads.
fn defines_synchronization(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ["libc.so", "libc-2", "libpthread", "ld-musl", "libc.musl"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Whether it has the C library in itself.
fn is_static_program(elf: &Elf) -> bool {
    let mut has_main = false;
    if !elf.needs_libraries {
        elf.functions(|name, _| has_main |= name == "pthread_mutex_lock");
    }
    has_main
}
