//! A walk along the time of all threads at once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An end of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Begins,
    Ends,
}

/// Shows `edge` where spans begin and end, in the order of time. Spans of one thread are in
/// order and do not overlap; `bounds` tells where a span lies, and empty ones are left out.
///
/// The walk takes as much memory as there are threads, and O(log threads) for each edge.
pub(crate) fn sweep<S>(
    threads: &mut [Vec<S>],
    bounds: impl Fn(&S) -> (u64, u64),
    mut edge: impl FnMut(u64, Side, &mut S),
) {
    let mut places = vec![(0, Side::Begins); threads.len()];
    let mut next = BinaryHeap::with_capacity(threads.len());
    // The next span of a thread that is not empty.
    let from = |spans: &[S], index: usize| {
        let lasts = |span: &S| bounds(span).0 < bounds(span).1;
        spans.get(index..)?.iter().position(lasts).map(|more| index + more)
    };
    for (thread, spans) in threads.iter().enumerate() {
        if let Some(first) = from(spans, 0) {
            places[thread].0 = first;
            next.push(Reverse((bounds(&spans[first]).0, thread)));
        }
    }
    while let Some(Reverse((time, thread))) = next.pop() {
        let (index, side) = places[thread];
        let spans = &mut threads[thread];
        edge(time, side, &mut spans[index]);
        if side == Side::Begins {
            places[thread] = (index, Side::Ends);
            next.push(Reverse((bounds(&spans[index]).1.max(time), thread)));
        } else if let Some(index) = from(spans, index + 1) {
            places[thread] = (index, Side::Begins);
            next.push(Reverse((bounds(&spans[index]).0.max(time), thread)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_come_in_the_order_of_time() {
        let mut threads = vec![vec![(2, 5), (5, 5), (6, 9)], vec![], vec![(0, 7)], vec![(3, 3)]];
        let mut seen = Vec::new();
        sweep(&mut threads, |&span| span, |time, side, span| seen.push((time, side, *span)));
        use Side::{Begins, Ends};
        let expected = [
            (0, Begins, (0, 7)),
            (2, Begins, (2, 5)),
            (5, Ends, (2, 5)),
            (6, Begins, (6, 9)),
            (7, Ends, (0, 7)),
            (9, Ends, (6, 9)),
        ];
        assert_eq!(seen, expected);
    }
}
