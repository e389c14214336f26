//! What a trace says about the recording as a whole.

use crate::BlobId;
use serde::{Deserialize, Serialize};

/// Written first, before the guest runs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Header {
    /// The command line, `argv[0]` first.
    pub argv: Vec<String>,
    /// Absolute path of the program.
    pub program: String,
    /// Working directory.
    pub cwd: String,
    /// `refrain` version that recorded.
    pub recorder: String,
    /// The machine: CPU model name, kernel release.
    pub machine: Machine,
    /// The features beyond x86-64-v2 that the guest's processor had, by their names in
    /// `/proc/cpuinfo`.
    pub processor: Vec<String>,
    /// Ticks of the time-stamp counter per second.
    pub tsc_hz: u64,
    /// Time-stamp counter when the recorder began; for the guest see [`crate::Trace::began`].
    pub tsc_start: u64,
    /// Wall-clock start, nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// Initial state of the main thread.
    pub entry: Entry,
    /// Initial mappings.
    pub mappings: Vec<Mapping>,
    /// Which accesses to shared memory are in the recorded order.
    pub order: Order,
}

/// Which accesses to shared memory are in the recorded order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Order {
    /// Locked instructions, and those of watched sites ([`CodeBlock::loads`]).
    #[default]
    Sync,
    /// Every access, but for those of a thread to what nobody else accesses.
    Stride,
    /// The same, and each access to what several threads access has its place in an order: of its
    /// own line.
    Leap,
    /// In one order of all of these.
    Global,
}

impl Order {
    /// All orders.
    pub const ALL: [Order; 4] = [Order::Sync, Order::Stride, Order::Leap, Order::Global];

    /// The name that users and texts have for it.
    pub fn name(self) -> &'static str {
        match self {
            Order::Sync => "sync",
            Order::Stride => "stride",
            Order::Leap => "leap",
            Order::Global => "global",
        }
    }

    /// Whether it is an order of every access.
    pub fn is_of_every_access(self) -> bool {
        self != Order::Sync
    }

    /// The order with this name.
    pub fn from_name(name: &str) -> Option<Order> {
        Order::ALL.into_iter().find(|order| order.name() == name)
    }
}

/// The machine that recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// CPU model name.
    pub cpu: String,
    /// Logical cores that the recorder could use.
    pub cores: u32,
    /// Kernel release.
    pub kernel: String,
    /// What handing a lock over takes there, if it has been measured. A replay in virtual time
    /// has nothing else from any machine.
    pub latencies: Option<Latencies>,
    /// What the recorder took there for a lock, if it has been measured.
    pub locking: Option<Locking>,
}

/// Measured latencies of a machine, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Latencies {
    /// From a store to the moment when a thread on another core that waits awake has seen it.
    pub handoff_ns: u64,
    /// From a wake-up call to the moment when the sleeping thread runs; 0 if only the other was
    /// measured.
    pub wake_ns: u64,
}

/// What taking and giving back a mutex takes that nobody else wants, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Locking {
    /// How long a program takes that is not recorded, for both.
    pub native_ns: u64,
    /// In a recorded program that does nothing under the mutex, how long after the lock's event the event of the
    /// release begins.
    pub held_ns: u64,
    /// If it then locks the mutex again at once, how long after the event of the release the next lock's begins.
    pub free_ns: u64,
}

/// Where and with which registers the main thread starts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Entry {
    /// First instruction (the dynamic linker's entry, if there is one).
    pub rip: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// First address of the program break.
    pub brk: u64,
}

/// A mapping that exists before the guest runs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Mapping {
    /// First byte, page-aligned.
    pub address: u64,
    /// Bytes, a multiple of the page size.
    pub len: u64,
    /// PROT_* bits as the guest believes them to be.
    pub prot: u32,
    /// What it shows; the rest is zero.
    pub content: Option<BlobId>,
    /// Where in the content the first byte is.
    pub offset: u64,
}

