//! What the virtual clock assumes of a run, beyond the machine: how threads wait, noise, logical
//! clocks.

use crate::Skeleton;
use crate::latencies::Waking;
use crate::schedule::Noise;
use crate::splitmix::SplitMix;
use serde::{Deserialize, Serialize};

/// How a thread waits for an object, and how it gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Waiting {
    /// It sleeps, and the object is handed over to it.
    #[default]
    Handover,
    /// It stays awake, however long: it goes on after [`crate::Costs::handoff`].
    Polling,
    /// It sleeps and is woken when its request is granted; then it asks again. The object stays
    /// free meanwhile, and whoever comes along may overtake.
    Barging,
    /// The same as glibc and the kernel do it: a thread that finds a lock taken is on its way to
    /// sleep for a moment, a release wakes only if somebody sleeps, and waking costs the thread that
    /// wakes. Without a global scope only; with one as [`Waiting::Barging`].
    Glibc,
}

/// What a simulation assumes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Model<'a> {
    /// How threads wait.
    pub waiting: Waiting,
    /// The machine's noise. `None`: work takes as long as recorded.
    pub noise: Option<Noise>,
    /// What it takes to wake a thread, drawn from these ([`Waiting::Glibc`]); the machine's costs
    /// if there are none.
    pub wakings: &'a [Waking],
    /// From a release to the moment when a thread that waits awake goes on, drawn from these
    /// ([`Waiting::Glibc`]); the machine's costs if there are none.
    pub handoffs: &'a [u64],
    /// A skeleton of the same events, whose work and times are what logical clocks count; the
    /// replayed one if there is none.
    pub clocks: Option<&'a Skeleton>,
}

impl Model<'_> {
    /// Threads wait like this, and nothing else is assumed.
    pub fn waiting(waiting: Waiting) -> Model<'static> {
        Model { waiting, ..Model::default() }
    }
}

/// Draws from what was measured: what it takes to wake a thread.
#[derive(Debug)]
pub(crate) struct Wakings<'a> {
    samples: &'a [Waking],
    handoffs: &'a [u64],
    random: SplitMix,
}

impl<'a> Wakings<'a> {
    pub(crate) fn new(model: &Model<'a>) -> Wakings<'a> {
        let seed = model.noise.map_or(0, |noise| noise.seed);
        Wakings { samples: model.wakings, handoffs: model.handoffs, random: SplitMix::new(!seed) }
    }

    /// What it takes a thread that waits awake to go on.
    pub(crate) fn draw_handoff(&mut self) -> Option<u64> {
        let last = (self.handoffs.len() as u64).checked_sub(1)?;
        self.handoffs.get(self.random.below(last + 1) as usize).copied()
    }

    pub(crate) fn draw(&mut self) -> Option<Waking> {
        let last = (self.samples.len() as u64).checked_sub(1)?;
        self.samples.get(self.random.below(last + 1) as usize).copied()
    }
}
