//! Shapes: where a call's arguments say that memory is, and how much of it.

use super::{Before, Nested};
use std::ops::Range;

/// Guest memory, to be read without trusting the address.
pub(crate) trait GuestMemory {
    /// Fills `into` from `address` on; false if any byte of it cannot be read.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
}

/// Memory that an argument points to. A null pointer means that there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The argument that points there.
    pub(crate) arg: u8,
    what: What,
    when: When,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// So many elements of so many bytes.
    Array { size: u32, count: Count },
    /// A text that ends with a zero byte, as long as it may be.
    Text,
    /// A message of System V: a `long`, then so many bytes.
    Tagged(Count),
    /// A byte for each page of the length in that argument.
    PageMap { len: u8 },
    /// A bit for each of the number in that argument, in whole words.
    BitSet { bits: u8 },
    /// An array of `iovec`, its length in that argument; as many bytes of the buffers, in their
    /// order, as the result tells.
    Vectors { count: u8 },
    /// A buffer whose capacity was at the address in that argument, where now the length is of
    /// what was to be put there.
    Sized { len: u8 },
    /// A `msghdr` that was received into.
    Received,
    /// An array of `mmsghdr` that were received into, its length in that argument; as many as the
    /// result tells.
    ReceivedMany { count: u8 },
    /// The buffers of a `msghdr` that was sent, as many bytes as the result tells.
    Sent,
    /// The buffers of an array of `mmsghdr`, as many as the result tells.
    SentMany,
    /// The lengths in an array of `mmsghdr`, as many as the result tells.
    SentLengths,
    /// What a command of `ioctl` says by its number: so many bytes, if these directions are in it.
    Encoded { code: u8, directions: u64 },
    /// An `ifconf`: its length, and the buffer that it points to.
    Interfaces,
    /// A `file_handle`: its first word tells how much follows.
    FileHandle,
    /// A header, and the records behind it.
    Counted(Records),
    /// An `iovec` and the buffer that it points to.
    OneVector,
    /// An array of addresses of `iocb`, its length in that argument, and what they have written.
    Operations { count: u8 },
    /// Capability sets, one or two by the version in the header in that argument.
    Capabilities { header: u8 },
}

/// A number of elements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    /// This many.
    Just(u32),
    /// What the argument says.
    Given(u8),
    /// What the result says, at most what the argument says.
    Taken(u8),
}

/// Records behind a header that says how many they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Records {
    /// Bytes of the header.
    pub(crate) header: u32,
    /// Offset in the header of the number of records, which has four bytes.
    pub(crate) count: u32,
    /// Offset in the header of the number of records that the caller has room for.
    pub(crate) room: u32,
    /// Bytes of a record.
    pub(crate) size: u32,
}

/// For which results a shape holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    /// Those that are no errors.
    Success,
    /// Those and `EINTR`.
    SuccessOrInterrupted,
    /// `EINTR` alone.
    Interrupted,
    /// All but `EFAULT`.
    Always,
}

/// One `T`, as the C library declares it, which is as the kernel does.
pub(crate) const fn object<T>(arg: u8) -> Shape {
    sized(arg, size_of::<T>() as u32)
}

/// So many bytes.
pub(crate) const fn sized(arg: u8, size: u32) -> Shape {
    array(arg, size, Count::Just(1))
}

/// A buffer.
pub(crate) const fn bytes(arg: u8, count: Count) -> Shape {
    array(arg, 1, count)
}

/// An array of elements of `size` bytes.
pub(crate) const fn array(arg: u8, size: u32, count: Count) -> Shape {
    shape(arg, What::Array { size, count })
}

/// A string, where the signature cannot say so because the argument is not always one.
pub(crate) const fn text(arg: u8) -> Shape {
    shape(arg, What::Text)
}

/// A System V message.
pub(crate) const fn tagged(arg: u8, count: Count) -> Shape {
    shape(arg, What::Tagged(count))
}

