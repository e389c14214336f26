//! Short programs, and programs that generate code: what a first recording, a later one and a replay cost, and how
//! large the traces are.

use super::Options;
use crate::process::{self, CommandLine, median, same, tool};
use crate::table;
use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Programs that are over soon; those that are not installed are left out.
const SHORT: [&[&str]; 7] = [
    &["true"],
    &["python3", "-c", "pass"],
    &["ld.lld", "--version"],
    &["gdb", "--version"],
    &["node", "-e", "0"],
    &["R", "--version"],
    &["octave-cli", "--version"],
];
/// Programs that generate code, each with a file that it executes.
const GENERATING: [(&str, &str, &str); 3] = [
    ("node", "objects.js", include_str!("scripts/objects.js")),
    ("pypy3", "threads.py", include_str!("scripts/threads.py")),
    ("java", "Pool.java", include_str!("scripts/Pool.java")),
];
/// What a recording may take beyond the limit that is a factor.
const RECORD_BEYOND: Duration = Duration::from_millis(15);
/// What a replay may.
const REPLAY_BEYOND: Duration = Duration::from_millis(300);

/// Times of one program, and the size of its trace.
pub(super) struct Start {
    name: String,
    native: Duration,
    /// With nothing known of the program, and of the libraries that it uses.
    first: Duration,
    /// With what two recordings have left.
    later: Duration,
    replay: Duration,
    valgrind: Option<Duration>,
    bytes: u64,
    /// How much slower than native a recording may be, beside what is allowed to every program.
    factor: u32,
}

/// Both kinds of programs.
#[derive(Default)]
pub(super) struct Starts {
    short: Vec<Start>,
    generating: Vec<Start>,
}

/// What measures.
pub(super) struct Tools<'a> {
    pub(super) options: &'a Options,
    pub(super) refrain: &'a Path,
    pub(super) valgrind: Option<&'a Path>,
    pub(super) scratch: &'a Path,
}

impl Tools<'_> {
    /// Alternates native runs, recordings, replays and valgrind.
    pub(super) fn starts(&self) -> anyhow::Result<Starts> {
        let mut starts = Starts::default();
        for words in SHORT {
            if let Some(program) = installed(words[0]) {
                let mut line = CommandLine::new([program]);
                line.words.extend(words[1..].iter().map(Into::into));
                let factor = if words.len() == 1 { 1 } else { 3 };
                starts.short.push(self.start(words.join(" "), &line, factor)?);
            }
        }
        for (interpreter, name, text) in GENERATING {
            if let Some(program) = installed(interpreter) {
                let line = self.generating(&program, name, text)?;
                starts.generating.push(self.start(format!("{interpreter} {name}"), &line, 1)?);
            }
        }
        Ok(starts)
    }

    /// The program that executes a file with this text, which is compiled before if it is Java.
    fn generating(&self, program: &Path, name: &str, text: &str) -> anyhow::Result<CommandLine> {
        let file = self.scratch.join(name);
        std::fs::write(&file, text)?;
        let Some(class) = name.strip_suffix(".java") else {
            return Ok(CommandLine::new([program.as_os_str(), file.as_os_str()]));
        };
        let compiler = tool("javac").context("java is installed, and javac is not")?;
        let compile = CommandLine::new([compiler.as_os_str(), file.as_os_str()]);
        let run = process::run(&compile, self.scratch)?;
        if run.status != 0 {
            bail!("{}: {}", compile.shown(), run.errors);
        }
        let folder: [&OsStr; 2] = ["-cp".as_ref(), self.scratch.as_os_str()];
        Ok(CommandLine::new([program.as_os_str(), folder[0], folder[1], class.as_ref()]))
    }

    fn start(&self, name: String, line: &CommandLine, factor: u32) -> anyhow::Result<Start> {
        eprintln!("start {name}");
        let scratch = self.scratch;
        let (trace, cache) = (scratch.join("start.refrain"), scratch.join("cache"));
        let record = line.recorded_by_default(self.refrain, &trace);
        let record = |folder: &str| record.clone().with_cache(cache.join(folder));
        let replay =
            CommandLine::new([self.refrain.as_os_str(), "replay".as_ref(), trace.as_os_str()]);
        let peer = self.valgrind.map(|valgrind| line.under_valgrind(valgrind));
        for _ in 0..2 {
            process::run(&record("later"), scratch)?;
        }
        let [mut native, mut first, mut later, mut replays, mut others] = [const { Vec::new() }; 5];
        for _ in 0..self.options.runs {
            let plain = process::run(line, scratch)?;
            native.push(plain.wall);
            // Not every recording leaves something.
            std::fs::create_dir_all(cache.join("first"))?;
            for (folder, times) in [("first", &mut first), ("later", &mut later)] {
                let run = process::run(&record(folder), scratch)?;
                same(&plain, &run, "recording")?;
                times.push(run.wall);
            }
            std::fs::remove_dir_all(cache.join("first"))?;
            let run = process::run(&replay, scratch)?;
            if run.status != 0 {
                bail!("{name}: {} {}", run.errors, String::from_utf8_lossy(&run.output));
            }
            replays.push(run.wall);
            if let Some(peer) = &peer {
                let run = process::run(peer, scratch)?;
                others.extend((run.status == plain.status).then_some(run.wall));
            }
        }
        std::fs::remove_dir_all(&cache)?;
        let all_ran = !others.is_empty() && others.len() == self.options.runs;
        Ok(Start {
            name,
            native: median(&native),
            first: median(&first),
            later: median(&later),
            replay: median(&replays),
            valgrind: all_ran.then(|| median(&others)),
            bytes: std::fs::metadata(&trace)?.len(),
            factor,
        })
    }
}

