//! The measurements.

use super::Options;
use crate::process::{self, CommandLine};
use crate::root;
use anyhow::{Context, bail};
use refrain_corpus::{Contrast, PAIRS, Variant, compile};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// One pair. Gains are parts of the slow variant's run time.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) unnecessary: bool,
    /// Wall time of the slow variant by itself, the middle one, in nanoseconds.
    pub(super) native_ns: f64,
    /// What the fix gains: a quarter of the pairs of runs gained less, half of them, three quarters.
    pub(super) real: [f64; 3],
    /// How long each recording took, and the model's time of it as recorded.
    pub(super) recorded: Vec<(f64, f64)>,
    /// What each recording alone predicts, in ascending order.
    pub(super) predicted: Vec<f64>,
    /// What all recordings together predict: the least, the likeliest, the most.
    pub(super) range: [f64; 3],
    /// The function named first, and the one that should be.
    pub(super) named: Option<(String, &'static str)>,
}

impl Row {
    /// By how much the predictions of single recordings are off in the middle.
    pub(super) fn error(&self) -> f64 {
        self.predicted[self.predicted.len() / 2] - self.real[1]
    }
}

/// A pair, or why it could not be measured.
pub(super) type Measured = Result<Row, (String, String)>;

/// Where native times and recordings are kept.
struct Place {
    cache: PathBuf,
    directory: PathBuf,
}

impl Place {
    fn new() -> anyhow::Result<Place> {
        let cache = root::cache()?;
        let directory = cache.join("predict");
        std::fs::create_dir_all(&directory)?;
        Ok(Place { cache, directory })
    }

    fn times(&self, pair: &Contrast) -> PathBuf {
        self.directory.join(format!("{}.json", pair.name))
    }

    fn trace(&self, pair: &Contrast, number: usize) -> PathBuf {
        self.directory.join(format!("{}.{number}.refrain", pair.name))
    }
}

fn wanted(options: &Options) -> impl Iterator<Item = &'static Contrast> {
    let names = &options.names;
    PAIRS.iter().filter(move |pair| {
        names.is_empty() || names.iter().any(|name| pair.name.contains(name.as_str()))
    })
}

/// Runs all pairs natively and records them. Everything is compiled before.
pub(super) fn measure(options: &Options, refrain: &Path) -> anyhow::Result<()> {
    let place = Place::new()?;
    for pair in wanted(options) {
        lines(pair, &place)?;
    }
    for pair in wanted(options) {
        eprintln!("{}", pair.name);
        let scratch = tempfile::tempdir()?;
        let (slow, fixed) = lines(pair, &place)?;
        let (mut slow_ns, mut fixed_ns) = (Vec::new(), Vec::new());
        for number in 0..options.runs.max(1) {
            let run = |line| process::run(line, scratch.path());
            // Who is first alternates, so that neither always gets the warmer machine.
            let (before, after) = if number % 2 == 0 {
                let before = run(&slow)?;
                (before, run(&fixed)?)
            } else {
                let after = run(&fixed)?;
                (run(&slow)?, after)
            };
            process::same(&before, &after, "the fixed variant")?;
            slow_ns.push(before.wall.as_nanos() as u64);
            fixed_ns.push(after.wall.as_nanos() as u64);
        }
        for number in 0..options.recordings.max(1) {
            let trace = place.trace(pair, number);
            process::run(&slow.recorded(refrain, &trace), scratch.path())?;
        }
        let times = serde_json::json!({ "slow_ns": slow_ns, "fixed_ns": fixed_ns });
        std::fs::write(place.times(pair), serde_json::to_vec(&times)?)?;
    }
    Ok(())
}

/// The slow and the fixed variant.
fn lines(pair: &Contrast, place: &Place) -> anyhow::Result<(CommandLine, CommandLine)> {
    let line = |variant| -> anyhow::Result<CommandLine> {
        let mut line = CommandLine::new([compile(&pair.program, variant, &place.cache)?]);
        line.words.extend(pair.args.iter().map(Into::into));
        Ok(line)
    };
    Ok((line(Variant::Ulcp)?, line(Variant::Fixed)?))
}