/// What `mincore` fills in about `args[len]` bytes.
pub(crate) const fn page_map(arg: u8, len: u8) -> Shape {
    shape(arg, What::PageMap { len })
}

/// A set of descriptors below `args[bits]`, or another bit set of that size.
pub(crate) const fn bit_set(arg: u8, bits: u8) -> Shape {
    shape(arg, What::BitSet { bits })
}

/// The buffers of `args[count]` vectors, up to the result.
pub(crate) const fn vectors(arg: u8, count: u8) -> Shape {
    shape(arg, What::Vectors { count })
}

/// A buffer whose capacity, then length is at `args[len]`. The length itself is a shape apart.
pub(crate) const fn capacity_at(arg: u8, len: u8) -> Shape {
    shape(arg, What::Sized { len })
}

/// A received `msghdr`: the parts of it that are written, the buffers, the name, the control
/// data.
pub(crate) const fn received(arg: u8) -> Shape {
    shape(arg, What::Received)
}

/// `args[count]` received `mmsghdr`.
pub(crate) const fn received_many(arg: u8, count: u8) -> Shape {
    shape(arg, What::ReceivedMany { count })
}

/// The buffers of a `msghdr`, up to the result.
pub(crate) const fn sent(arg: u8) -> Shape {
    shape(arg, What::Sent)
}

/// The buffers of as many `mmsghdr` as the result says, whole: how much of each message was taken
/// stands in memory only after the call, where a replay has not been when it compares them.
pub(crate) const fn sent_many(arg: u8) -> Shape {
    shape(arg, What::SentMany)
}

/// The lengths that sending as many `mmsghdr` as the result says leaves in them.
pub(crate) const fn sent_lengths(arg: u8) -> Shape {
    shape(arg, What::SentLengths)
}

/// The capability sets that go with the header in `args[header]`.
pub(crate) const fn capabilities(arg: u8, header: u8) -> Shape {
    shape(arg, What::Capabilities { header })
}

/// What a command of `ioctl` in `args[code]` has the kernel read.
pub(crate) const fn encoded_input(arg: u8, code: u8) -> Shape {
    shape(arg, What::Encoded { code, directions: 1 << 30 })
}

/// What a command of `ioctl` in `args[code]` has the kernel write.
pub(crate) const fn encoded_output(arg: u8, code: u8) -> Shape {
    shape(arg, What::Encoded { code, directions: 2 << 30 })
}

/// An `ifconf` that was filled in.
pub(crate) const fn interfaces(arg: u8) -> Shape {
    shape(arg, What::Interfaces)
}

/// A `file_handle`.
pub(crate) const fn file_handle(arg: u8) -> Shape {
    shape(arg, What::FileHandle)
}

/// A header and as many records as it says.
pub(crate) const fn counted(arg: u8, records: Records) -> Shape {
    shape(arg, What::Counted(records))
}

/// An `iovec` whose buffer was filled, and whose length says how far.
pub(crate) const fn one_vector(arg: u8) -> Shape {
    shape(arg, What::OneVector)
}

/// What is submitted by the addresses of `args[count]` `iocb`.
pub(crate) const fn operations(arg: u8, count: u8) -> Shape {
    shape(arg, What::Operations { count })
}

const fn shape(arg: u8, what: What) -> Shape {
    Shape { arg, what, when: When::Success }
}

impl Shape {
    /// Written too when a signal ended the call.
    pub(crate) const fn or_interrupted(mut self) -> Shape {
        self.when = When::SuccessOrInterrupted;
        self
    }

    /// Written only when a signal ended the call.
    pub(crate) const fn if_interrupted(mut self) -> Shape {
        self.when = When::Interrupted;
        self
    }

    /// Written whatever the call returned.
    pub(crate) const fn always(mut self) -> Shape {
        self.when = When::Always;
        self
    }

