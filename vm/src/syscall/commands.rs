//! Calls that are many: the commands of `ioctl`, `fcntl`, `futex`, `prctl` and their like.
//!
//! A command that has no row is passed on as its number says (`ioctl`), by what all commands have
//! in common (`getsockopt`), or as one that has no output: the kernel does not know it either.

use super::shape::Count::{Given, Just, Taken};
use super::shape::{
    Records, Shape, array, bytes, capacity_at, counted, encoded_input, encoded_output, interfaces,
    object, one_vector, sized, text, vectors,
};
use super::spec::Order::{Kernel, Local};
use super::spec::{Commands, MachineCall, Spec, answer, machine, pass, refuse};
use libc::{c_int, flock, ifreq, msqid_ds, semid_ds, shmid_ds, socklen_t, timespec, winsize};

const fn refused(nr: u16, code: i64, name: &'static str, why: &'static str) -> (u64, Spec) {
    (code as u64, refuse(nr, name, why))
}

const fn answered(nr: u16, code: i64, name: &'static str, errno: i32) -> (u64, Spec) {
    (code as u64, answer(nr, name, errno))
}

const fn withheld_as(nr: u16, code: i64, name: &'static str, errno: i32) -> (u64, Spec) {
    (code as u64, answer(nr, name, errno).noted())
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

/// The command reads some of what its arguments point to, and writes some.
const fn ask_with(
    nr: u16,
    code: i64,
    name: &'static str,
    signature: &'static str,
    (reads, writes): (&'static [Shape], &'static [Shape]),
) -> (u64, Spec) {
    (code as u64, pass(nr, name, signature, Kernel).reads(reads).writes(writes))
}

/// The kernel's `termios` and `termios2`; the C library's is another one.
const TERMIOS: u32 = 36;
const TERMIOS2: u32 = 44;
/// `termio`, of before POSIX.
const TERMIO: u32 = 18;
/// `rtentry` and `arpreq`.
const ROUTE: u32 = 120;
const ARP: u32 = 68;
const INT: &[Shape] = &[object::<c_int>(2)];
const LONG: &[Shape] = &[object::<u64>(2)];
const IFREQ: &[Shape] = &[object::<ifreq>(2)];

macro_rules! quota_commands {
    ($nr:literal, $name:literal, $signature:literal) => {
        Commands {
            code: |args| u64::from(args[0] as u32 >> 8),
            otherwise: Some(pass($nr, $name, $signature, Kernel)),
            rows: &[
                get($nr, 0x80_0004, $name, $signature, &[object::<c_int>(3)]),
                get($nr, 0x80_0005, $name, $signature, &[sized(3, 24)]),
                put($nr, 0x80_0006, $name, $signature, &[sized(3, 24)]),
                get($nr, 0x80_0007, $name, $signature, &[sized(3, 72)]),
                put($nr, 0x80_0008, $name, $signature, &[sized(3, 72)]),
                get($nr, 0x80_0009, $name, $signature, &[sized(3, 80)]),
                get($nr, 0x5803, $name, $signature, &[sized(3, 112)]),
                put($nr, 0x5804, $name, $signature, &[sized(3, 112)]),
                get($nr, 0x5805, $name, $signature, &[sized(3, 80)]),
                get($nr, 0x5808, $name, $signature, &[sized(3, 160)]),
                get($nr, 0x5809, $name, $signature, &[sized(3, 112)]),
            ],
        }
    };
}

/// `file_dedupe_range` and its `file_dedupe_range_info`.
const DUPLICATES: Records = Records { header: 24, count: 16, room: 16, size: 32 };
/// `fiemap` and its `fiemap_extent`.
const EXTENTS: Records = Records { header: 32, count: 20, room: 24, size: 56 };
/// `fsmap_head` and its `fsmap`.
const BLOCKS: Records = Records { header: 192, count: 12, room: 8, size: 64 };

/// `ioctl(fd, command, argument)`.
#[rustfmt::skip]
pub(crate) static IOCTL: Commands = Commands {
    code: |args| u64::from(args[1] as u32),
    // What a driver's command does beyond what its number says, only the driver knows.
    otherwise: Some(
        pass(16, "ioctl", "dip", Kernel)
            .reads(&[encoded_input(2, 1)])
            .writes(&[encoded_output(2, 1)])
            .noted(),
    ),
    rows: &[
        get(16, 0x0001, "ioctl FIBMAP", "dip", INT),
        get(16, 0x0002, "ioctl FIGETBSZ", "dip", INT),
        row(16, 0x1261, "ioctl BLKFLSBUF", "di"),
        get(16, 0x1268, "ioctl BLKSSZGET", "dip", INT),
        get(16, 0x5401, "ioctl TCGETS", "dip", &[sized(2, TERMIOS)]),
        put(16, 0x5402, "ioctl TCSETS", "dip", &[sized(2, TERMIOS)]),
        put(16, 0x5403, "ioctl TCSETSW", "dip", &[sized(2, TERMIOS)]),
        put(16, 0x5404, "ioctl TCSETSF", "dip", &[sized(2, TERMIOS)]),
        get(16, 0x5405, "ioctl TCGETA", "dip", &[sized(2, TERMIO)]),
        put(16, 0x5406, "ioctl TCSETA", "dip", &[sized(2, TERMIO)]),
        put(16, 0x5407, "ioctl TCSETAW", "dip", &[sized(2, TERMIO)]),
        put(16, 0x5408, "ioctl TCSETAF", "dip", &[sized(2, TERMIO)]),
        row(16, 0x5409, "ioctl TCSBRK", "dii"),
        row(16, 0x540a, "ioctl TCXONC", "dii"),
        row(16, 0x540b, "ioctl TCFLSH", "dii"),
        row(16, 0x540c, "ioctl TIOCEXCL", "di"),
        row(16, 0x540d, "ioctl TIOCNXCL", "di"),
        row(16, 0x540e, "ioctl TIOCSCTTY", "dii"),
        get(16, 0x540f, "ioctl TIOCGPGRP", "dip", INT),
        put(16, 0x5410, "ioctl TIOCSPGRP", "dip", INT),
        get(16, 0x5411, "ioctl TIOCOUTQ", "dip", INT),
        put(16, 0x5412, "ioctl TIOCSTI", "dip", &[sized(2, 1)]),
        get(16, 0x5413, "ioctl TIOCGWINSZ", "dip", &[object::<winsize>(2)]),
        put(16, 0x5414, "ioctl TIOCSWINSZ", "dip", &[object::<winsize>(2)]),
        get(16, 0x5415, "ioctl TIOCMGET", "dip", INT),
        put(16, 0x5416, "ioctl TIOCMBIS", "dip", INT),
        put(16, 0x5417, "ioctl TIOCMBIC", "dip", INT),
        put(16, 0x5418, "ioctl TIOCMSET", "dip", INT),
        get(16, 0x5419, "ioctl TIOCGSOFTCAR", "dip", INT),
        put(16, 0x541a, "ioctl TIOCSSOFTCAR", "dip", INT),
        get(16, 0x541b, "ioctl FIONREAD", "dip", INT),
        row(16, 0x541d, "ioctl TIOCCONS", "di"),
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
        get(16, 0x8004_5432, "ioctl TIOCGDEV", "dip", INT),
        row(16, 0x4004_5436, "ioctl TIOCSIG", "dii"),
        row(16, 0x5437, "ioctl TIOCVHANGUP", "di"),
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
        put(16, 0x890b, "ioctl SIOCADDRT", "dip", &[sized(2, ROUTE)]),
        put(16, 0x890c, "ioctl SIOCDELRT", "dip", &[sized(2, ROUTE)]),
        ask(16, 0x8910, "ioctl SIOCGIFNAME", "dip", IFREQ),
        get(16, 0x8912, "ioctl SIOCGIFCONF", "dip", &[interfaces(2)]),
        ask(16, 0x8913, "ioctl SIOCGIFFLAGS", "dip", IFREQ),
        put(16, 0x8914, "ioctl SIOCSIFFLAGS", "dip", IFREQ),
        ask(16, 0x8915, "ioctl SIOCGIFADDR", "dip", IFREQ),
        ask(16, 0x8917, "ioctl SIOCGIFDSTADDR", "dip", IFREQ),
        ask(16, 0x8919, "ioctl SIOCGIFBRDADDR", "dip", IFREQ),
        ask(16, 0x891b, "ioctl SIOCGIFNETMASK", "dip", IFREQ),
        ask(16, 0x891d, "ioctl SIOCGIFMETRIC", "dip", IFREQ),
        ask(16, 0x8921, "ioctl SIOCGIFMTU", "dip", IFREQ),
        ask(16, 0x8927, "ioctl SIOCGIFHWADDR", "dip", IFREQ),
        ask(16, 0x8933, "ioctl SIOCGIFINDEX", "dip", IFREQ),
        put(16, 0x8916, "ioctl SIOCSIFADDR", "dip", IFREQ),
        put(16, 0x8918, "ioctl SIOCSIFDSTADDR", "dip", IFREQ),
        put(16, 0x891a, "ioctl SIOCSIFBRDADDR", "dip", IFREQ),
        put(16, 0x891c, "ioctl SIOCSIFNETMASK", "dip", IFREQ),
        put(16, 0x891e, "ioctl SIOCSIFMETRIC", "dip", IFREQ),
        put(16, 0x8922, "ioctl SIOCSIFMTU", "dip", IFREQ),
        put(16, 0x8924, "ioctl SIOCSIFHWADDR", "dip", IFREQ),
        put(16, 0x8943, "ioctl SIOCSIFTXQLEN", "dip", IFREQ),
        put(16, 0x8931, "ioctl SIOCADDMULTI", "dip", IFREQ),
        put(16, 0x8932, "ioctl SIOCDELMULTI", "dip", IFREQ),
        put(16, 0x8934, "ioctl SIOCSIFPFLAGS", "dip", IFREQ),
        put(16, 0x8971, "ioctl SIOCSIFMAP", "dip", IFREQ),
        put(16, 0x8923, "ioctl SIOCSIFNAME", "dip", IFREQ),
        ask(16, 0x891f, "ioctl SIOCGIFMEM", "dip", IFREQ),
        ask(16, 0x8925, "ioctl SIOCGIFENCAP", "dip", IFREQ),
        ask(16, 0x8929, "ioctl SIOCGIFSLAVE", "dip", IFREQ),
        ask(16, 0x8935, "ioctl SIOCGIFPFLAGS", "dip", IFREQ),
        ask(16, 0x8938, "ioctl SIOCGIFCOUNT", "dip", IFREQ),
        ask(16, 0x8970, "ioctl SIOCGIFMAP", "dip", IFREQ),
        ask(16, 0x8942, "ioctl SIOCGIFTXQLEN", "dip", IFREQ),
        // How much it writes only the driver knows.
        withheld_as(16, 0x8946, "ioctl SIOCETHTOOL", libc::EOPNOTSUPP),
        put(16, 0x8953, "ioctl SIOCDARP", "dip", &[sized(2, ARP)]),
        ask(16, 0x8954, "ioctl SIOCGARP", "dip", &[sized(2, ARP)]),
        put(16, 0x8955, "ioctl SIOCSARP", "dip", &[sized(2, ARP)]),
        get(16, 0x8008_1272, "ioctl BLKGETSIZE64", "dip", LONG),
        // Declared for a `long`, but the kernel has always used an `int`.
        get(16, 0x8008_6601, "ioctl FS_IOC_GETFLAGS", "dip", INT),
        put(16, 0x4008_6602, "ioctl FS_IOC_SETFLAGS", "dip", INT),
        get(16, 0x8008_7601, "ioctl FS_IOC_GETVERSION", "dip", INT),
        get(16, 0x801c_581f, "ioctl FS_IOC_FSGETXATTR", "dip", &[sized(2, 28)]),
        put(16, 0x401c_5820, "ioctl FS_IOC_FSSETXATTR", "dip", &[sized(2, 28)]),
        row(16, 0x4004_9409, "ioctl FICLONE", "did"),
        put(16, 0x4020_940d, "ioctl FICLONERANGE", "dip", &[sized(2, 32)]),
        ask(16, 0xc018_9436, "ioctl FIDEDUPERANGE", "dip", &[counted(2, DUPLICATES)]),
        ask_with(16, 0xc020_660b, "ioctl FS_IOC_FIEMAP", "dip", (&[sized(2, 32)], &[counted(2, EXTENTS)])),
        ask_with(16, 0xc0c0_583b, "ioctl FS_IOC_GETFSMAP", "dip", (&[sized(2, 192)], &[counted(2, BLOCKS)])),
    ],
};

/// `fcntl(fd, command, argument)`.
#[rustfmt::skip]
pub(crate) static FCNTL: Commands = Commands {
    code: |args| u64::from(args[1] as u32),
    otherwise: Some(pass(72, "fcntl", "dil", Kernel)),
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
const WORD: &[Shape] = &[object::<u32>(0).always()];
const SECOND_WORD: &[Shape] = &[object::<u32>(4).always()];

/// `futex(word, operation, value, timeout or value, word, value)`. The words themselves are
/// ordinary shared memory: a wait only compares, and the comparison's outcome is the result.
///
/// The kernel itself writes the words of locks with priority inheritance, which are recorded as the kernel left
/// them, and the word of `FUTEX_WAKE_OP` ([`Operation`](super::operation::Operation)). (Calls of the library's
/// own locks do not come here, since these functions are hooked.)
#[rustfmt::skip]
pub(crate) static FUTEX: Commands = Commands {
    // FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME change neither reads nor writes.
    code: |args| u64::from(args[1] as u32 & !(128 | 256)),
    otherwise: Some(answer(202, "futex", libc::ENOSYS)),
    rows: &[
        put(202, 0, "futex FUTEX_WAIT", "piip", TIMEOUT),
        row(202, 1, "futex FUTEX_WAKE", "pii"),
        answered(202, 2, "futex FUTEX_FD", libc::ENOSYS),
        row(202, 3, "futex FUTEX_REQUEUE", "piiip"),
        row(202, 4, "futex FUTEX_CMP_REQUEUE", "piiipi"),
        get(202, 5, "futex FUTEX_WAKE_OP", "piiipi", SECOND_WORD),
        ask_with(202, 6, "futex FUTEX_LOCK_PI", "pi-p", (TIMEOUT, WORD)),
        get(202, 7, "futex FUTEX_UNLOCK_PI", "pi", WORD),
        get(202, 8, "futex FUTEX_TRYLOCK_PI", "pi", WORD),
        // The fifth argument is ignored, but the sixth is a mask.
        put(202, 9, "futex FUTEX_WAIT_BITSET", "piip-i", TIMEOUT),
        row(202, 10, "futex FUTEX_WAKE_BITSET", "pii--i"),
        ask_with(202, 11, "futex FUTEX_WAIT_REQUEUE_PI", "piipp", (TIMEOUT, SECOND_WORD)),
        get(202, 12, "futex FUTEX_CMP_REQUEUE_PI", "piiipi", SECOND_WORD),
        ask_with(202, 13, "futex FUTEX_LOCK_PI2", "pi-p", (TIMEOUT, WORD)),
    ],
};

/// `prctl(option, ...)`.
#[rustfmt::skip]
pub(crate) static PRCTL: Commands = Commands {
    code: |args| u64::from(args[0] as u32),
    otherwise: Some(pass(157, "prctl", "illll", Kernel)),
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
        withheld_as(157, 22, "prctl PR_SET_SECCOMP", libc::EINVAL),
        row(157, 23, "prctl PR_CAPBSET_READ", "il"),
        row(157, 24, "prctl PR_CAPBSET_DROP", "il"),
        get(157, 25, "prctl PR_GET_TSC", "ip", OPTION_INT),
        withheld_as(157, 26, "prctl PR_SET_TSC", libc::EINVAL),
        row(157, 27, "prctl PR_GET_SECUREBITS", "i"),
        row(157, 28, "prctl PR_SET_SECUREBITS", "il"),
        row(157, 29, "prctl PR_SET_TIMERSLACK", "il"),
        row(157, 30, "prctl PR_GET_TIMERSLACK", "i"),
        row(157, 33, "prctl PR_MCE_KILL", "ill"),
        row(157, 34, "prctl PR_MCE_KILL_GET", "i"),
        withheld_as(157, 35, "prctl PR_SET_MM", libc::EPERM),
        row(157, 36, "prctl PR_SET_CHILD_SUBREAPER", "il"),
        get(157, 37, "prctl PR_GET_CHILD_SUBREAPER", "ip", OPTION_INT),
        row(157, 38, "prctl PR_SET_NO_NEW_PRIVS", "illll"),
        row(157, 39, "prctl PR_GET_NO_NEW_PRIVS", "illll"),
        (
            40,
            machine(157, "prctl PR_GET_TID_ADDRESS", "ip", Kernel, MachineCall::TidAddress)
                .writes(&[object::<u64>(1)]),
        ),
        row(157, 41, "prctl PR_SET_THP_DISABLE", "illll"),
        row(157, 42, "prctl PR_GET_THP_DISABLE", "illll"),
        row(157, 47, "prctl PR_CAP_AMBIENT", "illll"),
        row(157, 52, "prctl PR_GET_SPECULATION_CTRL", "illll"),
        row(157, 53, "prctl PR_SET_SPECULATION_CTRL", "illll"),
        withheld_as(157, 59, "prctl PR_SET_SYSCALL_USER_DISPATCH", libc::EINVAL),
        get(157, 62, "prctl PR_SCHED_CORE", "iiiip", &[object::<u64>(4)]),
        withheld_as(157, 65, "prctl PR_SET_MDWE", libc::EINVAL),
        answered(157, 66, "prctl PR_GET_MDWE", libc::EINVAL),
        row(157, 0x5961_6d61, "prctl PR_SET_PTRACER", "il"),
        row(157, 0x5356_4d41, "prctl PR_SET_VMA", "iills"),
        get(157, 0x4155_5856, "prctl PR_GET_AUXV", "ipl", &[bytes(1, Taken(2))]),
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

/// `personality(what)`: what is executed later has it; of itself the machine is what it is.
pub(crate) static PERSONALITY: Commands = Commands {
    code: |args| u64::from(args[0] as u32),
    rows: &[row(135, 0xffff_ffff, "personality", "i")],
    otherwise: Some(pass(135, "personality", "i", Kernel)),
};

/// `process_vm_writev(process, from, count, to, count, flags)`.
pub(crate) static PROCESS_VM_WRITEV: Commands = Commands {
    code: |args| u64::from(args[0] as u32 == std::process::id()),
    rows: &[(
        1,
        pass(311, "process_vm_writev", "iplpll", Kernel)
            .reads(LOCAL_VECTORS)
            .writes(&[vectors(3, 4)]),
    )],
    otherwise: Some(pass(311, "process_vm_writev", "iplpll", Kernel).reads(LOCAL_VECTORS)),
};
const LOCAL_VECTORS: &[Shape] = &[array(1, 16, Given(2)), array(3, 16, Given(4))];

/// `ptrace(request, process, address, data)`. Children of the recorded program run natively, and
/// it may trace them.
#[rustfmt::skip]
pub(crate) static PTRACE: Commands = Commands {
    code: |args| u64::from(args[0] as u32),
    otherwise: Some(pass(101, "ptrace", "iill", Kernel)),
    rows: &[
        (0, machine(101, "ptrace PTRACE_TRACEME", "i", Kernel, MachineCall::TraceMe)),
        get(101, 1, "ptrace PTRACE_PEEKTEXT", "iilp", &[object::<u64>(3)]),
        get(101, 2, "ptrace PTRACE_PEEKDATA", "iilp", &[object::<u64>(3)]),
        get(101, 3, "ptrace PTRACE_PEEKUSER", "iilp", &[object::<u64>(3)]),
        get(101, 12, "ptrace PTRACE_GETREGS", "iilp", &[sized(3, 216)]),
        put(101, 13, "ptrace PTRACE_SETREGS", "iilp", &[sized(3, 216)]),
        get(101, 14, "ptrace PTRACE_GETFPREGS", "iilp", &[sized(3, 512)]),
        put(101, 15, "ptrace PTRACE_SETFPREGS", "iilp", &[sized(3, 512)]),
        get(101, 0x4201, "ptrace PTRACE_GETEVENTMSG", "iilp", &[object::<u64>(3)]),
        get(101, 0x4202, "ptrace PTRACE_GETSIGINFO", "iilp", &[sized(3, 128)]),
        put(101, 0x4203, "ptrace PTRACE_SETSIGINFO", "iilp", &[sized(3, 128)]),
        get(101, 0x4204, "ptrace PTRACE_GETREGSET", "iilp", &[one_vector(3)]),
        put(101, 0x4205, "ptrace PTRACE_SETREGSET", "iilp", &[one_vector(3)]),
        get(101, 0x420a, "ptrace PTRACE_GETSIGMASK", "iilp", &[object::<u64>(3)]),
        put(101, 0x420b, "ptrace PTRACE_SETSIGMASK", "iilp", &[object::<u64>(3)]),
        get(101, 0x420e, "ptrace PTRACE_GET_SYSCALL_INFO", "iilp", &[bytes(3, Taken(2))]),
        get(101, 0x420f, "ptrace PTRACE_GET_RSEQ_CONFIGURATION", "iilp", &[bytes(3, Given(2))]),
    ],
};

/// `quotactl(command, device, id, data)`: the command is above the kind of quota.
pub(crate) static QUOTACTL: Commands = quota_commands!(179, "quotactl", "isip");

/// `quotactl_fd(descriptor, command, id, data)`.
pub(crate) static QUOTACTL_FD: Commands = Commands {
    code: |args| u64::from(args[1] as u32 >> 8),
    ..quota_commands!(443, "quotactl_fd", "diip")
};

/// `keyctl(command, ...)`.
pub(crate) static KEYCTL: Commands = Commands {
    code: |args| u64::from(args[0] as u32),
    otherwise: Some(answer(250, "keyctl", libc::EOPNOTSUPP).noted()),
    rows: &[
        row(250, 0, "keyctl KEYCTL_GET_KEYRING_ID", "iii"),
        row(250, 1, "keyctl KEYCTL_JOIN_SESSION_KEYRING", "is"),
        put(250, 2, "keyctl KEYCTL_UPDATE", "iipl", &[bytes(2, Given(3))]),
        row(250, 3, "keyctl KEYCTL_REVOKE", "ii"),
        row(250, 4, "keyctl KEYCTL_CHOWN", "iiii"),
        row(250, 5, "keyctl KEYCTL_SETPERM", "iii"),
        get(250, 6, "keyctl KEYCTL_DESCRIBE", "iipl", &[bytes(2, Taken(3))]),
        row(250, 7, "keyctl KEYCTL_CLEAR", "ii"),
        row(250, 8, "keyctl KEYCTL_LINK", "iii"),
        row(250, 9, "keyctl KEYCTL_UNLINK", "iii"),
        row(250, 10, "keyctl KEYCTL_SEARCH", "iissi"),
        get(250, 11, "keyctl KEYCTL_READ", "iipl", &[bytes(2, Taken(3))]),
        put(250, 12, "keyctl KEYCTL_INSTANTIATE", "iipli", &[bytes(2, Given(3))]),
        row(250, 13, "keyctl KEYCTL_NEGATE", "iiii"),
        row(250, 14, "keyctl KEYCTL_SET_REQKEY_KEYRING", "ii"),
        row(250, 15, "keyctl KEYCTL_SET_TIMEOUT", "iii"),
        row(250, 16, "keyctl KEYCTL_ASSUME_AUTHORITY", "ii"),
        get(250, 17, "keyctl KEYCTL_GET_SECURITY", "iipl", &[bytes(2, Taken(3))]),
        row(250, 18, "keyctl KEYCTL_SESSION_TO_PARENT", "i"),
        row(250, 19, "keyctl KEYCTL_REJECT", "iiiii"),
        row(250, 21, "keyctl KEYCTL_INVALIDATE", "ii"),
        row(250, 22, "keyctl KEYCTL_GET_PERSISTENT", "iii"),
        row(250, 29, "keyctl KEYCTL_RESTRICT_KEYRING", "iiss"),
        row(250, 30, "keyctl KEYCTL_MOVE", "iiiii"),
        get(250, 31, "keyctl KEYCTL_CAPABILITIES", "ipl", &[bytes(1, Taken(2))]),
    ],
};

/// `semctl(id, number, command, argument)`.
pub(crate) static SEMCTL: Commands = Commands {
    code: |args| u64::from(args[2] as u32),
    otherwise: Some(pass(66, "semctl", "iii", Kernel)),
    rows: &[
        row(66, 0, "semctl IPC_RMID", "iii"),
        put(66, 1, "semctl IPC_SET", "iiip", SEMAPHORES),
        get(66, 2, "semctl IPC_STAT", "iiip", SEMAPHORES),
        get(66, 3, "semctl IPC_INFO", "iiip", &[sized(3, 40)]),
        row(66, 11, "semctl GETPID", "iii"),
        row(66, 12, "semctl GETVAL", "iii"),
        (13, machine(66, "semctl GETALL", "iiip", Kernel, MachineCall::AllSemaphores)),
        row(66, 14, "semctl GETNCNT", "iii"),
        row(66, 15, "semctl GETZCNT", "iii"),
        row(66, 16, "semctl SETVAL", "iiii"),
        row(66, 17, "semctl SETALL", "iiip"),
        get(66, 18, "semctl SEM_STAT", "iiip", SEMAPHORES),
        get(66, 19, "semctl SEM_INFO", "iiip", &[sized(3, 40)]),
        get(66, 20, "semctl SEM_STAT_ANY", "iiip", SEMAPHORES),
    ],
};
const SEMAPHORES: &[Shape] = &[object::<semid_ds>(3)];

/// `shmctl(id, command, argument)`.
pub(crate) static SHMCTL: Commands = Commands {
    code: |args| u64::from(args[1] as u32),
    otherwise: Some(pass(31, "shmctl", "ii", Kernel)),
    rows: &[
        put(31, 1, "shmctl IPC_SET", "iip", SEGMENT),
        get(31, 2, "shmctl IPC_STAT", "iip", SEGMENT),
        get(31, 3, "shmctl IPC_INFO", "iip", &[sized(2, 72)]),
        get(31, 13, "shmctl SHM_STAT", "iip", SEGMENT),
        get(31, 14, "shmctl SHM_INFO", "iip", &[sized(2, 48)]),
        get(31, 15, "shmctl SHM_STAT_ANY", "iip", SEGMENT),
    ],
};
const SEGMENT: &[Shape] = &[object::<shmid_ds>(2)];

/// `msgctl(id, command, argument)`.
pub(crate) static MSGCTL: Commands = Commands {
    code: |args| u64::from(args[1] as u32),
    otherwise: Some(pass(71, "msgctl", "ii", Kernel)),
    rows: &[
        row(71, 0, "msgctl IPC_RMID", "ii"),
        put(71, 1, "msgctl IPC_SET", "iip", &[object::<msqid_ds>(2)]),
        get(71, 2, "msgctl IPC_STAT", "iip", &[object::<msqid_ds>(2)]),
        get(71, 3, "msgctl IPC_INFO", "iip", &[sized(2, 32)]),
        get(71, 11, "msgctl MSG_STAT", "iip", &[object::<msqid_ds>(2)]),
        get(71, 12, "msgctl MSG_INFO", "iip", &[sized(2, 32)]),
        get(71, 13, "msgctl MSG_STAT_ANY", "iip", &[object::<msqid_ds>(2)]),
    ],
};
