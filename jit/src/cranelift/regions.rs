//! Which blocks are compiled together.
//!
//! The blocks of the graph are partitioned: each belongs to one region, so that no code is
//! compiled twice. A region grows from the first block that no region has yet, along direct
//! jumps, fall-through and the return points of calls. Control enters a region at its entries:
//! blocks that code outside of the region may come to. A block that is reached only from inside
//! is no entry; should an indirect jump go there nevertheless, the engine compiles a region of
//! its own for it then ([`single`]).

use super::graph::{Graph, Term};
use crate::accesses::is_repeated;

/// Where regions end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) blocks: usize,
    pub(super) instructions: usize,
}

/// Blocks that are compiled as one function.
#[derive(Clone, Debug)]
pub(super) struct Region {
    /// Indices into the graph, in order of pc.
    pub(super) blocks: Vec<u32>,
    /// For each of them whether control may come from outside.
    pub(super) entries: Vec<bool>,
    /// For each of them whether a jump inside the region goes back to it.
    pub(super) loops: Vec<bool>,
}

impl Region {
    /// Position of a block of the graph in this region.
    pub(super) fn position(&self, block: usize) -> Option<usize> {
        self.blocks.binary_search(&(block as u32)).ok()
    }
}

/// Partitions the whole graph.
///
/// If `checks` is set, access buffers are checked at loop heads and before repeated string
/// instructions, where threads then go on: these are entries too.
pub(super) fn partition(graph: &Graph, limits: Limits, checks: bool) -> Vec<Region> {
    let mut owner = vec![u32::MAX; graph.blocks.len()];
    let mut groups: Vec<Vec<u32>> = Vec::new();
    let size = |group: &[u32]| {
        group.iter().map(|&b| graph.blocks[b as usize].count as usize).sum::<usize>()
    };
    for seed in 0..graph.blocks.len() {
        if owner[seed] == u32::MAX {
            let group = grow(graph, seed, limits, |b| owner[b] == u32::MAX);
            // Small groups share a function, since each function has its price.
            match groups.last_mut() {
                Some(last)
                    if last.len() + group.len() <= limits.blocks
                        && size(last) + size(&group) <= limits.instructions =>
                {
                    last.extend_from_slice(&group);
                    last.sort_unstable();
                }
                _ => groups.push(group.clone()),
            }
            for &b in &group {
                owner[b as usize] = groups.len() as u32 - 1;
            }
        }
    }
    let entries = entries(graph, &owner);
    let regions = groups.into_iter().map(|blocks| {
        let entries = blocks.iter().map(|&b| entries[b as usize]).collect();
        let mut region = finish(graph, blocks, entries);
        if checks {
            let heads = region
                .loops
                .iter()
                .zip(&region.blocks)
                .map(|(&head, &b)| head || begins_repeated(graph, b));
            region
                .entries
                .iter_mut()
                .zip(heads.collect::<Vec<_>>())
                .for_each(|(entry, head)| *entry |= head);
        }
        region
    });
    regions.collect()
}

/// A region for one block that turned out to be an entry, and the blocks behind it.
pub(super) fn single(graph: &Graph, block: usize, limits: Limits) -> Region {
    let blocks = grow(graph, block, limits, |_| true);
    let entries = blocks.iter().map(|&b| b as usize == block).collect();
    let mut region = finish(graph, blocks, entries);
    // Inside, a return point is no successor of its call: nothing else may lead to it here.
    let reached = reached_inside(graph, &region, block);
    region.entries.iter_mut().zip(reached).for_each(|(entry, reached)| *entry |= !reached);
    region
}

/// Whether a block begins with a string instruction that may stop in between.
pub(super) fn begins_repeated(graph: &Graph, block: u32) -> bool {
    graph.instructions(&graph.blocks[block as usize]).first().is_some_and(is_repeated)
}

fn finish(graph: &Graph, blocks: Vec<u32>, entries: Vec<bool>) -> Region {
    let mut region = Region { loops: vec![false; blocks.len()], blocks, entries };
    mark_loops(graph, &mut region);
    region
}

/// Blocks that can follow a block without leaving translated code by an indirect transfer.
pub(super) fn successors(graph: &Graph, block: usize) -> impl Iterator<Item = usize> {
    let (a, b) = match graph.blocks[block].term {
        Term::Next(a) | Term::Jump(a) | Term::Watched(_, a) => (Some(a), None),
        Term::Branch(a, b) => (Some(b), Some(a)),
        _ => (None, None),
    };
    // A hook is no part of anybody's path: whoever comes to it leaves translated code.
    let known = move |pc: u64| graph.at(pc).filter(|&b| !graph.blocks[b].hooked);
    a.and_then(known).into_iter().chain(b.and_then(known))
}

