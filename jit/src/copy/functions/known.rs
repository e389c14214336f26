//! What was found in functions before: in this process, until something was forgotten, or by an
//! earlier recording ([`refrain_vm::RecordingEngine::recall`]).
//!
//! What is found in a function depends on its code, and on what is around it: the other functions of its
//! module, what its calls through the linker's tables lead to, and which functions are the library's
//! locks. A finding holds a digest of either. That of the surroundings takes in every module, by build
//! and place, and every lock, in the order in which they came; so where it is the same, so is the
//! code that a function may call. A module of no known build may be any code: once there is one, nothing
//! is looked up or kept any more.

use crate::copy::idioms::Idioms;
use refrain_trace::fixed::{FixedMap, digest};
use refrain_vm::{Finding, Recall};
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

/// What tells this finder from others, whose findings it must not take for its own: the digest of
/// what it finds in code that stays the same. A test names the new one when that has changed.
const FINDER: u64 = 0x244a_0efe_8b7e_5c2f;

/// Findings that are kept; of more, only those that this process has met.
const MOST: usize = 1 << 15;

/// See the module's documentation.
pub(super) struct Known {
    /// The digest of the surroundings; none if a module may be any code.
    around: Option<u64>,
    /// By surroundings and start.
    findings: FixedMap<(u64, u64), Found>,
    /// Has the findings of earlier recordings.
    recall: Option<Recall>,
    /// Whether something was found that was not known.
    is_new: bool,
}

struct Found {
    /// The digest of the code, and how many bytes that is.
    code: u64,
    len: u64,
    idioms: Arc<Idioms>,
    /// Whether this process has come to the function.
    is_met: bool,
}

impl Default for Known {
    fn default() -> Known {
        Known { around: Some(FINDER), findings: FixedMap::default(), recall: None, is_new: false }
    }
}

impl Known {
    /// There is one more module. (Where its functions are, its build and its place say.)
    pub(super) fn module(
        &mut self,
        build: Option<&str>,
        code: &Range<u64>,
        constant: &[Range<u64>],
        trusted: bool,
    ) {
        match build {
            Some(build) => self.mix((build, code, constant, trusted)),
            None => self.around = None,
        }
    }

    /// Something else has come about that answers depend on.
    pub(super) fn mix(&mut self, what: impl Hash) {
        self.around = self.around.map(|around| digest(&(around, what)));
    }

    /// The digest of the surroundings.
    pub(super) fn around(&self) -> Option<u64> {
        self.around
    }

    /// Takes what is to be recalled from there, when it is [read](Self::read).
    pub(super) fn recall_from(&mut self, recall: Recall) {
        self.recall = Some(recall);
    }

    /// Reads what is to be recalled, if that has not been done.
    pub(super) fn read(&mut self) {
        let Some(recall) = self.recall.take() else { return };
        for Finding { around, start, code, len, polls, sites, checks } in recall() {
            let idioms = Arc::new(Idioms { polls, sites, checks });
            let found = Found { code, len, idioms, is_met: false };
            self.findings.entry((around, start)).or_insert(found);
        }
    }

    /// What is known of the function in this range; `code` reads as many of its first bytes as it is
    /// asked for.
    pub(super) fn get(
        &mut self,
        range: &Range<u64>,
        code: impl FnOnce(u64) -> Vec<u8>,
    ) -> Option<Arc<Idioms>> {
        let found = self.findings.get_mut(&(self.around?, range.start))?;
        let is_inside =
            |sites: &[u64]| sites.is_sorted() && sites.iter().all(|site| range.contains(site));
        let idioms = &found.idioms;
        let is_sound = found.code == digest(&code(found.len).as_slice())
            && [&idioms.polls, &idioms.sites, &idioms.checks].into_iter().all(|it| is_inside(it));
        found.is_met |= is_sound;
        is_sound.then(|| Arc::clone(&found.idioms))
    }

    /// Keeps what was found in the function at `start` with this code.
    pub(super) fn keep(&mut self, start: u64, code: &[u8], idioms: &Arc<Idioms>) {
        let Some(around) = self.around else { return };
        let idioms = Arc::clone(idioms);
        let (code, len) = (digest(&code), code.len() as u64);
        self.findings.insert((around, start), Found { code, len, idioms, is_met: true });
        self.is_new = true;
    }

    /// What to recall in later recordings; `None` if that is what was recalled.
    pub(super) fn findings(&self) -> Option<Vec<Finding>> {
        if !self.is_new {
            return None;
        }
        let all = self.findings.len() <= MOST;
        let kept = self.findings.iter().filter(|(_, found)| all || found.is_met);
        let mut kept: Vec<Finding> = kept
            .map(|(&(around, start), Found { code, len, idioms, .. })| Finding {
                around,
                start,
                code: *code,
                len: *len,
                polls: idioms.polls.clone(),
                sites: idioms.sites.clone(),
                checks: idioms.checks.clone(),
            })
            .collect();
        kept.sort_unstable_by_key(|it| (it.around, it.start));
        Some(kept)
    }
}

#[cfg(test)]
mod tests;
