//! Which threads touched which bytes.
//!
//! An address is *shared* if at least two threads touch it in the trace (DESIGN, vocabulary). All
//! accesses of the run count, inside critical sections and outside, so every access passes here
//! and must cost next to nothing: each thread has its own shadow, one bit a byte, in chunks found
//! through a small direct-mapped cache; what was touched before costs two compares and no store.
//! Memory is an eighth of the chunks that the thread touches. The shadows meet once, at the end,
//! page by page.
//!
//! # Stacks
//! glibc hands the stack (and thread-local storage) of a thread that has ended to the next one,
//! and a return address on a recycled stack is no shared datum. So each thread has its *own*
//! region, its stack. Touches by several threads, each in its own region, do not make a byte
//! shared; a touch from outside does. (A pointer into another thread's stack is shared data.)
//!
//! # Heap
//! Memory that `malloc` hands from one thread to another looks shared, although no datum is. The
//! error is on the safe side: a pair may be called a true contention or a disjoint write that is
//! a null-lock; no true contention is ever called unnecessary.

use crate::Collector;
use crate::intervals::Interval;
use refrain_trace::fixed::FixedMap;
use std::collections::BTreeMap;
use std::ops::Range;

const PAGE: u64 = 4096;
const WORDS: usize = (PAGE / 64) as usize;
/// Pages are kept in chunks: few enough that a small cache finds those of a program that works
/// on megabytes.
const CHUNK: u64 = 16 * PAGE;
const CHUNK_WORDS: usize = (CHUNK / 64) as usize;
const WAYS: usize = 512;

type Bits = [u64; WORDS];

/// As many ones as an access has bytes; nothing for sizes that do not fit a word.
const MASKS: [u64; 66] = {
    let mut masks = [0; 66];
    let mut size = 1;
    while size <= 64 {
        masks[size] = u64::MAX >> (64 - size);
        size += 1;
    }
    masks
};

/// The bytes that one thread touched.
pub(crate) struct Shadow {
    /// Where the words of a chunk begin.
    index: FixedMap<u64, usize>,
    words: Vec<u64>,
    cache: Box<[(u64, usize); WAYS]>,
}

impl Shadow {
    pub(crate) fn new() -> Shadow {
        Shadow {
            index: FixedMap::default(),
            words: Vec::new(),
            cache: Box::new([(u64::MAX, 0); WAYS]),
        }
    }

    /// Marks `size` bytes from `address` as touched.
    #[inline]
    pub(crate) fn touch(&mut self, address: u64, size: u16) {
        let bit = address % 64;
        let mask = MASKS[usize::from(size).min(65)];
        if mask == 0 || bit + u64::from(size) > 64 {
            return self.touch_long(address, size);
        }
        let number = address / CHUNK;
        let (cached, start) = self.cache[way(number)];
        if cached == number {
            let word = &mut self.words[start + (address / 64) as usize % CHUNK_WORDS];
            // Most bytes have been touched before. A store that changes nothing would still make
            // the next access near by wait for it.
            if !*word & mask << bit != 0 {
                *word |= mask << bit;
            }
        } else {
            self.find(number);
            self.touch(address, size);
        }
    }

    #[cold]
    fn touch_long(&mut self, address: u64, size: u16) {
        self.touch_range(address..address.saturating_add(u64::from(size)));
    }

    /// Marks any number of bytes.
    pub(crate) fn touch_range(&mut self, bytes: Range<u64>) {
        let (mut at, end) = (bytes.start, bytes.end);
        while at < end {
            // Up to the next word, so that no piece spills.
            let piece = (64 - at % 64).min(end - at);
            self.touch(at, piece as u16);
            at += piece;
        }
    }

    /// Puts a chunk into the cache.
    #[cold]
    fn find(&mut self, number: u64) {
        let fresh = self.words.len();
        let start = *self.index.entry(number).or_insert(fresh);
        if start == fresh {
            self.words.resize(fresh + CHUNK_WORDS, 0);
        }
        self.cache[way(number)] = (number, start);
    }

    /// The pages in which bytes were touched, in no order.
    fn pages(&self) -> impl Iterator<Item = (u64, &Bits)> {
        self.index.iter().flat_map(|(&number, &start)| {
            let (pages, _) = self.words[start..start + CHUNK_WORDS].as_chunks::<WORDS>();
            let first = number * (CHUNK / PAGE);
            (first..).zip(pages).filter(|(_, bits)| bits.iter().any(|&word| word != 0))
        })
    }
}

