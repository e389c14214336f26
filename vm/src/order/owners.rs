//! Who owns a word: the recorder's side of accesses that one thread alone makes.
//!
//! - The first thread that makes a watched access of a word owns the word. What it stores there needs
//!   no event: a replay counts it, among the loads that need none. (A load that finds what its thread
//!   did not meet there last has one, as everywhere: the store that it read may be one that is not
//!   watched.)
//! - Before another thread's first access, that thread takes the word over: an
//!   [`EventKind::Handover`] goes into the owner's stream at the number of accesses that the owner has
//!   made by then, and the other thread's stream says that it waits for that
//!   ([`EventKind::Takeover`]). From then on all stores to the word have events, its former owner's
//!   too, and each further thread says before its first access that it waits for what the former
//!   owner has handed over.
//! - A thread that makes [`IN_A_ROW`] of these stores in a row, with no other thread's store and no locked
//!   instruction between, owns the word again, since objects go from thread to thread. So many events take as long
//!   as a takeover: no order of accesses costs more than twice what it would cost if no thread ever owned a word
//!   again.
//!
//! The table of owners has an entry for a word of eight bytes. Words of different pages may share an
//! entry; then they have one owner, as if they were one word, and nobody owns either again.
//!
//! A thread whose words others take over again and again, since it makes what they work on, claims no
//! more: what it comes to first is shared from the beginning, and all stores there have events.
//!
//! # Why that is exact
//! The owner stores while it holds the word's slot, and looks then whether the word is still its own.
//! Who takes the word over says so first, and then waits until nobody holds the slot. So each store
//! without an event comes before the handover, and after it in the owner's stream come only stores
//! with events. Every access of another thread comes after its takeover. Two watched accesses of the
//! word by different threads are therefore either ordered by a handover and a takeover, or both have
//! events. The order of events is one of real time, so no replay can wait in a circle.
//!
//! A thread becomes the owner again while it holds the word's slot, at the end of a store with an event. Another
//! thread that accesses the word as a shared one reads the word's state again once that thread holds the slot, or
//! has loaded the value: if the word has an owner by then, the thread takes the word over. So the stores of other
//! threads come before the owner's store with the event, or after the next takeover. Their earlier loads have
//! events with the values, and a replay takes these values from the trace where the owner has overwritten the word
//! already. The owners of a word are numbered: a thread that has waited for an earlier owner waits for a later one
//! as well.

use crate::record::log::{Closed, Log};
use crate::slots::Tickets;
use crate::zeroed::Zeroed;
use refrain_trace::fixed::FixedMap;
use refrain_trace::{Event, EventKind, ThreadId, accessed, order};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A word's state: nobody's.
const NOBODY: u32 = 0;
/// Set if the word has an owner. The thread's number is above these bits.
const OWNED: u32 = 1;
/// Set if it had one.
const FORMER: u32 = 2;
/// It has had none.
const SHARED: u32 = OWNED | FORMER;
const BITS: u32 = 2;
/// Set in the state of a word that had an owner if the word had several. Above the last owner's number, which
/// has fewer bits then, stands how many owners there were before that one.
const AGAIN: u32 = 1 << 31;
const GENERATION_SHIFT: u32 = 16;
/// No thread owns a word again that had so many owners before its last one.
const LAST_GENERATION: u16 = (AGAIN >> GENERATION_SHIFT) as u16 - 1;
/// Threads with such a number and higher ones own nothing again.
const THREADS: u32 = 1 << (GENERATION_SHIFT - BITS);

/// A thread owns a word again after so many stores in a row.
const IN_A_ROW: u32 = 64;
/// Slots of which a thread keeps how many tickets it has taken in a row.
const ROWS: usize = 256;

/// So many words of a thread may be taken over before it is asked how many it keeps.
const LOSSES: u32 = 64;
/// A thread goes on claiming words if it keeps all but one of so many.
const KEEPS: u32 = 16;
/// Threads whose losses are counted apart.
const LOSERS: usize = 1 << 10;

