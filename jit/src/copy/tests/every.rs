//! Every access: looked up in a recording, counted down in a replay.

use super::{CopyEngine, Guest, context_of, engine};
use iced_x86::code_asm::*;
use refrain_vm::{Context, Cpu, Engine, EngineConfig, Exit, Filter, Mode, OrderedKind, Span, reg};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn every(watched: Option<Arc<BTreeSet<u64>>>) -> Option<CopyEngine> {
    if !is_x86_feature_detected!("bmi2") {
        eprintln!("SKIPPED: this processor has no BMI2");
        return None;
    }
    let config =
        EngineConfig { order_atomics: true, every_access: true, ..EngineConfig::default() };
    let engine = engine(EngineConfig { watched, ..config });
    engine.several_threads();
    Some(engine)
}

fn recording() -> Option<CopyEngine> {
    every(None)
}

fn replaying() -> Option<CopyEngine> {
    every(Some(Arc::default()))
}

fn count(filter: &Filter) -> u64 {
    // SAFETY: the executor that the filter belongs to is there.
    unsafe { &*filter.count }.load(Ordering::Relaxed)
}

/// Lets the thread read the line of an address, or write it too.
fn permit(filter: &Filter, address: u64, write: bool) {
    let line = refrain_vm::line_index(address);
    // SAFETY: the executor is there, and its tables have an entry for every index.
    unsafe {
        (*filter.readable.add(line)).store(1, Ordering::Relaxed);
        (*filter.writable.add(line)).store(u8::from(write), Ordering::Relaxed);
    }
}

/// Runs to the system call and executes what is reported; what was.
fn reports(cpu: &mut dyn Cpu, context: &mut Context) -> Vec<(u64, u8, OrderedKind)> {
    let mut seen = Vec::new();
    loop {
        match cpu.run(context, Mode::Observed) {
            Exit::Syscall => return seen,
            Exit::Ordered { address, size, kind } => {
                seen.push((address, size, kind));
                assert_eq!(cpu.step(context), None);
            }
            other => panic!("{other:?} at {:#x}", context.rip),
        }
    }
}

#[test]
fn what_a_thread_may_not_access_is_reported() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    guest.assemble(|a| {
        a.mov(eax, dword_ptr(rbp)).unwrap();
        a.mov(byte_ptr(rbp + 64), 7).unwrap();
        a.lock().add(qword_ptr(rbp + 128), rax).unwrap();
        a.movups(xmm0, xmmword_ptr(rbp + 192)).unwrap();
        a.push(rax).unwrap();
        a.pop(rbx).unwrap();
        a.lea(rcx, qword_ptr(rbp + 256)).unwrap();
        a.syscall().unwrap();
    });
    let mut cpu = engine.attach().unwrap();
    let mut context = context_of(&guest);
    let seen = reports(&mut *cpu, &mut context);
    let at = |offset| guest.data + offset;
    assert_eq!(
        seen,
        [
            (at(0), 4, OrderedKind::Read),
            (at(64), 1, OrderedKind::Write),
            (at(128), 8, OrderedKind::Write),
            (at(192), 16, OrderedKind::Read),
        ]
    );
    assert_eq!(guest.read(guest.data + 64), 7);
    assert_eq!(count(&cpu.filter().unwrap()), 0, "the machine counts what it executes");
}

#[test]
fn what_a_thread_may_access_is_counted_and_disturbs_nothing() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    guest.assemble(|a| {
        a.mov(qword_ptr(rbp), r15).unwrap();
        a.mov(r14, qword_ptr(rbp)).unwrap();
        a.adc(qword_ptr(rbp + 8), rcx).unwrap();
        a.syscall().unwrap();
    });
    let mut cpu = engine.attach().unwrap();
    let filter = cpu.filter().unwrap();
    permit(&filter, guest.data, true);
    let mut context = context_of(&guest);
    let before = context.clone();
    assert_eq!(reports(&mut *cpu, &mut context), []);
    assert_eq!(count(&filter), 3);
    // SAFETY: as in `count`.
    assert_eq!(unsafe { &*filter.window }.load(Ordering::Relaxed), 0, "it is closed again");
    let mut expected = before.gpr;
    expected[reg::R14] = before.gpr[reg::R15];
    assert_eq!(context.gpr, expected);
    assert_eq!(context.xmm, before.xmm);
    assert_eq!(guest.read(guest.data + 8), before.gpr[reg::RCX] + 1, "the carry flag was set");
}

