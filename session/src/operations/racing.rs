//! Explaining a divergence: a second replay, under a race detector, finds the accesses that raced.

use crate::error::{Context, bail};
use crate::machine::{self, RaceSearch, Raced};
use crate::protocol::Request;
use crate::races::{Pair, Races, Side};
use crate::replayed::Divergence;
use crate::session::{Piece, Session};
use crate::sites::{self, Profile};
use crate::symbols::{self, Code, Symbols};
use crate::trace_file;
use refrain_analysis::{self as analysis, Act, Atomics, Code as ProgramCode, Tapped};
use refrain_trace::payload::{Effect, SyscallRecord};
use refrain_trace::{Event, EventId, EventKind, Executed, Module, ThreadId, Trace, common};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// Processor time for the search for what made a replay diverge. Nobody has asked for it, and if it
/// finds nothing, the next recording orders every access and needs no search.
const EXPLAINING: Duration = Duration::from_secs(60);

/// Looks at the next steps of threads.
pub type Look<'a> = dyn FnMut(&[(u32, Tapped)]) + 'a;

impl Session {
    /// Explains why an exact replay has diverged, and, if it `learns`, sees to it that the next recording
    /// of the program does better. `None` if every access was recorded, and nothing else is known that
    /// is not: then nothing races.
    pub fn explain(
        &self,
        path: &Path,
        divergence: &Divergence,
        learns: bool,
    ) -> crate::Result<Option<Races>> {
        let trace = trace_file::read(path)?;
        let program = program_at(&trace, divergence)?;
        let shares_memory = says_of_areas(&trace, common::LEFT_OUT)?;
        let unwatched = says_of_areas(&trace, common::UNWATCHED)?;
        let recording = trace.header().started_unix_ns;
        if trace.header().order.is_of_every_access() {
            if !shares_memory && !unwatched {
                if learns {
                    sites::change(|known| known.forget(&program))?;
                }
                return Ok(None);
            }
            let mut races = Races { shares_memory, unwatched, ..Races::default() };
            if learns {
                sites::change(|known| match unwatched {
                    true => races.watched = known.watches(&program, recording, 0),
                    false => known.forget(&program),
                })?;
            }
            return Ok(Some(races));
        }
        let mut races = match divergence.is_endless() {
            true => {
                let why = "a thread computes without end, and would do so again in the search";
                Races { error: Some(why.into()), ..Races::default() }
            }
            false => self.cause(path, Some(divergence)),
        };
        races.shares_memory = shares_memory;
        races.unwatched = unwatched;
        if learns {
            let found = Profile::of(&races, trace.modules());
            sites::change(|known| {
                races.learned_before = known.has_learned_of(&program, recording);
                let new = known.add(found);
                races.learned = Some(new as u64);
                races.watched = unwatched && known.watches(&program, recording, new);
                races.every_access = !races.watched
                    && trace.threads() > 1
                    && known.diverged(&program, recording, new);
            })?;
        }
        Ok(Some(races))
    }

    /// Finds what races, up to a divergence if there is one. That the search fails is an answer too.
    pub fn cause(&self, path: &Path, divergence: Option<&Divergence>) -> Races {
        self.search(path, divergence)
            .unwrap_or_else(|error| Races { error: Some(error.chain()), ..Races::default() })
    }

    fn search(&self, path: &Path, divergence: Option<&Divergence>) -> crate::Result<Races> {
        let trace = trace_file::read(path)?;
        // What the event itself does may race too.
        let search = match divergence {
            // The replay that is searched is the original's, so it does not diverge.
            _ if trace.is_transformed() => RaceSearch::Transformed,
            Some(at) => RaceSearch::Divergence(at.thread, EventId(at.event.0.saturating_add(1))),
            None => RaceSearch::Program(code(trace.modules())),
        };
        let (file, request) = (self.open(path)?, Request::Races(search));
        let found: Raced = match divergence {
            Some(_) => self.ask_within(EXPLAINING, file, &request)?,
            None => self.ask(file, &request)?,
        };
        let cause = Cause::new(&trace, divergence)?;
        let watched = match divergence {
            Some(_) => machine::watched_sites(&trace.blocks()?),
            None => BTreeSet::new(),
        };
        let mut races = unordered(merge(found.races), &watched);
        races.sort_by_key(|race| cause.distance(race));
        let mut symbols = Symbols::new(trace.modules());
        let pair = |race: &analysis::Race| Pair {
            count: race.count,
            in_library: cause.is_library(race),
            first: side(&race.first, &watched, &mut symbols),
            second: side(&race.second, &watched, &mut symbols),
        };
        Ok(Races { pairs: races.iter().map(pair).collect(), ..Races::default() })
    }

