//! `refrain races --detector` and `--compare`: the detectors of the paper's tables over one trace, recorded
//! here or written by others in RAPID's format.

use crate::args::{self, Detector, Granularity, Races};
use crate::failure::Outcome;
use crate::output::{self, Style};
use crate::report::detectors::{Place, Report, Row, Rule, render};
use anyhow::{Context, bail};
use refrain_analysis::Tapped;
use refrain_analysis::paper::{self, Cost, Prefilter, Std, Step, Variables, Which};
use refrain_session::symbols::{Code, Symbols};
use refrain_session::{Session, libraries, trace_file};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// Whether a file is a trace in RAPID's format.
pub(crate) fn is_std(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "std")
}

/// Runs one detector, or all, and prints what they found, and what they cost.
pub(crate) fn run(args: &Races, session: &Session) -> Outcome {
    let begin = Instant::now();
    let (benches, sources) = match is_std(&args.trace) {
        true => feed_std(args)?,
        false => feed_trace(args, session)?,
    };
    let total = begin.elapsed();
    let report = report(args, benches, sources, total);
    if args.report.json {
        output::print_json("detectors", &report)?;
    } else {
        output::print(&render(&report, Style::of_stdout()))?;
    }
    let found = !args.compare && report.rows.iter().any(|row| row.places > 0);
    Ok(match (found, &report.incomplete) {
        (true, _) => args.report.error_exitcode,
        (false, Some(_)) => 1,
        (false, None) => 0,
    })
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
fn benches(args: &Races, libraries: &[Range<u64>]) -> Vec<Bench> {
    let filtered = |filter| Which::BEHIND_FILTERS.map(|which| (which, filter));
    let wanted = match (args.compare, args.detector) {
        (true, _) => Which::ALL
            .map(|which| (which, Prefilter::None))
            .into_iter()
            .chain(Prefilter::ALL.into_iter().flat_map(filtered))
            .collect(),
        (false, detector) => {
            vec![(which(detector.unwrap_or(Detector::Fasttrack)), prefilter(args.prefilter))]
        }
    };
    let both = [Granularity::Fine, Granularity::Coarse];
    let granularities = match (args.compare && !is_std(&args.trace), args.granularity) {
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
        variables: Variables::new(match granularity {
            Granularity::Fine => paper::Granularity::Fine,
            Granularity::Coarse => paper::Granularity::Coarse,
        }),
        subjects: wanted.iter().copied().map(subject).collect(),
        steps: Vec::new(),
        seen: [0; 3],
        libraries: libraries.to_vec(),
    };
    granularities.into_iter().map(bench).collect()
}

fn which(detector: Detector) -> Which {
    match detector {
        Detector::Empty => Which::Empty,
        Detector::Eraser => Which::Eraser,
        Detector::Multirace => Which::MultiRace,
        Detector::Goldilocks => Which::Goldilocks,
        Detector::Basicvc => Which::BasicVc,
        Detector::Djit => Which::Djit,
        Detector::Fasttrack => Which::FastTrack,
        Detector::Shb => Which::Shb,
        Detector::Velodrome => Which::Velodrome,
        Detector::Singletrack => Which::SingleTrack,
    }
}

fn prefilter(filter: Option<args::Prefilter>) -> Prefilter {
    match filter {
        None => Prefilter::None,
        Some(args::Prefilter::ThreadLocal) => Prefilter::ThreadLocal,
        Some(args::Prefilter::Eraser) => Prefilter::By(Which::Eraser),
        Some(args::Prefilter::Djit) => Prefilter::By(Which::Djit),
        Some(args::Prefilter::Fasttrack) => Prefilter::By(Which::FastTrack),
    }
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

fn feed_std(args: &Races) -> anyhow::Result<(Vec<Bench>, Sources)> {
    let shown = args.trace.display();
    let text =
        std::fs::read_to_string(&args.trace).with_context(|| format!("cannot read {shown}"))?;
    let std = Std::read(&text).with_context(|| format!("{shown}: not in RAPID's STD format"))?;
    let mut benches = benches(args, &[]);
    for bench in &mut benches {
        bench.steps.clone_from(&std.steps);
        bench.run();
    }
    Ok((benches, Sources::Text(std)))
}

fn feed_trace(args: &Races, session: &Session) -> anyhow::Result<(Vec<Bench>, Sources)> {
    let path = &args.trace;
    let trace = trace_file::read(path)?;
    let folds = !args.report.all;
    let libraries = if folds { libraries(&trace, false) } else { Vec::new() };
    let mut benches = benches(args, &libraries);
    let mut look = |steps: &[(u32, Tapped)]| benches.iter_mut().for_each(|it| it.take(steps));
    let incomplete = session.steps(path, (&trace, args.report.atomics.into()), &mut look)?;
    let symbols = Box::new(Symbols::new(trace.modules()));
    Ok((benches, Sources::Trace { symbols, incomplete }))
}

fn report(args: &Races, benches: Vec<Bench>, mut sources: Sources, total: Duration) -> Report {
    let nanoseconds = |took: Duration| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let detectors: Duration = benches.iter().flat_map(|it| &it.subjects).map(|it| it.took).sum();
    let reference = benches.first().map_or([0; 3], |bench| bench.seen);
    let mut report = Report {
        trace: args.trace.display().to_string(),
        reads: reference[0],
        writes: reference[1],
        others: reference[2],
        empty_ns: nanoseconds(total.saturating_sub(detectors)),
        compared: args.compare,
        ..Report::default()
    };
    if let Sources::Trace { incomplete, .. } = &mut sources {
        report.incomplete = incomplete.take();
    }
    for bench in benches {
        let granularity = match bench.granularity {
            Granularity::Fine => "fine",
            Granularity::Coarse => "coarse",
        };
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
            if !args.compare {
                report.places = places;
            }
        }
    }
    report
}

impl Sources {
    /// The places at which something raced.
    fn places(&mut self, found: BTreeMap<u64, (u64, u64)>) -> Vec<Place> {
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
            places.push(Place { place, variable: variable.unwrap_or_default(), count });
        }
        places.sort_by_key(|place| std::cmp::Reverse(place.count));
        places
    }
}

/// Refuses what goes with the full report only.
pub(crate) fn must_be_plain(args: &Races) -> anyhow::Result<()> {
    if args.report.sarif || args.report.suppressions.is_some() {
        bail!("--sarif and --suppressions are for refrain's own detector");
    }
    Ok(())
}
