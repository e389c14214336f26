//! Plain loads that are watched.

use super::{CopyEngine, Guest, ROOM, engine, run, with_functions};
use iced_x86::code_asm::*;
use refrain_vm::{
    Context, Count, Cpu, Engine, EngineConfig, Exit, Mode, OrderedKind, RecordingEngine, reg,
};
use std::sync::Arc;

fn ordering() -> EngineConfig {
    EngineConfig { order_atomics: true, keep_blocks: true, ..EngineConfig::default() }
}

/// Where the loads of these tests begin. Before them is a locked instruction of the same function.
const LOADS: u64 = 0x40;

/// A function with a locked instruction on the word at r15, and with what `write` adds.
fn function(config: EngineConfig, write: impl FnOnce(&mut CodeAssembler)) -> (Guest, CopyEngine) {
    let guest = Guest::new();
    guest.put(guest.code, &[0x90; LOADS as usize]);
    guest.assemble(|a| {
        a.lock().add(qword_ptr(r15), 0).unwrap();
        a.syscall().unwrap();
    });
    guest.assemble_at(guest.code + LOADS, |a| {
        write(a);
        a.syscall().unwrap();
    });
    let engine = engine(config);
    with_functions(&engine, &[guest.code], &[]);
    engine.several_threads();
    (guest, engine)
}

/// Runs to the system call; returns the loads that were reported: offset of the instruction,
/// address, size.
fn loads(guest: &Guest, engine: &CopyEngine, context: &mut Context) -> Vec<(u64, u64, u8)> {
    let mut cpu: Box<dyn Cpu> = engine.attach().unwrap();
    let mut seen = Vec::new();
    loop {
        match cpu.run(context, Mode::Observed) {
            Exit::Syscall => return seen,
            Exit::Ordered { address, size, kind: OrderedKind::Load } => {
                seen.push((context.rip - guest.code - LOADS, address, size));
                assert_eq!(cpu.step(context), None);
            }
            other => panic!("{other:?} at {:#x}", context.rip),
        }
    }
}

/// Registers and flags that would show any disturbance; most registers point to the data.
fn context_for_loads(guest: &Guest) -> Context {
    let mut context = guest.context_at(guest.code + LOADS);
    for index in (0..16).filter(|&index| index != reg::RSP) {
        context.gpr[index] = 0x1111_1111_1111_1111 * index as u64;
        context.xmm[index] = [index as u64, 1];
    }
    context.gpr[reg::RCX] = guest.data + 0x100;
    context.gpr[reg::RDI] = guest.data + 0x100;
    context.gpr[reg::RDX] = 4;
    context.rflags = 0x8d5;
    context
}

