//! Kills: recorders are killed at random moments, and what they leave is looked at.
//!
//! Of every trace: it can be read, checked, replayed as far as it goes and repaired; the replay
//! comes to within 100 ms of the kill, or has all but 10,000 of the recorded events; and nothing
//! else is left. The moment of the kill is taken from the system's clock, the trace's from its
//! header, so that the trace is not its own witness.

use crate::process::{CommandLine, tool};
use crate::text_data::Random;
use crate::{root, text_data};
use anyhow::{Context, bail, ensure};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The latest moment of a kill.
const LONGEST: usize = 1500;
/// How much may be lost.
const NANOSECONDS: u64 = 100_000_000;
const EVENTS: u64 = 10_000;
/// Text for the compressors: more than they manage until they are killed.
const BYTES: u64 = 256 << 20;
/// Every program is recorded with each.
pub(crate) const ORDERS: [&str; 2] = ["sync", "stride"];
/// Where the server listens.
const PORT: u16 = 47_113;

/// A program that runs until it is killed, or nearly.
struct Victim {
    name: &'static str,
    line: CommandLine,
    /// It waits for connections.
    serves: bool,
}

/// Kills so many recorders, one after another.
pub(crate) fn run(kills: u64, seed: u64, names: &[String]) -> anyhow::Result<()> {
    let refrain = root::release_refrain()?;
    let mut victims = victims()?;
    victims.retain(|it| names.is_empty() || names.iter().any(|name| it.name.contains(name)));
    ensure!(!victims.is_empty(), "no program has such a name");
    learn(&refrain, &victims)?;
    let mut random = Random::new(seed);
    let mut failures = 0;
    for kill in 0..kills {
        let victim = &victims[kill as usize % victims.len()];
        let order = ORDERS[kill as usize / victims.len() % ORDERS.len()];
        let after = Duration::from_millis(random.below(LONGEST) as u64);
        let directory = tempfile::tempdir()?;
        match one(&refrain, victim, order, after, directory.path()) {
            Ok(line) => {
                let (name, after) = (victim.name, after.as_millis());
                println!("{kill:5} {name:10} {order:6} {after:4} ms: {line}");
            }
            Err(error) => {
                failures += 1;
                let kept = root::cache()?.join(format!("killed-{kill}.refrain"));
                let _ = std::fs::copy(directory.path().join("a.refrain"), &kept);
                let (name, after) = (victim.name, after.as_millis());
                let kept = kept.display();
                println!("{kill:5} {name:10} {order:6} {after:4} ms: FAILED: {error:#} ({kept})");
            }
        }
    }
    println!("{kills} kills of {} programs, {failures} failures", victims.len());
    ensure!(failures == 0, "{failures} of {kills} kills left something wrong");
    Ok(())
}

/// Has the races of the programs learned, as somebody who records them again and again has: with
/// `--order sync`, a race that nobody knows yet is a divergence, wherever the trace ends.
fn learn(refrain: &Path, victims: &[Victim]) -> anyhow::Result<()> {
    const TIMES: usize = 4;
    for victim in victims {
        for _ in 0..TIMES {
            let place = tempfile::tempdir()?;
            let after = Duration::from_millis(LONGEST as u64);
            match one(refrain, victim, ORDERS[0], after, place.path()) {
                Ok(_) => break,
                Err(error) => println!("learning {}: {error:#}", victim.name),
            }
        }
    }
    Ok(())
}

fn victims() -> anyhow::Result<Vec<Victim>> {
    let cache = root::cache()?;
    let mut victims = Vec::new();
    for (name, arguments) in [
        ("locks", &["100000000"][..]),
        ("demo", &["3000000"]),
        ("ex_cond", &["3000000"]),
        ("ex_rwlock", &["3000000"]),
        ("ex_pipe", &["3000000"]),
        ("ex_threads", &["100000"]),
        ("ex_process", &["5000"]),
    ] {
        let program = refrain_corpus::find(name).context("the corpus has it")?;
        let path = refrain_corpus::compile(program, program.variants[0], &cache)?;
        let mut line = CommandLine::new([path.as_os_str()]);
        line.words.extend(arguments.iter().map(Into::into));
        victims.push(Victim { name, line, serves: false });
    }
    let data = text_data::file(&cache, BYTES)?;
    for (name, arguments) in [("pbzip2", &["-p2", "-k", "-c"][..]), ("pigz", &["-p4", "-k", "-c"])]
    {
        let Some(path) = tool(name) else { continue };
        let mut line = CommandLine::new([path.as_os_str()]);
        line.words.extend(arguments.iter().map(Into::into));
        line.words.push(data.clone().into());
        victims.push(Victim { name, line, serves: false });
    }
    let python = Path::new("/usr/bin/python3");
    if python.exists() {
        let port = PORT.to_string();
        let server = ["-m", "http.server", "--bind", "127.0.0.1", &port];
        let scripts = [("threads", &["-c", THREADS][..], false), ("server", &server[..], true)];
        for (name, arguments, serves) in scripts {
            let mut line = CommandLine::new([python.as_os_str()]);
            line.words.extend(arguments.iter().map(Into::into));
            victims.push(Victim { name, line, serves });
        }
    }
    Ok(victims)
}

