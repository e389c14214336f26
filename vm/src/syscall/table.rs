//! The table: one row per system call, in the order of the numbers.
//!
//! Sources: the manual pages (sections 2 and 3), and where these are silent about what is written
//! on errors or how far, Linux 6.x itself (`net/socket.c`, `fs/select.c`, `kernel/exit.c`). A test
//! issues calls and checks that nothing is written that the rows do not say.
//!
//! # Choices
//! - *Absent* (`ENOSYS`): what programs do without on older or smaller kernels. `rseq`, so that
//!   no restartable sequence exists; `clone3`, so that glibc falls back to `clone`; `io_uring`,
//!   because with it the kernel writes guest memory at any time; seccomp, because it would bind
//!   the recorder too.
//! - *Withheld*: absent although the host has it and programs notice; the user is told.
//!   `remap_file_pages` is: programs that still use it do without on newer kernels.
//! - *Refused*: what has no fallback and reaches outside what a recording can hold; only commands
//!   are (`ptrace`).
//! - What changes the machine for all its processes is done as the program asks: it would be
//!   natively, too.

use super::commands::{
    CLOCK_NANOSLEEP, FCNTL, FUTEX, GETSOCKOPT, IOCTL, KEYCTL, MSGCTL, PERSONALITY, PRCTL,
    PROCESS_VM_WRITEV, PTRACE, QUOTACTL, QUOTACTL_FD, SEMCTL, SHMCTL,
};
use super::shape::Count::{Given, Just, Taken};
use super::shape::{
    Shape, array, bit_set, bytes, capabilities, capacity_at, file_handle, object, operations,
    page_map, received, received_many, sent, sent_lengths, sent_many, sized, tagged, vectors,
};
use super::spec::Order::{Kernel, Local, Memory};
use super::spec::{MachineCall as M, Spec, absent, answer, machine, pass, select, withheld};
use libc::{
    c_int, epoll_event, iovec, itimerspec, itimerval, mq_attr, pollfd, rlimit, rusage, sched_param,
    sigevent, socklen_t, stat, statfs, statx, sysinfo, time_t, timespec, timeval, timex, tms,
    utimbuf, utsname,
};

/// Bytes of the kernel's signal set, smaller than the C library's.
const SIGSET: u32 = 8;
/// Bytes of `timezone`, which the `libc` crate leaves open.
const TIMEZONE: u32 = 8;
/// Bytes of `siginfo_t` that `waitid` fills in.
const WAIT_INFO: u32 = 28;

