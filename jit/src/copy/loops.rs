//! The loops of a function: the natural loops of its control flow graph.
//!
//! A branch back need not close a loop: compilers put code that is seldom executed at a function's end,
//! and this code jumps back from there. A loop is what can be executed again: the blocks from which a
//! branch back to their dominator is reached without passing that dominator.
//!
//! An indirect jump is taken to lead to all blocks to which nothing else leads, since its targets are not
//! known.

use super::listing::Listing;
use iced_x86::FlowControl;
use petgraph::algo::TarjanScc;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{EdgeRef, IntoNodeReferences, NodeFiltered};
use std::collections::BTreeMap;
use std::ops::Range;

/// A natural loop: its blocks, as ranges of instructions.
pub(super) type Loop = Vec<Range<usize>>;

/// Whether all of a loop lies within another one.
pub(super) fn is_within(inner: &Loop, outer: &Loop) -> bool {
    let holds = |block: &Range<usize>| {
        outer.iter().any(|it| it.start <= block.start && block.end <= it.end)
    };
    inner.iter().all(holds)
}

/// How control flows in a function, as far as loops are concerned.
pub(super) struct Flow(Option<FlowGraph>);

impl Flow {
    /// `code` is the function's instructions in order.
    pub(super) fn of(code: &Listing) -> Flow {
        Flow(may_go_back(code).then(|| FlowGraph::new(code)))
    }

    /// The loops, inner ones before those around them.
    pub(super) fn loops(&self) -> Vec<Loop> {
        let Some(graph) = &self.0 else { return Vec::new() };
        let Some(above) = Above::new(&graph.blocks) else { return Vec::new() };
        let mut backs: BTreeMap<NodeIndex, Vec<NodeIndex>> = BTreeMap::new();
        for edge in graph.blocks.edge_references() {
            let (last, header) = (edge.source(), edge.target());
            if above.is(header, last) && header != graph.table && last != graph.table {
                backs.entry(header).or_default().push(last);
            }
        }
        let mut indirect = graph.indirect.clone();
        indirect.sort_by_key(|&block| above.visit(block).start);
        for &header in &graph.nowhere_else {
            let visit = above.visit(header);
            let first = indirect.partition_point(|&block| above.visit(block).start < visit.start);
            let below = indirect[first..].iter();
            let below = below.take_while(|&&block| visit.contains(&above.visit(block).start));
            for &last in below {
                backs.entry(header).or_default().push(last);
            }
        }
        let mut seen = vec![NodeIndex::end(); graph.blocks.node_count()];
        let mut bodies: Vec<_> =
            backs.into_iter().map(|(header, backs)| graph.body(header, backs, &mut seen)).collect();
        bodies.sort_by_key(Vec::len);
        let ranges =
            |body: Vec<NodeIndex>| body.iter().map(|&at| graph.blocks[at].clone()).collect();
        bodies.into_iter().map(ranges).collect()
    }

    /// The parts of loops that can be executed over and over by quiet instructions alone, each as its
    /// blocks in ascending order, and which of these is the first one that other code leads to.
    pub(super) fn quiet_rounds(&self, is_quiet: impl Fn(usize) -> bool) -> Vec<(Loop, usize)> {
        let Some(FlowGraph { blocks: graph, .. }) = &self.0 else { return Vec::new() };
        // Few functions have such a part, so that few blocks need be looked at to know it.
        let mut looked = vec![None; graph.node_count()];
        let mut is_quiet = |block: NodeIndex| {
            *looked[block.index()].get_or_insert_with(|| {
                let block = &graph[block];
                !block.is_empty() && block.clone().all(&is_quiet)
            })
        };
        let goes_back = graph.edge_references().any(|edge| {
            let (from, to) = (edge.source(), edge.target());
            to <= from && is_quiet(to) && is_quiet(from)
        });
        if !goes_back {
            return Vec::new();
        }
        let quiet: Vec<bool> = graph.node_indices().map(is_quiet).collect();
        let quiet = NodeFiltered::from_fn(graph, |block: NodeIndex| quiet[block.index()]);
        let mut rounds = Vec::new();
        TarjanScc::new().run(&quiet, |blocks| {
            if blocks.len() == 1 && !graph.contains_edge(blocks[0], blocks[0]) {
                return;
            }
            let mut blocks = blocks.to_vec();
            blocks.sort_unstable_by_key(|&block| graph[block].start);
            let is_entered = |&block: &NodeIndex| {
                let mut before = graph.neighbors_directed(block, petgraph::Incoming);
                before.any(|from| !blocks.contains(&from))
            };
            let entry = blocks.iter().position(is_entered).unwrap_or(0);
            rounds.push((blocks.iter().map(|&block| graph[block].clone()).collect(), entry));
        });
        rounds
    }
}

