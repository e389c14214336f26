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

/// Runs the program with notes of what its thread has accessed in its epoch.
pub(crate) fn check_epochs(before: &[u8], blocks: &[CodeBlock], log: &[Access]) {
    let leave_out = LeaveOut::SameEpoch;
    let config = EngineConfig { accesses: true, leave_out, calls: true, ..EngineConfig::default() };
    let mut cpu = cpu(&config, blocks, &[]);
    let mut logged = |notes: &SameEpoch| {
        data(DATA, before);
        let mut context = start();
        context.same_epoch =
            EpochWords { notes: std::ptr::from_ref(notes) as u64, epoch: notes.epoch() };
        run_logged(&mut *cpu, &mut context, MIN_ACCESSES).1
    };
    // Every third access of the program is noted, and with it what lies in the same bytes.
    let noted = |words: &[u64]| {
        let notes = SameEpoch::new(words.iter().copied());
        for access in log.iter().step_by(3) {
            let writes = access.kind & Access::WRITE != 0;
            let bytes = access.address..access.address + u64::from(access.size);
            bytes.for_each(|byte| notes.note(byte / 8, 1 << (byte % 8), writes));
        }
        notes
    };
    let is_known = |notes: &SameEpoch, access: &Access| {
        let writes = access.kind & Access::WRITE != 0;
        let mut bytes = access.address..access.address + u64::from(access.size);
        access.size > 0 && bytes.all(|byte| notes.knows(byte / 8, 1 << (byte % 8), writes))
    };
    assert_eq!(logged(&SameEpoch::new([])), log);
    // What is left out is known. What has to be logged is.
    let notes = noted(&[]);
    let rest = logged(&notes);
    let mut logged_of = rest.iter().peekable();
    for access in log {
        if logged_of.next_if_eq(&access).is_none() {
            assert!(is_known(&notes, access), "{access:?} is not known");
        }
    }
    assert_eq!(logged_of.next(), None, "what is logged was accessed, in this order");
    let few = |it: &Access| matches!(it.size, 1 | 2 | 4 | 8 | 16 | 32);
    let in_one = |it: &Access| it.address / 512 == (it.address + u64::from(it.size) - 1) / 512;
    let known = log.iter().filter(|it| is_known(&notes, it) && few(it) && in_one(it)).count();
    // Strings are logged in pieces, in any case.
    assert!(log.len() - rest.len() >= known / 2, "{known} known, {} logged", rest.len());
    // From the first store to a word that synchronizes on, everything is.
    let writes = |it: &&Access| it.kind & Access::WRITE != 0;
    let stores: Vec<&Access> = log.iter().filter(writes).collect();
    if let Some(store) = stores.get(stores.len() / 2) {
        // The detector does not note such a word.
        let notes = SameEpoch::new([store.address]);
        let rest = logged(&notes);
        assert_eq!(rest, log);
        let reads = log.iter().filter(|it| it.kind == Access::READ && it.size == 8);
        reads.for_each(|it| notes.note(it.address / 8, 0xff, false));
        let at = log.iter().position(|it| it == *store).expect("it is one of them");
        let rest = logged(&notes);
        assert!(rest.ends_with(&log[at..]), "{} of {}", rest.len(), log.len());
    }
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
