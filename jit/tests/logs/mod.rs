//! Logs of accesses, and what notes leave out of them.
#![allow(dead_code, reason = "each test uses some of it")]

use crate::programs::*;
use refrain_jit::MIN_ACCESSES;
use refrain_trace::{Access, CodeBlock};
use refrain_vm::{
    Context, Count, Cpu, EngineConfig, EpochWords, Exit, LeaveOut, Mode, SameEpoch, Seen, SeenWords,
};
use std::collections::BTreeSet;

/// What notes leave of a log, for a thread that has not logged anything so far.
pub(crate) fn without_repetitions(log: &[Access]) -> Vec<Access> {
    let mut seen = BTreeSet::new();
    let wanted = log.iter().filter(|access| {
        let noted = matches!(access.size, 1 | 2 | 4 | 8 | 16);
        let bytes = access.address..access.address + u64::from(access.size);
        !noted || bytes.filter(|&byte| seen.insert(byte)).count() > 0
    });
    wanted.copied().collect()
}

/// What an engine is asked for that logs with notes.
pub(crate) fn with_notes() -> EngineConfig {
    let leave_out = LeaveOut::Touched;
    EngineConfig { accesses: true, leave_out, calls: true, ..EngineConfig::default() }
}

/// An executor of copies.
pub(crate) fn copies(config: EngineConfig) -> Box<dyn Cpu> {
    let engine = refrain_jit::copy(config).expect("the copy engine works here");
    engine.attach().expect("attaches")
}

/// Runs the program on copies that log: they end, and log, as Cranelift's code did. Returns their log.
pub(crate) fn check_copies(
    before: &[u8],
    expected: (&Exit, &Context),
    log: &[Access],
) -> Vec<Access> {
    let count = Count::Instructions;
    let config = EngineConfig { accesses: true, calls: true, count, ..EngineConfig::default() };
    data(DATA, before);
    let mut context = start();
    let (exit, copied) = run_logged(&mut *copies(config), &mut context, MIN_ACCESSES);
    assert_eq!(&exit, expected.0);
    assert_same(expected.1, &context);
    assert_eq!(in_one_form(&copied), in_one_form(log));
    copied
}

/// A log in the form that does not depend on the engine: what is read and written is read, then
/// written, and what strings access is not told in pieces.
fn in_one_form(log: &[Access]) -> Vec<Access> {
    const LARGEST: u16 = 64;
    let both = Access::READ | Access::WRITE;
    let kinds =
        |kind: u16| if kind == both { vec![Access::READ, Access::WRITE] } else { vec![kind] };
    let split = |access: &Access| {
        let access = *access;
        kinds(access.kind).into_iter().map(move |kind| Access { kind, ..access })
    };
    let split: Vec<Access> = log.iter().flat_map(split).collect();
    let mut whole: Vec<Access> = Vec::new();
    for access in split {
        let is_string = access.size > LARGEST;
        let goes_on = |it: &&mut Access| {
            let ends = it.address + u64::from(it.size);
            (it.pc, it.kind, ends) == (access.pc, access.kind, access.address)
        };
        match whole.iter_mut().rev().take(2).find(goes_on).filter(|_| is_string) {
            Some(it) => it.size = it.size.saturating_add(access.size),
            None => whole.push(access),
        }
    }
    whole
}

/// Runs the program with notes, as several threads one after the other.
/// `notes` says whether those that log repetitions note what they log.
pub(crate) fn check_notes(cpu: &mut dyn Cpu, before: &[u8], log: &[Access], notes: bool) {
    let _seen = Seen::new().expect("there is room for notes");
    let mut logged = |bit, repeats| {
        data(DATA, before);
        let mut context = start();
        context.seen = SeenWords::new(bit, repeats);
        run_logged(&mut *cpu, &mut context, MIN_ACCESSES).1
    };
    let fewer = without_repetitions(log);
    let unnoted: Vec<_> =
        log.iter().filter(|a| !matches!(a.size, 1 | 2 | 4 | 8 | 16)).copied().collect();
    assert_eq!(logged(None, false), log);
    assert_eq!(logged(Some(1), false), fewer);
    assert_eq!(logged(Some(1), false), unnoted);
    assert_eq!(logged(Some(2), true), log);
    if !notes {
        assert_eq!(logged(Some(2), false), fewer);
    }
    assert_eq!(logged(Some(2), false), unnoted);
    assert_eq!(logged(Some(64), false), fewer);
    assert_eq!(logged(Some(1), true), log);
}

