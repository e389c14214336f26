//! The engine `tiered`: a replay begins on copied code at once, and what threads come to often is
//! compiled by Cranelift in the background.
//!
//! Copies cost a microsecond an instruction to make and run nearly natively; compiled code costs
//! some ten times as much and is no faster (see `docs/benchmarks.md`). What it adds is another way
//! to the same result: the state that a thread leaves compiled code with is held against the
//! recording like any other, so each tier checks the other one where the program spends its events.
//!
//! A thread changes tiers only where it is outside of translated code, with its whole state in the
//! [`Context`]: on its way in at an address that is compiled, and out of compiled code at an
//! address that is not. Where it leaves code seldom nothing is compiled: a run that is over soon
//! pays for copies alone, and so does a loop that computes.
//!
//! # Limits
//! - A program with several threads runs on copies alone. The copies count, thread by thread, the
//!   watched loads that need no event, and compiled code has a counter of its own.
//! - A program that generates code runs on copies alone. Only copies compare generated code with
//!   what they were made from.

use crate::copy::copy;
use crate::cranelift::{CraneliftEngine, Program};
use rangemap::RangeSet;
use refrain_trace::CodeBlock;
use refrain_vm::{
    Context, Count, Cpu, Engine, EngineConfig, EngineError, Exit, FastPath, Fault, LastMet, Mode,
    OrderedFastPath, Span,
};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};

const NAME: &str = "tiered";

/// A thread that comes in so often at one address has it compiled.
const OFTEN: u8 = 64;

/// Addresses that a thread counts its ways in by.
const COUNTERS: usize = 1 << 10;

/// Makes an engine that replays code in two tiers. `hooks` are all addresses that will be hooked.
///
/// # Errors
/// If `config` asks for what the copy engine cannot do.
pub fn tiered(
    config: EngineConfig,
    blocks: Vec<CodeBlock>,
    hooks: Vec<u64>,
) -> Result<Arc<dyn Engine>, EngineError> {
    // Counts would have to be equal in both tiers at every instruction that a signal may interrupt.
    let compiles = config.count == Count::Nothing && config.places.is_empty();
    let copies = copy(config.clone())?;
    let (compiled, copies_only) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(false)));
    let wanted = compiles.then(|| {
        let (wanted, addresses) = mpsc::channel();
        let (compiled, hooks) = (Arc::clone(&compiled), hooks.clone());
        // Without this thread everything runs as copies.
        let _ = std::thread::Builder::new().name("refrain-compiler".into()).spawn(move || {
            let program = Program { blocks: &blocks, hooks: &hooks };
            compile(&config, program, &compiled, &addresses)
        });
        wanted
    });
    Ok(Arc::new(Tiered { copies, compiled, copies_only, wanted, hooks: sorted(hooks) }))
}

fn sorted(mut hooks: Vec<u64>) -> Arc<[u64]> {
    hooks.sort_unstable();
    hooks.into()
}

/// Compiles what is wanted until nobody wants anything any more, or there is no room.
fn compile(
    config: &EngineConfig,
    program: Program<'_>,
    compiled: &OnceLock<CraneliftEngine>,
    addresses: &Receiver<u64>,
) {
    let Ok(first) = addresses.recv() else { return };
    // What it refuses (code that changed, code out of its reach) stays with the copies.
    let Ok(engine) = CraneliftEngine::on_demand(config, program) else { return };
    let engine = compiled.get_or_init(|| engine);
    let mut wanted = std::iter::once(first).chain(addresses.iter());
    while wanted.next().is_some_and(|pc| engine.compile(pc)) {}
}

/// See the module's documentation.
struct Tiered {
    copies: Arc<dyn Engine>,
    /// Set once something is to be compiled.
    compiled: Arc<OnceLock<CraneliftEngine>>,
    /// There may be several threads, or code that changes: all goes on with copies.
    copies_only: Arc<AtomicBool>,
    /// Takes addresses that are to be compiled.
    wanted: Option<Sender<u64>>,
    hooks: Arc<[u64]>,
}

impl Tiered {
    fn attach_tiers(&self) -> Result<TieredCpu, EngineError> {
        Ok(TieredCpu {
            copies: self.copies.attach()?,
            cpu: None,
            compiled: Arc::clone(&self.compiled),
            copies_only: Arc::clone(&self.copies_only),
            has_faulted: false,
            wanted: self.wanted.clone(),
            hooks: Arc::clone(&self.hooks),
            counters: Box::new([0; COUNTERS]),
        })
    }
}

