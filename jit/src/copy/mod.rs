//! The engine `copy`: guest instructions are copied into a code cache and executed there.
//!
//! Guest registers live in host registers and guest addresses are host addresses, so nearly every
//! instruction is its own translation. Control flow is what changes: blocks are chained, indirect
//! branches go through tables, returns are predicted (`branch`). Instrumentation keeps the flags
//! and the red zone.
//!
//! # Reading order
//! `state` (what GS points to, the way in and out), `desc` (why code is left), `translator` (what
//! the lock protects), `places` (where translations lie), `text` (the code that one is made of),
//! `translate`, `plain`, `watch` and `branch` (emitting blocks), `persistent` (keeping them for later
//! recordings), `cpu` (the loop). What is
//! ordered against other threads: `ordered`, `idioms`, `functions`, `limits`, `learned`; and how it
//! is executed without leaving code, `inline` (`own`: what one thread alone writes to); `every` orders
//! every access (`plan`, `careful`). What observers see: `accessed`, `log`.
//!
//! # Invariants
//! - Translated code is left only with all guest state in the [`Context`](refrain_vm::Context).
//! - Host code never runs with the guest's FS, but for the machine's fast-path functions, which know.
//! - Code memory is reused only when no thread is inside translated code ([`Shared::reclaim`]).
//!
//! # Signals
//! The machine blocks asynchronous signals in guest threads, or has handlers for them that only
//! look at the interrupted address (the exceptions' signals must stay unblocked). A thread that is
//! wanted outside ([`refrain_vm::Interrupt`]) has every block unlinked, so that it leaves at the end
//! of the one that it is in, and nothing linked again until it has left.
//!
//! # Generated code
//! A block of code that the guest has made itself begins with a look whether the code is still what
//! was translated (`generated`); if it is not, it is translated anew. So a thread executes the code that
//! is there when it comes to the block, whoever has written the code.
//!
//! # Limits
//! - Code that changes while a thread is inside a block of it runs to the end of the block as it was.
//! - Code is executed if it is readable; the page's execute permission is not checked.
//! - The trap flag is not kept apart from the host's, and the alignment-check flag is cleared
//!   whenever code is left.

mod accessed;
mod addresses;
mod branch;
mod careful;
mod classify;
mod cpu;
mod desc;
mod emit;
mod every;
mod executable;
mod faults;
mod functions;
mod generated;
mod idioms;
mod image;
mod inline;
mod kept;
mod learned;
mod limits;
mod listing;
mod log;
mod looked;
mod loops;
mod ordered;
mod own;
mod persistent;
mod pieces;
mod places;
mod plain;
mod plan;
mod rows;
mod state;
mod tables;
#[cfg(test)]
mod tests;
mod text;
mod translate;
mod translator;
mod vectors;
mod watch;

use crate::{fault, memory};
use rangemap::RangeSet;
use refrain_trace::CodeBlock;
use refrain_vm::{
    Barrier, Count, Cpu, Engine, EngineConfig, EngineError, FastPath, Finding, LeaveOut, LockRole,
    ModuleCode, OrderedFastPath, ReadAtomics, ReadFunctions, Recall, RecordingCpu, RecordingEngine,
};
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tables::Tables;
use translator::Translator;

const NAME: &str = "copy";

/// Code memory of an engine unless told otherwise.
const CODE_BYTES: u64 = 128 << 20;

/// Makes an engine that copies code.
///
/// # Errors
/// If the processor or kernel lacks FSGSBASE, code memory cannot be had, or `config` asks for
/// what copies do not log ([`logs_copies`]).
pub fn copy(config: EngineConfig) -> Result<Arc<dyn RecordingEngine>, EngineError> {
    Ok(Arc::new(CopyEngine::new(config, CODE_BYTES)?))
}

/// Whether copies log all that an observer asks for.
#[must_use]
pub fn logs_copies(config: &EngineConfig) -> bool {
    let looks = config.leave_out == LeaveOut::Touched && !is_x86_feature_detected!("bmi2");
    // In a run in which every access is ordered, nothing races: nobody compares stores there.
    let compares = config.every_access && !config.compared.is_empty();
    config.accesses && !compares && !looks
}

/// See the module's documentation.
struct CopyEngine {
    shared: Arc<Shared>,
}

