//! Calls that are logged: what they are given, what they answer, and when they end.

mod logs;
mod programs;

use iced_x86::code_asm::*;
use logs::*;
use programs::*;
use refrain_jit::MIN_ACCESSES;
use refrain_trace::{Access, CodeBlock};
use refrain_vm::{
    Answer, Cpu, EngineConfig, EpochWords, LeaveOut, List, Nested, SameEpoch, Seen, SeenWords,
};
use std::sync::Arc;

/// What executes the program: copies, or compiled code.
fn executor(copied: bool, config: EngineConfig, blocks: &[CodeBlock]) -> Box<dyn Cpu> {
    if copied { copies(config) } else { cpu(&config, blocks, &[]) }
}

/// The calls of functions that were named, but those within: what they are given and what they answer,
/// in rax or where the first argument says.
#[test]
fn named_functions_tell_their_arguments_and_answers() {
    let _one = memory();
    program(|a| {
        let (mut outer, mut inner, mut tail) =
            (a.create_label(), a.create_label(), a.create_label());
        let mut over = a.create_label();
        a.jmp(over)?;
        a.set_label(&mut outer)?; // outer: calls inner, and ends in tail
        a.push(rdi)?;
        a.call(inner)?;
        a.pop(rdi)?;
        a.jmp(tail)?;
        a.set_label(&mut inner)?;
        a.lea(rax, ptr(rdi + 1))?;
        a.ret()?;
        a.set_label(&mut tail)?;
        a.add(rax, rsi)?;
        a.mov(qword_ptr(rbx), rdx)?;
        a.ret()?;
        a.set_label(&mut over)?;
        for n in 1..=3u64 {
            a.mov(rdi, n * 100)?;
            a.mov(rsi, n * 10)?;
            a.mov(rdx, n)?;
            a.call(outer)?;
        }
        a.call(inner)?;
        a.mov(rdi, rbx)?;
        a.xor(esi, esi)?;
        a.call(tail)?;
        a.mov(rdi, rbx)?;
        a.xor(eax, eax)?;
        a.call(tail)?;
        a.syscall()
    });
    let (exit, expected, blocks) = record(start());
    let code = |pattern: &[u8]| find_code(&blocks, pattern);
    let (outer, inner) = (code(&[0x57, 0xe8]), code(&[0x48, 0x8d, 0x47, 0x01]));
    let tail = code(&[0x48, 0x01, 0xf0]);
    let engines = [false, true];
    let all = [LeaveOut::Nothing, LeaveOut::Touched, LeaveOut::SameEpoch];
    for (leave_out, copied) in all.into_iter().flat_map(|it| engines.map(|copied| (it, copied))) {
        let touched = leave_out == LeaveOut::Touched;
        let _seen = touched.then(|| Seen::new().expect("there is room for notes"));
        let notes = SameEpoch::new([]);
        // The first call of one may begin an epoch: what comes then is logged, noted or not.
        (DATA..DATA + 64).step_by(8).for_each(|address| note_word(&notes, address));
        let functions =
            [(outer, Answer::Register), (inner, Answer::Register), (tail, Answer::Memory)];
        let functions = Arc::new(functions.into());
        let config =
            EngineConfig { accesses: true, leave_out, functions, ..EngineConfig::default() };
        let mut executor = executor(copied, config, &blocks);
        let mut context = start();
        context.same_epoch = EpochWords { notes: Arc::as_ptr(&notes) as u64, epoch: notes.epoch() };
        context.seen = SeenWords::new(None, true);
        let (actual, log) = run_logged(&mut *executor, &mut context, MIN_ACCESSES);
        assert_eq!(actual, exit);
        assert_same(&expected, &context);
        let of = |kinds: u16| log.iter().filter(move |it| it.kind & kinds != 0);
        let told: Vec<u64> = of(Access::CALLED | Access::ANSWERED).map(|it| it.address).collect();
        // The last two answer in memory: the first of them returns something, which is a failure.
        assert_eq!(told, [100, 111, 200, 221, 300, 331, 300, 301, DATA, 0, DATA, 3]);
        let arguments: Vec<u64> = of(Access::ARGUMENT).map(|it| it.address).collect();
        assert_eq!(arguments.len(), 6 * 3);
        assert_eq!(arguments[..2], [10, 1]);
        let called = |n: usize| of(Access::CALLED).nth(n).map(|it| u64::from(it.pc));
        assert_eq!([0, 3, 4].map(called), [outer, inner, tail].map(Some));
        assert_eq!(log.iter().filter(|it| it.address == DATA && it.size == 8).count(), 5);
    }
}

