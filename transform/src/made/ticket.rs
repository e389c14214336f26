//! Ticket locks: one word gives out numbers, another says whose turn it is.
//!
//! # The rule
//! Of two words the one is only ever added one to, and the other is raised by one each time. Each
//! number of the second is raised by the thread that drew it from the first, which did so before.
//! That thread had the lock from when it first saw its number in the second word (or from when it
//! drew it, if no load is recorded) until it raised that.

use super::{Change, Held, MadeLock, Make, Step, StepKind};
use crate::intervals::Interval;
use refrain_trace::ThreadId;
use refrain_trace::fixed::FixedMap;

/// Draws and turns, by who had which number.
type Sequence = Vec<(u64, ThreadId)>;

/// A ticket lock.
pub(super) struct Found<'a> {
    pub(super) lock: MadeLock,
    pub(super) held: Vec<Held>,
    /// All that happened to its words.
    pub(super) words: [&'a [Step]; 2],
}

pub(super) fn recognise<'a>(words: &[&'a [Step]]) -> Vec<Found<'a>> {
    let mut draws: FixedMap<Sequence, Vec<usize>> = FixedMap::default();
    let mut turns: FixedMap<Sequence, Vec<usize>> = FixedMap::default();
    for (index, of_word) in words.iter().enumerate() {
        let Some(sequence) = counts_up(of_word) else { continue };
        let added = |step: &&Step| step.kind == StepKind::Change(Change::Add);
        let drawn = of_word.iter().filter(is_change).all(|step| added(&step));
        let polled = of_word.iter().any(|step| step.kind == StepKind::Load);
        if drawn {
            draws.entry(sequence.clone()).or_default().push(index);
        }
        if polled || !drawn {
            turns.entry(sequence).or_default().push(index);
        }
    }
    let mut locks: Vec<Found<'a>> = Vec::new();
    for (sequence, drawn) in &draws {
        let candidates = turns.get(sequence).into_iter().flatten();
        let pairs = candidates.flat_map(|turn| drawn.iter().map(move |draw| (*draw, *turn)));
        locks.extend(pairs.filter(|(a, b)| a != b).find_map(|(a, b)| lock(words[a], words[b])));
    }
    locks.sort_unstable_by_key(|found| found.lock.address);
    locks
}

fn is_change(step: &&Step) -> bool {
    matches!(step.kind, StepKind::Change(_))
}

/// Who found which number in a word that counts up by one.
fn counts_up(of_word: &[Step]) -> Option<Sequence> {
    let sequence: Sequence =
        of_word.iter().filter(is_change).map(|step| (step.old, step.thread)).collect();
    let ones = u64::MAX >> (64 - 8 * u64::from(of_word[0].size).clamp(1, 8));
    let next = |pair: &[(u64, ThreadId)]| pair[1].0 == pair[0].0.wrapping_add(1) & ones;
    (sequence.len() > 2 && sequence.windows(2).all(next)).then_some(sequence)
}

fn lock<'a>(draws: &'a [Step], turns: &'a [Step]) -> Option<Found<'a>> {
    // When which thread saw which number.
    let mut seen: FixedMap<(ThreadId, u64), Vec<u32>> = FixedMap::default();
    for step in turns.iter().filter(|step| step.kind == StepKind::Load) {
        seen.entry((step.thread, step.old)).or_default().push(step.event);
    }
    let pairs = draws.iter().filter(is_change).zip(turns.iter().filter(is_change));
    let held = pairs.map(|(draw, turn)| {
        let seen = seen.get(&(draw.thread, draw.old)).into_iter().flatten();
        let first = seen.filter(|at| (draw.event..turn.event).contains(at)).min();
        (draw.event < turn.event).then(|| Held {
            thread: draw.thread,
            acquire: first.copied().unwrap_or(draw.event),
            release: Some(turn.event),
            shared: false,
            begin: draw.begin,
            since: draw.event,
        })
    });
    let held: Vec<Held> = held.collect::<Option<_>>()?;
    let word = |steps: &[Step]| Interval::new(steps[0].word, u64::from(steps[0].size).clamp(1, 8));
    let lock = MadeLock {
        address: turns[0].word,
        make: Make::Ticket,
        words: vec![word(draws), word(turns)],
    };
    Some(Found { lock, held, words: [draws, turns] })
}
