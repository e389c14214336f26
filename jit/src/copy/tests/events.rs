//! What the machine is told about: hooks, atomics, returns, emulated instructions.

use super::{Guest, engine, run, run_code};
use iced_x86::code_asm::*;
use refrain_vm::{
    Context, Count, Emulate, Engine, EngineConfig, Exit, Mode, OrderedKind, RecordingEngine, reg,
};

fn ordering() -> EngineConfig {
    EngineConfig { order_atomics: true, keep_blocks: true, ..EngineConfig::default() }
}

#[test]
fn hooks() {
    let guest = Guest::new();
    let function = guest.code + 0x100;
    guest.assemble(|a| {
        a.mov(ebx, 3).unwrap();
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.call(function).unwrap();
        a.dec(ebx).unwrap();
        a.jnz(again).unwrap();
        a.syscall().unwrap();
    });
    // The hook lies in the middle of what would be one block.
    let hooked = guest.assemble_at(function, |a| a.inc(eax).unwrap());
    guest.assemble_at(hooked, |a| {
        a.inc(eax).unwrap();
        a.ret().unwrap();
    });
    let engine = engine(EngineConfig::default());
    engine.hook(hooked);
    let mut cpu = engine.attach().unwrap();
    let mut context = guest.context();
    for calls in 0..3 {
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Hook);
        assert_eq!(context.rip, hooked);
        assert_eq!(context.gpr[reg::RAX], calls * 2 + 1);
    }
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!(context.gpr[reg::RAX], 6);
}

/// A function of the machine's that answers for a guest's function, or declines.
#[test]
fn fast_path_functions() {
    struct Seen {
        calls: u64,
        stack: u64,
    }
    /// # Safety
    /// `data` is the address of the test's own variable.
    unsafe extern "sysv64" fn fast_path(argument: u64, stack: u64, data: u64) -> i64 {
        // SAFETY: the word is the address of the test's own variable, which outlives the run.
        let seen = unsafe { &mut *(data as *mut Seen) };
        seen.calls += 1;
        seen.stack = stack;
        // As compilers use vector registers to copy with.
        // SAFETY: the registers are said to be clobbered.
        unsafe {
            std::arch::asm!(
                "pcmpeqd xmm0, xmm0", "pcmpeqd xmm7, xmm7", "pcmpeqd xmm15, xmm15",
                out("xmm0") _, out("xmm7") _, out("xmm15") _,
            );
        }
        if argument == 3 { -1 } else { argument as i64 * 10 }
    }
    let guest = Guest::new();
    let function = guest.code + 0x100;
    guest.assemble(|a| {
        a.xor(ebx, ebx).unwrap();
        for argument in 1..=4 {
            a.mov(edi, argument).unwrap();
            a.call(function).unwrap();
            a.add(rbx, rax).unwrap();
        }
        a.syscall().unwrap();
    });
    guest.assemble_at(function, |a| {
        a.mov(eax, 1000).unwrap();
        a.ret().unwrap();
    });
    let engine = engine(EngineConfig::default());
    let mut seen = Seen { calls: 0, stack: 0 };
    engine.hook(function);
    // SAFETY: `fast_path` does nothing but write to the variable whose address each thread is given.
    unsafe { engine.fast_path(function, fast_path) };
    let mut cpu = engine.attach().unwrap();
    cpu.set_fast_path_data(&raw mut seen as u64);
    let mut context = guest.context();
    for index in (1..16).filter(|&index| index != reg::RSP) {
        context.gpr[index] = 100 + index as u64;
    }
    context.xmm = std::array::from_fn(|index| [index as u64 + 1, !(index as u64)]);
    let before = context.clone();
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Hook);
    assert_eq!(context.xmm, before.xmm, "where the function declines");
    assert_eq!(context.rip, function);
    assert_eq!((context.gpr[reg::RDI], context.gpr[reg::RBX]), (3, 30));
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!(context.gpr[reg::RBX], 10 + 20 + 1000 + 40);
    assert_eq!((seen.calls, seen.stack), (4, guest.stack - 8));
    let changed = [reg::RAX, reg::RBX, reg::RDI];
    for index in (0..16).filter(|index| !changed.contains(index)) {
        assert_eq!(context.gpr[index], before.gpr[index], "register {index}");
    }
    assert_eq!(context.xmm, before.xmm);
}

