//! The system calls that sandboxed code may make, with the arguments that they may have.
//!
//! Two filters are in force. What no honest replay does under any library, such as sending a
//! signal to another process, ends the process at once, so that whoever tries is found out.
//! Everything else that is not in the list of what is needed is refused with EPERM, which the
//! libraries below take for "not here".

use super::Purpose;
use anyhow::Context;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;

/// What must hold for an argument, by its index. The 32 bits that the kernel looks at, or all 64.
#[derive(Clone, Copy)]
enum Is {
    /// It is this number.
    Int(u8, u32),
    /// It is this number, in all its bits.
    Word(u8, u64),
    /// It is another number than this.
    Not(u8, u32),
    /// Of these bits, none is set.
    Without(u8, u32),
    /// It is the process's own id.
    Own(u8),
    /// It is not the process's own id.
    Foreign(u8),
}

/// A form of a call: all of this holds.
type Form = &'static [Is];

/// A system call and the forms of it that are meant; any, if there are none.
type Call = (i64, &'static str, &'static [Form]);

/// The flags of a thread that shares everything with its creator, as glibc and musl set them.
const THREAD: u64 = 0x3d_0f00;
const THREAD_OF_MUSL: u64 = 0x7d_0f00;
const CLONE_THREAD: u32 = 0x1_0000;
/// Protection bits.
const WRITE: u32 = 2;
const EXECUTE: u32 = 4;
/// Either is missing: memory is never writable and executable at once.
const WRITE_XOR_EXECUTE: &[Form] = &[&[Is::Without(2, WRITE)], &[Is::Without(2, EXECUTE)]];
/// `O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND`, and `O_TMPFILE`'s own bit.
const OPENS_TO_WRITE: u32 = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o20_000_000;

/// What a replay, and everything that reads a trace, needs: memory, threads, time, signals to
/// itself, and the descriptors that it has.
#[rustfmt::skip]
const ALLOWED: &[Call] = &[
    (0, "read", &[]),
    (1, "write", &[]),
    (3, "close", &[]),
    (5, "fstat", &[]),
    (8, "lseek", &[]),
    (9, "mmap", WRITE_XOR_EXECUTE),
    (10, "mprotect", WRITE_XOR_EXECUTE),
    (11, "munmap", &[]),
    (12, "brk", &[]),
    (13, "rt_sigaction", &[]),
    (14, "rt_sigprocmask", &[]),
    (15, "rt_sigreturn", &[]),
    (17, "pread64", &[]),
    (20, "writev", &[]),
    (24, "sched_yield", &[]),
    (25, "mremap", &[]),
    (27, "mincore", &[]),
    // NORMAL to DONTNEED, FREE, HUGEPAGE, NOHUGEPAGE, DONTDUMP, DODUMP.
    (28, "madvise", &[
        &[Is::Int(2, 0)], &[Is::Int(2, 1)], &[Is::Int(2, 2)], &[Is::Int(2, 3)], &[Is::Int(2, 4)],
        &[Is::Int(2, 8)], &[Is::Int(2, 14)], &[Is::Int(2, 15)], &[Is::Int(2, 16)],
        &[Is::Int(2, 17)],
    ]),
    (35, "nanosleep", &[]),
    (39, "getpid", &[]),
    (56, "clone", &[&[Is::Word(0, THREAD)], &[Is::Word(0, THREAD_OF_MUSL)]]),
    (60, "exit", &[]),
    // F_GETFD, F_GETFL, F_DUPFD_CLOEXEC.
    (72, "fcntl", &[&[Is::Word(1, 1)], &[Is::Word(1, 3)], &[Is::Word(1, 1030)]]),
    (77, "ftruncate", &[]),
    (96, "gettimeofday", &[]),
    (131, "sigaltstack", &[]),
    // PR_SET_NAME, PR_SET_TIMERSLACK, and PR_SET_VMA: names of threads and of memory, and timers.
    (157, "prctl", &[&[Is::Word(0, 15)], &[Is::Word(0, 29)], &[Is::Word(0, 0x5356_4d41)]]),
    // The thread's own FS and GS bases.
    (158, "arch_prctl", &[
        &[Is::Int(0, 0x1001)], &[Is::Int(0, 0x1002)], &[Is::Int(0, 0x1003)], &[Is::Int(0, 0x1004)],
    ]),
    (186, "gettid", &[]),
    (202, "futex", &[]),
    (203, "sched_setaffinity", &[&[Is::Int(0, 0)]]),
    (204, "sched_getaffinity", &[&[Is::Int(0, 0)]]),
    // How the kernel goes on with a sleep after the process was stopped and continued.
    (219, "restart_syscall", &[]),
    (228, "clock_gettime", &[]),
    (230, "clock_nanosleep", &[]),
    (231, "exit_group", &[]),
    (234, "tgkill", &[&[Is::Own(0)]]),
    (273, "set_robust_list", &[]),
    // Its own limits, which it can only lower: it has no capabilities.
    (302, "prlimit64", &[&[Is::Int(0, 0)], &[Is::Own(0)]]),
    (309, "getcpu", &[]),
    // Copying guest memory that may not be there.
    (310, "process_vm_readv", &[&[Is::Own(0)]]),
    (311, "process_vm_writev", &[&[Is::Own(0)]]),
    (318, "getrandom", &[]),
    // MFD_CLOEXEC, with or without MFD_NOEXEC_SEAL or MFD_EXEC.
    (319, "memfd_create", &[&[Is::Int(1, 1)], &[Is::Int(1, 9)], &[Is::Int(1, 17)]]),
    (324, "membarrier", &[]),
    (334, "rseq", &[]),
    // Its arguments are in memory, where no filter sees them: it is said not to exist.
    (435, "clone3", &[]),
];

