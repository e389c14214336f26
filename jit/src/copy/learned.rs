//! Sites that the machine asked for, since accesses were found to race there.
//!
//! Runtimes look at a limit wherever they allocate or enter a function, and other threads change it
//! to make them stop: GHC's `HpLim`, OCaml's `young_limit`, Go's `stackguard0`. A replay that
//! diverged has met a few of these thousands of looks. All of them are the same instruction, because
//! compiled code reserves a register for the structure that holds the limit. So if a learned site is a
//! comparison with memory that such a register points to, it stands for all instructions that equal it.

use crate::common::has_memory;
use crate::memory::read_instruction;
use iced_x86::{Instruction, Mnemonic, Register};
use refrain_trace::fixed::{FixedSet, digest};

/// What was learned.
#[derive(Default)]
pub(super) struct Learned {
    sites: FixedSet<u64>,
    /// Looks at limits, whatever their addresses.
    looks: FixedSet<Instruction>,
    /// Sites whose instructions were not looked at yet.
    unread: Vec<u64>,
    /// Of all sites, in the order in which they came.
    digest: u64,
}

impl Learned {
    /// Adds sites.
    pub(super) fn add(&mut self, sites: &[u64]) {
        self.sites.extend(sites);
        self.unread.extend(sites);
        self.digest = digest(&(self.digest, sites));
    }

    /// Tells these sites from others.
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    /// Finds the looks among the sites. By now their code is in memory.
    pub(super) fn read(&mut self) {
        self.looks.extend(self.unread.drain(..).filter_map(read_instruction).filter(is_look));
    }

    /// Whether an instruction is a site.
    pub(super) fn contains(&self, instruction: &Instruction) -> bool {
        self.sites.contains(&instruction.ip()) || self.looks.contains(instruction)
    }
}

/// Whether it compares with what a register points to that compilers reserve.
fn is_look(instruction: &Instruction) -> bool {
    use Register::{R12, R13, R14, R15};
    instruction.mnemonic() == Mnemonic::Cmp
        && has_memory(instruction)
        && matches!(instruction.memory_base(), R12 | R13 | R14 | R15)
        && instruction.memory_index() == Register::None
}