    /// The pointers that are there.
    pub(crate) fn nested(&self, args: &[u64; 6]) -> Option<Nested> {
        let at = usize::from(self.arg);
        match self.what {
            What::Vectors { count } => {
                Some(Nested::Vectors { at, count: args[usize::from(count)] })
            }
            What::OneVector => Some(Nested::Vectors { at, count: 1 }),
            What::Received | What::Sent => Some(Nested::Message { at }),
            _ => None,
        }
    }

    /// Whether it can ever say anything.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.what, What::Array { size: 0, .. })
    }

    /// Whether [`View::save`] has something to save for it. A row has at most one such shape, so
    /// that nobody need note which shape a saved value belongs to.
    #[cfg(test)]
    pub(crate) fn is_saved(&self) -> bool {
        matches!(self.what, What::Sized { .. } | What::Received | What::ReceivedMany { .. })
    }
}

impl When {
    fn holds(self, result: i64) -> bool {
        let interrupted = result == -i64::from(libc::EINTR);
        match self {
            When::Success => result >= 0,
            When::SuccessOrInterrupted => result >= 0 || interrupted,
            When::Interrupted => interrupted,
            When::Always => result != -i64::from(libc::EFAULT),
        }
    }
}

/// Offsets in the kernel's `msghdr` and `mmsghdr`.
mod msghdr {
    pub(super) const NAME: u64 = 0;
    pub(super) const NAME_LEN: u64 = 8;
    pub(super) const IOV: u64 = 16;
    pub(super) const IOV_LEN: u64 = 24;
    pub(super) const CONTROL: u64 = 32;
    pub(super) const CONTROL_LEN: u64 = 40;
    pub(super) const FLAGS: u64 = 48;
    /// In `mmsghdr`: how many bytes went through this message.
    pub(super) const BYTES: u64 = 56;
    pub(super) const MMSGHDR_SIZE: u64 = 64;
}

/// The kernel takes no more vectors or messages at once (`UIO_MAXIOV`).
const MAX_VECTORS: u64 = 1024;
/// More operations and bytes than anybody submits at once: others are not compared.
const MAX_OPERATIONS: u64 = 1 << 16;
const MOST_WRITTEN: u64 = 16 << 20;
/// No command of `ioctl` from before their numbers told sizes has more to say, but a few that have
/// rows of their own.
const MOST_OF_OLD: u64 = 256;
const PAGE: u64 = crate::layout::PAGE;

/// A call at one moment: before it is issued, or when it has returned.
pub(crate) struct View<'a> {
    pub(crate) args: &'a [u64; 6],
    pub(crate) result: i64,
    pub(crate) memory: &'a dyn GuestMemory,
}