/// Words of a page.
const WORDS: usize = 512;
/// Pages that the table has room for.
const PAGES: usize = 1 << PAGE_BITS;
const PAGE_BITS: u32 = 15;
const ENTRIES: usize = PAGES * WORDS;

/// How translated code finds the owners of words, and holds slots (`jit::copy`'s `own`). The entry of a word
/// has eight bytes, its state in the lower half.
#[derive(Clone, Copy, Debug)]
pub struct OwnWords;

impl OwnWords {
    /// An address without so many low bits is a page's number.
    pub const PAGE_SHIFT: u32 = 12;
    /// The upper bits of a page's number multiplied with this are the page's place.
    pub const HASH: u64 = 0x9e37_79b9_7f4a_7c15;
    /// So many lower ones are left out.
    pub const HASH_SHIFT: u32 = 64 - PAGE_BITS;
    /// Words of a page.
    pub const WORDS: usize = WORDS;
    /// Where in an entry stands by which instruction the owner stored last.
    pub const STORED: usize = std::mem::offset_of!(Entry, stored);
    /// The bits of a slot's counter that say that a thread has the slot, and takes no ticket.
    pub const HELD_BIT: u32 = crate::slots::HELD.trailing_zeros();
    /// See [`Self::HELD_BIT`].
    pub const LENT_BIT: u32 = crate::slots::LENT.trailing_zeros();
    /// So many entries there are.
    pub const ENTRIES: usize = ENTRIES;

    /// Where a word's entry is. Words of one page are side by side.
    #[inline]
    #[must_use]
    pub fn place(address: u64) -> usize {
        let page = (address >> Self::PAGE_SHIFT).wrapping_mul(Self::HASH) >> Self::HASH_SHIFT;
        page as usize * WORDS + (address >> 3) as usize % WORDS
    }
}

/// A word's entry.
#[repr(C)]
struct Entry {
    state: AtomicU32,
    /// The instruction by which the owner stored last without an event, encoded by
    /// [`refrain_trace::own_store`]; 0 if the owner has stored nothing so.
    stored: AtomicU32,
}

/// What stands for a page in whose place there are words of several pages.
const SEVERAL: u64 = u64::MAX;

/// Owners of all words: 160 MiB, of which only what is used takes memory.
pub(crate) struct Owners {
    entries: Zeroed<[Entry; ENTRIES]>,
    /// Of a word that is owned, how many owners it had before this one.
    generations: Zeroed<[AtomicU16; ENTRIES]>,
    /// By place, the number of the page that has it.
    pages: Zeroed<[AtomicU64; PAGES]>,
    /// How many words have been taken over from each thread.
    losses: Zeroed<[AtomicU32; LOSERS]>,
    /// By thread, whether it has ended. Who holds this is the only one that takes words over.
    ended: Mutex<Vec<bool>>,
}

/// Which words a thread has accessed since they were taken over from their owners.
pub(crate) struct Visited {
    /// By word, one more than the generation of the owner from which it was taken over then.
    words: Zeroed<[u16; ENTRIES]>,
    /// How many words the thread has claimed.
    claims: u32,
    /// By object of a [`EventKind::Takeover`], how many tickets the thread has waited for.
    awaited: FixedMap<u64, u64>,
    /// Slots of which the thread has taken tickets in a row: the slot, the next ticket, and how many.
    rows: Zeroed<[(u64, u64, u32); ROWS]>,
}

/// What a word is to a thread that is about to access it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ownership {
    /// Its own: stores need no event.
    Own,
    /// One that several threads access, as this one knows.
    Shared,
    /// Another thread's, or once another thread's: this thread has to take the word over, or to say that
    /// it waits for what the former owner has handed over.
    Foreign,
}

/// What a thread waits for that takes a word over, or comes to a word that had an owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    /// So many tickets of this object have been given out.
    pub(crate) object: u64,
    pub(crate) ticket: u64,
    /// The instruction by which the owner stored last without an event ([`refrain_trace::own_store`]), or 0.
    pub(crate) stored: u64,
    /// How many owners the word had before that one.
    pub(crate) generation: u16,
}

