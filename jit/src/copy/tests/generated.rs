//! Code that the guest generates, and changes without a word.

use super::{CopyEngine, Guest, ROOM, engine, run};
use iced_x86::code_asm::*;
use refrain_vm::{Engine, EngineConfig, Exit, Fault, Mode, reg};

/// An engine that knows that all code of the guest is generated.
fn engine_of(guest: &Guest) -> CopyEngine {
    let engine = engine(EngineConfig::default());
    engine.generated(guest.code..guest.code + ROOM);
    engine
}

const ROUNDS: u32 = 100;

/// A loop that calls a function, adds what it returns, and changes what it returns next.
fn self_changing(guest: &Guest, function: impl Fn(&mut CodeAssembler)) {
    let at = guest.code + 0x800;
    guest.assemble_at(at, |a| {
        function(a);
        a.ret().unwrap();
    });
    guest.assemble(|a| {
        let mut again = a.create_label();
        a.mov(ecx, ROUNDS as i32).unwrap();
        a.xor(ebx, ebx).unwrap();
        a.set_label(&mut again).unwrap();
        a.call(at).unwrap();
        a.add(rbx, rax).unwrap();
        a.inc(byte_ptr(at + 4)).unwrap();
        a.dec(ecx).unwrap();
        a.jnz(again).unwrap();
        a.syscall().unwrap();
    });
}

#[test]
fn a_function_that_is_changed_between_calls() {
    type Function = fn(&mut CodeAssembler);
    let functions: [Function; 2] = [
        // The byte at 4 is the constant's. Flags are kept, ...
        |a| a.db(&[0x90, 0x90, 0x90, 0xb8, 0, 0, 0, 0]).unwrap(),
        // ... and overwritten.
        |a| a.db(&[0x31, 0xc0, 0x90, 0x05, 0, 0, 0, 0]).unwrap(),
    ];
    for function in functions {
        let guest = Guest::new();
        self_changing(&guest, function);
        let mut context = guest.context();
        assert_eq!(run(&engine_of(&guest), &mut context), Exit::Syscall);
        let sum: u32 = (0..ROUNDS).sum();
        assert_eq!(context.gpr[reg::RBX], u64::from(sum));
    }
}

#[test]
fn flags_and_registers_go_through() {
    let guest = Guest::new();
    guest.assemble(|a| {
        let mut on = a.create_label();
        a.stc().unwrap();
        a.jmp(on).unwrap();
        a.set_label(&mut on).unwrap();
        a.adc(rax, 0).unwrap();
        a.syscall().unwrap();
    });
    let mut context = guest.context();
    context.gpr[reg::RCX] = 7;
    context.gpr[reg::RDX] = 8;
    assert_eq!(run(&engine_of(&guest), &mut context), Exit::Syscall);
    assert_eq!([reg::RAX, reg::RCX, reg::RDX].map(|r| context.gpr[r]), [1, 7, 8]);
}

/// Code that reads the flags takes the place of code that overwrote them.
#[test]
fn flags_go_through_where_the_code_has_changed() {
    let guest = Guest::new();
    let engine = engine_of(&guest);
    let run_with = |carry: bool| {
        let mut context = guest.context();
        context.rflags |= u64::from(carry);
        assert_eq!(run(&engine, &mut context), Exit::Syscall);
        context.gpr[reg::RAX]
    };
    for round in 0..4 {
        guest.assemble(|a| {
            a.xor(eax, eax).unwrap();
            a.syscall().unwrap();
        });
        assert_eq!(run_with(round % 2 == 0), 0);
        guest.assemble(|a| {
            a.setc(al).unwrap();
            a.movzx(eax, al).unwrap();
            a.syscall().unwrap();
        });
        assert_eq!(run_with(round % 2 == 0), u64::from(round % 2 == 0));
    }
}

/// Calls, their targets and what they return to change like any other code.
#[test]
fn a_call_that_becomes_another() {
    let guest = Guest::new();
    let (one, two) = (guest.code + 0x800, guest.code + 0x900);
    for (at, value) in [(one, 1), (two, 2)] {
        guest.assemble_at(at, |a| {
            a.mov(eax, value).unwrap();
            a.ret().unwrap();
        });
    }
    let call = |target| {
        guest.assemble(|a| {
            a.call(target).unwrap();
            a.syscall().unwrap();
        })
    };
    let engine = engine_of(&guest);
    let mut cpu = engine.attach().unwrap();
    for round in 0..6 {
        let (target, value) = if round % 2 == 0 { (one, 1) } else { (two, 2) };
        call(target);
        let mut context = guest.context();
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
        assert_eq!(context.gpr[reg::RAX], value, "round {round}");
    }
}