impl View<'_> {
    /// Appends the ranges of all shapes that hold for the result. No range is empty.
    pub(crate) fn collect(&self, shapes: &[Shape], before: &Before, into: &mut Vec<Range<u64>>) {
        let mut saved = before.0.iter().copied();
        for shape in shapes {
            let address = self.args[usize::from(shape.arg)];
            if address != 0 && shape.when.holds(self.result) {
                self.ranges(shape.what, address, &mut saved, into);
            }
        }
        into.retain(|range| !range.is_empty());
    }

    /// Appends what [`View::collect`] will need to have seen before the call.
    pub(crate) fn save(&self, shape: &Shape, into: &mut Vec<u64>) {
        let address = self.args[usize::from(shape.arg)];
        if address == 0 {
            return;
        }
        match shape.what {
            What::Sized { len } => into.push(self.u32(self.arg(len))),
            What::Received => self.save_message(address, into),
            What::ReceivedMany { count } => {
                for i in 0..self.arg(count).min(MAX_VECTORS) {
                    self.save_message(address.wrapping_add(i * msghdr::MMSGHDR_SIZE), into);
                }
            }
            _ => {}
        }
    }

    fn save_message(&self, header: u64, into: &mut Vec<u64>) {
        into.push(self.u32(header.wrapping_add(msghdr::NAME_LEN)));
    }

    fn ranges(
        &self,
        what: What,
        address: u64,
        saved: &mut dyn Iterator<Item = u64>,
        into: &mut Vec<Range<u64>>,
    ) {
        let result = u64::try_from(self.result).unwrap_or(0);
        let messages = result.min(MAX_VECTORS);
        let message = |i: u64| address.wrapping_add(i * msghdr::MMSGHDR_SIZE);
        match what {
            What::Array { size, count } => {
                into.push(range(address, self.count(count).saturating_mul(u64::from(size))));
            }
            What::Text => into.extend(string(address, self.memory)),
            What::Tagged(count) => into.push(range(address, self.count(count).saturating_add(8))),
            What::PageMap { len } => into.push(range(address, self.arg(len).div_ceil(PAGE))),
            What::BitSet { bits } => {
                // A negative number of descriptors is an error, and then nothing is written.
                into.push(range(address, self.arg(bits).div_ceil(64).saturating_mul(8)));
            }
            What::Vectors { count } => self.vectors(address, self.arg(count), result, into),
            What::Sized { len } => {
                let capacity = saved.next().unwrap_or(0);
                into.push(range(address, capacity.min(self.u32(self.arg(len)))));
            }
            What::Received => self.received(address, result, saved.next(), into),
            What::ReceivedMany { .. } => {
                for header in (0..messages).map(message) {
                    let bytes = header.wrapping_add(msghdr::BYTES);
                    into.push(range(bytes, 4));
                    self.received(header, self.u32(bytes), saved.next(), into);
                }
            }
            What::Sent => self.buffers(address, result, into),
            What::SentMany => {
                for header in (0..messages).map(message) {
                    self.buffers(header, u64::MAX, into);
                }
            }
            What::SentLengths => into.extend(
                (0..messages)
                    .map(message)
                    .map(|header| range(header.wrapping_add(msghdr::BYTES), 4)),
            ),
            What::Encoded { code, directions } => {
                let code = self.arg(code);
                let len = match code >> 16 & 0x3fff {
                    // An old command, whose number says nothing.
                    0 if code >> 30 & 3 == 0 => MOST_OF_OLD,
                    _ if code & directions == 0 => 0,
                    len => len,
                };
                into.push(range(address, len));
            }
            What::Interfaces => {
                into.push(range(address, 4));
                into.push(range(self.u64(address.wrapping_add(8)), self.u32(address)));
            }
            What::FileHandle => into.push(range(address, self.u32(address).min(128) + 8)),
            What::Counted(Records { header, count, room, size }) => {
                let word = |at: u32| self.u32(address.wrapping_add(at.into()));
                let records = word(count).min(word(room)) * u64::from(size);
                into.push(range(address, u64::from(header) + records.min(MOST_WRITTEN)));
            }
            What::OneVector => {
                into.push(range(address, 16));
                into.push(range(self.u64(address), self.u64(address.wrapping_add(8)).min(1 << 20)));
            }
            What::Operations { count } => {
                let count = self.arg(count).min(MAX_OPERATIONS);
                into.push(range(address, 8 * count));
                for at in 0..count {
                    self.operation(self.u64(address.wrapping_add(8 * at)), into);
                }
            }
            What::Capabilities { header } => {
                // Version 1 has 32 capabilities; later ones have 64, in two structures.
                const VERSION_1: u64 = 0x1998_0330;
                let sets = if self.u32(self.arg(header)) == VERSION_1 { 1 } else { 2 };
                into.push(range(address, 12 * sets));
            }
        }
    }

    /// An `iocb`, and the buffers that it has written to a file.
    fn operation(&self, block: u64, into: &mut Vec<Range<u64>>) {
        const WRITE: u64 = 1;
        const WRITE_VECTORS: u64 = 8;
        let word = |at: u64| self.u64(block.wrapping_add(8 * at));
        let (buffer, len) = (word(3), word(4));
        into.push(range(block, 64));
        match word(2) & 0xffff {
            WRITE => into.push(range(buffer, len.min(MOST_WRITTEN))),
            WRITE_VECTORS => self.vectors(buffer, len, MOST_WRITTEN, into),
            _ => {}
        }
    }

    /// What receiving `len` bytes into a message wrote; `capacity` is what the name had room for.
    fn received(&self, header: u64, len: u64, capacity: Option<u64>, into: &mut Vec<Range<u64>>) {
        let at = |offset| header.wrapping_add(offset);
        let name = self.u64(at(msghdr::NAME));
        if name != 0 {
            let name_len = self.u32(at(msghdr::NAME_LEN)).min(capacity.unwrap_or(0));
            into.push(range(name, name_len));
            into.push(range(at(msghdr::NAME_LEN), 4));
        }
        let control = self.u64(at(msghdr::CONTROL));
        if control != 0 {
            into.push(range(control, self.u64(at(msghdr::CONTROL_LEN))));
        }
        into.push(range(at(msghdr::CONTROL_LEN), 8));
        into.push(range(at(msghdr::FLAGS), 4));
        self.buffers(header, len, into);
    }

    /// The first `limit` bytes of a message's buffers.
    fn buffers(&self, header: u64, limit: u64, into: &mut Vec<Range<u64>>) {
        let iov = self.u64(header.wrapping_add(msghdr::IOV));
        let count = self.u64(header.wrapping_add(msghdr::IOV_LEN));
        self.vectors(iov, count, limit, into);
    }

    fn vectors(&self, iov: u64, count: u64, mut limit: u64, into: &mut Vec<Range<u64>>) {
        for i in 0..count.min(MAX_VECTORS) {
            if limit == 0 {
                break;
            }
            let entry = iov.wrapping_add(i * 16);
            let len = self.u64(entry.wrapping_add(8)).min(limit);
            into.push(range(self.u64(entry), len));
            limit -= len;
        }
    }

    fn arg(&self, arg: u8) -> u64 {
        self.args[usize::from(arg)]
    }

    fn count(&self, count: Count) -> u64 {
        match count {
            Count::Just(n) => u64::from(n),
            Count::Given(arg) => self.arg(arg),
            Count::Taken(arg) => u64::try_from(self.result).unwrap_or(0).min(self.arg(arg)),
        }
    }

    /// The number at an address. Where the guest has no memory it is 0: the kernel could not read
    /// it either, so the call failed or had no use for it.
    fn u32(&self, address: u64) -> u64 {
        let mut bytes = [0; 4];
        if self.memory.read(address, &mut bytes) { u64::from(u32::from_le_bytes(bytes)) } else { 0 }
    }

    fn u64(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        if self.memory.read(address, &mut bytes) { u64::from_le_bytes(bytes) } else { 0 }
    }
}

/// `len` bytes from `address` on; empty if they would reach beyond the end of the address space.
fn range(address: u64, len: u64) -> Range<u64> {
    address..address.checked_add(len).unwrap_or(address)
}

/// A string with its zero byte, as far as a path can be long.
pub(crate) fn string(address: u64, memory: &dyn GuestMemory) -> Option<Range<u64>> {
    const LONGEST: u64 = 4096;
    let mut at = address;
    let mut chunk = [0; 64];
    while address != 0 && at - address < LONGEST {
        // Aligned chunks, so that none reaches into a page that may be missing. Of memory in common with other
        // processes, a replay has the string, and nothing behind it: byte by byte, then.
        let mut len = 64 - (at % 64) as usize;
        if !memory.read(at, &mut chunk[..len]) {
            len = 1;
            if !memory.read(at, &mut chunk[..1]) {
                return None;
            }
        }
        if let Some(end) = chunk[..len].iter().position(|byte| *byte == 0) {
            return Some(address..at.checked_add(end as u64 + 1)?);
        }
        at = at.checked_add(len as u64)?;
    }
    None
}
