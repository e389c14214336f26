//! Threads that are fetched out of translated code, and the places where a replay finds them again.

use super::{Guest, engine, run};
use iced_x86::code_asm::*;
use refrain_vm::{Count, Engine, EngineConfig, Exit, Interrupt, Mode, RecordingEngine, reg};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// A loop of seven instructions that says in memory how far it is. It ends when the second word of
/// the data is not 0.
fn endless_loop(guest: &Guest) {
    guest.assemble(|a| {
        let (mut again, mut function) = (a.create_label(), a.create_label());
        a.set_label(&mut again).unwrap();
        a.inc(rax).unwrap();
        a.mov(qword_ptr(guest.data), rax).unwrap();
        a.call(function).unwrap();
        a.cmp(qword_ptr(guest.data + 8), 0).unwrap();
        a.je(again).unwrap();
        a.syscall().unwrap();
        a.set_label(&mut function).unwrap();
        a.inc(rbx).unwrap();
        a.ret().unwrap();
    });
}

/// Waits until a thread that runs [`endless_loop`] is further than it was.
fn await_progress(guest: &Guest) {
    let before = guest.read(guest.data);
    while guest.read(guest.data) == before {
        std::thread::yield_now();
    }
}

#[test]
fn a_replay_finds_where_a_computing_thread_came_out() {
    let guest = Guest::new();
    endless_loop(&guest);
    let recording = engine(EngineConfig::default());
    recording.count_from_now_on();
    let (tell, told) = channel::<Arc<dyn Interrupt>>();
    let fetched = std::thread::scope(|scope| {
        let (guest, recording) = (&guest, &recording);
        let thread = scope.spawn(move || {
            let mut cpu = recording.attach_recording().unwrap();
            tell.send(cpu.interrupt()).unwrap();
            let mut context = guest.context();
            assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Interrupted);
            context
        });
        let interrupt = told.recv().unwrap();
        await_progress(guest);
        interrupt.interrupt();
        thread.join().unwrap()
    });
    assert!(fetched.retired > 0);

    let places = Arc::new(BTreeSet::from([fetched.rip]));
    let config = EngineConfig { count: Count::Instructions, places, ..EngineConfig::default() };
    let replay = engine(config);
    let mut cpu = replay.attach_recording().unwrap();
    let mut context = guest.context();
    context.leave_at = fetched.retired;
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Interrupted);
    assert_eq!(context.gpr, fetched.gpr);
    assert_eq!((context.rip, context.retired), (fetched.rip, fetched.retired));
    // A turn of the loop later it is there again; it does not stop where it is.
    context.leave_at += 7;
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Interrupted);
    assert_eq!(context.gpr[reg::RAX], fetched.gpr[reg::RAX] + 1);
    assert_eq!(context.rip, fetched.rip);
}

/// Others link the blocks again that a thread is to leave by; it comes out all the same.
#[test]
fn threads_in_the_same_loop_come_out_one_by_one() {
    const TIMES: u32 = 200;
    let guest = Guest::new();
    endless_loop(&guest);
    let engine = engine(EngineConfig::default());
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        for index in 0..2 {
            let (guest, engine, tell) = (&guest, &engine, tell.clone());
            scope.spawn(move || {
                let mut cpu = engine.attach_recording().unwrap();
                let (out, came_out) = channel();
                tell.send((cpu.interrupt(), came_out)).unwrap();
                let mut context = guest.context();
                context.gpr[reg::RSP] -= index * 0x4000;
                while cpu.run(&mut context, Mode::Observed) == Exit::Interrupted {
                    out.send(()).unwrap();
                }
            });
        }
        let threads = [told.recv().unwrap(), told.recv().unwrap()];
        for time in 0..TIMES {
            let (interrupt, came_out) = &threads[(time % 2) as usize];
            interrupt.interrupt();
            came_out.recv().unwrap();
        }
        guest.put(guest.data + 8, &1_u64.to_le_bytes());
    });
}

/// A thread that goes on behind a hook must not go back to before it.
#[test]
fn nobody_comes_out_at_a_hook() {
    let guest = Guest::new();
    let function = guest.code + 0x1000;
    guest.assemble(|a| {
        a.call(function).unwrap();
        a.syscall().unwrap();
    });
    guest.assemble_at(function, |a| {
        a.inc(rax).unwrap();
        a.ret().unwrap();
    });
    let engine = engine(EngineConfig::default());
    engine.hook(function);
    let mut cpu = engine.attach_recording().unwrap();
    let interrupt = cpu.interrupt();
    let mut context = guest.context();

    interrupt.interrupt();
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Interrupted);
    assert_eq!(context.rip, guest.code);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Hook);
    interrupt.interrupt();
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Interrupted);
    assert_eq!((context.rip, context.gpr[reg::RAX]), (guest.code + 5, 1), "behind the function");
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!(run(&engine, &mut guest.context()), Exit::Hook);
}
