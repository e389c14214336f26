//! The detectors of the paper's tables over one trace, recorded here or written by others in RAPID's
//! format: its Tables 1 to 3, and the frequencies of rules in its Figures 2 and 5.

use crate::error::{Context, Error};
use crate::operations::libraries;
use crate::session::Session;
use crate::symbols::{Code, Symbols};
use crate::trace_file;
use refrain_analysis::paper::{self, Cost, Granularity, Prefilter, Std, Step, Variables, Which};
use refrain_analysis::{Atomics, Tapped};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What to run over which trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Detection {
    /// The trace.
    pub trace: PathBuf,
    /// Run all, for their costs.
    pub compares: bool,
    /// If not: the detector; FastTrack by default.
    pub which: Option<Which>,
    /// What leaves accesses out before it sees them.
    pub prefilter: Option<Prefilter>,
    /// What one variable is; a byte by default.
    pub granularity: Option<Granularity>,
    /// Count races in libraries of the system like others.
    pub all: bool,
    /// What atomic variables order.
    pub atomics: Atomics,
}

/// What came of it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Detected {
    /// The file.
    pub trace: String,
    /// Reads of variables, at the finer granularity.
    pub reads: u64,
    /// Writes, likewise.
    pub writes: u64,
    /// All other steps.
    pub others: u64,
    /// The time that it took to replay the trace and to show its steps, or to read them.
    pub empty_ns: u64,
    /// All detectors were run, for their costs.
    pub compared: bool,
    /// A detector each, at one granularity.
    pub rows: Vec<Row>,
    /// Of a single detector: where something raced.
    pub places: Vec<RacySite>,
    /// Why not all of the recording was searched, if so.
    pub incomplete: Option<String>,
}

/// A detector.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub detector: String,
    /// What leaves accesses out before it sees them, or `none`.
    pub prefilter: String,
    /// What one variable is: `fine` or `coarse`.
    pub granularity: String,
    /// Its own time for all steps.
    pub nanoseconds: u64,
    /// Variables that race, where accesses outside of the system's libraries found it.
    pub variables: u64,
    /// Instructions that found a race, outside of the system's libraries.
    pub places: u64,
    /// The same in them.
    pub folded: u64,
    /// Vector clocks allocated (Table 2).
    pub clocks: u64,
    /// Operations on vector clocks that take a time linear in the threads (Table 2).
    pub operations: u64,
    /// Memory (Table 3).
    pub bytes: u64,
    /// How often its rules were used (Figures 2 and 5).
    pub rules: Vec<Rule>,
}

/// How often a rule was used.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Rule {
    /// Its name in the paper.
    pub rule: String,
    /// Times.
    pub count: u64,
}

/// Where something raced.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RacySite {
    /// Function and line, or the file's own name for it.
    pub place: String,
    /// One of the variables.
    pub variable: String,
    /// Accesses that raced.
    pub count: u64,
}

/// Whether a file is a trace in RAPID's format.
pub fn is_std(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "std")
}

impl Session {
    /// Runs one of the paper's detectors over a trace, or all, and says what they found, and what they
    /// cost.
    pub fn detect(&self, detection: &Detection) -> crate::Result<Detected> {
        let begin = Instant::now();
        let (benches, sources) = match is_std(&detection.trace) {
            true => feed_std(detection)?,
            false => feed_trace(detection, self)?,
        };
        Ok(detected(detection, benches, sources, begin.elapsed()))
    }
}

/// Detectors that see the same variables.
struct Bench {
    granularity: Granularity,
    variables: Variables,
    subjects: Vec<Subject>,
    steps: Vec<Step>,
    /// Reads, writes and other steps.
    seen: [u64; 3],
    libraries: Vec<Range<u64>>,
}

/// A detector, and what came of it.
struct Subject {
    which: Which,
    filter: Prefilter,
    detector: Box<dyn paper::Detector>,
    took: Duration,
    racy: BTreeSet<u64>,
    /// By instruction: how often it raced, and one of the variables.
    places: BTreeMap<u64, (u64, u64)>,
    /// Instructions in libraries of the system that raced.
    folded: BTreeSet<u64>,
}

/// Those that are asked for. What races in `libraries` is folded.
fn benches(args: &Detection, libraries: &[Range<u64>]) -> Vec<Bench> {
    let filtered = |filter| Which::BEHIND_FILTERS.map(|which| (which, filter));
    let wanted = match (args.compares, args.which) {
        (true, _) => Which::ALL
            .map(|which| (which, Prefilter::None))
            .into_iter()
            .chain(Prefilter::ALL.into_iter().flat_map(filtered))
            .collect(),
        (false, which) => {
            vec![(which.unwrap_or(Which::FastTrack), args.prefilter.unwrap_or(Prefilter::None))]
        }
    };
    let both = [Granularity::Fine, Granularity::Coarse];
    let granularities = match (args.compares && !is_std(&args.trace), args.granularity) {
        (true, _) => both.to_vec(),
        (false, one) => vec![one.unwrap_or(Granularity::Fine)],
    };
    let subject = |(which, filter): (Which, Prefilter)| Subject {
        which,
        filter,
        detector: filter.before(which),
        took: Duration::ZERO,
        racy: BTreeSet::new(),
        places: BTreeMap::new(),
        folded: BTreeSet::new(),
    };
    let bench = |granularity| Bench {
        granularity,
        variables: Variables::new(granularity),
        subjects: wanted.iter().copied().map(subject).collect(),
        steps: Vec::new(),
        seen: [0; 3],
        libraries: libraries.to_vec(),
    };
    granularities.into_iter().map(bench).collect()
}