#[test]
fn opaque_functions_return() {
    let guest = Guest::new();
    let function = guest.code + 0x100;
    let inner = guest.code + 0x200;
    let after = guest.assemble(|a| a.call(function).unwrap());
    guest.assemble_at(after, |a| a.syscall().unwrap());
    guest.assemble_at(function, |a| {
        a.mov(ebx, 10).unwrap();
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.lock().inc(qword_ptr(guest.data)).unwrap();
        a.call(inner).unwrap();
        a.dec(ebx).unwrap();
        a.jnz(again).unwrap();
        a.stc().unwrap();
        a.ret().unwrap();
    });
    guest.assemble_at(inner, |a| {
        a.inc(eax).unwrap();
        a.ret().unwrap();
    });
    let engine = engine(ordering());
    engine.several_threads();
    engine.hook(function);
    engine.hook(inner);
    let mut cpu = engine.attach().unwrap();
    let mut context = guest.context();
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Hook);
    let watched = context.gpr[reg::RSP];
    context.gpr[reg::RCX] = 4711;
    assert_eq!(cpu.run(&mut context, Mode::Opaque { sp: watched }), Exit::Return);
    assert_eq!(context.rip, after);
    assert_eq!(context.gpr[reg::RSP], guest.stack);
    assert_eq!(context.gpr[reg::RAX], 10);
    assert_eq!(context.gpr[reg::RCX], 4711);
    assert_eq!(context.rflags & 1, 1);
    assert_eq!(guest.read(guest.data), 10);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
}

/// Runs to the end, stepping over ordered instructions, and returns what was ordered.
fn ordered(guest: &Guest, context: &mut Context) -> Vec<(u64, u64, u8, OrderedKind)> {
    let engine = engine(ordering());
    engine.several_threads();
    let mut cpu = engine.attach().unwrap();
    let mut seen = Vec::new();
    loop {
        match cpu.run(context, Mode::Observed) {
            Exit::Syscall => break,
            Exit::Ordered { address, size, kind } => {
                seen.push((context.rip - guest.code, address, size, kind));
                assert_eq!(cpu.step(context), None);
            }
            other => panic!("{other:?} at {:#x}", context.rip),
        }
    }
    seen
}

#[test]
fn atomics_are_ordered() {
    let guest = Guest::new();
    let data = guest.data;
    guest.assemble(|a| {
        a.mov(rcx, data).unwrap();
        a.lock().add(dword_ptr(rcx + 4), 5).unwrap();
        a.mov(eax, 9).unwrap();
        a.xchg(qword_ptr(rcx + rax * 8), rax).unwrap();
        a.lock().bts(qword_ptr(rcx), rdx).unwrap();
        a.lock().inc(qword_ptr(data + 16)).unwrap();
        a.lock().cmpxchg16b(xmmword_ptr(rcx + 32)).unwrap();
        a.syscall().unwrap();
    });
    let mut context = guest.context();
    context.gpr[reg::RDX] = 0x100;
    let seen = ordered(&guest, &mut context);
    let operands: Vec<_> =
        seen.iter().map(|&(_, address, size, _)| (address - data, size)).collect();
    assert_eq!(operands, [(4, 4), (72, 8), (32, 8), (16, 8), (32, 16)]);
    assert!(seen.iter().all(|&(.., kind)| kind == OrderedKind::ReadModifyWrite));
    assert_eq!(guest.read(data), 5 << 32);
    assert_eq!(guest.read(data + 72), 9);
    assert_eq!(guest.read(data + 16), 1);
}

