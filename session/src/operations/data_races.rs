//! Which accesses of a recorded run the program does not order.
//!
//! One replay finds the pairs; a second one passes the same accesses again and keeps where the threads
//! are (`machine/stacks`). What is found is put together by pairs of places in the source.

use super::racing::{code, incomplete, libraries, merge, must_be_searchable};
use crate::data_races::{Access, Creator, DataRace, DataRaces, Lock, Thread, Word};
use crate::error::{Context, bail};
use crate::machine::{Held, Moment, Point, RaceSearch, Raced, Seen, Snapshot};
use crate::protocol::Request;
use crate::session::Session;
use crate::symbols::{Code, Frame, Place, Symbols, variables};
use crate::trace_file;
use refrain_analysis::{Act, Atomics, Block, Code as ProgramCode, Race, Side};
use refrain_trace::payload::Effect;
use refrain_trace::{EventId, HAS_PAYLOAD, ThreadId, Trace, linux};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

/// Replays that are tried where one leaves the recording, or does not come to all that it is to look at:
/// what races may take another way the next time.
const ATTEMPTS: u32 = 3;

/// Pairs of instructions that are looked at a second time. A program in which more race has no use for
/// more stacks.
const LOOKED_AT: usize = 250;

impl Session {
    /// What races in the program of the trace at `path`, whatever its replay keeps in order: pairs of
    /// accesses that the program does not order, with the stacks and the locks of both.
    pub fn races(&self, path: &Path, atomics: Atomics) -> crate::Result<DataRaces> {
        let trace = trace_file::read(path)?;
        must_be_searchable(path, &trace)?;
        let code = ProgramCode { atomics, ..code(trace.modules()) };
        let found = self.found(path, &code)?;
        let mut races = merge(found.races);
        let in_system = InSystem::of(&trace);
        races.sort_by_key(|race| (in_system.both(race), Reverse(race.count)));
        let creations = creations(&trace)?;
        let mut points = Points::default();
        let wanted: Vec<Wanted> =
            races.iter().take(LOOKED_AT).map(|race| points.of_race(race)).collect();
        let threads = involved(&races);
        let created: Vec<_> = threads
            .iter()
            .map(|thread| {
                let &(creator, event) = creations.get(thread)?;
                let at = points.add(Point { thread: creator, moment: Moment::Event(event) });
                Some((creator, at))
            })
            .collect();
        let seen = self.seen(path, &points.all, &code)?;
        let mut scene = Scene { symbols: Symbols::new(trace.modules()), seen, in_system };
        let unseen = std::iter::repeat(Wanted::default());
        let all = races.iter().zip(wanted.into_iter().chain(unseen));
        let all: Vec<DataRace> = all.map(|(race, wanted)| scene.race(race, wanted)).collect();
        let threads = threads.iter().zip(created).map(|(&thread, created)| Thread {
            thread,
            creator: created.map(|(thread, at)| Creator { thread, stack: scene.called(at) }),
        });
        Ok(DataRaces {
            command: trace.header().argv.join(" "),
            threads: threads.collect(),
            races: by_place(all),
            incomplete: incomplete(&trace, found.divergence.as_ref()),
            recorded_threads: trace.threads().into(),
            recorded_events: trace.events(),
        })
    }

    /// What races, by a replay to the end of the recording if there is one.
    fn found(&self, path: &Path, code: &ProgramCode) -> crate::Result<Raced> {
        let request = Request::Races(RaceSearch::Program(code.clone()));
        let attempt = || {
            self.ask(self.open(path)?, &request)
                .with_context(|| format!("cannot search {}", path.display()))
        };
        let mut found: Raced = attempt()?;
        for _ in 1..ATTEMPTS {
            if found.divergence.is_none() {
                break;
            }
            found = attempt()?;
        }
        Ok(found)
    }

