//! The contract between the machine and the engines that execute guest code.
//!
//! There are two roles, and two contracts. Any [`Engine`] replays: it is told beforehand what there
//! is to execute, to hook and to watch. A [`RecordingEngine`] records, too: it learns all that while
//! the guest runs, tells what it has executed, and lets itself be interrupted.
//!
//! An engine runs one guest thread at a time on the calling host thread, at full speed, until
//! something happens that the machine must see; then [`Cpu::run`] returns an [`Exit`]. The engine
//! knows nothing of what is recorded or replayed, and the machine nothing of how code is
//! translated. Several threads run in the same engine in parallel.

use crate::order::{Filter, LastMet, Span};
use crate::{Context, Processor, reg};
use rangemap::RangeSet;
use refrain_trace::{CodeBlock, linux};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

/// What an engine is asked to report beyond system calls, hooks and faults.
#[derive(Clone, Debug, Default)]
pub struct EngineConfig {
    /// Report atomic instructions and watched accesses ([`Exit::Ordered`]), once there are
    /// [several threads](Engine::several_threads).
    pub order_atomics: bool,
    /// With `order_atomics`: order every access, but for those of the stack's own instructions.
    /// Translated code counts them ([`Cpu::filter`]), and reports the ones that need it.
    pub every_access: bool,
    /// Remember translated blocks for [`RecordingEngine::take_blocks`].
    pub keep_blocks: bool,
    /// What to count in [`Context::retired`].
    pub count: Count,
    /// Log memory accesses to the buffer of the context.
    pub accesses: bool,
    /// Which of them need not be logged.
    pub leave_out: LeaveOut,
    /// Log calls and returns there too.
    pub calls: bool,
    /// With `accesses`: log there what these functions are given and what they answer, too, by the
    /// addresses of their first instructions ([`refrain_trace::Access::CALLED`]). What they call
    /// among themselves is left out.
    pub functions: Arc<BTreeMap<u64, Answer>>,
    /// With `accesses`: log calls there that may be within each other, and their ends
    /// ([`refrain_trace::Access::ENTERED`]): by the first instructions of functions, or by
    /// indirect call instructions.
    pub nested: Arc<BTreeMap<u64, Nested>>,
    /// With `accesses`: before each of these instructions, log there what this general register
    /// has ([`refrain_trace::Access::VALUE`]).
    pub values: Arc<BTreeMap<u64, usize>>,
    /// With `accesses`: stores of eight bytes by these instructions are logged as reads where memory
    /// has the value already.
    pub compared: Arc<BTreeSet<u64>>,
    /// The guest's processor. The engine refuses instructions that this processor lacks, and cannot execute those
    /// that the host lacks. If the processor has AVX-512, threads' contexts have [`Context::wide`].
    pub processor: Processor,
    /// In a replay: addresses of the plain loads and stores that the recording watched. Exactly
    /// these are watched.
    pub watched: Option<Arc<BTreeSet<u64>>>,
    /// In a replay: data have live values, since a scheduler decides who gets a lock. What a watched
    /// load without an event reads is the machine's affair then.
    pub live: bool,
    /// In a replay: addresses of instructions that a thread leaves before, with
    /// [`Exit::Interrupted`], when it has retired exactly [`Context::leave_at`] instructions. That
    /// needs [`Count::Instructions`].
    pub places: Arc<BTreeSet<u64>>,
    /// In a replay: addresses of instructions that have accessed memory in common with other
    /// processes. An engine whose faults show no registers leaves before them ([`Exit::Alone`]).
    pub alone: Arc<BTreeSet<u64>>,
}

/// Accesses that need not be logged.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum LeaveOut {
    /// None.
    #[default]
    Nothing,
    /// To bytes that the thread has accessed before, by the notes of [`crate::Seen`], which must
    /// exist.
    Touched,
    /// To bytes that the thread has accessed in its present epoch, by its [`crate::SameEpoch`].
    SameEpoch,
}

/// Where one of [`EngineConfig::functions`] leaves its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// In rax.
    Register,
    /// Where its first argument says, if it returns zero; its answer is zero if not.
    Memory,
}

