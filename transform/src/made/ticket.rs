//! Ticket locks: one word gives out numbers, another says whose turn it is. The two may be the
//! halves of one word, the upper of which gives out the numbers.
//!
//! # The rule
//! Of two words the one is only ever added one to, and the other is raised by one each time. Each
//! number of the second is raised by the thread that drew it from the first, which did so before.
//! That thread had the lock from when it first saw its number in the second word until it raised
//! that. If no such load is recorded, it saw nothing new there, so it had the lock from when it drew the
//! number, and its turn had come by then; if it had not, this is no lock.
//!
//! An owner's numbers and turns have no events, and either word may have come to others first: the
//! two are compared from their ends, and what only one of them has at its beginning is left out.

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
    pub(super) words: Vec<&'a [Step]>,
}

pub(super) fn recognise<'a>(words: &[&'a [Step]]) -> Vec<Found<'a>> {
    // By what the last change found, and who made it.
    let mut draws: FixedMap<(u64, ThreadId), Vec<(usize, Sequence)>> = FixedMap::default();
    let mut turns: FixedMap<(u64, ThreadId), Vec<(usize, Sequence)>> = FixedMap::default();
    for (index, of_word) in words.iter().enumerate() {
        let Some(sequence) = counts_up(of_word) else { continue };
        let added = |step: &&Step| step.kind == StepKind::Change(Change::Add);
        let drawn = of_word.iter().filter(is_change).all(|step| added(&step));
        let polled = of_word.iter().any(|step| step.kind == StepKind::Load);
        let Some(&last) = sequence.last() else { continue };
        if drawn {
            draws.entry(last).or_default().push((index, sequence.clone()));
        }
        if polled || !drawn {
            turns.entry(last).or_default().push((index, sequence));
        }
    }
    let mut locks: Vec<Found<'a>> = Vec::new();
    for (last, drawn) in &draws {
        let candidates = turns.get(last).into_iter().flatten();
        let pairs = candidates.flat_map(|turn| drawn.iter().map(move |draw| (draw, turn)));
        let pair = pairs.filter(|(a, b)| a.0 != b.0).find_map(|((a, drawn), (b, turned))| {
            let (a, b) = (words[*a], words[*b]);
            let (lock, held) = lock(a, b, in_both(drawn, turned)?)?;
            Some(Found { lock, held, words: vec![a, b] })
        });
        locks.extend(pair);
    }
    locks.extend(words.iter().filter_map(|of_word| {
        let (draws, turns) = halves(of_word)?;
        let in_both = in_both(&counts_up(&draws)?, &counts_up(&turns)?)?;
        let (lock, held) = lock(&draws, &turns, in_both)?;
        Some(Found { lock, held, words: vec![*of_word] })
    }));
    locks.sort_unstable_by_key(|found| found.lock.address);
    locks
}

fn is_change(step: &&Step) -> bool {
    matches!(step.kind, StepKind::Change(_))
}

/// Who found which number in a word that counts up by one. While one thread owned the word, its accesses may
/// have no events, so that numbers are missing; the sequence begins behind the last missing one.
fn counts_up(of_word: &[Step]) -> Option<Sequence> {
    let first = of_word.first()?;
    let mut sequence: Sequence =
        of_word.iter().filter(is_change).map(|step| (step.old, step.thread)).collect();
    let ones = u64::MAX >> (64 - 8 * u64::from(first.size).clamp(1, 8));
    let next = |pair: &[(u64, ThreadId)]| pair[1].0 == pair[0].0.wrapping_add(1) & ones;
    let owned = sequence.windows(2).rposition(|pair| !next(pair)).map_or(0, |gap| gap + 1);
    let owner = sequence.first()?.1;
    if sequence.drain(..owned).any(|(_, thread)| thread != owner) {
        return None;
    }
    (sequence.len() > 2).then_some(sequence)
}

/// The steps of a word that is added to, as those of its halves: the numbers that are drawn from the
/// upper one, and whose turn it is by the lower one, where smaller stores and loads are.
fn halves(of_word: &[Step]) -> Option<(Vec<Step>, Vec<Step>)> {
    let whole = of_word.iter().map(|step| step.size).max()?;
    if !matches!(whole, 2 | 4 | 8) {
        return None;
    }
    let bits = 4 * u64::from(whole);
    let added = StepKind::Change(Change::Add);
    let (mut draws, mut turns) = (Vec::new(), Vec::new());
    for (nth, step) in of_word.iter().enumerate() {
        let lower = Step { old: step.old & !(u64::MAX << bits), size: whole / 2, ..*step };
        if step.kind == StepKind::Load || step.size < whole {
            turns.push(lower);
            continue;
        }
        let word = step.word + u64::from(lower.size);
        let upper = Step { word, old: step.old >> bits, ..lower };
        // What is added to the whole word shows in the half that differs afterwards.
        let turns_on = match of_word[nth + 1..].iter().find(is_change) {
            Some(next) if next.size == whole => next.old >> bits == upper.old,
            Some(_) => false,
            None => turns.iter().any(|turn: &Step| turn.pc == step.pc),
        };
        match step.kind {
            kind if kind != added => return None,
            _ if turns_on => turns.push(lower),
            _ => draws.push(upper),
        }
    }
    (!draws.is_empty() && !turns.is_empty()).then_some((draws, turns))
}

/// How many numbers at the end both have, if the one that has fewer is the end of the other.
fn in_both(drawn: &Sequence, turned: &Sequence) -> Option<usize> {
    let in_both = drawn.len().min(turned.len());
    (drawn.ends_with(turned) || turned.ends_with(drawn)).then_some(in_both)
}

/// The lock, if the last `in_both` changes of the two words are those of one.
fn lock(draws: &[Step], turns: &[Step], in_both: usize) -> Option<(MadeLock, Vec<Held>)> {
    let last = |steps: &[Step]| {
        let mut changes: Vec<Step> = steps.iter().filter(is_change).copied().collect();
        changes.split_off(changes.len() - in_both)
    };
    // When which thread saw which number.
    let mut seen: FixedMap<(ThreadId, u64), Vec<u32>> = FixedMap::default();
    for step in turns.iter().filter(|step| step.kind == StepKind::Load) {
        seen.entry((step.thread, step.old)).or_default().push(step.event);
    }
    let pairs = last(draws).into_iter().zip(last(turns));
    let mut came = 0;
    let held = pairs.map(|(draw, turn)| {
        let seen = seen.get(&(draw.thread, draw.old)).into_iter().flatten();
        let first = seen.filter(|at| (draw.event..turn.event).contains(at)).min();
        let had = std::mem::replace(&mut came, turn.begin) <= draw.begin;
        (draw.event < turn.event && (had || first.is_some())).then(|| Held {
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
    Some((lock, held))
}
