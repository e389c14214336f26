//! Who may access which line: the recorder's side of [`refrain_trace::Order::Stride`].
//!
//! A line belongs to nobody, to one thread, to all that read it, or it is contended. What a thread
//! may do with a line stands in its own tables ([`super::filter`]), where translated code looks; an
//! access that its thread may not make comes here first.
//!
//! - What belongs to nobody is claimed with one exchange, and no event.
//! - A line is taken over from the threads that may access it: their entries are cleared, each is
//!   seen outside of its window, and a [`EventKind::Handover`] goes into its stream at the number of
//!   accesses that it has made by then. The taker waits in the replay for all of them
//!   ([`EventKind::Takeover`]).
//!   A thread that takes over one line after the other gets, with the next one, as many more lines as
//!   it has taken in this way, and with a second line of a page the rest of the page, as far as these
//!   lines belong to the same thread ([`super::runs`]).
//! - A line that has been taken over [`PATIENCE`] times is contended: no thread may access it
//!   by itself, and each access is an event with a ticket ([`EventKind::Contended`]). A thread that has
//!   made [`CALM`] of them with nobody between gets the line, with the turn for the next one: to read
//!   it, if that is all it has done, as a loop does that waits for another thread's store. So does, at
//!   once, a thread that branches to where a word in the line says.
//!
//! [`Order::Leap`] and [`Order::Global`] exist to be compared with this: there, a line is contended as
//! soon as a second thread comes, and stays so.
//!
//! Lines that show the same memory, since a file is mapped at several addresses, are one line to all
//! of this ([`super::aliases`]): only a thread's tables have an entry for each.
//!
//! A call that changes what accesses of memory do (`mprotect`, `munmap`) takes over the pages that
//! threads have accessed, as if it wrote them ([`Lines::take_pages`]).
//!
//! # Why that is exact
//! Two accesses of a line by different threads, one of which writes, are either both under tickets of
//! the line, or the first one's thread lost the line between the two: then its handover comes after
//! the first access, and the second one's takeover waits for it. So a replay performs all such pairs
//! in the recorded order, and every load reads what it read. The order of events is one of real time,
//! so no replay can wait in a circle.

mod code;
mod states;

use self::states::States;
use super::aliases::Aliases;
use super::filter::{ENTRIES, Filter, LINE, Span, address_of, index, straight};
use super::runs::{Neighbours, Runs, page};
use crate::barrier::Barrier;
use crate::record::log::{Closed, Log};
use crate::slots::Tickets;
use crate::{Error, Result};
use refrain_trace::{Event, EventKind, Order, ThreadId, order};
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How often a line is taken over before it is contended, with [`refrain_trace::Order::Stride`].
const PATIENCE: u32 = 8;
/// How many turns of a contended line a thread has one after the other before the line is its own.
const CALM: u32 = 16;
/// Contended lines whose turns a thread counts at the same time.
const CALMS: usize = 64;
/// Lines that a thread claims at once at most, when it comes to one after the other.
const RUN: u32 = 64;
/// So many lines that are taken over together are a buffer: they are never contended for that.
const BUFFER: usize = 8;

/// Whose a line is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Unowned,
    /// One thread reads and writes it.
    Owned {
        owner: ThreadId,
        taken: u32,
    },
    /// Threads read it; `writer` was the last to own it.
    Shared {
        writer: ThreadId,
        taken: u32,
    },
    /// Every access has a ticket.
    Contended,
}

impl State {
    fn pack(self) -> u32 {
        let with = |kind: u32, thread: ThreadId, taken: u32| kind | taken << 2 | thread.0 << 6;
        match self {
            State::Unowned => 0,
            State::Owned { owner, taken } => with(1, owner, taken),
            State::Shared { writer, taken } => with(2, writer, taken),
            State::Contended => 3,
        }
    }

    /// As if it had never been taken over.
    fn forgiven(self) -> State {
        match self {
            State::Owned { owner, .. } => State::Owned { owner, taken: 0 },
            State::Shared { writer, .. } => State::Shared { writer, taken: 0 },
            other => other,
        }
    }