#[test]
fn a_line_that_may_be_read_may_not_be_written() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    guest.assemble(|a| {
        a.mov(rax, qword_ptr(rbp)).unwrap();
        a.mov(qword_ptr(rbp), rax).unwrap();
        a.syscall().unwrap();
    });
    let mut cpu = engine.attach().unwrap();
    permit(&cpu.filter().unwrap(), guest.data, false);
    let seen = reports(&mut *cpu, &mut context_of(&guest));
    assert_eq!(seen, [(guest.data, 8, OrderedKind::Write)]);
}

#[test]
fn both_lines_of_an_access_count() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    guest.assemble(|a| {
        a.mov(rax, qword_ptr(rbp + 60)).unwrap();
        a.syscall().unwrap();
    });
    for (lines, reported) in [(&[0][..], 1), (&[64], 1), (&[0, 64], 0)] {
        let mut cpu = engine.attach().unwrap();
        for &line in lines {
            permit(&cpu.filter().unwrap(), guest.data + line, false);
        }
        let seen = reports(&mut *cpu, &mut context_of(&guest));
        assert_eq!(seen.len(), reported, "{lines:?}");
    }
}

#[test]
fn a_branch_reads_where_it_goes_to() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    let target = guest.assemble_at(guest.code + 0x100, |a| a.syscall().unwrap()) - 2;
    guest.assemble(|a| a.jmp(qword_ptr(rbp)).unwrap());
    guest.put(guest.data, &target.to_le_bytes());
    let mut cpu = engine.attach().unwrap();
    let mut context = context_of(&guest);
    let exit = cpu.run(&mut context, Mode::Observed);
    let kind = OrderedKind::Target;
    assert_eq!(exit, Exit::Ordered { address: guest.data, size: 8, kind });
    permit(&cpu.filter().unwrap(), guest.data, false);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!(count(&cpu.filter().unwrap()), 1);
}

/// A string instruction is executed page by page, and each part names what it accesses.
#[test]
fn strings_come_in_parts() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    guest.assemble(|a| {
        a.cld().unwrap();
        a.rep().movsq().unwrap();
        a.syscall().unwrap();
    });
    const WORDS: u64 = 1000;
    let (from, to) = (guest.data, guest.data + 0x10000);
    (0..WORDS).for_each(|word| guest.put(from + 8 * word, &word.to_le_bytes()));
    let mut cpu = engine.attach().unwrap();
    let mut context = guest.context();
    (context.gpr[reg::RSI], context.gpr[reg::RDI]) = (from, to);
    context.gpr[reg::RCX] = WORDS;
    let mut done = 0;
    while cpu.run(&mut context, Mode::Observed) == Exit::Spans {
        let len = (8 * WORDS - done).min(4096);
        let expected = [
            Span { start: to + done, len, write: true },
            Span { start: from + done, len, write: false },
        ];
        assert_eq!(cpu.spans(), expected);
        assert_eq!(cpu.step(&mut context), None);
        done += len;
    }
    assert_eq!((done, context.gpr[reg::RCX]), (8 * WORDS, 0));
    assert!((0..WORDS).all(|word| guest.read(to + 8 * word) == word));
}

/// A search ends where it finds something, in whatever part that is.
#[test]
fn a_search_ends_where_it_finds() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    guest.assemble(|a| {
        a.cld().unwrap();
        a.repne().scasb().unwrap();
        a.syscall().unwrap();
    });
    for place in [0, 4095, 4096, 9000] {
        let mut cpu = engine.attach().unwrap();
        guest.put(guest.data, &[0; 16384]);
        guest.put(guest.data + place, &[9]);
        let mut context = guest.context();
        (context.gpr[reg::RAX], context.gpr[reg::RDI]) = (9, guest.data);
        context.gpr[reg::RCX] = u64::MAX;
        while cpu.run(&mut context, Mode::Observed) == Exit::Spans {
            assert_eq!(cpu.step(&mut context), None);
        }
        assert_eq!(context.gpr[reg::RDI], guest.data + place + 1);
        assert_eq!(context.gpr[reg::RCX], u64::MAX - place - 1);
    }
}