/// Every form of load, watched and not, against an engine that does not order anything.
#[test]
fn nothing_is_disturbed() {
    type Form = (fn(&mut CodeAssembler, u64), u8);
    let forms: [Form; 28] = [
        (|a, _| a.mov(eax, dword_ptr(rcx)).unwrap(), 4),
        (|a, _| a.mov(rcx, qword_ptr(rcx)).unwrap(), 8),
        (|a, _| a.mov(r9, qword_ptr(rcx + rdx * 4 - 16)).unwrap(), 8),
        (|a, _| a.mov(rcx, qword_ptr(rdi + rdx - 4)).unwrap(), 8),
        (|a, _| a.movzx(ecx, byte_ptr(rdi)).unwrap(), 1),
        (|a, _| a.movsx(rbx, word_ptr(rcx)).unwrap(), 2),
        (|a, _| a.movsxd(rcx, dword_ptr(rdi)).unwrap(), 4),
        (|a, _| a.mov(ah, byte_ptr(rcx)).unwrap(), 1),
        (|a, _| a.mov(esi, dword_ptr(edi)).unwrap(), 4),
        (|a, _| a.cmp(dword_ptr(rdi), ecx).unwrap(), 4),
        (|a, _| a.cmp(cl, byte_ptr(rdi)).unwrap(), 1),
        (|a, _| a.cmp(qword_ptr(rcx), 7).unwrap(), 8),
        (|a, _| a.test(byte_ptr(rcx), cl).unwrap(), 1),
        (|a, _| a.adc(rax, qword_ptr(rcx)).unwrap(), 8),
        (|a, _| a.imul_2(rcx, qword_ptr(rdi)).unwrap(), 8),
        (|a, _| a.imul_3(ecx, dword_ptr(rdi), 77).unwrap(), 4),
        (|a, _| a.cmovc(rcx, qword_ptr(rdi)).unwrap(), 8),
        (|a, _| a.cmovnc(rcx, qword_ptr(rdi)).unwrap(), 8),
        (|a, _| a.bt(dword_ptr(rdi), 3).unwrap(), 4),
        (|a, _| a.popcnt(rcx, qword_ptr(rcx)).unwrap(), 8),
        (|a, _| a.movsd_2(xmm1, qword_ptr(rcx)).unwrap(), 8),
        (|a, _| a.movss(xmm9, dword_ptr(rdi + rdx - 4)).unwrap(), 4),
        (|a, _| a.movq(xmm2, qword_ptr(rdi)).unwrap(), 8),
        (|a, _| a.movhps(xmm3, qword_ptr(rcx)).unwrap(), 8),
        (|a, _| a.addsd(xmm4, qword_ptr(rcx)).unwrap(), 8),
        (|a, _| a.comiss(xmm5, dword_ptr(rdi)).unwrap(), 4),
        (|a, data| a.mov(rcx, qword_ptr(data + 0x100)).unwrap(), 8),
        (|a, data| a.cmp(dword_ptr(data + 0x100), 3).unwrap(), 4),
    ];
    let (guest, _) = function(ordering(), |_| {});
    for (index, (write, size)) in forms.into_iter().enumerate() {
        let end = guest.assemble_at(guest.code + LOADS, |a| {
            write(a, guest.data);
            a.inc(r8).unwrap();
            a.syscall().unwrap();
        });
        guest.put(guest.data + 0x100, &0x8899_aabb_ccdd_eeff_u64.to_le_bytes());
        let cases =
            [false, true].map(|known| [Count::Nothing, Count::Instructions].map(|c| (known, c)));
        for (known, count) in cases.into_iter().flatten() {
            guest.put(guest.stack - 128, &[0x5a; 128]);
            let plain = engine(EngineConfig { count, ..EngineConfig::default() });
            let (mut expected, mut context) =
                (context_for_loads(&guest), context_for_loads(&guest));
            assert_eq!(run(&plain, &mut expected), Exit::Syscall);
            let engine = engine(EngineConfig { count, ..ordering() });
            if known {
                with_functions(&engine, &[guest.code], &[]);
            }
            engine.several_threads();
            let seen = loads(&guest, &engine, &mut context);
            let reported = [(0, guest.data + 0x100, size)];
            assert_eq!(seen, reported[..usize::from(known)], "form {index}");
            let state = |c: &Context| (c.gpr, c.rflags, c.xmm, c.retired, c.rip);
            assert_eq!(state(&context), state(&expected), "form {index}, {known}");
            assert_eq!(context.rip, end);
            let zone = (1..=16).map(|word| guest.read(guest.stack - 8 * word));
            assert!(zone.into_iter().all(|word| word == 0x5a5a_5a5a_5a5a_5a5a), "form {index}");
        }
    }
}

/// RIP-relative operands, near the code cache and far from it.
#[test]
fn ip_relative_operands() {
    for guest in [Guest::new(), Guest::at(0x1200_0000_0000)] {
        guest.put(guest.code, &[0x90; LOADS as usize]);
        guest.assemble(|a| {
            a.lock().add(qword_ptr(r15), 0).unwrap();
            a.syscall().unwrap();
        });
        // mov rax, [rip + ...]; cmp dword [rip + ...], 9; syscall
        let start = guest.code + LOADS;
        let word = guest.data + 0x200;
        guest.put(start, &[0x48, 0x8b, 0x05]);
        guest.put(start + 3, &((word - start - 7) as u32).to_le_bytes());
        guest.put(start + 7, &[0x83, 0x3d]);
        guest.put(start + 9, &((word - start - 14) as u32).to_le_bytes());
        guest.put(start + 13, &[9, 0x0f, 0x05]);
        guest.put(word, &9_u64.to_le_bytes());
        let engine = engine(ordering());
        with_functions(&engine, &[guest.code], &[]);
        engine.several_threads();
        for _ in 0..2 {
            let mut context = context_for_loads(&guest);
            assert_eq!(loads(&guest, &engine, &mut context), [(0, word, 8), (7, word, 4)]);
            assert_eq!((context.gpr[reg::RAX], context.rflags & 0x40), (9, 0x40));
            assert_eq!(context.gpr[reg::RCX], guest.data + 0x100);
            assert_eq!(context.gpr[reg::RSI], 0x6666_6666_6666_6666);
        }
    }
}

