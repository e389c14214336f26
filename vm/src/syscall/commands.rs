//! Calls that are many: the commands of `ioctl`, `fcntl`, `futex`, `prctl` and their like.
//!
//! A command that has no row is refused by its number, except for `getsockopt` and others whose
//! arguments tell by themselves what is written.

use super::shape::Count::Just;
use super::shape::{Shape, bytes, capacity_at, object, sized, text};
use super::spec::Order::{Kernel, Local};
use super::spec::{Commands, Spec, answer, pass, refuse};
use libc::{c_int, flock, ifreq, msqid_ds, semid_ds, socklen_t, timespec, winsize};

const fn refused(nr: u16, code: i64, name: &'static str, why: &'static str) -> (u64, Spec) {
    (code as u64, refuse(nr, name, why))
}

const fn answered(nr: u16, code: i64, name: &'static str, errno: i32) -> (u64, Spec) {
    (code as u64, answer(nr, name, errno))
}

const fn row(nr: u16, code: i64, name: &'static str, signature: &'static str) -> (u64, Spec) {
    (code as u64, pass(nr, name, signature, Kernel))
}

/// The command needs the kernel to read what the argument points to.
const fn put(
    nr: u16,
    code: i64,
    name: &'static str,
    signature: &'static str,
    shapes: &'static [Shape],
) -> (u64, Spec) {
    (code as u64, pass(nr, name, signature, Kernel).reads(shapes))
}

/// The command fills in what the argument points to.
const fn get(
    nr: u16,
    code: i64,
    name: &'static str,
    signature: &'static str,
    shapes: &'static [Shape],
) -> (u64, Spec) {
    (code as u64, pass(nr, name, signature, Kernel).writes(shapes))
}

/// The command reads what the argument points to, and answers in its place.
const fn ask(
    nr: u16,
    code: i64,
    name: &'static str,
    signature: &'static str,
    shapes: &'static [Shape],
) -> (u64, Spec) {
    (code as u64, pass(nr, name, signature, Kernel).reads(shapes).writes(shapes))
}

/// The kernel's `termios` and `termios2`; the C library's is another one.
const TERMIOS: u32 = 36;
const TERMIOS2: u32 = 44;
const INT: &[Shape] = &[object::<c_int>(2)];
const LONG: &[Shape] = &[object::<u64>(2)];
const IFREQ: &[Shape] = &[object::<ifreq>(2)];

