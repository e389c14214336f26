//! Payloads: the parts of events that have no fixed size.
//!
//! The payloads of consecutive events are a *stream*: for each event with
//! [`crate::HAS_PAYLOAD`], in order, the length of its record (`u32`, little-endian) and the
//! record in postcard's encoding. A stream is appended to on the guest's own threads, so
//! [`push`] copies each byte once.

use crate::BlobId;
use serde::{Deserialize, Serialize};

/// Bytes of the length before a record.
const PREFIX: usize = 4;

/// Appends `record` to a payload stream.
///
/// # Panics
/// If the record takes 4 GiB. One system call moves at most 2 GiB.
pub fn push(stream: &mut Vec<u8>, record: &SyscallRecord) {
    let start = stream.len();
    let bytes: usize = record.writes.iter().map(|w| w.bytes.len() + 16).sum();
    stream.reserve(PREFIX + 80 + bytes);
    stream.extend_from_slice(&[0; PREFIX]);
    postcard::serialize_with_flavor(record, Stream(stream))
        .expect("serialization into memory fails only for types of unknown length");
    let len =
        u32::try_from(stream.len() - start - PREFIX).expect("a system call moves less than 4 GiB");
    stream[start..start + PREFIX].copy_from_slice(&len.to_le_bytes());
}

/// Bytes of the first record of a stream with its prefix; `None` if the stream ends before it
/// does.
pub(crate) fn record_len(stream: &[u8]) -> Option<usize> {
    let len = u32::from_le_bytes(*stream.first_chunk()?) as usize + PREFIX;
    (len <= stream.len()).then_some(len)
}

/// Reads the first record of a stream. `None` if it is no record.
pub(crate) fn read(stream: &[u8]) -> Option<SyscallRecord> {
    let record = stream.get(PREFIX..record_len(stream)?)?;
    let (record, rest) = postcard::take_from_bytes(record).ok()?;
    rest.is_empty().then_some(record)
}

/// Lets postcard append to a borrowed vector, runs of bytes as one copy.
struct Stream<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Stream<'_> {
    type Output = ();

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(data);
        Ok(())
    }

    fn try_push(&mut self, data: u8) -> postcard::Result<()> {
        self.0.push(data);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// What a system call was asked and what it did to guest memory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SyscallRecord {
    /// The six argument registers (rdi, rsi, rdx, r10, r8, r9). Of a signal, the first one is the
    /// number of entries of system calls made by any thread before its handler began.
    pub args: [u64; 6],
    /// What the kernel wrote, in the order in which replay must write it.
    pub writes: Vec<Write>,
    /// What the call did beyond that.
    pub effect: Effect,
}

/// Bytes that the kernel wrote to guest memory. Of a call that changes a file: what memory shows of the
/// file from then on. No bytes say that the file ends at the latest where it is shown by this address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Write {
    /// First byte.
    pub address: u64,
    /// The bytes.
    #[serde(with = "bytes")]
    pub bytes: Vec<u8>,
}

/// A part of a blob. (Libraries are mapped piecemeal; the file is kept once.)
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Window {
    /// The blob.
    pub blob: BlobId,
    /// First byte in it.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// What replay must do besides writing bytes and returning the result.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Effect {
    /// Nothing.
    #[default]
    None,
    /// The guest sent bytes out of the process: `fd`, how many, and their CRC-32.
    Output {
        /// The file descriptor.
        fd: i32,
        /// Bytes taken by the kernel.
        len: u64,
        /// CRC-32 of them.
        crc: u32,
        /// The bytes, if they are known to race: a replay takes them from here. Else none.
        raced: Vec<u8>,
    },
    /// The address space changed and replay repeats the change: the call itself is in the
    /// arguments; the result is its address. Of a mapped file the content is in a blob.
    Memory {
        /// Content of the new mapping, from its first byte. The window is as long as what the mapping shows
        /// of the file: pages behind that are not there, as natively. Where the blob is shorter, the rest is
        /// zero, or among the writes.
        content: Option<Window>,
    },
    /// A thread was created.
    Clone {
        /// Its id in this trace.
        child: crate::ThreadId,
    },
    /// Another program was executed; a blob holds an [`crate::Executed`].
    Exec {
        /// The blob.
        image: BlobId,
    },
}

impl Effect {
    /// The thread that was created.
    pub fn child(&self) -> Option<crate::ThreadId> {
        match *self {
            Effect::Clone { child } => Some(child),
            _ => None,
        }
    }
}

/// Byte vectors as one run, not as a sequence of integers.
mod bytes {
    use serde::{Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl de::Visitor<'_> for Bytes {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: de::Error>(self, v: &[u8]) -> Result<Vec<u8>, E> {
                Ok(v.to_vec())
            }
        }
        d.deserialize_bytes(Bytes)
    }
}
