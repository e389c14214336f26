//! The measurements.

use super::{Options, start};
use crate::process::{self, CommandLine, median, same, tool};
use crate::{root, text_data};
use anyhow::{Context, bail};
use refrain_corpus::Variant;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes that the compressor gets.
const TEXT: u64 = 64 << 20;
/// Events of the run that shows the bound of the recorder's memory.
const MANY_EVENTS: &str = "10000000";

/// All that was measured.
pub(super) struct Results {
    pub(super) speed: Vec<Speed>,
    pub(super) sizes: Vec<Size>,
    pub(super) memory: Option<Memory>,
    pub(super) starts: start::Starts,
}

/// Times of one program.
pub(super) struct Speed {
    pub(super) name: String,
    /// What was done instead of running it natively.
    pub(super) mode: &'static str,
    pub(super) native: Duration,
    pub(super) refrain: Duration,
    pub(super) valgrind: Option<Duration>,
    /// How much slower than native it may be.
    pub(super) limit: Option<f64>,
}

/// A trace's size.
pub(super) struct Size {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) events: u64,
}

/// Peak resident memory of a run with many events, in KiB.
pub(super) struct Memory {
    pub(super) native_kib: u64,
    pub(super) refrain_kib: u64,
    pub(super) events: u64,
}

/// Measures every row that is wanted.
pub(super) fn measure(options: &Options, refrain: &Path) -> anyhow::Result<Results> {
    let bench = Bench {
        options,
        refrain,
        valgrind: tool("valgrind").filter(|_| !options.without_valgrind),
        scratch: tempfile::tempdir()?,
        cache: root::cache()?,
    };
    let mut results = Results {
        speed: Vec::new(),
        sizes: Vec::new(),
        memory: None,
        starts: start::Starts::default(),
    };
    if bench.wants("pbzip2") {
        bench.pbzip2(&mut results)?;
    }
    let kernels: [(&str, &[&str], Option<f64>); 6] = [
        ("locks", &["1000000"], Some(3.0)),
        ("fib", &["40"], Some(1.8)),
        ("qsort", &["5000000"], Some(1.8)),
        ("sha256", &["100"], None),
        ("matmul", &["1024"], None),
        ("nbody", &["4000000"], None),
    ];
    for (name, arguments, limit) in kernels {
        if bench.wants(name) {
            let line = bench.corpus(name, arguments)?;
            let trace = bench.record_row(name, &line, limit, &mut results)?;
            if name == "locks" {
                results.sizes.push(bench.size(name, &trace)?);
            }
        }
    }
    if bench.wants("start") {
        let (valgrind, scratch) = (bench.valgrind.as_deref(), bench.scratch.path());
        results.starts = start::Tools { options, refrain, valgrind, scratch }.starts()?;
    }
    if bench.wants("events") {
        bench.events(&mut results)?;
    }
    Ok(results)
}

struct Bench<'a> {
    options: &'a Options,
    refrain: &'a Path,
    valgrind: Option<PathBuf>,
    scratch: tempfile::TempDir,
    cache: PathBuf,
}

