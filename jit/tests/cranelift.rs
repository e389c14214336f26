//! Small programs: recorded by the copy engine, replayed by the Cranelift engine.

mod logs;
mod programs;

use iced_x86::code_asm::*;
use logs::*;
use programs::*;
use refrain_jit::{CraneliftEngine, MIN_ACCESSES, Program};
use refrain_trace::Access;
use refrain_vm::{
    Context, Count, Cpu, Emulate, Engine, EngineConfig, Exit, Fault, LeaveOut, Mode, OrderedKind,
    Seen, SeenWords, reg,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Runs the program on both engines, without and with everything watched.
fn check() -> (Context, Vec<Access>) {
    let before = all_data();
    let (exit, expected, blocks) = record(start());
    let after = all_data();
    for watched in [false, true] {
        data(DATA, &before);
        let config = EngineConfig {
            accesses: watched,
            calls: watched,
            count: if watched { Count::Instructions } else { Count::Nothing },
            ..EngineConfig::default()
        };
        let mut context = start();
        let (actual, log) =
            run_logged(&mut *cpu(&config, &blocks, &[]), &mut context, MIN_ACCESSES);
        assert_eq!(actual, exit);
        assert_same(&expected, &context);
        assert!(all_data() == after, "memory differs");
        if watched {
            check_notes(&mut *cpu(&with_notes(), &blocks, &[]), &before, &log, true);
            let copied = check_copies(&before, (&exit, &expected), &log);
            check_notes(&mut *copies(with_notes()), &before, &copied, false);
            check_epochs(&before, &blocks, &log);
            return (context, log);
        }
        assert!(log.is_empty());
    }
    unreachable!("the second round returns")
}

#[test]
fn loop_over_memory() {
    let _one = memory();
    program(|a| {
        let mut again = a.create_label();
        a.mov(ecx, 100)?;
        a.xor(eax, eax)?;
        a.set_label(&mut again)?;
        a.add(rax, qword_ptr(rbx + rcx * 8))?;
        a.mov(qword_ptr(rbx + rcx * 8 + 1024), rax)?;
        a.dec(ecx)?;
        a.jnz(again)?;
        a.syscall()
    });
    data(DATA + 8, &[7; 800]);
    let (context, log) = check();
    assert_eq!(log.len(), 200);
    assert_eq!(log[0].address, DATA + 800);
    assert_eq!((log[0].size, log[0].kind), (8, Access::READ));
    assert_eq!((log[1].address, log[1].kind), (DATA + 800 + 1024, Access::WRITE));
    assert_eq!(context.retired, 2 + 400 + 1);
}

/// Sizes, alignments, and what lies across granules.
#[test]
fn accesses_of_all_sizes() {
    let _one = memory();
    program(|a| {
        let mut again = a.create_label();
        a.mov(ecx, 700)?;
        a.set_label(&mut again)?;
        a.mov(al, byte_ptr(rbx + rcx))?;
        a.mov(word_ptr(rbx + rcx * 2), ax)?;
        a.mov(edx, dword_ptr(rbx + rcx + 3))?;
        a.mov(qword_ptr(rbx + rcx * 4 + 1), rdx)?;
        a.movups(xmm0, xmmword_ptr(rbx + rcx + 5))?;
        a.movups(xmmword_ptr(rbx + rcx * 2 + 0x1000), xmm0)?;
        a.add(dword_ptr(rbx + 0x800), eax)?;
        a.dec(ecx)?;
        a.jnz(again)?;
        a.syscall()
    });
    let (_, log) = check();
    assert_eq!(log.len(), 700 * 7);
}

#[test]
fn recursion() {
    let _one = memory();
    program(|a| {
        let (mut fib, mut done) = (a.create_label(), a.create_label());
        a.mov(edi, 15)?;
        a.call(fib)?;
        a.syscall()?;
        a.set_label(&mut fib)?;
        a.mov(eax, edi)?;
        a.cmp(edi, 2)?;
        a.jl(done)?;
        a.push(rdi)?;
        a.push(rbp)?;
        a.dec(edi)?;
        a.call(fib)?;
        a.mov(ebp, eax)?;
        a.mov(rdi, qword_ptr(rsp + 8))?;
        a.sub(edi, 2)?;
        a.call(fib)?;
        a.add(eax, ebp)?;
        a.pop(rbp)?;
        a.pop(rdi)?;
        a.set_label(&mut done)?;
        a.ret()
    });
    let (context, log) = check();
    assert_eq!(context.gpr[reg::RAX], 610);
    let calls = log.iter().filter(|r| r.kind == Access::CALL).count();
    assert_eq!(calls, log.iter().filter(|r| r.kind == Access::RETURN).count());
    assert!(calls > 1000);
}

#[test]
fn jump_table() {
    let _one = memory();
    program(|a| {
        let (mut again, mut out) = (a.create_label(), a.create_label());
        let mut cases = [a.create_label(), a.create_label(), a.create_label()];
        a.mov(esi, 30)?;
        a.xor(eax, eax)?;
        a.set_label(&mut again)?;
        a.dec(esi)?;
        a.js(out)?;
        a.mov(ecx, esi)?;
        a.and(ecx, 3)?;
        a.cmp(ecx, 2)?;
        a.ja(again)?;
        a.lea(rdx, ptr(cases[0]))?;
        a.lea(r8, ptr(cases[1]))?;
        a.lea(r9, ptr(cases[2]))?;
        a.cmp(ecx, 1)?;
        a.cmove(rdx, r8)?;
        a.cmova(rdx, r9)?;
        a.jmp(rdx)?;
        // The first case runs into the second, which so is reached in two ways.
        a.set_label(&mut cases[0])?;
        a.add(eax, 1)?;
        a.set_label(&mut cases[1])?;
        a.add(eax, 16)?;
        a.jmp(again)?;
        a.set_label(&mut cases[2])?;
        a.add(eax, 256)?;
        a.jmp(again)?;
        a.set_label(&mut out)?;
        a.syscall()
    });
    let (_, log) = check();
    assert!(log.is_empty());
}

#[test]
fn flags_across_blocks_and_calls() {
    let _one = memory();
    program(|a| {
        let (mut f, mut g, mut less, mut end) =
            (a.create_label(), a.create_label(), a.create_label(), a.create_label());
        a.mov(eax, -5)?;
        a.mov(ecx, 3)?;
        a.cmp(eax, ecx)?;
        a.call(f)?;
        // Flags of the callee's last comparison survive its return.
        a.setl(r8b)?;
        a.adc(r9, 0)?;
        a.pushfq()?;
        a.pop(r10)?;
        a.and(r10d, 0x8c5)?;
        a.stc()?;
        a.call(g)?;
        a.sbb(r11, r11)?;
        a.inc(edx)?;
        a.jc(less)?;
        a.mov(r12d, 1)?;
        a.set_label(&mut less)?;
        a.jmp(end)?;
        a.set_label(&mut f)?;
        a.setl(r13b)?;
        a.jge(g)?;
        a.cmp(ecx, eax)?;
        a.set_label(&mut g)?;
        a.ret()?;
        a.set_label(&mut end)?;
        a.syscall()
    });
    check();
}

#[test]
fn repeated_strings() {
    let _one = memory();
    program(|a| {
        a.lea(rsi, ptr(rbx))?;
        a.lea(rdi, ptr(rbx + 0x1000))?;
        a.mov(ecx, 0x321)?;
        // Dead behind the copy, but not if the copy is left for a full buffer.
        a.mov(r12d, 7)?;
        a.rep().movsb()?;
        a.xor(r12d, r12d)?;
        a.lea(rdi, ptr(rbx + 0x2000))?;
        a.mov(eax, 0x1234)?;
        a.mov(ecx, 0x100)?;
        a.rep().stosq()?;
        a.lea(rsi, ptr(rbx))?;
        a.lea(rdi, ptr(rbx + 0x1000))?;
        a.mov(ecx, 0x400)?;
        a.repe().cmpsb()?;
        a.mov(r8, rcx)?;
        a.setb(r9b)?;
        a.std()?;
        a.lea(rdi, ptr(rbx + 0x300))?;
        a.mov(al, 0x55)?;
        a.mov(ecx, 0x200)?;
        a.repne().scasb()?;
        a.cld()?;
        a.xor(ecx, ecx)?;
        a.rep().movsd()?;
        a.syscall()
    });
    let text: Vec<u8> = (0..0x321u32).map(|n| (n * 7 % 251) as u8).collect();
    data(DATA, &text);
    data(DATA + 0x321, &[9]);
    let (_, log) = check();
    assert_eq!((log[0].address, log[0].size, log[0].kind), (DATA, 0x321, Access::READ));
    assert_eq!((log[1].address, log[1].size, log[1].kind), (DATA + 0x1000, 0x321, Access::WRITE));
    assert_eq!((log[2].address, log[2].size, log[2].kind), (DATA + 0x2000, 0x800, Access::WRITE));
    assert_eq!((log[3].address, log[3].size), (DATA, 0x322));
    let scanned = log[5];
    assert_eq!(scanned.address + u64::from(scanned.size), DATA + 0x301);
}

#[test]
fn long_strings_fit_small_buffers() {
    let _one = memory();
    program(|a| {
        a.mov(ecx, 0x9000)?;
        a.mov(rdi, rbx)?;
        a.rep().stosb()?;
        a.syscall()
    });
    let (_, log) = check();
    assert!(log.iter().map(|r| u64::from(r.size)).sum::<u64>() == 0x9000);
    assert!(log.len() > 1);
}

#[test]
fn faults_tell_where() {
    let _one = memory();
    program(|a| {
        a.mov(eax, 1)?;
        a.mov(rcx, 0x66_6000_u64)?;
        a.add(rcx, 8)?;
        a.mov(edx, dword_ptr(rcx))?;
        a.syscall()
    });
    let (_, expected, blocks) = record(start());
    let mut context = start();
    let exit = cpu(&EngineConfig::default(), &blocks, &[]).run(&mut context, Mode::Observed);
    assert!(
        matches!(exit, Exit::Fault(Fault { signal: libc::SIGSEGV, address: 0x66_6008, .. })),
        "{exit:?}"
    );
    assert_eq!(context.rip, expected.rip);

    program(|a| {
        a.xor(edx, edx)?;
        a.div(edx)?;
        a.syscall()
    });
    let (exit, expected, blocks) = record(start());
    assert!(matches!(exit, Exit::Fault(_)));
    let mut context = start();
    let exit = cpu(&EngineConfig::default(), &blocks, &[]).run(&mut context, Mode::Observed);
    assert!(matches!(exit, Exit::Fault(Fault { signal: libc::SIGFPE, .. })), "{exit:?}");
    assert_eq!(context.rip, expected.rip);
}

#[test]
fn leaves_the_table() {
    let _one = memory();
    program(|a| {
        a.mov(eax, 0x1234_5678)?;
        a.jmp(rax)
    });
    let blocks = [block(CODE, vec![0xb8, 0x78, 0x56, 0x34, 0x12, 0xff, 0xe0])];
    let mut context = start();
    assert_eq!(
        cpu(&EngineConfig::default(), &blocks, &[]).run(&mut context, Mode::Observed),
        Exit::UnknownTarget
    );
    assert_eq!(context.rip, 0x1234_5678);
    // A direct jump out of the table, and a block that is cut off.
    for code in [vec![0xb8, 1, 0, 0, 0, 0xe9, 0, 1, 0, 0], vec![0xb8, 1, 0, 0, 0]] {
        let end = if code.len() > 5 { CODE + 10 + 256 } else { CODE + 5 };
        let mut context = start();
        let exit = cpu(&EngineConfig::default(), &[block(CODE, code)], &[])
            .run(&mut context, Mode::Observed);
        assert_eq!((exit, context.rip, context.gpr[0]), (Exit::UnknownTarget, end, 1));
    }
    let mut context = start();
    context.rip = 0x5000;
    assert_eq!(
        cpu(&EngineConfig::default(), &[], &[]).run(&mut context, Mode::Observed),
        Exit::UnknownTarget
    );
}

#[test]
fn hooks_stop_before() {
    let _one = memory();
    let mut hook = 0;
    program(|a| {
        let (mut f, mut again) = (a.create_label(), a.create_label());
        a.mov(ecx, 2)?;
        a.set_label(&mut again)?;
        a.call(f)?;
        a.dec(ecx)?;
        a.jnz(again)?;
        a.syscall()?;
        a.set_label(&mut f)?;
        a.add(eax, 5)?;
        a.ret()?;
        hook = CODE + 5 + 5 + 2 + 2 + 2;
        Ok(())
    });
    let (_, expected, blocks) = record(start());
    let mut cpu = cpu(&EngineConfig::default(), &blocks, &[hook]);
    let mut context = start();
    for calls in 0..2u64 {
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Hook);
        assert_eq!((context.rip, context.gpr[reg::RCX]), (hook, 2 - calls));
    }
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_same(&expected, &context);
}

