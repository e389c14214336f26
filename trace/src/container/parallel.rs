//! Work for all processors, while nobody else needs them.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What `make` makes of each item, in their order, by as many threads as there are processors, if so
/// many can be had; each has something of its own to work with.
pub(super) fn in_parallel<T: Sync, S: Default, R: Send>(
    items: &[T],
    make: impl Fn(&mut S, &T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut own, mut made) = (S::default(), Vec::new());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return made };
            made.push((number, make(&mut own, item)));
        }
    };
    let others = std::thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    let mut all = std::thread::scope(|scope| {
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let threads: Vec<_> = (1..others).filter_map(spawn).collect();
        let mut all = work();
        for thread in threads {
            all.extend(thread.join().expect("what makes a chunk does not panic"));
        }
        all
    });
    all.sort_unstable_by_key(|&(number, _)| number);
    all.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_made_in_order() {
        for count in [0, 1, 2, 1000] {
            let items: Vec<usize> = (0..count).collect();
            let made = in_parallel(&items, |own: &mut usize, item| {
                *own += 1;
                (*item * 3, *own)
            });
            assert_eq!(
                made.iter().map(|made| made.0).collect::<Vec<_>>(),
                items.iter().map(|n| n * 3).collect::<Vec<_>>()
            );
            let firsts = made.iter().filter(|made| made.1 == 1).count();
            assert!(firsts <= count && (firsts > 0) == (count > 0), "{firsts} threads");
        }
    }
}