/// Which calls are logged with those that they are within.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Nested {
    /// All calls of the function that begins here, with the list that one of its arguments is the
    /// address of (zero: there is none).
    Function(Option<List>),
    /// Those of this call instruction that leave this range.
    Site(Range<u64>),
}

/// Which arguments of a function say where a list of words is, and how long it is. Arguments are
/// numbered from zero: six in registers, then two on the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    /// At this argument. Its first word is how many follow the second one, or, if that is zero, the
    /// second word is how many follow the fifth one.
    Counted(usize),
    /// At the first of these arguments are as many records of three words as the second one says.
    Records(usize, usize),
}

impl Nested {
    /// Calls that are further in are not logged.
    pub const DEEPEST: usize = 1024;
}

impl List {
    /// So many words are logged at most.
    pub const LONGEST: u32 = 60;
}

/// What [`Context::retired`] counts, in instructions that are observed ([`Mode::Observed`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Count {
    /// It stays as it is.
    #[default]
    Nothing,
    /// Retired instructions.
    Instructions,
    /// The processor's time for them, estimated from their classes, in quarters of a cycle. An
    /// engine that cannot estimate it says so when it is made.
    Cycles,
}

/// A translator and executor of guest code, shared by all guest threads: what replays.
pub trait Engine: Send + Sync {
    /// The name that users pick it by.
    fn name(&self) -> &'static str;

    /// From now on a thread that comes to the instruction at `pc` exits with [`Exit::Hook`].
    /// The caller guarantees that no code there has been executed yet.
    fn hook(&self, pc: u64);

    /// From now on there may be several threads: watched accesses and locked instructions are
    /// reported, which they were not before. The caller is the only thread.
    fn several_threads(&self) {}

    /// Lets `fast_path` stand in for the function at `pc`, which is hooked, where it can.
    ///
    /// Coming to `pc`, a thread in [`Mode::Observed`] calls `fast_path` on the host's stack, but
    /// with the guest's thread pointer. If the result is not negative, the function returns it;
    /// if it is, nothing has happened, and the thread exits with [`Exit::Hook`]. Either way the
    /// flags and the vector registers may have changed: the function must take no floating-point
    /// arguments. Engines may ignore this.
    ///
    /// # Safety
    /// For every thread of this engine that may come to `pc`, `fast_path` must be sound to call with
    /// the word given to [`Cpu::set_fast_path_data`], must need little stack, must not use
    /// thread-local storage of the host, and must not unwind.
    unsafe fn fast_path(&self, pc: u64, fast_path: FastPath) {
        let _ = (pc, fast_path);
    }

    /// Lets `fast_path` be called around ordered instructions where it can, instead of exits with
    /// [`Exit::Ordered`]. To be said before the first thread is attached. Engines may ignore this.
    ///
    /// # Safety
    /// As for [`Self::fast_path`], for both functions and every thread in [`Mode::Observed`]; but both
    /// may need as much stack as [`Cpu::run`]'s callers have.
    unsafe fn ordered_fast_path(&self, fast_path: OrderedFastPath) {
        let _ = fast_path;
    }

    /// The code in this range was unmapped, replaced or made writable. The engine forgets what it
    /// made of it before any thread runs it again.
    fn forget(&self, range: Range<u64>);

    /// Code in this range may change from now on without the engine being told: the guest
    /// generates it. Whatever the engine makes of it must be what is there when a thread comes
    /// to it. What it has made of the range before, [`Self::forget`] is about to name.
    fn generated(&self, range: Range<u64>) {
        let _ = range;
    }

    /// The guest may execute what is in these ranges, and nothing else of its memory: a thread that comes to
    /// other memory faults ([`Fault::forbidden`]). Until this is said, the engine executes whatever can be
    /// read. What the engine has made of code that may not be executed any more, [`Self::forget`] names. (It
    /// goes on executing what it has made of code that the guest generates. Programs take the right away
    /// for each function that they add, and give it back: to forget all code each time would take long.)
    fn executable(&self, ranges: &RangeSet<u64>) {
        let _ = ranges;
    }

    /// The executing half for one guest thread. It stays on the host thread that asked for it.
    fn attach(&self) -> Result<Box<dyn Cpu>, EngineError>;
}