#[test]
fn ordered_instructions_are_stepped() {
    let _one = memory();
    program(|a| {
        let mut again = a.create_label();
        a.mov(ecx, 3)?;
        a.set_label(&mut again)?;
        a.mov(eax, 1)?;
        a.lock().xadd(dword_ptr(rbx + 8), eax)?;
        a.mov(edx, 5)?;
        a.xchg(qword_ptr(rbx + 16), rdx)?;
        a.lock().bts(dword_ptr(rbx), ecx)?;
        a.dec(ecx)?;
        a.jnz(again)?;
        a.syscall()
    });
    let (_, expected, blocks) = record(start());
    data(DATA, &[0; 64]);
    let config =
        EngineConfig { order_atomics: true, count: Count::Instructions, ..EngineConfig::default() };
    let mut cpu = cpu(&config, &blocks, &[]);
    let mut context = start();
    let mut seen = Vec::new();
    let exit = loop {
        match cpu.run(&mut context, Mode::Observed) {
            Exit::Ordered { address, size, kind } => {
                assert_eq!(kind, OrderedKind::ReadModifyWrite);
                seen.push((address - DATA, size));
                assert_eq!(cpu.step(&mut context), None);
            }
            other => break other,
        }
    };
    assert_eq!(exit, Exit::Syscall);
    assert_same(&expected, &context);
    assert_eq!(seen, [(8, 4), (16, 8), (0, 4)].repeat(3));
    assert_eq!(context.retired, 1 + 3 * 7 + 1);
}

