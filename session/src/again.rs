//! The `refrain` command that repeats a replay: error messages name it, so that a failure can be looked
//! at again.

use crate::choices::{Clock, Cost};
use crate::machine::{Policy, ReplayOptions};
use std::path::Path;

/// The command that repeats a replay in virtual time.
pub(crate) fn by_virtual_clock(
    path: &Path,
    policy: Policy,
    cores: Option<u32>,
    cost: Cost,
) -> String {
    let cost = (cost != Cost::Recorded).then_some("--cost instructions".to_owned());
    command(path, policy, Clock::Virtual, cores, cost)
}

/// The command that repeats a replay by the wall clock.
pub fn by_wall_clock(path: &Path, options: &ReplayOptions) -> String {
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

/// Why a replay in virtual time did not end, before the reason.
pub fn failed(path: &Path, policy: Policy, cores: Option<u32>, cost: Cost) -> String {
    let command = by_virtual_clock(path, policy, cores, cost);
    format!("the replay in virtual time did not end (`{command}` repeats it)")
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
    use crate::choices::{EngineKind, SchedulerKind};

    #[test]
    fn the_command_survives_a_shell() {
        let policy = Policy { scheduler: SchedulerKind::Pct, seed: Some(7) };
        let exact = ReplayOptions::exact(EngineKind::Copy);
        let options = ReplayOptions { policy, cores: Some(2), ..exact };
        assert_eq!(
            by_wall_clock(Path::new("it's a.refrain"), &options),
            "refrain replay --scheduler pct --clock wall --seed 7 --cores 2 --engine copy \
             'it'\\''s a.refrain'"
        );
        assert_eq!(
            by_virtual_clock(Path::new("a.refrain"), Policy::default(), None, Cost::Recorded),
            "refrain replay --scheduler elsc --clock virtual a.refrain"
        );
    }
}