/// An engine that records: what it executes is not known before.
pub trait RecordingEngine: Engine {
    /// Tells of a module, whose functions are read when somebody asks for a function. Modules of the same
    /// build at the same place have the same ones.
    ///
    /// With [`EngineConfig::order_atomics`], plain loads and stores of at most 8 bytes that are part of a
    /// synchronization idiom are watched, as told by the code around them.
    fn functions(&self, module: &ModuleCode<'_>, read: ReadFunctions);

    /// Tells that the debug information of the module there names the code of atomic operations: plain
    /// loads and stores in it are watched. It is read when it is asked for; where it is the same, so is
    /// the `digest`.
    fn atomics(&self, module: Range<u64>, digest: u64, read: ReadAtomics);

    /// Takes what earlier recordings have found from there, once there are
    /// [several threads](Engine::several_threads).
    fn recall(&self, recall: Recall);

    /// What to recall in later recordings of the same program, if something was found that was not
    /// recalled.
    fn findings(&self) -> Option<Vec<Finding>>;

    /// Keeps what it translates for later recordings of the same program, and uses what an earlier recording has
    /// `kept`, where the guest's code is what it was then. Nothing has been executed so far. The engine ignores
    /// `kept` if another `build` of the engine has written it, or if it is no such file.
    fn keep_code(&self, build: u64, kept: Option<&File>);

    /// What to keep, if there is more of it than was kept before: a file, in parts.
    fn kept_code(&self) -> Option<Vec<Vec<u8>>>;

    /// The function at `pc`, which is hooked, does this to a lock.
    fn lock_role(&self, pc: u64, role: LockRole);

    /// Watches these instructions too, where they are plain loads and stores of at most 8 bytes.
    /// The caller guarantees that no code there has been executed yet.
    fn watch(&self, sites: &[u64]);

    /// The executing half for one guest thread that is recorded, see [`Engine::attach`].
    fn attach_recording(&self) -> Result<Box<dyn RecordingCpu>, EngineError>;

    /// From now on instructions are counted ([`Count::Instructions`]): by a thread that runs later
    /// at once, by one that is inside translated code from the next time on that it has left it.
    fn count_from_now_on(&self);

    /// From now on every access is ordered ([`EngineConfig::every_access`]), once there are
    /// [several threads](Engine::several_threads). There were none so far.
    fn order_every_access(&self);

    /// Calls `fork`, which splits the process and says whether this is the child, while no other
    /// thread is inside the engine's locks. In the child, this thread alone goes on.
    fn fork(&self, fork: &mut dyn FnMut() -> bool);

    /// Blocks that were translated in [`Mode::Observed`] since the last call, or brought back from what an
    /// earlier recording has kept, each once: all that were executed, and others.
    fn take_blocks(&self) -> Vec<CodeBlock>;
}

/// What a function of the library's does to a lock that it is called for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LockRole {
    /// The caller holds it when the function returns.
    Takes,
    /// The caller may not hold it any more, or not have got it.
    MayRelease,
}

/// What a recording engine has found in a function, and would find again where all is the same.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// A digest of what is around the function.
    pub around: u64,
    /// Where it begins.
    pub start: u64,
    /// A digest of its code.
    pub code: u64,
    /// Bytes of its code, from its beginning on.
    pub len: u64,
    /// Addresses of the loads that loops poll, in ascending order.
    pub polls: Box<[u64]>,
    /// Addresses of all other loads, and of the stores, that are watched, in ascending order.
    pub sites: Box<[u64]>,
    /// Addresses of the loads by which the function checks whether what it loaded before them is whole.
    pub checks: Box<[u64]>,
}

/// What is known of a module's code before its functions are read.
#[derive(Clone, Default, Debug)]
pub struct ModuleCode<'a> {
    /// Where the code is.
    pub code: Range<u64>,
    /// Addresses that are no variables'.
    pub constant: &'a [Range<u64>],
    /// It is the C library, in which fewer idioms count.
    pub trusted: bool,
    /// Modules of the same build have the same code.
    pub build: Option<&'a str>,
}

/// Where the functions of a module are.
#[derive(Default)]
pub struct ModuleFunctions {
    /// Where they begin, in any order, and not necessarily all.
    pub starts: Vec<u64>,
    /// Functions that are followed by something else than the next function.
    pub followed: Vec<Range<u64>>,
    /// How to read code without touching its pages, if there is a file of it. (A trace keeps the pages that were
    /// touched.)
    pub code: Option<ReadCode>,
}