impl Visited {
    pub(crate) fn new() -> Visited {
        // SAFETY: zero is a value of an integer, and integers need no `Drop`.
        let (words, rows) = unsafe { (Zeroed::new(), Zeroed::new()) };
        Visited { words, claims: 0, awaited: FixedMap::default(), rows }
    }

    #[inline]
    fn has(&self, place: usize, generation: u16) -> bool {
        self.words[place] == generation + 1
    }

    /// The thread has this ticket of a slot. Whether the thread has taken so many in a row, with no other thread's
    /// between, that it may own a word again.
    #[inline]
    pub(crate) fn is_in_a_row(&mut self, slot: usize, ticket: u64) -> bool {
        let (in_place, next, count) = &mut self.rows[slot % ROWS];
        let goes_on = (*in_place, *next) == (slot as u64, ticket);
        (*in_place, *next) = (slot as u64, ticket + 1);
        *count = if goes_on { count.saturating_add(1) } else { 1 };
        *count >= IN_A_ROW
    }

    /// Whether the thread has owned a word, so that others may ask for what it has done.
    pub(crate) fn owns_any(&self) -> bool {
        self.claims > 0
    }

    /// The thread knows that the word at `address` is shared; whether there is something new in what it
    /// waits for.
    pub(crate) fn share(&mut self, address: u64, awaited: &Awaited) -> bool {
        self.words[OwnWords::place(address)] = awaited.generation + 1;
        let known = self.awaited.entry(awaited.object).or_default();
        let is_new = awaited.ticket > *known;
        *known = awaited.ticket.max(*known);
        is_new || awaited.stored != 0
    }
}

impl Owners {
    pub(crate) fn new() -> Owners {
        // SAFETY: zero is a value of an integer, and integers need no `Drop`.
        let ((entries, losses), (generations, pages)) =
            unsafe { ((Zeroed::new(), Zeroed::new()), (Zeroed::new(), Zeroed::new())) };
        Owners { entries, generations, pages, losses, ended: Mutex::default() }
    }

    /// Where the entries stand, and what is the state of a thread's own words, for translated code.
    pub(crate) fn for_code(&self, thread: ThreadId) -> (u64, u64) {
        (&raw const self.entries[0] as u64, Self::own(thread).into())
    }

    fn own(thread: ThreadId) -> u32 {
        thread.0 << BITS | OWNED
    }

    fn former(thread: ThreadId, generation: u16) -> u32 {
        match generation {
            0 => thread.0 << BITS | FORMER,
            again => AGAIN | u32::from(again) << GENERATION_SHIFT | thread.0 << BITS | FORMER,
        }
    }

    /// Of a word that had an owner: the last one, and how many it had before that one.
    fn last_owner(state: u32) -> Option<(ThreadId, u16)> {
        if state & SHARED != FORMER {
            return None;
        }
        let number = state >> BITS;
        Some(match state & AGAIN {
            0 => (ThreadId(number), 0),
            _ => (ThreadId(number % THREADS), ((state & !AGAIN) >> GENERATION_SHIFT) as u16),
        })
    }

    /// A thread is about to access a word: notes which page has the place in the table, or that several have.
    #[inline]
    fn note_page(&self, address: u64, place: usize) {
        let page = address >> OwnWords::PAGE_SHIFT;
        let known = &self.pages[place / WORDS];
        let now = known.load(Ordering::Relaxed);
        if now != page && now != SEVERAL {
            let is_first = known.compare_exchange(0, page, Ordering::SeqCst, Ordering::SeqCst);
            if is_first.is_err_and(|now| now != page) {
                known.store(SEVERAL, Ordering::SeqCst);
            }
        }
    }

