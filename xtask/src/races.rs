//! Holds what `refrain races` finds in the corpus's programs with races, and in their twins without,
//! against the lines: the end-to-end test of a few of them, with all, and several recordings of each.

use crate::root::{cargo, must};

/// The test has the programs; this says how many, and how often.
pub(crate) fn run(recordings: u32) -> anyhow::Result<()> {
    let arguments = ["test", "--release", "--package", "refrain-tests", "--test", "race_corpus"];
    let times = recordings.max(1).to_string();
    must(cargo(&arguments).env("REFRAIN_RACES", times))
}
