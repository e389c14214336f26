//! ULCP fusion: PerfPlay, Algorithm 2.
//!
//! Two ULCPs are one if their code regions overlap, first with first and second with second, or
//! crosswise. A region is the code from the acquisition to the release, within one function; if
//! these lie in different functions it is the acquisition alone.
//!
//! # Deviations
//! 1. The paper's merging grows regions as it goes, so its result depends on the order. Here
//!    overlapping regions are one *class* (the closure of overlap, a union-find in the form of a
//!    sweep), and a group is an unordered pair of classes.
//! 2. Copies of one source line (inlined, unrolled) are one class: a programmer sees one place.
//! 3. Regions that end with the same release are one class: they overlap there, wherever each of
//!    them begins (a fast path and a slow path of one lock, say).
//! 4. A group may hold pairs of several kinds; its kind is that of most of its pairs.

use crate::Region;
use crate::site::{Frame, Place, Resolver};
use std::collections::BTreeMap;

/// Places of all regions, and their classes.
pub(crate) struct Fusion {
    /// Per region: where it begins.
    pub(crate) places: Vec<Place>,
    /// Per region its class, which is the lowest region in it.
    pub(crate) class: Vec<u32>,
}

impl Fusion {
    pub(crate) fn new(regions: &[Region], resolver: &mut dyn Resolver) -> Fusion {
        let mut known: BTreeMap<u64, Place> = BTreeMap::new();
        let mut place = |pc| known.entry(pc).or_insert_with(|| resolver.resolve(pc)).clone();
        let ends: Vec<(Place, Place)> =
            regions.iter().map(|region| (place(region.acquire), place(region.release))).collect();
        let mut union = Union::new(regions.len());
        overlap(regions, &ends, &mut union);
        same_release(regions, &mut union);
        let places: Vec<Place> =
            ends.into_iter().map(|(from, to)| outside_of_wrappers(from, &to)).collect();
        same_line(&places, &mut union);
        let class = (0..places.len()).map(|region| union.find(region) as u32).collect();
        Fusion { places, class }
    }
}

/// Puts overlapping regions together: sorted by start, each joins the one that reaches into it.
fn overlap(regions: &[Region], ends: &[(Place, Place)], union: &mut Union) {
    let mut spans: Vec<(u64, u64, usize)> = Vec::with_capacity(regions.len());
    for (index, (region, (from, to))) in regions.iter().zip(ends).enumerate() {
        let one = from.function_start().is_some() && from.function_start() == to.function_start();
        let end = if one { region.release } else { 0 };
        spans.push((region.acquire, end.max(region.acquire.saturating_add(1)), index));
    }
    spans.sort_unstable();
    let mut reach: Option<(u64, usize)> = None;
    for (start, end, index) in spans {
        match &mut reach {
            Some((until, with)) if start < *until => {
                union.join(*with, index);
                *until = end.max(*until);
            }
            _ => reach = Some((end, index)),
        }
    }
}

fn same_release(regions: &[Region], union: &mut Union) {
    let mut by_release = BTreeMap::new();
    for (index, region) in regions.iter().enumerate() {
        let first = *by_release.entry(region.release).or_insert(index);
        union.join(first, index);
    }
}

/// Where a region begins, without the inlined functions that it has left at its end: an inlined function
/// that takes a lock and returns with it is a wrapper, as one that is called is.
fn outside_of_wrappers(mut from: Place, to: &Place) -> Place {
    if from.function_start().is_some() && from.function_start() == to.function_start() {
        let same = |a: &Frame, b: &Frame| (&a.function, &a.file) == (&b.function, &b.file);
        let outer = from.frames.iter().rev().zip(to.frames.iter().rev());
        let common = outer.take_while(|(a, b)| same(a, b)).count();
        if common > 0 {
            from.frames.drain(..from.frames.len() - common);
        }
    }
    from
}

fn same_line(places: &[Place], union: &mut Union) {
    let mut by_line = BTreeMap::new();
    for (index, from) in places.iter().enumerate() {
        let Some(frame) = from.frames.first().filter(|frame| frame.line.is_some()) else {
            continue;
        };
        let first = *by_line.entry((frame, &from.module)).or_insert(index);
        union.join(first, index);
    }
}

/// Union-find; the lowest member stands for its class.
struct Union(Vec<usize>);

impl Union {
    fn new(members: usize) -> Union {
        Union((0..members).collect())
    }

    fn find(&mut self, mut member: usize) -> usize {
        while self.0[member] != member {
            self.0[member] = self.0[self.0[member]];
            member = self.0[member];
        }
        member
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.0[a.max(b)] = a.min(b);
    }
}
