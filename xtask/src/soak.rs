//! Soaking: random corpus programs, recorded and replayed until the time is up. Schedules differ
//! from run to run, so a long soak meets orders that the tests never do.

use crate::text_data::Random;
use crate::workload::Size;
use crate::{exact, faults, kills, mutants, root, workload};
use anyhow::bail;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long, and from which seed.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Seconds
    #[arg(default_value_t = 0)]
    seconds: u64,
    /// Kill so many recorders at random moments instead, and look at what they leave
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    kill: Option<u64>,
    /// Let each write of some recordings fail instead, in several ways
    #[arg(long, conflicts_with = "seconds")]
    faults: bool,
    /// Start two recorders at once in one folder, so many times, instead
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    pairs: Option<u64>,
    /// Replay, rank and check so many mutants of recorded traces instead
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    mutants: Option<u64>,
    /// Seed of the choice of programs; the time by default
    #[arg(long)]
    seed: Option<u64>,
    /// Only workloads whose names contain one of these
    #[arg(long = "only", value_name = "NAME")]
    names: Vec<String>,
}

/// Runs until the time is up. Fails if anything did, and says with which trace.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if let Some(count) = options.mutants {
        return mutants::run(count, options.seed.unwrap_or_default());
    }
    if options.faults {
        return faults::run();
    }
    if let Some(times) = options.pairs {
        faults::together(times, 2)?;
        return faults::together(times.div_ceil(8), 8);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = options.seed.unwrap_or(now.as_nanos() as u64);
    println!("seed {seed}");
    if let Some(kills) = options.kill {
        return kills::run(kills, seed, &options.names);
    }
    let refrain = root::release_refrain()?;
    let mut workloads = workload::corpus(&root::cache()?, |_| Size::Small)?;
    workloads
        .retain(|w| options.names.is_empty() || options.names.iter().any(|n| w.name.contains(n)));
    workloads.retain(|workload| !workload.racy);
    if workloads.is_empty() {
        bail!("no workload has such a name");
    }
    let mut random = Random::new(seed);
    let checks = exact::Options {
        replays: 2,
        engines: vec!["tiered".into(), "cranelift".into(), "copy".into()],
        bytes: 0,
        large: false,
        names: Vec::new(),
    };
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let (mut rounds, mut failures) = (0u64, 0u64);
    while Instant::now() < end {
        let workload = &workloads[random.below(workloads.len())];
        rounds += 1;
        if let Err(error) = exact::check(workload, &refrain, &checks) {
            failures += 1;
            println!("round {rounds}, {}: {error:#}", workload.name);
        }
    }
    println!("{rounds} rounds, {failures} failures");
    if failures > 0 {
        bail!("{failures} of {rounds} rounds failed");
    }
    Ok(())
}
