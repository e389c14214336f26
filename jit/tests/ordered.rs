//! Watched accesses of small programs, replayed by the Cranelift engine.

mod programs;

use iced_x86::code_asm::*;
use programs::*;
use refrain_jit::MIN_ACCESSES;
use refrain_trace::Access;
use refrain_vm::{Count, Engine, EngineConfig, Exit, LastMet, Mode, OrderedKind, reg};
use std::sync::Arc;

#[test]
fn plain_loads_are_ordered_where_the_trace_says() {
    let _one = memory();
    program(|a| {
        a.mov(eax, dword_ptr(rbx + 4))?;
        a.add(eax, 1)?;
        a.syscall()
    });
    let (_, expected, blocks) = record(start());
    let config = EngineConfig {
        order_atomics: true,
        count: Count::Instructions,
        watched: Some(Arc::new([CODE].into())),
        ..EngineConfig::default()
    };
    let engine = engine(&config, &blocks, &[]);
    let mut cpu = engine.attach().expect("attaches");
    let mut context = start();
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall, "one thread");
    assert_eq!(context.retired, 3);
    context.retired = expected.retired;
    assert_same(&expected, &context);

    engine.several_threads();
    let ordered = Exit::Ordered { address: DATA + 4, size: 4, kind: OrderedKind::Load };
    let mut context = start();
    assert_eq!(cpu.run(&mut context, Mode::Observed), ordered);
    assert_eq!((context.rip, context.retired), (CODE, 0));
    assert_eq!(cpu.step(&mut context), None);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!(context.retired, 3);
    context.retired = expected.retired;
    assert_same(&expected, &context);

    let mut context = start();
    assert_eq!(cpu.run(&mut context, Mode::Observed), ordered);
    assert_eq!(cpu.step_load(&mut context, 41), None);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!(context.gpr[reg::RAX], 42);

    // What the thread met there, for as many loads as come before the next event.
    for (size, takes) in [(4, true), (8, false)] {
        let mut met = LastMet::new();
        met.meet((DATA + 4, size), 99, 0, 0);
        // SAFETY: it outlives the executor's next runs, and nobody else uses it.
        unsafe { cpu.set_last_met(&raw mut *met) };
        met.unrecorded.store(1, std::sync::atomic::Ordering::Relaxed);
        let mut context = start();
        let end = cpu.run(&mut context, Mode::Observed);
        assert_eq!(end, if takes { Exit::Syscall } else { ordered }, "{size} bytes");
        assert!(!takes || (context.gpr[reg::RAX], context.retired) == (100, 3));
        assert_eq!(cpu.run(&mut start(), Mode::Observed), ordered);
    }
    drop(cpu);
}

#[test]
fn locked_instructions_beside_memory() {
    let _one = memory();
    program(|a| {
        a.lock().cmpxchg(dword_ptr(rbx + 4), ecx)?;
        a.lock().bts(qword_ptr(rbx + 8), rcx)?;
        a.syscall()
    });
    let (_, _, blocks) = record(start());
    let config = EngineConfig { order_atomics: true, ..EngineConfig::default() };
    let engine = engine(&config, &blocks, &[]);
    engine.several_threads();
    let mut cpu = engine.attach().expect("attaches");
    // SAFETY: the program's memory, which no thread uses now.
    let word = || unsafe { ((DATA + 4) as *const u32).read() };
    let before = word();
    let mut beside = |value: u64| {
        let mut context = start();
        (context.gpr[reg::RAX], context.gpr[reg::RCX]) = (5, 3);
        let left = cpu.step_beside(&mut context, value);
        (left, context.gpr[reg::RAX], context.rflags & 0x40 != 0, context.rip > CODE)
    };
    assert_eq!(beside(5), (Some(3), 5, true, true));
    assert_eq!(beside(9), (Some(9), 9, false, true));
    assert_eq!(word(), before, "memory is left alone");
    let mut context = start();
    assert_eq!(cpu.step(&mut context), None);
    assert_eq!(cpu.step_beside(&mut context, 0), None, "its register chooses the word");
    drop(cpu);
}

