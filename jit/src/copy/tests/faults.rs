//! Faults of guest instructions, with the state before them.

use super::{Guest, ROOM, engine, run};
use iced_x86::code_asm::*;
use refrain_vm::{Context, Count, EngineConfig, Exit, Fault, reg};

/// Runs code that faults; returns the fault and the state.
fn fault(write: impl FnOnce(&mut CodeAssembler)) -> (Guest, Context, Fault) {
    let guest = Guest::new();
    guest.assemble(|a| {
        for (index, register) in
            [rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15]
                .into_iter()
                .enumerate()
        {
            a.mov(register, 1000 + index as u64).unwrap();
        }
        a.stc().unwrap();
        write(a);
    });
    let mut context = guest.context();
    match run(
        &engine(EngineConfig { count: Count::Instructions, ..EngineConfig::default() }),
        &mut context,
    ) {
        Exit::Fault(fault) => {
            let trapped = u64::from(fault.signal == libc::SIGTRAP);
            for index in 0..16 {
                let order = [0, 1, 2, 3, 99, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14][index];
                if index != reg::RSP {
                    assert_eq!(context.gpr[index], 1000 + order, "register {index}");
                }
            }
            assert_eq!(context.rflags & 1, 1);
            assert_eq!(context.gpr[reg::RSP], guest.stack);
            assert_eq!(context.retired, 16 + trapped);
            (guest, context, fault)
        }
        other => panic!("{other:?} at {:#x}", context.rip),
    }
}

/// Offset of the faulting instruction.
const PROLOGUE: u64 = 15 * 10 + 1;

fn check(write: impl FnOnce(&mut CodeAssembler), signal: i32, address: Option<u64>) {
    let (guest, context, fault) = fault(write);
    // A trap is reported behind its instruction, which here has one byte.
    let trapped = u64::from(fault.signal == libc::SIGTRAP);
    assert_eq!(context.rip - guest.code, PROLOGUE + trapped);
    assert_eq!(fault.signal, signal);
    if let Some(address) = address {
        assert_eq!(fault.address, address);
    }
}

#[test]
fn loads_and_stores() {
    check(|a| a.mov(rax, qword_ptr(rcx)).unwrap(), libc::SIGSEGV, Some(1001));
    check(|a| a.mov(qword_ptr(rdx + 8), rax).unwrap(), libc::SIGSEGV, Some(1010));
    check(|a| a.add(qword_ptr(r15 + 8), rax).unwrap(), libc::SIGSEGV, Some(1022));
}

#[test]
fn branches() {
    check(|a| a.call(qword_ptr(rcx)).unwrap(), libc::SIGSEGV, Some(1001));
    check(|a| a.jmp(qword_ptr(rcx)).unwrap(), libc::SIGSEGV, Some(1001));
    check(|a| a.call(qword_ptr(8)).unwrap(), libc::SIGSEGV, Some(8));
}

#[test]
fn arithmetic_and_traps() {
    check(|a| a.idiv(qword_ptr(rsp)).unwrap(), libc::SIGFPE, None);
    check(|a| a.ud2().unwrap(), libc::SIGILL, None);
    check(|a| a.int3().unwrap(), libc::SIGTRAP, None);
    check(|a| a.hlt().unwrap(), libc::SIGSEGV, Some(0));
}

/// A jump to where nothing is mapped.
#[test]
fn jumps_to_nowhere() {
    let guest = Guest::new();
    guest.assemble(|a| {
        a.mov(ecx, 0x1234).unwrap();
        a.jmp(rcx).unwrap();
    });
    let mut context = guest.context();
    let exit = run(&engine(EngineConfig::default()), &mut context);
    assert!(
        matches!(exit, Exit::Fault(Fault { signal: libc::SIGSEGV, address, .. }) if address == 0x1234),
        "{exit:?}"
    );
    assert_eq!(context.rip, 0x1234);
    assert_eq!(context.gpr[reg::RCX], 0x1234);
}

/// Code that runs into the end of its mapping.
#[test]
fn code_that_ends() {
    let guest = Guest::new();
    let end = guest.code + 2 * ROOM;
    guest.put(end - 3, &[0x90, 0x48, 0x8b]);
    let mut context = guest.context_at(end - 3);
    let exit = run(&engine(EngineConfig::default()), &mut context);
    assert!(
        matches!(exit, Exit::Fault(Fault { signal: libc::SIGSEGV, address, .. }) if address == end),
        "{exit:?}"
    );
    assert_eq!(context.rip, end - 2);
}

/// Endless recursion runs into the end of the stack.
#[test]
fn stack_overflow() {
    let guest = Guest::new();
    guest.assemble(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.inc(rax).unwrap();
        a.call(again).unwrap();
    });
    let mut context = guest.context();
    let page = guest.data;
    // SAFETY: takes the writing rights from a page of this guest's own.
    unsafe { libc::mprotect(page as *mut libc::c_void, 4096, libc::PROT_READ) };
    let exit = run(&engine(EngineConfig::default()), &mut context);
    let last = page + 4096;
    assert!(
        matches!(exit, Exit::Fault(Fault { signal: libc::SIGSEGV, address, .. }) if address == last - 8),
        "{exit:?}"
    );
    assert_eq!(context.gpr[reg::RSP], last);
    assert_eq!(context.rip, guest.code + 3);
    assert_eq!(context.gpr[reg::RAX], (guest.stack - last) / 8 + 1);
}

/// A RIP-relative operand out of reach that faults: the register in between is restored.
#[test]
fn far_operands() {
    let guest = Guest::at(0x1100_0000_0000);
    let hole = guest.code + 2 * ROOM;
    // mov rax, [hole]; call [hole]; push [hole]
    let opcodes: [&[u8]; 3] = [&[0x48, 0x8b, 0x05], &[0xff, 0x15], &[0xff, 0x35]];
    for (index, opcode) in opcodes.into_iter().enumerate() {
        let start = guest.code + 0x100 * index as u64;
        let end = start + opcode.len() as u64 + 4;
        guest.put(start, opcode);
        guest.put(end - 4, &((hole - end) as u32).to_le_bytes());
        let mut context = guest.context_at(start);
        for index in (0..16).filter(|&index| index != reg::RSP) {
            context.gpr[index] = 100 + index as u64;
        }
        let before = context.clone();
        let exit = run(&engine(EngineConfig::default()), &mut context);
        assert!(
            matches!(exit, Exit::Fault(Fault { signal: libc::SIGSEGV, address, .. }) if address == hole),
            "{exit:?}"
        );
        assert_eq!(context.gpr, before.gpr);
        assert_eq!(context.rip, start);
    }
}