/// A file that the guest has mapped. The trace holds those of its pages that were touched.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MappedFile {
    /// Absolute path at the time of the recording.
    pub path: String,
    /// Bytes of the part that can be mapped.
    pub len: u64,
    /// When its content was changed last, in nanoseconds since 1970.
    pub modified_ns: u64,
}

/// A program that the recorded process executed in place of the one that it was.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Executed {
    /// Path of the program, as its module has it.
    pub program: String,
    /// Its command line.
    pub argv: Vec<String>,
    /// State of the thread that goes on, the only one.
    pub entry: Entry,
    /// All mappings of the process.
    pub mappings: Vec<Mapping>,
}

impl Executed {
    /// As the content of a blob.
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("serialization fails only for types of unknown length")
    }

    /// From the content of a blob; `None` if it is none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Executed> {
        postcard::from_bytes(bytes).ok()
    }
}

/// A module of the guest: a file whose code was mapped.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Module {
    /// Path as the guest opened it, made absolute.
    pub path: String,
    /// GNU build id, in hexadecimal, if the file has one.
    pub build_id: Option<String>,
    /// What to add to a virtual address of the file to get a guest address.
    pub bias: u64,
    /// First guest address of the module.
    pub start: u64,
    /// End of it (exclusive).
    pub end: u64,
    /// Library functions that were recorded as events: guest address and symbol name.
    pub hooks: Vec<(u64, String)>,
    /// Guest address ranges (end exclusive) that hold no data of the program's: segments that it
    /// cannot write, what is read-only after relocation, and the tables through which it calls
    /// libraries.
    pub constant: Vec<(u64, u64)>,
}

impl Module {
    /// What tells this build of the file from others: its build id or, where the linker gave it
    /// none, its name and the layout of its constant data, relative to where it lies.
    pub fn identity(&self) -> String {
        if let Some(id) = &self.build_id {
            return id.clone();
        }
        let mut digest = crc32fast::Hasher::new();
        let name = self.path.rsplit('/').next().unwrap_or_default();
        digest.update(name.as_bytes());
        for &(start, end) in &self.constant {
            digest.update(&start.wrapping_sub(self.start).to_le_bytes());
            digest.update(&end.wrapping_sub(start).to_le_bytes());
        }
        let span = self.end.wrapping_sub(self.start);
        format!("layout-{span:x}-{:08x}", digest.finalize())
    }
}

/// How the recorded run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ending {
    /// exit_group with this status.
    Exited(i32),
    /// Killed by this signal.
    Signaled(i32),
    /// The recorder was told to stop by this signal, while the guest was still running.
    Stopped(i32),
    /// Nobody knows: the recorder could not go on, or it was killed and the trace was repaired. The
    /// trace ends somewhere before the program did.
    Lost,
}

/// Written last. A trace without one was cut off, and so was one whose ending is
/// [`Ending::Lost`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Footer {
    /// How the run ended.
    pub ending: Ending,
    /// Time-stamp counter at the end.
    pub tsc_end: u64,
    /// Events of each thread, in the order of the ids.
    pub events: Vec<u64>,
    /// Native time that the guest's threads took on CPUs, in nanoseconds, where it is known.
    pub cpu_ns: u64,
    /// Output bytes (all descriptors).
    pub output_bytes: u64,
}

/// A block of executed code: a straight run of instructions that was entered at its first.
/// Blocks may overlap (a jump into the middle of a block starts another).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CodeBlock {
    /// Guest address of the first instruction.
    pub pc: u64,
    /// The instructions.
    #[serde(serialize_with = "in_one_go")]
    pub code: Vec<u8>,
    /// Offsets of the plain loads and stores in it that the recorder watched. Each execution of
    /// them is an event ([`crate::EventKind::SyncLoad`], [`crate::EventKind::SyncStore`]), or a
    /// load that an event counts ([`crate::Event::unrecorded`]).
    pub loads: Vec<u16>,
}

/// Bytes as what they are, which a format of serde's writes as it writes a sequence of numbers.
fn in_one_go<S: serde::Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}