/// Every system call.
#[rustfmt::skip]
pub(crate) static CALLS: &[Spec] = &[
    pass(0, "read", "dpl", Kernel).writes(&[bytes(1, Taken(2))]),
    pass(1, "write", "dpl", Kernel).sends(0, bytes(1, Taken(2))),
    machine(2, "open", "sim", Kernel, M::Open),
    pass(3, "close", "d", Kernel),
    pass(4, "stat", "sp", Kernel).writes(&[object::<stat>(1)]),
    pass(5, "fstat", "dp", Kernel).writes(&[object::<stat>(1)]),
    pass(6, "lstat", "sp", Kernel).writes(&[object::<stat>(1)]),
    pass(7, "poll", "pii", Kernel).reads(&[POLLED]).writes(&[POLLED]),
    pass(8, "lseek", "dli", Kernel),
    machine(9, "mmap", "pliidl", Memory, M::Mmap),
    machine(10, "mprotect", "pli", Memory, M::Mprotect),
    machine(11, "munmap", "pl", Memory, M::Munmap),
    machine(12, "brk", "p", Memory, M::Brk),
    machine(13, "rt_sigaction", "ippl", Kernel, M::SigAction)
        .reads(&[sized(1, 32)]).writes(&[sized(2, 32)]),
    machine(14, "rt_sigprocmask", "ippl", Local, M::SigProcMask)
        .reads(&[sized(1, SIGSET)]).writes(&[sized(2, SIGSET)]),
    machine(15, "rt_sigreturn", "", Local, M::SigReturn),
    select(16, "ioctl", &IOCTL),
    pass(17, "pread64", "dpll", Kernel).writes(&[bytes(1, Taken(2))]),
    pass(18, "pwrite64", "dpll", Kernel).sends(0, bytes(1, Taken(2))),
    pass(19, "readv", "dpi", Kernel).reads(VECTORS).writes(&[vectors(1, 2)]),
    pass(20, "writev", "dpi", Kernel).reads(VECTORS).sends(0, vectors(1, 2)),
    pass(21, "access", "si", Kernel),
    pass(22, "pipe", "p", Kernel).writes(&[object::<[c_int; 2]>(0)]),
    pass(23, "select", "ipppp", Kernel)
        .reads(&[bit_set(1, 0), bit_set(2, 0), bit_set(3, 0), object::<timeval>(4)])
        .writes(&[bit_set(1, 0), bit_set(2, 0), bit_set(3, 0), object::<timeval>(4).always()]),
    pass(24, "sched_yield", "", Local),
    machine(25, "mremap", "pllip", Memory, M::Mremap),
    pass(26, "msync", "pli", Kernel),
    pass(27, "mincore", "plp", Kernel).writes(&[page_map(2, 1)]),
    machine(28, "madvise", "pli", Memory, M::Madvise),
    pass(29, "shmget", "ili", Kernel),
    machine(30, "shmat", "ipi", Memory, M::Shmat),
    select(31, "shmctl", &SHMCTL),
    pass(32, "dup", "d", Kernel),
    pass(33, "dup2", "dd", Kernel),
    machine(34, "pause", "", Kernel, M::SigWait),
    pass(35, "nanosleep", "pp", Local)
        .reads(&[object::<timespec>(0)]).writes(&[object::<timespec>(1).if_interrupted()]),
    pass(36, "getitimer", "ip", Kernel).writes(&[object::<itimerval>(1)]),
    pass(37, "alarm", "i", Kernel),
    pass(38, "setitimer", "ipp", Kernel)
        .reads(&[object::<itimerval>(1)]).writes(&[object::<itimerval>(2)]),
    pass(39, "getpid", "", Local),
    pass(40, "sendfile", "ddpl", Kernel)
        .reads(&[object::<i64>(2)]).writes(&[object::<i64>(2)]).moves(0),
    pass(41, "socket", "iii", Kernel),
    pass(42, "connect", "dpi", Kernel).reads(&[bytes(1, Given(2))]),
    pass(43, "accept", "dpp", Kernel).writes(ADDRESS_1),
    pass(44, "sendto", "dplipi", Kernel)
        .reads(&[bytes(4, Given(5))]).sends(0, bytes(1, Taken(2))),
    pass(45, "recvfrom", "dplipp", Kernel)
        .writes(&[bytes(1, Taken(2)), capacity_at(4, 5), IN_ADDRESS_LEN]),
    pass(46, "sendmsg", "dpi", Kernel).reads(MESSAGE).sends(0, sent(1)),
    pass(47, "recvmsg", "dpi", Kernel).reads(MESSAGE).writes(&[received(1)]),
    pass(48, "shutdown", "di", Kernel),
    pass(49, "bind", "dpi", Kernel).reads(&[bytes(1, Given(2))]),
    pass(50, "listen", "di", Kernel),
    pass(51, "getsockname", "dpp", Kernel).writes(ADDRESS_1),
    pass(52, "getpeername", "dpp", Kernel).writes(ADDRESS_1),
    pass(53, "socketpair", "iiip", Kernel).writes(&[object::<[c_int; 2]>(3)]),
    pass(54, "setsockopt", "diipi", Kernel).reads(&[bytes(3, Given(4))]),
    select(55, "getsockopt", &GETSOCKOPT),
    machine(56, "clone", "lpppl", Kernel, M::Clone),
    machine(57, "fork", "", Kernel, M::Fork),
    machine(58, "vfork", "", Kernel, M::Fork),
    machine(59, "execve", "spp", Kernel, M::Execve),
    machine(60, "exit", "i", Kernel, M::Exit),
    pass(61, "wait4", "ipip", Kernel).writes(&[object::<c_int>(1), object::<rusage>(3)]),
    machine(62, "kill", "ii", Kernel, M::Kill),
    pass(63, "uname", "p", Local).writes(&[object::<utsname>(0)]),
    pass(64, "semget", "iii", Kernel),
    pass(65, "semop", "ipi", Kernel).reads(&[array(1, 6, Given(2))]),
    select(66, "semctl", &SEMCTL),
    machine(67, "shmdt", "p", Memory, M::Shmdt),
    pass(68, "msgget", "ii", Kernel),
    pass(69, "msgsnd", "ipli", Kernel).reads(&[tagged(1, Given(2))]),
    pass(70, "msgrcv", "iplli", Kernel).writes(&[tagged(1, Taken(2))]),
    select(71, "msgctl", &MSGCTL),
    select(72, "fcntl", &FCNTL),
    pass(73, "flock", "di", Kernel),
    pass(74, "fsync", "d", Kernel),
    pass(75, "fdatasync", "d", Kernel),
    pass(76, "truncate", "sl", Kernel),
    pass(77, "ftruncate", "dl", Kernel),
    machine(78, "getdents", "dpi", Kernel, M::ListDirectory).writes(&[bytes(1, Taken(2))]),
    pass(79, "getcwd", "pl", Kernel).writes(&[bytes(0, Taken(1))]),
    pass(80, "chdir", "s", Kernel),
    pass(81, "fchdir", "d", Kernel),
    pass(82, "rename", "ss", Kernel),
    pass(83, "mkdir", "si", Kernel),
    pass(84, "rmdir", "s", Kernel),
    pass(85, "creat", "si", Kernel),
    pass(86, "link", "ss", Kernel),
    pass(87, "unlink", "s", Kernel),
    pass(88, "symlink", "ss", Kernel),
    machine(89, "readlink", "spi", Kernel, M::ReadLink).writes(&[bytes(1, Taken(2))]),
    pass(90, "chmod", "si", Kernel),
    pass(91, "fchmod", "di", Kernel),
    pass(92, "chown", "sii", Kernel),
    pass(93, "fchown", "dii", Kernel),
    pass(94, "lchown", "sii", Kernel),
    pass(95, "umask", "i", Kernel),
    pass(96, "gettimeofday", "pp", Local).writes(&[object::<timeval>(0), sized(1, TIMEZONE)]),
    machine(97, "getrlimit", "ip", Kernel, M::Limit).writes(&[object::<rlimit>(1)]),
    pass(98, "getrusage", "ip", Local).writes(&[object::<rusage>(1)]),
    pass(99, "sysinfo", "p", Local).writes(&[object::<sysinfo>(0)]),
    pass(100, "times", "p", Local).writes(&[object::<tms>(0)]),
    select(101, "ptrace", &PTRACE),
    pass(102, "getuid", "", Kernel),
    pass(103, "syslog", "ipi", Kernel).writes(&[bytes(1, Taken(2))]),
    pass(104, "getgid", "", Kernel),
    pass(105, "setuid", "i", Kernel),
    pass(106, "setgid", "i", Kernel),
    pass(107, "geteuid", "", Kernel),
    pass(108, "getegid", "", Kernel),
    pass(109, "setpgid", "ii", Kernel),
    pass(110, "getppid", "", Kernel),
    pass(111, "getpgrp", "", Kernel),
    pass(112, "setsid", "", Kernel),
    pass(113, "setreuid", "ii", Kernel),
    pass(114, "setregid", "ii", Kernel),
    pass(115, "getgroups", "ip", Kernel).writes(&[array(1, 4, Taken(0))]),
    pass(116, "setgroups", "ip", Kernel).reads(&[array(1, 4, Given(0))]),
    pass(117, "setresuid", "iii", Kernel),
    pass(118, "getresuid", "ppp", Kernel).writes(THREE_IDS),
    pass(119, "setresgid", "iii", Kernel),
    pass(120, "getresgid", "ppp", Kernel).writes(THREE_IDS),
    pass(121, "getpgid", "i", Kernel),
    pass(122, "setfsuid", "i", Kernel),
    pass(123, "setfsgid", "i", Kernel),
    pass(124, "getsid", "i", Kernel),
    pass(125, "capget", "pp", Kernel)
        .reads(&[sized(0, 8)]).writes(&[sized(0, 8).always(), capabilities(1, 0)]),
    pass(126, "capset", "pp", Kernel)
        .reads(&[sized(0, 8), capabilities(1, 0)]).writes(&[sized(0, 8).always()]),
    machine(127, "rt_sigpending", "pl", Kernel, M::SigPending).writes(&[bytes(0, Given(1))]),
    machine(128, "rt_sigtimedwait", "pppl", Kernel, M::SigWait)
        .reads(&[sized(0, SIGSET), object::<timespec>(2)]).writes(&[sized(1, 128)]),
    machine(129, "rt_sigqueueinfo", "iip", Kernel, M::Kill).reads(&[sized(2, 128)]),
    machine(130, "rt_sigsuspend", "pl", Kernel, M::SigWait).reads(&[sized(0, SIGSET)]),
    machine(131, "sigaltstack", "pp", Local, M::SigAltStack)
        .reads(&[sized(0, 24)]).writes(&[sized(1, 24)]),
    pass(132, "utime", "sp", Kernel).reads(&[object::<utimbuf>(1)]),
    pass(133, "mknod", "sil", Kernel),
    absent(134, "uselib"),
    select(135, "personality", &PERSONALITY),
    pass(136, "ustat", "lp", Kernel).writes(&[sized(1, 32)]),
    pass(137, "statfs", "sp", Kernel).writes(&[object::<statfs>(1)]),
    pass(138, "fstatfs", "dp", Kernel).writes(&[object::<statfs>(1)]),
    absent(139, "sysfs"),
    pass(140, "getpriority", "ii", Kernel),
    pass(141, "setpriority", "iii", Kernel),
    pass(142, "sched_setparam", "ip", Kernel).reads(&[object::<sched_param>(1)]),
    pass(143, "sched_getparam", "ip", Kernel).writes(&[object::<sched_param>(1)]),
    pass(144, "sched_setscheduler", "iip", Kernel).reads(&[object::<sched_param>(2)]),
    pass(145, "sched_getscheduler", "i", Kernel),
    pass(146, "sched_get_priority_max", "i", Local),
    pass(147, "sched_get_priority_min", "i", Local),
    pass(148, "sched_rr_get_interval", "ip", Kernel).writes(&[object::<timespec>(1)]),
    machine(149, "mlock", "pl", Kernel, M::LockMemory),
    machine(150, "munlock", "pl", Kernel, M::LockMemory),
    machine(151, "mlockall", "i", Kernel, M::LockMemory),
    machine(152, "munlockall", "", Kernel, M::LockMemory),
    pass(153, "vhangup", "", Kernel),
    withheld(154, "modify_ldt"),
    pass(155, "pivot_root", "ss", Kernel),
    absent(156, "_sysctl"),
    select(157, "prctl", &PRCTL),
    machine(158, "arch_prctl", "ip", Local, M::ArchPrctl),
    pass(159, "adjtimex", "p", Kernel).reads(&[object::<timex>(0)]).writes(&[object::<timex>(0)]),
    machine(160, "setrlimit", "ip", Kernel, M::Limit).reads(&[object::<rlimit>(1)]),
    pass(161, "chroot", "s", Kernel),
    pass(162, "sync", "", Kernel),
    pass(163, "acct", "s", Kernel),
    pass(164, "settimeofday", "pp", Kernel)
        .reads(&[object::<timeval>(0), sized(1, TIMEZONE)]),
    pass(165, "mount", "sssls", Kernel),
    pass(166, "umount2", "si", Kernel),
    pass(167, "swapon", "si", Kernel),
    pass(168, "swapoff", "s", Kernel),
    pass(169, "reboot", "iiis", Kernel),
    pass(170, "sethostname", "pi", Kernel).reads(&[bytes(0, Given(1))]),
    pass(171, "setdomainname", "pi", Kernel).reads(&[bytes(0, Given(1))]),
    answer(172, "iopl", libc::EPERM).noted(),
    answer(173, "ioperm", libc::EPERM).noted(),
    absent(174, "create_module"),
    pass(175, "init_module", "pls", Kernel).reads(&[bytes(0, Given(1))]),
    pass(176, "delete_module", "si", Kernel),
    absent(177, "get_kernel_syms"),
    absent(178, "query_module"),
    select(179, "quotactl", &QUOTACTL),
    absent(180, "nfsservctl"),
    absent(181, "getpmsg"),
    absent(182, "putpmsg"),
    absent(183, "afs_syscall"),
    absent(184, "tuxcall"),
    absent(185, "security"),
    pass(186, "gettid", "", Local),
    pass(187, "readahead", "dll", Kernel),
    pass(188, "setxattr", "sspli", Kernel).reads(&[bytes(2, Given(3))]),
    pass(189, "lsetxattr", "sspli", Kernel).reads(&[bytes(2, Given(3))]),
    pass(190, "fsetxattr", "dspli", Kernel).reads(&[bytes(2, Given(3))]),
    pass(191, "getxattr", "sspl", Kernel).writes(&[bytes(2, Taken(3))]),
    pass(192, "lgetxattr", "sspl", Kernel).writes(&[bytes(2, Taken(3))]),
    pass(193, "fgetxattr", "dspl", Kernel).writes(&[bytes(2, Taken(3))]),
    pass(194, "listxattr", "spl", Kernel).writes(&[bytes(1, Taken(2))]),
    pass(195, "llistxattr", "spl", Kernel).writes(&[bytes(1, Taken(2))]),
    pass(196, "flistxattr", "dpl", Kernel).writes(&[bytes(1, Taken(2))]),
    pass(197, "removexattr", "ss", Kernel),
    pass(198, "lremovexattr", "ss", Kernel),
    pass(199, "fremovexattr", "ds", Kernel),
    machine(200, "tkill", "ii", Kernel, M::Kill),
    pass(201, "time", "p", Local).writes(&[object::<time_t>(0)]),
    select(202, "futex", &FUTEX),
    pass(203, "sched_setaffinity", "iip", Kernel).reads(&[bytes(2, Given(1))]),
    pass(204, "sched_getaffinity", "iip", Kernel).writes(&[bytes(2, Taken(1))]),
    absent(205, "set_thread_area"),
    machine(206, "io_setup", "ip", Memory, M::IoSetup)
        .reads(&[sized(1, 8)]).writes(&[sized(1, 8)]),
    machine(207, "io_destroy", "l", Kernel, M::IoDestroy),
    machine(208, "io_getevents", "lllpp", Kernel, M::IoEvents)
        .reads(&[object::<timespec>(4)]).writes(&[array(3, 32, Taken(2))]),
    machine(209, "io_submit", "llp", Kernel, M::IoSubmit).reads(&[operations(2, 1)]),
    // What is submitted has been done.
    answer(210, "io_cancel", libc::EINVAL),
    absent(211, "get_thread_area"),
    absent(212, "lookup_dcookie"),
    pass(213, "epoll_create", "i", Kernel),
    absent(214, "epoll_ctl_old"),
    absent(215, "epoll_wait_old"),
    withheld(216, "remap_file_pages"),
    machine(217, "getdents64", "dpi", Kernel, M::ListDirectory).writes(&[bytes(1, Taken(2))]),
    machine(218, "set_tid_address", "p", Local, M::SetTidAddress),
    answer(219, "restart_syscall", libc::EINTR),
    pass(220, "semtimedop", "ipip", Kernel)
        .reads(&[array(1, 6, Given(2)), object::<timespec>(3)]),
    pass(221, "fadvise64", "dlli", Kernel),
    machine(222, "timer_create", "ipp", Kernel, M::CreateTimer)
        .reads(&[object::<sigevent>(1)]).writes(&[object::<c_int>(2)]),
    pass(223, "timer_settime", "iipp", Kernel)
        .reads(&[object::<itimerspec>(2)]).writes(&[object::<itimerspec>(3)]),
    pass(224, "timer_gettime", "ip", Kernel).writes(&[object::<itimerspec>(1)]),
    pass(225, "timer_getoverrun", "i", Kernel),
    pass(226, "timer_delete", "i", Kernel),
    pass(227, "clock_settime", "ip", Kernel).reads(&[object::<timespec>(1)]),
    pass(228, "clock_gettime", "ip", Local).writes(&[object::<timespec>(1)]),
    pass(229, "clock_getres", "ip", Local).writes(&[object::<timespec>(1)]),
    select(230, "clock_nanosleep", &CLOCK_NANOSLEEP),
    machine(231, "exit_group", "i", Kernel, M::ExitGroup),
    pass(232, "epoll_wait", "dpii", Kernel).writes(EPOLL_EVENTS),
    pass(233, "epoll_ctl", "didp", Kernel).reads(&[object::<epoll_event>(3)]),
    machine(234, "tgkill", "iii", Kernel, M::Kill),
    pass(235, "utimes", "sp", Kernel).reads(&[object::<[timeval; 2]>(1)]),
    absent(236, "vserver"),
    pass(237, "mbind", "plipli", Kernel).reads(&[bit_set(3, 4)]),
    pass(238, "set_mempolicy", "ipl", Kernel).reads(&[bit_set(1, 2)]),
    pass(239, "get_mempolicy", "pplpi", Kernel).writes(&[object::<c_int>(0), bit_set(1, 2)]),
    pass(240, "mq_open", "simp", Kernel),
    pass(241, "mq_unlink", "s", Kernel),
    pass(242, "mq_timedsend", "dplip", Kernel)
        .reads(&[bytes(1, Given(2)), object::<timespec>(4)]),
    pass(243, "mq_timedreceive", "dplpp", Kernel)
        .reads(&[object::<timespec>(4)]).writes(&[bytes(1, Taken(2)), object::<c_int>(3)]),
    pass(244, "mq_notify", "dp", Kernel).reads(&[object::<sigevent>(1)]),
    pass(245, "mq_getsetattr", "dpp", Kernel)
        .reads(&[object::<mq_attr>(1)]).writes(&[object::<mq_attr>(2)]),
    pass(246, "kexec_load", "llpl", Kernel),
    pass(247, "waitid", "iipip", Kernel)
        .writes(&[sized(2, WAIT_INFO).always(), object::<rusage>(4)]),
    pass(248, "add_key", "sspli", Kernel).reads(&[bytes(2, Given(3))]),
    pass(249, "request_key", "sssi", Kernel),
    select(250, "keyctl", &KEYCTL),
    pass(251, "ioprio_set", "iii", Kernel),
    pass(252, "ioprio_get", "ii", Kernel),
    pass(253, "inotify_init", "", Kernel),
    pass(254, "inotify_add_watch", "dsi", Kernel),
    pass(255, "inotify_rm_watch", "di", Kernel),
    pass(256, "migrate_pages", "ilpp", Kernel).reads(&[bit_set(2, 1), bit_set(3, 1)]),
    machine(257, "openat", "dsim", Kernel, M::Open),
    pass(258, "mkdirat", "dsi", Kernel),
    pass(259, "mknodat", "dsil", Kernel),
    pass(260, "fchownat", "dsiii", Kernel),
    pass(261, "futimesat", "dsp", Kernel).reads(&[object::<[timeval; 2]>(2)]),
    pass(262, "newfstatat", "dspi", Kernel).writes(&[object::<stat>(2)]),
    pass(263, "unlinkat", "dsi", Kernel),
    pass(264, "renameat", "dsds", Kernel),
    pass(265, "linkat", "dsdsi", Kernel),
    pass(266, "symlinkat", "sds", Kernel),
    machine(267, "readlinkat", "dspi", Kernel, M::ReadLink).writes(&[bytes(2, Taken(3))]),
    pass(268, "fchmodat", "dsi", Kernel),
    pass(269, "faccessat", "dsi", Kernel),
    pass(270, "pselect6", "ippppp", Kernel)
        .reads(&[bit_set(1, 0), bit_set(2, 0), bit_set(3, 0), object::<timespec>(4), sized(5, 16)])
        .writes(&[bit_set(1, 0), bit_set(2, 0), bit_set(3, 0), object::<timespec>(4).always()]),
    pass(271, "ppoll", "pippl", Kernel)
        .reads(&[POLLED, object::<timespec>(2), sized(3, SIGSET)])
        .writes(&[POLLED, object::<timespec>(2).always()]),
    pass(272, "unshare", "l", Kernel),
    machine(273, "set_robust_list", "pl", Local, M::RobustList),
    machine(274, "get_robust_list", "ipp", Local, M::RobustList)
        .writes(&[object::<u64>(1), object::<u64>(2)]),
    pass(275, "splice", "dpdpli", Kernel)
        .reads(&[object::<i64>(1), object::<i64>(3)])
        .writes(&[object::<i64>(1), object::<i64>(3)]).moves(2),
    pass(276, "tee", "ddli", Kernel).moves(1),
    pass(277, "sync_file_range", "dlli", Kernel),
    machine(278, "vmsplice", "dpli", Kernel, M::Vmsplice).reads(VECTORS).sends(0, vectors(1, 2)),
    pass(279, "move_pages", "ilpppi", Kernel)
        .reads(&[array(2, 8, Given(1)), array(3, 4, Given(1))]).writes(&[array(4, 4, Given(1))]),
    pass(280, "utimensat", "dspi", Kernel).reads(&[object::<[timespec; 2]>(2)]),
    pass(281, "epoll_pwait", "dpiipl", Kernel).reads(&[sized(4, SIGSET)]).writes(EPOLL_EVENTS),
    machine(282, "signalfd", "dpl", Kernel, M::SignalFile).reads(&[sized(1, SIGSET)]),
    pass(283, "timerfd_create", "ii", Kernel),
    pass(284, "eventfd", "i", Kernel),
    pass(285, "fallocate", "dill", Kernel),
    pass(286, "timerfd_settime", "dipp", Kernel)
        .reads(&[object::<itimerspec>(2)]).writes(&[object::<itimerspec>(3)]),
    pass(287, "timerfd_gettime", "dp", Kernel).writes(&[object::<itimerspec>(1)]),
    pass(288, "accept4", "dppi", Kernel).writes(ADDRESS_1),
    machine(289, "signalfd4", "dpli", Kernel, M::SignalFile).reads(&[sized(1, SIGSET)]),
    pass(290, "eventfd2", "ii", Kernel),
    pass(291, "epoll_create1", "i", Kernel),
    pass(292, "dup3", "ddi", Kernel),
    pass(293, "pipe2", "pi", Kernel).writes(&[object::<[c_int; 2]>(0)]),
    pass(294, "inotify_init1", "i", Kernel),
    pass(295, "preadv", "dpill", Kernel).reads(VECTORS).writes(&[vectors(1, 2)]),
    pass(296, "pwritev", "dpill", Kernel).reads(VECTORS).sends(0, vectors(1, 2)),
    machine(297, "rt_tgsigqueueinfo", "iiip", Kernel, M::Kill).reads(&[sized(3, 128)]),
    withheld(298, "perf_event_open"),
    pass(299, "recvmmsg", "dpiip", Kernel)
        .reads(&[object::<timespec>(4)]).writes(&[received_many(1, 2), object::<timespec>(4)]),
    pass(300, "fanotify_init", "ii", Kernel),
    pass(301, "fanotify_mark", "dilds", Kernel),
    machine(302, "prlimit64", "iipp", Kernel, M::Limit)
        .reads(&[object::<rlimit>(2)]).writes(&[object::<rlimit>(3)]),
    pass(303, "name_to_handle_at", "dsppi", Kernel)
        .writes(&[file_handle(2).always(), object::<c_int>(3).always()]),
    pass(304, "open_by_handle_at", "dpi", Kernel).reads(&[file_handle(1)]),
    pass(305, "clock_adjtime", "ip", Kernel)
        .reads(&[object::<timex>(1)]).writes(&[object::<timex>(1)]),
    pass(306, "syncfs", "d", Kernel),
    pass(307, "sendmmsg", "dpii", Kernel).writes(&[sent_lengths(1)]).sends(0, sent_many(1)),
    pass(308, "setns", "di", Kernel),
    pass(309, "getcpu", "pp", Local).writes(&[object::<c_int>(0), object::<c_int>(1)]),
    pass(310, "process_vm_readv", "iplpll", Kernel)
        .reads(BOTH_VECTORS).writes(&[vectors(1, 2)]),
    select(311, "process_vm_writev", &PROCESS_VM_WRITEV),
    pass(312, "kcmp", "iiill", Kernel),
    pass(313, "finit_module", "dsi", Kernel),
    pass(314, "sched_setattr", "ipi", Kernel).reads(&[sized(1, 48)]),
    pass(315, "sched_getattr", "ipii", Kernel).writes(&[bytes(1, Given(2))]),
    pass(316, "renameat2", "dsdsi", Kernel),
    withheld(317, "seccomp"),
    pass(318, "getrandom", "pli", Local).writes(&[bytes(0, Taken(1))]),
    pass(319, "memfd_create", "si", Kernel),
    pass(320, "kexec_file_load", "ddlsl", Kernel),
    withheld(321, "bpf"),
    machine(322, "execveat", "dsppi", Kernel, M::Execve),
    withheld(323, "userfaultfd"),
    pass(324, "membarrier", "iii", Kernel),
    machine(325, "mlock2", "pli", Kernel, M::LockMemory),
    pass(326, "copy_file_range", "dpdpli", Kernel)
        .reads(&[object::<i64>(1), object::<i64>(3)])
        .writes(&[object::<i64>(1), object::<i64>(3)]).moves(2),
    pass(327, "preadv2", "dpilli", Kernel).reads(VECTORS).writes(&[vectors(1, 2)]),
    pass(328, "pwritev2", "dpilli", Kernel).reads(VECTORS).sends(0, vectors(1, 2)),
    withheld(329, "pkey_mprotect"),
    withheld(330, "pkey_alloc"),
    absent(331, "pkey_free"),
    pass(332, "statx", "dsiip", Kernel).writes(&[object::<statx>(4)]),
    absent(333, "io_pgetevents"),
    absent(334, "rseq"),
    absent(335, "uretprobe"),
    absent(336, "uprobe"),
    machine(424, "pidfd_send_signal", "dipi", Kernel, M::Kill).reads(&[sized(2, 128)]),
    withheld(425, "io_uring_setup"),
    absent(426, "io_uring_enter"),
    absent(427, "io_uring_register"),
    pass(428, "open_tree", "dsi", Kernel),
    pass(429, "move_mount", "dsdsi", Kernel),
    pass(430, "fsopen", "si", Kernel),
    pass(431, "fsconfig", "dispi", Kernel),
    pass(432, "fsmount", "dii", Kernel),
    pass(433, "fspick", "dsi", Kernel),
    pass(434, "pidfd_open", "ii", Kernel),
    absent(435, "clone3"),
    machine(436, "close_range", "iii", Kernel, M::CloseRange),
    machine(437, "openat2", "dspl", Kernel, M::Open).reads(&[bytes(2, Given(3))]),
    pass(438, "pidfd_getfd", "ddi", Kernel),
    pass(439, "faccessat2", "dsii", Kernel),
    pass(440, "process_madvise", "dplii", Kernel).reads(VECTORS),
    pass(441, "epoll_pwait2", "dpippl", Kernel)
        .reads(&[object::<timespec>(3), sized(4, SIGSET)]).writes(EPOLL_EVENTS),
    pass(442, "mount_setattr", "dsipl", Kernel).reads(&[bytes(3, Given(4))]),
    select(443, "quotactl_fd", &QUOTACTL_FD),
    pass(444, "landlock_create_ruleset", "pli", Kernel).reads(&[bytes(0, Given(1))]),
    pass(445, "landlock_add_rule", "dipi", Kernel).reads(&[sized(2, 12)]),
    pass(446, "landlock_restrict_self", "di", Kernel),
    absent(447, "memfd_secret"),
    pass(448, "process_mrelease", "di", Kernel),
    pass(449, "futex_waitv", "piipi", Kernel)
        .reads(&[array(0, 24, Given(1)), object::<timespec>(3)]),
    pass(450, "set_mempolicy_home_node", "plll", Kernel),
    pass(451, "cachestat", "dppi", Kernel).reads(&[sized(1, 16)]).writes(&[sized(2, 40)]),
    pass(452, "fchmodat2", "dsii", Kernel),
    absent(453, "map_shadow_stack"),
    pass(454, "futex_wake", "plii", Kernel),
    pass(455, "futex_wait", "pllipi", Kernel).reads(&[object::<timespec>(4)]),
    pass(456, "futex_requeue", "piii", Kernel).reads(&[array(0, 24, Just(2))]),
    pass(457, "statmount", "ppli", Kernel).reads(&[sized(0, 24)]).writes(&[bytes(1, Given(2))]),
    pass(458, "listmount", "ppli", Kernel)
        .reads(&[sized(0, 24)]).writes(&[array(1, 8, Taken(2))]),
    withheld(459, "lsm_get_self_attr"),
    absent(460, "lsm_set_self_attr"),
    absent(461, "lsm_list_modules"),
    absent(462, "mseal"),
    pass(463, "setxattrat", "dsispl", Kernel).reads(&[bytes(4, Given(5))]),
    absent(464, "getxattrat"),
    pass(465, "listxattrat", "dsipl", Kernel).writes(&[bytes(3, Taken(4))]),
    pass(466, "removexattrat", "dsis", Kernel),
    pass(467, "open_tree_attr", "dsipl", Kernel).reads(&[bytes(3, Given(4))]),
    pass(468, "file_getattr", "dspli", Kernel).writes(&[bytes(2, Given(3))]),
    pass(469, "file_setattr", "dspli", Kernel).reads(&[bytes(2, Given(3))]),
];

