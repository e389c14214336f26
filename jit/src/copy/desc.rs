//! Why translated code is left: each exit's code holds the address of a descriptor.

use crate::memory::populate;
use refrain_vm::layout::PAGE;
use refrain_vm::{Emulate, OrderedKind};
use std::mem::offset_of;
use std::ops::Range;

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
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The descriptor is among those that an earlier recording has kept.
    #[expect(dead_code, reason = "memory of zeroes is one of this kind")]
    Kept = 0,
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
    /// The same, unless the machine lets the instruction be executed in line.
    Strings(Strings),
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
    Trap(u32),
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

/// What a string instruction accesses: elements from rsi, or from rdi on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Strings {
    /// Bytes of an element.
    pub(super) size: u8,
    /// It reads what rsi points to.
    pub(super) reads: bool,
    /// It writes what rdi points to.
    pub(super) writes: bool,
    /// It has as many elements as rcx says, and not one.
    pub(super) repeats: bool,
}

impl Strings {
    fn bits(self) -> u32 {
        let Strings { size, reads, writes, repeats } = self;
        u32::from(size) | u32::from(reads) << 4 | u32::from(writes) << 5 | u32::from(repeats) << 6
    }

    fn of_bits(bits: u32) -> Strings {
        let bit = |at: u32| bits >> at & 1 != 0;
        Strings { size: bits as u8 & 15, reads: bit(4), writes: bit(5), repeats: bit(6) }
    }
}

/// The kinds of operands that are kept, by their numbers in [`Operand::bits`].
const KINDS: [OrderedKind; 8] = [
    OrderedKind::ReadModifyWrite,
    OrderedKind::Load,
    OrderedKind::Poll,
    OrderedKind::Check,
    OrderedKind::Store,
    OrderedKind::Read,
    OrderedKind::Write,
    OrderedKind::Target,
];

impl Operand {
    /// In 24 bits, if that can be.
    fn bits(self) -> Option<u32> {
        let kind = KINDS.iter().position(|&kind| kind == self.kind)? as u32;
        let register =
            |register: Option<u8>| register.map_or(0, |register| u32::from(register) + 1);
        let size = u32::from(self.size);
        let registers = register(self.bit_register) << 11 | register(self.found) << 16;
        (size < 1 << 7).then_some(size | kind << 7 | u32::from(self.fs) << 10 | registers)
    }

    fn of_bits(bits: u32) -> Operand {
        let register = |at: u32| (bits >> at & 0x1f).checked_sub(1).map(|register| register as u8);
        Operand {
            size: (bits & 0x7f) as u8,
            kind: KINDS[(bits >> 7 & 7) as usize % KINDS.len()],
            fs: bits >> 10 & 1 != 0,
            bit_register: register(11),
            found: register(16),
        }
    }
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
    pub(super) const COUNT: u64 = Self::ALL.len() as u64;

    pub(super) const ALL: [Variant; 7] = [
        Variant::Observed,
        Variant::Opaque,
        Variant::Resumed,
        Variant::Step,
        Variant::StepLoad,
        Variant::StepMoved,
        Variant::Careful,
    ];

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

    /// Whether hooks and atomic instructions are seen.
    pub(super) fn observed(self) -> bool {
        matches!(self, Variant::Observed | Variant::Resumed | Variant::Careful)
    }

    /// Whether its blocks come into the trace. What is executed carefully is a part of another block.
    pub(super) fn is_kept_in_traces(self) -> bool {
        matches!(self, Variant::Observed | Variant::Resumed)
    }
}

impl Desc {
    /// The offset of the field `resume` of a [`Kind::Performed`] in a descriptor. A kind begins with its number,
    /// in one byte; its first field stands where its alignment puts it.
    pub(super) const RESUME: usize = offset_of!(Desc, kind) + size_of::<u32>();

    /// One that goes on nowhere.
    pub(super) fn new(kind: Kind, pc: u64) -> Desc {
        Desc { go_on: 0, kind, pc, rest: 0 }
    }

    /// In four numbers, if it is of a kind that is kept for later recordings: all but the rarest are.
    pub(super) fn row(&self) -> Option<[u32; 4]> {
        let &Desc { go_on, kind, pc, rest } = self;
        let go_on = u32::try_from(go_on).ok()?;
        let (kind, field) = match kind {
            Kind::Ordered(operand) => (10 | operand.bits()? << 8, go_on),
            Kind::Performed { resume } => (11, resume),
            Kind::Strings(strings) => (13 | strings.bits() << 8, go_on),
            _ if go_on != 0 => return None,
            Kind::Link {
                field,
                variant: variant @ (Variant::Observed | Variant::Opaque | Variant::Careful),
            } => (1 | (variant as u32) << 8, field),
            Kind::Syscall => (2, 0),
            Kind::Return => (3, 0),
            Kind::Trap(vector) => (4, vector),
            Kind::WriteFsBase(register, wide) => (5 | u32::from(register) << 8, wide.into()),
            Kind::Emulate(Emulate::Cpuid) => (6, 0),
            Kind::Emulate(Emulate::Rdtsc) => (7, 0),
            Kind::Emulate(Emulate::Rdtscp) => (8, 0),
            Kind::Emulate(Emulate::Xgetbv) => (9, 0),
            Kind::Spans => (12, 0),
            Kind::Emulate(Emulate::InterruptReturn) => (14, 0),
            _ => return None,
        };
        Some([kind, field, u32::try_from(pc).ok()?, rest])
    }

