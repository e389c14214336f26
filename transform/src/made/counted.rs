//! Locks whose word counts readers: the read-write locks of Rust's standard library and of
//! parking_lot.
//!
//! # The rule
//! A thread that adds something to the word by compare-and-exchange, and takes the same away again
//! with its next change that does so, had the lock in between. Amounts that were had by two threads
//! at once are those of readers; one that nobody had beside anything else is a writer's. (Bits that
//! say that somebody waits come and go between; what was added before the thread added something
//! else was an attempt.) One amount at least must be a reader's and one a writer's, or the word is no
//! such lock: where all are readers, as of a word that counts references, nobody ever waits. A
//! writer's may have nobody beside it, and is not what readers take away.
//!
//! What the word held when its events begin, an owner of the word had added without events. Who takes
//! such an amount away lets go of what is no section here.

use super::{Change, Held, MadeLock, Make, Step, StepKind, came};
use crate::intervals::Interval;
use refrain_trace::ThreadId;

/// A thread may have the lock since `at`, having added `amount`.
struct Candidate {
    thread: ThreadId,
    at: usize,
    amount: u64,
}

/// From an acquisition to its release, as positions in the word's order.
struct Span {
    from: usize,
    to: usize,
    amount: u64,
}

pub(super) fn recognise(of_word: &[Step]) -> Option<(MadeLock, Vec<Held>)> {
    let is_change = |at: &usize| matches!(of_word[*at].kind, StepKind::Change(_));
    let changes: Vec<usize> = (0..of_word.len()).filter(is_change).collect();
    let size = of_word.iter().map(|step| u64::from(step.size)).max().unwrap_or(0).clamp(1, 8);
    let ones = u64::MAX >> (64 - 8 * size);
    let mut spans = Vec::new();
    let mut open: Vec<Candidate> = Vec::new();
    // What the word's owner has added without events, and nobody has taken away yet.
    let mut before = changes.first().map_or(0, |&at| of_word[at].old);
    for pair in changes.windows(2) {
        let (at, step) = (pair[0], &of_word[pair[0]]);
        let added = of_word[pair[1]].old.wrapping_sub(step.old) & ones;
        if added == 0 {
            continue;
        }
        let mine = open.iter().position(|it| it.thread == step.thread);
        if let Some(mine) = mine.filter(|mine| open[*mine].amount.wrapping_neg() & ones == added) {
            let Candidate { at: from, amount, .. } = open.swap_remove(mine);
            spans.push(Span { from, to: at, amount });
        } else if mine.is_none() && added.wrapping_neg() & ones <= before {
            before -= added.wrapping_neg() & ones;
        } else if step.kind == StepKind::Change(Change::CompareExchange) {
            open.retain(|it| it.thread != step.thread);
            open.push(Candidate { thread: step.thread, at, amount: added });
        }
    }
    spans.sort_unstable_by_key(|span| span.from);
    let shared = shared_amounts(&spans);
    // Who takes away what readers add lets go of something, whatever it was.
    spans.retain(|span| !shared.contains(&(span.amount.wrapping_neg() & ones)));
    let writes = spans.iter().any(|span| !shared.contains(&span.amount));
    if shared.is_empty() || !writes || !writers_are_alone(&spans, &shared) {
        return None;
    }
    let mut ends = vec![false; of_word.len()];
    for span in &spans {
        (ends[span.from], ends[span.to]) = (true, true);
    }
    let held = spans.iter().map(|span| {
        let (begin, since) = came(of_word, span.from, |at| ends[at]);
        Held {
            thread: of_word[span.from].thread,
            acquire: of_word[span.from].event,
            release: Some(of_word[span.to].event),
            shared: shared.contains(&span.amount),
            begin,
            since,
        }
    });
    let address = of_word[0].word;
    let words = vec![Interval::new(address, size)];
    Some((MadeLock { address, make: Make::Counted, words }, held.collect()))
}

/// Amounts that two threads had at once.
fn shared_amounts(spans: &[Span]) -> Vec<u64> {
    let mut shared: Vec<u64> = Vec::new();
    // The span that reaches farthest, by amount.
    let mut reach: Vec<(u64, usize)> = Vec::new();
    for span in spans {
        match reach.iter_mut().find(|(amount, _)| *amount == span.amount) {
            Some((_, to)) => {
                if span.from < *to && !shared.contains(&span.amount) {
                    shared.push(span.amount);
                }
                *to = span.to.max(*to);
            }
            None => reach.push((span.amount, span.to)),
        }
    }
    shared
}

fn writers_are_alone(spans: &[Span], shared: &[u64]) -> bool {
    let (mut reader_to, mut writer_to) = (0, 0);
    spans.iter().all(|span| {
        let reads = shared.contains(&span.amount);
        let alone = span.from >= writer_to && (reads || span.from >= reader_to);
        let to = if reads { &mut reader_to } else { &mut writer_to };
        *to = span.to.max(*to);
        alone
    })
}
