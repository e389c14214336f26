//! The original by arrival, and what a variant of it gains, with its range.

use crate::{Gain, NOMINAL, RECORDED, Relaxed, Replayer, Setting, TRIALS};

/// The original by arrival.
pub(crate) struct Arrivals {
    /// A duration for each trial, in ticks and in nanoseconds.
    trials: Vec<(u64, u64)>,
    /// How long the recording took, in ticks, if that is known.
    recorded: Option<u64>,
}

impl Arrivals {
    pub(crate) fn new(replayer: &mut dyn Replayer) -> Result<Arrivals, String> {
        let trial = |trial| {
            let ticks = replayer.arrive(None, Setting::of(trial))?.duration;
            Ok((ticks, replayer.nanoseconds(ticks)))
        };
        let trials = (0..TRIALS).map(trial).collect::<Result<Vec<_>, String>>()?;
        Ok(Arrivals { trials, recorded: replayer.recorded() })
    }

    pub(crate) fn likely_ns(&self) -> u64 {
        let mut nominal: Vec<u64> =
            self.trials.iter().take(NOMINAL as usize).map(|&(_, ns)| ns).collect();
        nominal.sort_unstable();
        nominal[nominal.len() / 2]
    }

    /// The model's time of the run as recorded, if it can be held against the recording.
    pub(crate) fn check_ns(&self) -> Option<u64> {
        self.recorded.map(|_| self.trials[RECORDED as usize].1)
    }

    /// What the run gains if some locks are relaxed: each of these trials against the original's of
    /// the same noise and latencies, in proportion to the original's likeliest duration.
    pub(crate) fn gain(
        &self,
        replayer: &mut dyn Replayer,
        relaxed: &Relaxed<'_>,
        trials: impl Iterator<Item = u32>,
    ) -> Result<Gain, String> {
        let likely_ns = i128::from(self.likely_ns());
        let (mut all, mut nominal, mut recorded) = (Vec::new(), Vec::new(), None);
        for trial in trials {
            let original = i128::from(self.trials[trial as usize].0);
            let free = replayer.arrive(Some(relaxed), Setting::of(trial))?.duration;
            let gain = original - i128::from(free);
            let gain = (gain * likely_ns / original.max(1)) as i64;
            all.push(gain);
            nominal.extend((trial < NOMINAL).then_some(gain));
            recorded = recorded.or((trial == RECORDED).then_some(gain));
        }
        nominal.sort_unstable();
        let likely = nominal[nominal.len() / 2];
        // Some of the recorder's work is left in what counts as the program's. What all of it does to
        // the gain, it is taken to do once more the other way.
        all.extend(recorded.map(|recorded| 2 * likely - recorded));
        let some = "there are trials";
        let (least, most) =
            (all.iter().copied().min().expect(some), all.iter().copied().max().expect(some));
        Ok(self.with_unknown(Gain { least_ns: least, likely_ns: likely, most_ns: most }))
    }

    /// Work is as long as it was recorded, so what the model's time of the recorded run differs by is
    /// waiting that it has too much of or too little, and nobody knows for which lock: all of it
    /// may be part of the gain, or nothing.
    fn with_unknown(&self, gain: Gain) -> Gain {
        let Some(recorded) = self.recorded.filter(|_| gain != Gain::default()) else { return gain };
        let model = i128::from(self.trials[RECORDED as usize].0.max(1));
        let recorded = i128::from(recorded.max(1));
        let original = i128::from(self.likely_ns());
        let without = |gain: i64| (i128::from(gain) * model / recorded) as i64;
        let missing = (original * (recorded - model) / recorded) as i64;
        let ends = [gain.least_ns, gain.most_ns];
        let all =
            ends.into_iter().chain(ends.map(without)).chain(ends.map(|e| without(e) + missing));
        let (least, most) = all.fold((i64::MAX, i64::MIN), |(l, m), e| (l.min(e), m.max(e)));
        Gain { least_ns: least, most_ns: most, ..gain }
    }
}