/// The stack, thread-local storage, and instructions that do more than load.
#[test]
fn what_is_no_candidate() {
    let (guest, engine) = function(ordering(), |a| {
        a.mov(rax, qword_ptr(rsp)).unwrap();
        a.mov(rax, qword_ptr(rsi).fs()).unwrap();
        a.push(rdi).unwrap();
        a.pop(rax).unwrap();
        a.mov(qword_ptr(rdi), rax).unwrap();
        a.add(qword_ptr(rdi), 1).unwrap();
        a.movups(xmm0, xmmword_ptr(rdi)).unwrap();
        a.movq(xmm1, qword_ptr(rdi)).unwrap();
        a.mov(rsi, rdi).unwrap();
        a.lodsq().unwrap();
        a.lea(rax, qword_ptr(rdi)).unwrap();
    });
    let mut context = context_for_loads(&guest);
    context.fs_base = guest.data;
    context.gpr[reg::RSI] = 0x100;
    context.rflags = 0;
    assert_eq!(loads(&guest, &engine, &mut context), []);
}

/// Loads are watched only in functions that have a locked instruction, and are known.
#[test]
fn functions_without_locked_instructions() {
    let write = |a: &mut CodeAssembler| a.mov(rax, qword_ptr(rdi)).unwrap();
    let (guest, engine) = function(ordering(), write);
    with_functions(&engine, &[guest.code + LOADS], &[]);
    assert_eq!(loads(&guest, &engine, &mut context_for_loads(&guest)), []);

    let (guest, _) = function(ordering(), write);
    let engine = super::engine(ordering());
    engine.several_threads();
    assert_eq!(loads(&guest, &engine, &mut context_for_loads(&guest)), []);
}

/// The last function's end is not known: what follows its last return is not it.
#[test]
fn functions_end() {
    let (guest, engine) = function(ordering(), |_| {});
    guest.assemble_at(guest.code + LOADS, |a| {
        let mut skip = a.create_label();
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.syscall().unwrap();
        a.jz(skip).unwrap();
        a.ret().unwrap();
        a.set_label(&mut skip).unwrap();
        a.ret().unwrap();
        a.lock().inc(qword_ptr(rdi)).unwrap();
    });
    with_functions(&engine, &[guest.code + LOADS], &[]);
    assert_eq!(loads(&guest, &engine, &mut context_for_loads(&guest)), []);
}

/// A watched load that faults: the state is the one before it.
#[test]
fn faults_are_precise() {
    for form in [0, 1] {
        let (guest, engine) =
            function(EngineConfig { count: Count::Instructions, ..ordering() }, |a| {
                a.inc(r8).unwrap();
                match form {
                    0 => a.mov(rcx, qword_ptr(rcx + rdx * 8)).unwrap(),
                    _ => a.cmp(dword_ptr(rcx + rdx * 8), 1).unwrap(),
                }
            });
        let mut context = context_for_loads(&guest);
        context.gpr[reg::RCX] = guest.code + 2 * ROOM;
        let before = context.clone();
        let address = guest.code + 2 * ROOM + 32;
        let mut cpu = engine.attach().unwrap();
        let size = if form == 0 { 8 } else { 4 };
        let ordered = Exit::Ordered { address, size, kind: OrderedKind::Load };
        assert_eq!(cpu.run(&mut context, Mode::Observed), ordered);
        let fault = cpu.step(&mut context).map(|it| (it.signal, it.address));
        assert_eq!(fault, Some((libc::SIGSEGV, address)));
        assert_eq!((context.rip, context.retired), (guest.code + LOADS + 3, 1));
        let mut expected = before.gpr;
        expected[8] += 1;
        assert_eq!(context.gpr, expected);
    }
}

/// In a replay, exactly the loads of the recording, each time.
#[test]
fn recorded_loads() {
    let code = Guest::new();
    let recorded = [3, 6, 9].map(|offset| code.code + LOADS + offset);
    let watched = Some(Arc::new(recorded.into_iter().collect()));
    code.assemble_at(code.code + LOADS, |a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.mov(rbx, qword_ptr(rdi)).unwrap();
        // Neither load nor store: an address that does not belong to this program.
        a.lea(rsi, qword_ptr(rdi)).unwrap();
        a.mov(qword_ptr(rdi), rbx).unwrap();
        a.cmp(dword_ptr(rdi), 0).unwrap();
        a.syscall().unwrap();
        a.lock().inc(qword_ptr(rdi)).unwrap();
    });
    let engine = engine(EngineConfig { watched, count: Count::Instructions, ..ordering() });
    with_functions(&engine, &[code.code], &[]);
    engine.several_threads();
    let mut cpu = engine.attach().unwrap();
    for _ in 0..2 {
        let mut context = context_for_loads(&code);
        let exit = cpu.run(&mut context, Mode::Observed);
        let ordered = |kind| Exit::Ordered { address: code.data + 0x100, size: 8, kind };
        assert_eq!((exit, context.rip), (ordered(OrderedKind::Load), recorded[0]));
        assert_eq!(cpu.step_load(&mut context, 55), None);
        assert_eq!(context.gpr[reg::RBX], 55);
        let exit = cpu.run(&mut context, Mode::Observed);
        assert_eq!((exit, context.rip), (ordered(OrderedKind::Store), recorded[2]));
        assert_eq!(cpu.step(&mut context), None);
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
        assert_eq!(context.retired, 6);
    }
}