    /// Whether both lines have the same owner, or both are shared and have the same last writer; and
    /// whether this one may be taken over once more before it is contended.
    fn is_as(self, other: State) -> bool {
        match (self, other) {
            (State::Owned { owner: a, taken }, State::Owned { owner: b, .. })
            | (State::Shared { writer: a, taken }, State::Shared { writer: b, .. }) => {
                a == b && taken < PATIENCE
            }
            _ => false,
        }
    }

    fn unpack(bits: u32) -> State {
        let (thread, taken) = (ThreadId(bits >> 6), bits >> 2 & 15);
        match bits & 3 {
            0 => State::Unowned,
            1 => State::Owned { owner: thread, taken },
            2 => State::Shared { writer: thread, taken },
            _ => State::Contended,
        }
    }
}

/// What an access may do at once.
#[derive(Debug)]
pub(crate) enum Quick {
    /// It may be made.
    Mine,
    /// It needs the turns of these lines, as many as the number says.
    Contended([u64; 2], usize),
    /// Lines have to be taken over first.
    Others,
}

/// What comes with the right of a thread to make its access now.
#[derive(Debug, Default)]
pub(crate) struct Acquired {
    /// Events that it has to wait for in a replay: objects, and tickets given out.
    pub(crate) awaited: Vec<(u64, u64)>,
    /// Lines whose turns it needs.
    pub(crate) contended: Vec<u64>,
    /// It gets one of the contended lines to read. Later readers wait for a handover that it makes now.
    pub(crate) hands_over: bool,
}

/// For contended lines that a thread has accessed lately: how many turns it has had in a row.
#[derive(Debug)]
pub(crate) struct Calms([Calm; CALMS]);

/// The turns of one line.
#[derive(Clone, Copy, Default, Debug)]
struct Calm {
    line: u64,
    /// The ticket behind the last of these turns.
    next: u64,
    turns: u32,
    writes: bool,
}

/// A contended line that its only user gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wish {
    line: u64,
    write: bool,
}

impl Wish {
    /// The thread wants a line to read.
    pub(crate) fn reading(line: u64) -> Wish {
        Wish { line, write: false }
    }
}

impl Default for Calms {
    fn default() -> Calms {
        Calms([Calm::default(); CALMS])
    }
}

impl Calms {
    fn place(line: u64) -> usize {
        let line = line / LINE;
        (line ^ line >> CALMS.ilog2()) as usize % CALMS
    }

    /// The thread has a turn.
    pub(crate) fn turn(&mut self, line: u64, ticket: u64, write: bool) {
        let calm = &mut self.0[Calms::place(line)];
        if (calm.line, calm.next) != (line, ticket) {
            *calm = Calm { line, ..Calm::default() };
        }
        (calm.next, calm.turns) = (ticket + 1, calm.turns + 1);
        calm.writes |= write;
    }

    /// The wish for a line whose next ticket is `next`, if the thread has had enough turns of it in a row.
    pub(crate) fn wish(&self, line: u64, next: u64, write: bool) -> Option<Wish> {
        let calm = &self.0[Calms::place(line)];
        let is_calm = (calm.line, calm.next) == (line, next) && calm.turns >= CALM;
        is_calm.then_some(Wish { line, write: write || calm.writes })
    }
}

/// Where a thread has claimed lines last.
#[derive(Default, Debug)]
pub(crate) struct Claims {
    next: usize,
    run: u32,
}

/// What threads do about lines that several of them access.
#[derive(Clone, Copy, Debug)]
struct Sharing {
    /// How often a line is taken over before it is contended.
    patience: u32,
    /// Who has had many turns of a contended line gets it.
    calms: bool,
    /// All contended lines have one order.
    one_order: bool,
}

impl Sharing {
    fn of(order: Order) -> Sharing {
        match order {
            Order::Leap => Sharing { patience: 0, calms: false, one_order: false },
            Order::Global => Sharing { patience: 0, calms: false, one_order: true },
            _ => Sharing { patience: PATIENCE, calms: true, one_order: false },
        }
    }
}