    /// What the word at `address` is to a thread; it claims what is nobody's. (Called by translated
    /// code: see `order::record`.)
    #[inline]
    pub(crate) fn of(&self, address: u64, me: ThreadId, visited: &mut Visited) -> Ownership {
        let place = OwnWords::place(address);
        self.note_page(address, place);
        let (state, own) = (&self.entries[place].state, Self::own(me));
        let mut now = state.load(Ordering::Acquire);
        if now == NOBODY {
            let losses = self.losses[me.index() % LOSERS].load(Ordering::Relaxed);
            let claims = losses < LOSSES || losses.saturating_mul(KEEPS) < visited.claims;
            let next = if claims { own } else { SHARED };
            let changed = state.compare_exchange(NOBODY, next, Ordering::AcqRel, Ordering::Acquire);
            visited.claims = visited.claims.saturating_add((claims && changed.is_ok()).into());
            now = changed.map_or_else(|now| now, |_| next);
        }
        Self::told_by(now, place, me, visited)
    }

    /// What a word in this state, which somebody owns or has owned, is to a thread.
    #[inline]
    fn told_by(state: u32, place: usize, me: ThreadId, visited: &Visited) -> Ownership {
        let is_known =
            |(last, generation): (ThreadId, u16)| last == me || visited.has(place, generation);
        if state == Self::own(me) {
            Ownership::Own
        } else if state == SHARED || Self::last_owner(state).is_some_and(is_known) {
            Ownership::Shared
        } else {
            Ownership::Foreign
        }
    }

    /// Whether the word at `address`, which was not foreign to a thread a moment ago, is so by now: another thread
    /// owns the word again, or has done so.
    #[inline]
    pub(crate) fn is_foreign(&self, address: u64, me: ThreadId, visited: &Visited) -> bool {
        let place = OwnWords::place(address);
        let state = self.entries[place].state.load(Ordering::Acquire);
        Self::told_by(state, place, me, visited) == Ownership::Foreign
    }

