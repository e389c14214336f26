//! Payloads: the parts of events that have no fixed size.

use crate::BlobId;
use serde::{Deserialize, Serialize};

/// What a system call was asked and what it did to guest memory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SyscallRecord {
    /// The six argument registers (rdi, rsi, rdx, r10, r8, r9).
    pub args: [u64; 6],
    /// What the kernel wrote, in the order in which replay must write it.
    pub writes: Vec<Write>,
    /// What the call did beyond that.
    pub effect: Effect,
}

/// Bytes that the kernel wrote to guest memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Write {
    /// First byte.
    pub address: u64,
    /// The bytes.
    #[serde(with = "bytes")]
    pub bytes: Vec<u8>,
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
    },
    /// The address space changed and replay repeats the change: the call itself is in the
    /// arguments; the result is its address. Of a mapped file the content is in a blob.
    Memory {
        /// Content of the new mapping, from its first byte; what lies beyond is zero.
        content: Option<BlobId>,
    },
    /// A thread was created.
    Clone {
        /// Its id in this trace.
        child: crate::ThreadId,
    },
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
