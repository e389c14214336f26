//! With every access in order: code that the guest generates.

use super::super::{Guest, context_of};
use super::{count, every, permit, recording};
use iced_x86::code_asm::*;
use refrain_vm::{Context, Cpu, Engine, Exit, Mode, OrderedKind, reg};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    keep(&mut *cpu, &mut context, guest.code);
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
    let mut other = context_of(&guest);
    generated(&guest, 0);
    other.rip += 64;
    assert_eq!(cpu.run(&mut other, Mode::Observed), Exit::Code);
    keep(&mut *cpu, &mut other, guest.code + 64);
    for constant in [1, 2, 2, 3] {
        let mut context = context_of(&guest);
        generated(&guest, constant);
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Code);
        read_code(&mut *cpu, &mut context);
        generated(&guest, 7);
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
        assert_eq!(context.gpr[reg::RAX], constant as u64);
    }
}

/// The thread has come to code that it keeps from now on.
fn keep(cpu: &mut dyn Cpu, context: &mut Context, address: u64) {
    let (filter, line) = (cpu.filter().unwrap(), refrain_vm::line_index(address));
    filter.permit(line, false);
    filter.keep_code(line);
    read_code(cpu, context);
}

/// Two functions that return a constant.
fn two_functions(guest: &Guest, second: u64, constant: i32) {
    for at in [guest.code, second] {
        guest.assemble_at(at, |a| {
            a.mov(eax, constant).unwrap();
            a.syscall().unwrap();
        });
    }
}

/// The thread reads the code that it has come to.
fn read_code(cpu: &mut dyn Cpu, context: &mut Context) {
    let len = cpu.spans().iter().map(|span| span.len).sum();
    cpu.read_code(context, len);
}

/// Two functions of one line change, and a thread that comes to one of them again keeps the line: the other
/// one is executed as it is now, too.
#[test]
fn what_is_kept_is_compared_with_all_blocks_of_a_line() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    engine.generated(guest.code..guest.code + 4096);
    let second = guest.code + 16;
    let both = |constant: i32| two_functions(&guest, second, constant);
    let mut cpu = engine.attach().unwrap();
    let filter = cpu.filter().unwrap();
    let run = |cpu: &mut dyn Cpu, at: u64, asks: bool| {
        let mut context = context_of(&guest);
        context.rip = at;
        if asks {
            assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Code);
            keep(cpu, &mut context, guest.code);
        }
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
        context.gpr[reg::RAX]
    };
    both(1);
    assert_eq!(run(&mut *cpu, guest.code, true), 1);
    assert_eq!(run(&mut *cpu, second, false), 1, "the line is kept");
    for constant in 2..5 {
        both(constant);
        filter.permit(refrain_vm::line_index(guest.code), true);
        assert_eq!(run(&mut *cpu, guest.code, true), constant as u64);
        assert_eq!(run(&mut *cpu, second, false), constant as u64);
    }
}

/// Something else in the line is written all the time.
#[test]
fn code_in_lines_that_are_written_often_is_compared() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    engine.generated(guest.code..guest.code + 4096);
    let mut cpu = engine.attach().unwrap();
    let (filter, line) = (cpu.filter().unwrap(), refrain_vm::line_index(guest.code));
    let mut asked = 0;
    for round in 0..1000 {
        let constant = round / 400;
        guest.assemble(|a| {
            a.mov(eax, constant).unwrap();
            a.syscall().unwrap();
        });
        filter.permit(line, true);
        let mut context = context_of(&guest);
        while cpu.run(&mut context, Mode::Observed) == Exit::Code {
            asked += 1;
            keep(&mut *cpu, &mut context, guest.code);
        }
        assert_eq!(context.gpr[reg::RAX], constant as u64);
    }
    assert!(asked < 900, "asked {asked} times");
}

