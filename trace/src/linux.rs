//! System calls of Linux on x86-64, as far as who reads a trace must tell them apart: their numbers
//! and the classes that they fall into. What they do to a guest's memory is the machine's table.

use crate::Event;
use std::ops::Range;

macro_rules! calls {
    ($($name:ident = $number:literal),* $(,)?) => {
        $(
            #[doc = concat!("The number of a call: ", stringify!($name), ".")]
            pub const $name: u16 = $number;
        )*
        /// All numbers that have a name here, with these names.
        pub const NUMBERS: &[(u16, &str)] = &[$(($number, stringify!($name))),*];
    };
}

calls! {
    READ = 0, WRITE = 1, OPEN = 2, CLOSE = 3, POLL = 7, MMAP = 9, MPROTECT = 10, MUNMAP = 11,
    BRK = 12, RT_SIGACTION = 13, PREAD64 = 17, PWRITE64 = 18, READV = 19, WRITEV = 20, PIPE = 22,
    SELECT = 23, SCHED_YIELD = 24, MREMAP = 25, MADVISE = 28, SHMAT = 30, DUP = 32, DUP2 = 33,
    PAUSE = 34, NANOSLEEP = 35, ALARM = 37, SETITIMER = 38, SENDFILE = 40, SOCKET = 41,
    CONNECT = 42, ACCEPT = 43, SENDTO = 44, RECVFROM = 45, SENDMSG = 46, RECVMSG = 47,
    SHUTDOWN = 48, SOCKETPAIR = 53, CLONE = 56, FORK = 57, WAIT4 = 61, KILL = 62, SEMOP = 65,
    SHMDT = 67, MSGSND = 69, MSGRCV = 70, FCNTL = 72, FLOCK = 73, FSYNC = 74, FDATASYNC = 75,
    CREAT = 85, GETTIMEOFDAY = 96, RT_SIGTIMEDWAIT = 128, RT_SIGQUEUEINFO = 129, RT_SIGSUSPEND = 130,
    ARCH_PRCTL = 158, SYNC = 162, TKILL = 200, TIME = 201, FUTEX = 202, IO_SETUP = 206,
    IO_GETEVENTS = 208, IO_SUBMIT = 209, SEMTIMEDOP = 220, TIMER_SETTIME = 223, CLOCK_GETTIME = 228,
    CLOCK_GETRES = 229, CLOCK_NANOSLEEP = 230, EPOLL_WAIT = 232, EPOLL_CTL = 233, TGKILL = 234,
    MQ_TIMEDSEND = 242, MQ_TIMEDRECEIVE = 243, WAITID = 247, OPENAT = 257, PSELECT6 = 270,
    PPOLL = 271, SPLICE = 275, SYNC_FILE_RANGE = 277, EPOLL_PWAIT = 281, EVENTFD = 284,
    ACCEPT4 = 288, EVENTFD2 = 290, DUP3 = 292, PIPE2 = 293, PREADV = 295, PWRITEV = 296,
    RT_TGSIGQUEUEINFO = 297, RECVMMSG = 299, SENDMMSG = 307, GETCPU = 309, MEMFD_CREATE = 319,
    PREADV2 = 327, PWRITEV2 = 328, CLONE3 = 435, OPENAT2 = 437, PIDFD_GETFD = 438, EPOLL_PWAIT2 = 441,
}

/// The thread pointer that a call sets for its thread.
pub fn sets_thread_pointer(number: u16, args: &[u64; 6]) -> Option<u64> {
    const ARCH_SET_FS: u64 = 0x1002;
    (number == ARCH_PRCTL && args[0] == ARCH_SET_FS).then_some(args[1])
}

