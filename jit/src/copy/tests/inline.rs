//! Ordered instructions that are executed in line, between two calls of the machine.

use super::{CopyEngine, Guest, context_of, engine};
use iced_x86::code_asm::*;
use refrain_vm::{
    Count, Cpu, Engine, EngineConfig, Exit, Fault, LastMet, Mode, OrderedAccess, OrderedFastPath,
    OrderedKind, RecordingEngine, Span, Zeroed, reg,
};
use std::arch::asm;
use std::sync::Arc;

const MOST: usize = 16;
/// No memory.
const NOWHERE: u64 = 0x10;

/// What the machine has been asked, and what it answers.
pub(super) struct Machine {
    asked: [Option<OrderedAccess>; MOST],
    pub(super) count: usize,
    pub(super) told: u64,
    /// What instructions have found that leave it in a register.
    found: Vec<u64>,
    /// The last instruction that was asked about is one.
    tells: bool,
    /// Instructions on this word take the slow path.
    declined: u64,
    /// What loads read.
    value: u64,
    /// What string instructions were about to access.
    pub(super) spans: Vec<Span>,
    /// They take the slow path.
    pub(super) declines_strings: bool,
}

impl Machine {
    pub(super) fn new() -> Box<Machine> {
        let found = Vec::with_capacity(MOST);
        let asked = [None; MOST];
        let spans = Vec::with_capacity(MOST);
        Box::new(Machine {
            asked,
            count: 0,
            told: 0,
            found,
            tells: false,
            declined: 0,
            value: 77,
            spans,
            declines_strings: false,
        })
    }

    fn kinds(&self) -> Vec<OrderedKind> {
        self.asked.iter().flatten().map(|access| access.kind).collect()
    }
}

/// Changes whatever a function may change.
fn disturb() {
    // SAFETY: the registers are declared as changed.
    unsafe {
        asm!(
            "pcmpeqd xmm0, xmm0", "pcmpeqd xmm1, xmm1", "pcmpeqd xmm2, xmm2", "pcmpeqd xmm3, xmm3",
            "pcmpeqd xmm4, xmm4", "pcmpeqd xmm5, xmm5", "pcmpeqd xmm6, xmm6", "pcmpeqd xmm7, xmm7",
            "pcmpeqd xmm8, xmm8", "pcmpeqd xmm9, xmm9", "pcmpeqd xmm10, xmm10",
            "pcmpeqd xmm11, xmm11", "pcmpeqd xmm12, xmm12", "pcmpeqd xmm13, xmm13",
            "pcmpeqd xmm14, xmm14", "pcmpeqd xmm15, xmm15",
            "mov rax, -1", "mov rcx, rax", "mov rdx, rax", "mov rsi, rax", "mov rdi, rax",
            "mov r8, rax", "mov r9, rax", "mov r10, rax", "mov r11, rax", "add al, 1",
            out("rax") _, out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
            out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
            out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _,
            out("xmm15") _,
        );
    }
}

/// # Safety
/// As [`OrderedFastPath`] says: `data` is the address of the test's own machine.
unsafe extern "sysv64" fn before(access: *mut OrderedAccess, data: u64) -> i64 {
    // SAFETY: the word is the address of the test's own machine, which outlives the run.
    let (access, machine) = unsafe { (&mut *access, &mut *(data as *mut Machine)) };
    if access.address == machine.declined {
        return -1;
    }
    if let Some(next) = machine.asked.get_mut(machine.count) {
        *next = Some(*access);
    }
    machine.count += 1;
    machine.tells = access.tells;
    access.value = machine.value;
    disturb();
    0
}

/// # Safety
/// As [`OrderedFastPath`] says: `data` is the address of the test's own machine.
unsafe extern "sysv64" fn after(found: u64, data: u64) {
    // SAFETY: as in `before`.
    let machine = unsafe { &mut *(data as *mut Machine) };
    machine.told += 1;
    if machine.tells && machine.found.len() < MOST {
        machine.found.push(found);
    }
    disturb();
}

/// # Safety
/// As [`OrderedFastPath`] says: `data` is the address of the test's own machine.
unsafe extern "sysv64" fn strings(spans: *const Span, count: usize, data: u64) -> i64 {
    // SAFETY: as in `before`; there are so many spans.
    let (spans, machine) =
        unsafe { (std::slice::from_raw_parts(spans, count), &mut *(data as *mut Machine)) };
    // (There is room: nothing is allocated here.)
    spans.iter().take(MOST - machine.spans.len()).for_each(|&span| machine.spans.push(span));
    disturb();
    if machine.declines_strings { -1 } else { 0 }
}

/// An engine that orders atomic instructions, and these plain accesses of a replay.
fn ordering(sites: &[u64]) -> EngineConfig {
    let watched = Some(Arc::new(sites.iter().copied().collect()));
    EngineConfig { order_atomics: true, watched, ..EngineConfig::default() }
}