/// The loops in a function, inner ones before those around them. `code` is its instructions in
/// order.
pub(super) fn loops(code: &Listing) -> Vec<Loop> {
    Flow::of(code).loops()
}

/// Whether a function may have a loop.
fn may_go_back(code: &Listing) -> bool {
    (0..code.len()).any(|at| {
        code.target(at).is_some_and(|to| to <= at)
            || code[at].flow_control() == FlowControl::IndirectBranch
    })
}

/// Which blocks dominate which. Of each block, when a search of the tree of dominators enters it, from 1
/// on, and when it has left all below; 0 of what is not reached.
///
/// After Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm", as `petgraph` has it; but
/// the blocks of a function have numbers already, and `petgraph` keeps a hash set for each of them.
struct Above(Vec<Range<u32>>);

impl Above {
    /// `None` if no block can be executed again.
    fn new(blocks: &DiGraph<Range<usize>, ()>) -> Option<Above> {
        const NONE: u32 = u32::MAX;
        let left = left_order(blocks)?;
        let mut number = vec![NONE; blocks.node_count()];
        for (at, block) in (0..).zip(&left) {
            number[block.index()] = at;
        }
        // By number: a dominator's is higher.
        let mut above = vec![NONE; left.len()];
        let root = left.len() - 1;
        above[root] = root as u32;
        let mut changed = true;
        while changed {
            changed = false;
            for at in (0..root).rev() {
                let before = blocks.neighbors_directed(left[at], petgraph::Incoming);
                let before = before.map(|block| number[block.index()]);
                let known = before.filter(|&it| it != NONE && above[it as usize] != NONE);
                let common = known.reduce(|mut a, mut b| {
                    while a != b {
                        match a < b {
                            true => a = above[a as usize],
                            false => b = above[b as usize],
                        }
                    }
                    a
                });
                let common = common.expect("a block before it was left later, and is known");
                changed |= std::mem::replace(&mut above[at], common) != common;
            }
        }
        let mut sizes = vec![1; left.len()];
        for at in 0..root {
            sizes[above[at] as usize] += sizes[at];
        }
        let mut visits = vec![0..0; blocks.node_count()];
        // Where the next block below begins.
        let mut next = vec![1; left.len()];
        for at in (0..left.len()).rev() {
            let start = match at == root {
                true => 1,
                false => next[above[at] as usize],
            };
            next[above[at] as usize] += sizes[at];
            next[at] = start + 1;
            visits[left[at].index()] = start..start + sizes[at];
        }
        Some(Above(visits))
    }

    fn visit(&self, block: NodeIndex) -> Range<u32> {
        self.0[block.index()].clone()
    }

    /// Whether one dominates the other, or is it.
    fn is(&self, above: NodeIndex, block: NodeIndex) -> bool {
        let time = self.visit(block).start;
        time > 0 && self.visit(above).contains(&time)
    }
}

/// The blocks in the order in which a depth-first search from the first one leaves them; `None` if it
/// meets no way back.
fn left_order(blocks: &DiGraph<Range<usize>, ()>) -> Option<Vec<NodeIndex>> {
    let entry = blocks.node_indices().next()?;
    let mut entered = vec![false; blocks.node_count()];
    let mut open = vec![false; blocks.node_count()];
    let mut left = Vec::with_capacity(blocks.node_count());
    let mut goes_back = false;
    let mut ways = vec![(entry, blocks.neighbors(entry).detach())];
    (entered[entry.index()], open[entry.index()]) = (true, true);
    while let Some((block, way)) = ways.last_mut() {
        if let Some(next) = way.next_node(blocks) {
            goes_back |= open[next.index()];
            if !std::mem::replace(&mut entered[next.index()], true) {
                open[next.index()] = true;
                ways.push((next, blocks.neighbors(next).detach()));
            }
        } else {
            open[block.index()] = false;
            left.push(*block);
            ways.pop();
        }
    }
    goes_back.then_some(left)
}

