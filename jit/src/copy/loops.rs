//! The loops of a function: the natural loops of its control flow graph.
//!
//! A branch back need not close a loop: compilers put code that is seldom executed at a function's end,
//! and this code jumps back from there. A loop is what can be executed again: the blocks from which a
//! branch back to their dominator is reached without passing that dominator.
//!
//! An indirect jump is taken to lead to all blocks to which nothing else leads, since its targets are not
//! known.

use iced_x86::{FlowControl, Instruction, OpKind};
use petgraph::algo::dominators::{Dominators, simple_fast};
use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{EdgeRef, IntoNodeReferences};
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

/// The loops in a function, inner ones before those around them. `code` is its instructions in
/// order.
pub(super) fn loops(code: &[Instruction]) -> Vec<Loop> {
    if !may_go_back(code) {
        return Vec::new();
    }
    let graph = FlowGraph::new(code);
    let Some(entry) = graph.blocks.node_indices().next() else { return Vec::new() };
    let above = Above::new(&simple_fast(&graph.blocks, entry), graph.blocks.node_count());
    let mut backs: BTreeMap<NodeIndex, Vec<NodeIndex>> = BTreeMap::new();
    for edge in graph.blocks.edge_references() {
        let (last, header) = (edge.source(), edge.target());
        if above.is(header, last) && header != graph.table && last != graph.table {
            backs.entry(header).or_default().push(last);
        }
    }
    for &last in &graph.indirect {
        for &header in graph.nowhere_else.iter().filter(|&&header| above.is(header, last)) {
            backs.entry(header).or_default().push(last);
        }
    }
    let mut seen = vec![NodeIndex::end(); graph.blocks.node_count()];
    let mut bodies: Vec<_> =
        backs.into_iter().map(|(header, backs)| graph.body(header, backs, &mut seen)).collect();
    bodies.sort_by_key(Vec::len);
    let ranges = |body: Vec<NodeIndex>| body.iter().map(|&at| graph.blocks[at].clone()).collect();
    bodies.into_iter().map(ranges).collect()
}

/// Whether a function may have a loop.
fn may_go_back(code: &[Instruction]) -> bool {
    code.iter().any(|i| {
        let back = || target(code, i).is_some_and(|to| code[to].ip() <= i.ip());
        i.flow_control() == FlowControl::IndirectBranch
            || i.near_branch_target() <= i.ip() && back()
    })
}

/// What can be executed over and over without executing a block that has an instruction which is not
/// quiet: parts of loops, each as its blocks in ascending order.
pub(super) fn quiet_rounds(
    code: &[Instruction],
    is_quiet: impl Fn(&Instruction) -> bool,
) -> Vec<Loop> {
    if !may_go_back(code) {
        return Vec::new();
    }
    let mut graph = FlowGraph::new(code).blocks;
    graph.retain_nodes(|graph, block| {
        let range = graph[block].clone();
        !range.is_empty() && code[range].iter().all(&is_quiet)
    });
    let rounds = tarjan_scc(&graph).into_iter();
    rounds
        .filter(|blocks| blocks.len() > 1 || graph.contains_edge(blocks[0], blocks[0]))
        .map(|blocks| {
            let mut round: Loop = blocks.into_iter().map(|block| graph[block].clone()).collect();
            round.sort_unstable_by_key(|block| block.start);
            round
        })
        .collect()
}

/// Which blocks dominate which.
struct Above(Vec<Range<usize>>);

impl Above {
    fn new(dominators: &Dominators<NodeIndex>, blocks: usize) -> Above {
        let mut below = vec![Vec::new(); blocks];
        for block in (0..blocks).map(NodeIndex::new) {
            if let Some(above) = dominators.immediate_dominator(block) {
                below[above.index()].push(block);
            }
        }
        // A block dominates those that are entered and left while it is entered.
        let mut visits = vec![0..0; blocks];
        let mut time = 0;
        let mut open = vec![(dominators.root(), 0)];
        while let Some((block, done)) = open.pop() {
            if done == 0 {
                time += 1;
                visits[block.index()].start = time;
            }
            match below[block.index()].get(done) {
                Some(&next) => open.extend([(block, done + 1), (next, 0)]),
                None => visits[block.index()].end = time + 1,
            }
        }
        Above(visits)
    }

    /// Whether one dominates the other, or is it.
    fn is(&self, above: NodeIndex, block: NodeIndex) -> bool {
        // What is not reached has no time.
        let time = self.0[block.index()].start;
        time > 0 && self.0[above.index()].contains(&time)
    }
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
    fn new(code: &[Instruction]) -> FlowGraph {
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
            let last = &code[range.end - 1];
            if let Some(target) = target(code, last).and_then(block_at) {
                edges.push((block, target));
            }
            if !ends_here(last)
                && let Some(next) = block_at(range.end)
            {
                edges.push((block, next));
            }
            if last.flow_control() == FlowControl::IndirectBranch {
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
fn starts(code: &[Instruction]) -> Vec<usize> {
    let mut starts = vec![false; code.len() + 1];
    starts[0] = true;
    for (at, instruction) in code.iter().enumerate() {
        let target = target(code, instruction);
        if target.is_some() || ends_here(instruction) {
            starts[at + 1] = true;
        }
        if let Some(target) = target {
            starts[target] = true;
        }
    }
    (0..code.len()).filter(|&at| starts[at]).collect()
}

/// Where a branch inside the function leads.
pub(super) fn target(code: &[Instruction], branch: &Instruction) -> Option<usize> {
    let is_branch = branch.op0_kind() == OpKind::NearBranch64
        && !matches!(branch.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
    let at = || code.binary_search_by_key(&branch.near_branch_target(), Instruction::ip);
    is_branch.then(at).and_then(Result::ok)
}

/// Whether what follows the instruction is not executed after it.
pub(super) fn ends_here(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Return
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Exception
    )
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
    fn naive(code: &[Instruction]) -> BTreeSet<BTreeSet<usize>> {
        let starts = starts(code);
        let at = |start| starts.binary_search(&start).ok();
        let end = |block: usize| starts.get(block + 1).copied().unwrap_or(code.len());
        let mut edges = BTreeSet::new();
        let mut indirect = Vec::new();
        for block in 0..starts.len() {
            let last = &code[end(block) - 1];
            edges.extend(target(code, last).and_then(at).map(|to| (block, to)));
            let next = at(end(block)).filter(|_| !ends_here(last));
            edges.extend(next.map(|to| (block, to)));
            if last.flow_control() == FlowControl::IndirectBranch {
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
            let code: Vec<_> = iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0).iter().collect();
            let found = loops(&code);
            prop_assert!(found.is_sorted_by_key(Vec::len));
            let found: BTreeSet<BTreeSet<usize>> =
                found.into_iter().map(|body| body.into_iter().flatten().collect()).collect();
            prop_assert_eq!(found, naive(&code));
        }
    }
}
