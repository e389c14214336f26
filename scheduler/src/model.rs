//! What the virtual clock assumes of a run, beyond the machine: how threads wait, noise, logical
//! clocks.

use crate::latencies::Waking;
use crate::schedule::Noise;
use crate::splitmix::SplitMix;
use crate::{Costs, Skeleton};
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
    /// What it takes to wake a thread, drawn from these ([`Waiting::Glibc`]). If there are none, it
    /// is drawn from around the machine's costs; without noise, it is the machine's costs.
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

/// Draws from what was measured: what it takes to wake a thread. One waking takes what the next one
/// took in the recording, from any point of it on: how late a core goes on that idled depends on what
/// it did before, so latencies that follow each other are alike.
#[derive(Debug)]
pub(crate) struct Wakings<'a> {
    samples: &'a [Waking],
    handoffs: &'a [u64],
    random: SplitMix,
    /// The next sample.
    next: usize,
    /// What is drawn around where there are no samples.
    usual: Option<Waking>,
}

impl<'a> Wakings<'a> {
    pub(crate) fn new(model: &Model<'a>, costs: &Costs) -> Wakings<'a> {
        let seed = model.noise.map_or(0, |noise| noise.seed);
        let mut random = SplitMix::new(!seed);
        let next = random.below((model.wakings.len() as u64).max(1)) as usize;
        let usual = model.noise.map(|_| Waking { wake: costs.wake, rouse: costs.rouse });
        Wakings { samples: model.wakings, handoffs: model.handoffs, random, next, usual }
    }

    /// What it takes a thread that waits awake to go on.
    pub(crate) fn draw_handoff(&mut self) -> Option<u64> {
        let last = (self.handoffs.len() as u64).checked_sub(1)?;
        self.handoffs.get(self.random.below(last + 1) as usize).copied()
    }

    /// A latency that is this long in the middle. Were it the same every time, a loop whose rounds it is a
    /// multiple of would find its lock taken again and again. Without noise, it is.
    pub(crate) fn around(&mut self, usual: u64) -> u64 {
        match self.usual {
            Some(_) => usual / 2 + self.random.below(usual + 1),
            None => usual,
        }
    }

    pub(crate) fn draw(&mut self) -> Option<Waking> {
        let Some(sample) = self.samples.get(self.next).copied() else {
            let Waking { wake, rouse } = self.usual?;
            return Some(Waking { wake: self.around(wake), rouse: self.around(rouse) });
        };
        self.next = (self.next + 1) % self.samples.len();
        Some(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn without_samples_wakings_vary_with_the_noise() {
        let costs = Config::typical(2, 1_000_000_000).costs;
        let drawn = |seed: Option<u64>| {
            let noise = seed.map(|seed| Noise { seed, per_mille: 1 });
            let model = Model { noise, ..Model::default() };
            let mut wakings = Wakings::new(&model, &costs);
            (0..1000).map(|_| wakings.draw()).collect::<Vec<_>>()
        };
        assert!(drawn(None).iter().all(Option::is_none), "the machine's costs as they are");
        let some: Vec<u64> = drawn(Some(7)).into_iter().map(|it| it.unwrap().wake).collect();
        let (least, most) = (costs.wake / 2, costs.wake + costs.wake.div_ceil(2));
        assert!(some.iter().all(|wake| (least..=most).contains(wake)));
        let mean = some.iter().sum::<u64>() / 1000;
        assert!(mean.abs_diff(costs.wake) < costs.wake / 10, "{mean}");
        assert_ne!(drawn(Some(7)), drawn(Some(8)));
        assert_eq!(drawn(Some(7)), drawn(Some(7)));
    }

    #[test]
    fn wakings_follow_each_other_as_recorded() {
        let samples: Vec<Waking> = (0..5).map(|wake| Waking { wake, rouse: 1 }).collect();
        let starts = (0..20).map(|seed| {
            let noise = Some(Noise { seed, per_mille: 1 });
            let model = Model { noise, wakings: &samples, ..Model::default() };
            let mut wakings = Wakings::new(&model, &Config::ideal(1).costs);
            let drawn: Vec<u64> = (0..10).map(|_| wakings.draw().unwrap().wake).collect();
            assert!(drawn.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 5), "{drawn:?}");
            drawn[0]
        });
        let starts: std::collections::BTreeSet<u64> = starts.collect();
        assert_eq!(starts.len(), 5, "the noise decides where it begins");
    }
}
