//! The loops of a function: the natural loops of its control flow graph.
//!
//! That a branch goes back says little: compilers put what is seldom executed at a function's end,
//! and it jumps back from there. A loop is what can be executed again: the blocks from which a
//! branch back to their dominator is reached without passing that dominator.
//!
//! Where an indirect jump leads is not known; it is taken to lead wherever nothing else does.

use iced_x86::{FlowControl, Instruction, OpKind};
use petgraph::algo::dominators::simple_fast;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{EdgeRef, IntoNodeReferences};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A graph of blocks, which are ranges of instructions.
type Blocks = DiGraph<Range<usize>, ()>;

/// A natural loop: its blocks, as ranges of instructions.
pub(super) type Loop = Vec<Range<usize>>;

/// The loops in a function, inner ones before those around them. `code` is its instructions in
/// order.
pub(super) fn loops(code: &[Instruction]) -> Vec<Loop> {
    let blocks = blocks(code);
    let Some(entry) = blocks.node_indices().next() else { return Vec::new() };
    let dominators = simple_fast(&blocks, entry);
    let mut bodies: BTreeMap<NodeIndex, BTreeSet<NodeIndex>> = BTreeMap::new();
    for edge in blocks.edge_references() {
        let (last, header) = (edge.source(), edge.target());
        if dominators.dominators(last).is_some_and(|mut above| above.any(|block| block == header)) {
            let body = bodies.entry(header).or_insert_with(|| BTreeSet::from([header]));
            extend(&blocks, body, last);
        }
    }
    let mut bodies: Vec<_> = bodies.into_values().collect();
    bodies.sort_by_key(BTreeSet::len);
    bodies.iter().map(|body| body.iter().map(|&block| blocks[block].clone()).collect()).collect()
}

/// Adds the blocks from which `last` is reached without passing what is in the body already.
fn extend(blocks: &Blocks, body: &mut BTreeSet<NodeIndex>, last: NodeIndex) {
    let mut reach = vec![last];
    while let Some(block) = reach.pop() {
        if body.insert(block) {
            reach.extend(blocks.neighbors_directed(block, petgraph::Incoming));
        }
    }
}

/// The control flow graph of a function.
fn blocks(code: &[Instruction]) -> Blocks {
    let starts = starts(code);
    let mut blocks = Blocks::with_capacity(starts.len(), 2 * starts.len());
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
    for block in indirect {
        blocks.extend_with_edges(nowhere_else.iter().map(|&target| (block, target)));
    }
    blocks
}

/// Where blocks begin, in ascending order.
fn starts(code: &[Instruction]) -> Vec<usize> {
    let mut starts = BTreeSet::new();
    for (at, instruction) in code.iter().enumerate() {
        let target = target(code, instruction);
        if target.is_some() || ends_here(instruction) {
            starts.insert(at + 1);
        }
        starts.extend(target);
    }
    starts.insert(0);
    starts.into_iter().take_while(|&start| start < code.len()).collect()
}

/// Where a branch inside the function leads.
fn target(code: &[Instruction], branch: &Instruction) -> Option<usize> {
    let is_branch = branch.op0_kind() == OpKind::NearBranch64
        && !matches!(branch.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
    let found = code.binary_search_by_key(&branch.near_branch_target(), Instruction::ip);
    found.ok().filter(|_| is_branch)
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
    use super::loops;
    use iced_x86::code_asm::*;

    /// The loops in what `write` assembles, as ranges of instructions.
    fn found(write: impl FnOnce(&mut CodeAssembler)) -> Vec<Vec<std::ops::Range<usize>>> {
        let mut a = CodeAssembler::new(64).expect("64 is a bitness");
        write(&mut a);
        let bytes = a.assemble(0x1000).expect("what the tests write can be encoded");
        let code: Vec<_> = iced_x86::Decoder::with_ip(64, &bytes, 0x1000, 0).iter().collect();
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
}
