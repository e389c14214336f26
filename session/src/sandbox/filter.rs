//! The system calls that sandboxed code may make, with the arguments that they may have.
//!
//! Two filters are in force. What no honest replay does under any library, such as sending a
//! signal to another process, ends the process at once, so that whoever tries is found out.
//! Everything else that is not in the list of what is needed is refused with EPERM, which the
//! libraries below take for "not here".

use super::Purpose;
use crate::error::{Context, Error};
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
type Call = (&'static str, &'static [Form]);

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
    ("read", &[]),
    ("write", &[]),
    ("close", &[]),
    ("fstat", &[]),
    ("lseek", &[]),
    ("mmap", WRITE_XOR_EXECUTE),
    ("mprotect", WRITE_XOR_EXECUTE),
    ("munmap", &[]),
    ("brk", &[]),
    ("rt_sigaction", &[]),
    ("rt_sigprocmask", &[]),
    ("rt_sigreturn", &[]),
    ("pread64", &[]),
    ("writev", &[]),
    ("sched_yield", &[]),
    ("mremap", &[]),
    ("mincore", &[]),
    // NORMAL to DONTNEED, FREE, HUGEPAGE, NOHUGEPAGE, DONTDUMP, DODUMP.
    ("madvise", &[
        &[Is::Int(2, 0)], &[Is::Int(2, 1)], &[Is::Int(2, 2)], &[Is::Int(2, 3)], &[Is::Int(2, 4)],
        &[Is::Int(2, 8)], &[Is::Int(2, 14)], &[Is::Int(2, 15)], &[Is::Int(2, 16)],
        &[Is::Int(2, 17)],
    ]),
    ("nanosleep", &[]),
    ("getpid", &[]),
    ("clone", &[&[Is::Word(0, THREAD)], &[Is::Word(0, THREAD_OF_MUSL)]]),
    ("exit", &[]),
    // F_GETFD, F_GETFL, F_DUPFD_CLOEXEC.
    ("fcntl", &[&[Is::Word(1, 1)], &[Is::Word(1, 3)], &[Is::Word(1, 1030)]]),
    ("ftruncate", &[]),
    ("gettimeofday", &[]),
    ("sigaltstack", &[]),
    // PR_SET_NAME, PR_SET_TIMERSLACK, and PR_SET_VMA: names of threads and of memory, and timers.
    ("prctl", &[&[Is::Word(0, 15)], &[Is::Word(0, 29)], &[Is::Word(0, 0x5356_4d41)]]),
    // The thread's own FS and GS bases.
    ("arch_prctl", &[
        &[Is::Int(0, 0x1001)], &[Is::Int(0, 0x1002)], &[Is::Int(0, 0x1003)], &[Is::Int(0, 0x1004)],
    ]),
    ("gettid", &[]),
    ("futex", &[]),
    ("sched_setaffinity", &[&[Is::Int(0, 0)]]),
    ("sched_getaffinity", &[&[Is::Int(0, 0)]]),
    // How the kernel goes on with a sleep after the process was stopped and continued.
    ("restart_syscall", &[]),
    ("clock_gettime", &[]),
    ("clock_nanosleep", &[]),
    ("exit_group", &[]),
    ("tgkill", &[&[Is::Own(0)]]),
    ("set_robust_list", &[]),
    // Its own limits, which it can only lower: it has no capabilities.
    ("prlimit64", &[&[Is::Int(0, 0)], &[Is::Own(0)]]),
    ("getcpu", &[]),
    // Copying guest memory that may not be there.
    ("process_vm_readv", &[&[Is::Own(0)]]),
    ("process_vm_writev", &[&[Is::Own(0)]]),
    ("getrandom", &[]),
    // MFD_CLOEXEC, with or without MFD_NOEXEC_SEAL or MFD_EXEC.
    ("memfd_create", &[&[Is::Int(1, 1)], &[Is::Int(1, 9)], &[Is::Int(1, 17)]]),
    ("membarrier", &[]),
    ("rseq", &[]),
    // Its arguments are in memory, where no filter sees them: it is said not to exist.
    ("clone3", &[]),
];

#[rustfmt::skip]
/// What those that print need beside: is it a terminal, and how wide?
const PRINTS: &[Call] = &[
    ("poll", &[]),
    // TCGETS, TCGETS2, TIOCGWINSZ.
    ("ioctl", &[
        &[Is::Word(1, 0x5401)], &[Is::Word(1, 0x802c_542a)], &[Is::Word(1, 0x5413)],
    ]),
    ("dup", &[]),
];

