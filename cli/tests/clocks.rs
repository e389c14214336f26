//! One scheduler, two clocks, on programs of the corpus: what a scheduler grants in a full replay of
//! the real program, held against what it grants in virtual time.
//!
//! The programs do the same whatever the order of their locks. A full replay takes the address space
//! of its process, so each one runs in a process of its own: this test again, with [`REPLAY`] set.

use refrain_scheduler::{
    Builder, Choice, Config, Constraints, Durations, Kendo, Model, Moment, Pct, Recorder, Request,
    Scheduler, Scope, Skeleton, Waiting, simulate,
};
use refrain_trace::{Access, Event, EventId, EventKind, ThreadId, Trace};
use refrain_vm::{
    Count, EngineConfig, Interest, Observer, Policy, Processor, ReplayOptions, ThreadObserver,
};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Says what this process is to replay: a scheduler's name and a trace.
const REPLAY: &str = "REFRAIN_TEST_REPLAY";
const SEED: u64 = 5;

type Failure = Box<dyn Error>;
type Boxed = Box<dyn Scheduler + Send>;
/// Thread and event.
type Place = (u32, u32);

/// Schedulers whose orders are functions of seeds and clocks. Here PCT changes no priority: it counts
/// operations, and so does random, and atomic instructions are operations in virtual time, where a
/// full replay keeps their recorded order.
fn scheduler(name: &str) -> Boxed {
    match name {
        "kendo" => Box::new(Kendo::default()),
        "pct" => Box::new(Pct::new(SEED, 1, 0)),
        _ => panic!("there is no scheduler {name}"),
    }
}

/// Prints what another scheduler grants.
struct Printed(Boxed);

impl Scheduler for Printed {
    fn scope(&self) -> Scope {
        self.0.scope()
    }

    fn choose(&mut self, moment: Moment<'_>, requests: &[Request]) -> Choice {
        let choice = self.0.choose(moment, requests);
        if let Choice::Grant(index) = choice {
            println!("grant {} {}", requests[index].thread.0, requests[index].event);
        }
        choice
    }
}

/// Prints how many instructions threads have retired at their events.
struct Clocks;

impl Observer for Clocks {
    fn interest(&self) -> Interest {
        Interest::default()
    }

    fn thread(&self, thread: ThreadId) -> Box<dyn ThreadObserver> {
        Box::new(ClockOf(thread))
    }
}

struct ClockOf(ThreadId);

impl ThreadObserver for ClockOf {
    fn accesses(&mut self, _: &[Access]) {}

    fn event(&mut self, id: EventId, _: &Event, retired: u64) {
        println!("clock {} {} {retired}", self.0.0, id.0);
    }
}

/// The process that replays, if this is one.
#[test]
fn replaying() {
    let Ok(what) = std::env::var(REPLAY) else { return };
    let (name, path) = what.split_once(' ').expect("a scheduler and a trace");
    let trace = Trace::from_file(std::fs::File::open(path).expect("the trace")).expect("a trace");
    let mut options = ReplayOptions { counted: true, ..ReplayOptions::default() };
    if name == "elsc" {
        options.observer = Some(Arc::new(Clocks));
    } else {
        let name = name.to_owned();
        options.policy = Policy::Anew(Arc::new(move |_| Box::new(Printed(scheduler(&name)))));
    }
    let blocks = trace.blocks().expect("a whole trace");
    let watched: BTreeSet<u64> = blocks
        .iter()
        .flat_map(|block| block.loads.iter().map(|&offset| block.pc + u64::from(offset)))
        .collect();
    let config = EngineConfig {
        order_atomics: true,
        count: Count::Instructions,
        watched: Some(Arc::new(watched)),
        processor: Processor::from_names(&trace.header().processor).expect("this version's"),
        ..EngineConfig::default()
    };
    let engine = refrain_jit::copy(config).expect("this machine can replay");
    let outcome = refrain_vm::replay(&trace, engine, options).expect("this machine can replay");
    println!("divergence {:?}", outcome.divergence);
}

/// What the process says that replays, by the first word of the lines.
fn replayed(name: &str, trace: &Path) -> Result<BTreeMap<String, Vec<Vec<u64>>>, Failure> {
    let output = Command::new(std::env::current_exe()?)
        .args(["replaying", "--exact", "--nocapture"])
        .env(REPLAY, format!("{name} {}", trace.display()))
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    // Under another order of locks, glibc's own races may end a replay after the threads' work.
    assert!(name != "elsc" || text.contains("divergence None"), "{text}");
    let mut said: BTreeMap<String, Vec<Vec<u64>>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let Some(first @ ("grant" | "clock")) = words.next() else { continue };
        let numbers = words.map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        said.entry(first.to_owned()).or_default().push(numbers);
    }
    Ok(said)
}