/// At a place the thread leaves when it has retired exactly so many instructions, flags included
/// that the loop carries from turn to turn, and otherwise never.
#[test]
fn threads_leave_at_their_count() {
    let _one = memory();
    let mut again = 0;
    program(|a| {
        let mut head = a.create_label();
        a.mov(ecx, 10)?;
        a.xor(eax, eax)?;
        a.set_label(&mut head)?;
        a.adc(rax, qword_ptr(rbx))?;
        a.add(rax, rax)?;
        a.dec(ecx)?;
        a.jnz(head)?;
        again = CODE + 5 + 2;
        a.syscall()
    });
    data(DATA, &0x4000_0000_0000_0001_u64.to_le_bytes());
    let (_, expected, blocks) = record(start());
    let places = Arc::new(BTreeSet::from([again]));
    let config = EngineConfig { count: Count::Instructions, places, ..EngineConfig::default() };
    let mut cpu = cpu(&config, &blocks, &[]);
    let mut context = start();
    // Between two turns there is no such place.
    for turns in [0, 1, 7] {
        for beside in [1, 0] {
            let mut context = context.clone();
            context.leave_at = 2 + 4 * turns + beside;
            let exit = cpu.run(&mut context, Mode::Observed);
            assert_eq!(exit == Exit::Interrupted, beside == 0);
        }
        context.leave_at = 2 + 4 * turns;
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Interrupted);
        assert_eq!((context.rip, context.retired), (again, context.leave_at));
        assert_eq!(context.gpr[reg::RCX], 10 - turns);
    }
    context.leave_at = u64::MAX;
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_same(&expected, &context);
    assert_eq!(context.retired, 2 + 10 * 4 + 1);
}

