//! Code that a recording keeps for later ones: what comes of it is what comes of translating anew.
//!
//! The tests are a process of their own, and take turns: engines must have the same addresses again.

use iced_x86::code_asm::*;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use refrain_trace::CodeBlock;
use refrain_vm::{
    Context, EngineConfig, Exit, Filter, Mode, ModuleCode, ModuleFunctions, RecordingEngine,
    line_index, reg,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

/// Where the guest's code is; its data and stack come behind.
const CODE: u64 = 0x2000_0000;
/// Between two functions.
const FUNCTION: u64 = 0x400;
const FUNCTIONS: u64 = 300;
/// The last ones call nobody.
const LEAVES: u64 = 40;
const CALLS: u64 = CODE + 0x10_0000;
const TABLE: u64 = CODE + 0x20_0000;
const DATA: u64 = CODE + 0x30_0000;
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
            // Words of which some are watched, once there are several threads.
            let word = DATA + 8 * below(16);
            match below(6) {
                0 => a.lock().xadd(qword_ptr(word), rax).unwrap(),
                1 => a.lock().inc(qword_ptr(word)).unwrap(),
                2 => a.add(rax, qword_ptr(word)).unwrap(),
                3 => a.mov(dword_ptr(word), eax).unwrap(),
                _ => {}
            }
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

    /// Code that calls these functions, one after the other, in a region of its own for each number.
    fn calls(&self, functions: &[u64]) -> u64 {
        let start = CALLS + (functions.len() as u64) % 8 * 0x1_0000;
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
    /// Accesses that translated code has counted, if it counts them.
    accesses: Option<u64>,
    blocks: Vec<CodeBlock>,
    kept: Option<Vec<u8>>,
}

impl Run {
    fn blocks(&self) -> BTreeSet<(u64, &[u8])> {
        self.blocks.iter().map(|block| (block.pc, &block.code[..])).collect()
    }

    /// What does not depend on what was kept.
    fn shown(&self) -> (&[(Exit, u64)], [u64; 16], Option<u64>) {
        (&self.exits, self.registers, self.accesses)
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

/// Tells an engine of the functions, as those of a build.
fn tell_functions(engine: &dyn RecordingEngine, build: &str) {
    let starts: Vec<u64> = (0..FUNCTIONS).map(function).collect();
    let code = starts[0]..function(FUNCTIONS);
    let module = ModuleCode { code, build: Some(build), ..ModuleCode::default() };
    engine
        .functions(&module, Box::new(|| ModuleFunctions { starts, ..ModuleFunctions::default() }));
}

/// The same, for several threads, with functions of a build.
fn engine_of_several(kept: Option<&[u8]>, build: &str) -> Arc<dyn RecordingEngine> {
    let engine = engine(kept);
    tell_functions(&*engine, build);
    engine.several_threads();
    engine
}

/// The same, for several threads whose every access is in order.
fn engine_of_every_access(kept: Option<&[u8]>) -> Arc<dyn RecordingEngine> {
    let engine = engine(kept);
    engine.order_every_access();
    engine.several_threads();
    engine
}

/// Lets the thread access its stack, what it calls through, and the first half of its data.
fn permit(filter: Filter) {
    for address in [DATA, TABLE, STACK - 0x40, STACK - 0x80, STACK - 0xc0] {
        filter.permit(line_index(address), true);
    }
}

/// Runs an engine up to a system call, past hooks and ordered instructions.
fn run_on(engine: &dyn RecordingEngine, start: u64) -> Run {
    // SAFETY: the guest's own memory, to which there are no references.
    unsafe { std::ptr::write_bytes(DATA as *mut u8, 3, 8 * 16) };
    let mut cpu = engine.attach().unwrap();
    let filter = cpu.filter();
    filter.into_iter().for_each(permit);
    let mut context = context(start);
    let mut exits = Vec::new();
    let mut exit = cpu.run(&mut context, Mode::Observed);
    while matches!(exit, Exit::Hook | Exit::Ordered { .. }) {
        exits.push((exit, context.rip));
        if exit != Exit::Hook {
            assert_eq!(cpu.step(&mut context), None);
        }
        exit = cpu.run(&mut context, Mode::Observed);
    }
    exits.push((exit, context.rip));
    let kept = engine.kept_code().map(|parts| parts.concat());
    // SAFETY: the executor that the filter belongs to is there.
    let accesses = filter.map(|filter| unsafe { &*filter.count }.load(Ordering::Relaxed));
    Run { exits, registers: context.gpr, accesses, blocks: engine.take_blocks(), kept }
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

/// Recordings of a program that changes, each with what the one before has kept.
#[test]
fn a_chain_of_recordings() {
    for seed in 50..54 {
        let guest = Guest::new(seed);
        let mut random = SplitMix64::seed_from_u64(seed);
        let mut kept: Option<Vec<u8>> = None;
        let mut brought_back = 0;
        for round in 0..40 {
            let mut below = |end: u64| random.next_u64() % end;
            let start =
                guest.calls(&[0, below(FUNCTIONS), below(FUNCTIONS)][..1 + below(3) as usize]);
            let (changed, hooked, forgotten) =
                (below(FUNCTIONS), below(FUNCTIONS), below(FUNCTIONS));
            let [changes, hooks, forgets, several] = [3, 4, 4, 2].map(|n| below(n) == 0);
            if changes {
                guest.put_function(changed, &mut random);
            }
            let runs = |kept: Option<&[u8]>| {
                let engine = match several {
                    true => engine_of_several(kept, "a"),
                    false => engine(kept),
                };
                if hooks {
                    engine.hook(function(hooked));
                }
                let first = run_on(&*engine, start);
                if forgets {
                    engine.forget(function(forgotten)..function(forgotten) + 1);
                }
                let second = run_on(&*engine, start);
                ((first.exits, first.registers, second.exits, second.registers), second.kept)
            };
            let (shown, _) = runs(None);
            let (again, new) = runs(kept.as_deref());
            assert_eq!(again, shown, "seed {seed}, round {round}");
            brought_back += usize::from(new.is_none());
            kept = new.or(kept);
        }
        assert!(brought_back > 5, "most is there already in {brought_back} rounds");
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

/// What is watched is so in kept code, too, and the trace says so.
#[test]
fn several_threads_have_watched_code() {
    for seed in 30..40 {
        let guest = Guest::new(seed);
        let start = guest.calls(&[0, 1, 2]);
        let several = |kept: Option<&[u8]>, build| {
            let run = run_on(&*engine_of_several(kept, build), start);
            let blocks = run.blocks.iter().map(|block| (block.pc, block.clone())).collect();
            (run, blocks)
        };
        let (first, first_blocks): (_, BTreeMap<_, _>) = several(None, "a");
        let (second, second_blocks) = several(first.kept.as_deref(), "a");
        assert_eq!((second.shown(), &second.kept), (first.shown(), &None));
        assert!(first.exits.len() > 100, "{} ordered instructions", first.exits.len());
        let watched = first_blocks.values().map(|block| block.loads.len()).sum::<usize>();
        assert!(watched > 10, "{watched} plain accesses");
        for (pc, block) in &first_blocks {
            assert_eq!(second_blocks.get(pc), Some(block), "with what is watched in it");
        }
        // Among other modules, other accesses may be watched: all is found out anew.
        let (other, _): (_, BTreeMap<_, _>) = several(first.kept.as_deref(), "b");
        assert_eq!(other.shown(), first.shown());
        assert!(other.kept.is_some());
        // What one thread has executed does not serve several, nor the other way round.
        let alone = run(None, start);
        assert_eq!(several(alone.kept.as_deref(), "a").0.shown(), first.shown());
        assert_eq!(run(first.kept.as_deref(), start).shown(), alone.shown());
    }
}

/// Blocks that count and look up their accesses come back, and those that are executed access by access.
#[test]
fn every_access_of_kept_code_is_in_order() {
    if !is_x86_feature_detected!("bmi2") {
        eprintln!("SKIPPED: this processor has no BMI2");
        return;
    }
    for seed in 50..60 {
        let guest = Guest::new(seed);
        let start = guest.calls(&[0, 1, 2]);
        let first = run_on(&*engine_of_every_access(None), start);
        let second = run_on(&*engine_of_every_access(first.kept.as_deref()), start);
        assert_eq!((second.shown(), &second.kept), (first.shown(), &None));
        assert!(second.blocks().is_superset(&first.blocks()), "what is executed is in the trace");
        let accesses = first.accesses.expect("accesses are counted");
        let asked = first.exits.len() as u64;
        assert!(asked > 30 && accesses > 30, "{asked} exits, {accesses} accesses");
        // What does not count its accesses does not serve, nor the other way round.
        let several = run_on(&*engine_of_several(None, "a"), start);
        let mixed = run_on(&*engine_of_every_access(several.kept.as_deref()), start);
        assert_eq!(mixed.shown(), first.shown());
        let mixed = run_on(&*engine_of_several(first.kept.as_deref(), "a"), start);
        assert_eq!(mixed.shown(), several.shown());
    }
}

/// Once there is code above 2 GiB, returns are checked: what was translated before comes back as it was, and
/// what comes then as it is then.
#[test]
fn code_above_two_gib_begins_a_phase() {
    for seed in 60..65 {
        let guest = Guest::new(seed);
        let far = Far::new();
        let start = guest.calls(&[0, 1, 2]);
        let both = |kept: Option<&[u8]>, build: Option<&str>| {
            let engine = match build {
                Some(build) => engine_of_several(kept, build),
                None => engine(kept),
            };
            let near = run_on(&*engine, start);
            let there = run_on(&*engine, far.0);
            let again = run_on(&*engine, start);
            assert_eq!(there.exits, [(Exit::Syscall, far.0 + Far::LEN)]);
            assert_eq!(again.shown(), near.shown());
            (near, again)
        };
        for build in [None, Some("a")] {
            let (near, again) = both(None, build);
            let (near_again, last) = both(again.kept.as_deref(), build);
            assert_eq!(near_again.shown(), near.shown());
            assert_eq!((near_again.kept, last.kept), (None, None), "{build:?}");
            let (size, all) = (near.kept.map(|it| it.len()), again.kept.map(|it| it.len()));
            assert!(size < all, "{size:?} of one phase, {all:?} of both");
        }
    }
}

/// A system call above 2 GiB.
struct Far(u64);

impl Far {
    /// Bytes of the call.
    const LEN: u64 = 2;

    fn new() -> Far {
        // SAFETY: maps fresh memory where nothing is mapped.
        let at = unsafe {
            libc::mmap(
                (1_u64 << 33) as *mut libc::c_void,
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        assert_eq!(at as u64, 1 << 33, "{}", std::io::Error::last_os_error());
        // SAFETY: the memory that was just mapped, to which there are no references.
        unsafe { at.cast::<[u8; 2]>().write([0x0f, 0x05]) };
        Far(at as u64)
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nothing uses any more.
        unsafe { libc::munmap(self.0 as *mut libc::c_void, 4096) };
    }
}

/// A program begins with one thread, and both phases come back.
#[test]
fn one_thread_and_then_several() {
    let guest = Guest::new(41);
    let start = guest.calls(&[0, 1, 2]);
    let both = |kept: Option<&[u8]>| {
        let engine = engine(kept);
        tell_functions(&*engine, "a");
        let alone = run_on(&*engine, start);
        engine.several_threads();
        (alone, run_on(&*engine, start))
    };
    let (alone, several) = both(None);
    let (alone_again, several_again) = both(several.kept.as_deref());
    assert_eq!(alone_again.shown(), alone.shown());
    assert_eq!(several_again.shown(), several.shown());
    assert_eq!((alone_again.kept, several_again.kept), (None, None));
    assert!(several.exits.len() > alone.exits.len());
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
    let functions: Vec<u64> = (FUNCTIONS - 60..FUNCTIONS).collect();
    let start = guest.calls(&functions);
    let first = run(None, start);
    let kept = first.kept.as_deref().unwrap();
    let check = |bytes: &[u8], what: &str| {
        let run = run(Some(bytes), start);
        assert_eq!(run.shown(), first.shown(), "{what}");
        assert!(run.kept.is_some(), "all is new: {what}");
    };
    // The whole head, and some of the rest. What is behind the last rare exit of a chunk is zero, and nobody's.
    let rest = (200..kept.len()).step_by(kept.len() / 100).filter(|&at| kept[at] != 0);
    for at in (0..200).chain(rest) {
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