    /// Where threads are at these points.
    fn seen(&self, path: &Path, points: &[Point], code: &ProgramCode) -> crate::Result<Seen> {
        let mut seen = Seen { snapshots: vec![None; points.len()], stacks: Vec::new() };
        for _ in 0..ATTEMPTS {
            if seen.snapshots.iter().all(Option::is_some) {
                break;
            }
            let more = self
                .stacks(path, points, code)
                .with_context(|| format!("cannot look at the stacks of {}", path.display()))?;
            for (seen, more) in seen.snapshots.iter_mut().zip(more.snapshots) {
                *seen = seen.take().or(more);
            }
            seen.stacks = more.stacks;
        }
        Ok(seen)
    }

    /// The same, by one replay.
    fn stacks(&self, path: &Path, points: &[Point], code: &ProgramCode) -> crate::Result<Seen> {
        let request = Request::Stacks(points.to_vec(), code.clone());
        let seen: Seen = self.ask(self.open(path)?, &request)?;
        match seen.snapshots.len() == points.len() {
            true => Ok(seen),
            false => {
                bail!(Child, "the replay process gave more or fewer answers than it was asked for")
            }
        }
    }
}

/// Races between the same places of the source are one; the first of them is kept.
fn by_place(races: Vec<DataRace>) -> Vec<DataRace> {
    let mut groups: Vec<DataRace> = Vec::new();
    let mut known: BTreeMap<([String; 2], bool), usize> = BTreeMap::new();
    for race in races {
        let mut places =
            race.sides().map(|side| side.place().map_or_else(String::new, Place::short));
        places.sort();
        let key = (places, race.after_free);
        match known.get(&key) {
            Some(&at) => {
                let group = &mut groups[at];
                group.count += race.count;
                group.instructions += race.instructions;
                group.in_library &= race.in_library;
            }
            None => {
                known.insert(key, groups.len());
                groups.push(race);
            }
        }
    }
    groups
}

/// The threads of races.
fn involved(races: &[Race]) -> Vec<ThreadId> {
    let sides =
        races.iter().take(LOOKED_AT).flat_map(|race| [race.first.thread, race.second.thread]);
    let mut threads: Vec<ThreadId> = sides.collect();
    threads.sort_unstable();
    threads.dedup();
    threads
}

/// By thread: who has created it, in which event.
fn creations(trace: &Trace) -> crate::Result<BTreeMap<ThreadId, (ThreadId, EventId)>> {
    let mut creations = BTreeMap::new();
    for thread in (0..trace.threads()).map(ThreadId) {
        let mut cursor = trace.cursor(thread);
        loop {
            let id = cursor.position();
            let Some(event) = cursor.next()? else { break };
            let creates = event.kind() == refrain_trace::EventKind::Syscall
                && linux::creates_threads(event.nr)
                && event.flags & HAS_PAYLOAD != 0;
            if creates
                && let Some(record) = cursor.payload()?
                && let Effect::Clone { child } = record.effect
            {
                creations.insert(child, (thread, id));
            }
        }
    }
    Ok(creations)
}

/// The points of a race, by their positions.
#[derive(Clone, Copy, Default)]
struct Wanted {
    first: Option<usize>,
    second: Option<usize>,
    allocation: Option<usize>,
}

/// All points that are looked for.
#[derive(Default)]
struct Points {
    all: Vec<Point>,
}

impl Points {
    fn add(&mut self, point: Point) -> usize {
        self.all.push(point);
        self.all.len() - 1
    }

    fn of_race(&mut self, race: &Race) -> Wanted {
        let mut access = |side: &Side| {
            // Of both sides, only bytes that they have in common are known.
            let address = race.first.address.max(race.second.address);
            let (event, pc) = (side.event, side.pc);
            let moment = match side.is_a_call() {
                true => Moment::Call { event, pc },
                false => Moment::Access { event, pc, address },
            };
            Some(self.add(Point { thread: side.thread, moment }))
        };
        let (first, second) = (access(&race.first), access(&race.second));
        let allocation = race.block.map(|block| {
            self.add(Point { thread: block.thread, moment: Moment::Allocation(block.number) })
        });
        Wanted { first, second, allocation }
    }
}