/// What all threads of an engine share.
struct Shared {
    translator: Mutex<Translator>,
    /// The translator's generation, to be read without the lock.
    generation: AtomicU64,
    /// Nobody may enter translated code: its memory is about to be reused.
    closing: AtomicBool,
    /// Between `closing` and each thread's [`Inside`].
    barrier: Barrier,
    threads: Mutex<Vec<Arc<Inside>>>,
    /// Threads that there were.
    numbers: AtomicU32,
    /// One bit per hash of a hooked address.
    hooked: [AtomicU64; HOOK_WORDS],
}

/// Whether a thread may be executing translated code, and may go on. In its own cache line, as
/// others read it.
#[derive(Default)]
#[repr(align(64))]
struct Inside {
    inside: AtomicBool,
    /// Somebody wants the thread to come out, once.
    wanted: AtomicBool,
}

impl CopyEngine {
    fn new(config: EngineConfig, code_bytes: u64) -> Result<CopyEngine, EngineError> {
        let unavailable = |why: &str| EngineError::Unavailable { engine: NAME, why: why.into() };
        if (config.accesses || config.calls) && !logs_copies(&config) {
            return Err(unavailable("this observer needs the cranelift engine"));
        }
        if config.count == Count::Cycles {
            return Err(unavailable("estimating cycles needs the cranelift engine"));
        }
        if config.every_access && config.watched.is_none() && !is_x86_feature_detected!("bmi2") {
            return Err(unavailable(
                "recording every access needs a processor with BMI2; record with --order sync",
            ));
        }
        if !fault::has_fsgsbase() {
            return Err(unavailable(if refrain_vm::is_recorded() {
                "this is running under refrain already, and a recorded program cannot record"
            } else {
                "the kernel does not enable FSGSBASE (Linux 5.9 or later does)"
            }));
        }
        fault::install();
        let memory_bytes = code_bytes + code_bytes / (tables::DESCRIPTORS_SHARE - 1);
        let reserved = memory::reserve_low(tables::BYTES + memory_bytes)?;
        let translator = Translator::new(config, Tables::new(reserved)?)?;
        let shared = Shared {
            generation: AtomicU64::new(translator.generation),
            translator: Mutex::new(translator),
            closing: AtomicBool::new(false),
            barrier: Barrier::new(),
            threads: Mutex::default(),
            numbers: AtomicU32::new(0),
            hooked: [const { AtomicU64::new(0) }; HOOK_WORDS],
        };
        Ok(CopyEngine { shared: Arc::new(shared) })
    }
}

impl Engine for CopyEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn hook(&self, pc: u64) {
        let mut translator = self.shared.lock();
        let (word, bit) = hook_bit(pc);
        self.shared.hooked[word].fetch_or(bit, Ordering::SeqCst);
        translator.functions.hook(pc);
        if translator.hooks.insert(pc) && translator.covers(pc..pc + 1) {
            self.shared.flush(&mut translator);
        }
    }

    fn several_threads(&self) {
        let mut translator = self.shared.lock();
        translator.learned.read();
        translator.functions.read_known();
        if !translator.config.order_atomics {
            translator.end_keeping();
        }
        if !std::mem::replace(&mut translator.several, true) && translator.config.order_atomics {
            self.shared.flush(&mut translator);
        }
    }

    unsafe fn fast_path(&self, pc: u64, fast_path: FastPath) {
        let mut translator = self.shared.lock();
        if translator.config.accesses {
            // What was logged before an event is to be taken before it happens.
            return;
        }
        translator.fast_paths.insert(pc, fast_path);
        if translator.covers(pc..pc + 1) {
            self.shared.flush(&mut translator);
        }
    }

    unsafe fn ordered_fast_path(&self, fast_path: OrderedFastPath) {
        let mut translator = self.shared.lock();
        translator.ordered_fast_path = Some(fast_path).filter(|_| !translator.config.accesses);
    }

    fn forget(&self, range: Range<u64>) {
        let mut translator = self.shared.lock();
        translator.functions.changed(&range);
        if translator.covers(range) {
            self.shared.flush(&mut translator);
        }
    }

    fn generated(&self, range: Range<u64>) {
        if !range.is_empty() {
            self.shared.lock().generated.insert(range);
        }
    }

    fn executable(&self, ranges: &RangeSet<u64>) {
        self.shared.lock().executable = Some(ranges.clone());
    }

    fn attach(&self) -> Result<Box<dyn Cpu>, EngineError> {
        Ok(Box::new(cpu::CopyCpu::new(Arc::clone(&self.shared))?))
    }
}

