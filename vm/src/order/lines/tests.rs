//! Whose lines are.

use super::*;
use crate::order::filter::{LINE, Table};
use std::sync::atomic::{AtomicU8, AtomicU64};

/// The tables of a thread that executes nothing.
struct Thread {
    filter: Filter,
    _tables: [Box<[AtomicU8]>; 5],
    _counts: Box<(AtomicU64, AtomicU8)>,
}

impl Thread {
    fn new() -> Thread {
        // The system's zero pages, most of which nobody touches.
        let table = || -> Box<[AtomicU8]> {
            let zeros = vec![0_u8; ENTRIES].into_boxed_slice();
            // SAFETY: an atomic byte has the layout of a byte.
            unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [AtomicU8]) }
        };
        let (tables, counts) = ([(); 5].map(|()| table()), Box::default());
        let (count, window): &(AtomicU64, AtomicU8) = &counts;
        let [readable, writable] = [0, 2]
            .map(|at: usize| Table { lines: tables[at].as_ptr(), pairs: tables[at + 1].as_ptr() });
        let filter = Filter { count, window, readable, writable, kept: tables[4].as_ptr() };
        Thread { filter, _tables: tables, _counts: counts }
    }
}

const A: ThreadId = ThreadId(0);
const B: ThreadId = ThreadId(1);

fn span(start: u64, len: u64, write: bool) -> Span {
    Span { start, len, write }
}

/// Nobody's lines, unless the kernel lacks what they need.
fn lines() -> Option<Lines> {
    Lines::new(Order::Stride).inspect_err(|error| eprintln!("SKIPPED: {error}")).ok()
}

#[test]
fn states_are_packed_and_unpacked() {
    let (owner, writer) = (ThreadId(77), ThreadId(1 << 20));
    for state in [
        State::Unowned,
        State::Owned { owner, taken: 0 },
        State::Owned { owner: writer, taken: PATIENCE },
        State::Shared { writer, taken: PATIENCE },
        State::Contended,
    ] {
        assert_eq!(State::unpack(state.pack()), state);
    }
    assert_eq!(State::Unowned.pack(), 0, "what is mapped anew is nobody's");
}

#[test]
fn the_lines_of_a_span() {
    let lines = |start, len| span(start, len, false).lines().collect::<Vec<_>>();
    assert_eq!(lines(0x1000, 0), []);
    assert_eq!(lines(0x103f, 1), [0x1000]);
    assert_eq!(lines(0x103f, 2), [0x1000, 0x1040]);
    assert_eq!(lines(0x1040, 129), [0x1040, 0x1080, 0x10c0]);
}

#[test]
fn who_comes_first_has_the_line() {
    let Some(lines) = lines() else { return };
    let (threads, mut claims) = ([Thread::new(), Thread::new()], Claims::default());
    let mine = &threads[0].filter;
    assert!(!mine.permits(span(0x5000, 8, true)));
    let quick = lines.quick(A, mine, span(0x5000, 8, true), &mut claims);
    assert!(matches!(quick, Quick::Mine), "{quick:?}");
    assert!(mine.permits(span(0x5000, 8, true)));
    let quick = lines.quick(B, &threads[1].filter, span(0x5000, 8, false), &mut claims);
    assert!(matches!(quick, Quick::Others), "{quick:?}");
    assert!(!threads[1].filter.permits(span(0x5000, 8, false)));
}

#[test]
fn one_line_after_the_other_brings_more() {
    let Some(lines) = lines() else { return };
    let (thread, mut claims) = (Thread::new(), Claims::default());
    for line in 0..4 {
        let span = span(0x8000 + line * LINE, 8, true);
        assert!(matches!(lines.quick(A, &thread.filter, span, &mut claims), Quick::Mine));
    }
    assert!(thread.filter.permits(span(0x8000, 5 * LINE, true)), "the fifth came with others");
}

/// Threads that go through a buffer of 200 lines in turns, by one line after the other.
#[test]
fn what_follows_comes_with_a_line() {
    const LINES: u64 = 200;
    let Some(lines) = lines() else { return };
    let (threads, mut claims) = ([Thread::new(), Thread::new()], Claims::default());
    let filters = [Some(threads[0].filter), Some(threads[1].filter)];
    let mut runs = [Runs::default(), Runs::default()];
    let (tickets, buffer) = (Tickets::new(), || (0..LINES).map(|line| 0x9000 + line * LINE));
    for line in buffer() {
        let span = span(line, 8, true);
        assert!(matches!(lines.quick(A, &threads[0].filter, span, &mut claims), Quick::Mine));
    }
    for round in 0..30 {
        let me = [B, A][round % 2];
        let (mine, other) = (threads[me.index()].filter, threads[1 - me.index()].filter);
        let mut takeovers = 0;
        for line in buffer() {
            let span = span(line, 8, round % 3 > 0);
            if mine.permits(span) {
                continue;
            }
            let mut acquired = Acquired::default();
            let mut taking = Taking::new(&lines, &filters, (me, &mut runs[me.index()]));
            taking.span(&mine, span, &mut acquired, &tickets);
            takeovers += usize::from(!taking.losses.is_empty());
            assert!(taking.losses.iter().all(|loss| loss.thread != me));
            taking.becoming.iter().for_each(|&line| lines.states.set(line, State::Contended));
            let is_either = mine.permits(span) || !acquired.contended.is_empty();
            assert!(is_either && !(span.write && other.permits(span)), "{round} {line:#x}");
        }
        assert!(takeovers < 20, "{takeovers} in round {round}");
    }
    let contended = buffer().filter(|&line| lines.states.get(index(line)) == State::Contended);
    assert!(contended.count() < 20);
}