/// Which code is the system's.
struct InSystem {
    modules: Vec<std::ops::Range<u64>>,
    /// Of these, the C library and the standard library of C++.
    c: Vec<std::ops::Range<u64>>,
    cpp: Vec<std::ops::Range<u64>>,
}

impl InSystem {
    fn of(trace: &Trace) -> InSystem {
        let range = |module: &refrain_trace::Module| module.start..module.end;
        let named = |start: &'static str| {
            let of_name = move |module: &&refrain_trace::Module| {
                let name = module.path.rsplit('/').next().unwrap_or_default();
                name.starts_with(start)
            };
            trace.modules().iter().filter(of_name).map(range)
        };
        InSystem {
            modules: libraries(trace, false),
            c: libraries(trace, true),
            cpp: named("libstdc++").chain(named("libc++")).collect(),
        }
    }

    fn has(&self, address: u64) -> bool {
        self.modules.iter().any(|module| module.contains(&address))
    }

    fn both(&self, race: &Race) -> bool {
        self.has(race.first.pc) && self.has(race.second.pc)
    }

    fn is_c(&self, address: u64) -> bool {
        self.c.iter().any(|module| module.contains(&address))
    }

    fn is_cpp(&self, address: u64) -> bool {
        self.cpp.iter().any(|module| module.contains(&address))
    }
}

/// What is needed to describe a race.
struct Scene {
    symbols: Symbols,
    seen: Seen,
    in_system: InSystem,
}

impl Scene {
    fn snapshot(&self, at: Option<usize>) -> Option<&Snapshot> {
        self.seen.snapshots.get(at?)?.as_ref()
    }

    fn race(&mut self, race: &Race, wanted: Wanted) -> DataRace {
        let word = self.word(race, wanted);
        let first = self.access(&race.first, wanted.first);
        let second = self.access(&race.second, wanted.second);
        let are_inlined = || {
            let code = [&first, &second].iter().all(|side| self.is_library_code(side));
            code && matches!(word, Word::Global(_))
        };
        let in_library = (self.in_system.both(race) || are_inlined())
            && self.is_the_library_s(race, &word, wanted);
        let (count, after_free) = (race.count, race.after_free);
        DataRace { first, second, word, count, instructions: 1, in_library, after_free }
    }

