//! Order slots: the counters that give out tickets.
//!
//! An object's counter is found by hashing its address into a fixed table. Two objects in one
//! slot are ordered a little more strictly than the program asked for, which is still the order
//! that really happened; in return the table never grows and a look-up is three instructions.

use crate::payload::{Effect, SyscallRecord};
use crate::{Event, EventKind, common};

/// Slots of a table, a power of two.
pub const SLOTS: usize = 1 << 16;

/// The slot of system-call entries.
pub const SYSCALL_SLOT: usize = 0;

/// The slot of changes to the address space (mmap and its kin).
pub const MEMORY_SLOT: usize = 1;

/// The slot of threads: their creation, start, end and joining are in one order, because the
/// library reuses the stacks of threads that have ended.
pub const THREADS_SLOT: usize = 2;

/// The object of [`EventKind::ThreadCreate`]: the set of all threads.
pub const THREADS: u64 = 0xffff;

/// First slot of threads' accesses ([`accesses_object`]), which nothing else shares: what others take
/// over from a thread while it is in a system call is in its stream before the call, whose place is from
/// before that. So it must not wait for anybody else.
const ACCESSES_SLOT: usize = 8;

/// How many these are, that of [`ENDED_ACCESSES`] included. Only threads whose numbers are that far apart
/// share one.
const ACCESSES_SLOTS: usize = 1 << 10;

/// First slot that addresses hash into.
const FIRST: usize = ACCESSES_SLOT + ACCESSES_SLOTS;

/// The slot of the object at `address`. Part of the format: tickets of a trace mean nothing
/// under another function. Addresses in the same eight bytes have the same slot, so that an access of
/// eight bytes is ordered against accesses of its halves.
#[inline]
pub fn slot(address: u64) -> usize {
    if address <= THREADS {
        return THREADS_SLOT;
    }
    if address >= ACCESSES {
        let last = ACCESSES_SLOTS - 1;
        let number = (address - ACCESSES) as usize >> 4;
        return ACCESSES_SLOT + if address == ENDED_ACCESSES { last } else { number % last };
    }
    let hash = (address >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    let hash = hash as usize;
    if hash < FIRST { hash | (SLOTS / 2) } else { hash }
}

/// The object that stands for a thread in events about it (create, join, exit). Lies below any
/// address that a program can map.
pub fn thread_object(thread: crate::ThreadId) -> u64 {
    u64::from(thread.0) + 1
}

/// Where the objects of [`accesses_object`] begin: above any address that a program can map.
const ACCESSES: u64 = 1 << 62;

/// The object that stands for a thread's accesses, in events of [`crate::Order::Stride`].
pub fn accesses_object(thread: crate::ThreadId) -> u64 {
    ACCESSES | u64::from(thread.0) << 4
}

/// The thread whose accesses an object stands for. `None` if it is no such object, or
/// [`ENDED_ACCESSES`].
pub fn thread_of_accesses(object: u64) -> Option<crate::ThreadId> {
    let thread = crate::ThreadId(u32::try_from((object & !ACCESSES) >> 4).ok()?);
    (accesses_object(thread) == object).then_some(thread)
}

/// The object that stands for everything that several threads access, in events of
/// [`crate::Order::Global`]. Lies above any address that a program can map.
pub const ALL_ACCESSES: u64 = 1 << 60;

/// The object that stands for the accesses of all threads that have ended.
pub const ENDED_ACCESSES: u64 = ACCESSES | 1 << 40;

/// The slot that `event` takes its ticket from; `None` if it takes none. `payload` is the
/// event's, if it has one.
pub fn slot_of(event: &Event, payload: Option<&SyscallRecord>) -> Option<usize> {
    if !event.has_ticket() || matches!(event.kind(), EventKind::SyncLoad | EventKind::Takeover) {
        return None;
    }
    match event.kind() {
        EventKind::Syscall => {}
        EventKind::Common if [common::AREAS, common::FAULT].contains(&event.nr) => {
            return Some(MEMORY_SLOT);
        }
        _ => return Some(slot(event.object)),
    }
    match payload.map(|record| &record.effect) {
        Some(Effect::Memory { .. }) => Some(MEMORY_SLOT),
        _ => Some(SYSCALL_SLOT),
    }
}

/// The least number of tickets of a slot that must have been given out when `event` goes on,
/// beside its own ticket: a wake-up comes after the signal, a result after the calls that it
/// may depend on, a signal after the call that sent it. `None` if the event has no such bound.
/// `payload` is the event's, if it has one.
pub fn bound_of(event: &Event, payload: Option<&SyscallRecord>) -> Option<(usize, u64)> {
    match event.kind() {
        EventKind::SyncLoad | EventKind::Takeover if event.has_ticket() => {
            Some((slot(event.object), event.ticket))
        }
        EventKind::CondWaitEnd => Some((slot(event.value), event.aux)),
        EventKind::Syscall => Some((SYSCALL_SLOT, event.aux)),
        EventKind::Signal => payload.map(|record| (SYSCALL_SLOT, record.args[0])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ThreadId;

    /// A locked instruction of eight bytes is ordered against accesses of its halves.
    #[test]
    fn the_bytes_of_a_word_share_a_slot() {
        assert!((0x1000_0000..0x1000_0008).all(|at| slot(at) == slot(0x1000_0000)));
        assert_ne!(slot(0x1000_0000), slot(0x1000_0008));
    }

    #[test]
    fn accesses_share_no_slot_with_anything_else() {
        let slots = ACCESSES_SLOT..FIRST;
        let threads = (0..5000).map(|thread| accesses_object(ThreadId(thread)));
        let own: Vec<usize> = threads.chain([ENDED_ACCESSES]).map(slot).collect();
        assert!(own.iter().all(|slot| slots.contains(slot)));
        assert!(own[1..1000].iter().all(|&slot| slot != own[0] && slot != own[5000]));
        assert!((0..1 << 20).all(|at| !slots.contains(&slot(at << 6))));
        assert!((0..1 << 20).all(|at| slot(at << 2) < SLOTS));
    }

    #[test]
    fn the_object_of_accesses_names_the_thread() {
        for thread in [0, 1, 5000].map(ThreadId) {
            assert_eq!(thread_of_accesses(accesses_object(thread)), Some(thread));
        }
        assert_eq!([ENDED_ACCESSES, ALL_ACCESSES, 0x1000].map(thread_of_accesses), [None; 3]);
    }
}
