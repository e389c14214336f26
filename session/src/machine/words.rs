//! The words that a program synchronizes through, by the events of its trace.

use refrain_analysis::Code;
use refrain_trace::fixed::{FixedMap, FixedSet};
use refrain_trace::{Event, EventKind, ThreadId, Trace, own_store};
use std::collections::BTreeSet;
use std::ops::Range;

/// A load and a store of one word, so many bytes of code apart, are an update of it.
const UPDATE: u64 = 64;

/// The words that the program synchronizes through, and those of them that it polls.
pub(super) struct Words {
    pub(super) all: Vec<u64>,
    pub(super) polled: BTreeSet<u64>,
    /// Words that are data like others, though stores to them were watched.
    pub(super) plain: BTreeSet<u64>,
    /// Words of which one thread alone has events, with that thread: nobody else acquires what is released
    /// through them.
    pub(super) of_one: FixedMap<u64, ThreadId>,
}

/// The words that the program synchronizes through: those of locked instructions and of watched stores,
/// and those that it polls. That a load is watched does not say that its word is one, but in `trusted`
/// code, or where a failed exchange is attempted again; nor that it is polled while the thread has a
/// mutex, which others need to change what is waited for (`while (!ready) pthread_cond_wait(...)`).
///
/// If there is `code`, a watched store says something of its word in `trusted` code, and where another
/// thread has a watched load of it that is not half of an update; two, if the store is half of one: a
/// recording watches what might be synchronization, which in code without optimisation much of the data
/// is. A store that is an update
/// without a lock prefix says nothing, but in `trusted` code. What `silent` code looks at is its own
/// business, and so is what other code looks at once on its own stack: there, other functions have had
/// variables, or will have.
pub(super) fn words(trace: &Trace, code: Option<&Code>) -> crate::Result<Words> {
    use EventKind::{Atomic, Common, OnceDone, OnceRun, SyncLoad, SyncStore, Takeover};
    let none = Code::default();
    let rules = code.unwrap_or(&none);
    let mut words = Vec::new();
    let mut polled = BTreeSet::new();
    let mut stored = Accessed::default();
    let mut updated = Accessed::default();
    let mut loaded = Accessed::default();
    let mut used = Accessed::default();
    // Words that their owners have stored to without an event, and by which instruction; loads of words.
    let (mut owned, mut loads) = (Vec::new(), FixedSet::default());
    for thread in (0..trace.threads()).map(ThreadId) {
        let mut cursor = trace.cursor(thread);
        let mut mutexes: u32 = 0;
        let (mut taken_over, mut takes_over) = (None, false);
        // The last event of each word: a load may be half of an update.
        let mut last: FixedMap<u64, Last> = FixedMap::default();
        while let Some(event) = cursor.next()? {
            if matches!(event.kind(), Atomic | OnceRun | OnceDone | SyncLoad | SyncStore | Common) {
                used.add(event.object & !3, thread);
                if takes_over {
                    used.add(event.object & !3, FORMER_OWNER);
                }
            }
            takes_over = event.kind() == Takeover;
            if takes_over {
                taken_over = own_store::decode(event.value);
            } else if let Some((pc, locked)) = taken_over.take() {
                // The owner has stored to the word without an event.
                if locked || is_in(&rules.trusted, pc) || code.is_none() {
                    words.push(event.object);
                } else if !rules.updates.contains(&pc) {
                    owned.push((event.object, pc));
                }
            }
            let synchronizes = match event.kind() {
                Atomic | OnceRun | OnceDone => true,
                SyncStore if is_in(&rules.trusted, event.pc) || code.is_none() => true,
                SyncStore => {
                    let before = last.insert(event.object, Last { pc: event.pc, loads: false });
                    let is_near = |it: &Last| is_half_of_update(it.pc, event.pc);
                    let is_update = before.as_ref().is_some_and(is_near);
                    if before.is_some_and(|before| before.loads && !is_update) {
                        loaded.add(event.object, thread);
                    }
                    if is_update {
                        updated.add(event.object, thread);
                    } else if !rules.updates.contains(&event.pc) {
                        stored.add(event.object, thread);
                    }
                    false
                }
                SyncLoad if is_in(&rules.silent, event.pc) => false,
                SyncLoad => {
                    let is_trusted = || is_in(&rules.trusted, event.pc) && !is_on_own_stack(&event);
                    let is_polled = (event.aux > 0 || event.result > 0) && mutexes == 0;
                    if is_polled {
                        polled.insert(event.object & !3);
                    }
                    let before = last.insert(event.object, Last { pc: event.pc, loads: true });
                    loads.insert((event.object, event.pc));
                    if before.is_some_and(|before| before.loads) {
                        loaded.add(event.object, thread);
                    }
                    is_polled || is_trusted() || rules.retried.contains(&event.pc)
                }
                _ => false,
            };
            mutexes = mutexes.saturating_add_signed(mutexes_taken(&event));
            if synchronizes && words.last() != Some(&event.object) {
                words.push(event.object);
            }
        }
        for (&word, _) in last.iter().filter(|(_, last)| last.loads) {
            loaded.add(word, thread);
        }
        words.sort_unstable();
        words.dedup();
    }
    // Of updates, the load that is half of one has an event.
    let mut halves = FixedSet::default();
    for (word, pc) in owned {
        if (1..=UPDATE).any(|back| loads.contains(&(word, pc.wrapping_sub(back)))) {
            updated.add(word, FORMER_OWNER);
            halves.insert(word);
        } else {
            stored.add(word, FORMER_OWNER);
        }
    }
    words.extend(stored.0.keys().filter(|word| stored.is_of_others(&loaded, **word)));
    let is_looked_out_for = |word: &&u64| {
        let looks = loaded.times(**word) - u32::from(halves.contains(*word));
        looks > 1 && updated.is_of_others(&loaded, **word)
    };
    words.extend(updated.0.keys().filter(is_looked_out_for));
    words.sort_unstable();
    words.dedup();
    let is_plain = |word: &&u64| words.binary_search(word).is_err();
    let plain = stored.0.keys().chain(updated.0.keys()).filter(is_plain);
    let plain = plain.map(|word| word & !3).collect();
    let of_one = words.iter().filter_map(|word| Some((word & !3, used.by(word & !3)?))).collect();
    Ok(Words { all: words, polled, plain, of_one })
}