#[test]
fn a_line_is_calm_when_one_thread_alone_has_its_turns() {
    let (mut calm, line) = (Calms::default(), 0x9000);
    for ticket in 100..100 + u64::from(CALM) {
        assert_eq!(calm.wish(line, ticket, false), None);
        calm.turn(line, ticket, false);
        // Turns of another line do not end this one's.
        calm.turn(line + LINE, 7 * ticket, true);
    }
    let next = 100 + u64::from(CALM);
    assert_eq!(calm.wish(line, next, false), Some(Wish { line, write: false }));
    assert_eq!(calm.wish(line, next, true), Some(Wish { line, write: true }));
    assert_eq!(calm.wish(line, next + 1, false), None, "somebody else has had a turn");
    assert_eq!(calm.wish(line + LINE, next, false), None);
}

#[test]
fn pages_that_were_accessed() {
    let Some(lines) = lines() else { return };
    const PAGE: u64 = 4096;
    let start = 0x2000_0000_0000;
    let all = start..start + 64 * PAGE;
    assert_eq!(lines.accessed(A, &all), []);
    assert!(lines.states.claim(index(start + 3 * PAGE + LINE), A));
    assert!(lines.states.claim(index(start + 4 * PAGE), B));
    let far = start + 40 * PAGE;
    (far..far + PAGE).step_by(LINE as usize).for_each(|line| {
        assert!(lines.states.claim(index(line), A));
    });
    let both = start + 3 * PAGE..start + 5 * PAGE;
    assert_eq!(lines.accessed(A, &all), std::slice::from_ref(&both), "the other page is A's alone");
    assert_eq!(lines.accessed(B, &all), [both, far..far + PAGE]);
    assert_eq!(lines.accessed(B, &(start..start + PAGE)), []);
}

impl Thread {
    fn keeps(&self, address: u64) -> bool {
        self._tables[4][index(address)].load(Ordering::Relaxed) != 0
    }
}

/// One thread keeps code; it is written by the thread itself, read by another one, written by that.
#[test]
fn who_keeps_code_hears_of_what_is_written() {
    let Some(lines) = lines() else { return };
    let (threads, mut claims) = ([Thread::new(), Thread::new()], Claims::default());
    let filters = [Some(threads[0].filter), Some(threads[1].filter)];
    let (mine, tickets) = (&threads[0].filter, Tickets::new());
    let code = |write| span(0x5000, 8, write);
    lines.keep_code(mine, &[code(false)]);
    assert!(!threads[0].keeps(0x5000), "it may not read it");
    let mut quick = |write| matches!(lines.quick(A, mine, code(write), &mut claims), Quick::Mine);
    assert!(quick(true));
    lines.keep_code(mine, &[code(false)]);
    assert!(threads[0].keeps(0x5000) && mine.permits(code(false)) && !mine.permits(code(true)));
    assert!(quick(true) && mine.permits(code(true)) && !threads[0].keeps(0x5000));
    for write in [false, true] {
        lines.keep_code(mine, &[code(false)]);
        let (mut acquired, runs) = (Acquired::default(), &mut Runs::default());
        let mut taking = Taking::new(&lines, &filters, (B, runs));
        taking.span(&threads[1].filter, code(write), &mut acquired, &tickets);
        assert_eq!(threads[0].keeps(0x5000), !write, "the other one writes: {write}");
    }
}

#[test]
fn code_is_kept_until_it_is_written_at_whatever_address() {
    let Some(lines) = lines() else { return };
    let (thread, mut claims) = (Thread::new(), Claims::default());
    let (here, there) = (span(0x5000, 8, false), span(0x9000, 8, true));
    let mut aliases = Aliases::default();
    aliases.unite(index(0x5000), index(0x9000), 64);
    lines.aliases.store(Box::into_raw(Box::new(aliases)), Ordering::Release);
    let mut quick = |span| matches!(lines.quick(A, &thread.filter, span, &mut claims), Quick::Mine);
    assert!(quick(there) && quick(here));
    lines.keep_code(&thread.filter, &[here]);
    assert!(thread.keeps(0x5000) && !thread.filter.permits(there));
    assert!(quick(there) && !thread.keeps(0x5000));
}

#[test]
fn code_is_given_up_where_memory_changes() {
    let Some(lines) = lines() else { return };
    let thread = Thread::new();
    let kept = |at: &u64| thread.keeps(*at);
    let all = [0x4fc0, 0x5000, 0x5040, 0x6000].map(|at| at + crate::layout::MAPPINGS.start);
    for at in all {
        thread.filter.permit(index(at), false);
        lines.keep_code(&thread.filter, &[span(at, 8, false)]);
    }
    assert!(all.iter().all(kept));
    lines.give_up_code(&thread.filter, &(all[1] + 8..all[2] + 1));
    assert_eq!(all.map(|at| kept(&at)), [true, false, false, true]);
    lines.give_up_code(&thread.filter, &(0..u64::MAX));
    assert!(!all.iter().any(kept));
}