/// Whether calls with this number spend their time waiting, off the core.
///
/// The time of a system call is either the kernel's work, done on the thread's core, or waiting
/// for something outside (a device, a peer, a timer), during which another thread may have the
/// core. A trace holds the duration alone, so the number of the call decides (but for calls that
/// wake others: [`wakes`]). With as many cores as threads the distinction changes accounts only, no
/// time.
pub fn waits_off_core(number: u16) -> bool {
    let reads = matches!(number, READ | PREAD64 | READV | PREADV | PREADV2);
    let waits_for_signals = matches!(number, PAUSE | RT_SIGTIMEDWAIT | RT_SIGSUSPEND);
    let polls = polls(number) || number == IO_GETEVENTS;
    let receives = matches!(number, CONNECT | ACCEPT | ACCEPT4 | RECVFROM | RECVMSG | RECVMMSG);
    let waits_for_others = matches!(number, WAIT4 | WAITID | FUTEX | SEMOP | SEMTIMEDOP);
    let takes_messages = matches!(number, MSGRCV | MQ_TIMEDRECEIVE);
    let stores = matches!(number, FLOCK | FSYNC | FDATASYNC | SYNC | SYNC_FILE_RANGE | IO_SUBMIT);
    let for_others = waits_for_signals || waits_for_others || receives || takes_messages;
    sleeps(number) || reads || polls || for_others || stores
}

/// Whether calls with this number sleep for a time that they name.
pub fn sleeps(number: u16) -> bool {
    matches!(number, NANOSLEEP | CLOCK_NANOSLEEP)
}

/// Whether a call lets other threads have the core, and returns.
pub fn yields(number: u16) -> bool {
    number == SCHED_YIELD
}

/// Whether the C library answers a call without the kernel, by code that the kernel has given it (the vDSO).
pub fn needs_no_kernel(number: u16) -> bool {
    matches!(number, CLOCK_GETTIME | CLOCK_GETRES | GETTIMEOFDAY | TIME | GETCPU)
}

/// Whether calls with this number may create a thread.
pub fn creates_threads(number: u16) -> bool {
    matches!(number, CLONE | CLONE3)
}

/// Whether calls with this number may change the address space.
pub fn changes_mappings(number: u16) -> bool {
    matches!(number, MMAP | MPROTECT | MUNMAP | BRK | MREMAP | MADVISE | SHMAT | SHMDT | IO_SETUP)
}

/// The memory that a call of this number has taken from the address space, if it has succeeded with this
/// result: what it unmaps, or maps something else in place of.
pub fn unmapped(number: u16, args: &[u64; 6], result: u64) -> Option<Range<u64>> {
    const MAP_FIXED: u64 = 0x10;
    let [start, len, new_len, flags, ..] = *args;
    match number {
        MUNMAP => Some(start..start.saturating_add(len)),
        MMAP if flags & MAP_FIXED != 0 => Some(start..start.saturating_add(len)),
        MREMAP if result == start => Some(start.saturating_add(new_len)..start.saturating_add(len)),
        MREMAP => Some(start..start.saturating_add(len)),
        _ => None,
    }
}

/// Whether the kernel writes to a file or a peer what calls with this number have in one buffer:
/// their second argument, of the length that their result says.
pub fn writes_a_buffer(number: u16) -> bool {
    matches!(number, WRITE | PWRITE64 | SENDTO)
}

/// Whether calls with this number may hand something to who receives it: bytes, or that there will be
/// no more; or, of a set of descriptors, what comes with those that are ready.
pub fn sends(number: u16) -> bool {
    let writes = matches!(number, WRITE | PWRITE64 | WRITEV | PWRITEV | PWRITEV2);
    let to_peers = matches!(number, SENDTO | SENDMSG | SENDMMSG | SHUTDOWN | CLOSE | CONNECT);
    let copies = matches!(number, SENDFILE | SPLICE);
    let messages = matches!(number, MSGSND | MQ_TIMEDSEND | SEMOP | SEMTIMEDOP | FLOCK);
    writes || to_peers || copies || messages || number == EPOLL_CTL
}

/// Whether calls with this number may receive what others send ([`sends`]), or wait for it.
pub fn receives(number: u16) -> bool {
    let reads = matches!(number, READ | PREAD64 | READV | PREADV | PREADV2);
    let from_peers = matches!(number, ACCEPT | ACCEPT4 | RECVFROM | RECVMSG | RECVMMSG);
    let copies = matches!(number, SENDFILE | SPLICE);
    let messages = matches!(number, MSGRCV | MQ_TIMEDRECEIVE | SEMOP | SEMTIMEDOP | FLOCK);
    reads || polls(number) || from_peers || copies || messages
}

