//! What must pass before a change is merged.

use crate::root::{cargo, must};

/// The README's commands, and `tidy`.
pub(crate) fn run() -> anyhow::Result<()> {
    must(&mut cargo(&["fmt", "--check"]))?;
    must(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    must(&mut cargo(&["test", "--workspace"]))?;
    crate::tidy::run()
}

/// Runs all tests with every snapshot library told to accept what it sees. What has changed is
/// then to be read in `git diff`.
pub(crate) fn bless() -> anyhow::Result<()> {
    let accepting = [("BLESS", "1"), ("INSTA_UPDATE", "always"), ("SNAPSHOTS", "overwrite")];
    must(cargo(&["test", "--workspace"]).envs(accepting))
}