/// Loads of every form can be given a value.
#[test]
fn forms_with_given_values() {
    let (guest, engine) = function(ordering(), |_| {});
    let step = |write: fn(&mut CodeAssembler), value| {
        guest.assemble_at(guest.code + LOADS, write);
        let mut context = context_for_loads(&guest);
        engine.forget(guest.code..guest.code + LOADS + 1);
        assert_eq!(engine.attach().unwrap().step_load(&mut context, value), None);
        context
    };
    assert_eq!(step(|a| a.adc(rdx, qword_ptr(rcx)).unwrap(), 5).gpr[reg::RDX], 10);
    assert_eq!(step(|a| a.cmovc(rcx, qword_ptr(rcx)).unwrap(), 5).gpr[reg::RCX], 5);
    assert_eq!(step(|a| a.imul_3(rcx, qword_ptr(rcx), 3).unwrap(), 5).gpr[reg::RCX], 15);
    assert_eq!(step(|a| a.cmp(qword_ptr(rcx), 5).unwrap(), 5).rflags & 0x41, 0x40);
}

/// Arguments behind the sixth are pushed straight from memory.
#[test]
fn pushes_of_memory_are_loads() {
    let code = Guest::new();
    let recorded = [0, 2, 6].map(|offset| code.code + LOADS + offset);
    let watched = Some(Arc::new(recorded.into_iter().collect()));
    code.assemble_at(code.code + LOADS, |a| {
        a.push(qword_ptr(rdi)).unwrap();
        // The address is that before the push.
        a.push(qword_ptr(rsp)).unwrap();
        a.inc(r8).unwrap();
        a.push(rdi).unwrap();
        a.syscall().unwrap();
    });
    let engine = engine(EngineConfig { watched, count: Count::Instructions, ..ordering() });
    with_functions(&engine, &[code.code], &[]);
    engine.several_threads();
    let mut cpu = engine.attach().unwrap();
    let mut context = context_for_loads(&code);
    let stack = context.gpr[reg::RSP];
    let at = |address| Exit::Ordered { address, size: 8, kind: OrderedKind::Load };
    assert_eq!(cpu.run(&mut context, Mode::Observed), at(code.data + 0x100));
    assert_eq!(cpu.step_load(&mut context, 55), None);
    assert_eq!((context.gpr[reg::RSP], code.read(stack - 8)), (stack - 8, 55));
    assert_eq!(cpu.run(&mut context, Mode::Observed), at(stack - 8));
    assert_eq!(cpu.step_load(&mut context, 66), None);
    assert_eq!((context.gpr[reg::RSP], code.read(stack - 16)), (stack - 16, 66));
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!(code.read(stack - 24), code.data + 0x100);
    assert_eq!(context.retired, 5);
}

/// What follows a call that does not return need not be code, and is not kept.
#[test]
fn only_code_is_kept() {
    let guest = Guest::new();
    let function = guest.code + 0x100;
    let after = guest.assemble(|a| a.call(function).unwrap());
    // inc eax, and a byte that begins no instruction.
    guest.put(after, &[0xff, 0xc0, 0x06, 0x06]);
    guest.assemble_at(function, |a| a.syscall().unwrap());
    let engine = engine(ordering());
    assert_eq!(run(&engine, &mut guest.context()), Exit::Syscall);
    for block in engine.take_blocks() {
        let end = block.pc + block.code.len() as u64;
        assert!(end <= after + 2 || block.pc >= function, "{:#x}..{end:#x}", block.pc);
    }
}

