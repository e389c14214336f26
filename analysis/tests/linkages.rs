//! Linkages of generated recordings, held against what really was read, and against all interleavings.

use proptest::prelude::*;
use refrain_analysis::linkages::{Linkage, Stores, Writer};
use refrain_trace::{Event, EventId, EventKind, ThreadId, order, own_store};
use std::collections::BTreeSet;

const WORDS: [u64; 2] = [0x1000, 0x2000];

/// What a thread does: loads a word, or stores a value to it.
#[derive(Clone, Copy, Debug)]
enum Op {
    Load { word: usize },
    Store { word: usize, value: u64 },
}

/// An operation as it was recorded.
#[derive(Clone, Copy, Debug)]
struct Done {
    event: Event,
    word: usize,
    /// The store that a load read: thread and number.
    read: Option<(usize, usize)>,
}

/// Runs the threads in this order of steps. The bound of a load is read in the step behind it.
fn run(threads: &[Vec<Op>], order: &[usize], one_slot: bool) -> Vec<Vec<Done>> {
    let mut memory = [0; 2];
    let mut writers: [Option<(usize, usize)>; 2] = [None; 2];
    let mut tickets = [0; 2];
    let mut done: Vec<Vec<Done>> = vec![Vec::new(); threads.len()];
    let mut bounding = vec![false; threads.len()];
    let finishing = (0..threads.len()).cycle().take(32 * threads.len());
    let turns = order.iter().map(|turn| turn % threads.len()).chain(finishing);
    for (time, thread) in turns.enumerate() {
        if std::mem::take(&mut bounding[thread]) {
            let last = done[thread].last_mut().expect("it has loaded");
            last.event.ticket = tickets[if one_slot { 0 } else { last.word }];
            continue;
        }
        let number = done[thread].len();
        let Some(&op) = threads[thread].get(number) else { continue };
        let (Op::Load { word } | Op::Store { word, .. }) = op;
        let mut event = Event {
            object: WORDS[word],
            nr: 8,
            pc: (thread * 100 + number) as u64,
            value: memory[word],
            begin: time as u64,
            end: time as u64,
            ..Event::default()
        };
        let mut read = None;
        match op {
            Op::Load { .. } => {
                event.code = EventKind::SyncLoad as u8;
                read = writers[word];
                bounding[thread] = true;
            }
            Op::Store { value, .. } => {
                event.code = EventKind::SyncStore as u8;
                let slot = &mut tickets[if one_slot { 0 } else { word }];
                event.ticket = *slot;
                *slot += 1;
                memory[word] = value;
                writers[word] = Some((thread, number));
            }
        }
        done[thread].push(Done { event, word, read });
    }
    done
}

/// The linkages of all loads, by thread.
fn link(done: &[Vec<Done>]) -> Vec<Vec<Option<Linkage>>> {
    let events = || {
        done.iter().enumerate().flat_map(|(thread, all)| {
            let thread = ThreadId(thread as u32);
            all.iter().enumerate().map(move |(id, done)| (thread, EventId(id as u64), done.event))
        })
    };
    let mut stores = Stores::default();
    events().for_each(|(thread, id, event)| stores.add(thread, id, &event));
    let mut loads = stores.complete();
    events().for_each(|(_, _, event)| loads.look(&event));
    let linker = loads.complete();
    let of = |thread: usize| {
        let mut linker = linker.thread(ThreadId(thread as u32));
        let all = done[thread].iter().enumerate();
        all.map(|(id, done)| linker.event(EventId(id as u64), &done.event)).collect()
    };
    (0..done.len()).map(of).collect()
}

fn store_of(linkage: Linkage) -> Option<(usize, usize)> {
    match linkage.writer {
        Writer::Store { thread, event, pc } => {
            assert_eq!(pc, u64::from(thread.0) * 100 + event.0);
            Some((thread.index(), event.0 as usize))
        }
        // Of a word that nobody stores to, too.
        Writer::Initial | Writer::Unwatched => None,
        other => panic!("every store is watched, but a load is linked to {other:?}"),
    }
}

