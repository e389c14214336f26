//! A recording of a scripted guest, and its replay: the recorder with threads, tickets, system calls and
//! library functions, without a translator.
//!
//! The recorded program is the C library, whose functions a recording hooks. Nothing of its code is
//! executed: the script lies where its dynamic linker begins.

mod scripted;

use object::{Object, ObjectSymbol};
use refrain_trace::{EventKind, Order, ThreadId, Trace, verify};
use refrain_vm::{Command, Processor, RecordOptions, ReplayOptions, record, replay, this_machine};
use scripted::recorder::Recorder;
use scripted::{Script, Scripted, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::sync::Arc;

/// What `pthread_create` asks of the kernel, but for what the kernel would write.
const CLONE: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM) as u64;

/// Critical sections of each thread.
const ROUNDS: usize = 50;
/// From where the main thread begins to where the other one does.
const OTHER: u64 = 0x1000;
/// What an exchange finds, which was not there yet when the recorder looked.
const FOUND: u64 = 7;

/// The C library of this process.
fn library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    path.map(PathBuf::from).find(|path| path.ends_with("libc.so.6")).expect("tests have one")
}

/// Where functions of the library are in the guest: at so much beyond their addresses in the file that
/// all of them are hooked.
fn functions<const N: usize>(names: [&str; N], hooks: &BTreeSet<u64>) -> [u64; N] {
    let data = std::fs::read(library()).expect("is a file");
    let elf = object::File::parse(&*data).expect("is an ELF file");
    let symbols: BTreeMap<&str, u64> = elf
        .dynamic_symbols()
        .filter_map(|symbol| Some((symbol.name().ok()?, symbol.address())))
        .collect();
    let offsets = names.map(|name| symbols[name]);
    let mut biases = hooks.iter().map(|pc| pc.wrapping_sub(offsets[0]));
    let is_bias = |bias: &u64| offsets.iter().all(|at| hooks.contains(&bias.wrapping_add(*at)));
    let bias = biases.find(|bias| bias % 4096 == 0 && is_bias(bias)).expect("they are hooked");
    offsets.map(|at| bias.wrapping_add(at))
}

/// Two threads count under a mutex and by atomic instructions; the main thread waits for the other one.
/// Its first two steps are for what a store does that is not ordered.
fn script(pc: u64, sp: u64, hooks: &BTreeSet<u64>) -> Script {
    let [lock, unlock] = functions(["pthread_mutex_lock", "pthread_mutex_unlock"], hooks);
    let (mutex, counter, done) = (sp - 0x2000, sp - 0x2040, sp - 0x2080);
    let futex = |operation: i32, value| Step::Syscall {
        work: 0,
        number: libc::SYS_futex as u64,
        arguments: [done, operation as u64, value, 0, 0, 0],
    };
    let call = |number: i64, arguments| Step::Syscall { work: 0, number: number as u64, arguments };
    let rounds = (0..ROUNDS).flat_map(|_| {
        let call = |function| Step::Call { work: 0, function, arguments: [mutex, 0] };
        [call(lock), Step::Increment { work: 0, address: counter }, call(unlock)]
    });
    let rounds: Vec<Step> = rounds.collect();
    let word = sp - 0x20c0;
    let mut main = vec![
        Step::Store { address: word, word: 0 },
        Step::Overtaken { address: word, first: FOUND, word: 1 },
        call(libc::SYS_getpid, [0; 6]),
        call(libc::SYS_clone, [CLONE, sp - 0x4000, 0, 0, 0, 0]),
        Step::Fork { child: pc + OTHER },
    ];
    main.extend(&rounds);
    main.extend([futex(libc::FUTEX_WAIT, 0), call(libc::SYS_exit_group, [3, 0, 0, 0, 0, 0])]);
    let mut other = rounds;
    other.extend([Step::Store { address: done, word: 1 }, futex(libc::FUTEX_WAKE, 1)]);
    other.push(call(libc::SYS_exit, [0; 6]));
    let bodies = [(lock, vec![Step::Take, Step::Return]), (unlock, vec![Step::Give, Step::Return])];
    let all = bodies.into_iter().chain([(pc, main), (pc + OTHER, other)]);
    all.flat_map(|(start, steps)| (start..).zip(steps)).collect()
}