/// Code that is gone faults where it was, with the registers as they were.
#[test]
fn code_that_is_unmapped() {
    let guest = Guest::new();
    let page = guest.code + 0x1000;
    guest.assemble_at(page, |a| {
        a.mov(eax, 1).unwrap();
        a.syscall().unwrap();
    });
    let engine = engine_of(&guest);
    let mut cpu = engine.attach().unwrap();
    let mut context = guest.context_at(page);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    // SAFETY: the page is the guest's own.
    unsafe { libc::mprotect(page as *mut libc::c_void, 4096, libc::PROT_NONE) };
    let mut context = guest.context_at(page);
    (context.gpr[reg::RCX], context.gpr[reg::RDX]) = (7, 8);
    let exit = cpu.run(&mut context, Mode::Observed);
    assert!(
        matches!(exit, Exit::Fault(Fault { signal: libc::SIGSEGV, address, .. }) if address == page),
        "{exit:?}"
    );
    assert_eq!(context.rip, page);
    assert_eq!([reg::RCX, reg::RDX].map(|r| context.gpr[r]), [7, 8]);
}

/// The last bytes before memory that cannot be read.
#[test]
fn short_code_at_the_end() {
    let guest = Guest::new();
    let end = guest.code + 0x2000;
    // SAFETY: the page is the guest's own.
    unsafe { libc::mprotect(end as *mut libc::c_void, 4096, libc::PROT_NONE) };
    let engine = engine_of(&guest);
    let mut cpu = engine.attach().unwrap();
    for code in [[0x0f, 0x05], [0xcc, 0x90], [0x0f, 0x05]] {
        guest.put(end - 2, &code);
        let mut context = guest.context_at(end - 2);
        let exit = cpu.run(&mut context, Mode::Observed);
        assert_eq!(exit == Exit::Syscall, code[0] == 0x0f, "{exit:?}");
    }
}

/// Threads execute what others change; each sees one of the versions.
#[test]
fn other_threads_change_code() {
    let guest = Guest::new();
    let at = guest.code + 0x800;
    guest.assemble_at(at, |a| {
        a.mov(eax, 1).unwrap();
        a.ret().unwrap();
    });
    guest.assemble(|a| {
        let mut again = a.create_label();
        a.mov(ecx, 20_000).unwrap();
        a.set_label(&mut again).unwrap();
        a.call(at).unwrap();
        a.add(rbx, rax).unwrap();
        a.dec(ecx).unwrap();
        a.jnz(again).unwrap();
        a.syscall().unwrap();
    });
    let engine = engine_of(&guest);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (guest, engine) = (&guest, &engine);
            scope.spawn(move || {
                let mut context = guest.context();
                context.gpr[reg::RSP] -= 0x1000 * thread;
                assert_eq!(run(engine, &mut context), Exit::Syscall);
                let sum = context.gpr[reg::RBX];
                assert!((20_000..=40_000).contains(&sum), "{sum}");
            });
        }
        for round in 0..200 {
            guest.put(at + 1, &[1 + round % 2]);
            std::thread::yield_now();
        }
    });
}

/// A change of any byte of a block is seen, however long the block is, and what a vector register holds goes
/// through.
#[test]
fn each_byte_is_compared() {
    const NOP: u8 = 0x90;
    const CMC: u8 = 0xf5;
    let guest = Guest::new();
    let engine = engine_of(&guest);
    for len in 1..=40_u64 {
        let run = || {
            let mut context = guest.context();
            context.xmm[0] = [0x1234, 0x5678];
            assert_eq!(run(&engine, &mut context), Exit::Syscall);
            assert_eq!(context.xmm[0], [0x1234, 0x5678], "{len} bytes");
            context.gpr[reg::RAX]
        };
        // A `nop`, or a `cmc` in its place.
        let write = |changed: Option<u64>| {
            guest.assemble(|a| {
                a.clc().unwrap();
                for at in 1..len {
                    a.db(&[if changed == Some(at) { CMC } else { NOP }]).unwrap();
                }
                a.setc(al).unwrap();
                a.movzx(eax, al).unwrap();
                a.syscall().unwrap();
            });
        };
        write(None);
        assert_eq!(run(), 0, "{len} bytes");
        for at in 1..len {
            write(Some(at));
            assert_eq!(run(), 1, "byte {at} of {len}");
            write(None);
            assert_eq!(run(), 0, "byte {at} of {len}");
        }
    }
}