/// An executor of an engine that calls the machine.
pub(super) fn executor(engine: &CopyEngine, machine: &mut Machine) -> Box<dyn Cpu> {
    // SAFETY: the functions do nothing but change the machine whose address each thread is given.
    unsafe { engine.ordered_fast_path(OrderedFastPath { before, after, strings }) };
    engine.several_threads();
    let mut cpu = engine.attach().unwrap();
    cpu.set_fast_path_data(std::ptr::from_mut(machine) as u64);
    cpu
}

/// Everything that is the guest's is as if the machine had not been called.
#[test]
fn the_guest_does_not_notice() {
    type Program = (fn(&mut CodeAssembler), usize);
    let programs: [Program; 6] = [
        (|a| a.lock().xadd(dword_ptr(rbp + 4), ecx).unwrap(), 1),
        (|a| a.xchg(qword_ptr(rbp), rcx).unwrap(), 1),
        (|a| a.lock().cmpxchg16b(xmmword_ptr(rbp + 32)).unwrap(), 1),
        (
            |a| {
                a.lock().inc(qword_ptr(rbp)).unwrap();
                a.lock().dec(qword_ptr(rbp)).unwrap();
                a.adc(rcx, rcx).unwrap();
            },
            2,
        ),
        (
            |a| {
                a.lea(rcx, qword_ptr(rbp - 64)).unwrap();
                a.lock().or(byte_ptr(rcx + 65), 3).unwrap();
            },
            1,
        ),
        (|a| a.lock().not(qword_ptr(rsp - 8)).unwrap(), 1),
    ];
    for (program, ordered) in programs {
        let guest = Guest::new();
        guest.assemble(|a| {
            program(a);
            a.syscall().unwrap();
        });
        let words = || [0, 8, 32, 40].map(|offset| guest.read(guest.data + offset));
        let mut expected = context_of(&guest);
        let exit =
            engine(EngineConfig::default()).attach().unwrap().run(&mut expected, Mode::Observed);
        assert_eq!(exit, Exit::Syscall);
        let stored = words();
        guest.put(guest.data, &[0; 64]);
        guest.put(guest.stack - 8, &[0; 8]);

        let (engine, mut machine) = (engine(ordering(&[])), Machine::new());
        let mut cpu = executor(&engine, &mut machine);
        let mut context = context_of(&guest);
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
        assert_eq!(context.gpr, expected.gpr);
        assert_eq!(context.xmm, expected.xmm);
        assert_eq!(context.rflags, expected.rflags);
        assert_eq!(words(), stored);
        assert_eq!((machine.count, machine.told), (ordered, ordered as u64));
    }
}

/// The machine is told what an exchange has found, in whichever register that is.
#[test]
fn what_was_found_is_told() {
    let guest = Guest::new();
    guest.assemble(|a| {
        a.mov(ecx, 5).unwrap();
        a.xchg(qword_ptr(rbp), rcx).unwrap();
        a.mov(edx, 4).unwrap();
        a.lock().xadd(qword_ptr(rbp), rdx).unwrap();
        a.lock().inc(qword_ptr(rbp)).unwrap();
        a.mov(eax, 10).unwrap();
        a.lock().cmpxchg(qword_ptr(rbp), rdx).unwrap();
        a.lock().cmpxchg(qword_ptr(rbp), rcx).unwrap();
        a.xchg(byte_ptr(rbp), ah).unwrap();
        a.syscall().unwrap();
    });
    guest.put(guest.data, &3_u64.to_le_bytes());
    let (engine, mut machine) = (engine(ordering(&[])), Machine::new());
    let mut cpu = executor(&engine, &mut machine);
    let mut context = context_of(&guest);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!((machine.told, &*machine.found), (6, [3, 5, 10, 5].as_slice()));
}

/// The machine is told what the instruction is, and may decline.
#[test]
fn what_is_declined_is_left_for() {
    let guest = Guest::new();
    let word = guest.data + 8;
    guest.assemble(|a| {
        a.push(rax).unwrap();
        a.lock().inc(word_ptr(rbp)).unwrap();
        a.lock().inc(qword_ptr(word)).unwrap();
        a.syscall().unwrap();
    });
    let (engine, mut machine) = (engine(ordering(&[])), Machine::new());
    machine.declined = word;
    let mut cpu = executor(&engine, &mut machine);
    let mut context = context_of(&guest);
    let kind = OrderedKind::ReadModifyWrite;
    assert_eq!(
        cpu.run(&mut context, Mode::Observed),
        Exit::Ordered { address: word, size: 8, kind }
    );
    let asked = OrderedAccess {
        address: guest.data,
        size: 2,
        kind,
        pc: guest.code + 1,
        sp: guest.stack - 8,
        value: 0,
        tells: false,
    };
    assert_eq!((machine.count, machine.asked[0]), (1, Some(asked)));
    assert_eq!((guest.read(guest.data), guest.read(word), machine.told), (1, 0, 1));
    assert_eq!(cpu.step(&mut context), None);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!((guest.read(word), machine.count), (1, 1));
}

