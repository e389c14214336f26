//! A ranking held against an older one: what got better or worse, by site.
//!
//! Groups are the same if their sites are in the same functions of the same files; of several in one
//! function, those at the same lines, and then in the order of their lines, since editing moves lines.
//! Gains are compared as parts of the run, and a group is worse or better only if the two ranges do
//! not overlap: what two recordings of one program differ by is neither.

use super::comparison::{Comparison, Row, Verdict};
use super::locks::{Group, Report};
use anyhow::{Context, bail};
use refrain_session::symbols::Place;
use refrain_transform::{Gain, UlcpKind};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What is read of an older ranking.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(crate) struct Baseline {
    #[serde(skip)]
    file: String,
    schema_version: u32,
    report: String,
    command: String,
    original_ns: u64,
    groups_found: usize,
    groups: Vec<Old>,
}

/// A group of it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
struct Old {
    kind: UlcpKind,
    first: Place,
    second: Place,
    alone: Option<Gain>,
}

impl Baseline {
    /// Reads what `refrain locks --json` has printed.
    pub(crate) fn read(path: &Path, schema_version: u32) -> anyhow::Result<Baseline> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the baseline {shown}"))?;
        let baseline: Baseline = serde_json::from_str(&text).with_context(|| {
            format!("{shown} is no baseline: it must be what refrain locks --json has printed")
        })?;
        if baseline.report != "locks" || baseline.schema_version != schema_version {
            bail!(
                "{shown} is no baseline of this version: rank the old recording again, with \
                 refrain locks --json"
            );
        }
        Ok(Baseline { file: shown.to_string(), ..baseline })
    }

    /// Holds a ranking of all groups against this one.
    pub(crate) fn compare(&self, now: &Report) -> Comparison {
        let mut old = by_sites(&self.groups, |group| (&group.first, &group.second));
        let new = by_sites(&now.groups, |group| (&group.ranked.first, &group.ranked.second));
        let mut rows = Vec::new();
        for (sites, groups) in new {
            let before = old.remove(&sites).unwrap_or_default();
            for (old, new) in matched(before, groups) {
                rows.push(self.row(old, new, now));
            }
        }
        let gone = old.into_values().flatten().map(|(_, old)| old);
        rows.extend(gone.map(|old| self.row(Some(old), None, now)));
        let weight = |row: &Row| -row.now.or(row.before).map_or(0.0, |range| range[1]);
        rows.sort_by(|a, b| a.verdict.cmp(&b.verdict).then(weight(a).total_cmp(&weight(b))));
        Comparison {
            file: self.file.clone(),
            command: self.command.clone(),
            original_ns: self.original_ns,
            left_out: self.groups_found.saturating_sub(self.groups.len()),
            rows,
        }
    }

    fn row(&self, old: Option<&Old>, new: Option<&Group>, report: &Report) -> Row {
        let before = old.and_then(|old| part(old.alone?, self.original_ns));
        let believed = new.filter(|_| report.believes_gains());
        let now = believed.and_then(|new| part(new.ranked.alone?, report.original_ns));
        let verdict = match (old, new, before, now) {
            (None, Some(new), ..) if report.is_sure(new) => Verdict::New,
            (_, None, ..) => Verdict::Gone,
            (Some(_), Some(_), Some(before), Some(now)) if now[0] > before[1] => Verdict::Worse,
            (Some(_), Some(_), Some(before), Some(now)) if now[1] < before[0] => Verdict::Better,
            _ => Verdict::Same,
        };
        let (kind, first, second) = match (new, old) {
            (Some(new), _) => (new.ranked.kind, &new.ranked.first, &new.ranked.second),
            (None, Some(old)) => (old.kind, &old.first, &old.second),
            (None, None) => unreachable!("a row is of a group, then or now"),
        };
        Row { verdict, kind, first: first.clone(), second: second.clone(), before, now }
    }
}

fn part(gain: Gain, of: u64) -> Option<[f64; 2]> {
    let of = of as f64;
    (of > 0.0).then(|| [gain.least_ns as f64 / of, gain.most_ns as f64 / of])
}

/// Where two sites are, without their lines, in any order.
type Sites = [(String, String); 2];
type Lines = [Option<u32>; 2];