/// `ioctl(fd, command, argument)`.
#[rustfmt::skip]
pub(crate) static IOCTL: Commands = Commands {
    code: |args| u64::from(args[1] as u32),
    otherwise: None,
    rows: &[
        get(16, 0x0002, "ioctl FIGETBSZ", "dip", INT),
        row(16, 0x1261, "ioctl BLKFLSBUF", "di"),
        get(16, 0x1268, "ioctl BLKSSZGET", "dip", INT),
        get(16, 0x5401, "ioctl TCGETS", "dip", &[sized(2, TERMIOS)]),
        put(16, 0x5402, "ioctl TCSETS", "dip", &[sized(2, TERMIOS)]),
        put(16, 0x5403, "ioctl TCSETSW", "dip", &[sized(2, TERMIOS)]),
        put(16, 0x5404, "ioctl TCSETSF", "dip", &[sized(2, TERMIOS)]),
        row(16, 0x5409, "ioctl TCSBRK", "dii"),
        row(16, 0x540a, "ioctl TCXONC", "dii"),
        row(16, 0x540b, "ioctl TCFLSH", "dii"),
        row(16, 0x540c, "ioctl TIOCEXCL", "di"),
        row(16, 0x540d, "ioctl TIOCNXCL", "di"),
        row(16, 0x540e, "ioctl TIOCSCTTY", "dii"),
        get(16, 0x540f, "ioctl TIOCGPGRP", "dip", INT),
        put(16, 0x5410, "ioctl TIOCSPGRP", "dip", INT),
        get(16, 0x5411, "ioctl TIOCOUTQ", "dip", INT),
        refused(16, 0x5412, "ioctl TIOCSTI", "it types into the user's terminal"),
        get(16, 0x5413, "ioctl TIOCGWINSZ", "dip", &[object::<winsize>(2)]),
        put(16, 0x5414, "ioctl TIOCSWINSZ", "dip", &[object::<winsize>(2)]),
        get(16, 0x5415, "ioctl TIOCMGET", "dip", INT),
        put(16, 0x5416, "ioctl TIOCMBIS", "dip", INT),
        put(16, 0x5417, "ioctl TIOCMBIC", "dip", INT),
        put(16, 0x5418, "ioctl TIOCMSET", "dip", INT),
        get(16, 0x541b, "ioctl FIONREAD", "dip", INT),
        put(16, 0x5420, "ioctl TIOCPKT", "dip", INT),
        put(16, 0x5421, "ioctl FIONBIO", "dip", INT),
        row(16, 0x5422, "ioctl TIOCNOTTY", "di"),
        put(16, 0x5423, "ioctl TIOCSETD", "dip", INT),
        get(16, 0x5424, "ioctl TIOCGETD", "dip", INT),
        row(16, 0x5425, "ioctl TCSBRKP", "dii"),
        row(16, 0x5427, "ioctl TIOCSBRK", "di"),
        row(16, 0x5428, "ioctl TIOCCBRK", "di"),
        get(16, 0x5429, "ioctl TIOCGSID", "dip", INT),
        get(16, 0x802c_542a, "ioctl TCGETS2", "dip", &[sized(2, TERMIOS2)]),
        put(16, 0x402c_542b, "ioctl TCSETS2", "dip", &[sized(2, TERMIOS2)]),
        put(16, 0x402c_542c, "ioctl TCSETSW2", "dip", &[sized(2, TERMIOS2)]),
        put(16, 0x402c_542d, "ioctl TCSETSF2", "dip", &[sized(2, TERMIOS2)]),
        get(16, 0x8004_5430, "ioctl TIOCGPTN", "dip", INT),
        put(16, 0x4004_5431, "ioctl TIOCSPTLCK", "dip", INT),
        get(16, 0x8004_5438, "ioctl TIOCGPKT", "dip", INT),
        get(16, 0x8004_5439, "ioctl TIOCGPTLCK", "dip", INT),
        get(16, 0x8004_5440, "ioctl TIOCGEXCL", "dip", INT),
        row(16, 0x5441, "ioctl TIOCGPTPEER", "dii"),
        row(16, 0x5450, "ioctl FIONCLEX", "di"),
        row(16, 0x5451, "ioctl FIOCLEX", "di"),
        put(16, 0x5452, "ioctl FIOASYNC", "dip", INT),
        get(16, 0x5460, "ioctl FIOQSIZE", "dip", LONG),
        put(16, 0x8901, "ioctl FIOSETOWN", "dip", INT),
        put(16, 0x8902, "ioctl SIOCSPGRP", "dip", INT),
        get(16, 0x8903, "ioctl FIOGETOWN", "dip", INT),
        get(16, 0x8904, "ioctl SIOCGPGRP", "dip", INT),
        get(16, 0x8905, "ioctl SIOCATMARK", "dip", INT),
        get(16, 0x8906, "ioctl SIOCGSTAMP", "dip", &[sized(2, 16)]),
        get(16, 0x8907, "ioctl SIOCGSTAMPNS", "dip", &[sized(2, 16)]),
        ask(16, 0x8910, "ioctl SIOCGIFNAME", "dip", IFREQ),
        ask(16, 0x8913, "ioctl SIOCGIFFLAGS", "dip", IFREQ),
        ask(16, 0x8915, "ioctl SIOCGIFADDR", "dip", IFREQ),
        ask(16, 0x8917, "ioctl SIOCGIFDSTADDR", "dip", IFREQ),
        ask(16, 0x8919, "ioctl SIOCGIFBRDADDR", "dip", IFREQ),
        ask(16, 0x891b, "ioctl SIOCGIFNETMASK", "dip", IFREQ),
        ask(16, 0x891d, "ioctl SIOCGIFMETRIC", "dip", IFREQ),
        ask(16, 0x8921, "ioctl SIOCGIFMTU", "dip", IFREQ),
        ask(16, 0x8927, "ioctl SIOCGIFHWADDR", "dip", IFREQ),
        ask(16, 0x8933, "ioctl SIOCGIFINDEX", "dip", IFREQ),
        ask(16, 0x8942, "ioctl SIOCGIFTXQLEN", "dip", IFREQ),
        get(16, 0x8008_1272, "ioctl BLKGETSIZE64", "dip", LONG),
        // Declared for a `long`, but the kernel has always used an `int`.
        get(16, 0x8008_6601, "ioctl FS_IOC_GETFLAGS", "dip", INT),
        put(16, 0x4008_6602, "ioctl FS_IOC_SETFLAGS", "dip", INT),
        get(16, 0x8008_7601, "ioctl FS_IOC_GETVERSION", "dip", INT),
        get(16, 0x801c_581f, "ioctl FS_IOC_FSGETXATTR", "dip", &[sized(2, 28)]),
        put(16, 0x401c_5820, "ioctl FS_IOC_FSSETXATTR", "dip", &[sized(2, 28)]),
        row(16, 0x4004_9409, "ioctl FICLONE", "did"),
        put(16, 0x4020_940d, "ioctl FICLONERANGE", "dip", &[sized(2, 32)]),
    ],
};