const THREADS: &str = "
import queue, threading
q, done = queue.Queue(8), threading.Event()
def make():
    while True: q.put(sum(range(500)))
def take():
    while True: q.get()
for work in (make, take, make, take): threading.Thread(target=work).start()
done.wait()
";

/// Records a program, kills the recorder, and looks at what is left.
fn one(
    refrain: &Path,
    victim: &Victim,
    order: &str,
    after: Duration,
    place: &Path,
) -> anyhow::Result<String> {
    let trace = place.join("a.refrain");
    let line = victim.line.recorded_in(order, refrain, &trace);
    let (program, arguments) = line.words.split_first().context("an empty command line")?;
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(place)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let killed = match victim.serves {
        true => under_load(|| kill(&mut child, after))?,
        false => kill(&mut child, after)?,
    };
    let names = |entry: std::io::Result<std::fs::DirEntry>| Ok(entry?.file_name());
    let left = std::fs::read_dir(place)?.map(names).collect::<anyhow::Result<Vec<_>>>()?;
    if left.is_empty() {
        return Ok("nothing was recorded yet".to_owned());
    }
    ensure!(left == ["a.refrain"], "{left:?} are left");
    judge(refrain, &trace, killed)
}

/// Kills after that time; when that was. `None` if it had ended.
fn kill(child: &mut Child, after: Duration) -> anyhow::Result<Option<Duration>> {
    std::thread::sleep(after);
    let running = child.try_wait()?.is_none();
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    if running {
        child.kill()?;
        child.wait()?;
    }
    Ok(running.then_some(now))
}

/// Asks the server for its page again and again meanwhile.
fn under_load<T>(act: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    let ask = || {
        while !over.load(Ordering::Relaxed) {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", PORT)) else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
            let _ = stream.write_all(b"GET / HTTP/1.0\r\n\r\n");
            let _ = stream.read_to_end(&mut Vec::new());
        }
    };
    std::thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(ask)));
        let result = act();
        over.store(true, Ordering::Relaxed);
        result
    })
}

/// What `refrain` says of a trace, and its status.
pub(crate) fn report(
    refrain: &Path,
    arguments: &[&str],
    trace: &Path,
) -> anyhow::Result<(i32, Value)> {
    let output = Command::new(refrain).args(arguments).arg("--json").arg(trace).output()?;
    let status = output.status.code().context("refrain was killed")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout);
    Ok((status, report.with_context(|| format!("{}: {}", arguments.join(" "), errors.trim()))?))
}

fn judge(refrain: &Path, trace: &Path, killed: Option<Duration>) -> anyhow::Result<String> {
    let (_, check) = report(refrain, &["check"], trace)?;
    ensure!(check["problems"] == Value::Array(Vec::new()), "damaged: {}", check["problems"]);
    if check["unusable"].is_string() {
        // The kill came before the first events were written.
        ensure!(check["events"] == 0, "{}", check["unusable"]);
        return Ok("no event was recorded yet".to_owned());
    }
    let (_, info) = report(refrain, &["info"], trace)?;
    let (status, replay) = report(refrain, &["replay", "--engine", "copy"], trace)?;
    let number = |report: &Value, name: &str| {
        report[name].as_u64().with_context(|| format!("no number {name:?} in {report}"))
    };
    let wanted = if killed.is_some() { 3 } else { 0 };
    let (events, recorded) = (number(&replay, "events")?, number(&replay, "events_recorded")?);
    if status != wanted {
        bail!("replay ends with {status}: {events} of {recorded}: {}", replay["divergence"]);
    }
    let started = Duration::from_nanos(number(&info, "started_unix_ns")?);
    let reached = Duration::from_nanos(number(&replay, "reached_ns")?);
    let lost = killed.unwrap_or_default().saturating_sub(started + reached);
    let line = format!("{events} of {recorded} events, {} ms lost", lost.as_millis());
    if lost.as_nanos() > NANOSECONDS.into() && recorded - events > EVENTS {
        bail!("{line}");
    }
    let (status, repaired) = report(refrain, &["check", "--repair"], trace)?;
    ensure!(status == 0, "is not sound after its repair: {repaired}");
    let (status, again) = report(refrain, &["replay", "--engine", "copy"], trace)?;
    ensure!(
        (status, &again["events"]) == (wanted, &replay["events"]),
        "replays in another way after its repair: {status}, {}",
        again["events"]
    );
    Ok(line)
}
