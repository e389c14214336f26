//! Calls, returns, jumps.

use super::super::desc::Variant;
use super::super::tables::jump_index;
use super::{Guest, ROOM, engine, engine_without_return_table, run, run_code};
use iced_x86::code_asm::*;
use refrain_vm::{Context, Engine, EngineConfig, Exit, reg};

/// Runs to a `syscall` with and without the return table.
fn run_both_ways(guest: &Guest) -> Context {
    let mut checked = guest.context();
    assert_eq!(run(&engine_without_return_table(), &mut checked), Exit::Syscall);
    let mut context = guest.context();
    assert_eq!(run(&engine(EngineConfig::default()), &mut context), Exit::Syscall);
    assert_eq!(checked.gpr, context.gpr);
    context
}

#[test]
fn loops_are_chained() {
    let (_, context) = run_code(|a| {
        let mut again = a.create_label();
        a.xor(eax, eax).unwrap();
        a.mov(ecx, 100_000).unwrap();
        a.set_label(&mut again).unwrap();
        a.add(rax, rcx).unwrap();
        a.dec(ecx).unwrap();
        a.jnz(again).unwrap();
    });
    assert_eq!(context.gpr[reg::RAX], 100_000 * 100_001 / 2);
}

#[test]
fn short_branches() {
    let (_, context) = run_code(|a| {
        let mut again = a.create_label();
        let mut zero = a.create_label();
        a.xor(eax, eax).unwrap();
        a.mov(ecx, 1000).unwrap();
        a.set_label(&mut again).unwrap();
        a.inc(eax).unwrap();
        a.loop_(again).unwrap();
        a.jrcxz(zero).unwrap();
        a.mov(eax, -1).unwrap();
        a.set_label(&mut zero).unwrap();
        a.nop().unwrap();
    });
    assert_eq!(context.gpr[reg::RAX], 1000);
}

#[test]
fn what_is_executed_next_in_any_case_is_translated_with_it() {
    let guest = Guest::new();
    let [jumped, called, branched] = [0x100, 0x200, 0x300].map(|offset| guest.code + offset);
    guest.assemble(|a| a.jmp(jumped).unwrap());
    let returned = guest.assemble_at(jumped, |a| a.call(called).unwrap());
    guest.assemble_at(returned, |a| a.syscall().unwrap());
    guest.assemble_at(called, |a| {
        a.mov(eax, 5).unwrap();
        a.test(eax, eax).unwrap();
        a.jz(branched).unwrap();
        a.ret().unwrap();
    });
    for hooked in [false, true] {
        let engine = engine(EngineConfig::default());
        if hooked {
            engine.hook(called);
        }
        let mut translator = engine.shared.lock();
        assert!(translator.body(guest.code, Variant::Observed).is_ok());
        let known = [jumped, returned, called, branched];
        let known = known.map(|pc| translator.bodies.contains(pc, Variant::Observed));
        assert_eq!(known, [true, true, !hooked, false]);
        drop(translator);
        let mut context = guest.context();
        assert_eq!(run(&engine, &mut context), if hooked { Exit::Hook } else { Exit::Syscall });
        let end = if hooked { called } else { returned + 2 };
        assert_eq!((context.rip, context.gpr[reg::RAX]), (end, if hooked { 0 } else { 5 }));
    }
}

/// Naive Fibonacci numbers; rdi in, rax out.
fn fib(a: &mut CodeAssembler) {
    let mut start = a.create_label();
    let mut base = a.create_label();
    let mut end = a.create_label();
    a.call(start).unwrap();
    a.jmp(end).unwrap();
    a.set_label(&mut start).unwrap();
    a.cmp(rdi, 2).unwrap();
    a.jb(base).unwrap();
    a.push(rdi).unwrap();
    a.dec(rdi).unwrap();
    a.call(start).unwrap();
    a.pop(rdi).unwrap();
    a.push(rax).unwrap();
    a.sub(rdi, 2).unwrap();
    a.call(start).unwrap();
    a.pop(rcx).unwrap();
    a.add(rax, rcx).unwrap();
    a.ret().unwrap();
    a.set_label(&mut base).unwrap();
    a.mov(rax, rdi).unwrap();
    a.ret().unwrap();
    a.set_label(&mut end).unwrap();
    a.nop().unwrap();
}

#[test]
fn recursion() {
    let guest = Guest::new();
    guest.assemble(|a| {
        a.mov(edi, 20).unwrap();
        fib(a);
        a.syscall().unwrap();
    });
    let context = run_both_ways(&guest);
    assert_eq!(context.gpr[reg::RAX], 6765);
    assert_eq!(context.gpr[reg::RSP], guest.stack);
}