impl Engine for Tiered {
    fn name(&self) -> &'static str {
        NAME
    }

    fn hook(&self, pc: u64) {
        assert!(self.hooks.binary_search(&pc).is_ok(), "hooks are given to `tiered`: {pc:#x}");
        self.copies.hook(pc);
    }

    fn several_threads(&self) {
        self.copies.several_threads();
        self.copies_only.store(true, Ordering::SeqCst);
    }

    unsafe fn fast_path(&self, pc: u64, fast_path: FastPath) {
        // SAFETY: the caller's; compiled code calls no fast-path functions.
        unsafe { self.copies.fast_path(pc, fast_path) };
    }

    unsafe fn ordered_fast_path(&self, fast_path: OrderedFastPath) {
        // SAFETY: as above.
        unsafe { self.copies.ordered_fast_path(fast_path) };
    }

    fn forget(&self, range: Range<u64>) {
        // Compiled code is that of the whole recording, or there is none.
        self.copies.forget(range);
    }

    fn generated(&self, range: Range<u64>) {
        self.copies.generated(range);
        self.copies_only.store(true, Ordering::SeqCst);
    }

    fn executable(&self, ranges: &RangeSet<u64>) {
        self.copies.executable(ranges);
    }

    fn attach(&self) -> Result<Box<dyn Cpu>, EngineError> {
        Ok(Box::new(self.attach_tiers()?))
    }
}

/// One thread's executors.
struct TieredCpu {
    copies: Box<dyn Cpu>,
    /// The executor of compiled code, once there is some.
    cpu: Option<Box<dyn Cpu>>,
    compiled: Arc<OnceLock<CraneliftEngine>>,
    copies_only: Arc<AtomicBool>,
    /// Compiled code has ended by a fault.
    has_faulted: bool,
    wanted: Option<Sender<u64>>,
    hooks: Arc<[u64]>,
    /// Ways in, by a hash of the address.
    counters: Box<[u8; COUNTERS]>,
}

impl TieredCpu {
    /// The executor of compiled code, if there is some for `pc`.
    fn compiled_at(&mut self, pc: u64) -> Option<&mut Box<dyn Cpu>> {
        let engine = self.compiled.get().filter(|engine| engine.has(pc))?;
        if self.cpu.is_none() {
            self.cpu = engine.attach().ok();
        }
        self.cpu.as_mut()
    }

    /// Counts a way in that is not compiled, and asks for the code when it is one too many.
    fn count(&mut self, pc: u64) {
        let Some(wanted) = &self.wanted else { return };
        let place = (pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize;
        let counter = &mut self.counters[place];
        *counter = counter.wrapping_add(1);
        if *counter == OFTEN && self.hooks.binary_search(&pc).is_err() {
            // Nobody listens any more once the code memory is full.
            let _ = wanted.send(pc);
        }
    }
}

impl Cpu for TieredCpu {
    fn run(&mut self, context: &mut Context, mode: Mode) -> Exit {
        self.has_faulted = false;
        if mode == Mode::Observed && !self.copies_only.load(Ordering::Relaxed) {
            let exit = self.compiled_at(context.rip).map(|cpu| cpu.run(context, mode));
            match exit {
                None => self.count(context.rip),
                // Copies would go past the hook, as if the machine had seen it.
                Some(Exit::UnknownTarget) if self.hooks.binary_search(&context.rip).is_ok() => {
                    return Exit::Hook;
                }
                Some(Exit::UnknownTarget) => self.count(context.rip),
                Some(exit) => {
                    self.has_faulted = matches!(exit, Exit::Fault(_));
                    return exit;
                }
            }
        }
        self.copies.run(context, mode)
    }

    fn shows_registers(&self) -> bool {
        !self.has_faulted
    }

    fn set_fast_path_data(&mut self, data: u64) {
        self.copies.set_fast_path_data(data);
    }

    unsafe fn set_last_met(&mut self, met: *mut LastMet) {
        // SAFETY: the caller's; compiled code does not use it.
        unsafe { self.copies.set_last_met(met) };
    }

    fn step(&mut self, context: &mut Context) -> Option<Fault> {
        self.copies.step(context)
    }