/// Whether there is an interleaving of the threads in which stores of a slot come in the order of
/// their tickets, and every load reads the store that it is linked to, within its bound.
fn can_have_been(
    done: &[Vec<Done>],
    links: &[Vec<Option<Linkage>>],
    one_slot: bool,
    at: &[usize],
    tried: &mut BTreeSet<Vec<usize>>,
) -> bool {
    if at.iter().zip(done).all(|(&at, all)| at == all.len()) {
        return true;
    }
    if !tried.insert(at.to_vec()) {
        return false;
    }
    let stored = || {
        let so_far = at.iter().zip(done).enumerate();
        so_far.flat_map(|(thread, (&at, all))| {
            all[..at].iter().enumerate().map(move |(number, done)| ((thread, number), *done))
        })
    };
    let is_store = |done: &Done| done.event.code == EventKind::SyncStore as u8;
    for thread in 0..done.len() {
        let Some(next) = done[thread].get(at[thread]) else { continue };
        let in_slot = |other: &Done| is_store(other) && (one_slot || other.word == next.word);
        let tickets = stored().filter(|(_, other)| in_slot(other)).count() as u64;
        let goes = match links[thread][at[thread]] {
            None => next.event.ticket == tickets,
            Some(linkage) => {
                let of_word = stored().filter(|(_, o)| is_store(o) && o.word == next.word);
                let last = of_word.max_by_key(|(_, other)| other.event.ticket).map(|it| it.0);
                tickets <= next.event.ticket && last == store_of(linkage)
            }
        };
        if goes {
            let mut then = at.to_vec();
            then[thread] += 1;
            if can_have_been(done, links, one_slot, &then, tried) {
                return true;
            }
        }
    }
    false
}