#[test]
fn return_addresses_on_the_stack_are_the_guests() {
    let guest = Guest::new();
    let mut after = 0;
    guest.assemble(|a| {
        let mut callee = a.create_label();
        let mut end = a.create_label();
        a.call(callee).unwrap();
        a.jmp(end).unwrap();
        a.set_label(&mut callee).unwrap();
        a.mov(rax, qword_ptr(rsp)).unwrap();
        a.mov(rcx, 77u64).unwrap();
        a.ret().unwrap();
        a.set_label(&mut end).unwrap();
        // What a return leaves below the stack pointer is the guest's, too.
        a.mov(rdx, qword_ptr(rsp - 8)).unwrap();
        a.syscall().unwrap();
        after = 5;
    });
    let context = run_both_ways(&guest);
    assert_eq!(context.gpr[reg::RAX], guest.code + after);
    assert_eq!(context.gpr[reg::RDX], guest.code + after);
    assert_eq!(context.gpr[reg::RCX], 77);
}

/// Returns to addresses that no call pushed, in turn, and at distances that share table entries.
#[test]
fn mismatched_returns() {
    let guest = Guest::new();
    let places = [guest.code + 0x1000, guest.code + 0x1_1000, guest.code + 0x2_1000];
    guest.assemble(|a| {
        a.mov(ebx, 0).unwrap();
        a.mov(rcx, places[0]).unwrap();
        a.stc().unwrap();
        a.push(rcx).unwrap();
        a.ret().unwrap();
    });
    for (index, &place) in places.iter().enumerate() {
        guest.assemble_at(place, |a| {
            let mut done = a.create_label();
            a.adc(rbx, 1 << index).unwrap();
            a.cmp(rbx, 3000).unwrap();
            a.jae(done).unwrap();
            a.push(places[(index + 1) % 3] as i32).unwrap();
            a.stc().unwrap();
            a.ret().unwrap();
            a.set_label(&mut done).unwrap();
            a.mov(rax, qword_ptr(rsp - 8)).unwrap();
            a.syscall().unwrap();
        });
    }
    let context = run_both_ways(&guest);
    assert_eq!(context.gpr[reg::RBX], 3000);
    assert_eq!(context.gpr[reg::RSP], guest.stack);
    assert!(places.contains(&context.gpr[reg::RAX]));
}

/// A function that returns two levels up, as `longjmp` does.
#[test]
fn returns_past_a_frame() {
    let (guest, context) = run_code(|a| {
        let mut outer = a.create_label();
        let mut inner = a.create_label();
        let mut end = a.create_label();
        let mut again = a.create_label();
        a.mov(ebx, 1000).unwrap();
        a.set_label(&mut again).unwrap();
        a.call(outer).unwrap();
        a.dec(ebx).unwrap();
        a.jnz(again).unwrap();
        a.jmp(end).unwrap();
        a.set_label(&mut outer).unwrap();
        a.call(inner).unwrap();
        a.mov(eax, 99).unwrap();
        a.ret().unwrap();
        a.set_label(&mut inner).unwrap();
        a.inc(eax).unwrap();
        a.add(rsp, 8).unwrap();
        a.ret().unwrap();
        a.set_label(&mut end).unwrap();
        a.nop().unwrap();
    });
    assert_eq!(context.gpr[reg::RAX], 1000);
    assert_eq!(context.gpr[reg::RSP], guest.stack);
}

#[test]
fn returns_that_pop_arguments() {
    let (guest, context) = run_code(|a| {
        let mut callee = a.create_label();
        let mut end = a.create_label();
        let mut again = a.create_label();
        a.mov(ebx, 100).unwrap();
        a.set_label(&mut again).unwrap();
        a.push(rbx).unwrap();
        a.push(rbx).unwrap();
        a.call(callee).unwrap();
        a.dec(ebx).unwrap();
        a.jnz(again).unwrap();
        a.jmp(end).unwrap();
        a.set_label(&mut callee).unwrap();
        a.add(rax, qword_ptr(rsp + 16)).unwrap();
        a.ret_1(16).unwrap();
        a.set_label(&mut end).unwrap();
        a.nop().unwrap();
    });
    assert_eq!(context.gpr[reg::RAX], 5050);
    assert_eq!(context.gpr[reg::RSP], guest.stack);
}

/// Indirect jumps and calls through every kind of operand, to changing targets.
#[test]
fn polymorphic_indirect_branches() {
    let guest = Guest::new();
    let functions: Vec<u64> = (0..8).map(|i| guest.code + 0x1000 + i * 0x100).collect();
    for (index, &function) in functions.iter().enumerate() {
        guest.put(guest.data + index as u64 * 8, &function.to_le_bytes());
        guest.assemble_at(function, |a| {
            a.adc(rax, index as i32).unwrap();
            a.ret().unwrap();
        });
    }
    let data = guest.data;
    guest.assemble(|a| {
        let mut again = a.create_label();
        let mut here = a.create_label();
        a.xor(eax, eax).unwrap();
        a.mov(ebx, 8000).unwrap();
        a.mov(rbp, data).unwrap();
        a.set_label(&mut again).unwrap();
        a.mov(ecx, ebx).unwrap();
        a.and(ecx, 7).unwrap();
        a.stc().unwrap();
        a.call(qword_ptr(rbp + rcx * 8)).unwrap();
        a.mov(rcx, qword_ptr(rbp + rcx * 8)).unwrap();
        a.stc().unwrap();
        a.call(rcx).unwrap();
        a.lea(rcx, qword_ptr(here)).unwrap();
        a.jmp(rcx).unwrap();
        a.ud2().unwrap();
        a.set_label(&mut here).unwrap();
        a.dec(ebx).unwrap();
        a.jnz(again).unwrap();
        a.syscall().unwrap();
    });
    let context = run_both_ways(&guest);
    // Every call adds its index and the carry that was set before it.
    assert_eq!(context.gpr[reg::RAX], 2 * (8000 * 7 / 2 + 8000));
}