/// Whether a store is half of an update, given a load of the same word.
fn is_half_of_update(load: u64, store: u64) -> bool {
    (1..=UPDATE).contains(&store.wrapping_sub(load))
}

/// A thread that has stored to a word without an event, whoever it was.
const FORMER_OWNER: ThreadId = ThreadId(u32::MAX);

/// An event of a word.
struct Last {
    pc: u64,
    loads: bool,
}

/// Which threads access which words: the only one, or none if there are several; and how often.
#[derive(Default)]
struct Accessed(FixedMap<u64, (Option<ThreadId>, u32)>);

impl Accessed {
    fn add(&mut self, word: u64, thread: ThreadId) {
        let (by, times) = self.0.entry(word).or_insert((Some(thread), 0));
        if *by != Some(thread) {
            *by = None;
        }
        *times = times.saturating_add(1);
    }

    /// The only thread that accesses a word.
    fn by(&self, word: u64) -> Option<ThreadId> {
        self.0.get(&word)?.0
    }

    fn times(&self, word: u64) -> u32 {
        self.0.get(&word).map_or(0, |it| it.1)
    }

    /// Whether one of these and another one of those access a word.
    fn is_of_others(&self, others: &Accessed, word: u64) -> bool {
        match (self.0.get(&word), others.0.get(&word)) {
            (Some((Some(one), _)), Some((Some(other), _))) => one != other,
            (own, other) => own.is_some() && other.is_some(),
        }
    }
}

fn is_in(code: &[Range<u64>], pc: u64) -> bool {
    code.iter().any(|code| code.contains(&pc))
}

/// Whether an event is about a word of a function that the thread is in, most likely.
fn is_on_own_stack(event: &Event) -> bool {
    const NEAR: u64 = 4096;
    event.object.checked_sub(event.sp).is_some_and(|above| above < NEAR)
}

