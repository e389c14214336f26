//! Small programs at fixed addresses, for the tests of both engines.
#![allow(dead_code, reason = "each test uses some of it")]

use iced_x86::code_asm::CodeAssembler;
use refrain_jit::{CraneliftEngine, Program};
use refrain_trace::CodeBlock;
use refrain_vm::{Context, Cpu, Engine, EngineConfig, Exit, Mode, reg};
use std::sync::{Mutex, MutexGuard};

pub(crate) const CODE: u64 = 0x2300_0000;
pub(crate) const DATA: u64 = 0x2400_0000;
pub(crate) const STACK: u64 = 0x2400_8000;
pub(crate) const LEN: usize = 1 << 16;

/// Programs lie at fixed addresses, so one test runs at a time.
pub(crate) fn memory() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(|e| e.into_inner());
    for (at, protection) in [(CODE, 7), (DATA, 3)] {
        // SAFETY: low addresses that nothing else in a test process uses.
        let got = unsafe {
            libc::mmap(
                at as *mut libc::c_void,
                LEN,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        assert_eq!(got as u64, at);
    }
    guard
}

pub(crate) fn data(at: u64, bytes: &[u8]) {
    assert!((DATA..DATA + LEN as u64).contains(&at));
    // SAFETY: mapped by `memory`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

pub(crate) fn all_data() -> Vec<u8> {
    // SAFETY: mapped by `memory`.
    unsafe { std::slice::from_raw_parts(DATA as *const u8, LEN).to_vec() }
}

/// Assembles a program at `CODE`.
pub(crate) fn program(write: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) {
    let mut a = CodeAssembler::new(64).expect("64 is a bitness");
    write(&mut a).expect("the program is valid");
    let bytes = a.assemble(CODE).expect("the program can be encoded");
    // SAFETY: mapped by `memory`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), CODE as *mut u8, bytes.len()) };
}

pub(crate) fn start() -> Context {
    let mut context = Context::default();
    context.rip = CODE;
    context.gpr[reg::RSP] = STACK;
    context.gpr[reg::RBX] = DATA;
    context
}

/// What the copy engine does, and the blocks that it saw.
pub(crate) fn record(mut context: Context) -> (Exit, Context, Vec<CodeBlock>) {
    let config = EngineConfig { keep_blocks: true, ..EngineConfig::default() };
    let engine = refrain_jit::copy(config).expect("the copy engine works here");
    let exit = engine.attach().expect("attaches").run(&mut context, Mode::Observed);
    (exit, context, engine.take_blocks())
}

/// Where these bytes of code were executed first.
pub(crate) fn find_code(blocks: &[CodeBlock], pattern: &[u8]) -> u64 {
    let find = |block: &CodeBlock| {
        let at = block.code.windows(pattern.len()).position(|it| it == pattern)?;
        Some(block.pc + at as u64)
    };
    blocks.iter().find_map(find).expect("the code was executed")
}

pub(crate) fn block(pc: u64, code: Vec<u8>) -> CodeBlock {
    CodeBlock { pc, code, loads: Vec::new() }
}

pub(crate) fn engine(
    config: &EngineConfig,
    blocks: &[CodeBlock],
    hooks: &[u64],
) -> CraneliftEngine {
    CraneliftEngine::new(config, Program { blocks, hooks }).expect("the engine works here")
}

pub(crate) fn cpu(config: &EngineConfig, blocks: &[CodeBlock], hooks: &[u64]) -> Box<dyn Cpu> {
    let engine = engine(config, blocks, hooks);
    engine.several_threads();
    engine.attach().expect("attaches")
}

/// Flags are not compared: the exits here are the programs' ends, behind which nobody reads them.
pub(crate) fn assert_same(expected: &Context, actual: &Context) {
    assert_eq!(expected.gpr, actual.gpr);
    assert_eq!(expected.xmm, actual.xmm);
    assert_eq!(expected.rip, actual.rip);
}