    fn access(&mut self, side: &Side, at: Option<usize>) -> Access {
        let snapshot = self.snapshot(at).cloned();
        let mut codes = Vec::new();
        let calls = snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.calls);
        // A call that has not returned is the innermost one already.
        let is_called =
            calls.first().is_some_and(|call| (1..16).contains(&side.pc.wrapping_sub(*call)));
        match side.is_a_call() {
            true if is_called => {}
            true => codes.push(Code::After(side.pc)),
            false => codes.push(Code::At(side.pc)),
        }
        codes.extend(calls.iter().map(|&call| Code::At(call)));
        let locks = snapshot.iter().flat_map(|snapshot| &snapshot.held);
        let locks = locks.map(|held| self.lock(held)).collect();
        let stack = self.stack(codes);
        let own = stack.iter().position(|place| !self.in_system.has(place.pc));
        Access {
            thread: side.thread,
            event: side.event,
            access: noun(side).to_owned(),
            address: side.address,
            size: side.size,
            stack,
            site: own.unwrap_or(0),
            is_whole: snapshot.is_some(),
            locks,
        }
    }

    fn lock(&mut self, held: &Held) -> Lock {
        let codes = held.calls.iter().map(|&call| Code::At(call)).collect();
        Lock { address: held.address, writing: held.writing, stack: self.stack(codes) }
    }

    /// The calls at a point.
    fn called(&mut self, at: usize) -> Vec<Place> {
        let calls = self.snapshot(Some(at)).map(|snapshot| snapshot.calls.clone());
        self.stack(calls.unwrap_or_default().into_iter().map(Code::At).collect())
    }

    /// A stack without the C library's own frames: those inside of the library's function that the
    /// program called, and those that called `main` or a thread's function.
    fn stack(&mut self, mut codes: Vec<Code>) -> Vec<Place> {
        let is_c = |code: &Code| self.in_system.is_c(code.pc());
        if let [inner @ .., before, start] = &codes[..]
            && is_c(before)
            && !is_c(start)
            && !inner.iter().all(is_c)
        {
            codes.pop();
        }
        let own = codes.iter().take_while(|code| is_c(code)).count();
        if own < codes.len() {
            let start = codes.iter().rev().take_while(|code| is_c(code)).count();
            codes.truncate(codes.len() - start);
            codes.drain(..own.saturating_sub(1));
        }
        self.symbols.places(&codes)
    }

    fn word(&mut self, race: &Race, wanted: Wanted) -> Word {
        if let Some(number) = race.first.descriptor() {
            return Word::Descriptor { number };
        }
        if let Some(Block { start, size, thread, .. }) = race.block {
            let stack = wanted.allocation.map(|at| self.called(at)).unwrap_or_default();
            return Word::Heap { start, size, thread, stack };
        }
        for (side, at) in [(&race.first, wanted.first), (&race.second, wanted.second)] {
            if let Some(pc) = self.snapshot(at).and_then(|snapshot| snapshot.local) {
                let function = Some(self.symbols.place(Code::At(pc)));
                return Word::Local { thread: side.thread, function };
            }
        }
        let address = race.first.address.max(race.second.address);
        if let Some(variable) = variables::at(address, &mut self.symbols) {
            return Word::Global(variable);
        }
        match self.seen.owner(address) {
            Some(thread) => Word::Local { thread, function: None },
            None => Word::Unknown,
        }
    }

    /// Whether code is a library's, be it inlined into the program.
    fn is_library_code(&self, side: &Access) -> bool {
        let Some(innermost) = side.stack.first() else { return false };
        self.in_system.has(innermost.pc)
            || innermost.frames.first().is_some_and(Frame::is_of_a_library)
    }

    /// Whether the memory belongs to a library of the system, or is nobody's. What the standard library
    /// of C++ allocates is its caller's.
    fn is_the_library_s(&self, race: &Race, word: &Word, wanted: Wanted) -> bool {
        let calls = |at| self.snapshot(at).map_or(&[][..], |snapshot| &snapshot.calls);
        match word {
            Word::Global(variable) => {
                let address = race.first.address.max(race.second.address);
                variable.is_a_copy || self.in_system.has(address)
            }
            Word::Heap { .. } => {
                let mut calls = calls(wanted.allocation).iter();
                let owner = calls.find(|call| !self.in_system.is_cpp(**call));
                owner.is_none_or(|&call| self.in_system.has(call))
            }
            Word::Local { function, .. } => {
                function.as_ref().is_none_or(|function| self.in_system.has(function.pc))
            }
            Word::Descriptor { .. } => [wanted.first, wanted.second].into_iter().any(|at| {
                let caller = calls(at).first();
                caller.is_none_or(|&call| self.in_system.has(call))
            }),
            Word::Unknown => true,
        }
    }
}

/// What a side does.
fn noun(side: &Side) -> &'static str {
    match (side.act, side.reads, side.writes) {
        (Act::Plain, true, true) => "update",
        (Act::Plain, _, true) => "write",
        (Act::Plain, ..) => "read",
        (Act::Atomic, true, true) => "atomic update",
        (Act::Atomic, _, true) => "atomic write",
        // To the processor, an atomic load is a plain one.
        (Act::Atomic, ..) => "read",
        (Act::Kernel, _, true) => "write by the kernel",
        (Act::Kernel, ..) => "read by the kernel",
        (Act::Lock, ..) => "use of a lock",
        (Act::Destroy, ..) => "destruction of a lock",
        (Act::Free, ..) => "free",
        (Act::Unmap, ..) => "unmapping",
        (Act::Descriptor, ..) => "use of a descriptor",
        (Act::Close, ..) => "close",
    }
}