/// `while (load != 0) cmpxchg`, and loads that are nothing of the kind.
#[test]
fn loads_of_a_lock_idiom_are_ordered() {
    let guest = Guest::new();
    guest.assemble(|a| {
        let mut again = a.create_label();
        a.mov(rdi, guest.data).unwrap();
        a.mov(edx, 1).unwrap();
        a.mov(esi, dword_ptr(rdi + 4)).unwrap();
        a.set_label(&mut again).unwrap();
        a.mov(eax, dword_ptr(rdi)).unwrap();
        a.test(eax, eax).unwrap();
        a.jnz(again).unwrap();
        a.lock().cmpxchg(dword_ptr(rdi), edx).unwrap();
        a.jnz(again).unwrap();
        a.mov(eax, dword_ptr(rdi)).unwrap();
        a.mov(rdi, qword_ptr(rdi + 8)).unwrap();
        a.syscall().unwrap();
        a.lock().inc(dword_ptr(rdi)).unwrap();
    });
    let mut context = guest.context();
    let seen = ordered(&guest, &mut context);
    let kinds: Vec<_> = seen.iter().map(|&(.., kind)| kind).collect();
    assert_eq!(kinds, [OrderedKind::Load, OrderedKind::ReadModifyWrite]);
    assert_eq!(guest.read(guest.data), 1);
}

/// Loads that are given their value instead of reading memory.
#[test]
fn loads_with_given_values() {
    let guest = Guest::new();
    type Program = (fn(&mut CodeAssembler), usize, u64);
    let programs: [Program; 6] = [
        (|a| a.mov(eax, dword_ptr(rdi + rcx * 4)).unwrap(), reg::RAX, 0x8000_00ff),
        (|a| a.mov(r9, qword_ptr(rdi).fs()).unwrap(), reg::R9, 0x1234_8000_00ff),
        (|a| a.movzx(edx, byte_ptr(rsp + 8)).unwrap(), reg::RDX, 0xff),
        (|a| a.movsxd(rbx, dword_ptr(rdi)).unwrap(), reg::RBX, 0xffff_ffff_8000_00ff),
        (|a| a.mov(ah, byte_ptr(rdi)).unwrap(), reg::RAX, 0xff00),
        (|a| a.mov(rsi, qword_ptr(0x1000)).unwrap(), reg::RSI, 0x1234_8000_00ff),
    ];
    for (index, (write, register, expected)) in programs.into_iter().enumerate() {
        let start = guest.code + index as u64 * 0x100;
        let end = guest.assemble_at(start, write);
        let mut context = guest.context_at(start);
        context.gpr[reg::RDI] = 0x10;
        let engine = engine(EngineConfig::default());
        let mut cpu = engine.attach().unwrap();
        assert_eq!(cpu.step_load(&mut context, 0x1234_8000_00ff), None);
        assert_eq!((context.rip, context.gpr[register]), (end, expected));
    }
    guest.assemble(|a| a.cmp(dword_ptr(rdi), 7).unwrap());
    let mut context = guest.context();
    let engine = engine(EngineConfig::default());
    assert_eq!(engine.attach().unwrap().step_load(&mut context, 7), None);
    assert_eq!(context.rflags & 0x40, 0x40);
}