/// Loads have the machine's value; stores are told of, and only those.
#[test]
fn plain_accesses_of_a_replay() {
    let guest = Guest::new();
    let word = guest.data + 0x100;
    guest.put(word, &5_u64.to_le_bytes());
    let mut sites = vec![guest.code];
    sites.push(guest.assemble(|a| a.add(rcx, qword_ptr(rdi)).unwrap()));
    guest.assemble_at(sites[1], |a| {
        a.mov(qword_ptr(rdi), rcx).unwrap();
        a.syscall().unwrap();
    });
    let (engine, mut machine) = (engine(ordering(&sites)), Machine::new());
    let mut cpu = executor(&engine, &mut machine);
    let mut context = context_of(&guest);
    (context.gpr[reg::RDI], context.gpr[reg::RCX]) = (word, 1000);
    assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
    assert_eq!((context.gpr[reg::RCX], guest.read(word)), (1077, 1077));
    assert_eq!(machine.kinds(), [OrderedKind::Load, OrderedKind::Store]);
    assert_eq!(machine.told, 1);
}

/// A fault is that of the instruction, whoever was asked before it.
#[test]
fn faults_in_line() {
    let guest = Guest::new();
    guest.assemble(|a| {
        a.inc(ecx).unwrap();
        a.lock().inc(qword_ptr(NOWHERE)).unwrap();
    });
    let (engine, mut machine) = (engine(ordering(&[])), Machine::new());
    let mut cpu = executor(&engine, &mut machine);
    let mut context = context_of(&guest);
    let exit = cpu.run(&mut context, Mode::Observed);
    assert!(
        matches!(exit, Exit::Fault(Fault { signal: libc::SIGSEGV, address: NOWHERE, .. })),
        "{exit:?}"
    );
    assert_eq!(context.rip, guest.code + 2);
    let expected = context_of(&guest);
    assert_eq!(context.gpr[reg::RCX], (expected.gpr[reg::RCX] as u32 + 1).into());
    assert_eq!(context.xmm, expected.xmm);
    assert_eq!((machine.count, machine.told), (1, 0));
}

/// Where instructions are counted, the machine is left for.
#[test]
fn counted_code_is_left() {
    let guest = Guest::new();
    guest.assemble(|a| {
        a.lock().inc(qword_ptr(rbp)).unwrap();
        a.syscall().unwrap();
    });
    let config = EngineConfig { count: Count::Instructions, ..ordering(&[]) };
    let (engine, mut machine) = (engine(config), Machine::new());
    let mut cpu = executor(&engine, &mut machine);
    let mut context = context_of(&guest);
    let exit = cpu.run(&mut context, Mode::Observed);
    assert!(matches!(exit, Exit::Ordered { .. }), "{exit:?}");
    assert_eq!(machine.count, 0);
}

/// A load of every size, and what a thread met at its word.
struct Load {
    guest: Guest,
    size: u8,
    met: Zeroed<LastMet>,
    counter: Box<u64>,
    machine: Box<Machine>,
}

const HELD: u64 = 0x1122_3344_5566_7788;

impl Load {
    /// The thread has met what memory holds, at the version 5.
    fn new(size: u8) -> Load {
        let guest = Guest::new();
        guest.put(guest.data, &HELD.to_le_bytes());
        guest.assemble(|a| {
            match size {
                1 => a.movzx(ecx, byte_ptr(rbp)).unwrap(),
                2 => a.movzx(ecx, word_ptr(rbp)).unwrap(),
                4 => a.mov(ecx, dword_ptr(rbp)).unwrap(),
                _ => a.mov(rcx, qword_ptr(rbp)).unwrap(),
            }
            a.syscall().unwrap();
        });
        let (counter, mut met) = (Box::new(5), LastMet::new());
        met.meet((guest.data, size), cut(HELD, size), &raw const *counter as u64, 5);
        Load { guest, size, met, counter, machine: Machine::new() }
    }

    /// What the load reads, and whether the machine was asked.
    fn run(&mut self, engine: &CopyEngine) -> (u64, bool) {
        let mut cpu = executor(engine, &mut self.machine);
        // SAFETY: it outlives the executor, and nobody else uses it meanwhile.
        unsafe { cpu.set_last_met(&raw mut *self.met) };
        let mut context = context_of(&self.guest);
        let mut expected = context.clone();
        self.machine.count = 0;
        assert_eq!(cpu.run(&mut context, Mode::Observed), Exit::Syscall);
        expected.gpr[reg::RCX] = context.gpr[reg::RCX];
        assert_eq!((context.gpr, context.xmm), (expected.gpr, expected.xmm), "size {}", self.size);
        assert_eq!(context.rflags & 0xcd5, expected.rflags, "size {}", self.size);
        (context.gpr[reg::RCX], self.machine.count > 0)
    }