fn ops(values: u64) -> impl Strategy<Value = Vec<Vec<Op>>> {
    let word = 0..WORDS.len();
    let op = prop_oneof![
        word.clone().prop_map(|word| Op::Load { word }),
        (word, 0..values).prop_map(|(word, value)| Op::Store { word, value }),
    ];
    prop::collection::vec(prop::collection::vec(op, 1..5), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn linkages_can_have_been(
        threads in ops(3),
        order in prop::collection::vec(0..3_usize, 0..24),
        one_slot: bool,
    ) {
        let done = run(&threads, &order, one_slot);
        let links = link(&done);
        let at = vec![0; done.len()];
        prop_assert!(
            can_have_been(&done, &links, one_slot, &at, &mut BTreeSet::new()),
            "{done:?} {links:?}"
        );
    }

    /// Where no two stores write the same, there is only one that a load can have read.
    #[test]
    fn values_that_tell(
        threads in ops(1),
        order in prop::collection::vec(0..3_usize, 0..24),
        one_slot: bool,
    ) {
        let mut threads = threads;
        let mut next = 0;
        for op in threads.iter_mut().flatten() {
            if let Op::Store { value, .. } = op {
                next += 1;
                *value = next;
            }
        }
        // Somebody finds what the last stores wrote.
        let mut done = run(&threads, &order, one_slot);
        let mut stores: Vec<_> = WORDS.iter().map(|_| Vec::new()).collect();
        for done in done.iter().flatten().filter(|it| it.event.code == EventKind::SyncStore as u8) {
            stores[done.word].push((done.event.ticket, done.event.pc));
        }
        for (word, stores) in stores.iter_mut().enumerate() {
            stores.sort_unstable();
            let Some(&(_, pc)) = stores.last() else { continue };
            let (thread, number) = (pc as usize / 100, pc as usize % 100);
            let Op::Store { value, .. } = threads[thread][number] else { continue };
            let event = Event {
                code: EventKind::SyncStore as u8,
                object: WORDS[word],
                nr: 8,
                pc: (done.len() * 100) as u64,
                value,
                ticket: u64::MAX,
                ..Event::default()
            };
            done.push(vec![Done { event, word, read: None }]);
        }
        let links = link(&done);
        for (done, link) in done.iter().flatten().zip(links.iter().flatten()) {
            if let Some(link) = link {
                prop_assert_eq!(store_of(*link), done.read);
            }
        }
    }
}

fn event(kind: EventKind, (address, size): (u64, u16), ticket: u64, value: u64) -> Event {
    Event { code: kind as u8, object: address, nr: size, ticket, value, ..Event::default() }
}

#[test]
fn what_nobody_watched() {
    use EventKind::{SyncLoad, SyncStore};
    let stores = [event(SyncStore, (0x1000, 4), 0, 0), event(SyncStore, (0x1000, 4), 1, 7)];
    let pieces = event(SyncStore, (0x2000, 8), 0, 0);
    let loads = [
        event(SyncLoad, (0x1000, 4), 1, 7),
        event(SyncLoad, (0x1000, 4), 1, 9),
        event(SyncLoad, (0x2004, 4), 1, 0),
        event(SyncLoad, (0x3000, 8), 0, 5),
    ];
    let mut all = Stores::default();
    for (id, store) in stores.iter().chain([&pieces]).enumerate() {
        all.add(ThreadId(0), EventId(id as u64), store);
    }
    let mut seen = all.complete();
    assert_eq!(seen.counts(), (2, 3));
    loads.iter().for_each(|load| seen.look(load));
    let linker = seen.complete();
    let mut thread = linker.thread(ThreadId(1));
    let writers: Vec<Writer> = loads
        .iter()
        .enumerate()
        .filter_map(|(id, load)| thread.event(EventId(id as u64), load))
        .map(|linkage| linkage.writer)
        .collect();
    let first = Writer::Store { thread: ThreadId(0), event: EventId(0), pc: 0 };
    assert_eq!(writers, [first, Writer::Unwatched, Writer::Mixed, Writer::Unwatched]);
}

/// A thread's first load of a word that another thread has owned.
#[test]
fn what_the_owner_left() {
    use EventKind::{SyncLoad, SyncStore, Takeover};
    let taken_over = |object| Event {
        code: Takeover as u8,
        object,
        value: own_store::encode(0x400, false).into(),
        ..Event::default()
    };
    let store = event(SyncStore, (0x1000, 4), 0, 5);
    let writers = |object, loads: &[Event]| {
        let mut stores = Stores::default();
        stores.add(ThreadId(0), EventId(0), &store);
        let mut seen = stores.complete();
        loads.iter().for_each(|load| seen.look(load));
        let linker = seen.complete();
        let mut thread = linker.thread(ThreadId(1));
        assert_eq!(thread.event(EventId(0), &taken_over(object)), None);
        let linked = loads.iter().filter_map(|load| thread.event(EventId(1), load));
        linked.map(|linkage| linkage.writer).collect::<Vec<_>>()
    };
    let owner = Writer::Owner { thread: Some(ThreadId(0)), pc: 0x400 };
    let of_owner = order::accesses_object(ThreadId(0));
    let load = |ticket, value| event(SyncLoad, (0x1000, 4), ticket, value);
    assert_eq!(writers(of_owner, &[load(0, 5), load(0, 6)]), [owner, Writer::Unwatched]);
    assert_eq!(writers(of_owner, &[load(0, 5), load(0, 5)]), [owner; 2], "a second look");
    let stored = Writer::Store { thread: ThreadId(0), event: EventId(0), pc: 0 };
    assert_eq!(writers(of_owner, &[load(1, 7)]), [stored], "a store has the value");
    let ended = Writer::Owner { thread: None, pc: 0x400 };
    assert_eq!(writers(order::ENDED_ACCESSES, &[load(0, 5)]), [ended]);
}
