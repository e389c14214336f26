//! Shared by the oracle's tests and its fuzz target: the processor itself as an interpreter of
//! single instructions, and a generator of instructions and states.

#![allow(dead_code, unreachable_pub)]

pub mod generate;
pub mod native;

use native::{Native, SCRATCH, SCRATCH_LEN};
use refrain_jit::{CraneliftEngine, Program};
use refrain_trace::{Access, CodeBlock};
use refrain_vm::{
    Context, Cpu, Engine, EngineConfig, Exit, LeaveOut, Mode, Processor, Seen, SeenWords, Span, reg,
};
use std::collections::BTreeMap;

/// Where the tests' guest code lies.
pub const CODE: u64 = 0x2000_0000;
/// Distance between the cases of a batch.
pub const STRIDE: u64 = 256;

/// One thing to try: code, and the state to start from.
#[derive(Clone)]
pub struct Case {
    pub instructions: Vec<iced_x86::Instruction>,
    pub code: Vec<u8>,
    pub states: Vec<(Context, Vec<u8>)>,
    /// Status flags that the code leaves defined.
    pub defined: u64,
}

/// The address of the `n`th case's code.
pub fn address(n: usize) -> u64 {
    CODE + STRIDE * n as u64
}

fn blocks(cases: &[Case]) -> Vec<CodeBlock> {
    let block = |(n, case): (usize, &Case)| CodeBlock {
        pc: address(n),
        code: [&case.code[..], &[0x0f, 0x05]].concat(),
        loads: Vec::new(),
    };
    cases.iter().enumerate().map(block).collect()
}

/// Runs cases on the engine and on the processor. Returns what differs.
pub fn compare(native: &Native, cases: &[Case], config: &EngineConfig) -> Vec<String> {
    let blocks = blocks(cases);
    let engine = CraneliftEngine::new(config, Program { blocks: &blocks, ..Program::default() })
        .expect("the engine works here");
    let touched = config.leave_out == LeaveOut::Touched;
    let _seen = touched.then(|| Seen::new().expect("there is room for notes"));
    let mut cpu = engine.attach().expect("a thread can be attached");
    let mut accesses = vec![refrain_trace::Access::default(); 2 * refrain_jit::MIN_ACCESSES];
    let mut differences = Vec::new();
    for (n, case) in cases.iter().enumerate() {
        for (state, memory) in &case.states {
            if std::env::var_os("REFRAIN_ORACLE_TRACE").is_some() {
                eprintln!("{}", describe(case));
            }
            let mut lifted = state.clone();
            lifted.rip = address(n);
            lifted.seen = SeenWords::new(Some(1), false);
            lifted.access_cursor = accesses.as_mut_ptr() as u64;
            lifted.access_limit = lifted.access_cursor + 16 * accesses.len() as u64;
            native.fill(memory);
            let exit = run(&mut *cpu, &mut lifted);
            let after = native.memory();
            if let Exit::Fault(fault) = exit {
                // Divisions: the processor faults too, which this process would not survive.
                let may = case.instructions.iter().any(|i| {
                    matches!(i.mnemonic(), iced_x86::Mnemonic::Div | iced_x86::Mnemonic::Idiv)
                });
                if !may || fault.signal != libc::SIGFPE {
                    differences.push(format!("{}: unexpected {exit:?}", describe(case)));
                }
                continue;
            }
            let end = address(n) + case.code.len() as u64 + 2;
            if exit != Exit::Syscall || lifted.rip != end {
                differences.push(format!("{}: {exit:?} at {:#x}", describe(case), lifted.rip));
                continue;
            }
            native.fill(memory);
            if std::env::var_os("REFRAIN_ORACLE_TRACE").is_some() {
                eprintln!("natively");
            }
            let mut expected = state.clone();
            native.run(&case.instructions, &mut expected);
            differences.extend(difference(
                case,
                state,
                &expected,
                &native.memory(),
                &lifted,
                &after,
            ));
        }
    }
    differences
}