impl Bench {
    fn take(&mut self, steps: &[(u32, Tapped)]) {
        let Bench { variables, steps: all, .. } = self;
        for (thread, tapped) in steps {
            variables.steps(*thread, tapped, &mut |step| all.push(step));
        }
        self.run();
    }

    /// Has the detectors see what has been gathered, one after another.
    fn run(&mut self) {
        for step in &self.steps {
            let what = match step.op {
                paper::Op::Read(_) => 0,
                paper::Op::Write(_) => 1,
                _ => 2,
            };
            self.seen[what] += 1;
        }
        for subject in &mut self.subjects {
            let begin = Instant::now();
            for step in &self.steps {
                if subject.detector.step(step) {
                    if self.libraries.iter().any(|library| library.contains(&step.site)) {
                        subject.folded.insert(step.site);
                        continue;
                    }
                    let variable = step.op.variable_or_object();
                    subject.racy.insert(variable);
                    subject.places.entry(step.site).or_insert((0, variable)).0 += 1;
                }
            }
            subject.took += begin.elapsed();
        }
        self.steps.clear();
    }
}

/// What places and variables are called.
enum Sources {
    Text(Std),
    Trace { symbols: Box<Symbols>, incomplete: Option<String> },
}

fn feed_std(args: &Detection) -> crate::Result<(Vec<Bench>, Sources)> {
    let shown = args.trace.display();
    let text =
        std::fs::read_to_string(&args.trace).with_context(|| format!("cannot read {shown}"))?;
    let std = Std::read(&text)
        .map_err(|why| Error::Refused(format!("{shown}: not in RAPID's STD format: {why}")))?;
    let mut benches = benches(args, &[]);
    for bench in &mut benches {
        bench.steps.clone_from(&std.steps);
        bench.run();
    }
    Ok((benches, Sources::Text(std)))
}

fn feed_trace(args: &Detection, session: &Session) -> crate::Result<(Vec<Bench>, Sources)> {
    let path = &args.trace;
    let trace = trace_file::read(path)?;
    let folds = !args.all;
    let libraries = if folds { libraries(&trace, false) } else { Vec::new() };
    let mut benches = benches(args, &libraries);
    let mut look = |steps: &[(u32, Tapped)]| benches.iter_mut().for_each(|it| it.take(steps));
    let incomplete = session.steps(path, (&trace, args.atomics), &mut look)?;
    let symbols = Box::new(Symbols::new(trace.modules()));
    Ok((benches, Sources::Trace { symbols, incomplete }))
}

fn detected(
    args: &Detection,
    benches: Vec<Bench>,
    mut sources: Sources,
    total: Duration,
) -> Detected {
    let nanoseconds = |took: Duration| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let detectors: Duration = benches.iter().flat_map(|it| &it.subjects).map(|it| it.took).sum();
    let reference = benches.first().map_or([0; 3], |bench| bench.seen);
    let mut report = Detected {
        trace: args.trace.display().to_string(),
        reads: reference[0],
        writes: reference[1],
        others: reference[2],
        empty_ns: nanoseconds(total.saturating_sub(detectors)),
        compared: args.compares,
        ..Detected::default()
    };
    if let Sources::Trace { incomplete, .. } = &mut sources {
        report.incomplete = incomplete.take();
    }
    for bench in benches {
        let granularity = bench.granularity.name();
        for subject in bench.subjects {
            let Cost { clocks, operations, bytes, rules } = subject.detector.cost();
            let places = sources.places(subject.places);
            report.rows.push(Row {
                detector: subject.which.name().to_owned(),
                prefilter: subject.filter.name().to_owned(),
                granularity: granularity.to_owned(),
                nanoseconds: nanoseconds(subject.took),
                variables: subject.racy.len() as u64,
                places: places.len() as u64,
                folded: subject.folded.len() as u64,
                clocks,
                operations,
                bytes,
                rules: rules
                    .into_iter()
                    .map(|(rule, count)| Rule { rule: rule.to_owned(), count })
                    .collect(),
            });
            if !args.compares {
                report.places = places;
            }
        }
    }
    report
}

impl Sources {
    /// The places at which something raced.
    fn places(&mut self, found: BTreeMap<u64, (u64, u64)>) -> Vec<RacySite> {
        let mut places = Vec::new();
        for (site, (count, variable)) in found {
            let (place, variable) = match self {
                Sources::Text(std) => {
                    (site.to_string(), std.variables.get(variable as usize).cloned())
                }
                Sources::Trace { symbols, .. } => {
                    let place = match site {
                        // What orders has no place.
                        0 => "-".to_owned(),
                        site => symbols.place(Code::At(site)).short(),
                    };
                    (place, Some(format!("{variable:#x}")))
                }
            };
            places.push(RacySite { place, variable: variable.unwrap_or_default(), count });
        }
        places.sort_by_key(|place| std::cmp::Reverse(place.count));
        places
    }
}