    /// Makes a thread the owner of a shared word. The thread holds the word's slot, has taken tickets of the slot
    /// [in a row](Visited::is_in_a_row), and knows that the word is shared.
    pub(crate) fn own_again(&self, address: u64, me: ThreadId, visited: &mut Visited) {
        let place = OwnWords::place(address);
        let (state, page) = (&self.entries[place].state, &self.pages[place / WORDS]);
        let now = state.load(Ordering::Relaxed);
        let next = match now {
            SHARED => 1,
            now => match Self::last_owner(now) {
                Some((_, generation)) if generation < LAST_GENERATION => generation + 1,
                _ => return,
            },
        };
        if me.0 >= THREADS || page.load(Ordering::SeqCst) == SEVERAL {
            return;
        }
        self.generations[place].store(next, Ordering::Relaxed);
        let own = Self::own(me);
        if state.compare_exchange(now, own, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return;
        }
        visited.claims = visited.claims.saturating_add(1);
        // A thread that accesses the word of another page notes the page before the thread reads the state.
        if page.load(Ordering::SeqCst) == SEVERAL {
            let former = Self::former(me, next);
            let _ = state.compare_exchange(own, former, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// The owner of a word, who holds its slot, is about to store to the word by this instruction; false
    /// if the word is not its own any more.
    #[inline]
    pub(crate) fn store(&self, address: u64, owner: ThreadId, stored: u32) -> bool {
        let entry = &self.entries[OwnWords::place(address)];
        entry.stored.store(stored, Ordering::Relaxed);
        entry.state.load(Ordering::SeqCst) == Self::own(owner)
    }

    /// Takes a word over from its owner, if it still has one. What the caller, another thread, is to
    /// wait for.
    pub(crate) fn take_over(
        &self,
        address: u64,
        ways: (&Log, &Tickets),
    ) -> Result<Awaited, Closed> {
        let (object, ticket, generation) = self.accesses_of_owner(address, ways)?;
        let stored = self.entries[OwnWords::place(address)].stored.load(Ordering::Relaxed).into();
        Ok(Awaited { object, ticket, stored, generation })
    }

    /// What stands for the accesses of a word's last owner, how many tickets of that are to be waited for, and
    /// the generation of that owner.
    fn accesses_of_owner(
        &self,
        address: u64,
        (log, tickets): (&Log, &Tickets),
    ) -> Result<(u64, u64, u16), Closed> {
        let ended = self.ended();
        let (owner, generation, was_owned) = self.end_ownership(address);
        if ended.get(owner.index()).copied().unwrap_or(false) {
            let object = order::ENDED_ACCESSES;
            return Ok((object, tickets.given(order::slot(object)), generation));
        }
        let object = order::accesses_object(owner);
        if !was_owned {
            return Ok((object, tickets.given(order::slot(object)), generation));
        }
        if generation == 0 {
            self.losses[owner.index() % LOSERS].fetch_add(1, Ordering::Relaxed);
        }
        tickets.await_holder(order::slot(address));
        let ticket = log.insert(owner, |made| made, || handover(owner, accessed::WORD, tickets))?;
        Ok((object, ticket + 1, generation))
    }

    /// Leaves the word without an owner. The last owner, how many owners the word had before that one, and whether
    /// that one owned the word until now.
    fn end_ownership(&self, address: u64) -> (ThreadId, u16, bool) {
        let place = OwnWords::place(address);
        let state = &self.entries[place].state;
        loop {
            let now = state.load(Ordering::SeqCst);
            if let Some((owner, generation)) = Self::last_owner(now) {
                return (owner, generation, false);
            }
            let owner = ThreadId(now >> BITS);
            let generation = self.generations[place].load(Ordering::Relaxed);
            let former = Self::former(owner, generation);
            if state.compare_exchange(now, former, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return (owner, generation, true);
            }
        }
    }

    /// Adds what to wait for, for all that another thread has accessed so far, which is in no guest code;
    /// false if it is about to end.
    pub(crate) fn await_away(
        &self,
        thread: ThreadId,
        (log, tickets): (&Log, &Tickets),
        awaited: &mut Vec<(u64, u64)>,
    ) -> Result<bool, Closed> {
        let ended = self.ended();
        if ended.get(thread.index()).copied().unwrap_or(false) {
            return Ok(false);
        }
        let inserted = log.insert_if_begun(thread, || handover(thread, accessed::AWAY, tickets))?;
        awaited.extend(inserted.map(|ticket| (order::accesses_object(thread), ticket + 1)));
        Ok(true)
    }

    /// A thread executes no more guest code, and has said so with a ticket of
    /// [`order::ENDED_ACCESSES`] if it has owned anything.
    pub(crate) fn leave(&self, thread: ThreadId) {
        let mut ended = self.ended();
        if ended.len() <= thread.index() {
            ended.resize(thread.index() + 1, false);
        }
        ended[thread.index()] = true;
    }

    /// As long as the caller keeps the result, no thread takes a word over.
    pub(crate) fn still(&self) -> impl Drop + '_ {
        self.ended()
    }

    /// Only this thread goes on, of so many: the others are not in this process.
    pub(crate) fn keep_only(&self, thread: ThreadId, threads: usize) {
        *self.ended() = (0..threads).map(|index| index != thread.index()).collect();
    }

    fn ended(&self) -> MutexGuard<'_, Vec<bool>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next handover of a thread.
pub(super) fn handover(thread: ThreadId, nr: u16, tickets: &Tickets) -> Event {
    let object = order::accesses_object(thread);
    let (code, ticket) = (EventKind::Handover as u8, tickets.take(order::slot(object)));
    Event { code, object, ticket, nr, ..Event::default() }
}

#[cfg(test)]
mod tests {
    use super::{
        Awaited, IN_A_ROW, LAST_GENERATION, LOSSES, NOBODY, Ordering, OwnWords, Owners, Ownership,
        PAGES, SHARED, THREADS, Visited,
    };
    use refrain_trace::{ThreadId, order};

    const WORD: u64 = 0x1000_0040;

    #[test]
    fn words_of_a_page_are_side_by_side() {
        assert_eq!(OwnWords::place(WORD), OwnWords::place(WORD + 7));
        assert_eq!(OwnWords::place(WORD) + 1, OwnWords::place(WORD + 8));
        assert_ne!(OwnWords::place(WORD), OwnWords::place(WORD + 4096));
    }

    #[test]
    fn the_first_thread_owns_a_word() {
        let (owners, first, second) = (Owners::new(), ThreadId(0), ThreadId(1));
        let (mut own, mut other) = (Visited::new(), Visited::new());
        assert!(!own.owns_any());
        assert_eq!(owners.of(WORD, first, &mut own), Ownership::Own);
        assert!(own.owns_any() && owners.store(WORD, first, 1));
        assert_eq!(owners.of(WORD, second, &mut other), Ownership::Foreign);
        assert!(!other.owns_any());
        assert_eq!(owners.of(WORD + 8, second, &mut other), Ownership::Own);
    }

    #[test]
    fn who_loses_what_it_claims_claims_no_more() {
        let (owners, first, second) = (Owners::new(), ThreadId(0), ThreadId(1));
        let (mut own, mut other) = (Visited::new(), Visited::new());
        let mut claims = |losses, at| {
            owners.losses[first.index()].store(losses, Ordering::Relaxed);
            owners.of(at, first, &mut own)
        };
        assert_eq!(claims(LOSSES - 1, WORD), Ownership::Own, "not many");
        assert_eq!(claims(LOSSES, WORD + 8), Ownership::Shared, "many, and most");
        assert_eq!(claims(LOSSES, WORD), Ownership::Own, "what it has it keeps");
        assert_eq!(owners.of(WORD + 8, second, &mut other), Ownership::Shared);
        assert_eq!(owners.of(WORD + 16, second, &mut other), Ownership::Own, "another thread");
    }

    #[test]
    fn a_thread_says_once_what_it_waits_for() {
        let mut visited = Visited::new();
        let awaits = |object, ticket, stored| Awaited { object, ticket, stored, generation: 0 };
        let has = |visited: &Visited| visited.has(OwnWords::place(WORD), 0);
        assert!(!has(&visited));
        assert!(visited.share(WORD, &awaits(7, 3, 0)) && has(&visited));
        assert!(!visited.share(WORD + 8, &awaits(7, 3, 0)), "it has waited for that");
        assert!(visited.share(WORD + 16, &awaits(8, 1, 0)), "another thread's accesses");
        assert!(visited.share(WORD + 24, &awaits(7, 4, 0)), "a later handover");
        assert!(!visited.share(WORD + 32, &awaits(7, 0, 0)));
        assert!(visited.share(WORD + 40, &awaits(7, 0, 1)), "the owner has stored");
    }

    /// Another thread takes the word over from its owner, as far as this table is concerned.
    fn take_over(owners: &Owners, visited: &mut Visited) -> u16 {
        let (_, generation, was_owned) = owners.end_ownership(WORD);
        assert!(was_owned);
        visited.share(WORD, &Awaited { object: 7, ticket: 1, stored: 0, generation });
        generation
    }

    /// A thread takes so many tickets of the word's slot in a row, with stores to the word.
    fn store(owners: &Owners, me: ThreadId, visited: &mut Visited, tickets: std::ops::Range<u64>) {
        let slot = order::slot(WORD);
        for ticket in tickets {
            assert_eq!(owners.of(WORD, me, visited), Ownership::Shared, "ticket {ticket}");
            if visited.is_in_a_row(slot, ticket) {
                owners.own_again(WORD, me, visited);
            }
        }
    }

    #[test]
    fn who_stores_many_times_in_a_row_owns_a_word_again() {
        let (owners, [first, second, third]) = (Owners::new(), [0, 1, 2].map(ThreadId));
        let [mut of_first, mut of_second, mut of_third] = [0; 3].map(|_| Visited::new());
        assert_eq!(owners.of(WORD, first, &mut of_first), Ownership::Own);
        for visited in [&mut of_second, &mut of_third] {
            visited.share(WORD, &Awaited { object: 7, ticket: 1, stored: 0, generation: 0 });
        }
        owners.end_ownership(WORD);
        let many = u64::from(IN_A_ROW);
        store(&owners, second, &mut of_second, 0..many - 1);
        // Somebody else's store is between.
        store(&owners, second, &mut of_second, many..2 * many - 1);
        assert_eq!(owners.of(WORD, second, &mut of_second), Ownership::Shared);
        store(&owners, second, &mut of_second, 2 * many - 1..2 * many);
        assert_eq!(owners.of(WORD, second, &mut of_second), Ownership::Own);
        assert!(owners.store(WORD, second, 1) && of_second.owns_any());
        for (thread, visited) in [(first, &mut of_first), (third, &mut of_third)] {
            assert_eq!(owners.of(WORD, thread, visited), Ownership::Foreign, "{thread:?}");
        }
        assert_eq!(take_over(&owners, &mut of_third), 1);
        assert!(!owners.store(WORD, second, 1), "not any more");
        assert_eq!(owners.of(WORD, second, &mut of_second), Ownership::Shared, "its own stores");
        assert_eq!(owners.of(WORD, third, &mut of_third), Ownership::Shared);
        // The first thread has waited for nobody's stores but its own.
        assert_eq!(owners.of(WORD, first, &mut of_first), Ownership::Foreign);
        assert_eq!(owners.losses[second.index()].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_word_is_owned_again_only_so_often() {
        let (owners, [first, second]) = (Owners::new(), [0, 1].map(ThreadId));
        let [mut of_first, mut of_second] = [0; 2].map(|_| Visited::new());
        assert_eq!(owners.of(WORD, first, &mut of_first), Ownership::Own);
        assert_eq!(take_over(&owners, &mut of_second), 0);
        let (mut ticket, many) = (0, u64::from(IN_A_ROW));
        for generation in 0..LAST_GENERATION {
            store(&owners, second, &mut of_second, ticket..ticket + many);
            assert_eq!(owners.of(WORD, second, &mut of_second), Ownership::Own, "{generation}");
            assert_eq!(take_over(&owners, &mut of_first), generation + 1);
            ticket += many + 1;
        }
        store(&owners, second, &mut of_second, ticket..ticket + many);
        assert_eq!(owners.of(WORD, second, &mut of_second), Ownership::Shared);
    }

    #[test]
    fn states_tell_owners_and_generations() {
        for thread in [0, 1, THREADS - 1, THREADS, 1 << 28].map(ThreadId) {
            let former = Owners::former(thread, 0);
            assert_eq!(Owners::last_owner(former), Some((thread, 0)));
            for state in [NOBODY, SHARED, Owners::own(thread)] {
                assert_eq!(Owners::last_owner(state), None);
            }
            for generation in [1, 2, LAST_GENERATION].into_iter().filter(|_| thread.0 < THREADS) {
                let former = Owners::former(thread, generation);
                assert_eq!(Owners::last_owner(former), Some((thread, generation)));
            }
        }
    }

    /// The slot that is held is that of one of them.
    #[test]
    fn words_of_several_pages_in_one_place_stay_shared() {
        let (owners, [first, second]) = (Owners::new(), [0, 1].map(ThreadId));
        let [mut of_first, mut of_second] = [0; 2].map(|_| Visited::new());
        let pages = (1..=PAGES as u64 * 4).map(|page| WORD + (page << OwnWords::PAGE_SHIFT));
        let place = OwnWords::place(WORD);
        let other =
            pages.into_iter().find(|&it| OwnWords::place(it) == place).expect("there is one");
        assert_eq!(owners.of(WORD, first, &mut of_first), Ownership::Own);
        assert_eq!(
            owners.of(other, first, &mut of_first),
            Ownership::Own,
            "as if it were one word"
        );
        take_over(&owners, &mut of_second);
        store(&owners, second, &mut of_second, 0..10_000);
        assert_eq!(owners.of(WORD, second, &mut of_second), Ownership::Shared);
    }
}
