//! Ranking unnecessary lock contention: the child measures, this process resolves addresses and ranks.

use crate::calibration;
use crate::error::{Context, Error, bail};
use crate::machine::{Analysis, ReplayOptions};
use crate::protocol::Request;
use crate::races::Lesson;
use crate::ranking::{IrregularLock, NotUnderstood, Ranking};
use crate::replayed::Divergence;
use crate::session::Session;
use crate::symbols::Symbols;
use crate::trace_file;
use refrain_trace::Order;
use refrain_transform::{Place, Resolver, Unknown};
use std::collections::BTreeMap;
use std::path::Path;

impl Session {
    /// Ranks the lock contention of the trace at `path` that the program does not need, by what
    /// removing it gains; if it `draws`, with a picture of the threads over time.
    pub fn rank(&self, path: &Path, draws: bool) -> crate::Result<Ranking> {
        let trace = trace_file::read(path)?;
        if trace.is_transformed() {
            bail!(Refused, "{} is a transformed trace: rank the recording", path.display());
        }
        let file = self.open(path)?;
        let analysis = self.ask(file, &Request::Analyse(draws));
        let analysis = analysis.with_context(|| format!("cannot analyse {}", path.display()))?;
        let (measured, beside, extent) = match analysis {
            Analysis::Measured(measured, beside, extent) => (measured, beside, extent),
            Analysis::Diverged(divergence) => {
                return Err(self.left(path, &divergence)?);
            }
        };
        let mut symbols = Symbols::new(trace.modules());
        let ranked = refrain_transform::rank(&measured, extent.recorded_ns, &mut symbols);
        let mut made = BTreeMap::new();
        for make in beside.made {
            *made.entry(make).or_default() += 1;
        }
        let irregular = beside.irregular.into_iter().map(|(address, why, site, sections)| {
            let site = symbols.resolve(site);
            IrregularLock { address, why, site, critical_sections: sections }
        });
        let irregular = irregular.collect();
        let header = trace.header();
        Ok(Ranking {
            command: header.argv.join(" "),
            cores: u64::from(header.machine.cores.max(1)),
            latencies: calibration::costs(&header.machine, header.tsc_hz).1,
            recorded_ns: extent.recorded_ns,
            events: extent.events,
            events_recorded: extent.recorded,
            is_truncated: trace.is_truncated(),
            order: header.order,
            made,
            irregular,
            not_understood: not_understood(beside.unknown, ranked.original_ns, &mut symbols),
            picture: beside.picture,
            ranked,
        })
    }

    /// Why what left the recording cannot be analysed. If the program raced, that is why, and the next
    /// recording knows it.
    pub(super) fn left(&self, path: &Path, divergence: &Divergence) -> crate::Result<Error> {
        let Divergence { thread, event, kind, .. } = divergence;
        let races = self.explain(path, divergence, true)?;
        let pair = races.as_ref().and_then(|races| races.of_the_program());
        let why = pair.map_or_else(String::new, |pair| {
            format!(", and the program races: {} are not ordered", pair.short())
        });
        let lesson = races.and_then(|races| races.lesson());
        let unobserved = self.replay(path, &ReplayOptions::default())?;
        let order = trace_file::read(path)?.header().order;
        let then = advice(unobserved.divergence.is_some(), lesson, order);
        let what = format!(
            "cannot analyse {}: the replay diverged at {thread} {event} ({kind}){why}; {then}",
            path.display()
        );
        Ok(Error::Diverged { what, lesson })
    }
}

/// What to do when an observed replay has diverged. `again` says whether a replay that nobody observes does so,
/// too, and `lesson` how the next recording differs.
fn advice(again: bool, lesson: Option<Lesson>, order: Order) -> String {
    let then = match (lesson, order.is_of_every_access()) {
        (Some(lesson), _) => format!(
            "{lesson}: record it again, or have `refrain run --attempts 3` run the program until a \
             recording can be analysed"
        ),
        (None, _) if again => return "`refrain replay` says more".into(),
        (None, true) => {
            "every access is ordered, so this is a bug in refrain: please report it, with the trace"
                .into()
        }
        (None, false) => {
            "try it once more, or record it again with `--order stride`, which orders every access"
                .into()
        }
    };
    match again {
        true => format!("{then}; `refrain replay` says more"),
        false => format!(
            "`refrain replay` does not diverge, only this replay, whose accesses are observed, which makes \
             threads slower; {then}"
        ),
    }
}

/// Places that threads waited at for words that are no locks: at most so many, and each for at
/// least this part of the run.
const NOT_UNDERSTOOD: usize = 5;
const WORTH_A_LINE: u64 = 200;

/// What threads waited for, by place.
fn not_understood(
    unknown: Vec<(Unknown, Vec<u64>)>,
    original_ns: u64,
    symbols: &mut Symbols,
) -> Vec<NotUnderstood> {
    let mut not_understood: Vec<NotUnderstood> = Vec::new();
    for (unknown, outwards) in unknown {
        let mut places = outwards.iter().map(|pc| symbols.resolve(pc + 1));
        // The first that a programmer may change.
        let own = |place: &Place| place.frames.first().is_some_and(|it| !it.is_of_a_library());
        let own = places.find(own);
        let site = own.unwrap_or_else(|| symbols.resolve(unknown.pc + 1));
        match not_understood.iter_mut().find(|it| it.site.short() == site.short()) {
            Some(there) => {
                there.words += 1;
                there.waits += unknown.waits;
                there.waited_ns += unknown.ticks;
            }
            None => not_understood.push(NotUnderstood {
                site,
                words: 1,
                waits: unknown.waits,
                waited_ns: unknown.ticks,
            }),
        }
    }
    not_understood.retain(|it| it.waited_ns > original_ns / WORTH_A_LINE);
    not_understood.sort_by_key(|it| std::cmp::Reverse(it.waited_ns));
    not_understood.truncate(NOT_UNDERSTOOD);
    not_understood
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_says_more_only_if_it_diverges() {
        for lesson in [None, Some(Lesson::EveryAccess)] {
            for order in [Order::Sync, Order::Stride] {
                let says_more = |again| advice(again, lesson, order).contains("says more");
                assert!(says_more(true) && !says_more(false));
                let is_advised = |what| advice(false, lesson, order).contains(what);
                assert_eq!(is_advised("record it again"), lesson.is_some() || order == Order::Sync);
                assert_eq!(is_advised("report it"), lesson.is_none() && order == Order::Stride);
            }
        }
    }
}