/// See the module's documentation.
pub(crate) struct Lines {
    sharing: Sharing,
    states: States,
    /// The threads that execute guest code. Who holds this may take lines over.
    threads: Mutex<Vec<Option<Filter>>>,
    barrier: Barrier,
    /// Which lines show the same memory; null as long as none do. Who holds `threads` may put
    /// another table there; earlier ones stay, as threads may be reading them.
    aliases: AtomicPtr<Aliases>,
    /// The lowest and the highest address of code that any thread has kept.
    code: [AtomicU64; 2],
}

/// As long as this is there, no thread takes a line over.
pub(crate) struct Still<'a>(
    #[expect(dead_code, reason = "it is held")] MutexGuard<'a, Vec<Option<Filter>>>,
);

/// A thread that loses a line, and whether it may not even read it any more.
struct Loss {
    thread: ThreadId,
    line: usize,
    reading: bool,
}

impl Lines {
    /// Nobody's lines, for a recording with this order.
    pub(crate) fn new(order: Order) -> Result<Lines> {
        let barrier = Barrier::new();
        if !barrier.is_asymmetric() {
            let what = "recording every access without the system call membarrier (Linux 4.14); \
                        record with --order sync";
            return Err(Error::Unsupported(what.into()));
        }
        Ok(Lines {
            sharing: Sharing::of(order),
            states: States::new()?,
            threads: Mutex::default(),
            barrier,
            aliases: AtomicPtr::default(),
            code: [AtomicU64::new(u64::MAX), AtomicU64::new(0)],
        })
    }

    fn aliases(&self) -> Option<&Aliases> {
        // SAFETY: null, or a table that is never changed or freed.
        unsafe { self.aliases.load(Ordering::Acquire).as_ref() }
    }

    /// The line that stands for all lines that show the same memory as this one: its state tells whose they are.
    fn canonical(&self, line: usize) -> usize {
        self.aliases().map_or(line, |aliases| aliases.canonical(line))
    }