/// A program. Debian's, where there are others: a script in front of a program is another program.
fn installed(name: &str) -> Option<PathBuf> {
    let system = Some(Path::new("/usr/bin").join(name)).filter(|path| path.is_file());
    let found = system.or_else(|| tool(name));
    if found.is_none() {
        eprintln!("{name} is not installed");
    }
    found
}

/// The sections of the page.
pub(super) fn sections(starts: &Starts) -> String {
    let mut page = String::new();
    if !starts.short.is_empty() {
        let header = [
            "program", "native", "first", "later", "limit", "replay", "limit", "trace", "valgrind",
        ];
        let rows: Vec<_> = starts.short.iter().map(short_row).collect();
        page += &format!(
            "\n## Short programs\n\nEach row times whole runs of `refrain record` and of `refrain \
             replay`. These programs are so short that starting and ending take most of it. At the \
             *first* recording nothing is known of the program; a *later* one finds what two \
             others have left in the cache. A limit is a multiple of the native time, plus a \
             constant; that of recordings is held against later ones.\n\n{}",
            table::render(&header, &rows)
        );
    }
    if !starts.generating.is_empty() {
        let header = ["program", "native", "first", "later", "replay", "trace", "valgrind"];
        let rows: Vec<_> = starts.generating.iter().map(generating_row).collect();
        page += &format!(
            "\n## Programs that generate code\n\nThey are recorded with the order of every \
             access. The files are in `xtask/src/bench/scripts`.\n\n{}",
            table::render(&header, &rows)
        );
    }
    page
}

fn short_row(start: &Start) -> Vec<String> {
    let limit = |time: Duration, factor: u32, beyond: Duration| {
        let verdict = if time <= start.native * factor + beyond { "met" } else { "MISSED" };
        format!("{factor}× + {} ms {verdict}", beyond.as_millis())
    };
    vec![
        start.name.clone(),
        ms(start.native),
        ms(start.first),
        ms(start.later),
        limit(start.later, start.factor, RECORD_BEYOND),
        ms(start.replay),
        limit(start.replay, 3, REPLAY_BEYOND),
        kib(start.bytes),
        start.valgrind.map_or(String::new(), ms),
    ]
}

fn generating_row(start: &Start) -> Vec<String> {
    let factor = |time: Duration| {
        let factor = time.as_secs_f64() / start.native.as_secs_f64();
        format!("{:.2} s, {factor:.1}×", time.as_secs_f64())
    };
    vec![
        start.name.clone(),
        format!("{:.2} s", start.native.as_secs_f64()),
        factor(start.first),
        factor(start.later),
        factor(start.replay),
        kib(start.bytes),
        start.valgrind.map_or(String::new(), factor),
    ]
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes.div_ceil(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_a_factor_and_a_time() {
        let start = Start {
            name: "true".into(),
            native: Duration::from_millis(2),
            first: Duration::from_millis(20),
            later: Duration::from_micros(17_100),
            replay: Duration::from_millis(306),
            valgrind: Some(Duration::from_millis(400)),
            bytes: 5000,
            factor: 1,
        };
        let row = short_row(&start);
        let limits = ["1× + 15 ms MISSED", "306.0 ms", "3× + 300 ms met", "5 KiB", "400.0 ms"];
        assert_eq!(row[4..], limits);
        let row = generating_row(&start);
        assert_eq!(row[1..3], ["0.00 s", "0.02 s, 10.0×"]);
    }
}