/// The groups at the same sites, with their lines, in the order of these.
fn by_sites<'a, T>(
    groups: &'a [T],
    sites: impl Fn(&'a T) -> (&'a Place, &'a Place),
) -> BTreeMap<Sites, Vec<(Lines, &'a T)>> {
    let site = |place: &Place| match place.frames.first() {
        Some(frame) => {
            let file = frame.file.as_deref().or(place.module.as_deref()).unwrap_or_default();
            let file = file.rsplit('/').next().unwrap_or(file).to_owned();
            ((frame.function.clone(), file), frame.line)
        }
        None => ((place.short(), String::new()), None),
    };
    let mut found: BTreeMap<Sites, Vec<(Lines, &T)>> = BTreeMap::new();
    for group in groups {
        let (first, second) = sites(group);
        let mut both = [site(first), site(second)];
        both.sort();
        let [(a, a_line), (b, b_line)] = both;
        found.entry([a, b]).or_default().push(([a_line, b_line], group));
    }
    found.values_mut().for_each(|groups| groups.sort_by_key(|(lines, _)| *lines));
    found
}

/// Then and now of groups at the same sites.
fn matched<'a, A, B>(
    mut old: Vec<(Lines, &'a A)>,
    mut new: Vec<(Lines, &'a B)>,
) -> Vec<(Option<&'a A>, Option<&'a B>)> {
    let mut pairs = Vec::new();
    new.retain(|(lines, now)| {
        let there = old.iter().position(|(at, _)| at == lines);
        pairs.extend(there.map(|at| (Some(old.remove(at).1), Some(*now))));
        there.is_none()
    });
    let (mut old, mut new) = (old.into_iter(), new.into_iter());
    loop {
        match (old.next(), new.next()) {
            (None, None) => return pairs,
            (a, b) => pairs.push((a.map(|(_, a)| a), b.map(|(_, b)| b))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Style;
    use crate::report::comparison::render;
    use crate::report::locks::tests::example;
    use insta::assert_snapshot;

    /// The example as its own baseline, with other gains.
    fn baseline(gains: [Option<(i64, i64)>; 3]) -> (Baseline, Report) {
        let mut report = example();
        let gain = |(least_ns, most_ns)| Gain { least_ns, likely_ns: most_ns, most_ns };
        for (group, at) in report.groups.iter_mut().zip([(30, 40), (5, 9), (-1, 4)]) {
            group.ranked.alone = Some(gain((at.0 * 1_000_000, at.1 * 1_000_000)));
        }
        let groups = report.groups.iter().zip(gains).filter_map(|(group, gains)| {
            let (least, most) = gains?;
            Some(Old {
                kind: group.ranked.kind,
                first: group.ranked.first.clone(),
                second: group.ranked.second.clone(),
                alone: Some(gain((least * 1_000_000, most * 1_000_000))),
            })
        });
        let baseline = Baseline {
            file: "old.json".into(),
            schema_version: 1,
            report: "locks".into(),
            command: report.command.clone(),
            original_ns: report.original_ns,
            groups_found: 3,
            groups: groups.collect(),
        };
        (baseline, report)
    }

    fn verdicts(gains: [Option<(i64, i64)>; 3]) -> Vec<Verdict> {
        let (baseline, report) = baseline(gains);
        baseline.compare(&report).rows.iter().map(|row| row.verdict).collect()
    }

    #[test]
    fn only_ranges_that_do_not_overlap_differ() {
        use Verdict::{Better, New, Same, Worse};
        assert_eq!(verdicts([Some((30, 40)), Some((5, 9)), Some((-1, 4))]), [Same; 3]);
        assert_eq!(verdicts([Some((10, 20)), Some((9, 30)), Some((5, 8))]), [Worse, Better, Same]);
        assert_eq!(verdicts([None, None, None]), [New, New, Same]);
    }

    #[test]
    fn lines_may_move_and_sections_may_go() {
        let (mut old, mut report) = baseline([Some((30, 40)), Some((5, 9)), Some((-1, 4))]);
        for frame in &mut report.groups[0].ranked.first.frames {
            frame.line = frame.line.map(|line| line + 40);
        }
        report.groups.remove(1);
        let rows = old.compare(&report).rows;
        let verdicts: Vec<Verdict> = rows.iter().map(|row| row.verdict).collect();
        assert_eq!(verdicts, [Verdict::Gone, Verdict::Same, Verdict::Same]);
        old.groups.truncate(1);
        assert!(!old.compare(&report).is_worse(), "the third has no sure gain");
    }

    #[test]
    fn a_comparison_in_words() {
        let (baseline, report) = baseline([Some((10, 20)), None, Some((5, 8))]);
        let style = Style { width: 80, colour: false };
        assert_snapshot!(render(&baseline.compare(&report), style));
    }
}
