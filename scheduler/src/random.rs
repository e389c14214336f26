//! Random: an even choice among the threads that wait, from a seed.
//!
//! It finds orders that the recording did not have. Not from the paper.

use crate::splitmix::SplitMix;
use crate::{Choice, Moment, Request, Scheduler};

/// Grants an object to a random one of the threads that stand before it.
#[derive(Clone, Debug)]
pub struct Random(SplitMix);

impl Random {
    /// The seed decides every choice.
    pub fn new(seed: u64) -> Random {
        Random(SplitMix::new(seed))
    }
}

impl Scheduler for Random {
    fn choose(&mut self, _: Moment<'_>, requests: &[Request]) -> Choice {
        Choice::Grant(self.0.below(requests.len() as u64) as usize)
    }
}