    /// All lines that a canonical one stands for.
    fn members(&self, line: usize) -> impl Iterator<Item = usize> + '_ {
        let others = self.aliases().into_iter().flat_map(move |it| it.members(line).skip(1));
        std::iter::once(line).chain(others)
    }

    /// The object of the turns of a contended line, which is the same at whichever address it is accessed.
    fn object(&self, address: u64, line: usize) -> u64 {
        let shared = self.aliases().is_some_and(|aliases| aliases.is_shared(line));
        if shared { address_of(line) } else { address }
    }

    /// The object in the event of a turn of a contended line.
    pub(crate) fn object_of_turn(&self, line: u64) -> u64 {
        if self.sharing.one_order { order::ALL_ACCESSES } else { line }
    }

    /// Whether a thread gets a contended line when it has had it for long.
    pub(crate) fn calms(&self) -> bool {
        self.sharing.calms
    }

    fn may_read(&self, filter: &Filter, line: usize) -> bool {
        self.members(line).any(|line| filter.may_read(line))
    }

    fn forbid(&self, filter: &Filter, line: usize, reading: bool) {
        self.members(line).for_each(|line| filter.forbid(line, reading));
    }

    fn threads(&self) -> MutexGuard<'_, Vec<Option<Filter>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread is about to execute guest code; its executor stays until [`Self::leave`].
    pub(crate) fn enter(&self, thread: ThreadId, filter: Filter) {
        let mut threads = self.threads();
        if threads.len() <= thread.index() {
            threads.resize(thread.index() + 1, None);
        }
        threads[thread.index()] = Some(filter);
    }

    /// A thread executes no more guest code, and has said so with a ticket of
    /// [`order::ENDED_ACCESSES`].
    pub(crate) fn leave(&self, thread: ThreadId) {
        if let Some(filter) = self.threads().get_mut(thread.index()) {
            *filter = None;
        }
    }

    /// As long as the caller keeps the result, no thread takes a line over.
    pub(crate) fn still(&self) -> impl Drop + '_ {
        self.threads()
    }

    /// Only this thread goes on: the others are not in this process.
    pub(crate) fn keep_only(&self, thread: ThreadId) {
        for (index, filter) in self.threads().iter_mut().enumerate() {
            if index != thread.index() {
                *filter = None;
            }
        }
    }

    /// Looks what the thread may do without waiting for anybody, and claims what is nobody's. Its
    /// window is open. (Called by translated code: see `order::record`.)
    pub(crate) fn quick(
        &self,
        me: ThreadId,
        filter: &Filter,
        span: Span,
        claims: &mut Claims,
    ) -> Quick {
        let (mut contended, mut count) = ([0; 2], 0);
        for address in span.lines() {
            let here = index(address);
            let line = self.canonical(here);
            match self.states.get(line) {
                State::Unowned if self.states.claim(line, me) => {
                    self.permit(filter, here, true);
                    if line == here {
                        self.claim_more(me, filter, line, claims);
                    }
                }
                State::Owned { owner, .. } if owner == me => self.permit(filter, here, true),
                State::Shared { .. } if !span.write && self.may_read(filter, line) => {
                    self.permit(filter, here, false);
                }
                State::Contended if count < contended.len() => {
                    contended[count] = self.object(address, line);
                    count += 1;
                }
                _ => return Quick::Others,
            }
        }
        if count == 0 { Quick::Mine } else { Quick::Contended(contended, count) }
    }

    /// Whether a line, whose turn the caller has, is contended still: the object of a turn.
    pub(crate) fn is_contended(&self, address: u64) -> bool {
        self.states.get(index(address)) == State::Contended
    }

    /// A thread that claims one line after the other gets the next ones with it.
    fn claim_more(&self, me: ThreadId, filter: &Filter, line: usize, claims: &mut Claims) {
        claims.run = if line == claims.next { (claims.run * 2).clamp(1, RUN) } else { 0 };
        let last = (line + claims.run as usize).min(ENTRIES - 1);
        claims.next = line + 1;
        for line in line + 1..=last {
            if self.canonical(line) != line || !self.states.claim(line, me) {
                return;
            }
            self.permit(filter, line, true);
            claims.next = line + 1;
        }
    }

    /// Gets all lines of these spans for the thread, whatever that takes, has it `record` what it
    /// has got, and opens its window.
    pub(crate) fn acquire(
        &self,
        me: (ThreadId, &mut Runs),
        (spans, wish): (&[Span], Option<Wish>),
        (log, tickets): (&Log, &Tickets),
        record: impl FnOnce(Acquired),
    ) -> Result<(), Closed> {
        let threads = self.threads();
        self.acquire_from(&threads, me, (spans, wish), (log, tickets), record)
    }

    /// The same, with the lock.
    fn acquire_from(
        &self,
        threads: &[Option<Filter>],
        (me, runs): (ThreadId, &mut Runs),
        (spans, wish): (&[Span], Option<Wish>),
        (log, tickets): (&Log, &Tickets),
        record: impl FnOnce(Acquired),
    ) -> Result<(), Closed> {
        let Some(mine) = threads.get(me.index()).copied().flatten() else { return Ok(()) };
        let mut acquired = Acquired::default();
        let mut taking = Taking::new(self, threads, (me, runs));
        for &span in spans {
            taking.span(&mine, span, &mut acquired, tickets);
        }
        let Taking { losses, ended, becoming, .. } = taking;
        if ended {
            let slot = order::slot(order::ENDED_ACCESSES);
            acquired.awaited.push((order::ENDED_ACCESSES, tickets.given(slot)));
        }
        let mut losers: Vec<ThreadId> = losses.iter().map(|loss| loss.thread).collect();
        losers.sort_unstable();
        losers.dedup();
        for loser in losers {
            let Some(filter) = threads[loser.index()] else { continue };
            let lost = || losses.iter().filter(|loss| loss.thread == loser);
            let object = order::accesses_object(loser);
            let place = |_| self.outside(&filter, lost);
            let ticket = log.insert(loser, place, || {
                let ticket = tickets.take(order::slot(object));
                Event { code: EventKind::Handover as u8, object, ticket, ..Event::default() }
            })?;
            acquired.awaited.push((object, ticket + 1));
        }
        acquired.awaited.sort_unstable();
        acquired.awaited.dedup();
        acquired.contended.sort_unstable();
        acquired.contended.dedup();
        // Nobody else can be about to insert into this thread's stream: it would wait for the
        // window, and the thread for its stream.
        let wish = wish.filter(|wish| acquired.contended.contains(&wish.line));
        acquired.hands_over = wish.is_some_and(|wish| !wish.write);
        acquired.contended.iter_mut().for_each(|line| *line = self.object_of_turn(*line));
        record(acquired);
        // The thread has their turns: nobody has one before it.
        becoming.iter().for_each(|&line| self.states.set(line, State::Contended));
        if let Some(Wish { line, write }) = wish {
            // The thread has the line's turn: whoever waits for it looks again.
            let (line, taken) = (index(line), self.sharing.patience.saturating_sub(2));
            self.states.set(
                line,
                match write {
                    true => State::Owned { owner: me, taken },
                    false => State::Shared { writer: me, taken },
                },
            );
            self.permit(&mine, line, write);
        }
        mine.set_window(true);
        Ok(())
    }

    /// Two stretches of addresses, of whole pages, show the same memory from here on. If there are
    /// several threads, this one takes over all lines of both stretches first: whoever accesses
    /// them next waits for all that was done at either address. (The thread has the turns of
    /// contended lines until the caller ends them.)
    pub(crate) fn unite(
        &self,
        (me, alone): (ThreadId, bool),
        (first, second, len): (u64, u64, u64),
        ways: (&Log, &Tickets),
        record: impl FnOnce(Acquired),
    ) -> Result<(), Closed> {
        let threads = self.threads();
        let spans = [first, second].map(|start| Span { start, len, write: true });
        if !alone {
            let me = (me, &mut Runs::default());
            self.acquire_from(&threads, me, (&spans, None), ways, record)?;
        }
        let lines = || spans.iter().flat_map(|span| span.lines().map(index));
        let mut aliases = self.aliases().cloned().unwrap_or_default();
        let mut done = 0;
        while done < len {
            let (first, second) = (first + done, second + done);
            let count = ((len - done) / LINE).min(straight(first)).min(straight(second));
            aliases.unite(index(first), index(second), count as usize);
            done += count * LINE;
        }
        if !alone {
            // Their states stand at one of them now, and are these. (That the others have been accessed,
            // `accessed` finds where they lie.)
            let owned = State::Owned { owner: me, taken: 0 };
            lines().for_each(|line| {
                self.states.set(line, owned);
                self.states.set(self.canonical(line), owned);
            });
        }
        self.aliases.store(Box::into_raw(Box::new(aliases)), Ordering::Release);
        if let Some(mine) = threads.get(me.index()).copied().flatten() {
            lines().for_each(|line| self.forbid(&mine, self.canonical(line), true));
        }
        Ok(())
    }

    /// Takes over the pages of a stretch of memory that threads have accessed. No thread takes a line over
    /// until the caller drops the returned [`Still`]. (The thread's window is closed, since the caller is
    /// going to write events.)
    pub(crate) fn take_pages(
        &self,
        me: ThreadId,
        range: &Range<u64>,
        ways: (&Log, &Tickets),
        record: impl FnOnce(Acquired),
    ) -> Result<Still<'_>, Closed> {
        let threads = self.threads();
        let span =
            |page: &Range<u64>| Span { start: page.start, len: page.end - page.start, write: true };
        let spans: Vec<Span> = self.accessed(me, range).iter().map(span).collect();
        self.acquire_from(&threads, (me, &mut Runs::default()), (&spans, None), ways, record)?;
        if let Some(mine) = threads.get(me.index()).copied().flatten() {
            mine.set_window(false);
            self.give_up_code(&mine, range);
        }
        Ok(Still(threads))
    }

    /// The pages of a stretch of memory in which a thread has accessed a line, but for those that are the
    /// caller's anyway.
    fn accessed(&self, me: ThreadId, range: &Range<u64>) -> Vec<Range<u64>> {
        // The own state of a line with aliases says only that the line has been accessed.
        let alone = self.aliases().is_none().then_some(me);
        // A longer range would only come to the same indices once more.
        let end = range.end.min(range.start.saturating_add(ENTRIES as u64 * LINE));
        let mut start = range.start;
        let mut pages = Vec::new();
        while start < end {
            let (first, count) = (index(start), straight(start).min((end - start).div_ceil(LINE)));
            let address = |line: usize| start + (line - first) as u64 * LINE;
            let lines = self.states.accessed(first..first + count as usize, alone);
            pages.extend(lines.into_iter().map(|it| address(it.start)..address(it.end)));
            start += count * LINE;
        }
        pages
    }

    /// How many accesses a thread has made that has lost these lines, and knows it. The processors
    /// have been ordered once since its entries were cleared.
    fn outside<'a, L: Iterator<Item = &'a Loss>>(
        &self,
        filter: &Filter,
        lost: impl Fn() -> L,
    ) -> u64 {
        loop {
            let count = filter.settled();
            // It may have claimed the line just before it lost it, and entered it only now.
            let still = |loss: &Loss| {
                self.members(loss.line).any(|line| filter.mentions(line, loss.reading))
            };
            if !lost().any(still) {
                return count;
            }
            lost().for_each(|loss| self.forbid(filter, loss.line, loss.reading));
            self.barrier.heavy();
        }
    }
}