    fn step_load(&mut self, context: &mut Context, value: u64) -> Option<Fault> {
        self.copies.step_load(context, value)
    }

    fn operands(&mut self, context: &Context, most: u64) -> Vec<Span> {
        self.copies.operands(context, most)
    }

    fn step_moved(&mut self, context: &mut Context, most: u64, places: &[u64]) -> Option<Fault> {
        self.copies.step_moved(context, most, places)
    }

    fn step_beside(&mut self, context: &mut Context, value: u64) -> Option<u64> {
        self.copies.step_beside(context, value)
    }
}

#[cfg(test)]
mod tests {
    use super::{NAME, Tiered, sorted, tiered};
    use crate::copy::copy;
    use crate::cranelift::{CraneliftEngine, Program};
    use iced_x86::IcedError;
    use iced_x86::code_asm::*;
    use refrain_trace::CodeBlock;
    use refrain_vm::{Context, Cpu, Engine, EngineConfig, Exit, Feature, Mode, Processor, reg};
    use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

    const CODE: u64 = 0x2600_0000;
    const STACK: u64 = 0x2600_8000;
    const LEN: usize = 1 << 16;
    const ROUNDS: u64 = 200;

    /// The program lies at a fixed address, so one test runs at a time.
    fn alone() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        ONE.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What the recorder does with the loop: its exits, its blocks, and where the hook is.
    fn record() -> (Vec<Seen>, Vec<CodeBlock>, u64) {
        let mut a = CodeAssembler::new(64).expect("64 is a bitness");
        let hook = write(&mut a).expect("the program can be encoded");
        let recorder = copy(EngineConfig { keep_blocks: true, ..config() })
            .expect("the copy engine works here");
        recorder.hook(hook);
        let exits = run(&mut *recorder.attach().expect("attaches"));
        (exits, recorder.take_blocks(), hook)
    }

    /// A loop that leaves code at a system call and at a hook in every round, with flags, vector
    /// registers and memory carried from one to the next.
    fn write(a: &mut CodeAssembler) -> Result<u64, IcedError> {
        let (mut again, mut function, mut skip) =
            (a.create_label(), a.create_label(), a.create_label());
        a.xor(ebx, ebx)?;
        a.set_label(&mut again)?;
        a.add(rbx, 3)?;
        a.imul_3(r12, rbx, 0x0123_4567)?;
        a.movq(xmm1, r12)?;
        a.paddq(xmm2, xmm1)?;
        if is_x86_feature_detected!("avx2") {
            a.vinserti128(ymm4, ymm3, xmm1, 1)?;
            a.vpaddq(ymm3, ymm3, ymm4)?;
        }
        a.push(r12)?;
        a.syscall()?;
        a.cmp(r12, qword_ptr(rsp))?;
        a.call(function)?;
        a.adc(r13, rbx)?;
        a.pop(r14)?;
        a.dec(r15)?;
        a.jnz(again)?;
        a.int3()?;
        a.set_label(&mut function)?;
        a.test(rbx, 1)?;
        a.jz(skip)?;
        a.add(r13, r14)?;
        a.set_label(&mut skip)?;
        a.cmp(r13, rbx)?;
        a.ret()?;
        let options = iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let done = a.assemble_options(CODE, options)?;
        // SAFETY: the fixed address is the tests' own, and mapped before it is written.
        unsafe {
            let at = CODE as *mut libc::c_void;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mmap(at, LEN, protection, flags, -1, 0), at);
            let code = &done.inner.code_buffer;
            std::ptr::copy_nonoverlapping(code.as_ptr(), CODE as *mut u8, code.len());
        }
        done.label_ip(&function)
    }

    fn start() -> Context {
        let mut context = Context::default();
        context.wide = config().processor.has(Feature::Avx512F).then(Box::default);
        context.rip = CODE;
        context.gpr[reg::RSP] = STACK;
        context.gpr[reg::R15] = ROUNDS;
        context
    }

    /// What is compared at an exit. Not the flags: nobody reads those of a system call.
    type Seen = (Exit, u64, [u64; 16], [[[u64; 2]; 16]; 2]);

