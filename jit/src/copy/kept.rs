//! Blocks for the trace.

use refrain_trace::CodeBlock;
use std::mem::replace;

/// Blocks that were kept, one behind the other: a thread that translates allocates nothing for each.
#[derive(Default)]
pub(super) struct Kept {
    /// Address, and the ends of its code and of its watched accesses in what follows.
    blocks: Vec<(u64, usize, usize)>,
    code: Vec<u8>,
    loads: Vec<u16>,
}

impl Kept {
    pub(super) fn push(&mut self, pc: u64, code: &[u8], loads: &[u16]) {
        self.code.extend_from_slice(code);
        self.loads.extend_from_slice(loads);
        self.blocks.push((pc, self.code.len(), self.loads.len()));
    }

    /// As a trace has them.
    pub(super) fn into_blocks(self) -> Vec<CodeBlock> {
        let (mut code, mut loads) = (0, 0);
        let block = |&(pc, code_end, loads_end): &(u64, usize, usize)| {
            let (code_start, loads_start) =
                (replace(&mut code, code_end), replace(&mut loads, loads_end));
            let code = self.code[code_start..code_end].to_vec();
            CodeBlock { pc, code, loads: self.loads[loads_start..loads_end].to_vec() }
        };
        self.blocks.iter().map(block).collect()
    }
}