fn recorded(engine: Arc<Recorder>) -> Trace {
    let file = rustix::fs::memfd_create(c"trace", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = File::from(file.expect("there is memory"));
    let options = RecordOptions {
        command: Command { program: library(), argv: vec!["guest".into()], env: Vec::new() },
        output: file.try_clone().expect("there are descriptors"),
        recorder: "a test".into(),
        machine: this_machine(),
        processor: Processor::V2,
        forbid_generated_code: false,
        warn: Arc::new(|notice| panic!("{notice}")),
        learned: BTreeMap::new(),
        order: Order::Sync,
        order_of: None,
        watched_of: None,
        begun: Box::new(|| Ok(())),
        strict: true,
        reference: false,
        follow: None,
        pages: None,
    };
    let summary = record(options, engine).expect("can be recorded");
    assert_eq!((summary.refused, summary.threads), (None, 2));
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("is in memory");
    Trace::from_bytes(bytes).expect("can be read")
}

/// The kinds of a thread's events, and their numbers.
fn kinds(trace: &Trace, thread: u32) -> Vec<(EventKind, u16)> {
    let mut cursor = trace.cursor(ThreadId(thread));
    let events = std::iter::from_fn(|| cursor.next().expect("is sound"));
    events.map(|event| (event.kind(), event.nr)).collect()
}

/// What a thread has done with words that others access.
#[derive(Default)]
struct OfWords {
    events: u64,
    unrecorded: u64,
    takeovers: u64,
}

fn words_of(trace: &Trace, thread: u32) -> OfWords {
    let mut cursor = trace.cursor(ThreadId(thread));
    let mut of = OfWords::default();
    while let Some(event) = cursor.next().expect("is sound") {
        of.unrecorded += event.unrecorded;
        match event.kind() {
            EventKind::Atomic | EventKind::SyncStore => of.events += 1,
            EventKind::Takeover => of.takeovers += 1,
            _ => {}
        }
    }
    of
}

#[test]
fn what_a_script_does_is_recorded_and_replays() {
    let engine = Arc::new(Recorder::new(script));
    let trace = recorded(engine.clone());
    assert_eq!(verify::verify(&trace).expect("can be read"), []);
    let round = [(EventKind::MutexLock, 0), (EventKind::MutexUnlock, 0)];
    let call = |number: i64| (EventKind::Syscall, number as u16);
    let mut main = vec![(EventKind::ThreadStart, 0), call(libc::SYS_getpid), call(libc::SYS_clone)];
    let mut other = vec![(EventKind::ThreadStart, 0)];
    for events in [&mut main, &mut other] {
        (0..ROUNDS).for_each(|_| events.extend(round));
        events.push(call(libc::SYS_futex));
    }
    main.push(call(libc::SYS_exit_group));
    let kinds_of_calls = |thread| {
        let mut kinds = kinds(&trace, thread);
        kinds.retain(|(kind, _)| *kind != EventKind::Atomic && !kind.is_of_access());
        kinds
    };
    assert!(kinds_of_calls(0).starts_with(&main));
    // Whether it comes to its exit before the program ends is up to the machine.
    assert!(kinds_of_calls(1).starts_with(&other));
    // Who comes to the counter first owns it until the other thread does.
    let of_words = [0, 1].map(|thread| words_of(&trace, thread));
    let counted: u64 = of_words.iter().map(|of| of.events + of.unrecorded).sum();
    assert_eq!(counted, 2 * ROUNDS as u64 + 1);
    assert!(of_words.iter().any(|of| of.takeovers > 0));
    let mut cursor = trace.cursor(ThreadId(0));
    let found = std::iter::from_fn(|| cursor.next().expect("is sound"))
        .find(|event| event.kind() == EventKind::Atomic);
    assert_eq!(found.expect("the first one").value, FOUND);
    let mut script = engine.script();
    let mut steps = script.values_mut();
    let store = steps.find(|step| matches!(step, Step::Store { word: 0, .. })).expect("the first");
    let Step::Store { address, .. } = *store else { unreachable!("it is one") };
    // The other thread was early.
    *store = Step::Store { address, word: FOUND as u32 };
    *steps.next().expect("the second") = Step::Exchange { work: 0, address, word: 1 };
    let replaying = Arc::new(Scripted::new(script, 7));
    let outcome = replay(&trace, replaying, ReplayOptions::default()).expect("can be replayed");
    assert_eq!(outcome.divergence, None);
    assert_eq!(outcome.events, trace.events());
}