    /// The descriptor that [`Self::row`] has made these numbers of. Others give one that no translated code
    /// refers to.
    pub(super) fn of_row([kind, field, pc, rest]: [u32; 4]) -> Desc {
        let byte = kind >> 8;
        let go_on = if matches!(kind & 0xff, 10 | 13) { field.into() } else { 0 };
        let kind = match kind & 0xff {
            1 => Kind::Link { field, variant: Variant::ALL[byte as usize % Variant::ALL.len()] },
            2 => Kind::Syscall,
            3 => Kind::Return,
            4 => Kind::Trap(field),
            5 => Kind::WriteFsBase(byte as u8, field != 0),
            6 => Kind::Emulate(Emulate::Cpuid),
            7 => Kind::Emulate(Emulate::Rdtsc),
            8 => Kind::Emulate(Emulate::Rdtscp),
            9 => Kind::Emulate(Emulate::Xgetbv),
            10 => Kind::Ordered(Operand::of_bits(byte)),
            11 => Kind::Performed { resume: field },
            12 => Kind::Spans,
            13 => Kind::Strings(Strings::of_bits(byte)),
            14 => Kind::Emulate(Emulate::InterruptReturn),
            _ => Kind::Faulted,
        };
        Desc { go_on, kind, pc: pc.into(), rest }
    }

    /// The one that the fault handler uses.
    pub(super) fn faulted() -> Desc {
        Desc::new(Kind::Faulted, 0)
    }
}

/// Descriptors, one behind the other in memory below 2 GiB: where the next one will be follows from how
/// many there are.
pub(super) struct Arena {
    range: Range<u64>,
    len: usize,
    /// Where the memory ends that the system has been asked for.
    ready: u64,
}

impl Arena {
    const SIZE: u64 = size_of::<Desc>() as u64;
    /// Memory that the system gives at once.
    const STEP: u64 = 64 << 10;

    /// An empty one.
    ///
    /// # Safety
    /// The range is writable memory of zeroes, aligned to a page, that is there as long as the arena and
    /// that nobody else uses.
    pub(super) unsafe fn new(range: Range<u64>) -> Arena {
        let ready = range.start;
        Arena { range, len: 0, ready }
    }

    /// Whether so many more can be kept.
    pub(super) fn has_room(&self, more: u64) -> bool {
        (self.len as u64 + more) * Self::SIZE <= self.range.end - self.range.start
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// All of them.
    pub(super) fn all(&self) -> &[Desc] {
        // SAFETY: `keep` has written so many, or `leave_places` has left them zero, which is a descriptor of
        // kind `Kept`; nobody changes them as long as there is a reference to the arena (`new`, `forget`).
        unsafe { std::slice::from_raw_parts(self.range.start as *const Desc, self.len) }
    }

    /// Keeps `desc` and returns its address.
    pub(super) fn keep(&mut self, desc: Desc) -> u64 {
        let address = self.address_of(self.len);
        assert!(address + Self::SIZE <= self.range.end, "there was room for a translation");
        if address + Self::SIZE > self.ready {
            let start = self.ready.max(address & !(PAGE - 1));
            self.ready = (start + Self::STEP).min(self.range.end);
            populate(start..self.ready);
        }
        // SAFETY: the place is in memory that is this arena's alone (`new`), behind all descriptors that
        // there are, and aligned as the range is: the size is a multiple of the alignment.
        unsafe { (address as *mut Desc).write(desc) };
        self.len += 1;
        address
    }

    /// Leaves the next places to some of kind [`Kind::Kept`], as long as nothing was kept here before.
    pub(super) fn leave_places(&mut self, count: usize) {
        self.len += count;
    }

    /// Puts a descriptor into a place that was left to it, before translated code refers to it.
    pub(super) fn put(&mut self, number: usize, desc: Desc) {
        assert!(number < self.len, "the place was left");
        let address = self.address_of(number);
        // SAFETY: the place is in the memory that is this arena's alone (`new`), which has room for `len`
        // descriptors, and it is aligned as in `keep`; nobody looks at it yet (the caller).
        unsafe { (address as *mut Desc).write(desc) };
    }

    /// Where a descriptor is, by its number.
    fn address_of(&self, number: usize) -> u64 {
        self.range.start + number as u64 * Self::SIZE
    }

    /// The number of the descriptor at an address.
    pub(super) fn number(&self, address: u64) -> usize {
        ((address - self.range.start) / Self::SIZE) as usize
    }

    /// Forgets all: nobody looks at one any more.
    pub(super) fn forget(&mut self) {
        self.len = 0;
    }
}