/// Where the cache has a chunk. Upper bits take part, so that regions at round distances do not
/// evict each other.
fn way(chunk: u64) -> usize {
    chunk.wrapping_add((chunk >> 8).wrapping_mul(67)) as usize % WAYS
}

/// The bytes that at least two threads touched, and that are data.
#[derive(Debug, Default)]
pub struct Shared {
    pages: FixedMap<u64, Box<Bits>>,
}

impl Shared {
    /// Puts shadows together. Each comes with the region that is its thread's own.
    pub(crate) fn new<'a>(shadows: impl Iterator<Item = (&'a Shadow, Range<u64>)>) -> Shared {
        let mut users: BTreeMap<u64, Vec<(&Bits, bool)>> = BTreeMap::new();
        for (shadow, own) in shadows {
            for (number, bits) in shadow.pages() {
                let owned = own.contains(&(number * PAGE));
                users.entry(number).or_default().push((bits, owned));
            }
        }
        let mut pages = FixedMap::default();
        for (number, users) in users.iter().filter(|(_, users)| users.len() > 1) {
            if let Some(bits) = meet(users) {
                pages.insert(*number, Box::new(bits));
            }
        }
        Shared { pages }
    }

    /// Of threads that are done. `constant` is memory that holds no data of the program's; the
    /// words of locks and their like hold none either.
    pub fn of(collectors: &[Collector], constant: &[Interval]) -> Shared {
        let mut shared = Shared::new(collectors.iter().map(|c| (&c.shadow, c.own())));
        let mut objects: BTreeMap<u64, u64> = BTreeMap::new();
        for (&address, &size) in collectors.iter().flat_map(|c| c.objects.iter()) {
            let known = objects.entry(address).or_default();
            *known = size.max(*known);
        }
        for (address, size) in objects {
            shared.clear(Interval::new(address, size));
        }
        for &range in constant {
            shared.clear(range);
        }
        shared
    }

    /// Whether there are shared bytes in the page of `address`.
    pub fn has_page(&self, address: u64) -> bool {
        self.pages.contains_key(&(address / PAGE))
    }

    /// In how many aligned pieces of 64 bytes an access of `size` bytes from `address` meets a
    /// shared byte: one for nearly all accesses of shared data, more for long ones.
    pub fn lines(&self, address: u64, size: u16) -> u64 {
        let end = address.saturating_add(u64::from(size));
        let (mut at, mut lines) = (address, 0);
        while at < end {
            let line_end = (at | 63).saturating_add(1).min(end);
            let mask = MASKS[(line_end - at) as usize] << (at % 64);
            let bits = self.pages.get(&(at / PAGE));
            let word = bits.map_or(0, |bits| bits[(at % PAGE / 64) as usize]);
            lines += u64::from(word & mask != 0);
            at = line_end;
        }
        lines
    }

    /// Takes bytes out: words of locks are no data. Costs no more than there are shared pages.
    pub(crate) fn clear(&mut self, bytes: Interval) {
        if bytes.start >= bytes.end {
            return;
        }
        let (first, last) = (bytes.start / PAGE, (bytes.end - 1) / PAGE);
        if last - first < self.pages.len() as u64 {
            for number in first..=last {
                if let Some(bits) = self.pages.get_mut(&number) {
                    clear_in(bits, number, bytes);
                }
            }
        } else {
            for (&number, bits) in &mut self.pages {
                if (first..=last).contains(&number) {
                    clear_in(bits, number, bytes);
                }
            }
        }
    }

    /// Appends the shared bytes of `interval` to `out`; the result is normal if `out` was and
    /// ends before.
    pub(crate) fn clip(&self, interval: Interval, out: &mut Vec<Interval>) {
        let mut at = interval.start;
        while at < interval.end {
            let page_end = (at / PAGE).saturating_add(1).saturating_mul(PAGE).min(interval.end);
            let Some(bits) = self.pages.get(&(at / PAGE)) else {
                at = page_end;
                continue;
            };
            while at < page_end {
                let end = (at / 64).saturating_add(1).saturating_mul(64).min(page_end);
                // The word's bits from `at` on, at the bottom.
                let mut word = bits[(at % PAGE / 64) as usize] >> (at % 64);
                let mut from = at;
                while word != 0 && from < end {
                    from += u64::from(word.trailing_zeros());
                    word >>= word.trailing_zeros();
                    let ones = word.trailing_ones();
                    let to = (from + u64::from(ones)).min(end);
                    if from < to {
                        append(out, from, to);
                    }
                    word = word.checked_shr(ones).unwrap_or(0);
                    from = to;
                }
                at = end;
            }
        }
    }
}