#[test]
fn values_of_registers_are_told_before_named_instructions() {
    let _one = memory();
    program(|a| {
        let mut again = a.create_label();
        a.mov(ecx, 3)?;
        a.set_label(&mut again)?;
        a.lea(rax, ptr(rcx + rcx * 4))?;
        a.mov(qword_ptr(rbx), rax)?;
        a.dec(ecx)?;
        a.jne(again)?;
        a.syscall()
    });
    let (exit, expected, blocks) = record(start());
    let code = |pattern: &[u8]| find_code(&blocks, pattern);
    let (store, count) = (code(&[0x48, 0x89, 0x03]), code(&[0xff, 0xc9]));
    for (seen, repeats) in [(false, true), (true, true), (true, false)] {
        let _seen = seen.then(|| Seen::new().expect("there is room for notes"));
        let values = Arc::new([(store, 0), (count, 1)].into());
        let leave_out = if seen { LeaveOut::Touched } else { LeaveOut::Nothing };
        let config = EngineConfig { accesses: true, leave_out, values, ..EngineConfig::default() };
        for mut cpu in [cpu(&config, &blocks, &[]), copies(config)] {
            let mut context = start();
            context.seen = SeenWords::new(Some(1), repeats);
            let (actual, log) = run_logged(&mut *cpu, &mut context, MIN_ACCESSES);
            assert_eq!(actual, exit);
            assert_same(&expected, &context);
            let told = log.iter().filter(|it| it.kind == Access::VALUE);
            let told: Vec<_> = told.map(|it| (u64::from(it.pc), it.address)).collect();
            let all = [(store, 15), (count, 3), (store, 10), (count, 2), (store, 5), (count, 1)];
            assert_eq!(told, if repeats { &all[..] } else { &[] });
            // A value comes before what the instruction accesses.
            let mut kinds = log.iter().filter(|it| u64::from(it.pc) == store).map(|it| it.kind);
            assert_eq!(kinds.next() == Some(Access::VALUE), repeats);
        }
    }
}