/// Runs cases on both engines with a log of accesses. Returns where the logs differ: copies and compiled
/// code get at the same accesses by different ways.
pub fn compare_logs(native: &Native, cases: &[Case], config: &EngineConfig) -> Vec<String> {
    let blocks = blocks(cases);
    let program = Program { blocks: &blocks, ..Program::default() };
    let compiled = CraneliftEngine::new(config, program).expect("the engine works here");
    native.put(&blocks);
    let copied = refrain_jit::copy(config.clone()).expect("the engine works here");
    let mut compiled = compiled.attach().expect("a thread can be attached");
    let mut copied = copied.attach().expect("a thread can be attached");
    let mut differences = Vec::new();
    for (n, case) in cases.iter().enumerate() {
        for (state, memory) in &case.states {
            let logged = |cpu: &mut dyn Cpu| {
                let mut accesses = vec![Access::default(); 2 * refrain_jit::MIN_ACCESSES];
                let mut context = state.clone();
                context.rip = address(n);
                context.access_cursor = accesses.as_mut_ptr() as u64;
                context.access_limit = context.access_cursor + 16 * accesses.len() as u64;
                native.fill(memory);
                let exit = run(cpu, &mut context);
                let used = (context.access_cursor - accesses.as_ptr() as u64) as usize / 16;
                accesses.truncate(used);
                (exit, bytes(&accesses, state.gpr[reg::RSP]))
            };
            let (one, other) = (logged(&mut *compiled), logged(&mut *copied));
            if one != other && one.0 == Exit::Syscall {
                differences.push(format!("{}: {one:x?} and {other:x?}", describe(case)));
            }
        }
    }
    differences
}

/// Executes cases of one instruction with its operands in memory elsewhere, where it has some, on both
/// engines and as they are on the processor. Returns what differs, and how many were executed.
pub fn compare_moved(native: &Native, cases: &[Case]) -> (Vec<String>, usize) {
    let blocks = blocks(cases);
    let config = EngineConfig { processor: Processor::host(), ..EngineConfig::default() };
    let program = Program { blocks: &blocks, ..Program::default() };
    let compiled = CraneliftEngine::new(&config, program).expect("the engine works here");
    native.put(&blocks);
    let copied = refrain_jit::copy(config).expect("the engine works here");
    let engines: [Box<dyn Cpu>; 2] = [
        compiled.attach().expect("a thread can be attached"),
        copied.attach().expect("a thread can be attached"),
    ];
    let (mut differences, mut executed) = (Vec::new(), 0);
    for mut cpu in engines {
        for (n, case) in cases.iter().enumerate() {
            for (state, memory) in &case.states {
                native.fill(memory);
                let mut context = state.clone();
                context.rip = address(n);
                while context.rip == address(n) && step_moved(&mut *cpu, &mut context) {}
                if context.rip != address(n) + case.code.len() as u64 {
                    continue;
                }
                executed += 1;
                let after = native.memory();
                native.fill(memory);
                let mut expected = state.clone();
                native.run(&case.instructions, &mut expected);
                let memory = native.memory();
                differences.extend(difference(case, state, &expected, &memory, &context, &after));
            }
        }
    }
    (differences, executed)
}

/// Executes an instruction, or a part of it, on copies of its operands, and brings what it has done to them
/// to where they are. False if it cannot be executed so, or faults.
fn step_moved(cpu: &mut dyn Cpu, context: &mut Context) -> bool {
    const MOST: u64 = 24;
    const ROOM: usize = 1 << 13;
    const LINE: usize = 64;
    let mut copies = vec![[0_u8; ROOM]; 2];
    let spans = cpu.operands(context, MOST);
    let scratch = SCRATCH..SCRATCH + SCRATCH_LEN as u64;
    if spans.is_empty() || spans.iter().any(|span| !scratch.contains(&span.start)) {
        return false;
    }
    let mut places = Vec::new();
    for (copy, span) in copies.iter_mut().zip(&spans) {
        let first = copy.as_ptr().align_offset(LINE) + span.start as usize % LINE;
        let len = span.len as usize;
        // SAFETY: the tests' memory, to which no reference exists.
        let there = unsafe { std::slice::from_raw_parts(span.start as *const u8, len) };
        copy[first..first + len].copy_from_slice(there);
        places.push(copy[first..].as_ptr() as u64);
    }
    // What is there must not matter, unless it is the top of the stack, too.
    let is_apart = |span: &&Span| context.gpr[reg::RSP].abs_diff(span.start) >= MOST;
    for span in spans.iter().filter(is_apart) {
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(span.start as *mut u8, 0xa5, span.len as usize) };
    }
    let fault = cpu.step_moved(context, MOST, &places);
    for (span, place) in spans.iter().zip(&places) {
        // SAFETY: as above; both have so many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(
                *place as *const u8,
                span.start as *mut u8,
                span.len as usize,
            );
        }
    }
    fault.is_none()
}