    /// Shows `look` what the threads of a trace do, in one order; why these are not all steps, if so.
    pub fn steps(
        &self,
        path: &Path,
        (trace, atomics): (&Trace, Atomics),
        look: &mut Look<'_>,
    ) -> crate::Result<Option<String>> {
        must_be_searchable(path, trace)?;
        let request = Request::Steps(ProgramCode { atomics, ..code(trace.modules()) });
        let mut pieces = |piece: Piece<'_>| {
            if let Piece::Steps(steps) = piece {
                look(steps);
            }
        };
        let file = self.open(path)?;
        let divergence = self.ask_in_pieces(file, &request, &mut pieces);
        let divergence: Option<Divergence> =
            divergence.with_context(|| format!("cannot replay {}", path.display()))?;
        Ok(incomplete(trace, divergence.as_ref()))
    }
}

/// The program that a divergence is in, as it was started: the first one, or one that it has executed.
fn program_at(trace: &Trace, divergence: &Divergence) -> crate::Result<String> {
    // Programs execute others in their first thread, mostly before they have a second one.
    let first = ThreadId(0);
    let mut cursor = trace.cursor(first);
    let mut program = trace.modules().first();
    let mut argv = trace.header().argv.clone();
    while let Some(event) = cursor.next()? {
        if divergence.thread == first && cursor.position() > divergence.event {
            break;
        }
        if event.kind() == EventKind::Syscall
            && event.has_payload()
            && let Some(SyscallRecord { effect: Effect::Exec { image }, .. }) = cursor.payload()?
            && let Some(executed) = Executed::from_bytes(&trace.blob(image)?)
        {
            let is_it = |module: &&Module| module.path == executed.program;
            program = trace.modules().iter().rev().find(is_it).or(program);
            argv = executed.argv;
        }
    }
    let identity = program.map(Module::identity).unwrap_or_default();
    Ok(sites::started(&identity, &argv))
}