/// Reads code of a module at an address, and says how many bytes were read.
pub type ReadCode = Box<dyn Fn(u64, &mut [u8]) -> usize + Send>;

/// Reads where the functions of a module are.
pub type ReadFunctions = Box<dyn FnOnce() -> ModuleFunctions + Send>;

/// Has findings from where they are kept.
pub type Recall = Box<dyn FnOnce() -> Vec<Finding> + Send>;

/// Reads where code of atomic operations is, in ascending order.
pub type ReadAtomics = Box<dyn FnOnce() -> Vec<Range<u64>> + Send>;

/// A function of the machine's that stands in for a function of the guest's: it is given the
/// guest's first argument, the stack pointer at the function's entry, and the thread's word.
pub type FastPath = unsafe extern "sysv64" fn(argument: u64, sp: u64, data: u64) -> i64;

/// What the machine's functions of a fast path return to say: take the slow path, nothing has happened.
pub(crate) const SLOW_PATH: i64 = -1;

/// Functions of the machine's around ordered instructions: each is given the thread's word.
#[derive(Clone, Copy, Debug)]
pub struct OrderedFastPath {
    /// Before the instruction. If the result is negative, nothing has happened, and the thread
    /// exits with [`Exit::Ordered`]; if not, the instruction is executed: a load as if its operand
    /// held [`OrderedAccess::value`].
    pub before: unsafe extern "sysv64" fn(access: *mut OrderedAccess, data: u64) -> i64,
    /// After an instruction that is not a load, if `before` has not declined; with what it found in its
    /// word, if [`OrderedAccess::tells`] was true. An instruction that faults exits with
    /// [`Exit::Fault`] instead.
    pub after: unsafe extern "sysv64" fn(found: u64, data: u64),
    /// Before a string instruction, which accesses all of these bytes; where every access is recorded
    /// ([`EngineConfig::every_access`]). If the result is negative, nothing has happened, and the thread exits
    /// with [`Exit::Spans`]; if not, the instruction is executed, and `after` is called.
    pub strings: unsafe extern "sysv64" fn(spans: *const Span, count: usize, data: u64) -> i64,
}

/// What a thread is about to do with a word that others use too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderedAccess {
    /// First byte of the memory operand.
    pub address: u64,
    /// Operand size in bytes (1, 2, 4, 8 or 16).
    pub size: u8,
    /// What kind of instruction it is.
    pub kind: OrderedKind,
    /// Where it is.
    pub pc: u64,
    /// The guest's stack pointer.
    pub sp: u64,
    /// Of a load: what it is to read.
    pub value: u64,
    /// The instruction leaves what it finds in a register, so that it is known afterwards. (The upper
    /// bits are whatever that register has there.)
    pub tells: bool,
}

/// One guest thread's executor.
pub trait Cpu {
    /// Runs the guest from `context` until something happens, and stores its state there.
    ///
    /// `Exit::Hook` is suppressed for the very first instruction, so that a caller that has
    /// handled a hook goes on by calling `run` again with an unchanged `rip`.
    fn run(&mut self, context: &mut Context, mode: Mode) -> Exit;

    /// The word that fast-path functions are given on this thread.
    fn set_fast_path_data(&mut self, data: u64) {
        let _ = data;
    }

    /// What this thread met last. Translated code need not report a watched load that reads what
    /// the thread met there, at the same version, and counts it instead; in a replay, one that
    /// comes before the next event. Engines may ignore this.
    ///
    /// # Safety
    /// `met` must be there until it is replaced, or the executor dropped; nobody else may use it
    /// while the executor runs.
    unsafe fn set_last_met(&mut self, met: *mut LastMet) {
        let _ = met;
    }

    /// Whether the context is that of the last fault, so that the instruction can be executed again.
    fn shows_registers(&self) -> bool {
        true
    }

    /// What the thread shares with the machine, with [`EngineConfig::every_access`]. It is there as
    /// long as the executor.
    fn filter(&self) -> Option<Filter> {
        None
    }

