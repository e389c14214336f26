//! Queue locks (MCS): whoever wants the lock puts a node of its own at the end of a queue.
//!
//! # The rule
//! A word, the queue's end, is only ever exchanged for the address of a node, or set from the last
//! node to nobody's by the thread that put this node there. The order of the exchanges is the order
//! in which threads have the lock. Who finds nobody at the end has the lock with that; anyone else
//! polls a word of the own node, and has the lock with the last look at it. The holder lets go when it
//! sets the end to nobody's, or else when it reads in its own node which node comes next (the store
//! into that node which follows is plain, and in no trace). The two words of a node lie at the same
//! distances from the beginning of every node; if a hand-over lacks one of the two looks, this is no lock.
//!
//! # Limits
//! Of locks whose waiters poll the node of whom they wait for (CLH), the trace has no release.

use super::{Change, Held, MadeLock, Make, Step, StepKind};
use crate::intervals::Interval;
use refrain_trace::ThreadId;
use refrain_trace::fixed::FixedMap;
use std::collections::{BTreeMap, BTreeSet};

/// A node is no longer than this.
const NODE: u64 = 4096;

/// A queue lock.
pub(super) struct Found<'a> {
    pub(super) lock: MadeLock,
    pub(super) held: Vec<Held>,
    /// All that happened to its words.
    pub(super) words: Vec<&'a [Step]>,
}

/// `words` has all steps of a word together, ascending by word.
pub(super) fn recognise<'a>(words: &[&'a [Step]]) -> Vec<Found<'a>> {
    let ends = words.iter().filter_map(|end| Some((*end, turns(end)?)));
    ends.filter_map(|(end, turns)| lock(end, &turns, words)).collect()
}

/// A thread's turn to have the lock.
#[derive(Clone, Copy)]
struct Turn {
    thread: ThreadId,
    /// The exchange.
    event: u32,
    begin: u64,
    node: u64,
    /// Whether another one was in the queue.
    waits: bool,
    /// With which event the thread left an empty queue behind.
    emptied: Option<u32>,
}

/// The turns in their order, if the word may be the end of a queue that was ever longer than one.
fn turns(end: &[Step]) -> Option<Vec<Turn>> {
    let is_change = |step: &&Step| matches!(step.kind, StepKind::Change(_));
    let mut changes = end.iter().filter(is_change).peekable();
    let mut turns: Vec<Turn> = Vec::new();
    while let Some(step) = changes.next() {
        let new = changes.peek().map(|next| next.old);
        match (step.kind, new) {
            (StepKind::Change(Change::Exchange), Some(new)) if new != 0 && new != step.old => {
                let Step { thread, event, begin, .. } = *step;
                let waits = step.old != 0;
                turns.push(Turn { thread, event, begin, node: new, waits, emptied: None });
            }
            // Nobody came after it, so its node is in no event.
            (StepKind::Change(Change::Exchange), None) => {}
            (StepKind::Change(Change::CompareExchange), Some(new)) if new == step.old => {}
            (StepKind::Change(Change::CompareExchange), None | Some(0)) => {
                // The owner of the word has put its node there without an event.
                let Some(last) = turns.last_mut() else { continue };
                if (last.thread, last.node) != (step.thread, step.old) {
                    return None;
                }
                last.emptied = Some(step.event);
            }
            _ => return None,
        }
    }
    turns.iter().any(|turn| turn.waits).then_some(turns)
}

/// What threads read in nodes: event, word, value.
type Looks = FixedMap<ThreadId, Vec<(u32, u64, u64)>>;