/// Code above 2 GiB, whose return addresses do not fit 32 bits and whose RIP-relative operands
/// are out of the code cache's reach.
#[test]
fn far_code() {
    let guest = Guest::at(0x1000_0000_0000);
    let function = guest.code + 0x8000;
    guest.assemble(|a| {
        let mut callee = a.create_label();
        let mut end = a.create_label();
        let mut pointer = a.create_label();
        let mut word = a.create_label();
        let mut byte = a.create_label();
        let mut again = a.create_label();
        a.mov(ebx, 100).unwrap();
        a.set_label(&mut again).unwrap();
        a.stc().unwrap();
        a.call(callee).unwrap();
        a.adc(qword_ptr(word), 1).unwrap();
        a.mov(byte_ptr(byte), ah).unwrap();
        a.call(qword_ptr(pointer)).unwrap();
        a.dec(ebx).unwrap();
        a.jnz(again).unwrap();
        a.lea(rdx, qword_ptr(word)).unwrap();
        a.lea(esi, qword_ptr(word)).unwrap();
        a.mov(rdi, qword_ptr(word)).unwrap();
        a.jmp(end).unwrap();
        a.set_label(&mut callee).unwrap();
        a.mov(rax, qword_ptr(rsp)).unwrap();
        a.ret().unwrap();
        a.set_label(&mut pointer).unwrap();
        a.dq(&[function]).unwrap();
        a.set_label(&mut word).unwrap();
        a.dq(&[0]).unwrap();
        a.set_label(&mut byte).unwrap();
        a.dq(&[0]).unwrap();
        a.set_label(&mut end).unwrap();
        a.movzx(r8d, byte_ptr(byte)).unwrap();
        a.syscall().unwrap();
    });
    guest.assemble_at(function, |a| a.ret().unwrap());
    let mut context = guest.context();
    assert_eq!(run(&engine(EngineConfig::default()), &mut context), Exit::Syscall);
    assert_eq!(context.gpr[reg::RDI], 200);
    assert_eq!(context.gpr[reg::RAX], guest.code + 5 + 6);
    assert_eq!(guest.read(context.gpr[reg::RDX]), 200);
    assert_eq!(context.gpr[reg::RSI], context.gpr[reg::RDX] & 0xffff_ffff);
    assert_eq!(context.gpr[reg::RSP], guest.stack);
    assert_eq!(context.gpr[reg::R8], (guest.code + 11) >> 8 & 0xff);
}

/// Jumps keep all 128 bytes below the stack pointer.
#[test]
fn the_red_zone_is_kept() {
    let (_, context) = run_code(|a| {
        let mut next = a.create_label();
        for offset in 1..=16 {
            a.mov(qword_ptr(rsp - 8 * offset), offset).unwrap();
        }
        a.lea(rcx, qword_ptr(next)).unwrap();
        a.jmp(rcx).unwrap();
        a.set_label(&mut next).unwrap();
        a.xor(eax, eax).unwrap();
        for offset in 1..=16 {
            a.add(rax, qword_ptr(rsp - 8 * offset)).unwrap();
        }
    });
    assert_eq!(context.gpr[reg::RAX], 136);
}

/// Where a thread goes on after an exit shares a table entry with another block.
#[test]
fn flags_survive_an_exit() {
    let guest = Guest::new();
    let resumed = guest.assemble(|a| {
        a.cmp(eax, eax).unwrap();
        a.syscall().unwrap();
    });
    guest.assemble_at(resumed, |a| {
        a.setz(bl).unwrap();
        a.syscall().unwrap();
    });
    let other = (resumed + 0x100..guest.code + ROOM - 0x100)
        .find(|&pc| jump_index(pc) == jump_index(resumed))
        .expect("sixteen times as many addresses as entries");
    guest.assemble_at(other, |a| {
        a.xor(eax, eax).unwrap();
        a.syscall().unwrap();
    });
    let jump = guest.code + 0x40;
    guest.assemble_at(jump, |a| a.jmp(rax).unwrap());
    let engine = engine(EngineConfig::default());
    let mut context = guest.context_at(jump);
    context.gpr[reg::RAX] = other;
    assert_eq!(run(&engine, &mut context), Exit::Syscall);

    let mut context = guest.context();
    assert_eq!(run(&engine, &mut context), Exit::Syscall);
    assert_eq!(context.rip, resumed);
    assert_eq!(run(&engine, &mut context), Exit::Syscall);
    assert_eq!(context.gpr[reg::RBX], 1);
}