#[rustfmt::skip]
/// What those that print need beside: is it a terminal, and how wide?
const PRINTS: &[Call] = &[
    (7, "poll", &[]),
    // TCGETS, TCGETS2, TIOCGWINSZ.
    (16, "ioctl", &[
        &[Is::Word(1, 0x5401)], &[Is::Word(1, 0x802c_542a)], &[Is::Word(1, 0x5413)],
    ]),
    (32, "dup", &[]),
];

/// What those need that open files to read them. Which ones, Landlock says.
const OPENS: &[Call] = &[
    (2, "open", &[&[Is::Without(1, OPENS_TO_WRITE)]]),
    (4, "stat", &[]),
    (6, "lstat", &[]),
    (73, "flock", &[]),
    (21, "access", &[]),
    (79, "getcwd", &[]),
    (89, "readlink", &[]),
    (257, "openat", &[&[Is::Without(2, OPENS_TO_WRITE)]]),
    (262, "newfstatat", &[]),
    (267, "readlinkat", &[]),
    (332, "statx", &[]),
    (217, "getdents64", &[]),
];

#[rustfmt::skip]
/// What those need that make files. Where, Landlock says.
const MAKES: &[Call] = &[
    (2, "open", &[]),
    (18, "pwrite64", &[]),
    (40, "sendfile", &[]),
    (73, "flock", &[]),
    (74, "fsync", &[]),
    (75, "fdatasync", &[]),
    (82, "rename", &[]),
    (86, "link", &[]),
    (87, "unlink", &[]),
    (91, "fchmod", &[]),
    (257, "openat", &[]),
    (263, "unlinkat", &[]),
    (264, "renameat", &[]),
    (265, "linkat", &[]),
    (285, "fallocate", &[]),
    (316, "renameat2", &[]),
    (326, "copy_file_range", &[]),
    // F_SETFD, F_SETLK and F_OFD_SETLK, and what everybody may.
    (72, "fcntl", &[
        &[Is::Word(1, 1)], &[Is::Word(1, 2)], &[Is::Word(1, 3)], &[Is::Word(1, 6)],
        &[Is::Word(1, 37)], &[Is::Word(1, 1030)],
    ]),
];