/// The control flow graph of a function.
struct FlowGraph {
    /// The blocks, which are ranges of instructions, and behind them `table`.
    blocks: DiGraph<Range<usize>, ()>,
    /// Stands between the blocks that end with indirect jumps and those that these may lead to.
    table: NodeIndex,
    indirect: Vec<NodeIndex>,
    nowhere_else: Vec<NodeIndex>,
}

impl FlowGraph {
    fn new(code: &Listing) -> FlowGraph {
        let starts = starts(code);
        let mut blocks = DiGraph::with_capacity(starts.len() + 1, 2 * starts.len());
        let ends = starts.iter().copied().skip(1).chain([code.len()]);
        for (&start, end) in starts.iter().zip(ends) {
            blocks.add_node(start..end);
        }
        let block_at = |start: usize| starts.binary_search(&start).ok().map(NodeIndex::new);
        let mut edges = Vec::new();
        let mut indirect = Vec::new();
        for (block, range) in blocks.node_references() {
            let last = range.end - 1;
            if let Some(target) = code.target(last).and_then(block_at) {
                edges.push((block, target));
            }
            if !code.ends_here(last)
                && let Some(next) = block_at(range.end)
            {
                edges.push((block, next));
            }
            if code[last].flow_control() == FlowControl::IndirectBranch {
                indirect.push(block);
            }
        }
        blocks.extend_with_edges(edges);
        let nowhere_else: Vec<_> =
            blocks.externals(petgraph::Incoming).filter(|block| block.index() != 0).collect();
        let mut graph = FlowGraph { table: NodeIndex::end(), blocks, indirect, nowhere_else };
        if !graph.indirect.is_empty() && !graph.nowhere_else.is_empty() {
            graph.table = graph.blocks.add_node(0..0);
            let into = graph.indirect.iter().map(|&block| (block, graph.table));
            let out = graph.nowhere_else.iter().map(|&block| (graph.table, block));
            graph.blocks.extend_with_edges(into.chain(out).collect::<Vec<_>>());
        }
        graph
    }

    /// The header, and the blocks from which one of `backs` is reached without passing it. `seen`
    /// says of each block for which header it was visited last.
    fn body(
        &self,
        header: NodeIndex,
        backs: Vec<NodeIndex>,
        seen: &mut [NodeIndex],
    ) -> Vec<NodeIndex> {
        let mut body = vec![header];
        seen[header.index()] = header;
        let mut reach = backs;
        while let Some(block) = reach.pop() {
            if seen[block.index()] != header {
                seen[block.index()] = header;
                body.extend((block != self.table).then_some(block));
                reach.extend(self.blocks.neighbors_directed(block, petgraph::Incoming));
            }
        }
        body.sort_unstable();
        body
    }
}

