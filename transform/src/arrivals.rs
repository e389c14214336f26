//! The original by arrival, and what a variant of it gains, with its range.

use crate::{Arrival, Gain, NOMINAL, RECORDED, Relaxed, Replayer, Setting, TRIALS};
use rayon::prelude::*;

/// The original by arrival.
pub(crate) struct Arrivals {
    /// A duration for each trial, in ticks and in nanoseconds.
    trials: Vec<(u64, u64)>,
    /// How long the recording took, in ticks, if that is known.
    recorded: Option<u64>,
    /// Which part of the waiting that the model has the recording had, too.
    borne_out: Part,
    /// The rest of it, in nanoseconds of the original's likeliest duration.
    surplus_ns: u64,
}

#[derive(Clone, Copy)]
struct Part {
    part: u64,
    all: u64,
}

impl Part {
    const WHOLE: Part = Part { part: 1, all: 1 };

    fn of(self, ns: i64) -> i64 {
        (i128::from(ns) * i128::from(self.part) / i128::from(self.all)) as i64
    }
}

/// What a variant gains in each trial, in nanoseconds.
type Gains = Vec<(u32, i64)>;

impl Arrivals {
    pub(crate) fn new(replayer: &dyn Replayer) -> Result<Arrivals, String> {
        let trial = |trial| {
            let ticks = replayer.arrive(None, Setting::of(trial))?.duration;
            Ok((ticks, replayer.nanoseconds(ticks)))
        };
        let trials = (0..TRIALS).into_par_iter().map(trial).collect::<Result<Vec<_>, String>>()?;
        let recorded = replayer.recorded();
        Ok(Arrivals { trials, recorded, borne_out: Part::WHOLE, surplus_ns: 0 })
    }

    /// The original's likeliest duration.
    pub(crate) fn likely_ns(&self) -> u64 {
        self.modelled_ns().saturating_sub(self.surplus_ns)
    }

    fn modelled_ns(&self) -> u64 {
        let mut nominal: Vec<u64> =
            self.trials.iter().take(NOMINAL as usize).map(|&(_, ns)| ns).collect();
        nominal.sort_unstable();
        nominal[nominal.len() / 2]
    }

    /// The model's time of the run as recorded, if it can be held against the recording.
    pub(crate) fn check_ns(&self) -> Option<u64> {
        self.recorded.map(|_| self.trials[RECORDED as usize].1)
    }

    /// What the run gains without any unnecessary contention.
    ///
    /// Work is as long as it was recorded, so what the model's time of the recorded run is too long by
    /// is waiting that the recording did not have. The original has as much too much of it, and so
    /// have all gains from here on. (What the model's time is too short by may as well be the recorder's
    /// work, of which it does not know all.)
    pub(crate) fn gain_of_all(
        &mut self,
        replayer: &dyn Replayer,
        relaxed: &Relaxed<'_>,
    ) -> Result<Gain, String> {
        let gains = self.gains(replayer, relaxed, 0..TRIALS)?;
        if let (Some(recorded), Some(gain @ 1..)) = (self.recorded, with_recording(&gains)) {
            let model = self.trials[RECORDED as usize].0;
            let surplus = u128::from(model.saturating_sub(recorded));
            // In proportion to the original's likeliest duration, as gains are.
            let surplus = surplus * u128::from(self.modelled_ns()) / u128::from(model.max(1));
            let surplus = u64::try_from(surplus).unwrap_or(u64::MAX);
            let gain = gain.unsigned_abs();
            self.borne_out = Part { part: gain.saturating_sub(surplus), all: gain };
        }
        let likely = middle(&gains);
        self.surplus_ns = (likely - self.borne_out.of(likely)).max(0).unsigned_abs();
        Ok(self.with_range(&gains))
    }

