//! Why translated code is left: each exit's code holds the address of a descriptor.

use refrain_vm::{Emulate, OrderedKind};

/// Instructions in a block at most.
pub(super) const MAX_BLOCK: usize = 64;

/// One way out of translated code. Immutable once its code can be executed.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Desc {
    /// Of an ordered instruction that may be executed in line: where, in code memory. Else 0.
    pub(super) go_on: u64,
    /// What it means.
    pub(super) kind: Kind,
    /// The guest address to report or to go to; unused where the thread's `target` says it.
    pub(super) pc: u64,
    /// Instructions that the block has counted, and that are not executed before this exit.
    pub(super) rest: u32,
}

/// The kinds of exits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A direct branch whose target was not translated; `field` is the displacement to patch.
    Link {
        /// Address of the displacement of a `jmp` or `jcc`.
        field: u32,
        /// How the target is translated.
        variant: Variant,
    },
    /// The code of a block has changed; `field` is the displacement to patch, which leads to its
    /// translation.
    Changed {
        /// The block as it was.
        body: u32,
        /// Address of the displacement of a `jmp`.
        field: u32,
        /// How the block is translated.
        variant: Variant,
    },
    /// An indirect branch to `target`, which its table does not know; also a first entry.
    JumpMiss(Variant),
    /// A return to `target`, which its table does not know.
    ReturnMiss(Variant),
    /// `Exit::Syscall`.
    Syscall,
    /// `Exit::Hook`.
    Hook,
    /// `Exit::Return`, to `target`.
    Return,
    /// `Exit::Ordered`, unless the machine lets it be executed in line.
    Ordered(Operand),
    /// `Exit::Spans`.
    Spans,
    /// An instruction has been executed in line: the machine is told, and code goes on. What it has
    /// found may be in the thread's `operand`.
    Performed { resume: u32 },
    /// `Exit::Code`.
    Code {
        /// Bytes of code.
        len: u16,
        /// How the block is translated.
        variant: Variant,
    },
    /// `Exit::Emulate`.
    Emulate(Emulate),
    /// `Exit::Fault` that was known when the code was translated.
    Trap(i32),
    /// The interned name of an instruction.
    Unsupported(u32),
    /// `wrfsbase` of this register, with 32 bits only unless the flag is set.
    WriteFsBase(u8, bool),
    /// `Exit::Interrupted`.
    Interrupted,
    /// `Exit::AccessesFull`.
    LogFull,
    /// An instruction that the executor executes and logs by itself.
    LogAlone,
    /// What the executor logs before an instruction: a call that the observer has named.
    LogCall,
    /// The end of such a call, likewise.
    LogEnd,
    /// The end of a single step.
    Stepped,
    /// The fault handler was here.
    Faulted,
}

/// The memory operand of an ordered instruction; its offset is in the thread's `operand`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Operand {
    pub(super) size: u8,
    pub(super) kind: OrderedKind,
    /// Add the FS base.
    pub(super) fs: bool,
    /// A bit string: the register that holds the bit offset.
    pub(super) bit_register: Option<u8>,
    /// The register that holds afterwards what the instruction found, if one does.
    pub(super) found: Option<u8>,
}

/// The ways in which a guest address can be translated. Each has its own tables.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Variant {
    /// `Mode::Observed`.
    Observed = 0,
    /// `Mode::Opaque`.
    Opaque = 1,
    /// `Mode::Observed`, but a hook at the first instruction is passed over.
    Resumed = 2,
    /// The first instruction alone.
    Step = 3,
    /// The same, with the thread's `operand` in place of its memory operand.
    StepLoad = 4,
    /// The same, with its memory operand where the thread's `operand` says.
    StepMoved = 5,
    /// `Mode::Observed`, access by access, with no hook at the first instruction.
    Careful = 6,
}

impl Variant {
    /// How many there are.
    pub(super) const COUNT: u64 = 7;

    /// What follows code of this variant.
    pub(super) fn next(self) -> Variant {
        match self {
            Variant::Resumed | Variant::Careful => Variant::Observed,
            other => other,
        }
    }

    /// Whether it ends after one instruction.
    pub(super) fn steps(self) -> bool {
        matches!(self, Variant::Step | Variant::StepLoad | Variant::StepMoved)
    }

    /// Whether hooks and atomic instructions are seen, and blocks kept.
    pub(super) fn observed(self) -> bool {
        matches!(self, Variant::Observed | Variant::Resumed | Variant::Careful)
    }
}

impl Desc {
    /// One that goes on nowhere.
    pub(super) fn new(kind: Kind, pc: u64) -> Desc {
        Desc { go_on: 0, kind, pc, rest: 0 }
    }

    /// The one that the fault handler uses.
    pub(super) fn faulted() -> Desc {
        Desc::new(Kind::Faulted, 0)
    }
}

/// Descriptors at addresses that do not change until the arena is dropped.
#[derive(Default)]
pub(super) struct Arena {
    chunks: Vec<Vec<Desc>>,
}

impl Arena {
    /// Keeps `desc` and returns its address.
    pub(super) fn keep(&mut self, desc: Desc) -> u64 {
        const CHUNK: usize = 1024;
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let chunk = self.chunks.last_mut().expect("a chunk was pushed if there was none");
        // The capacity is never exceeded, so the elements never move.
        chunk.push(desc);
        std::ptr::from_ref(&chunk[chunk.len() - 1]) as u64
    }
}