/// What stands for all numbers that Linux does not assign.
pub(crate) static UNKNOWN: Spec = absent(u16::MAX, "an unknown call");

/// Calls that may wait for something that never comes, and end when a signal comes (signal(7)).
#[rustfmt::skip]
pub(crate) static WAITS: &[u16] = &[
    0, 1, 2, 7, 16, 19, 20, 23, 34, 35, 40, 42, 43, 44, 45, 46, 47, 61, 65, 69, 70, 72, 73, 85,
    128, 130, 202, 220, 230, 232, 242, 243, 247, 257, 270, 271, 275, 276, 281, 288, 299, 307,
    318, 326, 327, 328, 437, 441, 449, 455,
];

const POLLED: Shape = array(0, size_of::<pollfd>() as u32, Given(1)).or_interrupted();
const BOTH_VECTORS: &[Shape] =
    &[array(1, size_of::<iovec>() as u32, Given(2)), array(3, size_of::<iovec>() as u32, Given(4))];
const VECTORS: &[Shape] = &[array(1, size_of::<iovec>() as u32, Given(2))];
const MESSAGE: &[Shape] = &[object::<libc::msghdr>(1)];
const ADDRESS_1: &[Shape] = &[capacity_at(1, 2), object::<socklen_t>(2)];
const IN_ADDRESS_LEN: Shape = object::<socklen_t>(5);
const THREE_IDS: &[Shape] = &[object::<u32>(0), object::<u32>(1), object::<u32>(2)];
const EPOLL_EVENTS: &[Shape] = &[array(1, size_of::<epoll_event>() as u32, Taken(2))];