    /// The original without the waiting that the recording did not have, and a variant.
    pub(crate) fn both(
        &self,
        replayer: &dyn Replayer,
        relaxed: &Relaxed<'_>,
        setting: Setting,
    ) -> Result<[Arrival; 2], String> {
        let (original, variant) = rayon::join(
            || replayer.arrive(None, setting),
            || replayer.arrive(Some(relaxed), setting),
        );
        let (original, variant) = (original?, variant?);
        let held = |modelled: u64, variant: u64| {
            let more = modelled.saturating_sub(variant);
            let part = u128::from(more) * u128::from(self.borne_out.part);
            modelled - more + (part / u128::from(self.borne_out.all)) as u64
        };
        let duration = held(original.duration, variant.duration);
        let waited = held(original.waited, variant.waited);
        Ok([Arrival { duration, waited }, variant])
    }

    /// What the run gains if some locks are relaxed: each of these trials against the original's of
    /// the same noise and latencies, in proportion to the original's likeliest duration.
    pub(crate) fn gain(
        &self,
        replayer: &dyn Replayer,
        relaxed: &Relaxed<'_>,
        trials: impl Iterator<Item = u32>,
    ) -> Result<Gain, String> {
        Ok(self.with_range(&self.gains(replayer, relaxed, trials)?))
    }

    fn gains(
        &self,
        replayer: &dyn Replayer,
        relaxed: &Relaxed<'_>,
        trials: impl Iterator<Item = u32>,
    ) -> Result<Gains, String> {
        let modelled_ns = i128::from(self.modelled_ns());
        let gain = |trial: u32| {
            let original = i128::from(self.trials[trial as usize].0);
            let free = replayer.arrive(Some(relaxed), Setting::of(trial))?.duration;
            let gain = original - i128::from(free);
            Ok((trial, (gain * modelled_ns / original.max(1)) as i64))
        };
        trials.collect::<Vec<_>>().into_par_iter().map(gain).collect()
    }

    fn with_range(&self, gains: &Gains) -> Gain {
        let modelled = middle(gains);
        let likely = self.borne_out.of(modelled);
        let mut all: Vec<i64> = gains.iter().map(|(_, gain)| *gain).collect();
        // Some of the recorder's work is left in what counts as the program's. What all of it does to
        // the gain, it is taken to do once more the other way.
        all.extend(with_recording(gains).map(|recorded| 2 * modelled - recorded));
        let some = "there are trials";
        let (least, most) =
            (all.iter().copied().min().expect(some), all.iter().copied().max().expect(some));
        let (least, most) = self.with_unknown(least, most);
        Gain { least_ns: least.min(likely), likely_ns: likely, most_ns: most.max(likely) }
    }

    /// Nobody knows for which lock the model has too much waiting or too little: all of that may be part
    /// of the gain, or nothing. Gains are parts of the original's duration, by the model or as the
    /// recording says it.
    fn with_unknown(&self, least: i64, most: i64) -> (i64, i64) {
        let known = self.recorded.filter(|_| (least, most) != (0, 0));
        let Some(recorded) = known else { return (least, most) };
        let model = i128::from(self.trials[RECORDED as usize].0.max(1));
        let recorded = i128::from(recorded.max(1));
        let modelled = i128::from(self.modelled_ns().max(1));
        let original = i128::from(self.likely_ns());
        let ends = [least, most].map(|gain| {
            let gain = i128::from(gain);
            let by_model = gain * original / modelled;
            let without = by_model * model / recorded;
            [by_model, without, without + original * (recorded - model) / recorded]
        });
        let all = ends.into_iter().flatten().map(|end| end as i64);
        all.fold((i64::MAX, i64::MIN), |(least, most), end| (least.min(end), most.max(end)))
    }
}

/// The gain in the trial with the recorder's work in it.
fn with_recording(gains: &Gains) -> Option<i64> {
    gains.iter().find(|(trial, _)| *trial == RECORDED).map(|(_, gain)| *gain)
}

/// The middle one of the trials with the likeliest latencies.
fn middle(gains: &Gains) -> i64 {
    let nominal = gains.iter().filter(|(trial, _)| *trial < NOMINAL).map(|(_, gain)| *gain);
    let mut nominal: Vec<i64> = nominal.collect();
    nominal.sort_unstable();
    nominal[nominal.len() / 2]
}