    fn unrecorded(&self) -> u64 {
        self.met.unrecorded.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// The low bytes.
fn cut(value: u64, size: u8) -> u64 {
    value & u64::MAX >> (64 - 8 * size)
}

/// In a recording, a load passes that finds the value that its thread met, at the same version.
#[test]
fn what_a_thread_met_is_not_recorded() {
    for size in [1, 2, 4, 8] {
        let mut load = Load::new(size);
        let recording_of = |load: &Load| {
            let config = EngineConfig { order_atomics: true, ..EngineConfig::default() };
            let engine = engine(config);
            engine.watch(&[load.guest.code]);
            engine
        };
        let engine = recording_of(&load);
        assert_eq!(load.run(&engine), (cut(HELD, size), false));
        assert_eq!(load.run(&engine), (cut(HELD, size), false));
        assert_eq!(load.unrecorded(), 2);
        *load.counter = 6;
        assert_eq!(load.run(&engine), (77, true), "another version");
        *load.counter = 5;
        load.guest.put(load.guest.data, &[0x99]);
        assert_eq!(load.run(&engine), (77, true), "another value");
        load.guest.put(load.guest.data, &HELD.to_le_bytes());
        let other = if size == 8 { 4 } else { 8 };
        let counter = &raw const *load.counter as u64;
        load.met.meet((load.guest.data, other), 99, counter, 4);
        assert_eq!(load.run(&engine), (cut(HELD, size), false), "another size beside it");
        assert_eq!(load.unrecorded(), 3);
        let mut load = Load::new(other);
        load.met.meet((load.guest.data, other), 99, counter, 5);
        load.met.meet((load.guest.data, size), cut(HELD, size), counter, 5);
        assert_eq!(load.run(&recording_of(&load)), (77, true), "another size's value");
    }
}

/// In a replay, a load passes that comes before the next event; it reads what its thread met.
#[test]
fn what_a_thread_met_is_replayed() {
    for size in [1, 2, 4, 8] {
        let mut load = Load::new(size);
        let engine = engine(ordering(&[load.guest.code]));
        load.guest.put(load.guest.data, &[0; 8]);
        load.met.unrecorded.store(2, std::sync::atomic::Ordering::Relaxed);
        for left in [1, 0] {
            assert_eq!(load.run(&engine), (cut(HELD, size), false), "memory is ahead");
            assert_eq!(load.unrecorded(), left);
        }
        assert_eq!(load.run(&engine), (77, true), "its event is next");
    }
}

/// A thread that is alone reads what is in memory, and meets it, on both sides.
#[test]
fn who_is_alone_reads_memory() {
    use std::sync::atomic::Ordering::Relaxed;
    const NEXT: u64 = 0x8877_6655_4433_2211;
    for size in [1, 2, 4, 8] {
        let mut load = Load::new(size);
        let recording = engine(EngineConfig { order_atomics: true, ..EngineConfig::default() });
        recording.watch(&[load.guest.code]);
        load.guest.put(load.guest.data, &NEXT.to_le_bytes());
        assert_eq!(load.run(&recording), (77, true), "another thread may have stored it");
        load.met.alone.store(1, Relaxed);
        for _ in 0..2 {
            assert_eq!(load.run(&recording), (cut(NEXT, size), false));
        }
        assert_eq!((load.unrecorded(), load.met.window.load(Relaxed)), (2, 0));
        let met = |load: &Load| load.met.at(load.guest.data, size).map(|met| met.value);
        assert_eq!(met(&load), Some(cut(NEXT, size)));
        load.guest.put(load.guest.data, &HELD.to_le_bytes());

        let replay = engine(ordering(&[load.guest.code]));
        load.met.unrecorded.store(3, Relaxed);
        // Memory is ahead: this was there already when the load read something else.
        load.met.meet((load.guest.data, size), cut(5, size), 0, cut(HELD, size));
        assert_eq!(load.run(&replay), (cut(5, size), false), "nothing has changed since");
        load.guest.put(load.guest.data, &NEXT.to_le_bytes());
        for left in [1, 0] {
            assert_eq!(load.run(&replay), (cut(NEXT, size), false), "the thread has stored it");
            assert_eq!((met(&load), load.unrecorded()), (Some(cut(NEXT, size)), left));
        }
        assert_eq!(load.run(&replay), (77, true), "its event is next");
        load.met = LastMet::new();
        load.met.alone.store(1, Relaxed);
        load.met.unrecorded.store(1, Relaxed);
        assert_eq!(load.run(&replay), (77, true), "it has met nothing");
    }
}