#[test]
fn a_load_that_is_told_its_value_is_logged_at_its_operand() {
    let _one = memory();
    program(|a| {
        a.mov(eax, dword_ptr(rbx + 4))?;
        a.mov(ecx, dword_ptr(rbx + 8))?;
        a.syscall()
    });
    let (_, _, blocks) = record(start());
    let mut met = LastMet::new();
    met.meet((DATA + 4, 4), 99, 0, 0);
    let config = EngineConfig {
        order_atomics: true,
        accesses: true,
        watched: Some(Arc::new([CODE].into())),
        ..EngineConfig::default()
    };
    for live in [false, true] {
        let engine = engine(&EngineConfig { live, ..config.clone() }, &blocks, &[]);
        engine.several_threads();
        let mut cpu = engine.attach().expect("attaches");
        // SAFETY: it outlives the executor, and nobody else uses it.
        unsafe { cpu.set_last_met(&raw mut *met) };
        met.unrecorded.store(1, std::sync::atomic::Ordering::Relaxed);
        let mut log = vec![Access::default(); MIN_ACCESSES];
        let mut context = start();
        context.access_cursor = log.as_mut_ptr() as u64;
        context.access_limit = context.access_cursor + 16 * log.len() as u64;
        let exit = cpu.run(&mut context, Mode::Observed);
        let ordered = Exit::Ordered { address: DATA + 4, size: 4, kind: OrderedKind::Load };
        let used = (context.access_cursor - log.as_ptr() as u64) as usize / 16;
        let logged: Vec<_> = log[..used].iter().map(|a| (a.address, a.size, a.kind)).collect();
        let read = |address| (address, 4, Access::READ);
        match live {
            true => assert_eq!((exit, used), (ordered, 0), "what it reads is decided outside"),
            false => {
                assert_eq!((exit, context.gpr[reg::RAX]), (Exit::Syscall, 99));
                assert_eq!(logged, [read(DATA + 4), read(DATA + 8)]);
            }
        }
        drop(cpu);
    }
}

/// A thread that is alone reads what is in memory, if it has changed, and meets it.
#[test]
fn who_is_alone_reads_memory() {
    use std::sync::atomic::Ordering::Relaxed;
    let _one = memory();
    program(|a| {
        a.movzx(eax, byte_ptr(rbx))?;
        a.movzx(ecx, word_ptr(rbx + 4))?;
        a.mov(edx, dword_ptr(rbx + 8))?;
        a.mov(rsi, qword_ptr(rbx + 16))?;
        a.syscall()
    });
    let (_, _, blocks) = record(start());
    let loads = [(0, 3), (4, 4), (8, 3), (16, 4)];
    let sites = loads.iter().scan(CODE, |at, &(_, len)| Some(std::mem::replace(at, *at + len)));
    let config = EngineConfig {
        order_atomics: true,
        watched: Some(Arc::new(sites.collect())),
        ..EngineConfig::default()
    };
    let engine = engine(&config, &blocks, &[]);
    engine.several_threads();
    let mut cpu = engine.attach().expect("attaches");
    let mut met = LastMet::new();
    // The last word has not changed since the thread has met another value there.
    let mut expected = Vec::new();
    for (offset, size) in [(0, 1_u8), (4, 2), (8, 4), (16, 8)] {
        // SAFETY: the program's memory, which no thread uses now.
        let word = unsafe { ((DATA + offset) as *const u64).read_unaligned() };
        let now = word & u64::MAX >> (64 - 8 * size);
        let (before, value) = if size == 8 { (now, 99) } else { (now ^ 1, now) };
        met.meet((DATA + offset, size), 99, 0, before);
        expected.push(value);
    }
    met.alone.store(1, Relaxed);
    met.unrecorded.store(4, Relaxed);
    // SAFETY: it outlives the executor, and nobody else uses it.
    unsafe { cpu.set_last_met(&raw mut *met) };
    let mut context = start();
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!(met.unrecorded.load(Relaxed), 0);
    let registers = [reg::RAX, reg::RCX, reg::RDX, reg::RSI].map(|it| context.gpr[it]);
    assert_eq!(registers, *expected);
    assert_eq!(
        met.at(DATA, 1).map(|met| (met.value, met.version)),
        Some((expected[0], expected[0]))
    );
    let mut context = start();
    let exit = cpu.run(&mut context, Mode::Observed);
    assert_eq!(exit, Exit::Ordered { address: DATA, size: 1, kind: OrderedKind::Load });
    drop(cpu);
}
