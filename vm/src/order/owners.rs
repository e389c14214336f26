//! Who owns a word: the recorder's side of accesses that one thread alone makes.
//!
//! - The first thread that makes a watched access of a word owns the word. What it stores there needs
//!   no event: a replay counts it, among the loads that need none. (A load that finds what its thread
//!   did not meet there last has one, as everywhere: the store that it read may be one that is not
//!   watched.)
//! - Before another thread's first access, that thread takes the word over, for good: an
//!   [`EventKind::Handover`] goes into the owner's stream at the number of accesses that the owner has
//!   made by then, and the other thread's stream says that it waits for that
//!   ([`EventKind::Takeover`]). From then on all stores to the word have events, its former owner's
//!   too, and each further thread says before its first access that it waits for what the former
//!   owner has handed over.
//!
//! The table of owners has an entry for a word of eight bytes. Words of different pages may share an
//! entry; then they have one owner, as if they were one word.
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

use crate::record::log::{Closed, Log};
use crate::slots::Tickets;
use crate::zeroed::Zeroed;
use refrain_trace::fixed::FixedMap;
use refrain_trace::{Event, EventKind, ThreadId, accessed, order};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A word's state: nobody's.
const NOBODY: u32 = 0;
/// Set if the word has an owner; the thread's number is above these bits.
const OWNED: u32 = 1;
/// Set if it had one.
const FORMER: u32 = 2;
/// It never has one.
const SHARED: u32 = OWNED | FORMER;
const BITS: u32 = 2;

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
const PAGE_BITS: u32 = 12;
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

/// Owners of all words: 16 MiB, of which only what is used takes memory.
pub(crate) struct Owners {
    entries: Zeroed<[Entry; ENTRIES]>,
    /// How many words have been taken over from each thread.
    losses: Zeroed<[AtomicU32; LOSERS]>,
    /// By thread, whether it has ended. Who holds this is the only one that takes words over.
    ended: Mutex<Vec<bool>>,
}

/// Which words a thread has accessed since they were taken over from their owners.
pub(crate) struct Visited {
    words: Zeroed<[u64; ENTRIES / 64]>,
    /// How many words the thread has claimed.
    claims: u32,
    /// By object of a [`EventKind::Takeover`], how many tickets the thread has waited for.
    awaited: FixedMap<u64, u64>,
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
}

impl Visited {
    pub(crate) fn new() -> Visited {
        // SAFETY: zero is a value of an integer, and integers need no `Drop`.
        let words = unsafe { Zeroed::new() };
        Visited { words, claims: 0, awaited: FixedMap::default() }
    }

    #[inline]
    fn has(&self, place: usize) -> bool {
        self.words[place / 64] >> (place % 64) & 1 != 0
    }

    /// Whether the thread has owned a word, so that others may ask for what it has done.
    pub(crate) fn owns_any(&self) -> bool {
        self.claims > 0
    }

    /// The thread knows that the word at `address` is shared; whether there is something new in what it
    /// waits for.
    pub(crate) fn share(&mut self, address: u64, awaited: &Awaited) -> bool {
        let place = OwnWords::place(address);
        self.words[place / 64] |= 1 << (place % 64);
        let known = self.awaited.entry(awaited.object).or_default();
        let is_new = awaited.ticket > *known;
        *known = awaited.ticket.max(*known);
        is_new || awaited.stored != 0
    }
}

impl Owners {
    pub(crate) fn new() -> Owners {
        // SAFETY: zero is a value of an integer, and integers need no `Drop`.
        let (entries, losses) = unsafe { (Zeroed::new(), Zeroed::new()) };
        Owners { entries, losses, ended: Mutex::default() }
    }

    /// Where the entries stand, and what is the state of a thread's own words, for translated code.
    pub(crate) fn for_code(&self, thread: ThreadId) -> (u64, u64) {
        (&raw const self.entries[0] as u64, Self::own(thread).into())
    }

    fn own(thread: ThreadId) -> u32 {
        thread.0 << BITS | OWNED
    }

    fn former(thread: ThreadId) -> u32 {
        thread.0 << BITS | FORMER
    }

    /// What the word at `address` is to a thread; it claims what is nobody's. (Called by translated
    /// code: see `order::record`.)
    #[inline]
    pub(crate) fn of(&self, address: u64, me: ThreadId, visited: &mut Visited) -> Ownership {
        let place = OwnWords::place(address);
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
        if now == own {
            Ownership::Own
        } else if now == SHARED
            || now == Self::former(me)
            || now & FORMER != 0 && visited.has(place)
        {
            Ownership::Shared
        } else {
            Ownership::Foreign
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
        let (object, ticket) = self.accesses_of_owner(address, ways)?;
        let stored = self.entries[OwnWords::place(address)].stored.load(Ordering::Relaxed).into();
        Ok(Awaited { object, ticket, stored })
    }

    fn accesses_of_owner(
        &self,
        address: u64,
        (log, tickets): (&Log, &Tickets),
    ) -> Result<(u64, u64), Closed> {
        let ended = self.ended();
        let entry = &self.entries[OwnWords::place(address)];
        let state = entry.state.load(Ordering::SeqCst);
        let owner = ThreadId(state >> BITS);
        entry.state.store(Self::former(owner), Ordering::SeqCst);
        if ended.get(owner.index()).copied().unwrap_or(false) {
            let object = order::ENDED_ACCESSES;
            return Ok((object, tickets.given(order::slot(object))));
        }
        let object = order::accesses_object(owner);
        if state & FORMER != 0 {
            return Ok((object, tickets.given(order::slot(object))));
        }
        self.losses[owner.index() % LOSERS].fetch_add(1, Ordering::Relaxed);
        tickets.await_holder(order::slot(address));
        let ticket = log.insert(owner, |made| made, || handover(owner, accessed::WORD, tickets))?;
        Ok((object, ticket + 1))
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

    /// As long as the caller has this, nobody takes words over.
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
    use super::{Awaited, LOSSES, Ordering, OwnWords, Owners, Ownership, Visited};
    use refrain_trace::ThreadId;

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
        let awaits = |object, ticket, stored| Awaited { object, ticket, stored };
        assert!(!visited.has(OwnWords::place(WORD)));
        assert!(visited.share(WORD, &awaits(7, 3, 0)) && visited.has(OwnWords::place(WORD)));
        assert!(!visited.share(WORD + 8, &awaits(7, 3, 0)), "it has waited for that");
        assert!(visited.share(WORD + 16, &awaits(8, 1, 0)), "another thread's accesses");
        assert!(visited.share(WORD + 24, &awaits(7, 4, 0)), "a later handover");
        assert!(!visited.share(WORD + 32, &awaits(7, 0, 0)));
        assert!(visited.share(WORD + 40, &awaits(7, 0, 1)), "the owner has stored");
    }
}