/// What a log says of each byte: whether it was read, written, or both at once. (Compiled code logs the
/// top of the stack for lanes that a mask leaves out.)
fn bytes(log: &[Access], rsp: u64) -> BTreeMap<u64, u16> {
    let mut bytes = BTreeMap::new();
    for access in log.iter().filter(|access| access.address != rsp) {
        for at in access.address..access.address + u64::from(access.size) {
            *bytes.entry(at).or_default() |= access.kind;
        }
    }
    bytes
}

fn run(cpu: &mut dyn Cpu, context: &mut Context) -> Exit {
    cpu.run(context, Mode::Observed)
}

pub fn describe(case: &Case) -> String {
    use iced_x86::{Formatter, IntelFormatter};
    let mut formatter = IntelFormatter::new();
    let mut all = Vec::new();
    for i in &case.instructions {
        let mut text = String::new();
        formatter.format(i, &mut text);
        all.push(text);
    }
    format!("[{}] {:02x?}", all.join("; "), case.code)
}

fn difference(
    case: &Case,
    start: &Context,
    expected: &Context,
    memory: &[u8],
    lifted: &Context,
    after: &[u8],
) -> Option<String> {
    let mut wrong = Vec::new();
    for n in 0..16 {
        if expected.gpr[n] != lifted.gpr[n] {
            wrong.push(format!(
                "gpr{n}: {:#x} instead of {:#x} (was {:#x})",
                lifted.gpr[n], expected.gpr[n], start.gpr[n]
            ));
        }
        if expected.high[n] != lifted.high[n] {
            wrong.push(format!(
                "high{n}: {:x?} instead of {:x?} (was {:x?})",
                lifted.high[n], expected.high[n], start.high[n]
            ));
        }
        if expected.xmm[n] != lifted.xmm[n] {
            wrong.push(format!(
                "xmm{n}: {:x?} instead of {:x?} (was {:x?})",
                lifted.xmm[n], expected.xmm[n], start.xmm[n]
            ));
        }
    }
    if expected.wide != lifted.wide {
        wrong.push(format!(
            "{:x?} instead of {:x?} (was {:x?})",
            lifted.wide, expected.wide, start.wide
        ));
    }
    let flags = (expected.rflags ^ lifted.rflags) & case.defined;
    if flags != 0 {
        wrong.push(format!(
            "flags {flags:#x} of {:#x}, expected {:#x} (was {:#x})",
            lifted.rflags, expected.rflags, start.rflags
        ));
    }
    // Among several instructions an operation may be left out whose result nobody reads, and with
    // it the exception flags that it would have raised.
    let sticky = if case.instructions.len() > 1 { 0x3f } else { 0 };
    if expected.mxcsr | sticky != lifted.mxcsr | sticky {
        wrong.push(format!("mxcsr {:#x}, expected {:#x}", lifted.mxcsr, expected.mxcsr));
    }
    if let Some(at) = (0..SCRATCH_LEN).find(|&at| memory[at] != after[at]) {
        wrong.push(format!(
            "memory at {:#x}: {:#x} instead of {:#x}",
            SCRATCH + at as u64,
            after[at],
            memory[at]
        ));
    }
    (!wrong.is_empty()).then(|| {
        format!("{}\n    {}\n    gpr {:x?}", describe(case), wrong.join("\n    "), start.gpr)
    })
}