impl RecordingEngine for CopyEngine {
    fn lock_role(&self, pc: u64, role: LockRole) {
        self.shared.lock().functions.lock_role(pc, role);
    }

    fn functions(&self, module: &ModuleCode<'_>, read: ReadFunctions) {
        self.shared.lock().functions.add(module, read);
    }

    fn atomics(&self, module: Range<u64>, digest: u64, read: ReadAtomics) {
        self.shared.lock().functions.add_atomics(module, digest, read);
    }

    fn recall(&self, recall: Recall) {
        self.shared.lock().functions.recall_from(recall);
    }

    fn findings(&self) -> Option<Vec<Finding>> {
        self.shared.lock().functions.findings()
    }

    fn keep_code(&self, build: u64, kept: Option<&File>) {
        self.shared.lock().keep_code(build, kept);
    }

    fn kept_code(&self) -> Option<Vec<Vec<u8>>> {
        self.shared.lock().kept_code()
    }

    fn watch(&self, sites: &[u64]) {
        let mut translator = self.shared.lock();
        translator.learned.add(sites);
        if translator.several {
            translator.learned.read();
        }
    }

    fn attach_recording(&self) -> Result<Box<dyn RecordingCpu>, EngineError> {
        Ok(Box::new(cpu::CopyCpu::new(Arc::clone(&self.shared))?))
    }

    fn count_from_now_on(&self) {
        let mut translator = self.shared.lock();
        if translator.config.count == Count::Nothing {
            translator.end_keeping();
            translator.config.count = Count::Instructions;
            self.shared.flush(&mut translator);
        }
    }

    fn order_every_access(&self) {
        let mut translator = self.shared.lock();
        debug_assert!(!translator.several, "the caller's promise");
        translator.config.every_access = true;
    }

    fn fork(&self, fork: &mut dyn FnMut() -> bool) {
        let mut translator = self.shared.lock();
        let threads = self.shared.threads.lock().expect("the list is only pushed to and filtered");
        if fork() {
            // Nobody is inside translated code, nor about to make room: this thread is here.
            threads.iter().for_each(|thread| thread.inside.store(false, Ordering::SeqCst));
            self.shared.closing.store(false, Ordering::SeqCst);
            if let Err(error) = translator.begin_again() {
                eprintln!("refrain: a child process has no memory for code: {error}");
                std::process::abort();
            }
            self.shared.publish(&translator);
        }
    }

    fn take_blocks(&self) -> Vec<CodeBlock> {
        let kept = self.shared.lock().take_kept();
        kept.into_blocks()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Translator> {
        self.translator.lock().expect("the translator does not panic while it holds its lock")
    }

    /// Whether `pc` may be hooked; `false` is certain.
    fn may_be_hooked(&self, pc: u64) -> bool {
        let (word, bit) = hook_bit(pc);
        self.hooked[word].load(Ordering::Relaxed) & bit != 0
    }

    fn flush(&self, translator: &mut Translator) {
        translator.flush();
        self.publish(translator);
    }

    /// Lets everybody know the translator's generation, which may have changed.
    fn publish(&self, translator: &Translator) {
        // Only who has the lock changes it; a store for all to see takes longer than a look.
        if self.generation.load(Ordering::Relaxed) != translator.generation {
            self.generation.store(translator.generation, Ordering::SeqCst);
        }
    }

    /// Makes room in the code memory. The calling thread must be outside translated code and
    /// not hold the lock.
    fn reclaim(&self) {
        if self.closing.swap(true, Ordering::SeqCst) {
            // Somebody else is at it.
            while self.closing.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            return;
        }
        self.barrier.heavy();
        // Unlinked, every thread leaves at the end of its block; none may come in again.
        self.flush(&mut self.lock());
        let threads = self.threads.lock().expect("the list is only pushed to and filtered");
        while threads.iter().any(|thread| thread.inside.load(Ordering::SeqCst)) {
            // They may need the lock to understand a fault, so it is not held here.
            std::thread::yield_now();
        }
        let mut translator = self.lock();
        translator.reclaim();
        self.publish(&translator);
        self.closing.store(false, Ordering::SeqCst);
    }
}

/// Words of [`Shared::hooked`].
const HOOK_WORDS: usize = 64;

/// Place of a hooked address in [`Shared::hooked`].
fn hook_bit(pc: u64) -> (usize, u64) {
    let hash = pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
    ((hash >> 6) as usize, 1 << (hash & 63))
}