/// Whether calls with this number wait for any of several descriptors.
pub fn polls(number: u16) -> bool {
    let several = matches!(number, POLL | SELECT | PSELECT6 | PPOLL);
    several || matches!(number, EPOLL_WAIT | EPOLL_PWAIT | EPOLL_PWAIT2)
}

/// Whether bytes go through the descriptor that calls with this number have as their first argument.
pub fn uses_a_descriptor(number: u16) -> bool {
    let several = matches!(number, POLL | SELECT | PSELECT6 | PPOLL);
    let queues = matches!(number, MSGSND | MSGRCV | SEMOP | SEMTIMEDOP);
    (sends(number) || receives(number)) && !several && !queues && number != CLOSE
}

/// Whether calls with this number make signals come later: they say who handles them, or when to send
/// them.
pub fn prepares_signals(number: u16) -> bool {
    matches!(number, RT_SIGACTION | ALARM | SETITIMER | TIMER_SETTIME)
}

/// Whether calls with this number send signals.
pub fn sends_signals(number: u16) -> bool {
    matches!(number, KILL | RT_SIGQUEUEINFO | TKILL | TGKILL | RT_TGSIGQUEUEINFO)
}

/// Whether a [`FUTEX`] call with this operation sleeps on the word that its first argument names:
/// `FUTEX_WAIT`, `FUTEX_LOCK_PI` and `FUTEX_WAIT_BITSET`, whatever flags come with them.
pub fn futex_waits(operation: u64) -> bool {
    const COMMAND: u64 = 0x7f;
    matches!(operation & COMMAND, 0 | 6 | 9)
}

/// Whether a [`FUTEX`] call with this operation wakes those who sleep on the word that its first
/// argument names: `FUTEX_WAKE` and `FUTEX_WAKE_BITSET`.
pub fn futex_wakes(operation: u64) -> bool {
    const COMMAND: u64 = 0x7f;
    matches!(operation & COMMAND, 1 | 10)
}

/// A way to be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Means {
    /// By a futex.
    Futex,
    /// By a signal.
    Signal,
}

/// By which means a call wakes other threads, if it does.
pub fn wakes(call: &Event) -> Option<Means> {
    match (call.nr, call.value as i64) {
        // One that waits returns nothing above zero.
        (FUTEX, 1..) => Some(Means::Futex),
        (number, 0) if sends_signals(number) => Some(Means::Signal),
        _ => None,
    }
}

/// By which means a call that returned so was woken, if it was.
pub fn is_woken(call: &Event) -> Option<Means> {
    const EINTR: i64 = -4;
    match (call.nr, call.value as i64) {
        (FUTEX, 0) => Some(Means::Futex),
        // It returns the signal; the others are interrupted.
        (RT_SIGTIMEDWAIT, 1..) | (PAUSE | RT_SIGSUSPEND, EINTR) => Some(Means::Signal),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_told_from_work() {
        let waits = |call: &&(u16, &str)| waits_off_core(call.0);
        let names: Vec<&str> = NUMBERS.iter().filter(waits).map(|(_, name)| *name).collect();
        let expected = "READ POLL PREAD64 READV SELECT PAUSE NANOSLEEP CONNECT ACCEPT RECVFROM \
            RECVMSG WAIT4 SEMOP MSGRCV FLOCK FSYNC FDATASYNC RT_SIGTIMEDWAIT RT_SIGSUSPEND SYNC \
            FUTEX IO_GETEVENTS IO_SUBMIT SEMTIMEDOP CLOCK_NANOSLEEP EPOLL_WAIT MQ_TIMEDRECEIVE WAITID \
            PSELECT6 PPOLL SYNC_FILE_RANGE EPOLL_PWAIT ACCEPT4 PREADV RECVMMSG PREADV2 \
            EPOLL_PWAIT2";
        assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
    }
}