/// `fcntl(fd, command, argument)`.
#[rustfmt::skip]
pub(crate) static FCNTL: Commands = Commands {
    code: |args| u64::from(args[1] as u32),
    otherwise: None,
    rows: &[
        row(72, 0, "fcntl F_DUPFD", "dil"),
        row(72, 1, "fcntl F_GETFD", "di"),
        row(72, 2, "fcntl F_SETFD", "dil"),
        row(72, 3, "fcntl F_GETFL", "di"),
        row(72, 4, "fcntl F_SETFL", "dil"),
        ask(72, 5, "fcntl F_GETLK", "dip", LOCK),
        put(72, 6, "fcntl F_SETLK", "dip", LOCK),
        put(72, 7, "fcntl F_SETLKW", "dip", LOCK),
        row(72, 8, "fcntl F_SETOWN", "dil"),
        row(72, 9, "fcntl F_GETOWN", "di"),
        row(72, 10, "fcntl F_SETSIG", "dil"),
        row(72, 11, "fcntl F_GETSIG", "di"),
        put(72, 15, "fcntl F_SETOWN_EX", "dip", LONG),
        get(72, 16, "fcntl F_GETOWN_EX", "dip", LONG),
        ask(72, 36, "fcntl F_OFD_GETLK", "dip", LOCK),
        put(72, 37, "fcntl F_OFD_SETLK", "dip", LOCK),
        put(72, 38, "fcntl F_OFD_SETLKW", "dip", LOCK),
        row(72, 1024, "fcntl F_SETLEASE", "dil"),
        row(72, 1025, "fcntl F_GETLEASE", "di"),
        row(72, 1026, "fcntl F_NOTIFY", "dil"),
        row(72, 1027, "fcntl F_DUPFD_QUERY", "dil"),
        row(72, 1028, "fcntl F_CREATED_QUERY", "di"),
        row(72, 1030, "fcntl F_DUPFD_CLOEXEC", "dil"),
        row(72, 1031, "fcntl F_SETPIPE_SZ", "dil"),
        row(72, 1032, "fcntl F_GETPIPE_SZ", "di"),
        row(72, 1033, "fcntl F_ADD_SEALS", "dil"),
        row(72, 1034, "fcntl F_GET_SEALS", "di"),
        get(72, 1035, "fcntl F_GET_RW_HINT", "dip", LONG),
        put(72, 1036, "fcntl F_SET_RW_HINT", "dip", LONG),
        get(72, 1037, "fcntl F_GET_FILE_RW_HINT", "dip", LONG),
        put(72, 1038, "fcntl F_SET_FILE_RW_HINT", "dip", LONG),
    ],
};
const LOCK: &[Shape] = &[object::<flock>(2)];

const TIMEOUT: &[Shape] = &[object::<timespec>(3)];
const WAKE_OP: &str = "its change of a word cannot be told from other threads' changes";