#[test]
fn named_stores_that_change_nothing_are_reads() {
    let _one = memory();
    program(|a| {
        let mut again = a.create_label();
        a.mov(ecx, 4)?;
        a.set_label(&mut again)?;
        a.mov(rax, rcx)?;
        a.shr(rax, 1)?;
        a.mov(qword_ptr(rbx), rax)?;
        a.mov(qword_ptr(rbx + rcx * 8), rax)?;
        a.dec(ecx)?;
        a.jne(again)?;
        a.syscall()
    });
    let (exit, expected, blocks) = record(start());
    let store = find_code(&blocks, &[0x48, 0x89, 0x03]);
    let all = [LeaveOut::Nothing, LeaveOut::SameEpoch];
    for (leave_out, copied) in all.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        data(DATA, &[0; 64]);
        let compared = Arc::new(BTreeSet::from([store]));
        let config =
            EngineConfig { accesses: true, leave_out, compared, ..EngineConfig::default() };
        // In no epoch of its own, a thread has all of its accesses logged.
        let notes = refrain_vm::SameEpoch::new([]);
        let never = refrain_vm::same_epoch::NEVER << refrain_vm::same_epoch::EPOCH_SHIFT;
        let mut context = start();
        context.same_epoch =
            refrain_vm::EpochWords { notes: Arc::as_ptr(&notes) as u64, epoch: never };
        let mut executor = if copied { copies(config) } else { cpu(&config, &blocks, &[]) };
        let (actual, log) = run_logged(&mut *executor, &mut context, MIN_ACCESSES);
        assert_eq!(actual, exit);
        assert_same(&expected, &context);
        let kinds = |named: bool| {
            let of = log.iter().filter(|it| (u64::from(it.pc) == store) == named);
            of.map(|it| it.kind).collect::<Vec<_>>()
        };
        // 2, 1, 1, 0: the third one stores what is there.
        let (read, write) = (Access::READ, Access::WRITE);
        assert_eq!(kinds(true), [write, write, read, write]);
        assert_eq!(kinds(false), [write; 4]);
    }
}