/// What those need that open files to read them. Which ones, Landlock says.
const OPENS: &[Call] = &[
    ("open", &[&[Is::Without(1, OPENS_TO_WRITE)]]),
    ("stat", &[]),
    ("lstat", &[]),
    ("flock", &[]),
    ("access", &[]),
    ("getcwd", &[]),
    ("readlink", &[]),
    ("openat", &[&[Is::Without(2, OPENS_TO_WRITE)]]),
    ("newfstatat", &[]),
    ("readlinkat", &[]),
    ("statx", &[]),
    ("getdents64", &[]),
];

#[rustfmt::skip]
/// What those need that make files. Where, Landlock says.
const MAKES: &[Call] = &[
    ("open", &[]),
    ("pwrite64", &[]),
    ("sendfile", &[]),
    ("flock", &[]),
    ("fsync", &[]),
    ("fdatasync", &[]),
    ("rename", &[]),
    ("link", &[]),
    ("unlink", &[]),
    ("fchmod", &[]),
    ("openat", &[]),
    ("unlinkat", &[]),
    ("renameat", &[]),
    ("linkat", &[]),
    ("fallocate", &[]),
    ("renameat2", &[]),
    ("copy_file_range", &[]),
    // F_SETFD, F_SETLK and F_OFD_SETLK, and what everybody may.
    ("fcntl", &[
        &[Is::Word(1, 1)], &[Is::Word(1, 2)], &[Is::Word(1, 3)], &[Is::Word(1, 6)],
        &[Is::Word(1, 37)], &[Is::Word(1, 1030)],
    ]),
];

/// What only an attack does.
#[rustfmt::skip]
const DEADLY: &[Call] = &[
    ("socket", &[]),
    ("connect", &[]),
    ("sendto", &[]),
    ("sendmsg", &[]),
    ("socketpair", &[]),
    ("clone", &[&[Is::Without(0, CLONE_THREAD)]]),
    ("fork", &[]),
    ("vfork", &[]),
    ("execve", &[]),
    ("kill", &[]),
    // F_SETOWN, F_SETSIG, F_SETOWN_EX.
    ("fcntl", &[&[Is::Int(1, 8)], &[Is::Int(1, 10)], &[Is::Int(1, 15)]]),
    ("ptrace", &[]),
    ("rt_sigqueueinfo", &[]),
    ("mount", &[]),
    ("tkill", &[]),
    ("sched_setaffinity", &[&[Is::Not(0, 0), Is::Foreign(0)]]),
    ("tgkill", &[&[Is::Foreign(0)]]),
    ("add_key", &[]),
    ("keyctl", &[]),
    ("unshare", &[]),
    ("rt_tgsigqueueinfo", &[]),
    ("perf_event_open", &[]),
    ("prlimit64", &[&[Is::Not(0, 0), Is::Foreign(0)]]),
    ("setns", &[]),
    ("process_vm_readv", &[&[Is::Foreign(0)]]),
    ("process_vm_writev", &[&[Is::Foreign(0)]]),
    ("bpf", &[]),
    ("execveat", &[]),
    ("userfaultfd", &[]),
    ("pidfd_send_signal", &[]),
    ("io_uring_setup", &[]),
    ("pidfd_open", &[]),
    ("pidfd_getfd", &[]),
];

/// What is said not to exist: the C library then does without.
const UNKNOWN: &[Call] = &[("clone3", &[])];

/// Puts the filters in force, for this thread and those that it will start.
pub(super) fn restrict(purpose: &Purpose<'_>) -> crate::Result<()> {
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
) -> crate::Result<()> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    // A later table replaces what an earlier one says of a call.
    for &(name, forms) in tables.iter().copied().flatten() {
        let number =
            refrain_vm::syscall_number(name).ok_or_else(|| Error::Bug(format!("no {name}")))?;
        let forms = forms.iter().map(|form| rule(form)).collect::<crate::Result<_>>();
        rules.insert(number, forms.with_context(|| format!("in the rule for {name}"))?);
    }
    let filter = SeccompFilter::new(rules, otherwise, matched, TargetArch::x86_64)?;
    let program: BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter(&program)?)
}

fn rule(form: Form) -> crate::Result<SeccompRule> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_number() {
        let tables = [ALLOWED, PRINTS, OPENS, MAKES, DEADLY, UNKNOWN];
        for (name, _) in tables.into_iter().flatten() {
            assert!(refrain_vm::syscall_number(name).is_some(), "{name}");
        }
    }
}