/// Lines that are being taken over, under the lock.
struct Taking<'a> {
    lines: &'a Lines,
    threads: &'a [Option<Filter>],
    me: ThreadId,
    runs: &'a mut Runs,
    losses: Vec<Loss>,
    /// Some of them were accessed by threads that have ended.
    ended: bool,
    /// Lines that are contended once the thread has their turns.
    becoming: Vec<usize>,
    /// That lines are taken over now says something about how often they are.
    counts: bool,
}

impl<'a> Taking<'a> {
    fn new(
        lines: &'a Lines,
        threads: &'a [Option<Filter>],
        (me, runs): (ThreadId, &'a mut Runs),
    ) -> Taking<'a> {
        let (losses, becoming) = (Vec::new(), Vec::new());
        Taking { lines, threads, me, runs, losses, ended: false, becoming, counts: true }
    }

    /// Takes over what the thread needs for an access, and what comes with it.
    fn span(&mut self, mine: &Filter, span: Span, acquired: &mut Acquired, tickets: &Tickets) {
        // A buffer changes hands, which it may do as often as it likes.
        self.counts = span.len < BUFFER as u64 * LINE;
        for address in span.lines() {
            let line = index(address);
            let before = self.line(mine, line, span.write, acquired, (address, tickets));
            if span.len <= LINE {
                self.neighbours(mine, (line, before), span.write, acquired, tickets);
            }
        }
    }