/// Clears the part of `bytes` that lies in a page. They have a byte in common.
fn clear_in(bits: &mut Bits, number: u64, bytes: Interval) {
    let base = number * PAGE;
    let (from, last) = (bytes.start.max(base) - base, (bytes.end - 1 - base).min(PAGE - 1));
    for word in from / 64..=last / 64 {
        let above = from.saturating_sub(word * 64);
        let below = 63 - last.saturating_sub(word * 64).min(63);
        bits[word as usize] &= !(u64::MAX << above & u64::MAX >> below);
    }
}

fn append(out: &mut Vec<Interval>, start: u64, end: u64) {
    match out.last_mut() {
        Some(last) if last.end == start => last.end = end,
        _ => out.push(Interval { start, end }),
    }
}

/// Bytes of one page that are shared, if there are any.
fn meet(users: &[(&Bits, bool)]) -> Option<Bits> {
    let mut shared = [0; WORDS];
    let mut any = 0;
    for (word, shared) in shared.iter_mut().enumerate() {
        let (mut once, mut twice, mut own) = (0, 0, 0);
        for (bits, owned) in users {
            if *owned {
                own |= bits[word];
            } else {
                twice |= once & bits[word];
                once |= bits[word];
            }
        }
        *shared = twice | (once & own);
        any |= *shared;
    }
    (any != 0).then_some(shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intervals::normalise;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Around the edges of words and pages.
    fn touches() -> impl Strategy<Value = Vec<(u64, u16)>> {
        let near = prop_oneof![Just(0u64), Just(4096), Just(8192)];
        let touch =
            (near, 0u64..200, 1u16..90).prop_map(|(page, at, size)| (page + 4000 + at, size));
        proptest::collection::vec(touch, 0..20)
    }

    fn bytes(touches: &[(u64, u16)]) -> BTreeSet<u64> {
        touches.iter().flat_map(|&(at, size)| at..at + u64::from(size)).collect()
    }

    proptest! {
        #[test]
        fn shared_bytes_are_those_of_two_threads(
            a in touches(), b in touches(), c in touches(), owned in any::<bool>(),
            hole in (0u64..9000, prop_oneof![0u64..150, 0u64..9000, Just(1 << 60)]),
        ) {
            let mut shadows = [Shadow::new(), Shadow::new(), Shadow::new()];
            for (shadow, touches) in shadows.iter_mut().zip([&a, &b, &c]) {
                for &(at, size) in touches {
                    shadow.touch(at, size);
                }
            }
            // The first two threads may have the same stack.
            let own = if owned { 0..u64::MAX } else { 0..0 };
            let regions = [own.clone(), own, 0..0];
            let shared = Shared::new(shadows.iter().zip(regions));
            let accesses = a.clone();
            let (a, b, c) = (bytes(&a), bytes(&b), bytes(&c));
            let mut expected: BTreeSet<u64> = a.union(&b).filter(|at| c.contains(at)).copied().collect();
            if !owned {
                expected.extend(a.intersection(&b));
            }
            let mut clipped = Vec::new();
            shared.clip(Interval { start: 3000, end: 13000 }, &mut clipped);
            let found: BTreeSet<u64> = clipped.iter().flat_map(|i| i.start..i.end).collect();
            prop_assert_eq!(&found, &expected);
            let mut normal = clipped.clone();
            normalise(&mut normal);
            prop_assert_eq!(normal, clipped);

            let gone = Interval { start: 4000 + hole.0, end: 4000 + hole.0 + hole.1 };
            let mut shared = shared;
            shared.clear(gone);
            let mut clipped = Vec::new();
            shared.clip(Interval { start: 3000, end: 13000 }, &mut clipped);
            let left: BTreeSet<u64> = clipped.iter().flat_map(|i| i.start..i.end).collect();
            expected.retain(|at| !(gone.start..gone.end).contains(at));
            for &(at, size) in &accesses {
                let met = (at..at + u64::from(size)).filter(|byte| left.contains(byte));
                let lines: BTreeSet<u64> = met.map(|byte| byte / 64).collect();
                prop_assert_eq!(shared.lines(at, size), lines.len() as u64);
                let page = (at / PAGE * PAGE..(at / PAGE + 1) * PAGE).any(|b| left.contains(&b));
                prop_assert!(shared.has_page(at) || !page);
            }
            prop_assert_eq!(left, expected);
        }
    }
}