fn lock<'a>(end: &'a [Step], turns: &[Turn], words: &[&'a [Step]]) -> Option<Found<'a>> {
    let nodes: BTreeSet<u64> = turns.iter().map(|turn| turn.node).collect();
    let mut looks = Looks::default();
    for &node in &nodes {
        let after = nodes.range(node + 1..).next().copied().unwrap_or(u64::MAX);
        for steps in within(words, node..node.saturating_add(NODE).min(after)) {
            let loads = steps.iter().filter(|step| step.kind == StepKind::Load);
            for step in loads {
                let of_thread = looks.entry(step.thread).or_default();
                of_thread.push((step.event, step.word, step.old));
            }
        }
    }
    for of_thread in looks.values_mut() {
        of_thread.sort_unstable();
    }
    let mut last: FixedMap<ThreadId, u32> = FixedMap::default();
    let mut next: FixedMap<(ThreadId, u32), u32> = FixedMap::default();
    for turn in turns {
        if let Some(before) = last.insert(turn.thread, turn.event) {
            next.insert((turn.thread, before), turn.event);
        }
    }
    let after = |thread: ThreadId, event: u32| {
        let of_thread = looks.get(&thread).map_or(&[][..], Vec::as_slice);
        let of_thread = of_thread[of_thread.partition_point(|look| look.0 <= event)..].iter();
        // Up to its next turn.
        let next = next.get(&(thread, event)).copied().unwrap_or(u32::MAX);
        of_thread.copied().take_while(move |look| look.0 < next)
    };
    let handed = || turns.windows(2).filter(|pair| pair[1].waits).map(|pair| (pair[0], pair[1]));
    let polled = most(handed().filter_map(|(_, next)| {
        let (_, word, _) = after(next.thread, next.event).next()?;
        word.checked_sub(next.node)
    }))?;
    let link = most(handed().filter_map(|(holder, next)| {
        let mut looks = after(holder.thread, holder.event).take(FEW);
        let (_, word, _) = looks.find(|look| look.2 == next.node)?;
        word.checked_sub(holder.node)
    }))?;
    let mut held = Vec::new();
    for (nth, turn) in turns.iter().enumerate() {
        let acquire = if turn.waits {
            let of_turn = |look: &(u32, u64, u64)| {
                look.1 == turn.node + polled && turn.emptied.is_none_or(|event| look.0 < event)
            };
            let mut looks = after(turn.thread, turn.event).take_while(of_turn);
            let first = looks.next().map(|look| look.0);
            let Some(last) = looks.last().map(|look| look.0).or(first) else { break };
            last
        } else {
            turn.event
        };
        let release = turn.emptied.or_else(|| {
            let next = turns.get(nth + 1)?;
            let mut looks =
                after(turn.thread, turn.event).filter(|look| look.0 > acquire).take(FEW);
            let found = looks.find(|look| (look.1, look.2) == (turn.node + link, next.node))?;
            Some(found.0)
        });
        let Turn { thread, begin, event: since, .. } = *turn;
        held.push(Held { thread, acquire, release, shared: false, begin, since });
        if release.is_none() {
            break;
        }
    }
    // The recording may have ended while threads waited, each for its first turn more.
    let threads = held.iter().map(|held| held.thread).collect::<BTreeSet<_>>().len();
    if held.len() + threads < turns.len() {
        return None;
    }
    let own: BTreeSet<u64> =
        nodes.iter().flat_map(|node| [node + polled, node + link]).chain([end[0].word]).collect();
    let of_lock = |at: &u64| within(words, *at..*at + 1).next();
    let steps: Vec<&[Step]> = own.iter().filter_map(of_lock).collect();
    let interval = |at: &u64| {
        let sizes = of_lock(at).into_iter().flatten().map(|step| u64::from(step.size));
        Interval::new(*at, sizes.max().unwrap_or(8).clamp(1, 8))
    };
    let lock = MadeLock {
        address: end[0].word,
        make: Make::Queue,
        words: own.iter().map(interval).collect(),
    };
    Some(Found { lock, held, words: steps })
}

/// Looks of a thread that are searched for the one that ends its turn.
const FEW: usize = 64;

/// The words in a range of addresses.
fn within<'a, 'b>(
    words: &'b [&'a [Step]],
    range: std::ops::Range<u64>,
) -> impl Iterator<Item = &'a [Step]> + use<'a, 'b> {
    let from = words.partition_point(|steps| steps[0].word < range.start);
    words[from..].iter().copied().take_while(move |steps| steps[0].word < range.end)
}

/// The commonest.
fn most(all: impl Iterator<Item = u64>) -> Option<u64> {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for one in all {
        *counts.entry(one).or_default() += 1;
    }
    counts.into_iter().max_by_key(|&(one, count)| (count, std::cmp::Reverse(one))).map(|it| it.0)
}
