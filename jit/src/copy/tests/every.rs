//! Every access: looked up in a recording, counted down in a replay.

mod code;

use super::inline::{Machine, executor};
use super::{CopyEngine, Guest, context_of, engine};
use crate::accesses::{Memory, memory_of};
use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use refrain_vm::{Context, Cpu, Engine, EngineConfig, Exit, Filter, Mode, OrderedKind, Span, reg};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    filter.permit(refrain_vm::line_index(address), write);
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
fn the_index_of_a_table_is_one_byte() {
    for engine in [recording(), replaying()] {
        let Some(engine) = engine else { return };
        let guest = Guest::new();
        guest.assemble(|a| {
            a.mov(byte_ptr(rbp + 0x47), 9).unwrap();
            a.lea(rbx, qword_ptr(rbp + 0x40)).unwrap();
            a.mov(eax, 0x12_3407).unwrap();
            a.xlatb().unwrap();
            a.syscall().unwrap();
        });
        let mut cpu = engine.attach().unwrap();
        let mut context = context_of(&guest);
        let seen = reports(&mut *cpu, &mut context);
        let at = guest.data + 0x47;
        assert_eq!(seen, [(at, 1, OrderedKind::Write), (at, 1, OrderedKind::Read)]);
        assert_eq!(context.gpr[reg::RAX], 0x12_3409);
    }
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

/// What the machine lets a thread do at once it does without leaving translated code, forwards and backwards.
#[test]
fn strings_are_executed_in_line() {
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    let (from, to) = (guest.data + 64, guest.data + 0x10000);
    type Assemble = fn(&mut CodeAssembler);
    let forwards: Assemble = |a| {
        a.cld().unwrap();
        a.rep().movsq().unwrap();
    };
    let backwards: Assemble = |a| {
        a.std().unwrap();
        a.rep().movsd().unwrap();
        a.cld().unwrap();
    };
    let stores: Assemble = |a| a.rep().stosw().unwrap();
    let one: Assemble = |a| a.lodsb().unwrap();
    let cases: [(Assemble, u64, u64, &[Span]); 5] = [
        (forwards, 3, 24, &[span(from, 24, false), span(to, 24, true)]),
        (backwards, 3, 12, &[span(from - 8, 12, false), span(to - 8, 12, true)]),
        (stores, 5, 10, &[span(to, 10, true)]),
        (stores, 0, 0, &[span(to, 0, true)]),
        (one, 7, 1, &[span(from, 1, false)]),
    ];
    for (assemble, elements, len, expected) in cases {
        guest.assemble(|a| {
            assemble(a);
            a.syscall().unwrap();
        });
        engine.forget(guest.code..guest.code + 64);
        for declines in [false, true] {
            let mut machine = Machine::new();
            machine.declines_strings = declines;
            let mut cpu = executor(&engine, &mut machine);
            let mut context = guest.context();
            (context.gpr[reg::RSI], context.gpr[reg::RDI]) = (from, to);
            (context.gpr[reg::RCX], context.gpr[reg::RAX]) = (elements, 0x1234);
            let mut expected_context = context.clone();
            let exit = cpu.run(&mut context, Mode::Observed);
            assert_eq!(machine.spans, expected);
            if declines {
                assert_eq!(exit, Exit::Spans);
                assert_eq!(context.gpr, expected_context.gpr);
                continue;
            }
            assert_eq!((exit, machine.told), (Exit::Syscall, 1), "{len} bytes");
            let moved = |at: u64| match expected {
                [first, ..] if first.start < from => at - len,
                _ => at + len,
            };
            if expected.iter().any(|it| !it.write) {
                expected_context.gpr[reg::RSI] = moved(from);
            }
            if expected.iter().any(|it| it.write) {
                expected_context.gpr[reg::RDI] = moved(to);
            }
            assert_eq!(context.gpr[reg::RSI], expected_context.gpr[reg::RSI]);
            assert_eq!(context.gpr[reg::RDI], expected_context.gpr[reg::RDI]);
        }
    }
}

fn span(start: u64, len: u64, write: bool) -> Span {
    Span { start, len, write }
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
    assert!(filter.readable.lines.is_null(), "a replay looks nothing up");
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

/// A block of accesses with various operands, to which the registers that they need change meanwhile.
fn mixed(guest: &Guest, random: &mut impl FnMut(u64) -> u64) {
    let bases = [rbp, rbx, rcx];
    guest.assemble(|a| {
        for _ in 0..1 + random(30) {
            let base = bases[random(3) as usize];
            let place = random(200) as i32 - 60;
            match random(11) {
                0 => a.mov(rax, qword_ptr(base + place)),
                1 => a.mov(qword_ptr(base + place), rdx),
                2 => a.add(dword_ptr(base + place), 5),
                3 => a.mov(byte_ptr(base + place), 7),
                4 => a.movups(xmm1, xmmword_ptr(base + place)),
                5 => a.adc(rdx, qword_ptr(base + rsi * 8 + place)),
                6 => a.lea(base, qword_ptr(base + random(40) as i32)),
                7 => a.push(rax),
                8 => a.mov(r9d, dword_ptr(guest.data + random(300))),
                9 => a.mov(r8, qword_ptr(random(400)).fs()),
                _ => a.inc(rsi),
            }
            .unwrap();
        }
        a.syscall().unwrap();
    });
}

/// The instruction that the context is at, and the accesses that the engines order in it.
fn next(context: &Context) -> (Instruction, Option<Span>) {
    let mut bytes = [0; 15];
    let readable = crate::memory::read_guest(context.rip, &mut bytes);
    let options = DecoderOptions::NONE;
    let instruction = Decoder::with_ip(64, &bytes[..readable], context.rip, options).decode();
    let Memory::Operand(kind, size) = memory_of(&instruction) else { return (instruction, None) };
    let value = |register: Register, _, _| match register {
        Register::FS => Some(context.fs_base),
        register if register.is_segment_register() => Some(0),
        register => Some(context.gpr[register.full_register().number()]),
    };
    let memory = (0..instruction.op_count()).find(|&at| instruction.op_kind(at) == OpKind::Memory);
    let start = instruction.virtual_address(memory.unwrap(), 0, value).unwrap();
    let write = kind == OrderedKind::Write;
    (instruction, Some(Span { start, len: size.into(), write }))
}

/// Blocks are executed as their instructions are one by one, with the accesses reported that the
/// thread may not make, and the others counted, whatever it may access.
#[test]
fn blocks_are_their_instructions() {
    let (Some(recording), Some(replaying)) = (recording(), replaying()) else { return };
    let guest = Guest::new();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for round in 0..400 {
        mixed(&guest, &mut random);
        recording.forget(guest.code..guest.code + 4096);
        replaying.forget(guest.code..guest.code + 4096);
        let mut start = context_of(&guest);
        start.rflags &= !(1 << 10);
        start.gpr[reg::RBP] = guest.data + 64;
        start.gpr[reg::RBX] = guest.data + 128 + random(4);
        start.gpr[reg::RCX] = guest.data + 512;
        start.gpr[reg::RSI] = random(9);
        start.fs_base = guest.data + 1024;
        let data = || (0..512).map(|word| guest.read(guest.data + 8 * word)).collect::<Vec<_>>();
        let before = data();
        let restore = || {
            let words = before.iter().zip((guest.data..).step_by(8));
            words.for_each(|(word, at)| guest.put(at, &word.to_le_bytes()));
        };
        let mut cpu = recording.attach().unwrap();
        let filter = cpu.filter().unwrap();
        let allowed = random(4);
        let mut may = BTreeSet::new();
        for line in 0..40 {
            let write = random(2) == 0;
            if allowed > 0 && random(1 << allowed) > 0 {
                permit(&filter, guest.data - 128 + 64 * line, write);
                may.insert((guest.data / 64 - 2 + line, false));
                may.extend(write.then_some((guest.data / 64 - 2 + line, true)));
            }
        }
        let mut context = start.clone();
        let mut stepping = recording.attach().unwrap();
        let (mut expected, mut places) = (Vec::new(), Vec::new());
        let counted = loop {
            let (instruction, span) = next(&context);
            if instruction.mnemonic() == Mnemonic::Syscall {
                break places.len() - expected.len();
            }
            if let Some(Span { start, len, write }) = span {
                let lines = start / 64..=(start + len - 1) / 64;
                let permitted = lines.into_iter().all(|line| may.contains(&(line, write)));
                places.push(context.rip);
                if !permitted {
                    let kind = if write { OrderedKind::Write } else { OrderedKind::Read };
                    expected.push((start, len as u8, kind));
                }
            }
            assert_eq!(stepping.step(&mut context), None);
        };
        let after = data();
        restore();
        let mut recorded = start.clone();
        assert_eq!(reports(&mut *cpu, &mut recorded), expected, "round {round}");
        assert_eq!(count(&filter), counted as u64, "round {round}");
        assert_eq!((recorded.gpr, recorded.xmm), (context.gpr, context.xmm));
        assert_eq!(data(), after);
        // A replay whose next event comes at one of them.
        restore();
        let left = random(places.len() as u64 + 1);
        let mut cpu = replaying.attach().unwrap();
        let filter = cpu.filter().unwrap();
        // SAFETY: as in `count`.
        unsafe { &*filter.count }.store(left, Ordering::Relaxed);
        let mut replayed = start.clone();
        let exit = cpu.run(&mut replayed, Mode::Observed);
        match places.get(left as usize) {
            Some(&place) => {
                assert!(matches!(exit, Exit::Ordered { .. }), "{exit:?}");
                assert_eq!((replayed.rip, count(&filter)), (place, 0), "round {round}");
            }
            None => {
                assert_eq!((exit, count(&filter)), (Exit::Syscall, 0), "round {round}");
                assert_eq!(replayed.gpr, context.gpr);
            }
        }
        restore();
    }
}

/// A fault in the middle of a block: what comes behind it is not counted.
#[test]
fn a_fault_takes_back_what_was_counted() {
    for (engine, start, expected) in [(recording(), 0, 2), (replaying(), 100, 98)] {
        let Some(engine) = engine else { return };
        let guest = Guest::new();
        guest.assemble(|a| {
            a.mov(rax, qword_ptr(rbp)).unwrap();
            a.mov(rdx, qword_ptr(rbp + rax * 1 + 8)).unwrap();
            a.mov(qword_ptr(rbp), rdx).unwrap();
            a.mov(qword_ptr(rbp + 8), rdx).unwrap();
            a.syscall().unwrap();
        });
        // Not mapped, and in the same line as far as tables go.
        guest.put(guest.data, &(1_u64 << 40).to_le_bytes());
        let mut cpu = engine.attach().unwrap();
        let filter = cpu.filter().unwrap();
        if start == 0 {
            permit(&filter, guest.data, true);
            permit(&filter, guest.data + (1 << 40), true);
        }
        // SAFETY: as in `count`.
        unsafe { &*filter.count }.store(start, Ordering::Relaxed);
        let mut context = context_of(&guest);
        let before = context.gpr[reg::RCX];
        let Exit::Fault(fault) = cpu.run(&mut context, Mode::Observed) else { panic!("it faults") };
        assert_eq!(fault.address, guest.data + (1 << 40) + 8);
        assert_eq!((context.rip, context.gpr[reg::RCX]), (guest.code + 4, before));
        assert_eq!(count(&filter), expected);
        // SAFETY: as in `count`.
        assert_eq!(unsafe { &*filter.window }.load(Ordering::Relaxed), 0, "it is closed again");
    }
}

/// Outside of its window a thread has made all accesses that it has counted.
#[test]
fn what_is_counted_outside_of_the_window_was_made() {
    const ACCESSES: u64 = 7;
    const ROUNDS: u64 = 300_000;
    let Some(engine) = recording() else { return };
    let guest = Guest::new();
    guest.assemble(|a| {
        let mut again = a.create_label();
        a.mov(r12d, ROUNDS as u32).unwrap();
        a.set_label(&mut again).unwrap();
        for access in 0..ACCESSES {
            a.inc(qword_ptr(rbp + 8 * access)).unwrap();
        }
        a.dec(r12).unwrap();
        a.jnz(again).unwrap();
        a.syscall().unwrap();
    });
    let mut cpu = engine.attach().unwrap();
    let filter = cpu.filter().unwrap();
    permit(&filter, guest.data, true);
    permit(&filter, guest.data + 64, true);
    // SAFETY: the executor is there until the end.
    let (counter, window) = unsafe { (&*filter.count, &*filter.window) };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let before = counter.load(Ordering::Acquire);
                let outside = window.load(Ordering::Acquire) == 0;
                if outside && counter.load(Ordering::Acquire) == before {
                    let last = guest.data + 8 * (ACCESSES - 1);
                    assert_eq!(before % ACCESSES, 0, "{before}");
                    assert!(guest.read(last) >= before / ACCESSES, "{before}");
                }
            }
        });
        assert_eq!(reports(&mut *cpu, &mut context_of(&guest)), []);
        over.store(true, Ordering::Relaxed);
        looker.join().unwrap();
    });
    assert_eq!(counter.load(Ordering::Relaxed), ROUNDS * ACCESSES);
}