#[test]
fn a_bit_string_may_lie_far_from_its_operand() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    guest.assemble(|a| {
        a.bts(qword_ptr(rbp), rax).unwrap();
        a.syscall().unwrap();
    });
    let mut cpu = engine.attach().unwrap();
    let mut context = context_of(&guest);
    context.gpr[reg::RAX] = 64 * 10 + 3;
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Spans);
    assert_eq!(cpu.spans(), [Span { start: guest.data + 80, len: 8, write: true }]);
    assert_eq!(cpu.step(&mut context), None);
    assert_eq!(guest.read(guest.data + 80), 8);
}

#[test]
fn a_replay_leaves_when_no_access_is_left() {
    let Some(engine) = replaying() else { return };
    let guest = Guest::new();
    guest.assemble(|a| {
        for offset in 0..5 {
            a.inc(qword_ptr(rbp + 8 * offset)).unwrap();
        }
        a.syscall().unwrap();
    });
    let mut cpu = engine.attach().unwrap();
    let filter = cpu.filter().unwrap();
    assert!(filter.readable.is_null(), "a replay looks nothing up");
    // SAFETY: as in `count`.
    unsafe { &*filter.count }.store(3, Ordering::Relaxed);
    let mut context = context_of(&guest);
    let (address, kind) = (guest.data + 24, OrderedKind::Write);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Ordered { address, size: 8, kind });
    assert_eq!((guest.read(guest.data + 16), guest.read(guest.data + 24)), (1, 0));
    assert_eq!(cpu.step(&mut context), None);
    // SAFETY: as above.
    unsafe { &*filter.count }.store(1, Ordering::Relaxed);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!(guest.read(guest.data + 32), 1);
}

/// A function of one line, which jumps to a system call in the next.
fn generated(guest: &Guest, constant: i32) {
    let next = guest.code + 64;
    guest.assemble(|a| {
        a.mov(eax, constant).unwrap();
        a.jmp(next).unwrap();
    });
    guest.assemble_at(next, |a| a.syscall().unwrap());
}

#[test]
fn generated_code_is_read_if_the_thread_may() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    engine.generated(guest.code..guest.code + 4096);
    generated(&guest, 1);
    let mut cpu = engine.attach().unwrap();
    let filter = cpu.filter().unwrap();
    let mut context = context_of(&guest);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Code);
    let [span] = cpu.spans() else { panic!("{:?}", cpu.spans()) };
    assert_eq!((span.start, span.write), (guest.code, false));
    assert!(span.len >= 7, "both instructions are read: {span:?}");
    permit(&filter, guest.code, false);
    let before = context.clone();
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Code);
    assert_eq!(context.rip, guest.code + 64);
    assert_eq!(context.gpr[reg::RAX], 1);
    assert_eq!(count(&filter), 1, "the jump is counted");
    for register in [reg::RCX, reg::RDX] {
        assert_eq!(context.gpr[register], before.gpr[register]);
    }
    // SAFETY: as in `count`.
    assert_eq!(unsafe { &*filter.window }.load(Ordering::Relaxed), 0, "it is closed again");
}

#[test]
fn generated_code_is_what_it_was_when_it_was_read() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    engine.generated(guest.code..guest.code + 4096);
    let mut cpu = engine.attach().unwrap();
    permit(&cpu.filter().unwrap(), guest.code + 64, false);
    for constant in [1, 2, 2, 3] {
        let mut context = context_of(&guest);
        generated(&guest, constant);
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Code);
        cpu.read_code(&mut context);
        generated(&guest, 7);
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
        assert_eq!(context.gpr[reg::RAX], constant as u64);
    }
}

#[test]
fn a_replay_asks_for_generated_code_where_events_are() {
    let guest = Guest::new();
    let sites = Arc::new(BTreeSet::from([guest.code + 64]));
    let Some(engine) = every(Some(sites)) else { return };
    engine.generated(guest.code..guest.code + 4096);
    generated(&guest, 1);
    let mut cpu = engine.attach().unwrap();
    let filter = cpu.filter().unwrap();
    let mut context = context_of(&guest);
    let kind = OrderedKind::Target;
    let Exit::Ordered { kind: reported, .. } = cpu.run(&mut context, Mode::Observed) else {
        panic!("no event is left before the jump, which is counted")
    };
    assert_eq!((reported, context.rip), (kind, guest.code + 5));
    // SAFETY: as in `count`.
    unsafe { &*filter.count }.store(1, Ordering::Relaxed);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Code);
    assert_eq!((context.rip, count(&filter)), (guest.code + 64, 0));
    cpu.read_code(&mut context);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
}