/// By the table in `cost.rs`: a repeated instruction costs its beginning and its bytes.
#[test]
fn cycles_are_estimated_by_class() {
    let _one = memory();
    program(|a| {
        a.mov(ecx, 1000)?;
        a.mov(rdi, rbx)?;
        a.xor(eax, eax)?;
        a.rep().stosb()?;
        a.lock().xadd(dword_ptr(rbx + 8), eax)?;
        a.add(rax, qword_ptr(rbx))?;
        a.syscall()
    });
    let (_, expected, blocks) = record(start());
    let after = all_data();
    let config =
        EngineConfig { order_atomics: true, count: Count::Cycles, ..EngineConfig::default() };
    let mut cpu = cpu(&config, &blocks, &[]);
    let mut context = start();
    assert!(matches!(cpu.run(&mut context, Mode::Observed), Exit::Ordered { .. }));
    let (simple, store, load, locked, transfer) = (1, 4, 2, 80, 4);
    let filling = 80 + store + 1000 / 8;
    assert_eq!(context.retired, 3 * simple + filling);
    assert_eq!(cpu.step(&mut context), None);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    let rest = locked + load + store + simple + load + transfer;
    assert_eq!(context.retired, 3 * simple + filling + rest);
    context.retired = expected.retired;
    assert_same(&expected, &context);
    assert_eq!(all_data(), after);
}

#[test]
fn steps_may_fault() {
    let _one = memory();
    program(|a| {
        a.mov(rbx, 0x66_6000_u64)?;
        a.lock().inc(dword_ptr(rbx))?;
        a.syscall()
    });
    let blocks = [block(CODE, vec![0xf0, 0xff, 0x03])];
    let config = EngineConfig { order_atomics: true, ..EngineConfig::default() };
    let mut context = start();
    context.gpr[reg::RBX] = 0x66_6000;
    let mut cpu = cpu(&config, &blocks, &[]);
    let before = context.clone();
    assert!(matches!(cpu.run(&mut context, Mode::Observed), Exit::Ordered { .. }));
    let fault = cpu.step(&mut context).map(|it| (it.signal, it.address));
    assert_eq!(fault, Some((libc::SIGSEGV, 0x66_6000)));
    assert_same(&before, &context);
}

/// Programs look whether they can change the flag before they ask the processor what it is.
#[test]
fn the_identification_flag_stays() {
    let _one = memory();
    program(|a| {
        a.pushfq()?;
        a.pop(r8)?;
        a.mov(r9, r8)?;
        a.xor(r9d, 1 << 21)?;
        a.push(r9)?;
        a.popfq()?;
        a.add(eax, 1)?;
        a.pushfq()?;
        a.pop(r10)?;
        a.xor(r10, r8)?;
        a.and(r10d, 1 << 21)?;
        a.syscall()
    });
    let (_, expected, blocks) = record(start());
    assert_eq!(expected.gpr[10], 1 << 21);
    let mut context = start();
    let exit = cpu(&EngineConfig::default(), &blocks, &[]).run(&mut context, Mode::Observed);
    assert_eq!(exit, Exit::Syscall);
    assert_same(&expected, &context);
}