/// `futex(word, operation, value, timeout or value, word, value)`. The words themselves are
/// ordinary shared memory: a wait only compares, and the comparison's outcome is the result.
///
/// Priority-inheriting locks are absent, because the kernel itself would write the lock words:
/// `pthread_mutexattr_setprotocol` then leads to `ENOTSUP`, as on a kernel without them.
#[rustfmt::skip]
pub(crate) static FUTEX: Commands = Commands {
    // FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME change neither reads nor writes.
    code: |args| u64::from(args[1] as u32 & !(128 | 256)),
    otherwise: None,
    rows: &[
        put(202, 0, "futex FUTEX_WAIT", "piip", TIMEOUT),
        row(202, 1, "futex FUTEX_WAKE", "pii"),
        answered(202, 2, "futex FUTEX_FD", libc::ENOSYS),
        row(202, 3, "futex FUTEX_REQUEUE", "piiip"),
        row(202, 4, "futex FUTEX_CMP_REQUEUE", "piiipi"),
        refused(202, 5, "futex FUTEX_WAKE_OP", WAKE_OP),
        answered(202, 6, "futex FUTEX_LOCK_PI", libc::ENOSYS),
        answered(202, 7, "futex FUTEX_UNLOCK_PI", libc::ENOSYS),
        answered(202, 8, "futex FUTEX_TRYLOCK_PI", libc::ENOSYS),
        // The fifth argument is ignored, but the sixth is a mask.
        put(202, 9, "futex FUTEX_WAIT_BITSET", "piip-i", TIMEOUT),
        row(202, 10, "futex FUTEX_WAKE_BITSET", "pii--i"),
        answered(202, 11, "futex FUTEX_WAIT_REQUEUE_PI", libc::ENOSYS),
        answered(202, 12, "futex FUTEX_CMP_REQUEUE_PI", libc::ENOSYS),
        answered(202, 13, "futex FUTEX_LOCK_PI2", libc::ENOSYS),
    ],
};

/// `prctl(option, ...)`.
#[rustfmt::skip]
pub(crate) static PRCTL: Commands = Commands {
    code: |args| u64::from(args[0] as u32),
    otherwise: None,
    rows: &[
        row(157, 1, "prctl PR_SET_PDEATHSIG", "il"),
        get(157, 2, "prctl PR_GET_PDEATHSIG", "ip", OPTION_INT),
        row(157, 3, "prctl PR_GET_DUMPABLE", "i"),
        row(157, 4, "prctl PR_SET_DUMPABLE", "il"),
        row(157, 7, "prctl PR_GET_KEEPCAPS", "i"),
        row(157, 8, "prctl PR_SET_KEEPCAPS", "il"),
        put(157, 15, "prctl PR_SET_NAME", "ip", &[text(1)]),
        get(157, 16, "prctl PR_GET_NAME", "ip", &[bytes(1, Just(16))]),
        row(157, 21, "prctl PR_GET_SECCOMP", "i"),
        answered(157, 22, "prctl PR_SET_SECCOMP", libc::EINVAL),
        row(157, 23, "prctl PR_CAPBSET_READ", "il"),
        row(157, 24, "prctl PR_CAPBSET_DROP", "il"),
        get(157, 25, "prctl PR_GET_TSC", "ip", OPTION_INT),
        refused(157, 26, "prctl PR_SET_TSC", "the machine itself answers for the time stamp"),
        row(157, 27, "prctl PR_GET_SECUREBITS", "i"),
        row(157, 28, "prctl PR_SET_SECUREBITS", "il"),
        row(157, 29, "prctl PR_SET_TIMERSLACK", "il"),
        row(157, 30, "prctl PR_GET_TIMERSLACK", "i"),
        row(157, 33, "prctl PR_MCE_KILL", "ill"),
        row(157, 34, "prctl PR_MCE_KILL_GET", "i"),
        refused(157, 35, "prctl PR_SET_MM", "it moves what the machine itself laid out"),
        row(157, 36, "prctl PR_SET_CHILD_SUBREAPER", "il"),
        get(157, 37, "prctl PR_GET_CHILD_SUBREAPER", "ip", OPTION_INT),
        row(157, 38, "prctl PR_SET_NO_NEW_PRIVS", "illll"),
        row(157, 39, "prctl PR_GET_NO_NEW_PRIVS", "illll"),
        get(157, 40, "prctl PR_GET_TID_ADDRESS", "ip", &[object::<u64>(1)]),
        row(157, 41, "prctl PR_SET_THP_DISABLE", "illll"),
        row(157, 42, "prctl PR_GET_THP_DISABLE", "illll"),
        row(157, 47, "prctl PR_CAP_AMBIENT", "illll"),
        row(157, 52, "prctl PR_GET_SPECULATION_CTRL", "illll"),
        row(157, 53, "prctl PR_SET_SPECULATION_CTRL", "illll"),
        answered(157, 59, "prctl PR_SET_SYSCALL_USER_DISPATCH", libc::EINVAL),
        answered(157, 65, "prctl PR_SET_MDWE", libc::EINVAL),
        answered(157, 66, "prctl PR_GET_MDWE", libc::EINVAL),
        row(157, 0x5961_6d61, "prctl PR_SET_PTRACER", "il"),
        // A name for a mapping, which a kernel may be built without.
        answered(157, 0x5356_4d41, "prctl PR_SET_VMA", libc::EINVAL),
    ],
};
const OPTION_INT: &[Shape] = &[object::<c_int>(1)];