    /// The bytes that the instruction of an [`Exit::Spans`] accesses, or an [`Exit::Code`].
    fn spans(&self) -> &[Span] {
        &[]
    }

    /// After an [`Exit::Code`]: translates the code in the lines of the `len` bytes from `rip` on as it is now, and
    /// executes this translation next. With a `len` of 0, it does so for no code.
    fn read_code(&mut self, context: &mut Context, len: u64) {
        let _ = (context, len);
    }

    /// Executes the one instruction at `rip` as the processor would, without reporting it. Used
    /// for the instruction of an [`Exit::Ordered`], while the machine holds its place in the
    /// order; after an [`Exit::Spans`], the part of a repeated instruction that was reported. Returns
    /// `None`, or the fault that the instruction raised.
    fn step(&mut self, context: &mut Context) -> Option<Fault>;

    /// Executes the load at `rip`, reported as [`OrderedKind::Load`], as if its memory operand
    /// held `value`.
    fn step_load(&mut self, context: &mut Context, value: u64) -> Option<Fault>;

    /// The operands in memory of the instruction at `rip`, and at most so many bytes of them, or one
    /// element, if it is repeated. None if [`Self::step_moved`] cannot execute it.
    fn operands(&mut self, context: &Context, most: u64) -> Vec<Span> {
        let _ = (context, most);
        Vec::new()
    }

    /// Executes the instruction at `rip`, without reporting it, as if the operands that
    /// [`Self::operands`] names were at these places.
    fn step_moved(&mut self, context: &mut Context, most: u64, places: &[u64]) -> Option<Fault> {
        let _ = (most, places);
        Some(Fault::illegal(context.rip))
    }

    /// Executes the locked instruction at `rip` as if its memory operand held `value`, and leaves
    /// memory alone. Returns what it would have left there, or `None` if it cannot be executed so: then
    /// nothing in `context` counts.
    fn step_beside(&mut self, context: &mut Context, value: u64) -> Option<u64>;
}

/// The executor of a guest thread that is recorded. It alone knows [`Mode::Opaque`].
pub trait RecordingCpu: Cpu {
    /// What gets this thread out of guest code, for other threads to use.
    fn interrupt(&self) -> Arc<dyn Interrupt>;

    /// Which register holds what the locked instruction at `pc` has found in its word, once it is
    /// executed; none if there is no such register.
    fn finds(&self, pc: u64) -> Option<usize>;
}

/// Gets a guest thread out of guest code.
pub trait Interrupt: Send + Sync {
    /// Soon the thread exits with [`Exit::Interrupted`], between two instructions: even if it runs
    /// in a loop without an exit, and at once when it runs next if it is outside. Not before it has
    /// reported a hook that it is at, and not in [`Mode::Opaque`], which it may go through without
    /// noticing; it may exit so without having been asked, too.
    fn interrupt(&self);
}

/// How closely the guest is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Everything that [`EngineConfig`] and the hooks ask for is reported.
    Observed,
    /// The body of a library function that is recorded as one event: hooks and atomic
    /// instructions are not reported, accesses are not logged, blocks not kept; system calls,
    /// nondeterministic instructions and faults are reported. Ends with [`Exit::Return`] when a
    /// `ret` has popped the word at the stack pointer `sp`.
    Opaque {
        /// The stack pointer at the function's entry (it points to the return address).
        sp: u64,
    },
}