/// Calls of functions, and by instructions, that are within each other, with what lists hold.
#[test]
fn nested_calls_tell_what_they_are_given_and_when_they_end() {
    let _one = memory();
    let (counted, records) = (DATA + 0x100, DATA + 0x200);
    data(counted, &[2u64, 1, 70, 71].map(u64::to_le_bytes).concat());
    data(records, &[80u64, 81, 82, 83].map(u64::to_le_bytes).concat());
    program(|a| {
        let (mut outer, mut body, mut over) =
            (a.create_label(), a.create_label(), a.create_label());
        a.jmp(over)?;
        a.set_label(&mut outer)?; // outer: has the first argument executed, but for the last time
        a.push(rdi)?;
        a.test(rdi, rdi)?;
        let mut none = a.create_label();
        a.je(none)?;
        a.call(rdi)?;
        a.set_label(&mut none)?;
        a.pop(rdi)?;
        a.ret()?;
        a.set_label(&mut body)?; // body: outer once more
        a.xor(edi, edi)?;
        a.mov(rsi, records)?;
        a.mov(edx, 1)?;
        a.call(outer)?;
        a.mov(eax, 9)?;
        a.ret()?;
        a.set_label(&mut over)?;
        a.lea(rdi, ptr(body))?;
        a.mov(rsi, counted)?;
        a.mov(edx, 0)?;
        a.call(outer)?;
        a.syscall()
    });
    let (exit, expected, blocks) = record(start());
    let code = |pattern: &[u8]| find_code(&blocks, pattern);
    let (outer, body) = (code(&[0x57, 0x48, 0x85, 0xff]), code(&[0x31, 0xff, 0x48, 0xbe]));
    let site = code(&[0xff, 0xd7]);
    let here = site..site + 1;
    let all = [LeaveOut::Nothing, LeaveOut::SameEpoch];
    let engines = [false, true];
    for (leave_out, copied) in all.into_iter().flat_map(|it| engines.map(|copied| (it, copied))) {
        for list in [None, Some(List::Counted(1)), Some(List::Records(1, 2))] {
            for range in [here.clone(), body..body + 1] {
                let nested = [
                    (outer, Nested::Function(list)),
                    (site, Nested::Site(range.clone())),
                    (body, Nested::Site(0..0)),
                ];
                let config = EngineConfig {
                    accesses: true,
                    leave_out,
                    nested: Arc::new(nested.into()),
                    ..EngineConfig::default()
                };
                let notes = SameEpoch::new([]);
                let mut context = start();
                context.same_epoch =
                    EpochWords { notes: Arc::as_ptr(&notes) as u64, epoch: notes.epoch() };
                let mut executor = executor(copied, config, &blocks);
                let (actual, log) = run_logged(&mut *executor, &mut context, MIN_ACCESSES);
                assert_eq!(actual, exit);
                assert_same(&expected, &context);
                let kinds = Access::ENTERED | Access::GIVEN | Access::LEFT;
                let told: Vec<&Access> = log.iter().filter(|it| it.kind & kinds != 0).collect();
                let mut at = 0;
                let mut next = |kind: u16| {
                    let record = told[at];
                    assert_eq!(record.kind, kind, "{at} of {told:?}");
                    at += 1;
                    record.address
                };
                let enter = |next: &mut dyn FnMut(u16) -> u64| {
                    let mut given = vec![next(Access::ENTERED)];
                    given.extend((0..10).map(|_| next(Access::GIVEN)));
                    let words: Vec<u64> = (0..given[10]).map(|_| next(Access::GIVEN)).collect();
                    (given, words)
                };
                let (given, words) = enter(&mut next);
                assert_eq!((given[0], given[1], given[2]), (body, counted, 0));
                let slot = given[8];
                assert_eq!(given[9], outer);
                assert_eq!(
                    words,
                    if list == Some(List::Counted(1)) { vec![2, 1, 70, 71] } else { vec![] }
                );
                let is_told = range == here;
                if is_told {
                    let (given, _) = enter(&mut next);
                    // Behind what was pushed, and the return address.
                    assert_eq!((given[0], given[8], given[9]), (body, slot - 16, body));
                    assert_eq!(given[6], body, "the first word on its stack");
                }
                let (given, words) = enter(&mut next);
                assert_eq!((given[0], given[8]), (0, slot - 24));
                let first = [80, 81, 82, 83].into_iter();
                let expected: Vec<u64> = match list {
                    None => Vec::new(),
                    // 80 words behind the first two: too many.
                    Some(List::Counted(_)) => {
                        assert_eq!(words.len(), List::LONGEST as usize);
                        first.collect()
                    }
                    Some(List::Records(..)) => first.take(3).collect(),
                };
                assert_eq!(words[..expected.len()], expected);
                next(Access::LEFT);
                if is_told {
                    assert_eq!(next(Access::LEFT), 9);
                }
                assert_eq!(next(Access::LEFT), 9);
                assert_eq!(at, told.len());
            }
        }
    }
}