#[test]
fn locked_instructions_beside_memory() {
    const ZERO: u64 = 0x40;
    let guest = Guest::new();
    let word = guest.data;
    // What the word is said to hold, what is left there, rax and the zero flag.
    type Case = (fn(&mut CodeAssembler), u64, u64, u64, bool);
    let cases: [Case; 5] = [
        (|a| a.lock().cmpxchg(dword_ptr(rdi), ecx).unwrap(), 9, 9, 9, false),
        (|a| a.lock().cmpxchg(dword_ptr(rdi), ecx).unwrap(), 5, 3, 5, true),
        (|a| a.xchg(qword_ptr(rdi), rax).unwrap(), 1, 5, 1, false),
        (|a| a.lock().xadd(dword_ptr(rdi), eax).unwrap(), 2, 7, 2, false),
        (|a| a.lock().bts(dword_ptr(rdi), 3).unwrap(), 0x18, 0x18, 5, false),
    ];
    for (write, value, left, loaded, is_zero) in cases {
        guest.assemble(write);
        let mut context = guest.context();
        (context.gpr[reg::RAX], context.gpr[reg::RCX]) = (5, 3);
        context.gpr[reg::RDI] = word;
        let engine = engine(EngineConfig::default());
        let mut cpu = engine.attach().unwrap();
        assert_eq!(cpu.step_beside(&mut context, value), Some(left));
        assert_eq!((context.gpr[reg::RAX], context.rflags & ZERO != 0), (loaded, is_zero));
        assert_eq!(guest.read(word), 0, "memory is left alone");
    }
    let refused: [fn(&mut CodeAssembler); 2] = [
        |a| a.lock().bts(qword_ptr(rdi), rcx).unwrap(),
        |a| a.lock().cmpxchg16b(xmmword_ptr(rdi)).unwrap(),
    ];
    for write in refused {
        guest.assemble(write);
        let mut context = guest.context();
        context.gpr[reg::RDI] = word;
        let engine = engine(EngineConfig::default());
        assert_eq!(engine.attach().unwrap().step_beside(&mut context, 0), None);
    }
}

#[test]
fn emulated_instructions() {
    let guest = Guest::new();
    guest.assemble(|a| {
        a.cpuid().unwrap();
        a.rdtsc().unwrap();
        a.rdtscp().unwrap();
        a.rdrand(r9d).unwrap();
        a.rdseed(rax).unwrap();
        a.xgetbv().unwrap();
        a.iretq().unwrap();
        a.syscall().unwrap();
    });
    let engine = engine(EngineConfig::default());
    let mut cpu = engine.attach().unwrap();
    let mut context = guest.context();
    let mut next = || cpu.run(&mut context, Mode::Observed);
    assert_eq!(next(), Exit::Emulate(Emulate::Cpuid));
    assert_eq!(next(), Exit::Emulate(Emulate::Rdtsc));
    assert_eq!(next(), Exit::Emulate(Emulate::Rdtscp));
    assert_eq!(next(), Exit::Emulate(Emulate::Random { register: 9, size: 4 }));
    assert_eq!(next(), Exit::Emulate(Emulate::Random { register: 0, size: 8 }));
    assert_eq!(next(), Exit::Emulate(Emulate::Xgetbv));
    assert_eq!(next(), Exit::Emulate(Emulate::InterruptReturn));
    assert_eq!(next(), Exit::Syscall);
}

