//! Several threads in one engine, and code that goes away under them.

use super::{Guest, engine, run};
use crate::copy::CopyEngine;
use iced_x86::code_asm::*;
use refrain_vm::{Context, Engine, EngineConfig, Exit, Mode, reg};
use std::time::Duration;

#[test]
fn two_threads_at_once() {
    let guest = Guest::new();
    let function = guest.code + 0x1000;
    guest.assemble(|a| {
        let mut again = a.create_label();
        a.mov(ebx, 200_000).unwrap();
        a.set_label(&mut again).unwrap();
        a.lock().inc(qword_ptr(guest.data)).unwrap();
        a.mov(ecx, function as u32).unwrap();
        a.call(rcx).unwrap();
        a.dec(ebx).unwrap();
        a.jnz(again).unwrap();
        a.syscall().unwrap();
    });
    guest.assemble_at(function, |a| {
        a.inc(rax).unwrap();
        a.ret().unwrap();
    });
    let engine = engine(EngineConfig::default());
    std::thread::scope(|scope| {
        for index in 0..3 {
            let (guest, engine) = (&guest, &engine);
            scope.spawn(move || {
                let mut context = guest.context();
                context.gpr[reg::RSP] -= index * 0x4000;
                assert_eq!(run(engine, &mut context), Exit::Syscall);
                assert_eq!(context.gpr[reg::RAX], 200_000);
            });
        }
    });
    assert_eq!(guest.read(guest.data), 600_000);
}

/// A thread begins with the GS of the one that made it, whose state's memory may by then have
/// become its own state's.
#[test]
fn inherited_gs() {
    let guest = Guest::new();
    guest.assemble(|a| a.syscall().unwrap());
    let engine = engine(EngineConfig::default());
    let current = || {
        let base: u64;
        // SAFETY: the processor has the instruction, or there were no engine.
        unsafe { std::arch::asm!("rdgsbase {}", out(reg) base, options(nomem, nostack)) };
        base
    };
    let mut met_again = false;
    // Other tests take memory meanwhile.
    for _ in 0..10_000 {
        if met_again {
            break;
        }
        let mut cpu = engine.attach().unwrap();
        assert_eq!(cpu.run(&mut guest.context(), Mode::Observed), Exit::Syscall);
        let before = current();
        drop(cpu);
        let mut cpu = engine.attach().unwrap();
        // SAFETY: as above; nobody uses GS before the executor sets it.
        unsafe { std::arch::asm!("wrgsbase {}", in(reg) before, options(nomem, nostack)) };
        assert_eq!(cpu.run(&mut guest.context(), Mode::Observed), Exit::Syscall);
        // The thread has its own storage, or this is the end.
        assert_eq!(std::thread::current().name().map(str::is_empty), Some(false));
        met_again |= current() == before;
    }
    assert!(met_again, "no state was where another had been");
}

#[test]
fn forgotten_code_is_translated_again() {
    let guest = Guest::new();
    let function = guest.code + 0x1000;
    guest.assemble(|a| {
        a.call(function).unwrap();
        a.syscall().unwrap();
    });
    let engine = engine(EngineConfig::default());
    let mut cpu = engine.attach().unwrap();
    for value in 1..5 {
        guest.assemble_at(function, |a| {
            a.mov(eax, value).unwrap();
            a.ret().unwrap();
        });
        engine.forget(function..function + 1);
        let mut context = guest.context();
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
        assert_eq!(context.gpr[reg::RAX], value as u64);
    }
}

/// Threads run in loops while everything is forgotten again and again.
#[test]
fn forgetting_while_threads_run() {
    let guest = Guest::new();
    guest.assemble(|a| {
        let mut again = a.create_label();
        let mut function = a.create_label();
        let mut done = a.create_label();
        a.set_label(&mut again).unwrap();
        a.call(function).unwrap();
        a.dec(rbx).unwrap();
        a.jnz(again).unwrap();
        a.jmp(done).unwrap();
        a.set_label(&mut function).unwrap();
        a.inc(rax).unwrap();
        a.ret().unwrap();
        a.set_label(&mut done).unwrap();
        a.syscall().unwrap();
    });
    let engine = engine(EngineConfig::default());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|index| {
                let (guest, engine) = (&guest, &engine);
                scope.spawn(move || {
                    let mut context = guest.context();
                    context.gpr[reg::RSP] -= index * 0x4000;
                    context.gpr[reg::RBX] = 2_000_000;
                    assert_eq!(run(engine, &mut context), Exit::Syscall);
                    assert_eq!(context.gpr[reg::RAX], 2_000_000);
                })
            })
            .collect();
        let mut forgotten = 0;
        while !threads.iter().all(|thread| thread.is_finished()) {
            engine.forget(guest.code..guest.code + 0x1000);
            forgotten += 1;
            if forgotten % 16 == 0 {
                engine.shared.reclaim();
            }
            // The threads have to get the lock in between, however busy the machine is.
            std::thread::sleep(Duration::from_micros(50));
        }
    });
}

/// More code than the code memory holds.
#[test]
fn full_code_memory() {
    let guest = Guest::new();
    let engine = CopyEngine::new(EngineConfig::default(), 1 << 18).unwrap();
    let blocks = 10_000;
    let mut context = Context::default();
    let mut code = Vec::new();
    for _ in 0..blocks {
        // inc rax; jmp to the next instruction
        code.extend_from_slice(&[0x48, 0xff, 0xc0, 0xeb, 0x00]);
    }
    code.extend_from_slice(&[0x0f, 0x05]);
    guest.put(guest.code, &code);
    for round in 1..3 {
        context.rip = guest.code;
        assert_eq!(run(&engine, &mut context), Exit::Syscall);
        assert_eq!(context.gpr[reg::RAX], round * blocks);
    }
}
