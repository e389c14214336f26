//! What glibc keeps in a `pthread_mutex_t`. The layout is part of its ABI. `word` reads four bytes.

/// The kind, with flags.
pub(crate) const KIND: u64 = 16;
/// `PTHREAD_MUTEX_RECURSIVE`, among the kinds without flags.
pub(crate) const RECURSIVE: u32 = 1;

/// Whether a mutex of this kind may be locked again by the thread that holds it.
pub(crate) fn is_recursive(kind: u32) -> bool {
    const KINDS: u32 = 3;
    kind & KINDS == RECURSIVE
}

/// Whether a mutex has a priority ceiling (`PTHREAD_PRIO_PROTECT`). musl has no such mutexes.
pub(crate) fn has_ceiling(mutex: u64, word: impl FnOnce(u64) -> Option<u64>) -> bool {
    const CEILING: u64 = 0x40;
    const HIGHEST: u64 = 0x3ff;
    let kind = word(mutex.wrapping_add(KIND));
    kind.is_some_and(|kind| kind <= HIGHEST && kind & CEILING != 0)
}

/// How often the thread that holds a mutex has to unlock it.
pub(crate) fn depth(mutex: u64, word: impl Fn(u64) -> Option<u64>) -> u64 {
    const COUNT: u64 = 4;
    match word(mutex.wrapping_add(KIND)) {
        Some(kind) if is_recursive(kind as u32) => {
            word(mutex.wrapping_add(COUNT)).unwrap_or(1).max(1)
        }
        _ => 1,
    }
}