/// How many mutexes more the thread has after an event.
fn mutexes_taken(event: &Event) -> i32 {
    use EventKind::{
        CondWaitBegin, CondWaitEnd, MutexLock, MutexTimedLock, MutexTryLock, MutexUnlock,
    };
    match event.kind() {
        MutexLock | MutexTryLock | MutexTimedLock if event.result == 0 => 1,
        MutexUnlock if event.result == 0 => -1,
        CondWaitBegin => -1,
        CondWaitEnd => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use EventKind::{Atomic, SyncLoad, SyncStore, Takeover};
    use refrain_trace::{OwnedEvent, OwnedTrace, order};

    type Given = (EventKind, u64, u64, u64);

    /// Each event is at its own instruction, on a stack that is used down to 0x9000.
    fn of_threads(threads: &[&[Given]]) -> Words {
        let event = |&(kind, object, pc, aux): &Given| {
            let event = Event { code: kind as u8, object, pc, aux, sp: 0x9000, ..Event::default() };
            let value = if kind == Takeover { aux } else { 0 };
            let event = Event { value, aux: aux - value, ..event };
            OwnedEvent::new(event, None)
        };
        let threads = threads.iter().map(|events| events.iter().map(event).collect()).collect();
        let trace = OwnedTrace { threads, ..OwnedTrace::default() };
        let one = |range: Range<u64>| std::iter::once(range).collect();
        let (silent, trusted) = (one(0x100..0x200), one(0x100..0x300));
        let code = Code { silent, trusted, retried: [0x600].into(), ..Code::default() };
        words(&trace.to_trace().expect("can be written"), Some(&code)).expect("can be read")
    }

    fn words_of(events: &[Given]) -> Vec<u64> {
        of_threads(&[events]).all
    }

    #[test]
    fn a_library_that_looks_at_its_own_stack_makes_no_word() {
        const NONE: [u64; 0] = [];
        let own = 0x9010;
        assert_eq!(words_of(&[(SyncLoad, own, 0x110, 0), (SyncLoad, own, 0x120, 1)]), NONE);
        assert_eq!(words_of(&[(SyncLoad, 0x5000, 0x110, 1)]), NONE, "the C library's business");
        assert_eq!(words_of(&[(SyncLoad, own, 0x210, 0)]), NONE);
        assert_eq!(words_of(&[(SyncLoad, own, 0x210, 1)]), [own], "another thread has its address");
        assert_eq!(words_of(&[(SyncLoad, 0x5000, 0x210, 0)]), [0x5000]);
        assert_eq!(words_of(&[(SyncLoad, 0x5000, 0x310, 0)]), NONE, "the program's");
        assert_eq!(words_of(&[(SyncLoad, 0x5000, 0x600, 0)]), [0x5000], "of a lock-free algorithm");
        assert_eq!(
            words_of(&[(Atomic, own, 0x310, 0), (SyncStore, own + 8, 0x210, 0)]),
            [own, own + 8]
        );
    }

    #[test]
    fn a_watched_store_makes_a_word_where_another_thread_looks_out_for_it() {
        const NONE: [u64; 0] = [];
        let at = 0x5000;
        let (store, load) = ((SyncStore, at, 0x400, 0), (SyncLoad, at, 0x500, 0));
        let nobody = of_threads(&[&[store], &[]]);
        assert_eq!((nobody.all, nobody.plain), (NONE.to_vec(), [at].into()));
        assert_eq!(of_threads(&[&[store, load], &[]]).all, NONE, "the thread itself");
        let other = of_threads(&[&[store], &[load]]);
        assert_eq!((other.all, other.plain), (vec![at], BTreeSet::new()));
        // Both add to it.
        let update = [(SyncLoad, at, 0x400, 0), (SyncStore, at, 0x40a, 0)];
        assert_eq!(of_threads(&[&update, &update]).all, NONE);
        let again = [update[0], update[1], (SyncStore, at, 0x420, 0)];
        assert_eq!(of_threads(&[&again, &again]).all, NONE, "the load between is not told");
        // One adds to it, and another one looks.
        assert_eq!(of_threads(&[&update, &[load]]).all, NONE, "once");
        assert_eq!(of_threads(&[&update, &[load, load]]).all, [at], "again");
        let far = [load, (SyncStore, at, 0x900, 0)];
        assert_eq!(of_threads(&[&far, &far]).all, [at], "no updates");
    }

    #[test]
    fn words_of_one_thread() {
        let (mine, ours, taken) = (0x5000, 0x6000, 0x7000);
        let takeover = (Takeover, order::ENDED_ACCESSES, 0x500, 0);
        let of = |word| (Atomic, word, 0x400, 0);
        let first = [of(mine), of(ours), (SyncStore, mine + 2, 0x410, 0)];
        let words = of_threads(&[&first, &[of(ours), takeover, of(taken)]]);
        assert_eq!(words.all, [mine, ours, taken]);
        assert_eq!(words.of_one, [(mine, ThreadId(0))].into_iter().collect());
    }

    #[test]
    fn a_word_that_its_owner_has_stored_to_is_one_too() {
        const NONE: [u64; 0] = [];
        let at = 0x5000;
        let taken_over = |pc, locked| {
            (Takeover, order::ENDED_ACCESSES, 0x500, own_store::encode(pc, locked).into())
        };
        let load = (SyncLoad, at, 0x500, 0);
        assert_eq!(of_threads(&[&[load], &[taken_over(0x40a, false), load]]).all, [at]);
        assert_eq!(of_threads(&[&[load], &[taken_over(0x40a, true), load]]).all, [at], "locked");
        assert_eq!(of_threads(&[&[load], &[load]]).all, NONE, "it has only looked");
        let first = (SyncLoad, at, 0x400, 0);
        let other = [taken_over(0x40a, false), load, load];
        assert_eq!(of_threads(&[&[first], &other[..2]]).all, NONE, "an update");
        assert_eq!(of_threads(&[&[first], &other]).all, [at], "another thread looks out for it");
    }
}