#[test]
fn what_is_not_supported_is_named() {
    let unsupported = |write: fn(&mut CodeAssembler)| {
        let guest = Guest::new();
        guest.assemble(|a| {
            a.nop().unwrap();
            write(a);
        });
        let mut context = guest.context();
        let exit = run(&engine(EngineConfig::default()), &mut context);
        assert_eq!(context.rip, guest.code + 1);
        match exit {
            Exit::Unsupported(name) => name,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(unsupported(|a| a.vaddps(ymm0, ymm1, ymm2).unwrap()), "vaddps");
    assert_eq!(unsupported(|a| a.int(0x80).unwrap()), "int");
    assert_eq!(unsupported(|a| a.sysenter().unwrap()), "sysenter");
    assert_eq!(unsupported(|a| a.mov(rax, qword_ptr(rax).gs()).unwrap()), "mov");
    assert_eq!(unsupported(|a| a.wrgsbase(rax).unwrap()), "wrgsbase");
}

/// How programs look whether the processor is newer than a 386.
#[test]
fn alignment_checks_end_with_translated_code() {
    run_code(|a| {
        let mut on = a.create_label();
        a.pushfq().unwrap();
        a.or(dword_ptr(rsp), 1 << 18).unwrap();
        a.popfq().unwrap();
        // Goes on in a block that is not translated yet.
        a.jmp(on).unwrap();
        a.set_label(&mut on).unwrap();
        a.nop().unwrap();
    });
}

#[test]
fn transactions_abort() {
    let guest = Guest::new();
    guest.assemble(|a| {
        let mut fallback = a.create_label();
        a.mov(rax, -1_i64).unwrap();
        a.stc().unwrap();
        a.xbegin(fallback).unwrap();
        a.ud2().unwrap();
        a.set_label(&mut fallback).unwrap();
        a.syscall().unwrap();
    });
    let mut context = guest.context();
    assert_eq!(run(&engine(EngineConfig::default()), &mut context), Exit::Syscall);
    assert_eq!(context.gpr[reg::RAX], 0);
    assert_eq!(context.rflags & 1, 1);
}

#[test]
fn fs_is_the_guests() {
    let guest = Guest::new();
    guest.put(guest.data + 0x28, &77_u64.to_le_bytes());
    guest.put(guest.data + 0x128, &88_u64.to_le_bytes());
    guest.assemble(|a| {
        a.mov(rax, qword_ptr(0x28).fs()).unwrap();
        a.rdfsbase(rcx).unwrap();
        a.add(rcx, 0x100).unwrap();
        a.wrfsbase(rcx).unwrap();
        a.mov(rdx, qword_ptr(0x28).fs()).unwrap();
        a.lock().inc(qword_ptr(0x30).fs()).unwrap();
        a.syscall().unwrap();
    });
    let mut context = guest.context();
    context.fs_base = guest.data;
    let seen = ordered(&guest, &mut context);
    assert_eq!(seen[0].1, guest.data + 0x130);
    assert_eq!(context.gpr[reg::RAX], 77);
    assert_eq!(context.gpr[reg::RDX], 88);
    assert_eq!(context.fs_base, guest.data + 0x100);
    assert_eq!(guest.read(guest.data + 0x130), 1);
}

#[test]
fn blocks_are_kept_once() {
    let guest = Guest::new();
    let end = guest.assemble(|a| {
        let mut again = a.create_label();
        a.mov(ecx, 5).unwrap();
        a.set_label(&mut again).unwrap();
        a.lock().inc(qword_ptr(guest.data)).unwrap();
        a.dec(ecx).unwrap();
        a.jnz(again).unwrap();
        a.syscall().unwrap();
    });
    let engine = engine(ordering());
    engine.several_threads();
    let mut cpu = engine.attach().unwrap();
    let mut context = guest.context();
    while cpu.run(&mut context, Mode::Observed) != Exit::Syscall {
        assert_eq!(cpu.step(&mut context), None);
    }
    let mut blocks = engine.take_blocks();
    assert!(engine.take_blocks().is_empty());
    blocks.sort_by_key(|block| block.pc);
    let spans: Vec<_> = blocks
        .iter()
        .map(|b| (b.pc - guest.code, b.pc - guest.code + b.code.len() as u64))
        .collect();
    let length = end - guest.code;
    assert_eq!(spans, [(0, 14), (5, 14), (14, length - 2), (length - 2, length)]);
}

#[test]
fn instructions_are_counted() {
    let guest = Guest::new();
    guest.assemble(|a| {
        let mut again = a.create_label();
        a.mov(ecx, 5).unwrap();
        a.set_label(&mut again).unwrap();
        a.lock().inc(qword_ptr(guest.data)).unwrap();
        a.dec(ecx).unwrap();
        a.jnz(again).unwrap();
        a.syscall().unwrap();
    });
    for order_atomics in [false, true] {
        let engine = engine(EngineConfig {
            count: Count::Instructions,
            order_atomics,
            ..EngineConfig::default()
        });
        let mut cpu = engine.attach().unwrap();
        let mut context = guest.context();
        while cpu.run(&mut context, Mode::Observed) != Exit::Syscall {
            assert_eq!(cpu.step(&mut context), None);
        }
        assert_eq!(context.retired, 17);
    }
}