/// A block that compares by itself has changed, with another one of its line, which does not: the thread keeps the
/// line from then on, and executes both as they are.
#[test]
fn who_compares_by_itself_has_the_line_compared() {
    const OFTEN: i32 = 300;
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    engine.generated(guest.code..guest.code + 4096);
    let second = guest.code + 16;
    let both = |constant: i32| two_functions(&guest, second, constant);
    let mut cpu = engine.attach().unwrap();
    let (filter, line) = (cpu.filter().unwrap(), refrain_vm::line_index(guest.code));
    let run = |cpu: &mut dyn Cpu, at: u64| {
        let mut context = context_of(&guest);
        context.rip = at;
        let mut asked = 0;
        while cpu.run(&mut context, Mode::Observed) == Exit::Code {
            asked += 1;
            keep(cpu, &mut context, at);
        }
        (context.gpr[reg::RAX], asked)
    };
    both(1);
    for _ in 0..OFTEN {
        filter.permit(line, true);
        run(&mut *cpu, guest.code);
    }
    filter.permit(line, true);
    assert_eq!(run(&mut *cpu, guest.code), (1, 0), "it compares by itself");
    assert_eq!(run(&mut *cpu, second), (1, 1));
    both(2);
    filter.permit(line, true);
    assert_eq!(run(&mut *cpu, guest.code), (2, 1), "the machine is told");
    assert_eq!(run(&mut *cpu, second), (2, 0), "the line is kept");
}

/// Neither the code nor what it accesses is the thread's: it comes to the access all the same.
#[test]
fn what_generated_code_may_not_access_is_reported_once_it_was_read() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    engine.generated(guest.code..guest.code + 4096);
    guest.assemble(|a| {
        a.mov(rax, qword_ptr(rbp)).unwrap();
        a.mov(rdx, qword_ptr(rbp + 256)).unwrap();
        a.syscall().unwrap();
    });
    let mut cpu = engine.attach().unwrap();
    for permitted in [None, Some(guest.data)] {
        permitted.into_iter().for_each(|line| permit(&cpu.filter().unwrap(), line, false));
        let mut context = context_of(&guest);
        let (mut read, mut reported) = (0, 0);
        loop {
            match cpu.run(&mut context, Mode::Observed) {
                Exit::Syscall => break,
                Exit::Code => {
                    read += 1;
                    read_code(&mut *cpu, &mut context);
                }
                Exit::Ordered { .. } => {
                    reported += 1;
                    assert_eq!(cpu.step(&mut context), None);
                }
                other => panic!("{other:?}"),
            }
            assert!(read <= 5, "it comes to the same code again and again");
        }
        assert_eq!(reported, 2 - permitted.map_or(0, |_| 1));
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
    read_code(&mut *cpu, &mut context);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
}

/// A replay executes what it has translated until an event says that the recording has looked at the code, and then
/// all blocks of those lines as they are.
#[test]
fn a_replay_compares_code_where_the_recording_did() {
    let guest = Guest::new();
    let sites = Arc::new(BTreeSet::from([guest.code]));
    let Some(engine) = every(Some(sites)) else { return };
    engine.generated(guest.code..guest.code + 4096);
    let second = guest.code + 32;
    let both = |constant: i32| {
        for at in [guest.code, second] {
            guest.assemble_at(at, |a| {
                a.mov(eax, constant).unwrap();
                a.add(eax, 100).unwrap();
                a.syscall().unwrap();
            });
        }
    };
    let mut cpu = engine.attach().unwrap();
    let filter = cpu.filter().unwrap();
    // SAFETY: as in `count`.
    let leave = |left: u64| unsafe { &*filter.count }.store(left, Ordering::Relaxed);
    let run = |cpu: &mut dyn Cpu, at: u64, len: Option<u64>| {
        let mut context = context_of(&guest);
        context.rip = at;
        context.xmm[0] = [7, 8];
        leave(u64::from(len.is_none()));
        if let Some(len) = len {
            assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Code);
            cpu.read_code(&mut context, len);
        }
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
        assert_eq!(
            (context.gpr[reg::RCX], context.xmm[0]),
            (context_of(&guest).gpr[reg::RCX], [7, 8])
        );
        context.gpr[reg::RAX]
    };
    both(0);
    assert_eq!([run(&mut *cpu, guest.code, None), run(&mut *cpu, second, None)], [100, 100]);
    for constant in 1..5 {
        let (before, now) = (99 + constant as u64, 100 + constant as u64);
        both(constant);
        assert_eq!(run(&mut *cpu, guest.code, None), before, "no event says that it has changed");
        assert_eq!(run(&mut *cpu, guest.code, Some(0)), before, "an event of something else");
        assert_eq!(run(&mut *cpu, guest.code, Some(10)), now);
        assert_eq!(run(&mut *cpu, second, None), now, "it is in the same line");
    }
}