fn record(program: &str, directory: &Path) -> Result<std::path::PathBuf, Failure> {
    let program = refrain_corpus::find(program).ok_or("the corpus has it")?;
    let path = refrain_corpus::compile(program, program.variants[0], directory)?;
    let trace = directory.join(format!("{}.refrain", program.name));
    let output = Command::new(env!("CARGO_BIN_EXE_refrain"))
        .arg("record")
        .arg("--output")
        .arg(&trace)
        .arg("--")
        .arg(path)
        .args(program.small)
        .env("XDG_CACHE_HOME", directory)
        .output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(trace)
}

/// The skeleton of a trace, whose work is instructions and where nothing else takes time.
fn skeleton(path: &Path, clocks: &[Vec<u64>]) -> Result<Skeleton, Failure> {
    let trace = Trace::from_file(std::fs::File::open(path)?)?;
    let mut builder =
        Builder::new(trace.threads() as usize, trace.header().tsc_hz.max(1), trace.began()?);
    builder.read::<Failure>(&trace)?;
    let retired: BTreeMap<Place, u64> =
        clocks.iter().map(|line| ((line[0] as u32, line[1] as u32), line[2])).collect();
    let mut before = BTreeMap::new();
    Ok(builder.finish()?.retimed(|thread, event, _| {
        let last = before.entry(thread).or_default();
        let now = retired.get(&(thread.0, event.0 as u32)).copied().unwrap_or(*last);
        let work = now.saturating_sub(std::mem::replace(last, now));
        Durations { work, time: 0 }
    }))
}

fn granted_virtually(skeleton: &Skeleton, by: Boxed) -> Vec<Place> {
    let model = Model::waiting(Waiting::Polling);
    let mut recorder = Recorder::new(by, &model);
    let none = Constraints::none();
    let config = Config::ideal(skeleton.threads() as u32);
    let _ = simulate(skeleton, &none, &config, &model, &mut recorder, &mut ());
    let grants = recorder.into_schedule().grants;
    grants.iter().map(|grant| (grant.thread.0, grant.event.0 as u32)).collect()
}

/// What each thread did when it left its first barrier, and its last one.
fn barriers(path: &Path) -> Result<(BTreeSet<Place>, BTreeSet<Place>), Failure> {
    let trace = Trace::from_file(std::fs::File::open(path)?)?;
    let (mut first, mut last) = (BTreeMap::new(), BTreeMap::new());
    for thread in (0..trace.threads()).map(ThreadId) {
        let mut cursor = trace.cursor(thread);
        for event in 0.. {
            let Some(next) = cursor.next()? else { break };
            if next.kind() == EventKind::BarrierLeave {
                first.entry(thread.0).or_insert(event);
                last.insert(thread.0, event);
            }
        }
    }
    Ok((first.into_iter().collect(), last.into_iter().collect()))
}

/// What was granted after all threads had left their first barrier, and before the first of them
/// left its last one. Before and after that a full replay keeps the recorded order of beginnings and
/// ends, system calls and atomic instructions.
fn between(granted: &[Place], (first, last): &(BTreeSet<Place>, BTreeSet<Place>)) -> Vec<Place> {
    let from = granted.iter().rposition(|place| first.contains(place));
    let to = granted.iter().position(|place| last.contains(place));
    granted[from.expect("threads meet") + 1..to.expect("threads meet again")].to_vec()
}

#[test]
fn both_clocks_grant_in_one_order() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    for (program, least) in [("ex_phases", 1000), ("ex_barrier", 800)] {
        let trace = record(program, directory.path())?;
        let barriers = barriers(&trace)?;
        let clocks = replayed("elsc", &trace)?.remove("clock").unwrap_or_default();
        let skeleton = skeleton(&trace, &clocks)?;
        for name in ["kendo", "pct"] {
            let found: Vec<Place> = replayed(name, &trace)?["grant"]
                .iter()
                .map(|line| (line[0] as u32, line[1] as u32))
                .collect();
            let decided: BTreeSet<Place> = found.iter().copied().collect();
            let mut expected = granted_virtually(&skeleton, scheduler(name));
            expected.retain(|place| decided.contains(place));
            let (found, expected) = (between(&found, &barriers), between(&expected, &barriers));
            assert!(found.len() >= least, "{program}, {name}: {} grants", found.len());
            let differs = found.iter().zip(&expected).position(|(found, other)| found != other);
            assert_eq!(differs, None, "{program}, {name}: of {} grants", found.len());
            assert_eq!(found.len(), expected.len(), "{program}, {name}");
        }
    }
    Ok(())
}
