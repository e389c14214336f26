//! Replaying again and again, and the command that repeats one replay.

use super::once;
use refrain_session::choices::{Clock, Cost};
use refrain_session::machine::{Policy, ReplayOptions};
use refrain_session::replay::Divergence;
use std::path::Path;

/// What one replay by the wall clock gave: its time, or why it did not come to its end.
pub(crate) fn wall_time(
    path: &Path,
    options: &ReplayOptions,
) -> anyhow::Result<Result<u64, String>> {
    let report = once::replay(path, options, true)?;
    let Some(divergence) = &report.divergence else {
        return Ok(Ok(report.run_ns));
    };
    let order = match report.reordered.as_slice() {
        [] => String::new(),
        objects => format!("; its outcome depends on the order of {}", objects.join(", ")),
    };
    let Divergence { kind, thread, event, .. } = divergence;
    let again = wall_command(path, options);
    Ok(Err(format!("{kind} at {thread} {event}{order} (`{again}` repeats it)")))
}

/// The command that repeats a replay in virtual time.
pub(crate) fn virtual_command(
    path: &Path,
    policy: Policy,
    cores: Option<u32>,
    cost: Cost,
) -> String {
    let cost = (cost != Cost::Recorded).then_some("--cost instructions".to_owned());
    command(path, policy, Clock::Virtual, cores, cost)
}

/// The command that repeats a replay by the wall clock.
pub(crate) fn wall_command(path: &Path, options: &ReplayOptions) -> String {
    command(
        path,
        options.policy,
        Clock::Wall,
        options.cores,
        Some(format!("--engine {}", options.engine.name())),
    )
}

fn command(
    path: &Path,
    policy: Policy,
    clock: Clock,
    cores: Option<u32>,
    more: Option<String>,
) -> String {
    let mut words = vec!["refrain replay".to_owned()];
    words.push(format!("--scheduler {} --clock {}", policy.scheduler.name(), clock.name()));
    words.extend(policy.seed.map(|seed| format!("--seed {seed}")));
    words.extend(cores.map(|cores| format!("--cores {cores}")));
    words.extend(more);
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
    use refrain_session::choices::{EngineKind, SchedulerKind};

    #[test]
    fn the_command_survives_a_shell() {
        let policy = Policy { scheduler: SchedulerKind::Pct, seed: Some(7) };
        let exact = ReplayOptions::exact(EngineKind::Copy);
        let options = ReplayOptions { policy, cores: Some(2), ..exact };
        assert_eq!(
            wall_command(Path::new("it's a.refrain"), &options),
            "refrain replay --scheduler pct --clock wall --seed 7 --cores 2 --engine copy \
             'it'\\''s a.refrain'"
        );
        assert_eq!(
            virtual_command(Path::new("a.refrain"), Policy::default(), None, Cost::Recorded),
            "refrain replay --scheduler elsc --clock virtual a.refrain"
        );
    }
}
