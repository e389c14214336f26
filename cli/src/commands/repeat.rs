//! Replaying again and again, and the command that repeats one replay.

use super::replay;
use crate::args::Clock;
use crate::machine::{Policy, ReplayOptions};
use std::path::Path;

/// What one replay by the wall clock gave: its time, or why it did not come to its end.
pub(crate) fn wall_time(
    path: &Path,
    options: &ReplayOptions,
) -> anyhow::Result<Result<u64, String>> {
    let report = replay::replay(path, options, true)?;
    Ok(match &report.divergence {
        None => Ok(report.run_ns),
        Some(divergence) => Err(format!(
            "{} at {} {}; try: {}",
            divergence.kind,
            divergence.thread,
            divergence.event,
            command(path, options.policy, Clock::Wall, options.cores)
        )),
    })
}

/// The command that repeats a replay under this policy.
pub(crate) fn command(path: &Path, policy: Policy, clock: Clock, cores: Option<u32>) -> String {
    let mut words = vec!["refrain replay".to_owned()];
    words.push(format!("--scheduler {} --clock {}", policy.scheduler.name(), clock.name()));
    words.extend(policy.seed.map(|seed| format!("--seed {seed}")));
    words.extend(cores.map(|cores| format!("--cores {cores}")));
    words.push(quoted(&path.to_string_lossy()));
    words.join(" ")
}

/// A word that a shell takes as it is.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::SchedulerKind;

    #[test]
    fn the_command_survives_a_shell() {
        let policy = Policy { scheduler: SchedulerKind::Pct, seed: Some(7) };
        assert_eq!(
            command(Path::new("it's a.refrain"), policy, Clock::Wall, Some(2)),
            "refrain replay --scheduler pct --clock wall --seed 7 --cores 2 'it'\\''s a.refrain'"
        );
        assert_eq!(
            command(Path::new("a.refrain"), Policy::default(), Clock::Virtual, None),
            "refrain replay --scheduler elsc --clock virtual a.refrain"
        );
    }
}