/// Why guest code stopped running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// A `syscall` instruction; `rip` is past it. The machine sets rax, rcx and r11.
    Syscall,
    /// `rip` is at a hooked address, nothing there executed yet.
    Hook,
    /// The watched function of [`Mode::Opaque`] has returned; `rip` is the return address.
    Return,
    /// `rip` is at an instruction that must be ordered against other threads.
    Ordered {
        /// First byte of its memory operand.
        address: u64,
        /// Operand size in bytes (1, 2, 4, 8 or 16).
        size: u8,
        /// A locked read-modify-write, or a plain access that belongs to a synchronization idiom.
        kind: OrderedKind,
    },
    /// `rip` is at an instruction with other operands than one in memory: [`Cpu::spans`] has them.
    Spans,
    /// `rip` is at one of [`EngineConfig::alone`], which the machine executes by itself.
    Alone,
    /// With [`EngineConfig::every_access`]: `rip` is at code that the guest has generated, and
    /// before it is executed, the bytes in [`Cpu::spans`] have to be read.
    Code,
    /// A nondeterministic or virtualized instruction; `rip` is past it, the machine supplies the
    /// result.
    Emulate(Emulate),
    /// The access buffer is full; `rip` is where to go on once it has been emptied.
    AccessesFull,
    /// The instruction at `rip` faulted; the state is the one before it. After a trap (SIGTRAP),
    /// `rip` is past the instruction, as the processor has it.
    Fault(Fault),
    /// The engine cannot execute the instruction at `rip`.
    Unsupported(&'static str),
    /// Nothing of the instruction at `rip` is executed: somebody wanted the thread to come out, or
    /// it has come to one of [`EngineConfig::places`].
    Interrupted,
    /// Control reached `rip`, which is not among the blocks that the engine was given.
    UnknownTarget,
}

impl Exit {
    /// Whether instructions are counted anew from here on. They are not from where a thread yields:
    /// that is no event, and a thread that waits so may do it any number of times between two.
    pub(crate) fn begins_count(self, context: &Context) -> bool {
        let number = || u16::try_from(context.gpr[reg::RAX]);
        match self {
            Exit::Syscall => !number().is_ok_and(linux::yields),
            Exit::Fault(_) => true,
            _ => false,
        }
    }
}

/// The kinds of [`Exit::Ordered`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderedKind {
    /// A locked instruction or an `xchg` with memory.
    ReadModifyWrite,
    /// A plain load.
    Load,
    /// A plain load that a loop polls: the time in which it reads the same is spent waiting.
    Poll,
    /// A plain load that tells whether what was loaded before it is whole, as a reader of a seqlock looks at
    /// the lock's version once more: stores of the word that follow must not come before it in a replay,
    /// since others that are not watched follow them.
    Check,
    /// A plain store.
    Store,
    /// With [`EngineConfig::every_access`]: any instruction that reads its operand,
    Read,
    /// or one that writes it, or both,
    Write,
    /// or a branch that reads where it goes to; it is not executed by itself.
    Target,
}

impl OrderedKind {
    /// Whether it is a load.
    pub fn is_load(self) -> bool {
        matches!(self, OrderedKind::Load | OrderedKind::Poll | OrderedKind::Check)
    }

    /// Whether it is one of those that [`EngineConfig::every_access`] asks for.
    pub fn is_any(self) -> bool {
        matches!(self, OrderedKind::Read | OrderedKind::Write | OrderedKind::Target)
    }
}

/// Instructions whose results the machine supplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Emulate {
    /// eax, ebx, ecx, edx from eax and ecx.
    Cpuid,
    /// edx:eax.
    Rdtsc,
    /// edx:eax, ecx.
    Rdtscp,
    /// A random number into general register `register` (operand size 2, 4 or 8) and CF.
    Random {
        /// Index into [`Context::gpr`].
        register: u8,
        /// Operand size in bytes.
        size: u8,
    },
    /// edx:eax from ecx.
    Xgetbv,
    /// Stores or loads the components of the extended state that edx:eax names (`xsave`, `xrstor`).
    State(StateArea),
    /// Takes rip, the flags and rsp from the stack (`iretq`).
    InterruptReturn,
}

/// An `xsave` or `xrstor`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateArea {
    /// Where the area is.
    pub operand: Operand,
    /// Whether the state is loaded.
    pub loads: bool,
    /// Length of the instruction.
    pub len: u8,
}

/// An operand in memory, by the registers that its address is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand {
    /// Index into [`Context::gpr`].
    pub base: Option<u8>,
    /// Another one, and what it is multiplied by.
    pub index: Option<(u8, u8)>,
    /// What is added.
    pub displacement: u64,
}

impl Operand {
    pub(crate) fn address(self, context: &Context) -> u64 {
        let base = self.base.map_or(0, |base| context.gpr[usize::from(base)]);
        let index = self
            .index
            .map_or(0, |(index, scale)| context.gpr[usize::from(index)].wrapping_mul(scale.into()));
        base.wrapping_add(index).wrapping_add(self.displacement)
    }
}

