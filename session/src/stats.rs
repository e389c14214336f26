//! Distributions of times, and how sure a difference is.

use hdrhistogram::Histogram;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// Times of repeated replays, in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Distribution {
    /// Replays.
    pub runs: u64,
    /// Arithmetic mean.
    pub mean_ns: u64,
    /// Standard deviation of the sample.
    pub stddev_ns: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// Nine of ten are not longer.
    pub p90_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Distribution {
    /// Of these times; `None` if there are none. Mean and extremes are exact; the quantiles are
    /// those of a histogram with three digits.
    pub fn of(times: &[u64]) -> Option<Distribution> {
        let (&min_ns, &max_ns) = (times.iter().min()?, times.iter().max()?);
        let mut histogram = Histogram::<u64>::new(3).expect("three digits are few enough");
        for &time in times {
            histogram.record(time).expect("the histogram grows by itself");
        }
        let quantile = |q| histogram.value_at_quantile(q).clamp(min_ns, max_ns);
        let mean = mean(times.iter().map(|&time| time as f64), times.len());
        let squares = times.iter().map(|&time| (time as f64 - mean).powi(2)).sum::<f64>();
        let variance = squares / (times.len().max(2) - 1) as f64;
        Some(Distribution {
            runs: times.len() as u64,
            mean_ns: nanoseconds(mean),
            stddev_ns: nanoseconds(variance.sqrt()),
            min_ns,
            p50_ns: quantile(0.5),
            p90_ns: quantile(0.9),
            max_ns,
        })
    }
}

/// A number of nanoseconds that was computed with fractions.
fn nanoseconds(value: f64) -> u64 {
    value.round() as u64
}

fn mean(values: impl Iterator<Item = f64>, count: usize) -> f64 {
    values.sum::<f64>() / count.max(1) as f64
}

/// The mean of paired differences, and where it lies with 95 % confidence.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Difference {
    /// Pairs.
    pub pairs: u64,
    /// Mean of B - A.
    pub mean_ns: i64,
    /// Lower end of the interval.
    pub low_ns: i64,
    /// Upper end of the interval.
    pub high_ns: i64,
}

/// Samples that the interval is drawn from.
const RESAMPLES: usize = 10_000;

impl Difference {
    /// Of paired times. The interval is the percentile bootstrap's (Efron and Tibshirani, "An
    /// Introduction to the Bootstrap", 1993, section 13.3), so it assumes no shape of the noise;
    /// the seed decides the samples.
    pub fn of(pairs: &[(u64, u64)], seed: u64) -> Option<Difference> {
        let differences: Vec<f64> = pairs.iter().map(|&(a, b)| b as f64 - a as f64).collect();
        let count = differences.len();
        if count == 0 {
            return None;
        }
        let mut random = SplitMix::new(seed);
        let mut means: Vec<f64> = (0..RESAMPLES)
            .map(|_| mean((0..count).map(|_| differences[random.below(count)]), count))
            .collect();
        means.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| means[(share * (RESAMPLES - 1) as f64).round() as usize];
        Some(Difference {
            pairs: count as u64,
            mean_ns: mean(differences.iter().copied(), count).round() as i64,
            low_ns: at(0.025).round() as i64,
            high_ns: at(0.975).round() as i64,
        })
    }

    /// Whether the interval leaves no doubt about the sign.
    pub fn is_sure(&self) -> bool {
        self.low_ns > 0 || self.high_ns < 0
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
struct SplitMix(SplitMix64);

impl SplitMix {
    fn new(seed: u64) -> SplitMix {
        SplitMix(SplitMix64::seed_from_u64(seed))
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.0.next_u64()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_have_no_spread() {
        let all = Distribution::of(&[1_234_567; 7]).expect("there are times");
        assert_eq!((all.mean_ns, all.stddev_ns), (1_234_567, 0));
        assert_eq!(
            (all.min_ns, all.p50_ns, all.p90_ns, all.max_ns),
            (1_234_567, 1_234_567, 1_234_567, 1_234_567)
        );
        assert_eq!(Distribution::of(&[]), None);
    }

    #[test]
    fn a_distribution_is_that_of_the_textbook() {
        let some = Distribution::of(&[2, 4, 4, 4, 5, 5, 7, 9]).expect("there are times");
        assert_eq!((some.mean_ns, some.stddev_ns, some.min_ns, some.max_ns), (5, 2, 2, 9));
        assert_eq!((some.p50_ns, some.p90_ns), (4, 9));
    }

    #[test]
    fn the_interval_holds_the_mean_and_follows_the_seed() {
        let pairs: Vec<(u64, u64)> =
            (0..20).map(|i| (1000 + i * 7 % 50, 1200 + i * 13 % 60)).collect();
        let first = Difference::of(&pairs, 1).expect("there are pairs");
        assert!(first.low_ns < first.mean_ns && first.mean_ns < first.high_ns, "{first:?}");
        assert!(first.is_sure());
        assert_eq!(Difference::of(&pairs, 1), Some(first));
        let same = Difference::of(&[(5, 5), (9, 9)], 1).expect("there are pairs");
        assert_eq!((same.mean_ns, same.low_ns, same.high_ns), (0, 0, 0));
        assert!(!same.is_sure());
    }
}