/// Runs the program with notes of what its thread has accessed in its epoch: those that are made as it
/// runs, those of a run before, and those of some accesses alone.
pub(crate) fn check_epochs(before: &[u8], blocks: &[CodeBlock], log: &[Access]) {
    let leave_out = LeaveOut::SameEpoch;
    let config = EngineConfig { accesses: true, leave_out, calls: true, ..EngineConfig::default() };
    let mut cpu = cpu(&config, blocks, &[]);
    let mut check = |words: &[u64], noted: usize| {
        let [notes, expected] = [(); 2].map(|()| SameEpoch::new(words.iter().copied()));
        for access in log.iter().filter(|it| is_access(it)).step_by(noted) {
            for notes in [&notes, &expected] {
                let _ = notes.note(access);
            }
        }
        for _ in 0..3 {
            data(DATA, before);
            let mut context = start();
            let address = std::ptr::from_ref(&*notes) as u64;
            context.same_epoch = EpochWords { notes: address, epoch: notes.epoch() };
            let (_, logged) = run_logged(&mut *cpu, &mut context, MIN_ACCESSES);
            assert_eq!(logged, new_in_epoch(&expected, blocks, log));
        }
    };
    check(&[], usize::MAX);
    check(&[], 3);
    let stores: Vec<_> = log.iter().filter(|it| it.kind & Access::WRITE != 0).collect();
    if let Some(store) = stores.get(stores.len() / 2) {
        check(&[store.address], usize::MAX);
        check(&[store.address], 1);
    }
}

/// What is logged beside these notes, which then are as after the program.
fn new_in_epoch(notes: &SameEpoch, blocks: &[CodeBlock], log: &[Access]) -> Vec<Access> {
    let mut is_on = true;
    let mut is_logged = |access: &&Access| {
        let is_known = is_access(access) && is_on && notes.knows(access);
        if !is_access(access) || is_known && !is_repeated(blocks, access) {
            return !is_access(access);
        }
        // Repeated strings are logged in pieces, in any case.
        is_on = match is_repeated(blocks, access) {
            true => is_on && access.kind & Access::WRITE == 0,
            false => is_on && notes.note(access).is_some(),
        };
        true
    };
    log.iter().filter(|it| is_logged(it)).copied().collect()
}

fn is_access(record: &Access) -> bool {
    record.kind & !Access::ATOMIC == 0
}

fn is_repeated(blocks: &[CodeBlock], access: &Access) -> bool {
    let pc = u64::from(access.pc);
    blocks.iter().any(|block| {
        let code = pc.checked_sub(block.pc).and_then(|at| block.code.get(at as usize..));
        let decoded = code.map(|code| iced_x86::Decoder::with_ip(64, code, pc, 0).decode());
        decoded.is_some_and(|i| {
            i.is_string_instruction() && (i.has_rep_prefix() || i.has_repne_prefix())
        })
    })
}

/// The eight bytes at an address are noted as written.
pub(crate) fn note_word(notes: &SameEpoch, address: u64) {
    let access = Access { address, size: 8, kind: Access::WRITE, ..Access::default() };
    assert!(notes.note(&access).is_some(), "no word synchronizes");
}

/// Runs to an exit other than a full buffer, and collects the log.
pub(crate) fn run_logged(
    cpu: &mut dyn Cpu,
    context: &mut Context,
    room: usize,
) -> (Exit, Vec<Access>) {
    let mut buffer = vec![Access::default(); room];
    let mut log = Vec::new();
    loop {
        context.access_cursor = buffer.as_mut_ptr() as u64;
        context.access_limit = context.access_cursor + 16 * room as u64;
        let exit = cpu.run(context, Mode::Observed);
        let used = (context.access_cursor - buffer.as_ptr() as u64) as usize / 16;
        log.extend_from_slice(&buffer[..used]);
        if exit != Exit::AccessesFull {
            return (exit, log);
        }
    }
}