/// Where blocks begin, in ascending order.
fn starts(code: &Listing) -> Vec<usize> {
    let mut starts = vec![false; code.len() + 1];
    starts[0] = true;
    for at in 0..code.len() {
        let target = code.target(at);
        if target.is_some() || code.ends_here(at) {
            starts[at + 1] = true;
        }
        if let Some(target) = target {
            starts[target] = true;
        }
    }
    (0..code.len()).filter(|&at| starts[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::tests::assembled;
    use iced_x86::code_asm::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The loops in what `write` assembles, as ranges of instructions.
    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<Vec<std::ops::Range<usize>>> {
        let code = assembled(write);
        loops(&code)
    }

    #[test]
    fn inner_and_outer() {
        let nested = found(|a| {
            let (mut outer, mut inner) = (a.create_label(), a.create_label());
            a.set_label(&mut outer).unwrap();
            a.mov(ecx, 5).unwrap();
            a.set_label(&mut inner).unwrap();
            a.dec(ecx).unwrap();
            a.jne(inner).unwrap();
            a.dec(eax).unwrap();
            a.jne(outer).unwrap();
            a.ret().unwrap();
        });
        let inner: Vec<_> = std::iter::once(1..3).collect();
        assert_eq!(nested, [inner, vec![0..1, 1..3, 3..5]]);
        assert_eq!(found(|_| ()), Vec::<Vec<std::ops::Range<usize>>>::new());
    }

    /// Code that is out of line and jumps back is executed once.
    #[test]
    fn a_branch_back_need_not_be_a_loop() {
        let cold = found(|a| {
            let (mut rare, mut again) = (a.create_label(), a.create_label());
            a.test(eax, eax).unwrap();
            a.jne(rare).unwrap();
            a.set_label(&mut again).unwrap();
            a.inc(ecx).unwrap();
            a.ret().unwrap();
            a.set_label(&mut rare).unwrap();
            a.dec(ecx).unwrap();
            a.jmp(again).unwrap();
        });
        assert!(cold.is_empty(), "{cold:?}");
    }

    /// An interpreter: every case jumps back to the dispatcher.
    #[test]
    fn jumps_through_tables() {
        let interpreter = found(|a| {
            let mut again = a.create_label();
            a.set_label(&mut again).unwrap();
            a.inc(rsi).unwrap();
            a.jmp(qword_ptr(rax)).unwrap();
            for _ in 0..2 {
                a.dec(ecx).unwrap();
                a.jmp(again).unwrap();
            }
            a.ret().unwrap();
        });
        assert_eq!(interpreter, [vec![0..2, 2..4, 4..6]]);
    }

    /// The loops by their definition, with an edge from each indirect jump to each block that it may
    /// lead to.
    fn naive(code: &Listing) -> BTreeSet<BTreeSet<usize>> {
        let starts = starts(code);
        let at = |start| starts.binary_search(&start).ok();
        let end = |block: usize| starts.get(block + 1).copied().unwrap_or(code.len());
        let mut edges = BTreeSet::new();
        let mut indirect = Vec::new();
        for block in 0..starts.len() {
            let last = end(block) - 1;
            edges.extend(code.target(last).and_then(at).map(|to| (block, to)));
            let next = at(end(block)).filter(|_| !code.ends_here(last));
            edges.extend(next.map(|to| (block, to)));
            if code[last].flow_control() == FlowControl::IndirectBranch {
                indirect.push(block);
            }
        }
        let alone = |to: &usize| edges.iter().all(|edge| edge.1 != *to);
        let alone: Vec<usize> = (1..starts.len()).filter(alone).collect();
        edges.extend(indirect.iter().flat_map(|&from| alone.iter().map(move |&to| (from, to))));
        // What is reached from a block, forwards or backwards, without passing another.
        let reach = |from: usize, without: Option<usize>, back: bool| {
            let mut found = BTreeSet::new();
            let mut open = vec![from];
            while let Some(block) = open.pop() {
                if Some(block) != without && found.insert(block) {
                    let way = |&(a, b): &(usize, usize)| if back { (b, a) } else { (a, b) };
                    open.extend(edges.iter().map(way).filter(|e| e.0 == block).map(|e| e.1));
                }
            }
            found
        };
        let reached = reach(0, None, false);
        let dominates =
            |a: usize, b: usize| reached.contains(&b) && !reach(0, Some(a), false).contains(&b);
        let mut bodies: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for &(last, header) in edges.iter().filter(|edge| dominates(edge.1, edge.0)) {
            let body = bodies.entry(header).or_insert_with(|| BTreeSet::from([header]));
            body.extend(reach(last, Some(header), true));
        }
        let instructions = |body: BTreeSet<usize>| -> BTreeSet<usize> {
            body.into_iter().flat_map(|block| starts[block]..end(block)).collect()
        };
        bodies.into_values().map(instructions).collect()
    }

    proptest! {
        #[test]
        fn as_by_definition(ways in prop::collection::vec((0..5_u8, 0..12_usize), 1..12)) {
            let mut a = CodeAssembler::new(64).expect("64 is a bitness");
            let mut labels: Vec<_> = ways.iter().map(|_| a.create_label()).collect();
            for (at, &(kind, to)) in ways.iter().enumerate() {
                a.set_label(&mut labels[at]).unwrap();
                a.inc(ecx).unwrap();
                let to = labels[to % ways.len()];
                match kind {
                    0 => a.jmp(to).unwrap(),
                    1 | 2 => a.jne(to).unwrap(),
                    3 => a.jmp(qword_ptr(rax)).unwrap(),
                    _ => a.ret().unwrap(),
                }
            }
            let bytes = a.assemble(0x1000).expect("what the test writes can be encoded");
            let code = Listing::new(iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0).iter().collect());
            let found = loops(&code);
            prop_assert!(found.is_sorted_by_key(Vec::len));
            let found: BTreeSet<BTreeSet<usize>> =
                found.into_iter().map(|body| body.into_iter().flatten().collect()).collect();
            prop_assert_eq!(found, naive(&code));
        }
    }
}