/// A load that a loop polls, one of a global variable, and one of a constant.
#[test]
fn polled_words_and_variables() {
    let guest = Guest::new();
    let flag = guest.data + 0x100;
    let (variable, constant) = (guest.code + 0x80, guest.code + 0xc0);
    guest.assemble(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.pause().unwrap();
        a.cmp(dword_ptr(rdi), 0).unwrap();
        a.je(again).unwrap();
        a.syscall().unwrap();
    });
    for (pc, address) in [(variable, flag), (constant, guest.data + 0x10_100)] {
        guest.assemble_at(pc, |a| {
            a.mov(eax, dword_ptr(address)).unwrap();
            a.syscall().unwrap();
        });
    }
    let engine = engine(ordering());
    let constants = guest.data + 0x10_000..guest.data + 0x10_200;
    let starts = [guest.code, variable, constant];
    with_functions(&engine, &starts, std::slice::from_ref(&constants));
    engine.several_threads();
    let mut cpu = engine.attach().unwrap();
    let mut context = guest.context();
    context.gpr[reg::RDI] = flag;
    for value in [0, 0, 1] {
        let poll = Exit::Ordered { address: flag, size: 4, kind: OrderedKind::Poll };
        assert_eq!(cpu.run(&mut context, Mode::Observed), poll);
        assert_eq!(cpu.step_load(&mut context, value), None);
    }
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);

    let mut context = guest.context_at(variable);
    let load = Exit::Ordered { address: flag, size: 4, kind: OrderedKind::Load };
    assert_eq!(cpu.run(&mut context, Mode::Observed), load);
    let mut context = guest.context_at(constant);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    let offsets: Vec<_> =
        engine.take_blocks().into_iter().map(|b| (b.pc - guest.code, b.loads)).collect();
    assert!(offsets.contains(&(0, vec![2])) && offsets.contains(&(0x80, vec![0])), "{offsets:?}");
    assert!(offsets.contains(&(0xc0, vec![])), "{offsets:?}");
}

/// Nothing is ordered as long as there is one thread, and the trace gets the sites of code that
/// was executed before.
#[test]
fn one_thread_is_not_watched() {
    let (guest, _) = function(ordering(), |a| a.mov(rax, qword_ptr(rdi)).unwrap());
    let engine = engine(ordering());
    with_functions(&engine, &[guest.code], &[]);
    let mut cpu = engine.attach().unwrap();
    for offset in [0, LOADS] {
        let mut context = context_for_loads(&guest);
        (context.rip, context.gpr[15]) = (guest.code + offset, guest.data);
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    }
    assert!(engine.take_blocks().iter().all(|block| block.loads.is_empty()));
    engine.several_threads();
    assert_eq!(loads(&guest, &engine, &mut context_for_loads(&guest)).len(), 1);
    let blocks = engine.take_blocks();
    assert!(blocks.iter().any(|block| block.pc == guest.code + LOADS && block.loads == [0]));
}

/// The machine may ask for any load or store; of other instructions nothing is made.
#[test]
fn learned_sites() {
    let guest = Guest::new();
    let store = guest.assemble(|a| a.mov(rax, qword_ptr(rdi)).unwrap());
    let fill = guest.assemble_at(store, |a| a.mov(qword_ptr(rdi), rax).unwrap());
    guest.assemble_at(fill, |a| {
        a.lea(rax, qword_ptr(rdi)).unwrap();
        a.syscall().unwrap();
    });
    let engine = engine(ordering());
    with_functions(&engine, &[guest.code], &[]);
    engine.watch(&[guest.code, store, fill]);
    engine.several_threads();
    let mut cpu = engine.attach().unwrap();
    let mut context = context_for_loads(&guest);
    context.rip = guest.code;
    for kind in [OrderedKind::Load, OrderedKind::Store] {
        let address = guest.data + 0x100;
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Ordered { address, size: 8, kind });
        assert_eq!(cpu.step(&mut context), None);
    }
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
}

/// A learned comparison with a limit watches every equal comparison, and no other one.
#[test]
fn learned_looks_at_limits() {
    let guest = Guest::new();
    guest.assemble(|a| {
        a.cmp(rax, qword_ptr(r13 + 8)).unwrap();
        a.cmp(rcx, qword_ptr(r13 + 8)).unwrap();
        a.cmp(rax, qword_ptr(r13 + 8)).unwrap();
        a.syscall().unwrap();
    });
    let engine = engine(ordering());
    with_functions(&engine, &[guest.code], &[]);
    engine.watch(&[guest.code]);
    engine.several_threads();
    let mut cpu = engine.attach().unwrap();
    let mut context = context_for_loads(&guest);
    context.rip = guest.code;
    context.gpr[13] = guest.data;
    let mut seen = Vec::new();
    while let Exit::Ordered { address, .. } = cpu.run(&mut context, Mode::Observed) {
        assert_eq!(address, guest.data + 8);
        seen.push(context.rip - guest.code);
        assert_eq!(cpu.step(&mut context), None);
    }
    assert_eq!(seen, [0, 8]);
}