/// What only an attack does.
#[rustfmt::skip]
const DEADLY: &[Call] = &[
    (41, "socket", &[]),
    (42, "connect", &[]),
    (44, "sendto", &[]),
    (46, "sendmsg", &[]),
    (53, "socketpair", &[]),
    (56, "clone", &[&[Is::Without(0, CLONE_THREAD)]]),
    (57, "fork", &[]),
    (58, "vfork", &[]),
    (59, "execve", &[]),
    (62, "kill", &[]),
    // F_SETOWN, F_SETSIG, F_SETOWN_EX.
    (72, "fcntl", &[&[Is::Int(1, 8)], &[Is::Int(1, 10)], &[Is::Int(1, 15)]]),
    (101, "ptrace", &[]),
    (129, "rt_sigqueueinfo", &[]),
    (165, "mount", &[]),
    (200, "tkill", &[]),
    (203, "sched_setaffinity", &[&[Is::Not(0, 0), Is::Foreign(0)]]),
    (234, "tgkill", &[&[Is::Foreign(0)]]),
    (248, "add_key", &[]),
    (250, "keyctl", &[]),
    (272, "unshare", &[]),
    (297, "rt_tgsigqueueinfo", &[]),
    (298, "perf_event_open", &[]),
    (302, "prlimit64", &[&[Is::Not(0, 0), Is::Foreign(0)]]),
    (308, "setns", &[]),
    (310, "process_vm_readv", &[&[Is::Foreign(0)]]),
    (311, "process_vm_writev", &[&[Is::Foreign(0)]]),
    (321, "bpf", &[]),
    (322, "execveat", &[]),
    (323, "userfaultfd", &[]),
    (424, "pidfd_send_signal", &[]),
    (425, "io_uring_setup", &[]),
    (434, "pidfd_open", &[]),
    (438, "pidfd_getfd", &[]),
];

/// What is said not to exist: the C library then does without.
const UNKNOWN: &[Call] = &[(435, "clone3", &[])];

/// Puts the filters in force, for this thread and those that it will start.
pub(super) fn restrict(purpose: &Purpose<'_>) -> anyhow::Result<()> {
    let mut allowed: Vec<&[Call]> = vec![ALLOWED];
    allowed.extend(match purpose {
        Purpose::Replay => [].as_slice(),
        Purpose::Read { .. } => &[PRINTS, OPENS],
        Purpose::Mend { .. } => &[PRINTS, OPENS, MAKES],
    });
    const EPERM: u32 = 1;
    const ENOSYS: u32 = 38;
    // The kernel takes the strictest answer of all filters. The last is the one that forbids
    // further filters.
    let allow = SeccompAction::Allow;
    apply(&[UNKNOWN], allow.clone(), SeccompAction::Errno(ENOSYS))?;
    apply(&[DEADLY], allow.clone(), SeccompAction::KillProcess)?;
    apply(&allowed, SeccompAction::Errno(EPERM), allow)
}

/// Installs a filter with one answer for these calls, and another for all others.
fn apply(
    tables: &[&[Call]],
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> anyhow::Result<()> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    // A later table replaces what an earlier one says of a call.
    for &(number, name, forms) in tables.iter().copied().flatten() {
        let forms = forms.iter().map(|form| rule(form)).collect::<anyhow::Result<_>>();
        rules.insert(number, forms.with_context(|| format!("in the rule for {name}"))?);
    }
    let filter = SeccompFilter::new(rules, otherwise, matched, TargetArch::x86_64)?;
    let program: BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter(&program)?)
}

fn rule(form: Form) -> anyhow::Result<SeccompRule> {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let own = u64::from(std::process::id());
    let conditions = form.iter().map(|&condition| match condition {
        Is::Int(index, value) => SeccompCondition::new(index, Dword, Eq, value.into()),
        Is::Word(index, value) => SeccompCondition::new(index, Qword, Eq, value),
        Is::Not(index, value) => SeccompCondition::new(index, Dword, Ne, value.into()),
        Is::Without(index, bits) => SeccompCondition::new(index, Dword, MaskedEq(bits.into()), 0),
        Is::Own(index) => SeccompCondition::new(index, Dword, Eq, own),
        Is::Foreign(index) => SeccompCondition::new(index, Dword, Ne, own),
    });
    Ok(SeccompRule::new(conditions.collect::<Result<_, _>>()?)?)
}