impl Bench<'_> {
    fn wants(&self, name: &str) -> bool {
        let names = &self.options.names;
        names.is_empty() || names.iter().any(|wanted| name.contains(wanted.as_str()))
    }

    fn corpus(&self, name: &str, arguments: &[&str]) -> anyhow::Result<CommandLine> {
        let program = refrain_corpus::find(name).context("the corpus has no such program")?;
        let executable = refrain_corpus::compile(program, Variant::Plain, &self.cache)?;
        let mut line = CommandLine::new([executable]);
        line.words.extend(arguments.iter().map(Into::into));
        Ok(line)
    }

    /// Alternates native runs, recordings and valgrind; returns the last trace.
    fn record_row(
        &self,
        name: &str,
        line: &CommandLine,
        limit: Option<f64>,
        results: &mut Results,
    ) -> anyhow::Result<PathBuf> {
        eprintln!("record {name}");
        let trace = self.scratch.path().join(format!("{name}.refrain"));
        let record = line.recorded(self.refrain, &trace);
        let valgrind = self.valgrind.as_ref().map(|valgrind| line.under_valgrind(valgrind));
        let (mut native, mut recorded, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.options.runs {
            let plain = process::run(line, self.scratch.path())?;
            let run = process::run(&record, self.scratch.path())?;
            same(&plain, &run, "recording")?;
            native.push(plain.wall);
            recorded.push(run.wall);
            if let Some(valgrind) = &valgrind {
                let run = process::run(valgrind, self.scratch.path())?;
                same(&plain, &run, "valgrind")?;
                others.push(run.wall);
            }
        }
        results.speed.push(Speed {
            name: name.to_owned(),
            mode: "record",
            native: median(&native),
            refrain: median(&recorded),
            valgrind: (!others.is_empty()).then(|| median(&others)),
            limit,
        });
        Ok(trace)
    }

    fn pbzip2(&self, results: &mut Results) -> anyhow::Result<()> {
        let pbzip2 = tool("pbzip2").context("pbzip2 is not installed (apt-get install pbzip2)")?;
        let data = text_data::file(&self.cache, TEXT)?;
        let line = CommandLine::new::<&OsStr>([
            pbzip2.as_os_str(),
            "-p2".as_ref(),
            "-k".as_ref(),
            "-c".as_ref(),
            data.as_os_str(),
        ]);
        let trace = self.record_row("pbzip2 -p2, 64 MB", &line, Some(1.5), results)?;
        let modes: [(&str, &[&str], f64); 2] = [
            ("replay, compilation included", &[], 3.0),
            ("replay, read and write sets", &["--observe"], 6.0),
        ];
        for (mode, flags, limit) in modes {
            self.replay_row(&line, &trace, mode, flags, limit, results)?;
        }
        results.sizes.push(self.size("pbzip2 -p2, 64 MB", &trace)?);
        Ok(())
    }

    /// Alternates native runs and replays of one trace.
    fn replay_row(
        &self,
        line: &CommandLine,
        trace: &Path,
        mode: &'static str,
        flags: &[&str],
        limit: f64,
        results: &mut Results,
    ) -> anyhow::Result<()> {
        eprintln!("{mode}");
        let mut replay = CommandLine::new([self.refrain.as_os_str(), "replay".as_ref()]);
        replay.words.extend(flags.iter().map(Into::into));
        replay.words.push(trace.into());
        let (mut native, mut replayed) = (Vec::new(), Vec::new());
        for _ in 0..self.options.runs {
            native.push(process::run(line, self.scratch.path())?.wall);
            let run = process::run(&replay, self.scratch.path())?;
            if run.status != 0 {
                bail!("{}: {} {}", mode, run.errors, String::from_utf8_lossy(&run.output));
            }
            replayed.push(run.wall);
        }
        results.speed.push(Speed {
            name: "pbzip2 -p2, 64 MB".to_owned(),
            mode,
            native: median(&native),
            refrain: median(&replayed),
            valgrind: None,
            limit: Some(limit),
        });
        Ok(())
    }

    fn size(&self, name: &str, trace: &Path) -> anyhow::Result<Size> {
        let info = CommandLine::new([
            self.refrain.as_os_str(),
            "info".as_ref(),
            "--json".as_ref(),
            trace.as_os_str(),
        ]);
        let info = process::run(&info, self.scratch.path())?;
        let info: Value = serde_json::from_slice(&info.output)
            .with_context(|| format!("refrain info: {}", info.errors))?;
        let number = |name: &str| info[name].as_u64().with_context(|| format!("no {name}"));
        Ok(Size { name: name.to_owned(), bytes: number("size")?, events: number("events")? })
    }

    fn events(&self, results: &mut Results) -> anyhow::Result<()> {
        eprintln!("record events");
        let line = self.corpus("events", &[MANY_EVENTS])?;
        let trace = self.scratch.path().join("events.refrain");
        let native = process::run_watched(&line, self.scratch.path())?;
        let recorded =
            process::run_watched(&line.recorded(self.refrain, &trace), self.scratch.path())?;
        same(&native, &recorded, "recording")?;
        let size = self.size("events, 10⁷", &trace)?;
        results.memory = Some(Memory {
            native_kib: native.peak_kib,
            refrain_kib: recorded.peak_kib,
            events: size.events,
        });
        results.sizes.push(size);
        Ok(())
    }
}