fn grow(graph: &Graph, seed: usize, limits: Limits, free: impl Fn(usize) -> bool) -> Vec<u32> {
    let mut group = vec![seed as u32];
    let mut instructions = graph.blocks[seed].count as usize;
    let mut next = 0;
    while next < group.len() && group.len() < limits.blocks && instructions < limits.instructions {
        let block = group[next] as usize;
        next += 1;
        let resumed = match graph.blocks[block].term {
            Term::Call(_, pc) | Term::CallIndirect(pc) | Term::Syscall(pc) => {
                graph.at(pc).filter(|&b| !graph.blocks[b].hooked)
            }
            _ => None,
        };
        for follower in successors(graph, block).chain(resumed) {
            if free(follower) && !group.contains(&(follower as u32)) {
                instructions += graph.blocks[follower].count as usize;
                group.push(follower as u32);
            }
        }
    }
    group.sort_unstable();
    group
}

/// Marks the blocks that control may come to from outside of their region.
fn entries(graph: &Graph, owner: &[u32]) -> Vec<bool> {
    let mut inside = vec![false; owner.len()];
    let mut entries = vec![false; owner.len()];
    for (index, block) in graph.blocks.iter().enumerate() {
        for next in successors(graph, index) {
            if owner[next] == owner[index] {
                inside[next] = true;
            } else {
                entries[next] = true;
            }
        }
        match block.term {
            Term::Call(target, next) => {
                for pc in [target, next] {
                    graph.at(pc).into_iter().for_each(|b| entries[b] = true);
                }
            }
            Term::CallIndirect(next)
            | Term::Watched(_, next)
            | Term::Syscall(next)
            | Term::Emulate(_, next) => {
                graph.at(next).into_iter().for_each(|b| entries[b] = true);
            }
            _ => {}
        }
        entries[index] |= block.hooked;
    }
    entries.iter_mut().zip(inside).for_each(|(entry, inside)| *entry |= !inside);
    // A loop that nothing outside leads to statically still needs a way in.
    cover_cycles(graph, owner, &mut entries);
    entries
}

/// Makes entries of blocks that no entry of their region leads to.
fn cover_cycles(graph: &Graph, owner: &[u32], entries: &mut [bool]) {
    let mut reached = vec![false; owner.len()];
    let starts = (0..owner.len()).filter(|&b| entries[b]).collect::<Vec<_>>();
    for block in starts.into_iter().chain(0..owner.len()) {
        entries[block] |= !reached[block];
        let mut stack = vec![block];
        while let Some(block) = stack.pop() {
            if !std::mem::replace(&mut reached[block], true) {
                stack.extend(successors(graph, block).filter(|&n| owner[n] == owner[block]));
            }
        }
    }
}

fn reached_inside(graph: &Graph, region: &Region, start: usize) -> Vec<bool> {
    let mut reached = vec![false; region.blocks.len()];
    let mut stack = vec![start];
    while let Some(block) = stack.pop() {
        if let Some(at) = region.position(block)
            && !std::mem::replace(&mut reached[at], true)
        {
            stack.extend(successors(graph, block));
        }
    }
    reached
}

/// Depth-first search for the blocks that edges go back to.
fn mark_loops(graph: &Graph, region: &mut Region) {
    // 0: unseen, 1: on the path, 2: done.
    let mut state = vec![0u8; region.blocks.len()];
    for start in 0..region.blocks.len() {
        if state[start] != 0 {
            continue;
        }
        state[start] = 1;
        let mut path = vec![(start, followers(graph, region, start))];
        while let Some((at, rest)) = path.last_mut() {
            match rest.pop() {
                None => {
                    state[*at] = 2;
                    path.pop();
                }
                Some(next) if state[next] == 1 => region.loops[next] = true,
                Some(next) if state[next] == 0 => {
                    state[next] = 1;
                    path.push((next, followers(graph, region, next)));
                }
                Some(_) => {}
            }
        }
    }
}

/// Successors of a block inside its region, as positions in it.
pub(super) fn followers(graph: &Graph, region: &Region, at: usize) -> Vec<usize> {
    successors(graph, region.blocks[at] as usize).filter_map(|b| region.position(b)).collect()
}