#[test]
fn some_instructions_are_left_to_the_machine() {
    let _one = memory();
    program(|a| {
        a.cpuid()?;
        a.rdrand(r9d)?;
        a.ud2()
    });
    let blocks = [block(CODE, vec![0x0f, 0xa2, 0x41, 0x0f, 0xc7, 0xf1, 0x0f, 0x0b])];
    let mut cpu = cpu(&EngineConfig::default(), &blocks, &[]);
    let mut context = start();
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Emulate(Emulate::Cpuid));
    assert_eq!(context.rip, CODE + 2);
    assert_eq!(
        cpu.run(&mut context, Mode::Observed),
        Exit::Emulate(Emulate::Random { register: 9, size: 4 })
    );
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Fault(Fault::illegal(CODE + 6)));
    assert_eq!(context.rip, CODE + 6);
    // vaddps: not for this guest.
    let blocks = [block(CODE, vec![0x90, 0xc5, 0xf0, 0x58, 0xc2])];
    let mut context = start();
    assert_eq!(
        self::cpu(&EngineConfig::default(), &blocks, &[]).run(&mut context, Mode::Observed),
        Exit::Unsupported("vaddps")
    );
    assert_eq!(context.rip, CODE + 1);
}

/// A trap finds the program behind its instruction, on either engine, so that a handler's return
/// goes on there.
#[test]
fn a_trap_is_behind_its_instruction() {
    let _one = memory();
    program(|a| {
        a.mov(eax, 5)?;
        a.int3()?;
        a.inc(eax)?;
        a.syscall()
    });
    let copied = refrain_jit::copy(EngineConfig { keep_blocks: true, ..EngineConfig::default() })
        .expect("the copy engine works here");
    let mut recorder = copied.attach().expect("attaches");
    let runs = |cpu: &mut dyn Cpu| {
        let mut context = start();
        let trap = cpu.run(&mut context, Mode::Observed);
        assert!(matches!(trap, Exit::Fault(Fault { signal: libc::SIGTRAP, .. })), "{trap:?}");
        assert_eq!(context.rip, CODE + 6);
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
        assert_eq!(context.gpr[reg::RAX], 6);
    };
    runs(&mut *recorder);
    runs(&mut *cpu(&EngineConfig::default(), &copied.take_blocks(), &[]));
}

#[test]
fn code_that_changed_is_refused() {
    let blocks = [block(CODE, vec![0x90, 0xc3]), block(CODE, vec![0xf8, 0xc3])];
    assert!(
        CraneliftEngine::new(
            &EngineConfig::default(),
            Program { blocks: &blocks, ..Program::default() }
        )
        .is_err()
    );
    let far = [block(u64::MAX - 1, vec![0x90, 0xc3])];
    assert!(
        CraneliftEngine::new(
            &EngineConfig::default(),
            Program { blocks: &far, ..Program::default() }
        )
        .is_err()
    );
}

#[test]
fn threads_share_an_engine() {
    let _one = memory();
    program(|a| {
        let mut again = a.create_label();
        a.mov(ecx, 20_000)?;
        a.set_label(&mut again)?;
        a.add(rax, rcx)?;
        a.inc(qword_ptr(rbx))?;
        a.dec(ecx)?;
        a.jnz(again)?;
        a.syscall()
    });
    let (_, expected, blocks) = record(start());
    let engine = engine(&EngineConfig::default(), &blocks, &[]);
    std::thread::scope(|scope| {
        for n in 1..5 {
            let (engine, expected) = (&engine, &expected);
            scope.spawn(move || {
                let mut cpu = engine.attach().expect("attaches");
                let mut context = start();
                context.gpr[reg::RBX] += 64 * n;
                assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
                assert_eq!(context.gpr[reg::RAX], expected.gpr[reg::RAX]);
            });
        }
    });
}