    /// Runs to the end.
    fn run(cpu: &mut dyn Cpu) -> Vec<Seen> {
        let mut context = start();
        let mut exits = Vec::new();
        loop {
            let exit = cpu.run(&mut context, Mode::Observed);
            exits.push((exit, context.rip, context.gpr, [context.xmm, context.high]));
            match exit {
                Exit::Syscall => {
                    context.gpr[reg::RAX] = exits.len() as u64;
                    (context.gpr[reg::RCX], context.gpr[reg::R11]) = (context.rip, 0x202);
                }
                Exit::Hook => {}
                _ => return exits,
            }
        }
    }

    fn config() -> EngineConfig {
        EngineConfig { processor: Processor::host(), ..EngineConfig::default() }
    }

    fn engine(blocks: &[CodeBlock], hook: u64) -> Tiered {
        let config = config();
        let made = CraneliftEngine::on_demand(&config, Program { blocks, hooks: &[hook] })
            .expect("the engine works here");
        let compiled = Arc::new(OnceLock::from(made));
        let copies = copy(config).expect("the copy engine works here");
        Tiered {
            copies,
            compiled,
            copies_only: Arc::default(),
            wanted: None,
            hooks: sorted(vec![hook]),
        }
    }

    /// Whatever part of the loop is compiled: threads change tiers at its ends.
    #[test]
    fn tiers_agree_wherever_threads_change_them() {
        let _alone = alone();
        let (expected, blocks, hook) = record();
        assert_eq!(expected.len() as u64, 2 * ROUNDS + 1);
        let ways: Vec<u64> = blocks.iter().map(|b| b.pc).filter(|&pc| pc != hook).collect();
        assert!(ways.len() >= 4, "{ways:#x?}");
        let is_way_in =
            |pc| pc == CODE || expected.iter().any(|e| (e.0, e.1) == (Exit::Syscall, pc));
        for chosen in 0..1u32 << ways.len().min(6) {
            let engine = engine(&blocks, hook);
            engine.hook(hook);
            let compiled = engine.compiled.get().expect("it was just made");
            let picked = || ways.iter().enumerate().filter(|(n, _)| chosen & 1 << n != 0);
            assert!(picked().all(|(_, &pc)| compiled.compile(pc) && compiled.has(pc)));
            let mut cpu = engine.attach_tiers().expect("attaches");
            assert!(run(&mut cpu) == expected, "{chosen:#b} of {ways:#x?}");
            // Which regions have a way in elsewhere too is the partition's affair.
            let entered = picked().any(|(_, &pc)| is_way_in(pc));
            assert!(cpu.cpu.is_some() || !entered, "{chosen:#b} of {ways:#x?}");
        }
    }

    #[test]
    fn what_threads_come_to_often_is_compiled() {
        let _alone = alone();
        let (expected, blocks, hook) = record();
        let mut engine = engine(&blocks, hook);
        engine.hook(hook);
        let (wanted, addresses) = std::sync::mpsc::channel();
        engine.wanted = Some(wanted);
        run(&mut engine.attach_tiers().expect("attaches"));
        let behind_the_call = expected[0].1;
        assert_eq!(addresses.try_iter().collect::<Vec<_>>(), [behind_the_call], "not the hook");
    }

    /// Compiled code knows neither other threads nor code that changes.
    #[test]
    fn what_copies_alone_can_do_they_do_alone() {
        let _alone = alone();
        let (expected, blocks, hook) = record();
        let cases: [fn(&Tiered); 2] =
            [|engine| engine.several_threads(), |engine| engine.generated(CODE..CODE + 0x1000)];
        for case in cases {
            let engine = engine(&blocks, hook);
            engine.hook(hook);
            let compiled = engine.compiled.get().expect("it was just made");
            assert!(blocks.iter().all(|block| block.pc == hook || compiled.compile(block.pc)));
            let mut cpu = engine.attach_tiers().expect("attaches");
            let mut context = start();
            assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
            assert!(cpu.cpu.is_some(), "compiled code was entered");
            case(&engine);
            let mut cpu = engine.attach_tiers().expect("attaches");
            assert!(run(&mut cpu) == expected);
            assert!(cpu.cpu.is_none(), "compiled code was not entered");
        }
    }

    #[test]
    fn the_engine_starts_and_stops_its_compiler() {
        let made = tiered(EngineConfig::default(), Vec::new(), Vec::new());
        assert_eq!(made.expect("the engine works here").name(), NAME);
    }
}
