//! Data flow inside a region: what each block needs from its predecessors, and what they may
//! leave that the frame does not have yet.

use super::graph::{Graph, Term};
use super::lift::{CALL_RECORDS, Watch, records};
use super::regions::{self, Region};
use super::vars::{self, Effects, VarSet};
use crate::lanes;
use iced_x86::Instruction;
use refrain_vm::reg::{R8, R9, RCX, RDI, RDX, RSI, RSP};
use refrain_vm::{Count, LeaveOut, Nested};

/// Results for each block of a region.
pub(super) struct Dataflow {
    /// Variables that a block or one behind it may read, or store at an exit.
    pub(super) needed: Vec<VarSet>,
    /// Variables that may be dirty at its start.
    pub(super) dirty: Vec<VarSet>,
    /// How many edges inside the region lead to it.
    pub(super) edges: Vec<u32>,
    /// Records that may be appended from here to the next check, where one is made here: at
    /// loop heads.
    pub(super) room: Vec<Option<u32>>,
    /// The same for the way in of an entry that is no loop head.
    pub(super) entry_room: Vec<Option<u32>>,
    /// Successors inside the region, as positions.
    pub(super) followers: Vec<Vec<usize>>,
}

/// Solves both directions to their fixed points.
pub(super) fn solve(graph: &Graph, region: &Region, watch: Watch) -> Dataflow {
    let count = region.blocks.len();
    let followers: Vec<_> = (0..count).map(|at| regions::followers(graph, region, at)).collect();
    let mut flow = Dataflow {
        needed: vec![VarSet::EMPTY; count],
        dirty: region
            .entries
            .iter()
            .map(|&entry| if entry { VarSet::HOT } else { VarSet::EMPTY })
            .collect(),
        edges: vec![0; count],
        room: vec![None; count],
        entry_room: vec![None; count],
        followers,
    };
    for next in flow.followers.iter().flatten() {
        flow.edges[*next] += 1;
    }
    let effects: Vec<_> = (0..count).map(|at| effects(graph, region, at, watch)).collect();
    flow.solve_dirty(&effects);
    if watch.accesses || watch.calls {
        flow.solve_room(graph, region);
    }
    flow.solve_needed(graph, region, &effects, watch);
    flow
}

/// A block's effects, with those of what is compiled in besides.
fn effects(graph: &Graph, region: &Region, at: usize, watch: Watch) -> Effects {
    let block = &graph.blocks[region.blocks[at] as usize];
    let mut effects = block.effects;
    if block.function.is_some() {
        // The arguments are read before anything else.
        effects.uses = [RDI, RSI, RDX, RSP].into_iter().fold(effects.uses, |mut uses, var| {
            uses.insert(var);
            uses
        });
    }
    if block.nested.is_some() || block.leaving.is_some() {
        [RDI, RSI, RDX, RCX, R8, R9, RSP].into_iter().for_each(|var| effects.uses.insert(var));
    }
    if let Some(register) = block.value {
        effects.uses.insert(register);
    }
    let mut add = |var| {
        effects.uses.insert(var);
        effects.writes.insert(var);
    };
    if (watch.accesses || watch.calls) && watch.leave_out == LeaveOut::Nothing {
        add(vars::CURSOR);
    }
    if watch.count != Count::Nothing {
        add(vars::RETIRED);
    }
    effects
}

impl Dataflow {
    fn solve_dirty(&mut self, effects: &[Effects]) {
        let mut changed = true;
        while changed {
            changed = false;
            for (at, effects) in effects.iter().enumerate() {
                let out = self.dirty[at].or(effects.writes);
                for &next in &self.followers[at] {
                    let merged = self.dirty[next].or(out);
                    changed |= merged != self.dirty[next];
                    self.dirty[next] = merged;
                }
            }
        }
    }

    /// An exit before or within a block needs what is dirty there.
    fn solve_needed(&mut self, graph: &Graph, region: &Region, effects: &[Effects], watch: Watch) {
        let mut changed = true;
        while changed {
            changed = false;
            for at in (0..effects.len()).rev() {
                let block = &graph.blocks[region.blocks[at] as usize];
                let dirty = self.dirty[at].or(effects[at].writes);
                let mut out = VarSet::EMPTY;
                for &next in &self.followers[at] {
                    out = out.or(self.needed[next]);
                }
                if leaves(graph, region, at) {
                    out = out.or(dirty.without(VarSet::FLAGS)).or(VarSet::HOT);
                    let live = graph.live_flags_out(block) | ordered_flags(block);
                    if dirty.flags() & live != 0 {
                        out = out.or(VarSet::of_flags(live));
                    }
                }
                let mut needed = out.without(effects[at].kills).or(effects[at].uses);
                let piecewise =
                    watch.accesses && regions::begins_repeated(graph, region.blocks[at]);
                let counts_down = watch.every && region.loops[at] || block.site.is_some();
                if self.room[at].is_some() || piecewise || block.place || block.left || counts_down
                {
                    needed = needed
                        .or(self.dirty[at].without(VarSet::FLAGS))
                        .or(VarSet::HOT)
                        .or(VarSet::of_flags(block.live_flags));
                }
                changed |= needed != self.needed[at];
                self.needed[at] = needed;
            }
        }
    }

    /// Where the access buffer is checked, and for how many records: on ways in and at loop
    /// heads, so that every cycle has a check.
    fn solve_room(&mut self, graph: &Graph, region: &Region) {
        let count = region.blocks.len();
        let checked = |at: usize| region.loops[at];
        let own = |at: usize| {
            let block = &graph.blocks[region.blocks[at] as usize];
            let function = block.function.map_or(0, |_| CALL_RECORDS);
            let value = u32::from(block.value.is_some());
            let nested = block.nested.as_ref().map_or(0, records);
            let leaving = block.leaving.as_ref().map_or(0, |_| records(&Nested::Function(None)));
            // A call and its end, or a return and that of two calls.
            let transfer = 3;
            graph.instructions(block).iter().map(accesses).sum::<u32>()
                + [transfer, function, value, nested, leaving].iter().sum::<u32>()
        };
        let mut longest: Vec<u32> = (0..count).map(own).collect();
        // Paths between checks have no cycles, so this ends after as many rounds as blocks.
        for _ in 0..count {
            let mut changed = false;
            for at in (0..count).rev() {
                let behind =
                    self.followers[at].iter().filter(|&&n| !checked(n)).map(|&n| longest[n]).max();
                let total = own(at) + behind.unwrap_or(0);
                changed |= total != longest[at];
                longest[at] = total;
            }
            if !changed {
                break;
            }
        }
        for (at, records) in longest.into_iter().enumerate() {
            if checked(at) {
                self.room[at] = Some(records);
            } else if region.entries[at] {
                self.entry_room[at] = Some(records);
            }
        }
    }
}

/// Records of an instruction's accesses, at most.
fn accesses(i: &Instruction) -> u32 {
    lanes::of(i).map_or(2, |lanes| lanes.count as u32)
}

/// Flags that an ordered instruction reads when it is stepped.
fn ordered_flags(block: &super::graph::Block) -> u8 {
    if matches!(block.term, Term::Watched(..)) { block.live_flags } else { 0 }
}

/// Whether control may leave the region where the block ends.
fn leaves(graph: &Graph, region: &Region, at: usize) -> bool {
    let block = region.blocks[at] as usize;
    let inside = regions::followers(graph, region, at).len();
    match graph.blocks[block].term {
        Term::Next(_) | Term::Jump(_) => inside < 1,
        Term::Branch(..) => inside < 2,
        _ => true,
    }
}