/// `getsockopt(fd, level, option, value, length)`: the length tells, whatever the option.
pub(crate) static GETSOCKOPT: Commands = Commands {
    code: |args| args[1] << 32 | u64::from(args[2] as u32),
    rows: &[refused(
        55,
        6 << 32 | 35,
        "getsockopt TCP_ZEROCOPY_RECEIVE",
        "it maps received data into the guest",
    )],
    otherwise: Some(
        pass(55, "getsockopt", "diipp", Kernel)
            .reads(&[object::<socklen_t>(4)])
            .writes(&[capacity_at(3, 4), object::<socklen_t>(4).always()]),
    ),
};

/// `clock_nanosleep(clock, flags, time, remaining)`: an absolute sleep ignores the last argument.
pub(crate) static CLOCK_NANOSLEEP: Commands = Commands {
    code: |args| args[1] & libc::TIMER_ABSTIME as u64,
    rows: &[(
        libc::TIMER_ABSTIME as u64,
        pass(230, "clock_nanosleep TIMER_ABSTIME", "iip", Local).reads(&[object::<timespec>(2)]),
    )],
    otherwise: Some(
        pass(230, "clock_nanosleep", "iipp", Local)
            .reads(&[object::<timespec>(2)])
            .writes(&[object::<timespec>(3).if_interrupted()]),
    ),
};

/// `personality(what)`: asking is free, changing would bind the recorder.
pub(crate) static PERSONALITY: Commands = Commands {
    code: |args| u64::from(args[0] as u32),
    rows: &[row(135, 0xffff_ffff, "personality", "i"), row(135, 0, "personality PER_LINUX", "i")],
    otherwise: None,
};

/// `semctl(id, number, command, argument)`.
pub(crate) static SEMCTL: Commands = Commands {
    code: |args| u64::from(args[2] as u32),
    otherwise: None,
    rows: &[
        row(66, 0, "semctl IPC_RMID", "iii"),
        put(66, 1, "semctl IPC_SET", "iiip", SEMAPHORES),
        get(66, 2, "semctl IPC_STAT", "iiip", SEMAPHORES),
        row(66, 11, "semctl GETPID", "iii"),
        row(66, 12, "semctl GETVAL", "iii"),
        refused(66, 13, "semctl GETALL", "how much it writes only the kernel knows"),
        row(66, 14, "semctl GETNCNT", "iii"),
        row(66, 15, "semctl GETZCNT", "iii"),
        row(66, 16, "semctl SETVAL", "iiii"),
        row(66, 17, "semctl SETALL", "iiip"),
    ],
};
const SEMAPHORES: &[Shape] = &[object::<semid_ds>(3)];

/// `msgctl(id, command, argument)`.
pub(crate) static MSGCTL: Commands = Commands {
    code: |args| u64::from(args[1] as u32),
    otherwise: None,
    rows: &[
        row(71, 0, "msgctl IPC_RMID", "ii"),
        put(71, 1, "msgctl IPC_SET", "iip", &[object::<msqid_ds>(2)]),
        get(71, 2, "msgctl IPC_STAT", "iip", &[object::<msqid_ds>(2)]),
    ],
};