    /// Takes a line over, if need be; what it was before, if the thread could not access it by itself,
    /// and can now.
    fn line(
        &mut self,
        mine: &Filter,
        line: usize,
        write: bool,
        acquired: &mut Acquired,
        (address, tickets): (u64, &Tickets),
    ) -> Option<State> {
        let me = self.me;
        let here = line;
        let line = self.lines.canonical(here);
        if self.becoming.contains(&line) {
            return None;
        }
        let mut state = self.lines.states.get(line);
        if state == State::Unowned {
            // Somebody else may claim it at the same moment.
            state = match self.lines.states.claim(line, me) {
                true => State::Owned { owner: me, taken: 0 },
                false => self.lines.states.get(line),
            };
        }
        let had = if write { mine.may_write(here) } else { mine.may_read(here) };
        let (patience, counts) = (self.lines.sharing.patience, self.counts);
        let next = self.next(
            (line, state),
            write,
            mine,
            |taken| match taken >= patience {
                true => State::Contended,
                false => State::Owned { owner: me, taken: taken + u32::from(counts) },
            },
            (acquired, tickets),
        );
        match next {
            State::Contended if state != next => {
                self.lines.states.set(line, State::Owned { owner: me, taken: patience });
                self.becoming.push(line);
            }
            _ if next != state => self.lines.states.set(line, next),
            _ => {}
        }
        match next {
            State::Owned { .. } => self.lines.permit(mine, here, true),
            State::Shared { .. } => self.lines.permit(mine, here, false),
            State::Contended => {
                self.lines.forbid(mine, line, true);
                acquired.contended.push(self.lines.object(address, line));
            }
            State::Unowned => {}
        }
        (!had && next != State::Contended).then_some(state)
    }

