//! Code that a recording keeps for later ones: what comes of it is what comes of translating anew.
//!
//! The tests are a process of their own, and take turns: engines must have the same addresses again.

use iced_x86::code_asm::*;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use refrain_trace::CodeBlock;
use refrain_vm::{Context, EngineConfig, Exit, Mode, RecordingEngine, reg};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard};

/// Where the guest's code is; its data and stack come behind.
const CODE: u64 = 0x2000_0000;
/// Between two functions.
const FUNCTION: u64 = 0x400;
const FUNCTIONS: u64 = 300;
/// The last ones call nobody.
const LEAVES: u64 = 40;
const TABLE: u64 = CODE + 0x20_0000;
const STACK: u64 = CODE + 0x3f_f000;
const END: u64 = CODE + 0x40_0000;
/// Any build is as good as another.
const BUILD: u64 = 7;

static TURN: Mutex<()> = Mutex::new(());

/// Guest memory with a program of functions that call others of higher numbers.
struct Guest(#[expect(dead_code, reason = "held until the guest is gone")] MutexGuard<'static, ()>);

impl Guest {
    fn new(seed: u64) -> Guest {
        let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // SAFETY: maps fresh memory where nothing is mapped.
        let at = unsafe {
            libc::mmap(
                CODE as *mut libc::c_void,
                (END - CODE) as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        assert_eq!(at as u64, CODE, "{}", std::io::Error::last_os_error());
        let guest = Guest(turn);
        let mut random = SplitMix64::seed_from_u64(seed);
        for number in 0..FUNCTIONS {
            guest.put_function(number, &mut random);
        }
        let table: Vec<u8> = (0..FUNCTIONS).flat_map(|n| function(n).to_le_bytes()).collect();
        guest.put(TABLE, &table);
        guest
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        assert!(address >= CODE && address + bytes.len() as u64 <= END);
        // SAFETY: inside this guest's own writable memory, to which there are no references.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len());
        }
    }

    /// Branches, a loop, calls of all kinds, and a result in rax.
    fn put_function(&self, number: u64, random: &mut SplitMix64) {
        let mut a = CodeAssembler::new(64).unwrap();
        let mut below = |end: u64| random.next_u64() % end;
        a.push(rbx).unwrap();
        a.mov(ebx, 1 + below(3) as i32).unwrap();
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        for _ in 0..4 {
            let mut over = a.create_label();
            a.imul_3(rax, rax, 31 + below(64) as i32).unwrap();
            a.add(rax, below(1 << 20) as i32).unwrap();
            a.test(al, 1 << below(8)).unwrap();
            match below(2) {
                0 => a.jz(over).unwrap(),
                _ => a.jnz(over).unwrap(),
            }
            a.rol(rax, 7).unwrap();
            a.set_label(&mut over).unwrap();
            a.xor(rax, rcx).unwrap();
        }
        if number < FUNCTIONS - LEAVES {
            // Few are called more than once, or the run would not end.
            let callee = number + 1 + below(FUNCTIONS - LEAVES - number);
            a.cmp(ebx, 1).unwrap();
            let mut over = a.create_label();
            a.jne(over).unwrap();
            match below(3) {
                0 => a.call(function(callee)).unwrap(),
                1 => a.call(qword_ptr(TABLE + 8 * callee)).unwrap(),
                _ => {
                    a.mov(edx, function(callee) as i32).unwrap();
                    a.call(rdx).unwrap();
                }
            }
            a.set_label(&mut over).unwrap();
            a.mov(edx, function(FUNCTIONS - 1 - below(LEAVES)) as i32).unwrap();
            a.call(rdx).unwrap();
        }
        a.dec(ebx).unwrap();
        a.jnz(again).unwrap();
        a.pop(rbx).unwrap();
        a.ret().unwrap();
        let code = a.assemble(function(number)).unwrap();
        assert!((code.len() as u64) < FUNCTION - 0x40, "{} bytes", code.len());
        self.put(function(number), &code);
    }

    /// Calls these functions, one after the other, and returns where the code ends.
    fn calls(&self, functions: &[u64]) -> u64 {
        let start = CODE + FUNCTIONS * FUNCTION;
        let mut a = CodeAssembler::new(64).unwrap();
        for &number in functions {
            a.call(function(number)).unwrap();
        }
        a.syscall().unwrap();
        let code = a.assemble(start).unwrap();
        self.put(start, &code);
        start
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // SAFETY: the guest's own mapping, which nothing uses any more.
        unsafe { libc::munmap(CODE as *mut libc::c_void, (END - CODE) as usize) };
    }
}

fn function(number: u64) -> u64 {
    CODE + number * FUNCTION
}

fn context(pc: u64) -> Context {
    let mut context = Context::default();
    context.rip = pc;
    context.gpr[reg::RSP] = STACK;
    context.gpr[reg::RCX] = 0x1234_5678;
    context
}

/// What a run shows: its exits, its registers, its code.
#[derive(PartialEq, Debug)]
struct Run {
    exits: Vec<(Exit, u64)>,
    registers: [u64; 16],
    blocks: Vec<CodeBlock>,
    kept: Option<Vec<u8>>,
}

impl Run {
    fn blocks(&self) -> BTreeSet<(u64, &[u8])> {
        self.blocks.iter().map(|block| (block.pc, &block.code[..])).collect()
    }

    /// What does not depend on what was kept.
    fn shown(&self) -> (&[(Exit, u64)], [u64; 16]) {
        (&self.exits, self.registers)
    }
}

fn engine(kept: Option<&[u8]>) -> Arc<dyn RecordingEngine> {
    let config = EngineConfig { order_atomics: true, keep_blocks: true, ..EngineConfig::default() };
    let engine = refrain_jit::copy(config).unwrap();
    let file = kept.map(file);
    engine.keep_code(BUILD, file.as_ref());
    engine
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// Runs an engine up to a system call, past hooks.
fn run_on(engine: &dyn RecordingEngine, start: u64) -> Run {
    let mut cpu = engine.attach().unwrap();
    let mut context = context(start);
    let mut exits = Vec::new();
    let mut exit = cpu.run(&mut context, Mode::Observed);
    while exit == Exit::Hook {
        exits.push((exit, context.rip));
        exit = cpu.run(&mut context, Mode::Observed);
    }
    exits.push((exit, context.rip));
    let kept = engine.kept_code().map(|parts| parts.concat());
    Run { exits, registers: context.gpr, blocks: engine.take_blocks(), kept }
}

fn run(kept: Option<&[u8]>, start: u64) -> Run {
    run_on(&*engine(kept), start)
}

#[test]
fn a_second_run_translates_nothing() {
    for seed in 0..10 {
        let guest = Guest::new(seed);
        let start = guest.calls(&[0, 1, 2]);
        let first = run(None, start);
        let second = run(first.kept.as_deref(), start);
        assert_eq!(second.shown(), first.shown());
        assert!(first.kept.is_some(), "enough was translated");
        assert_eq!(second.kept, None, "nothing is new");
        assert!(second.blocks().is_superset(&first.blocks()), "what is executed is in the trace");
    }
}

#[test]
fn what_is_new_is_kept_besides() {
    let guest = Guest::new(11);
    let one = guest.calls(&[FUNCTIONS / 2]);
    let first = run(None, one);
    let start = guest.calls(&[0, 3, FUNCTIONS / 2]);
    let fresh = run(None, start);
    let second = run(first.kept.as_deref(), start);
    assert_eq!(second.shown(), fresh.shown());
    assert!(second.kept.is_some(), "much is new");
    let third = run(second.kept.as_deref(), start);
    assert_eq!((third.shown(), &third.kept), (fresh.shown(), &None));
    // What the second run did not come to is still there.
    let one = guest.calls(&[FUNCTIONS / 2]);
    let last = run(second.kept.as_deref(), one);
    assert_eq!((last.shown(), &last.kept), (first.shown(), &None));
}

#[test]
fn code_that_has_changed_is_translated() {
    let guest = Guest::new(12);
    let start = guest.calls(&[0, 1, 2]);
    let first = run(None, start);
    let mut random = SplitMix64::seed_from_u64(99);
    for _ in 0..20 {
        let changed = random.next_u64() % FUNCTIONS;
        guest.put_function(changed, &mut random);
        let fresh = run(None, start);
        let second = run(first.kept.as_deref(), start);
        assert_eq!(second.shown(), fresh.shown(), "with another function {changed}");
        assert!(second.blocks().is_superset(&fresh.blocks()));
    }
}

#[test]
fn hooks_are_met_in_kept_code() {
    let guest = Guest::new(13);
    let start = guest.calls(&[0, 1, 2]);
    let first = run(None, start);
    let blocks: Vec<u64> = first.blocks.iter().map(|block| block.pc).collect();
    let mut met = 0;
    for hooked in blocks.iter().step_by(blocks.len() / 30) {
        let with_hook = |kept: Option<&[u8]>| {
            let engine = engine(kept);
            engine.hook(*hooked);
            run_on(&*engine, start)
        };
        let fresh = with_hook(None);
        assert_eq!(with_hook(first.kept.as_deref()).shown(), fresh.shown(), "{hooked:#x}");
        met += usize::from(fresh.exits.len() > 1);
        // And a recording that meets no hook takes nothing of it from one that has.
        assert_eq!(run(fresh.kept.as_deref(), start).shown(), first.shown());
    }
    assert!(met > 20, "most of the blocks are executed: {met} of them");
}

#[test]
fn what_was_forgotten_is_translated_anew() {
    let guest = Guest::new(14);
    let start = guest.calls(&[0, 1, 2]);
    let first = run(None, start);
    let engine = engine(first.kept.as_deref());
    for _ in 0..3 {
        assert_eq!(run_on(&*engine, start).shown(), first.shown());
        engine.forget(CODE..END);
    }
    guest.put_function(FUNCTIONS - 1, &mut SplitMix64::seed_from_u64(5));
    let fresh = self::run(None, start);
    engine.forget(CODE..END);
    assert_eq!(run_on(&*engine, start).shown(), fresh.shown());
}

/// There is nothing to gain from code whose accesses are watched.
#[test]
fn nothing_comes_back_to_several_threads() {
    let guest = Guest::new(15);
    let start = guest.calls(&[0, 1, 2]);
    let first = run(None, start);
    let engine = engine(first.kept.as_deref());
    engine.several_threads();
    let run = run_on(&*engine, start);
    assert_eq!((run.shown(), &run.kept), (first.shown(), &None));
    assert_eq!(run.blocks(), first.blocks(), "no block that was not executed");
}

/// A fault in kept code is one of the guest's instruction, with its registers.
#[test]
fn kept_code_faults_where_the_guest_does() {
    let guest = Guest::new(16);
    let faulting = guest.calls(&[0, 1, 2]) - 0x100;
    let mut a = CodeAssembler::new(64).unwrap();
    a.mov(rdx, 0x6667_u64).unwrap();
    a.inc(rdx).unwrap();
    a.mov(rsi, qword_ptr(16)).unwrap();
    a.syscall().unwrap();
    let start = guest.calls(&[0, 1, 2]);
    guest.put(faulting, &a.assemble(faulting).unwrap());
    let runs = |kept: Option<&[u8]>| {
        let engine = engine(kept);
        let fault = run_on(&*engine, faulting);
        (fault.exits, fault.registers, run_on(&*engine, start))
    };
    let (exits, registers, first) = runs(None);
    assert!(matches!(exits[..], [(Exit::Fault(_), _)]), "{exits:?}");
    let (again, registers_again, second) = runs(first.kept.as_deref());
    assert_eq!((again, registers_again), (exits, registers));
    assert_eq!(second.kept, None);
}

#[test]
fn a_file_that_is_odd_counts_for_nothing() {
    let guest = Guest::new(17);
    let start = guest.calls(&[FUNCTIONS - 30]);
    let functions: Vec<u64> = (FUNCTIONS - 60..FUNCTIONS).collect();
    let start = guest.calls(&functions).max(start);
    let first = run(None, start);
    let kept = first.kept.as_deref().unwrap();
    let check = |bytes: &[u8], what: &str| {
        let run = run(Some(bytes), start);
        assert_eq!(run.shown(), first.shown(), "{what}");
        assert!(run.kept.is_some(), "all is new: {what}");
    };
    // The whole head, and some of the rest.
    for at in (0..200).chain((200..kept.len()).step_by(kept.len() / 100)) {
        let mut bytes = kept.to_vec();
        bytes[at] ^= 0x10;
        check(&bytes, &format!("byte {at} is changed"));
    }
    for len in (0..300).chain((300..kept.len()).step_by(kept.len() / 100)).step_by(7) {
        check(&kept[..len], &format!("cut to {len} bytes"));
    }
    let config = EngineConfig { order_atomics: true, keep_blocks: true, ..EngineConfig::default() };
    let engine = refrain_jit::copy(config).unwrap();
    engine.keep_code(BUILD + 1, Some(&file(kept)));
    assert!(run_on(&*engine, start).kept.is_some(), "another build's counts for nothing");
}
