//! One ranking from several recordings of a program.
//!
//! A recording is one run: how its threads met is an accident, and so are its counts. Several
//! recordings say how far the gains depend on that: each gain is the middle one, and its range
//! holds the ranges of all.

use super::locks::{Group, Report};
use refrain_transform::{Basis, Gain};
use std::cmp::Reverse;

/// Joins the rankings of recordings of one program; the counts are those of the recording whose
/// duration is in the middle. `None` of none.
pub(crate) fn join(mut reports: Vec<Report>) -> Option<Report> {
    reports.sort_by_key(|report| report.recorded_ns);
    let recordings = reports.len();
    let mut joined = reports.get(recordings / 2)?.clone();
    if recordings == 1 {
        return Some(joined);
    }
    let original = joined.original_ns;
    let gains = reports.iter().map(|report| Some((report.gain?, report.original_ns)));
    joined.gain = spread(gains.collect::<Option<Vec<_>>>(), original);
    if let Some(gain) = joined.gain {
        joined.ulcp_free_ns = Some(original.saturating_add_signed(-gain.likely_ns));
    }
    for group in &mut joined.groups {
        // A group that another recording does not have gained nothing there.
        let none = Gain::default();
        let of = |report: &Report| {
            let same = report.groups.iter().find(|other| is_same(group, other));
            Some((same.map_or(Some(none), |same| same.ranked.alone)?, report.original_ns))
        };
        group.ranked.alone = spread(reports.iter().map(of).collect::<Option<Vec<_>>>(), original);
        group.ranked.alone_ns =
            group.ranked.alone.map(|gain| gain.likely_ns).or(group.ranked.alone_ns);
    }
    // One model that is far off makes the ranges of all worthless.
    let doubted = reports.iter().find(|report| !report.believes_gains());
    joined.ranked_by = doubted.map_or(Basis::Gain, |report| report.ranked_by);
    joined.groups.sort_by_key(|group| {
        Reverse(match joined.ranked_by {
            Basis::Gain => group.ranked.alone.map(|gain| gain.likely_ns),
            Basis::RecordedWaiting => i64::try_from(group.ranked.in_vain_ns).ok(),
        })
    });
    for (rank, group) in (1..).zip(&mut joined.groups) {
        group.ranked.rank = rank;
    }
    for together in &mut joined.together {
        let of = |report: &Report| {
            let same = report.together.iter().find(|other| other.groups == together.groups)?;
            Some((same.gain, report.original_ns))
        };
        let gains = reports.iter().map(of).collect::<Option<Vec<_>>>();
        together.gain = spread(gains, original).unwrap_or(together.gain);
    }
    joined
        .notes
        .push(format!("gains are from {recordings} recordings, the counts from one of them"));
    Some(joined)
}

fn is_same(a: &Group, b: &Group) -> bool {
    let sites = |group: &Group| {
        let mut sites = [group.ranked.first.short(), group.ranked.second.short()];
        sites.sort();
        sites
    };
    sites(a) == sites(b)
}

/// The middle gain and the range of all, in proportion to an original of this duration.
fn spread(gains: Option<Vec<(Gain, u64)>>, original: u64) -> Option<Gain> {
    let gains = gains?;
    let scaled =
        |ns: i64, of: u64| (i128::from(ns) * i128::from(original) / i128::from(of.max(1))) as i64;
    let mut likely: Vec<i64> = gains.iter().map(|(gain, of)| scaled(gain.likely_ns, *of)).collect();
    likely.sort_unstable();
    Some(Gain {
        least_ns: gains.iter().map(|(gain, of)| scaled(gain.least_ns, *of)).min()?,
        likely_ns: *likely.get(likely.len() / 2)?,
        most_ns: gains.iter().map(|(gain, of)| scaled(gain.most_ns, *of)).max()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_of_parts_of_the_run() {
        let gain = |least_ns, likely_ns, most_ns| Gain { least_ns, likely_ns, most_ns };
        let gains = vec![(gain(10, 20, 30), 100), (gain(100, 120, 140), 1000), (gain(1, 3, 4), 10)];
        assert_eq!(spread(Some(gains), 1000), Some(gain(100, 200, 400)));
        assert_eq!(spread(None, 1000), None);
    }
}