/// Predicts the gains of all pairs from their recordings.
pub(super) fn predict(options: &Options, refrain: &Path) -> anyhow::Result<Vec<Measured>> {
    let place = Place::new()?;
    let mut rows = Vec::new();
    for pair in wanted(options) {
        eprintln!("{}", pair.name);
        let row = row(pair, &place, refrain, options);
        rows.push(row.map_err(|error| (pair.name.to_owned(), format!("{error:#}"))));
    }
    Ok(rows)
}

fn row(pair: &Contrast, place: &Place, refrain: &Path, options: &Options) -> anyhow::Result<Row> {
    let times: Value = serde_json::from_slice(
        &std::fs::read(place.times(pair)).context("it was not measured yet")?,
    )?;
    let all = |field: &str| -> anyhow::Result<Vec<f64>> {
        let times = times[field].as_array().with_context(|| format!("no {field}"))?;
        Ok(times.iter().filter_map(Value::as_f64).collect())
    };
    let (mut slow_ns, fixed_ns) = (all("slow_ns")?, all("fixed_ns")?);
    let mut gains: Vec<f64> =
        slow_ns.iter().zip(&fixed_ns).map(|(before, after)| 1.0 - after / before).collect();
    let traces: Vec<PathBuf> =
        (0..options.recordings.max(1)).map(|number| place.trace(pair, number)).collect();
    let (mut recorded, mut predicted) = (Vec::new(), Vec::new());
    let mut named = None;
    for trace in &traces {
        let report = locks(refrain, std::slice::from_ref(trace))?;
        let number = |field: &str| number_at(&report, field);
        recorded.push((number("recorded_ns")?, number("check_ns")?));
        predicted.push(gain(&report)?[1]);
        let first = report["groups"][0]["first"]["frames"][0]["function"].as_str();
        named = pair.first.map(|wanted| (first.unwrap_or("nothing").to_owned(), wanted));
    }
    predicted.sort_by(f64::total_cmp);
    slow_ns.sort_by(f64::total_cmp);
    gains.sort_by(f64::total_cmp);
    let quarter = |number: usize| gains[(gains.len() - 1) * number / 4];
    Ok(Row {
        name: pair.name,
        unnecessary: pair.unnecessary,
        native_ns: slow_ns[slow_ns.len() / 2],
        real: [quarter(1), quarter(2), quarter(3)],
        recorded,
        predicted,
        range: gain(&locks(refrain, &traces)?)?,
        named,
    })
}

/// The least, the likeliest and the greatest gain of a report, in parts of the original.
fn gain(report: &Value) -> anyhow::Result<[f64; 3]> {
    let original = number_at(report, "original_ns")?;
    let of = |field: &str| -> anyhow::Result<f64> {
        let gain = report["gain"][field].as_f64().with_context(|| format!("no gain.{field}"))?;
        Ok(gain / original)
    };
    Ok([of("least_ns")?, of("likely_ns")?, of("most_ns")?])
}

fn locks(refrain: &Path, traces: &[PathBuf]) -> anyhow::Result<Value> {
    let mut line = CommandLine::new([refrain.as_os_str(), "locks".as_ref(), "--json".as_ref()]);
    line.words.extend(traces.iter().map(Into::into));
    let scratch = tempfile::tempdir()?;
    let run = process::run(&line, scratch.path())?;
    if run.status != 0 {
        bail!("{}: {}", line.shown(), run.errors.trim());
    }
    serde_json::from_slice(&run.output).context("the report is no JSON")
}

fn number_at(report: &Value, field: &str) -> anyhow::Result<f64> {
    report[field].as_f64().with_context(|| format!("no {field} in the report"))
}