/// Whether an event of memory in common with other processes says this: that what these have written may be
/// missing from the trace.
fn says_of_areas(trace: &Trace, what: u64) -> crate::Result<bool> {
    for thread in (0..trace.threads()).map(ThreadId) {
        let mut cursor = trace.cursor(thread);
        while let Some(event) = cursor.next()? {
            let is_of_areas = (event.kind(), event.nr) == (EventKind::Common, common::AREAS);
            if is_of_areas && event.aux & what != 0 {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Refuses a trace in which nothing can race.
pub fn must_be_searchable(path: &Path, trace: &Trace) -> crate::Result<()> {
    if trace.header().order.is_of_every_access() {
        bail!(
            Refused,
            "{}: has the order of every access (--order {}), in which nothing races; look for \
             races in a recording with --order sync",
            path.display(),
            trace.header().order.name()
        );
    }
    Ok(())
}

/// Why not all of the program was searched.
pub(super) fn incomplete(trace: &Trace, divergence: Option<&Divergence>) -> Option<String> {
    let diverged = divergence.map(|at| {
        format!("the replay left the recording at {} {}, and ended there", at.thread, at.event)
    });
    diverged.or_else(|| trace.is_truncated().then(|| "the recording was cut off".to_owned()))
}

/// What the files of the modules tell of their code.
pub(super) fn code(modules: &[Module]) -> ProgramCode {
    let range = |module: &Module| module.start..module.end;
    let libraries = || system_libraries(modules);
    let c_library = libraries().filter(|module| is_c_library(module) || is_loader(module));
    let c_libraries = || libraries().filter(|module| is_c_library(module));
    let others = libraries().filter(|module| !is_c_library(module));
    let is_system = |module: &Module| libraries().any(|it| it.start == module.start);
    let one_step = modules.iter().map(|it| symbols::one_step::functions(it, is_system(it)));
    let tasks = || modules.iter().map(symbols::tasking::library).zip(modules);
    let bodies = tasks().filter_map(|(library, module)| Some((range(module), library.calls?)));
    let tables: Vec<_> = modules.iter().map(symbols::vtables::of).collect();
    let mut ranges: Vec<_> = tables.iter().flat_map(|it| it.tables.iter().cloned()).collect();
    ranges.sort_unstable_by_key(|table| table.start);
    ProgramCode {
        tasking: tasks().flat_map(|(library, _)| library.functions).collect(),
        runtimes: bodies.collect(),
        local: modules.iter().map(symbols::tasking::local).sum(),
        silent: c_library.map(range).collect(),
        trusted: others.map(range).collect(),
        one_step: one_step.flatten().collect(),
        tables: ranges,
        table_words: tables.iter().flat_map(|it| &it.words).copied().collect(),
        allocator_code: c_libraries().filter_map(symbols::one_step::code).collect(),
        ..ProgramCode::default()
    }
}

/// The dynamic loader, which is a part of the C library.
fn is_loader(module: &Module) -> bool {
    let name = Path::new(&module.path).file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b"ld-")
}

/// The library whose functions are recorded as events.
fn is_c_library(module: &Module) -> bool {
    module.hooks.iter().any(|(_, name)| name == "pthread_create")
}

/// Races of the same two instructions are one, whichever threads executed them; the last of each
/// pair of threads is kept with it, nearest to the divergence.
pub(super) fn merge(races: Vec<analysis::Race>) -> Vec<analysis::Race> {
    let mut merged: BTreeMap<(u64, u64, bool), analysis::Race> = BTreeMap::new();
    for race in races {
        let (a, b) = (race.first.pc, race.second.pc);
        let there = merged.entry((a.min(b), a.max(b), race.after_free));
        there
            .and_modify(|there| {
                let count = there.count + race.count;
                if last(&race) > last(there) {
                    *there = race.clone();
                }
                there.count = count;
            })
            .or_insert(race);
    }
    merged.into_values().collect()
}

fn last(race: &analysis::Race) -> EventId {
    race.first.event.max(race.second.event)
}

/// What is known of a divergence.
struct Cause<'a> {
    /// Where races are not the program's own.
    libraries: Vec<Range<u64>>,
    divergence: Option<&'a Divergence>,
    /// The object that the diverging event was about, in memory.
    object: Option<u64>,
}

/// A lesser one is more likely to be the cause.
type Distance = (bool, bool, bool, u64, Reverse<u64>);

impl<'a> Cause<'a> {
    fn new(trace: &Trace, divergence: Option<&'a Divergence>) -> crate::Result<Cause<'a>> {
        let event = divergence.map_or(Ok(None), |divergence| event_at(trace, divergence))?;
        let object = event.and_then(|event| match event.kind() {
            EventKind::Syscall => None,
            _ => Some(event.object).filter(|&object| object > refrain_trace::order::THREADS),
        });
        Ok(Cause { libraries: libraries(trace, divergence.is_some()), divergence, object })
    }

    /// First what is about the address that the replay diverged on, then what the diverging
    /// thread did last. Libraries have races of their own that do no harm.
    fn distance(&self, race: &analysis::Race) -> Distance {
        let sides = [&race.first, &race.second];
        let touches = |object: u64| {
            sides.iter().any(|side| (side.address..side.address + side.size).contains(&object))
        };
        let before = self.divergence.and_then(|at| {
            let own = sides.iter().filter(|side| side.thread == at.thread);
            own.map(|side| at.event.0.saturating_sub(side.event.0)).min()
        });
        (
            self.is_library(race),
            !self.object.is_some_and(touches),
            before.is_none(),
            before.unwrap_or(0),
            Reverse(race.count),
        )
    }

    fn is_library(&self, race: &analysis::Race) -> bool {
        let in_library = |pc| self.libraries.iter().any(|library| library.contains(&pc));
        in_library(race.first.pc) && in_library(race.second.pc)
    }
}

/// The libraries whose own races are not the program's: to explain a divergence, the C library; else all
/// that come with the system.
pub fn libraries(trace: &Trace, explains: bool) -> Vec<Range<u64>> {
    let range = |module: &Module| module.start..module.end;
    match explains {
        true => trace.modules().iter().filter(|module| is_c_library(module)).map(range).collect(),
        false => system_libraries(trace.modules()).map(range).collect(),
    }
}

/// What comes with the system, the C library included. The first module is the program.
fn system_libraries(modules: &[Module]) -> impl Iterator<Item = &Module> {
    let is_system = |module: &Module| {
        let directories = ["/usr/lib", "/usr/lib64", "/lib", "/lib64"];
        directories.iter().any(|directory| Path::new(&module.path).starts_with(directory))
    };
    let modules = modules.iter().enumerate();
    let own =
        modules.filter(move |&(at, module)| is_c_library(module) || at > 0 && is_system(module));
    own.map(|(_, module)| module)
}

/// The recorded event that the replay diverged at.
fn event_at(trace: &Trace, divergence: &Divergence) -> crate::Result<Option<Event>> {
    let mut cursor = trace.cursor(divergence.thread);
    while cursor.position() < divergence.event {
        if cursor.next()?.is_none() {
            return Ok(None);
        }
    }
    Ok(cursor.next()?)
}

/// The races that may make a replay diverge: accesses that the recording watched on both sides happen in the
/// replay as in the recording. All, if there are no others.
fn unordered(races: Vec<analysis::Race>, watched: &BTreeSet<u64>) -> Vec<analysis::Race> {
    let is_ordered = |side: &analysis::Side| side.act == Act::Atomic || watched.contains(&side.pc);
    let is_open = |race: &analysis::Race| !(is_ordered(&race.first) && is_ordered(&race.second));
    match races.iter().any(is_open) {
        true => races.into_iter().filter(is_open).collect(),
        false => races,
    }
}

fn side(side: &analysis::Side, watched: &BTreeSet<u64>, symbols: &mut Symbols) -> Side {
    let verb = match (side.reads, side.writes) {
        (true, true) => "updates",
        (_, true) => "writes",
        _ => "reads",
    };
    let access = match side.act {
        Act::Plain => verb.to_owned(),
        Act::Atomic => format!("atomically {verb}"),
        Act::Kernel => format!("{verb} (the kernel)"),
        Act::Lock => "uses (lock, condition variable, barrier or semaphore)".to_owned(),
        Act::Destroy => "destroys (lock, condition variable or barrier)".to_owned(),
        Act::Free => "frees".to_owned(),
        Act::Unmap => "unmaps".to_owned(),
        Act::Descriptor => "uses (descriptor)".to_owned(),
        Act::Close => "closes (descriptor)".to_owned(),
    };
    // The instruction after a call is the one that is recorded.
    let code = if side.is_a_call() { Code::After(side.pc) } else { Code::At(side.pc) };
    Side {
        thread: side.thread,
        event: side.event,
        access,
        address: side.address,
        size: side.size,
        pc: side.pc,
        kernel: side.act == Act::Kernel,
        watchable: (side.act != Act::Kernel || !side.writes) && !watched.contains(&side.pc),
        place: symbols.place(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_trace::payload;
    use refrain_trace::{BlobId, HAS_PAYLOAD, Header, Writer};

    /// What the recording has watched on both sides is no cause, unless nothing else raced.
    #[test]
    fn what_was_watched_is_no_cause() {
        let side = |pc, act| analysis::Side {
            thread: ThreadId(0),
            event: EventId(1),
            address: 0x1000,
            size: 8,
            pc,
            reads: true,
            writes: true,
            act,
        };
        let race = |first, second| analysis::Race {
            first,
            second,
            count: 1,
            block: None,
            after_free: false,
        };
        let watched = BTreeSet::from([0x10]);
        let known = race(side(0x10, Act::Plain), side(0x20, Act::Atomic));
        let unknown = race(side(0x10, Act::Plain), side(0x30, Act::Plain));
        let both = vec![known.clone(), unknown.clone()];
        assert_eq!(unordered(both, &watched), [unknown]);
        assert_eq!(unordered(vec![known.clone()], &watched), [known]);
    }

    /// What a shell script executes is learned, not the shell.
    #[test]
    fn a_divergence_is_of_the_program_that_runs() {
        let mut writer = Writer::new(Vec::new(), &Header::default()).expect("is in memory");
        let executed = Executed { program: "/bin/work".into(), ..Executed::default() };
        writer.blob(BlobId(0), &executed.to_bytes()).expect("is in memory");
        for (start, path) in [(0x1000, "/bin/sh"), (0x2000, "/bin/work"), (0x3000, "/lib/c.so")] {
            let end = start + 0x1000;
            let module = Module { path: path.into(), start, end, ..Module::default() };
            writer.module(&module).expect("is in memory");
        }
        let call = Event { code: EventKind::Syscall as u8, ..Event::default() };
        let execution = Event { flags: HAS_PAYLOAD, ..call };
        let effect = Effect::Exec { image: BlobId(0) };
        let mut payloads = Vec::new();
        payload::push(&mut payloads, &SyscallRecord { effect, ..SyscallRecord::default() });
        let events = [call, execution, call];
        writer.events(ThreadId(0), EventId(0), &events, &payloads).expect("fits");
        writer.events(ThreadId(1), EventId(0), &[call], &[]).expect("fits");
        let trace = Trace::from_bytes(writer.abandon()).expect("can be read");
        let program = |thread, event| {
            let at = Divergence {
                kind: "event".into(),
                thread: ThreadId(thread),
                event: EventId(event),
                pc: 0,
                expected: String::new(),
                actual: String::new(),
            };
            program_at(&trace, &at).expect("can be read")
        };
        let identity = |n: usize| trace.modules()[n].identity();
        assert_eq!((program(0, 0), program(0, 1)), (identity(0), identity(0)));
        assert_eq!((program(0, 2), program(1, 0)), (identity(1), identity(1)));
    }
}