/// A processor exception.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The signal that Linux would send (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP).
    pub signal: i32,
    /// The address that it was about (`si_addr`).
    pub address: u64,
    /// What the processor has said of it.
    pub cause: Cause,
}

/// What a processor tells the kernel of an exception, which tells it the handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cause {
    /// The exception's number (`REG_TRAPNO`).
    pub vector: u32,
    /// Its error code (`REG_ERR`).
    pub error: u32,
    /// `si_code`, where the number does not tell it; or 0.
    pub code: i32,
}

impl Cause {
    /// `#DB`, by `int1`.
    pub const DEBUG: u32 = 1;
    /// `#BP`, by `int3`.
    pub const BREAKPOINT: u32 = 3;
    /// `#OF`.
    pub const OVERFLOW: u32 = 4;
    /// `#UD`.
    pub const ILLEGAL: u32 = 6;
    /// `#GP`.
    pub const PROTECTION: u32 = 13;
    /// `#PF`.
    pub const PAGE: u32 = 14;
    /// In a page fault's error code: the page is there, and may not be accessed so.
    pub const PRESENT: u32 = 1;
    /// In a page fault's error code: the guest's code, not the kernel, has accessed it.
    pub const USER: u32 = 4;
    /// In a page fault's error code: an instruction was to be read.
    pub const FETCH: u32 = 16;
}

impl Fault {
    /// An access of memory that is not there.
    pub fn access(address: u64) -> Fault {
        let cause = Cause { vector: Cause::PAGE, error: Cause::USER, code: 0 };
        Fault { signal: libc::SIGSEGV, address, cause }
    }

    /// An instruction is to be executed where none can be read.
    pub fn fetch(address: u64) -> Fault {
        let cause = Cause { vector: Cause::PAGE, error: Cause::USER | Cause::FETCH, code: 0 };
        Fault { signal: libc::SIGSEGV, address, cause }
    }

    /// An instruction is to be executed in memory that is there and may not be executed.
    pub fn forbidden(address: u64) -> Fault {
        const SEGV_ACCERR: i32 = 2;
        let error = Cause::USER | Cause::FETCH | Cause::PRESENT;
        let cause = Cause { vector: Cause::PAGE, error, code: SEGV_ACCERR };
        Fault { signal: libc::SIGSEGV, address, cause }
    }

    /// What the processor does not allow a program, of whatever address.
    pub fn protection() -> Fault {
        Fault::exception(Cause::PROTECTION, 0)
    }

    /// An instruction that there is not, at this address.
    pub fn illegal(pc: u64) -> Fault {
        Fault::exception(Cause::ILLEGAL, pc)
    }

    /// An exception of this number, which has no error code.
    pub fn exception(vector: u32, address: u64) -> Fault {
        let signal = match vector {
            Cause::DEBUG | Cause::BREAKPOINT => libc::SIGTRAP,
            Cause::ILLEGAL => libc::SIGILL,
            _ => libc::SIGSEGV,
        };
        Fault { signal, address, cause: Cause { vector, error: 0, code: 0 } }
    }

    /// A fault of which no more is known than the signal.
    pub fn by_signal(signal: i32, address: u64) -> Fault {
        match signal {
            libc::SIGILL => Fault::illegal(address),
            libc::SIGTRAP => Fault::exception(Cause::BREAKPOINT, address),
            libc::SIGFPE => Fault { signal, address, cause: Cause::default() },
            _ => Fault { signal, ..Fault::access(address) },
        }
    }
}

/// Why an engine cannot work here.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The kernel or the processor lacks something (the user's machine is at fault).
    #[error("this machine cannot run the {engine} engine: {why}")]
    Unavailable {
        /// The engine.
        engine: &'static str,
        /// What is missing, and what to do.
        why: String,
    },
    /// The program has what this engine cannot run.
    #[error("the {engine} engine cannot run this program: {why}")]
    Program {
        /// The engine.
        engine: &'static str,
        /// What it is, and what to do.
        why: String,
    },
    /// Memory for translated code cannot be had.
    #[error(
        "cannot reserve {0} bytes at {1:#x} for translated code: {2} (a hard limit of the address space may be \
         too low: `ulimit -Hv`)"
    )]
    CodeMemory(u64, u64, std::io::Error),
}