    /// What a line is once the thread has it, of which others are told that they lose it. `owned` says
    /// what a line is that the thread gets for itself.
    fn next(
        &mut self,
        (line, state): (usize, State),
        write: bool,
        mine: &Filter,
        owned: impl Fn(u32) -> State,
        (acquired, tickets): (&mut Acquired, &Tickets),
    ) -> State {
        let me = self.me;
        match state {
            State::Unowned => unreachable!("nobody gives a line back"),
            State::Contended => State::Contended,
            State::Owned { owner, .. } if owner == me => state,
            State::Owned { owner, taken } => match owned(taken) {
                State::Owned { taken, .. } if !write && self.is_there(owner) => {
                    self.lose(owner, line, false);
                    State::Shared { writer: owner, taken }
                }
                next => {
                    self.lose(owner, line, true);
                    next
                }
            },
            State::Shared { writer, .. } if !write => {
                if !self.lines.may_read(mine, line) && writer != me {
                    self.await_thread(writer, acquired, tickets);
                }
                state
            }
            State::Shared { writer, taken } => {
                self.await_thread(writer, acquired, tickets);
                for index in 0..self.threads.len() {
                    let thread = ThreadId(index as u32);
                    let reads = |filter: &Filter| self.lines.may_read(filter, line);
                    if thread != me && self.threads[index].as_ref().is_some_and(reads) {
                        self.lose(thread, line, true);
                    }
                }
                // Threads that have ended may have read it.
                self.ended |= self.threads.iter().any(Option::is_none);
                owned(taken)
            }
        }
    }

    /// The thread has taken over a line, whose state was `before`. If the thread takes over one line
    /// after the other, this takes over those that follow as well, as far as they have that state.
    fn neighbours(
        &mut self,
        mine: &Filter,
        (line, before): (usize, Option<State>),
        write: bool,
        acquired: &mut Acquired,
        tickets: &Tickets,
    ) {
        let (Some(before), me) = (before, self.me) else { return };
        // (Those of memory that is mapped twice lie elsewhere, too.)
        if !self.lines.sharing.calms || self.lines.aliases().is_some() {
            return;
        }
        let has = |line| if write { mine.may_write(line) } else { mine.may_read(line) };
        let is_contended = |line| self.lines.states.get(line) == State::Contended;
        let neighbours = self.runs.take(line, |line| has(line) || is_contended(line));
        let (behind, in_front) = match neighbours {
            Neighbours::None => return,
            Neighbours::Behind(more) => (line + 1..(line + 1 + more).min(ENTRIES), line..line),
            Neighbours::Before(more) => (line..line, line.saturating_sub(more)..line),
            Neighbours::Page => (line + 1..page(line).end, page(line).start..line),
        };
        let mut taken_along = 0;
        let mut take = |line: usize| {
            let state = self.lines.states.get(line);
            let is_same = state.is_as(before) && !has(line);
            if is_same {
                // What comes with another line says nothing about how often this one is used.
                let owned = |taken| State::Owned { owner: me, taken };
                let next = self.next((line, state), write, mine, owned, (acquired, tickets));
                self.lines.states.set(line, next);
                self.lines.permit(mine, line, matches!(next, State::Owned { .. }));
                taken_along += 1;
            }
            is_same || state == State::Contended || neighbours == Neighbours::Page
        };
        let _ = behind.into_iter().all(&mut take) && in_front.rev().all(take);
        if taken_along >= BUFFER {
            // It was a buffer.
            self.lines.states.set(line, self.lines.states.get(line).forgiven());
        }
    }

    fn is_there(&self, thread: ThreadId) -> bool {
        self.threads.get(thread.index()).is_some_and(Option::is_some)
    }

    /// The thread may not access the line any more.
    fn lose(&mut self, thread: ThreadId, line: usize, reading: bool) {
        match self.threads.get(thread.index()).copied().flatten() {
            Some(filter) => {
                self.lines.forbid(&filter, line, reading);
                self.losses.push(Loss { thread, line, reading });
            }
            None => self.ended = true,
        }
    }

    /// What the thread has handed over so far comes before.
    fn await_thread(&mut self, thread: ThreadId, acquired: &mut Acquired, tickets: &Tickets) {
        if !self.is_there(thread) {
            self.ended = true;
        } else if thread != self.me {
            let object = order::accesses_object(thread);
            acquired.awaited.push((object, tickets.given(order::slot(object))));
        }
    }
}

#[cfg(test)]
mod tests;
